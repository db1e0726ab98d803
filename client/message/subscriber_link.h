/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_SUBSCRIBER_LINK_H
#define DLX_CLIENT_SUBSCRIBER_LINK_H

/*
 * A link, from the subscriber's side: a ring reader with its mappings. It lives as long as
 * its subscription or a message of it does.
 */

#include "client/control/client.h"
#include "client/control/notification.h"
#include "common/bell.h"
#include "ring/reader.h"
#include "ring/tensor.h"
#include <pthread.h>
#include <stdatomic.h>

struct dlx_message;
struct dlx_gpu_link; /* client/gpu/gpu.h */
struct dlx_gpu_receiver;
struct dlx_worker; /* client/message/worker.h */
struct dlx_worker_link;

/* An arena of the publisher, mapped read-only, or to be mapped when a message needs it. */
struct dlx_subscriber_link_arena {
    uint32_t id;
    bool is_pinned;                   /* `map` is registered with the driver of a GPU */
    int fd;                           /* of one that could not be mapped yet; else -1 */
    struct dlx_mapped_region *mapped; /* NULL: not noted */
    const uint8_t *map;
    const void *spare; /* of large ones, for copy-on-write views; NULL: none */
    uint64_t size;
    /* Messages from this one on cannot lie in it: 0 before it is mapped, then UINT64_MAX; once its
     * publisher has dropped it, the cursor at that time plus 1. */
    uint64_t until;
};

/* A stream of large blocks goes round as many arenas as it has blocks, and their ids follow each
 * other. */
#define DLX_SUBSCRIBER_LINK_HINTS 16U

#define DLX_SUBSCRIBER_LINK_ALIVE (UINT64_C(1) << 62)

/*
 * What has come by a link, and what may still come. A link may fail, or be left, in each state
 * (dlx__subscription_detach()).
 *
 *     OFFERED --- SpareSealed ---> SEALED
 *        |                           |
 *        +-------- LinkOpen ---------+---> OPENING --- its arenas are here, or --> LIVE --+
 *                                             |        the daemon has ended         |     |
 *                  the same, and its bell has hung up         its bell hangs up, or |     |
 *                                             |               a new link reads the  |     |
 *                                             v               same control block    |     |
 *                    OVER <- PublisherGone - DRAINING <-----------------------------+     |
 *                     ^                                                                   |
 *                     +---------------------- PublisherGone ------------------------------+
 *
 * A link that is DRAINING or OVER is left once everything that is there was taken.
 */
enum dlx_subscriber_link_state {
    DLX_LINK_OFFERED,  /* its page is mapped; it waits for LinkOpen */
    DLX_LINK_SEALED,   /* likewise: a spare, which publishers can get now */
    DLX_LINK_OPENING,  /* it waits for the arenas that were there at the join */
    DLX_LINK_LIVE,     /* its publisher publishes */
    DLX_LINK_DRAINING, /* no new messages come; arenas of those that are there may */
    DLX_LINK_OVER,     /* nothing comes */
};

/*
 * Whose daemon made it, and does that daemon know its publisher?
 *
 *     OURS  --- the daemon ends ---> LOST             a publisher of ours
 *     SHOWN --- the daemon ends ---> LOST_SHOWN       one of a former daemon, which ours shows, and
 *                                                     which may announce itself to ours
 */
enum dlx_subscriber_link_daemon {
    DLX_LINK_OURS,
    DLX_LINK_SHOWN,
    DLX_LINK_LOST,
    DLX_LINK_LOST_SHOWN,
};

/*
 * What a link waits for, other than its publisher's next message. Each take says it anew.
 *
 *     NOTHING -- what is next cannot be read here yet --> NEWS -- nor by another link --> LAST_LOOK
 *        ^                                                                                    |
 *        +------------------------------------- a take ---------------------------------------+
 */
enum dlx_subscriber_link_wants {
    DLX_WANTS_NOTHING,
    /* Notifications: an arena for a pending message, a link to go on with, or the publisher's end.
     * Whatever else the publisher does is no reason to look again. */
    DLX_WANTS_NEWS,
    /* What cannot be read will not come by another link either: the next take passes it. */
    DLX_WANTS_LAST_LOOK,
};

