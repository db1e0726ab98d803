/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_OBJECTS_H
#define DLXD_OBJECTS_H

/*
 * The objects of the daemon as data. They refer to each other, so their structs are in one header.
 * The files of this folder have what is done with them.
 */

#include "common/error.h"
#include "common/topic.h"
#include "daemon/base/idmap.h"
#include "daemon/base/list.h"
#include "daemon/gpu/origin.h"
#include "daemon/memory/arena.h"
#include "daemon/memory/membership.h"
#include "daemon/objects/registry.h"
#include "daemon/users/drains.h"
#include "daemon/users/policy.h"
#include "daemon/users/user.h"
#include "daemon/users/work.h"
#include "ring/layout.h"
#include <sys/types.h>

struct dlx_memory;
struct dlxd_barrier;
struct dlxd_former_page;
struct dlxd_gpu_call;
struct dlxd_gpu_keeper;
struct dlxd_outbox;
struct dlxd_pending_join;
struct dlxd_proof;
struct dlxd_share;
struct dlxd_store;
struct dlxd_store_hooks;
struct dlxd_watch;
struct dlxd_watches;
struct dlxd_workers;

#define DLXD_NAME_SIZE 64

/* ---- clients ------------------------------------------------------------------------------ */

/* A client's process. It outlives its connection while links of it drain, or while it keeps memory
 * of a former daemon. */
struct dlxd_holder {
    struct dlxd_client *client; /* NULL: the connection has ended */
    pid_t pid;
    char name[DLXD_NAME_SIZE]; /* once the connection has ended */
    int pidfd;
    struct dlxd_charge pidfd_charge; /* once the client's own has ended */
    struct dlxd_drains drains;
    struct dlxd_former_page *former;       /* what it keeps of former daemons: former.h */
    struct dlxd_former_page *former_asked; /* one that it has yet to fill */
};

/* The progress of a Subscribe. All zero: there is none. */
struct dlxd_offers {
    struct dlxd_subscription *subscription;
    struct dlxd_topic_cursor cursor;
    uint64_t publisher; /* the last one of the cursor's topic that was looked at; 0: of the next */
    bool found_all;
    bool is_to_review;    /* the rules have changed since publishers were found */
    uint64_t *publishers; /* ids of the matching publishers */
    size_t n_publishers;
    size_t n_publishers_max;
    size_t n_offered; /* publishers that were offered */
    /* Ids of links that were reserved so that they are consecutive: the last used one and the last
     * one. */
    uint64_t made_link;
    uint64_t last_link;
    uint32_t n_links; /* links made */
    /* Publishers of a former daemon that it cannot join, and the first of them. */
    uint32_t n_away;
    uint64_t away_publisher;
    pid_t away_pid;
    char away_name[DLXD_NAME_SIZE];
};

/* Of GpuAllocate and GpuGet: the memory, and how its publisher is found. */
struct dlxd_gpu_wanted {
    uint64_t publisher; /* of GpuAllocate */
    uint64_t link, origin;
    uint64_t allocation;
};

struct dlxd_request {
    /* Does a part. Returns 0: answered; 1: there is more to do; or a code for an Error. NULL: there
     * is no request. */
    int (*step)(struct dlxd_client *client);
    uint32_t serial;
    uint64_t object;    /* its publisher or subscription */
    uint64_t after;     /* of a list: handler_list.c */
    uint64_t seen_link; /* likewise: how far it came */
    uint64_t seen_drain;
    uint32_t n;                         /* of a drop: publishers dropped so far; of Kick: clients */
    uint32_t n_older;                   /* of Kick: those of an older version */
    uint64_t counted;                   /* of ListClients: the client that is being counted */
    uint64_t sum;                       /* likewise: its bytes so far */
    bool unserved;                      /* of ListSubscriptions */
    bool in_patterns;                   /* likewise: those to topics are listed */
    char topic[DLX_TOPIC_SIZE_MAX + 1]; /* of a list or a drop */
    struct dlxd_topic_cursor cursor;
    struct dlxd_offers offers; /* of Subscribe */
    struct dlxd_gpu_wanted gpu;
    int fd; /* likewise: the subscriber's end; -1: none */
};

