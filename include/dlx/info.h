/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_INFO_H
#define DLX_INFO_H

/* What the daemon knows: publishers, links, quotas. Included by dlx/dlx.h. */

#include <dlx/dlx.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Value of `refused` if the daemon is too old to report it. */
#define DLX_REFUSED_UNKNOWN UINT64_MAX

/** One publisher, as the daemon knows it. */
struct dlx_publisher_info {
    size_t size;
    char topic[DLX_TOPIC_MAX + 1]; /**< its topic */
    char client_name[64];          /**< `name` of struct dlx_connect_args */
    uint64_t publisher;            /**< id of the publisher */
    uint64_t published;            /**< messages, as the publisher counts them */
    uint64_t published_bytes;      /**< payload of these messages */
    uint64_t arena_bytes;          /**< shared memory for payloads */
    uint64_t control_bytes;        /**< shared memory for the control block */
    uint32_t pid; /**< in the daemon's pid namespace; 0: the process is not visible from there */
    uint32_t uid; /**< of the process */
    uint32_t n_subscribers; /**< subscriptions that are attached */
    uint32_t n_arenas;      /**< arenas */
    uint32_t depth;         /**< as in struct dlx_publisher_args */
    uint32_t history;       /**< likewise */
    uint32_t on_full;       /**< enum dlx_on_full */
    uint32_t retain;        /**< messages */
    bool retained;          /**< the publisher is gone, and the daemon keeps its messages */
    /** Publishes that failed with DLX_E_FULL or DLX_E_TIMEOUT, as the publisher counts them:
     *  subscribers see no gap for them. Or DLX_REFUSED_UNKNOWN. */
    uint64_t refused;
    /** Not 0: this is what is left of the memory of a publisher of an earlier daemon, where it had
     *  this id. Only dlx_list_gone_publishers() lists such entries. The links are the programs that
     *  still map the memory; `pid`, `uid` and `client_name` are those of the publisher if it is one
     *  of them. */
    uint64_t former;
    /** As the publisher counts them; DLX_FIGURE_UNKNOWN if the daemon is older than protocol 2.10.
     *  A publisher whose library is older counts no time. */
    uint64_t copied;        /**< messages that were copied into shared memory */
    uint64_t copied_bytes;  /**< payload that was copied */
    uint64_t blocked_ns;    /**< how long publishes have waited for room, with one that waits now;
                             *   not with one that the publisher's death ended */
    uint64_t blocked_at_ns; /**< when that wait began, CLOCK_MONOTONIC; 0: none goes on */
    /** A rule of the daemon lets every user observe the topic. False also for publishers of
     *  dlx_list_gone_publishers(), and if the daemon is older than protocol 2.10. */
    bool for_everybody;
};

/** Value of figures that the daemon is too old to report. */
#define DLX_FIGURE_UNKNOWN UINT64_MAX

/** Value of `behind` if the daemon is too old to report it. */
#define DLX_BEHIND_UNKNOWN UINT64_MAX

/** One link: a publisher and a subscription that are attached to each other. */
struct dlx_link_info {
    size_t size;
    char client_name[64]; /**< of the subscriber, as in struct dlx_publisher_info */
    uint64_t link;        /**< id of the link */
    uint64_t publisher;   /**< id of the publisher */
    uint64_t taken;       /**< messages, as the subscriber counts them, also across restarts */
    /** As in struct dlx_subscription_stats, also while the subscriber makes no call. A daemon older
     *  than protocol 2.8 leaves out what the subscriber has yet to notice. */
    uint64_t skipped;
    uint64_t lost;     /**< likewise */
    uint32_t pid;      /**< of the subscriber, as in struct dlx_publisher_info */
    uint32_t uid;      /**< of the subscriber */
    uint32_t n_held;   /**< messages that it holds */
    uint32_t max_held; /**< messages that it may hold */
    uint32_t mode;     /**< enum dlx_mode */
    bool reliable;     /**< as in struct dlx_subscribe_args */
    bool blocks; /**< the publisher waits because of this link; false if the daemon is too old */
    /** Messages that the subscriber can still take; or DLX_BEHIND_UNKNOWN. At max(depth, history) a
     *  BLOCK publisher waits, and a DROP publisher drops. A daemon older than protocol 2.8 includes
     *  dropped messages that the subscriber has yet to notice. */
    uint64_t behind;
    /** The link is not ready: the subscriber learns of it, and prepares memory for it, in its next
     *  call. A daemon older than protocol 2.7 does not list such links. */
    bool joining;
    /** Of an entry with `former`: whether this program is the publisher itself. */
    bool is_publisher;
    /** Likewise: bytes of it that this program maps, as it says. All other counts are 0. */
    uint64_t former_bytes;
    /** Of a worker: the number of its group, as in struct dlx_group_info; else 0. */
    uint32_t group;
    /** When the next message for the subscriber was published: CLOCK_MONOTONIC, in nanoseconds. 0:
     *  there is none, or the daemon cannot say, as one older than protocol 2.10. */
    uint64_t next_ns;
    /** Likewise of the oldest message that it holds. Of one that the ring had passed when the
     *  daemon was asked for the first time, a later time: it is at least that old. */
    uint64_t held_ns;
};