/* Regions that it maps, beside arenas. */
enum { DLX_LINK_PAGE, DLX_LINK_CONTROL, DLX_LINK_CLAIMS, DLX_LINK_N_REGIONS };

/* Messages taken at once from a link, at most. */
#define DLX_SUBSCRIBER_LINK_BATCH 32U

/* What its links know of a subscription. They may begin what it has of GPUs. */
struct dlx_subscription_view {
    struct dlx_client *client;
    const struct dlx_subscribe_args *asked;
    struct dlx_gpu_receiver **gpu;
    struct dlx_worker *worker; /* NULL: it is in no group */
};

/* How long a stream waits for a publisher of another user, unless the subscription says it. */
#define DLX_STREAM_OTHER_USER_NS INT64_C(5000000000)

struct dlx_subscriber_link {
    /* DLX_SUBSCRIBER_LINK_ALIVE less the messages released; once the subscription has left, the
     * messages that are still out. So taking a message costs no atomic operation. */
    _Atomic uint64_t refs;
    uint64_t n_given; /* messages handed out */
    uint64_t generation;
    bool is_watched; /* in debug mode: a message that was released stays so */

    uint64_t id;
    uint64_t publisher; /* 0: a spare, for one that has yet to come */
    uint64_t origin;    /* the publisher's id with the first daemon that it was announced to */
    uint32_t pid;       /* of the publisher, for messages */
    char topic[DLX_TOPIC_MAX + 1];

    enum dlx_subscriber_link_state state;
    enum dlx_subscriber_link_daemon daemon;
    enum dlx_subscriber_link_wants wants;
    struct dlx_subscriber_link *after; /* not NULL: it is not our turn before this one has ended */
    uint32_t arenas_due;               /* of those that were there at the join, not here yet */
    struct dlx_message_qos qos;        /* of its publisher and of itself, as LinkOpen said */
    int64_t stream_wait_ns; /* of a stream for its publisher, if the subscription does not say */
    uint64_t history;       /* how many messages that are there it begins with; DLX_READER_ALL */
    uint64_t gone_at;       /* the cursor when the daemon said that its publisher is gone */
    uint64_t ended_at; /* 0, or the last message of a publisher that no other link will come to */
    uint64_t end;      /* likewise, plus 1, as it said itself when it closed */

    /* Waiting, client/subscribe/sleep.h: */
    int bell;                    /* -1 before LinkOpen */
    enum dlx_bell_holder holder; /* of its other end */
    uint32_t n_rings;            /* that were asked for and may not have been read */
    uint32_t n_idle;             /* takes in a row that found nothing */
    bool is_active;              /* every take looks at it */

    /* Messages: */
    struct dlx_reader core;
    struct dlx_shm_link *page;
    uint32_t max_held;           /* hold words in the page, as the subscription asked */
    uint64_t most_held_bytes;    /* that the publisher lets it hold. 0: no bound */
    _Atomic uint64_t held_bytes; /* of messages handed out and not released; if there is a bound */
    struct dlx_message **messages; /* [max_held]: one for each hold word, made when first used */
    /* Taken, held, and not handed out yet: the arena of the first has not come, or it was taken in
     * a batch. */
    struct dlx_taken pending[DLX_SUBSCRIBER_LINK_BATCH];
    uint32_t first_pending;
    uint32_t n_pending;

    /* The subscription's thread alone changes the table of arenas, and locks it for that; others,
     * who have messages, lock it to read. */
    pthread_mutex_t arenas_lock;
    struct dlx_subscriber_link_arena *arenas; /* ascending id */
    uint32_t n_arenas;
    uint32_t arenas_room;
    uint32_t arena_at
        [DLX_SUBSCRIBER_LINK_HINTS]; /* by id: where one of that id was when it was asked for */
    uint32_t lacks;                  /* one that is to be mapped for a message; 0: none */

    struct dlx_worker_link *claims; /* NULL: it is of no worker */
    const struct dlx_memory *memory;
    struct dlx_mapped_source *source; /* what it maps is noted there; NULL: nothing is */
    struct dlx_mapped_region *mapped[DLX_LINK_N_REGIONS];
    struct dlx_gpu_link *_Atomic gpu;       /* what it has of GPUs; NULL: nothing yet */
    const struct dlx_subscription_view *of; /* for as long as the subscription is there */
};