enum dlxd_review_state {
    DLXD_REVIEW_NONE,
    DLXD_REVIEW_PUBLISHERS,
    DLXD_REVIEW_SUBSCRIPTIONS, /* and their links */
};

struct dlxd_review {
    enum dlxd_review_state state;
    uint64_t object; /* the last publisher, or subscription, that was checked; 0: none */
    uint64_t link;   /* the last link of that subscription that was checked; 0: none */
};

/*
 *   GREETING --Hello--> OPEN ---> ENDING ---> (freed)
 *       |                            ^
 *       +----------------------------+
 *   REFUSED --Hello, Error-----------+
 */
enum dlxd_client_state {
    DLXD_CLIENT_NEW,      /* no other object knows it yet */
    DLXD_CLIENT_GREETING, /* has not said Hello yet */
    DLXD_CLIENT_REFUSED,  /* likewise, and will get an error as the reply */
    DLXD_CLIENT_OPEN,
    DLXD_CLIENT_ENDING, /* nothing is read or sent; the objects that it owns end step by step */
};

struct dlxd_client {
    struct dlxd_idmap_node by_id;
    struct dlxd_list node;     /* in broker->clients, by id */
    struct dlxd_list greeting; /* in broker->greeting until Hello */
    enum dlxd_client_state state;
    struct dlxd_task task; /* reads and handles packets; ends the objects that it owns */
    enum dlxd_input input;
    struct dlxd_broker *broker;
    int fd;
    struct dlxd_outbox *outbox; /* of `fd` */
    struct dlxd_watch *watch;
    int pidfd; /* `holder` owns it once there is one */
    struct dlxd_watch *pid_watch;

    pid_t pid;
    struct dlxd_principal *principal;
    struct dlxd_user *user;
    char name[DLXD_NAME_SIZE];
    /* ENDING, not 0: was disconnected for this reason, so it may be alive. It leaves nothing, and
     * dlxd_client_is_cut() says whether publishers are told, too. */
    int dismissed;
    int refuse_code; /* REFUSED: the reply to its Hello */
    char *refuse_text;
    uint64_t accepted_ns;
    struct dlxd_review review;

    uint32_t max_links;         /* the limit of its process */
    size_t n_links;             /* as publisher and as subscriber, including draining links */
    struct dlxd_list shares;    /* how many of its links each subscriber's user has */
    struct dlxd_drains drains;  /* draining links of its publishers */
    struct dlxd_holder *holder; /* of its subscriptions */
    struct dlxd_list publishers;
    struct dlxd_list subscriptions;
    size_t n_subscriptions;
    struct dlxd_list observers;

    struct dlxd_request request;    /* in progress */
    struct dlxd_barrier *barrier;   /* not NULL: nothing is read before this reply (store.h) */
    bool awaits_proof;              /* likewise: the proof of a region of the client (proof.h) */
    struct dlxd_gpu_call *gpu_call; /* likewise: a call to the GPU keeper */
    struct dlxd_list tx;            /* packets that did not fit into the socket */
    size_t n_tx;
    size_t tx_size;

    struct dlxd_charge connection_charge;
};

static inline uint64_t dlxd_client_id(const struct dlxd_client *client)
{
    return client->by_id.id;
}

static inline bool dlxd_client_is_doomed(const struct dlxd_client *client)
{
    return client->state == DLXD_CLIENT_ENDING;
}

/* ---- publishers --------------------------------------------------------------------------- */

/* The pending joins of one publisher. */
struct dlxd_pending_joins {
    struct dlxd_list list;
    struct dlxd_list cuts;
    struct dlxd_list slow; /* in broker->slow when its socket takes nothing, but is not full */
    size_t n;
    size_t n_ended;     /* pending joins whose links have ended and that may still hold messages */
    size_t look_at;     /* the number of these at which all are checked */
    uint64_t looked_ns; /* the time of the last check */
    struct dlxd_watch *watch; /* of the link socket; NULL until the first pending join */
};

/* The progress of a publisher. All zero: nothing to do. */
struct dlxd_offering {
    bool active;
    bool from_start;  /* it has not published anything yet */
    bool in_patterns; /* subscriptions to its topic are done */
    uint64_t last;    /* the subscription handled last */
    struct dlxd_list *next;
    uint64_t n_left; /* `next` is valid while this many subscriptions have ended */
};