/** One subscription, whether a publisher serves it or not. */
struct dlx_subscription_info {
    size_t size;
    char topic[DLX_TOPIC_MAX + 1]; /**< its topic or pattern */
    char client_name[64];          /**< as in struct dlx_publisher_info */
    uint64_t subscription;         /**< id of the subscription */
    uint64_t client;               /**< id of its connection, as in struct dlx_client_info */
    uint32_t pid;                  /**< as in struct dlx_publisher_info */
    uint32_t uid;                  /**< of the process */
    uint32_t n_links; /**< to publishers, also links that are being made; 0: none serves it */
    uint32_t mode;    /**< enum dlx_mode */
    bool reliable;    /**< as in struct dlx_subscribe_args */
    bool accepts_unreliable; /**< likewise */
    char group[64];          /**< likewise; "": none */
    /** Why its last link was refused, as `text` of struct dlx_refusal_info; "": none was lately. */
    char refusal[512];
};

/** Something that the daemon has refused to a program. */
struct dlx_refusal_info {
    size_t size;
    char topic[DLX_TOPIC_MAX + 1]; /**< topic, or the pattern of a subscription */
    char what[16];        /**< "publish", "subscribe", "link" of a subscription, or "memory" */
    char client_name[64]; /**< as in struct dlx_publisher_info */
    uint64_t number;      /**< rises with each refusal */
    int32_t code;         /**< enum dlx_error */
    uint32_t pid;         /**< as in struct dlx_publisher_info */
    uint32_t uid;         /**< of the process */
    /** What the program was told. Of other users' programs, only root and the daemon's user are
     *  given that. Others read that there was a refusal, and whom to ask. */
    char text[512];
    /** Which rule of the configuration decided; "" if none did, and for all other users. */
    char rule[256];
    uint64_t at_ns;        /**< when, CLOCK_MONOTONIC; of the last time */
    uint64_t n;            /**< how often */
    uint64_t subscription; /**< of "link": id of the subscription; else 0 */
};

/** One connection of a program. */
struct dlx_client_info {
    size_t size;
    char client_name[64];  /**< `name` of struct dlx_connect_args */
    char socket[32];       /**< name of the listening socket on which it connected */
    uint64_t client;       /**< id of the connection */
    uint64_t shared_bytes; /**< shared memory of its publishers */
    uint32_t pid;          /**< as in struct dlx_publisher_info */
    uint32_t uid;          /**< of the process */
    uint32_t n_publishers;
    uint32_t n_subscriptions;
    uint32_t n_links;        /**< as publisher and as subscriber */
    uint32_t protocol_minor; /**< version of the protocol that it speaks */
    bool own;                /**< it is the connection that asks */
};

/** What a kick has done. */
struct dlx_kicked {
    size_t size;
    uint32_t n_kicked; /**< connections that were cut */
    /** Of them, those of a library older than protocol 2.10, which connects again by itself. */
    uint32_t n_older;
};

/** Whether process ids of the daemon are those of the caller's pid namespace. */
enum dlx_pid_scope {
    DLX_PID_UNKNOWN = 0,   /**< unknown: the daemon is too old, or one side has no /proc */
    DLX_PID_HERE = 1,      /**< they are */
    DLX_PID_ELSEWHERE = 2, /**< they are not: the daemon or the caller is in a container */
};