/* Has it begun? */
static inline bool dlx__subscriber_link_is_open(const struct dlx_subscriber_link *link)
{
    return link->state >= DLX_LINK_LIVE;
}

/* Has the daemon ended that made it? */
static inline bool dlx__subscriber_link_is_foreign(const struct dlx_subscriber_link *link)
{
    return link->daemon >= DLX_LINK_LOST;
}

/* Did that daemon only show its publisher? */
static inline bool dlx__subscriber_link_is_shown(const struct dlx_subscriber_link *link)
{
    return link->daemon == DLX_LINK_SHOWN || link->daemon == DLX_LINK_LOST_SHOWN;
}

/* Make a link of an offer: populates and maps its page. Takes the fd, also on failure. */
int dlx__subscriber_link_new(struct dlx_subscriber_link **ret, const struct dlx_memory *memory,
                             uint64_t generation, uint64_t id, uint64_t publisher,
                             const char *topic, int take_page_fd, uint64_t page_size,
                             uint32_t max_held);

/* A spare has got a publisher: before dlx__subscriber_link_open(). */
int dlx__subscriber_link_assign(struct dlx_subscriber_link *link, uint64_t publisher,
                                const char *topic);

/* Notes what it maps from now on, and its page, as of this epoch of its client: once its publisher
 * is known. Does nothing if that was done. Returns 0; DLX_E_NO_MEMORY. */
int dlx__subscriber_link_note(struct dlx_subscriber_link *link, uint64_t epoch);

/* LinkOpen: OPENING. Takes its fds, also on failure. */
int dlx__subscriber_link_open(struct dlx_subscriber_link *link, struct dlx_notification *opened,
                              bool latest, bool reliable);

/* Undoes that: LinkOpen is handled again. */
void dlx__subscriber_link_unopen(struct dlx_subscriber_link *link);

/* All of its arenas are here: LIVE, or DRAINING if its publisher hung up meanwhile. `history` as of
 * dlx__reader_start(). `follows`: dlx__reader_follow() will be called. */
void dlx__subscriber_link_start(struct dlx_subscriber_link *link, uint64_t history, bool follows);

/* The subscription lets go of it: it goes with its last message. Until then it counts with what
 * this `reader` of a subscription holds. NULL is fine. */
struct dlx_subscriber_link *dlx__subscriber_link_leave(struct dlx_subscriber_link *link,
                                                       uint64_t reader);
/* The same for one of which nothing is counted. */
struct dlx_subscriber_link *dlx__subscriber_link_unref(struct dlx_subscriber_link *link);

/* The last reference to the link is gone. */
void dlx__subscriber_link_free(struct dlx_subscriber_link *link);

/* Of a bounded link: so many bytes were let go, after their hold word was cleared. Any thread. */
static inline void dlx__subscriber_link_uncount(struct dlx_subscriber_link *link, uint64_t bytes)
{
    /* Release: whoever takes because of this stores its hold word after ours was cleared. */
    atomic_fetch_sub_explicit(&link->held_bytes, bytes, memory_order_release);
}

/* A message that was handed out has been released. Any thread. */
static inline void dlx__subscriber_link_released(struct dlx_subscriber_link *link)
{
    if (dlx_unlikely(atomic_fetch_sub_explicit(&link->refs, 1, memory_order_acq_rel) == 1))
        dlx__subscriber_link_free(link);
}

/* No new message will come by it. Of a link that has not begun, dlx__subscriber_link_start() knows
 * it by its bell. */
static inline void dlx__subscriber_link_drain(struct dlx_subscriber_link *link)
{
    if (link->state == DLX_LINK_LIVE)
        link->state = DLX_LINK_DRAINING;
}

/* The subscription takes no more from it. */
void dlx__subscriber_link_close(struct dlx_subscriber_link *link);

/* Before the subscription sleeps, or returns without a message of this link. */
void dlx__subscriber_link_look_at_gpu(struct dlx_subscriber_link *link);
static inline void dlx__subscriber_link_look(struct dlx_subscriber_link *link)
{
    if (dlx_unlikely(atomic_load_explicit(&link->gpu, memory_order_relaxed)))
        dlx__subscriber_link_look_at_gpu(link);
}