/*
 *   NEW --> OPEN --(its client ends)--> DYING --(its process is dead)--> RETAINED
 *             |                                                            ^
 *             +--(it is closed, or its process is dead already)------------+
 *
 *   (from the store) --> RETAINED, or HIDDEN or SHOWN --(its process is dead, or it has closed its
 *                                                        control block)--> RETAINED
 *
 * Any of them --> GONE, which is freed with its last link.
 */
enum dlxd_publisher_state {
    DLXD_PUBLISHER_NEW, /* its control block is not ready */
    DLXD_PUBLISHER_OPEN,
    DLXD_PUBLISHER_DYING,    /* its process may still write: links wait */
    DLXD_PUBLISHER_HIDDEN,   /* likewise; a former daemon knew it: it is not announced */
    DLXD_PUBLISHER_SHOWN,    /* likewise, but new subscriptions join it, and it sees their locks */
    DLXD_PUBLISHER_RETAINED, /* its messages remain, and nobody writes them */
    DLXD_PUBLISHER_GONE,
};

struct dlxd_publisher_config {
    uint32_t history;
    uint32_t depth;
    uint32_t n_entries;
    uint32_t on_full;       /* 0: drop the oldest, 1: block */
    uint32_t retain;        /* messages; 0: none */
    bool latched;           /* nothing is retained after its end */
    uint64_t retain_for_ns; /* 0: forever */
    uint64_t resumes;       /* its id with the first daemon that it was announced to; 0: this one */
    uint64_t after_seq;     /* the messages that it published there */
    uint32_t max_held;      /* messages that one link may hold; 0: no limit */
    uint64_t max_held_bytes; /* likewise, in bytes of payload */
    uint32_t n_groups;       /* declared groups of workers, whose messages are kept */
};

struct dlxd_publisher {
    struct dlxd_idmap_node by_id; /* when GONE: in gone_publishers of the registry */
    struct dlxd_list by_topic;    /* likewise */
    struct dlxd_list by_client;   /* after it has left its client: in one of the broker's lists */
    struct dlxd_list by_look;     /* in broker->looked: HIDDEN, SHOWN, RETAINED with groups */
    struct dlxd_list links;       /* by id */
    struct dlxd_list groups;      /* of workers, by number: group.h */
    uint32_t last_group;          /* number */
    char *refusal;                /* why its last worker without a link has none; NULL: none */
    /* A rule says that this user's processes are the workers; NULL: none says so. */
    struct dlxd_principal *workers;
    bool gave_way;        /* HIDDEN or SHOWN: it was announced again */
    bool looks_at_groups; /* RETAINED: a worker has left, and all may be done */
    struct dlxd_broker *broker;
    struct dlxd_client *client; /* NULL after it has left */
    struct dlxd_topic *topic;   /* NULL when GONE */
    enum dlxd_publisher_state state;
    struct dlxd_publisher_config config;
    pid_t pid;
    struct dlxd_principal *principal;
    struct dlxd_user *user; /* the owner, in whose time its work is done */
    char client_name[DLXD_NAME_SIZE];
    char topic_name[DLX_TOPIC_SIZE_MAX + 1];

    struct dlxd_outbox *link_sock; /* the daemon's end */
    struct dlxd_pending_joins pending_joins;
    struct dlxd_membership_line line;

    bool is_awaited;    /* its PublisherReady could not be answered with Ok yet */
    uint64_t announced; /* 0: not announced yet; otherwise see registry.h */
    /* Likewise, for subscriptions that do not join a SHOWN publisher. */
    uint64_t announced_late;
    struct dlxd_offering offering;
    struct dlxd_list *cursor; /* the next link of a reply; `links` at the end */
    struct dlxd_task task;    /* offers it; replaces what others retain; tells its links */
    bool succeeds;            /* and has come so far in the topic: publisher_state.h */
    uint64_t succeeds_after;
    /* Tells links that it has dropped an arena, is gone or has become RETAINED: 1: in this pass; 2:
     * in this pass and another one, since there was more to tell; 0: nothing. */
    uint32_t passes;
    struct dlxd_list *next_told;
    uint64_t gone_head;   /* GONE: the number of its newest message */
    uint64_t gone_oldest; /* GONE: likewise of the oldest one that subscribers can still take */
    uint64_t gone;        /* its place in the order in which publishers went, from 1; 0: not GONE */