/** What the daemon says of itself. */
struct dlx_daemon_info {
    size_t size;
    char version[32];        /**< of the daemon, such as "0.1.0" */
    char socket[108];        /**< path in the daemon's mount namespace */
    uint32_t pid;            /**< in the daemon's pid namespace: see pid_scope */
    uint32_t protocol_major; /**< version of its protocol */
    uint32_t protocol_minor; /**< likewise */
    uint32_t n_clients;      /**< connections */
    uint32_t n_publishers;   /**< publishers */
    uint32_t n_links;        /**< including draining links: closed ones that still hold messages */
    uint32_t n_topics;       /**< topics with a publisher or a subscription */
    /** All shared memory that the daemon handed out, and `former_bytes`. */
    uint64_t shared_bytes;
    uint64_t uptime_ns;       /**< time since its start */
    char memory[16];          /**< kind of shared memory: "memfd" (sealed), or "posix" */
    uint64_t longest_turn_ns; /**< CPU time of the longest turn of its loop; 0: too old to say */
    uint32_t pid_scope;       /**< enum dlx_pid_scope, for `pid` here and in the lists */
    /** What dlpackd itself lacks now (descriptors, memory, a thread), so that links wait until it
     *  has that again; "": nothing, or the daemon is too old to say. */
    char lack[256];
    /** What programs keep of the memory of earlier daemons, as they say; each byte once. */
    uint64_t former_bytes;
    /** What the daemon has refused since its start: by a rule, by a quota or limit, since the
     *  publisher does not offer it, and for other reasons. 0: too old to say. */
    uint64_t refused_access;
    uint64_t refused_limit;
    uint64_t refused_qos;
    uint64_t refused_other;
    /** Messages that subscribers held when their processes died, since the daemon's start; their
     *  memory went back to the publishers. 0: too old to say. */
    uint64_t reclaimed;
};

/** Value of `max` without a limit. */
#define DLX_QUOTA_UNLIMITED UINT64_MAX

/** How much of one resource a user of the daemon has, and may have: dlpackd.conf(5). */
struct dlx_quota_info {
    size_t size;
    uint64_t used;        /**< in bytes, or a number */
    uint64_t max;         /**< limit now, given what other users use; or DLX_QUOTA_UNLIMITED */
    uint32_t uid;         /**< in the daemon's user namespace */
    char socket[32];      /**< name of the listening socket: a uid is another user on each */
    char quota_class[32]; /**< class of the user, which has the limits */
    char name[32];        /**< "bytes", "connections": the key in the daemon's configuration */
};

/** Called for each entry; `info` is valid during the call. 0 continues. Any other result ends the
 *  listing, which returns that result. */
typedef int (*dlx_publisher_info_fn)(const struct dlx_publisher_info *info, void *userdata);
typedef int (*dlx_link_info_fn)(const struct dlx_link_info *info, void *userdata);
typedef int (*dlx_quota_info_fn)(const struct dlx_quota_info *info, void *userdata);
typedef int (*dlx_subscription_info_fn)(const struct dlx_subscription_info *info, void *userdata);
typedef int (*dlx_refusal_info_fn)(const struct dlx_refusal_info *info, void *userdata);
typedef int (*dlx_client_info_fn)(const struct dlx_client_info *info, void *userdata);

/**
 * Lists publishers, ordered by topic, then by id. `topic` may be a pattern. NULL: all topics.
 *
 * All of these codes but DLX_E_TOPIC are the errors of every request to the daemon.
 *
 * Returns 0 or what `fn` returned, or:
 *
 *   DLX_E_TOPIC         the topic or pattern is invalid
 *   DLX_E_DISCONNECTED  the daemon is lost, and no other one could be reached
 *   DLX_E_KICKED        an operator has disconnected this client (dlx_kick())
 *   DLX_E_TIMEOUT       the daemon did not answer in the time of struct dlx_connect_args
 *   DLX_E_INTERRUPTED   `interrupt` of struct dlx_connect_args ended the wait
 *   DLX_E_IN_USE        `interrupt` made this call while its thread waits for the daemon
 *   DLX_E_INVALID       an argument is NULL or makes no sense; the text says which
 *   DLX_E_VERSION       the daemon does not know the request, or its protocol is another one
 *   DLX_E_ACCESS        the daemon that was reached instead of a lost one refuses this user
 *   DLX_E_FD_LIMIT      the process may open no more descriptors
 *   DLX_E_NO_MEMORY     there is none for the request or its answer
 *   DLX_E_FORKED        the client is the parent's
 *   DLX_E_PROTOCOL      the answer is no answer of dlpackd
 *   DLX_E_SYSTEM        a system call failed; the text says which
 */
