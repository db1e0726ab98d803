/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_INFO_H
#define DLX_INFO_H

/* Part of dlx/dlx.h, which includes it: what is there, as the daemon knows it. */

#include <dlx/dlx.h>

#ifdef __cplusplus
extern "C" {
#endif

/** One publisher, as the daemon knows it. */
struct dlx_publisher_info {
    size_t size;
    char topic[DLX_TOPIC_MAX + 1];
    char client_name[64];
    uint64_t publisher;       /**< id */
    uint64_t published;       /**< messages, as the publisher counts them */
    uint64_t published_bytes; /**< payload */
    uint64_t arena_bytes;     /**< shared memory for payload */
    uint64_t control_bytes;   /**< shared memory for the control block */
    uint32_t pid; /**< as the daemon sees the process; 0: it does not, in another pid namespace */
    uint32_t uid;
    uint32_t n_subscribers;
    uint32_t n_arenas;
    uint32_t depth;
    uint32_t history;
    uint32_t on_full; /**< enum dlx_on_full */
    uint32_t retain;  /**< messages */
    bool retained;    /**< it has gone, and the daemon keeps its messages */
};

/** The daemon is older and does not tell. */
#define DLX_BEHIND_UNKNOWN UINT64_MAX

/** One link: a publisher and a subscription that are attached to each other. */
struct dlx_link_info {
    size_t size;
    char client_name[64];
    uint64_t link;
    uint64_t publisher;
    uint64_t taken;   /**< as the subscriber counts them, by former links, too */
    uint64_t skipped; /**< likewise */
    uint64_t lost;    /**< likewise */
    uint32_t pid;     /**< as in dlx_publisher_info */
    uint32_t uid;
    uint32_t n_held;
    uint32_t max_held;
    uint32_t mode; /**< enum dlx_mode */
    bool reliable;
    bool blocks; /**< the publisher waits for room, and this link is why; false: an older daemon */
    /** Messages that it has yet to take, skip or lose; DLX_BEHIND_UNKNOWN. A publisher that blocks
     *  waits at max(depth, history), a publisher that drops overwrites what is further behind. */
    uint64_t behind;
    /** The subscriber has yet to be told of the link, or to prepare memory for it, which it does in its
     *  next call. A daemon older than protocol 2.7 does not list such links. */
    bool joining;
};

/** Is a process id that the daemon told a number of the caller's pid namespace? */
enum dlx_pid_scope {
    DLX_PID_UNKNOWN = 0, /**< an older daemon, or no /proc here or there */
    DLX_PID_HERE = 1,
    DLX_PID_ELSEWHERE = 2, /**< of another one: the daemon or the caller is in a container */
};

struct dlx_daemon_info {
    size_t size;
    char version[32];
    char socket[108]; /**< as the daemon calls it, which another mount namespace may not */
    uint32_t pid;     /**< as the daemon sees itself; see pid_scope */
    uint32_t protocol_major;
    uint32_t protocol_minor;
    uint32_t n_clients;
    uint32_t n_publishers;
    uint32_t n_links; /**< with those of closed subscriptions that still hold messages */
    uint32_t n_topics;
    uint64_t shared_bytes; /**< all shared memory that it handed out */
    uint64_t uptime_ns;
    char memory[16];          /**< kind of its shared memory: "memfd" (sealed), or "posix" */
    uint64_t longest_turn_ns; /**< CPU time of its loop's longest turn; 0: an older daemon */
    uint32_t pid_scope;       /**< enum dlx_pid_scope, of `pid` here and in the lists */
};

/** No limit. */
#define DLX_QUOTA_UNLIMITED UINT64_MAX

/** What a user of the daemon uses of something, and may have: dlpackd.conf(5). */
struct dlx_quota_info {
    size_t size;
    uint64_t used;
    uint64_t max;    /**< what it may have now, as others leave so much; DLX_QUOTA_UNLIMITED */
    uint32_t uid;    /**< as the daemon sees it */
    char socket[32]; /**< name of the listening socket; the same uid by another is another user */
    char quota_class[32]; /**< whose limits it has */
    char name[32];        /**< "bytes", "connections": the key in the daemon's configuration */
};

/** Called once an entry; `info` is valid during the call. Return 0 to go on; anything else ends the
 *  listing, which returns it. */
typedef int (*dlx_publisher_info_fn)(const struct dlx_publisher_info *info, void *userdata);
typedef int (*dlx_link_info_fn)(const struct dlx_link_info *info, void *userdata);
typedef int (*dlx_quota_info_fn)(const struct dlx_quota_info *info, void *userdata);

/**
 * List publishers, in the order of topic names, then ids. `topic` may be a pattern; NULL: all.
 * Returns 0; what `fn` returned; DLX_E_TOPIC and the errors of every call to the daemon
 * (DLX_E_DISCONNECTED, DLX_E_TIMEOUT, DLX_E_PROTOCOL, DLX_E_FORKED, DLX_E_NO_MEMORY).
 */
DLX_API int dlx_list_publishers(struct dlx_client *c, const char *topic, dlx_publisher_info_fn fn,
                                void *userdata);

/** List the links of a publisher, in the order of link ids. Errors as above, and
 *  DLX_E_NOT_FOUND. */
DLX_API int dlx_list_links(struct dlx_client *c, uint64_t publisher, dlx_link_info_fn fn,
                           void *userdata);

/**
 * List the quotas of the caller's user; root and the daemon's own user, by its main socket, see all
 * users, in the order of uids. Errors as of dlx_list_publishers(), and DLX_E_VERSION (the daemon is
 * older).
 */
DLX_API int dlx_list_quotas(struct dlx_client *c, dlx_quota_info_fn fn, void *userdata);

/** Ask the daemon about itself. Errors as above. */
DLX_API int dlx_client_get_daemon_info(struct dlx_client *c, struct dlx_daemon_info *info);

#ifdef __cplusplus
}
#endif

#endif