    struct dlxd_arena *proving; /* the region whose proof its client waits for; or NULL */

    struct dlxd_arena *control;
    struct dlxd_arenas unready; /* by id */
    struct dlxd_arenas ready;   /* by ready_seq */
    struct dlxd_arenas dropped; /* by drop_seq: a link has yet to acknowledge the drop */
    uint32_t last_arena;
    uint64_t last_ready_seq;
    uint64_t last_drop_seq;

    struct dlxd_drains drains; /* links that have ended, and whose subscribers hold messages */
    size_t n_links;            /* and 1 for the passes, which keep the publisher */
    size_t n_undelivered;      /* GONE: links that have not been told everything */
    uint64_t *index_bits;      /* the link indices in use */
    size_t n_index_words;

    /* From DYING to RETAINED: publisher_state.h. */
    uint64_t expires_ns;
    struct dlxd_watch *death; /* DYING, HIDDEN, SHOWN: watches this process */
    int dying_pidfd;

    /* What outlives the daemon: store.h. */
    uint32_t ledger_index; /* 0: nothing */
    bool pidfd_kept;
    bool not_kept; /* there was no room for all of it */

    struct dlxd_gpu_member gpu; /* what the GPU keeper has made for it */
    /* On which its process is asked for memory that the keeper has not; NULL: it has none. Charged
     * with its descriptor like the link socket. */
    struct dlxd_outbox *gpu_serve;

    /* With descriptors: the link socket and gpu_serve, or dying_pidfd. GONE: its first link pays
     * this and the charges of its regions. */
    struct dlxd_charge object_charge;
};

/* Has its client gone while the daemon keeps its messages? */
static inline bool dlxd_publisher_leaves(const struct dlxd_publisher *publisher)
{
    return publisher->state >= DLXD_PUBLISHER_DYING && publisher->state <= DLXD_PUBLISHER_RETAINED;
}

/* Did a former daemon know it, and may its process write? */
static inline bool dlxd_publisher_is_former(const struct dlxd_publisher *publisher)
{
    return publisher->state == DLXD_PUBLISHER_HIDDEN || publisher->state == DLXD_PUBLISHER_SHOWN;
}

/* Is it such a publisher that has yet to announce itself again? */
static inline bool dlxd_publisher_is_away(const struct dlxd_publisher *publisher)
{
    return dlxd_publisher_is_former(publisher) && !publisher->gave_way;
}

/* Will its links get no new message? */
static inline bool dlxd_publisher_has_ended(const struct dlxd_publisher *publisher)
{
    return publisher->state >= DLXD_PUBLISHER_DYING && publisher->state != DLXD_PUBLISHER_SHOWN;
}

/* May it leave messages for the daemon to keep, also those that its groups have not done? Its
 * memory counts as retained from the start, so that there is room for it at its end, when nobody
 * could be told of a lack. */
static inline bool dlxd_publisher_may_retain(const struct dlxd_publisher *publisher)
{
    return !publisher->config.latched &&
           (publisher->config.retain > 0 || publisher->config.n_groups > 0);
}

static inline size_t dlxd_publisher_n_links(const struct dlxd_publisher *publisher)
{
    return publisher->n_links - (publisher->passes > 0);
}

static inline uint64_t dlxd_publisher_id(const struct dlxd_publisher *publisher)
{
    return publisher->by_id.id;
}

/* The publisher of this member. */
static inline struct dlxd_publisher *dlxd_publisher_of_gpu(struct dlxd_gpu_member *member)
{
    return dlxd_container_of(member, struct dlxd_publisher, gpu);
}

/* Its id with the first daemon that it was announced to. */
static inline uint64_t dlxd_publisher_origin(const struct dlxd_publisher *publisher)
{
    return publisher->config.resumes ? publisher->config.resumes : dlxd_publisher_id(publisher);
}

/* ---- groups ------------------------------------------------------------------------------- */