DLX_API int dlx_list_publishers(struct dlx_client *c, const char *topic, dlx_publisher_info_fn fn,
                                void *userdata);

/**
 * Lists publishers that are gone and whose messages subscribers hold or have yet to take, in the
 * order in which they went. Their memory stays until the last of their links ends; dlx_list_links()
 * accepts their ids. Of publishers of an earlier daemon, what programs still map is listed
 * (`former`), if the daemon speaks protocol 2.8.
 *
 * Returns as dlx_list_publishers(); DLX_E_VERSION (the daemon is too old).
 */
DLX_API int dlx_list_gone_publishers(struct dlx_client *c, const char *topic,
                                     dlx_publisher_info_fn fn, void *userdata);

/** Lists the links of a publisher, ordered by id. Returns as dlx_list_publishers(); DLX_E_NOT_FOUND
 *  (there is no such publisher). */
DLX_API int dlx_list_links(struct dlx_client *c, uint64_t publisher, dlx_link_info_fn fn,
                           void *userdata);

/**
 * Lists the quotas of the caller's user. Root, and the daemon's own user on its main socket, see
 * those of all users, ordered by uid.
 *
 * Returns as dlx_list_publishers(); DLX_E_VERSION (the daemon is too old).
 */
DLX_API int dlx_list_quotas(struct dlx_client *c, dlx_quota_info_fn fn, void *userdata);

/**
 * Lists subscriptions, ordered by topic, then by id; those to patterns come last. `topic` may be a
 * pattern: a subscription to a pattern is listed if one topic at least matches both. NULL: all.
 * `unserved`: only those without a link to a publisher.
 *
 * Returns as dlx_list_publishers(); DLX_E_VERSION (the daemon is older than protocol 2.10).
 */
DLX_API int dlx_list_subscriptions(struct dlx_client *c, const char *topic, bool unserved,
                                   dlx_subscription_info_fn fn, void *userdata);

/**
 * Lists what the daemon has refused lately, the oldest refusal first. The daemon keeps 128 of them,
 * at most 32 of one user, until it ends. What a process is refused again is one entry, which moves
 * to the end: if that happens during the call, it may be told twice. The call ends after about 256,
 * however often programs are refused meanwhile.
 *
 * Returns as dlx_list_subscriptions().
 */
DLX_API int dlx_list_refusals(struct dlx_client *c, const char *topic, dlx_refusal_info_fn fn,
                              void *userdata);

/**
 * Lists connections by id: those of the caller's user. Root, and the daemon's own user on its main
 * socket, see all.
 *
 * Returns as dlx_list_subscriptions(), but for DLX_E_TOPIC.
 */
DLX_API int dlx_list_clients(struct dlx_client *c, dlx_client_info_fn fn, void *userdata);

/**
 * Cuts a connection and all that was made with it: its publishers and subscriptions end as if the
 * program had broken a rule. The process lives, and what it holds stays in its memory. Its library
 * does not connect again by itself: calls with that connection fail with DLX_E_KICKED, whose text
 * names the kicking program, until the program connects anew. `ret` may be NULL. The same rights as
 * dlx_list_clients().
 *
 * Returns as dlx_list_clients(); DLX_E_NOT_FOUND (there is none that the caller may kick);
 * DLX_E_INVALID (0, or the connection `c` itself).
 */
DLX_API int dlx_kick(struct dlx_client *c, uint64_t client, struct dlx_kicked *ret);

/** Cuts all connections of a process, whose id is as in struct dlx_client_info, but for `c`.
 *  Returns as dlx_kick(). */
DLX_API int dlx_kick_process(struct dlx_client *c, uint32_t pid, struct dlx_kicked *ret);

/** Gets what the daemon says of itself. Returns as dlx_list_publishers(). */
DLX_API int dlx_client_get_daemon_info(struct dlx_client *c, struct dlx_daemon_info *ret);

#ifdef __cplusplus
}
#endif

#endif