/* ArenaAdded; takes the fd, also on failure. An arena that cannot be pinned is not, and one that
 * cannot be mapped for want of something (dlx__error_is_lack()) is mapped when a message needs it.
 * Returns 0; DLX_E_PROTOCOL; DLX_E_NO_MEMORY: nothing has changed. */
int dlx__subscriber_link_arena_add(struct dlx_subscriber_link *link, uint32_t id, int take_fd,
                                   uint64_t size);
/* ArenaDropped: unmapped once nothing that was taken before and may lie in it is held. */
void dlx__subscriber_link_arena_dropped(struct dlx_subscriber_link *link, uint32_t id);
void dlx__subscriber_link_sweep_arenas(struct dlx_subscriber_link *link);

const struct dlx_subscriber_link_arena *
dlx__subscriber_link_arena_search(struct dlx_subscriber_link *link, uint32_t id);
/* NULL if it is not here (yet). */
static inline const struct dlx_subscriber_link_arena *
dlx__subscriber_link_arena(struct dlx_subscriber_link *link, uint32_t id)
{
    uint32_t i = link->arena_at[id % DLX_SUBSCRIBER_LINK_HINTS];
    if (dlx_likely(i < link->n_arenas && link->arenas[i].id == id))
        return &link->arenas[i];
    return dlx__subscriber_link_arena_search(link, id);
}

/* Is it here and mapped? If it could not be mapped yet, the take that asks tries again. */
bool dlx__subscriber_link_has_arena(struct dlx_subscriber_link *link, uint32_t id);

/*
 * A copy-on-write view (common/memory.h) of `size` bytes of an arena, for who holds a message that
 * has them. Any thread. NULL where there can be none: the arena or `size` is smaller than
 * DLX_VIEW_MIN, or the system does not do it.
 */
void *dlx__subscriber_link_view(struct dlx_subscriber_link *link, const void *data, uint64_t size);
/* Less is copied in the time that a view takes to make and to write to. */
#define DLX_VIEW_MIN (UINT64_C(256) << 10)

/* When was the newest message published that is here and was not handed out? 0: there is none. */
uint64_t dlx__subscriber_link_newest_ns(const struct dlx_subscriber_link *link);
/* In mode LATEST: passes all that is here. */
void dlx__subscriber_link_pass(struct dlx_subscriber_link *link);

/* The first pending message, whose arena will not come, is lost. */
void dlx__subscriber_link_lose_first(struct dlx_subscriber_link *link);
/* All that is pending is lost. */
void dlx__subscriber_link_lose_pending(struct dlx_subscriber_link *link);

/* client/message/message.c */

void dlx__message_free(struct dlx_message *m);

/*
 * May a tensor of the message that has this struct now, or had it last, lie in this arena, which
 * was dropped? For whoever takes; others may release it meanwhile.
 */
bool dlx__message_may_lie_in(const struct dlx_message *m,
                             const struct dlx_subscriber_link_arena *arena);

/* The message that a tensor is of; NULL if it was not made by dlx_message_tensor(), or
 * _legacy(). */
dlx_for_gpu const struct dlx_message *dlx__message_of(const DLManagedTensorVersioned *tensor);
const struct dlx_message *dlx__message_of_legacy(const DLManagedTensor *tensor);

/* Its link, for as long as the message or a tensor of it is held. */
struct dlx_subscriber_link *dlx__message_link(const struct dlx_message *m);

/*
 * Take the next message, and, if nothing is pending, up to `n` from the ring. Returns 0;
 * DLX_E_EMPTY, DLX_E_TOO_MANY_HELD, DLX_E_PUBLISHER_GONE, DLX_E_BAD_PEER; a lack
 * (dlx__error_is_lack()): the message stays, for a later call; and DLX_E_NOT_FOUND: an arena has
 * not arrived, or the publisher has gone on with another daemon; call again after reading
 * notifications. */
int dlx__subscriber_link_take(struct dlx_subscriber_link *link, uint32_t n,
                              struct dlx_message **ret);
/* What a take would return, as far as that is known without taking: as dlx__reader_take() of none.
 */
int dlx__subscriber_link_look_ahead(struct dlx_subscriber_link *link);

#endif