/* A group of workers of a publisher: group.h. */
struct dlxd_group {
    struct dlxd_list node; /* in publisher->groups */
    struct dlxd_publisher *publisher;
    uint32_t number; /* of this publisher; from 1 */
    char name[DLX_SHM_GROUP_NAME_MAX + 1];
    bool is_declared;
    struct dlxd_principal *whose; /* the user whose processes may be its workers */

    uint32_t n_links;
    uint32_t n_open;       /* of these, OPEN ones */
    uint64_t lease_ns;     /* of the first link, while there are links */
    uint32_t max_attempts; /* likewise */
    bool from_start;       /* there was a link of a subscription that is older than the publisher */

    int page_fd;                    /* read-only; -1: nobody has needed it yet */
    int bell_fd;                    /* likewise */
    struct dlxd_charge page_charge; /* the bytes, and the descriptor */
    struct dlxd_charge bell_charge;
    uint32_t last_owner; /* the number that was tried last */
    uint32_t n_passed;   /* numbers that were tried in vain since one was free */
    bool page_kept;      /* by the service manager: store.h */
    bool bell_kept;      /* likewise */
};

/* ---- subscriptions ------------------------------------------------------------------------ */

struct dlxd_subscription_config {
    uint32_t mode; /* 0: all, 1: latest */
    uint32_t history;
    uint32_t max_held;
    /* Links for publishers that come while the subscriber makes no call; offer.c adds to it. */
    uint32_t n_spares;
    bool reliable;
    bool accepts_unreliable; /* with `reliable`: links to publishers that drop are not */
    char group[DLX_SHM_GROUP_NAME_MAX + 1]; /* "": none */
    uint64_t lease_ns;                      /* of a group; 0: none */
    uint32_t max_attempts;                  /* likewise */
};

/*
 *   OPENING --> OPEN <--> FULL        any of them --> ENDING --> (freed)
 *                 ^
 *                 +-----> STUCK
 */
enum dlxd_subscription_state {
    DLXD_SUBSCRIPTION_OPENING, /* its Subscribe is not answered yet: nothing is sent */
    DLXD_SUBSCRIPTION_OPEN,
    DLXD_SUBSCRIPTION_FULL,   /* nothing is sent until its socket is writable */
    DLXD_SUBSCRIPTION_STUCK,  /* nothing is sent for a while: in broker->stuck */
    DLXD_SUBSCRIPTION_ENDING, /* its links end step by step */
};

struct dlxd_subscription {
    struct dlxd_idmap_node by_id;
    struct dlxd_list by_topic; /* or in registry->patterns */
    struct dlxd_list by_client;
    struct dlxd_list links;   /* by id */
    uint32_t n_served;        /* of them, those that have a publisher */
    uint32_t n_spares;        /* spare links */
    struct dlxd_list spares;  /* of them, those that a publisher can get: by_publisher */
    struct dlxd_list pending; /* links with a step to take: those that need no credit come first */
    struct dlxd_list stuck;
    uint64_t lack_wait_ns;  /* of this attempt; 0: nothing is lacking (subscription.h) */
    uint64_t lack_until_ns; /* while it is stuck for that */
    struct dlxd_task task;  /* sends, reads, and ends links */
    struct dlxd_broker *broker;
    struct dlxd_client *client;
    struct dlxd_topic *topic; /* NULL: a pattern */
    struct dlxd_subscription_config config;
    char topic_name[DLX_TOPIC_SIZE_MAX + 1];

    struct dlxd_outbox *sock; /* the daemon's end */
    struct dlxd_watch *watch;
    enum dlxd_subscription_state state;
    enum dlxd_input input;
    struct dlxd_offers *offers; /* not NULL while its Subscribe is being answered */
    bool begun;                 /* something was sent: delivery.c */
    uint64_t last_offer;        /* the last link that the reply to its Subscribe counted */
    uint32_t n_failed;          /* failed links */
    struct dlxd_link *failed;   /* the failed link into which others are merged; NULL: none yet */
    uint64_t since;             /* announcements before it: registry.h */
    uint64_t waits;             /* the link tried first since the last change: delivery.c */
    uint32_t n_fds_sent;        /* packets with fds, modulo 2^32 */
    uint32_t n_fds_acked;       /* likewise */

    struct dlxd_charge object_charge;
    struct dlxd_charge pattern_charge;
};

static inline bool dlxd_subscription_is_doomed(const struct dlxd_subscription *subscription)
{
    return subscription->state == DLXD_SUBSCRIPTION_ENDING;
}

/* Is it in a group? */
static inline bool dlxd_subscription_is_worker(const struct dlxd_subscription *subscription)
{
    return *subscription->config.group != '\0';
}

/* It may have something to send. */
static inline void dlxd_subscription_mark(struct dlxd_subscription *subscription)
{
    if (subscription->state == DLXD_SUBSCRIPTION_OPEN)
        dlxd_task_start(&subscription->task, subscription->client->user);
}

static inline uint64_t dlxd_subscription_id(const struct dlxd_subscription *subscription)
{
    return subscription->by_id.id;
}

/* ---- links -------------------------------------------------------------------------------- */

/* The resources of a link: its page, its place among the links of both clients, and its charges.
 * They may outlive the link, as a draining link (drain.h). */
struct dlxd_drain {
    uint64_t link;                  /* the link's id */
    struct dlxd_idmap_node by_link; /* draining */
    struct dlxd_workers *workers;   /* close the page */
    int page_fd; /* the daemon's read-only fd, for reports; -1 while the proof has it */
    uint32_t max_held;
    struct dlxd_share *share; /* in the publisher's client; NULL: none, or the same user */
    struct dlxd_charge links_charge;
    struct dlxd_charge bytes_charge;

    uint32_t mode; /* of the subscription, for lists */
    bool reliable;
    uint64_t held;    /* likewise: the oldest message that it held when it was listed last */
    uint64_t held_ns; /* when that was published, or later: 0: not known */
    uint32_t group;   /* its number; 0: none */
    uint32_t owner;   /* the worker's number in its claims page; 0: none */
    uint32_t n_links; /* for as many links it counts in its subscriber's client */

    struct dlxd_publisher *publisher; /* draining */
    struct dlxd_holder *holder;       /* draining: the subscriber's process */
    struct dlxd_drain_node of_holder;
    struct dlxd_drain_node of_publisher; /* by link */
    struct dlxd_drain_node of_client;    /* the publisher's; in no list after that has left it */
    bool is_due; /* its publisher has left its client, and it was not checked since */
    struct dlxd_drain_node of_user;
    struct dlxd_list cut; /* draining: in `cuts` of the publisher if LinkCut is yet to be sent */
    int cut_code;
    bool cut_counts; /* raise `leaves` with LinkCut */
};

/* The draining link with this node, in a list of its publisher's. */
static inline const struct dlxd_drain *dlxd_drain_of_publisher(const struct dlxd_list *node)
{
    return dlxd_container_of(node, struct dlxd_drain_node, node)->drain;
}

/*
 * A link: one publisher and one subscription, and how far the subscriber has been told.
 *
 *   NEW --LinkOffer--> OFFERED --LinkReady--> PREPARED <--> PROVING
 *    |                   |                       |             |
 *    |                   |                       |           READY --LinkAdded--> ADDED
 *    |                   |                       |             |                    |
 *    |                   |                       |             |               LinkOpen --> OPEN
 *    +-------------------+-----------------------+-------------+--> FAILED --LinkFailed--> (freed)
 */
enum dlxd_link_state {
    DLXD_LINK_NEW,      /* the offer is to be sent */
    DLXD_LINK_OFFERED,  /* the subscriber prepares its page */
    DLXD_LINK_PREPARED, /* the subscriber has prepared it; a worker is to check */
    DLXD_LINK_PROVING,  /* a worker checks */
    DLXD_LINK_READY,    /* the page is to be sent to the publisher */
    DLXD_LINK_SPARE,    /* it has no publisher yet */
    DLXD_LINK_ADDED,    /* the publisher has the link or will; the subscriber is to be told */
    DLXD_LINK_OPEN,
    DLXD_LINK_FAILED, /* the subscriber is to be told; it has no publisher any more */
};

enum dlxd_link_made {
    DLXD_MADE_FOR_PUBLISHER,
    DLXD_MADE_AS_SPARE, /* its subscription counts it until it is assigned, fails or ends */
    DLXD_MADE_EARLY,
};

struct dlxd_link {
    struct dlxd_idmap_node by_id;
    struct dlxd_list by_publisher; /* of a free spare link: in subscription->spares */
    struct dlxd_list by_subscription;
    struct dlxd_list pending;         /* in subscription->pending when there is a step to take */
    struct dlxd_publisher *publisher; /* NULL: FAILED, or a spare link */
    struct dlxd_subscription *subscription;
    struct dlxd_pending_join *pending_join; /* not NULL: LinkAdded waits (pending_join.h) */
    enum dlxd_link_state state;
    enum dlxd_link_made made;
    uint32_t index;  /* among the publisher's links */
    uint64_t reader; /* sent by the subscriber for the publisher */
    bool from_start;
    bool gone_sent;
    uint64_t join_until_ns; /* not 0: its publisher seems to be about to end */

    /* How far the subscriber has been told: arena.h. */
    uint64_t arena_seq;
    uint64_t drop_seq;
    uint64_t open_seq;      /* the newest arena that LinkOpen counted */
    struct dlxd_list drops; /* flights of ArenaDropped, oldest first: outbox.h */

    uint64_t page_size;
    struct dlxd_drain *drain; /* its page and charges; NULL: FAILED */
    struct dlxd_proof *proof; /* not NULL: PROVING */
    struct dlxd_workers *workers;
    int bell_fd;                    /* the subscriber's end, from LinkAdded to LinkOpen */
    int locked_fd;                  /* likewise: the control block of a SHOWN publisher */
    struct dlxd_charge join_charge; /* for both */

    struct dlxd_group *group; /* NULL: none */
    uint32_t owner;           /* its number among the workers; 0: none yet */
    int claims_fd;            /* until LinkOpen: the claims page, with the lock of that number */
    struct dlxd_charge claims_charge;

    int fail_code;
    uint64_t fail_origin;    /* of the publisher that is gone */
    uint64_t fail_seq;       /* likewise: its newest message */
    uint64_t fail_missed;    /* likewise: its messages for this subscription */
    uint64_t fail_publisher; /* 0: none, or several */
    uint32_t fail_pid;       /* likewise */
    char *fail_topic;        /* likewise NULL */
    char *fail_text;         /* NULL: the text of the code */
    /* LinkFailed must name this very link: it was offered or promised, or its publisher is
     * known. */
    bool fail_stays;
    uint32_t n_merged; /* other failed links that it reports */

    struct dlxd_charge failed_charge;
};

static inline uint64_t dlxd_link_id(const struct dlxd_link *link)
{
    return link->by_id.id;
}

/* Does the publisher wait for the subscriber, as far as it waits at all? */
static inline bool dlxd_link_is_reliable(const struct dlxd_link *link)
{
    const struct dlxd_subscription_config *config = &link->subscription->config;
    bool drops = link->publisher && link->publisher->config.on_full == 0;
    return config->reliable && !(config->accepts_unreliable && drops);
}

/* Was the subscriber told of this arena, or will it be, so that it must be told of the drop? Valid
 * until it was told of the drop, when arena_seq moves on. */
static inline bool dlxd_link_knows(const struct dlxd_link *link, const struct dlxd_arena *arena)
{
    return link->state == DLXD_LINK_OPEN &&
           (arena->ready_seq <= link->arena_seq || arena->ready_seq <= link->open_seq);
}

/* ---- observers ---------------------------------------------------------------------------- */

/* Something about a publisher or a subscription has changed: observer.h. */
struct dlxd_change {
    bool is_subscription;
    uint64_t id;
    char *topic; /* or a pattern */
};

struct dlxd_changes {
    struct dlxd_list observers;
    struct dlxd_change *ring; /* change number `i` is at i % DLXD_CHANGES_MAX; NULL: nothing yet */
    uint64_t first;           /* the number of the oldest one that is kept */
    uint64_t n;               /* changes so far */
};

/*
 *   TOPICS --> PATTERNS --> CHANGES        any of them --> ENDING --> (freed)
 *     ^                        |
 *     +------------------------+  (changes were lost, or the rules have changed)
 */
enum dlxd_observer_state {
    DLXD_OBSERVER_TOPICS,   /* tells what is on topics: `cursor` */
    DLXD_OBSERVER_PATTERNS, /* tells subscriptions to patterns */
    DLXD_OBSERVER_CHANGES,  /* tells what has changed since: `next` */
    DLXD_OBSERVER_ENDING,
};

/* How far an observer was told. */
struct dlxd_observed_position {
    enum dlxd_observer_state state;
    bool begun;                      /* `restarts` was sent */
    struct dlxd_topic_cursor cursor; /* TOPICS: the topic that was begun last */
    bool in_topic;                   /* likewise: it was not told completely */
    bool in_subscriptions;           /* likewise: its publishers were told */
    uint64_t last; /* the id that was told last, of the topic or of all patterns */
    uint64_t next; /* number of the first change that was not told */
};

struct dlxd_observer {
    struct dlxd_list node; /* in broker->changes.observers */
    struct dlxd_list by_client;
    struct dlxd_task task; /* sends, and frees it */
    struct dlxd_broker *broker;
    struct dlxd_client *client;
    char topic_name[DLX_TOPIC_SIZE_MAX + 1]; /* or a pattern */
    bool publishers, subscriptions;          /* what it is told of */
    struct dlxd_observed_position at;
    bool is_full; /* nothing is sent until its socket is writable */
    struct dlxd_outbox *sock;
    struct dlxd_watch *watch;
    struct dlxd_charge object_charge;
    struct dlxd_charge pattern_charge;
};

/* ---- refusals ----------------------------------------------------------------------------- */

/* What was refused. */
enum dlxd_refused {
    DLXD_REFUSED_PUBLISHER,
    DLXD_REFUSED_SUBSCRIPTION,
    DLXD_REFUSED_LINK,
    DLXD_REFUSED_MEMORY, /* an arena */
};

/* refusal.h */
struct dlxd_refusals {
    struct dlxd_list list; /* the oldest first */
    size_t n;
    uint64_t last;                              /* number */
    uint64_t n_access, n_limit, n_qos, n_other; /* since the start, by code */
};

/* ---- the broker --------------------------------------------------------------------------- */

/* Of a broker. */
struct dlxd_lack {
    uint32_t n_waiting; /* subscriptions; 0: nothing is lacking */
    uint64_t since_ns;
    char text[DLX_ERROR_TEXT_SIZE];
};

/* What the tasks of the objects do in one step, in higher layers than those that start them:
 * dispatch.h. A step returns false if nothing is left to do. */
struct dlxd_steps {
    bool (*client)(struct dlxd_task *task);
    bool (*subscription)(struct dlxd_task *task);
    bool (*publisher)(struct dlxd_task *task);
};

struct dlxd_broker {
    struct dlxd_watches *watches;
    struct dlxd_workers *workers;
    struct dlxd_users users;
    struct dlxd_registry registry;
    struct dlxd_changes changes;
    struct dlxd_refusals refusals;
    struct dlxd_policy policy;
    const struct dlx_memory *memory;
    const struct dlxd_steps *steps;
    struct dlxd_store *store;                   /* NULL: nothing outlives the daemon */
    const struct dlxd_store_hooks *store_hooks; /* likewise */
    struct dlxd_gpu_keeper *gpu;                /* NULL: there is none */
    const char *socket_path;
    uint64_t start_ns;
    uint64_t last_client;     /* id of the newest client */
    uint64_t longest_turn_ns; /* the longest turn of the loop, in CPU time of its thread */
    uint64_t n_reclaimed;     /* messages that subscribers held when they died */
    bool stopping;            /* clients get no packet any more, except Disconnect */

    struct dlxd_list clients;  /* all clients */
    struct dlxd_list greeting; /* clients that have not said Hello, oldest first */
    size_t n_clients;          /* clients that have said Hello */
    size_t n_greeting;         /* admitted clients that have not said Hello */
    size_t n_refused;          /* clients that will get an error for their Hello */

    struct dlxd_list retained; /* publishers without a client: publisher_state.h */
    struct dlxd_list expiring; /* likewise, by expires_ns */
    struct dlxd_list looked;   /* those of them that change without a packet */

    /* Regions that are not ready, the least recently checked first: broker.h. */
    struct dlxd_list reservations;
    struct dlxd_list stuck; /* subscriptions to be tried again later: delivery.c */
    struct dlxd_lack lack;
    struct dlxd_list slow; /* publishers to be tried again later: pending_join.h */
};

#endif
