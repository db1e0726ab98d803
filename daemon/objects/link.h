/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_LINK_H
#define DLXD_LINK_H

/*
 * A link: one publisher and one subscription, and how far the subscriber has been told.
 *
 *   NEW --LinkOffer--> OFFERED --(LinkReady)--> PROVING --> READY --LinkAdded--> ADDED
 *    |                   |                       |           |                    |
 *    |                   |                       |           |               LinkOpen --> OPEN
 *    +-------------------+-----------------------+-----------+--> FAILED --LinkFailed--> (freed)
 *
 * A spare has no publisher yet: from READY it goes to SPARE, with SpareSealed. A publisher gets
 * it when its subscriber has prepared its page, that is from PROVING on, and has it before it
 * can publish.
 *
 * This file decides what is to be sent next; delivery.c sends it and says so. No I/O here, but for
 * the look at a link that ends: it may drain.
 */

#include "daemon/memory/arena.h"
#include "daemon/base/idmap.h"
#include "daemon/base/list.h"
#include "daemon/users/user.h"

struct dlxd_drain;
struct dlxd_flight;
struct dlxd_proof;
struct dlxd_publisher;
struct dlxd_subscription;
struct dlxd_waiter;
struct dlxd_workers;

enum dlxd_link_state {
    DLXD_LINK_NEW,     /* the offer is to be sent */
    DLXD_LINK_OFFERED, /* the subscriber prepares its page */
    DLXD_LINK_PROVING, /* it says that it has; a worker looks */
    DLXD_LINK_READY,   /* the page is to be sent to the publisher */
    DLXD_LINK_SPARE,   /* it waits for a publisher */
    DLXD_LINK_ADDED,   /* the publisher has it, or will; the subscriber is to be told */
    DLXD_LINK_OPEN,
    DLXD_LINK_FAILED, /* the subscriber is to be told; no publisher any more */
};

enum dlxd_link_step {
    DLXD_STEP_NONE,
    /* without fds: these need no credit */
    DLXD_STEP_FAILED,
    DLXD_STEP_DROPPED,
    DLXD_STEP_GONE, /* but it waits for its turn: see dlxd_link_schedule() */
    DLXD_STEP_SEAL, /* of a spare; SpareSealed */
    /* with fds */
    DLXD_STEP_OFFER,
    DLXD_STEP_JOIN, /* LinkAdded; LinkOpen follows */
    DLXD_STEP_OPEN,
    DLXD_STEP_ARENA,
};

struct dlxd_link {
    struct dlxd_idmap_node by_id;
    struct dlxd_list by_publisher; /* not linked: FAILED */
    struct dlxd_list by_subscription;
    struct dlxd_list pending;         /* in subscription->pending when there is a step to take */
    struct dlxd_publisher *publisher; /* NULL: FAILED, or a spare */
    struct dlxd_subscription *subscription;
    struct dlxd_waiter *waiter; /* what the publisher is to be sent waits: see waiting.h */
    enum dlxd_link_state state;
    uint32_t index;  /* among the publisher's links */
    uint64_t reader; /* as the subscriber says, for the publisher */
    bool from_start;
    bool spare; /* counted by its subscription: it has no publisher yet, and has not failed */
    bool early; /* it was a spare */
    bool gone_sent;
    uint64_t join_until_ns; /* not 0: its publisher seems to be about to end */

    /* How far the subscriber has been told: see arena.h. */
    uint64_t arena_seq;
    uint64_t drop_seq;
    uint64_t open_seq;      /* the arenas that LinkOpen counted */
    struct dlxd_list drops; /* flights of ArenaDropped, the oldest first: outbox.h */

    uint64_t page_size;
    struct dlxd_drain *drain; /* its page and what is charged; NULL: FAILED */
    struct dlxd_proof *proof; /* not NULL: PROVING */
    struct dlxd_workers *workers;
    int bell_fd;   /* the subscriber's end, from LinkAdded to LinkOpen */
    int locked_fd; /* likewise: the control block of a publisher that is SHOWN */

    int fail_code;
    uint64_t fail_origin; /* of the publisher that is gone */
    uint64_t fail_seq;    /* likewise: its newest message */
    uint64_t fail_missed; /* likewise: messages that were for this subscription */
    char *fail_text;      /* NULL: the code's own text */
    /* LinkFailed names this very link: it was offered, or promised, or its publisher is known. */
    bool fail_stays;
    uint32_t n_merged; /* other links that failed, of which it tells */

    struct dlxd_charge failed_charge;
};

/*
 * A link between the two, to be offered. A limit makes it FAILED, to be told to the subscriber: that
 * is no error here. Returns 0, DLX_E_NO_MEMORY.
 */
int dlxd_link_new(struct dlxd_subscription *subscription, struct dlxd_publisher *publisher,
                  uint64_t id, bool from_start);
/*
 * A link for a publisher that has yet to come. Returns 0; DLX_E_NO_MEMORY and DLX_E_LIMIT: there is none.
 */
int dlxd_link_new_spare(struct dlxd_subscription *subscription, uint64_t id);
/* A spare whose page is prepared. */
static inline bool dlxd_link_is_free(const struct dlxd_link *link)
{
    return link->spare && link->state >= DLXD_LINK_PROVING && link->state <= DLXD_LINK_SPARE;
}
/* Give one that is free to a publisher that has just become ready. Returns 0; or DLX_E_LIMIT,
 * DLX_E_NO_MEMORY: it is as it was. */
int dlxd_link_assign(struct dlxd_link *link, struct dlxd_publisher *publisher);
/* The link ends, whoever wants it; the publisher's side is told. May free a publisher that is gone.
 * NULL is fine. */
void dlxd_link_end(struct dlxd_link *link);
/* The subscriber will get LinkFailed. May free a publisher that is gone. */
void dlxd_link_fail(struct dlxd_link *link, int code, const char *text);
/* The same, as its publisher is GONE. */
void dlxd_link_fail_gone(struct dlxd_link *link);
/*
 * It has FAILED. If its subscriber has many such news to read already, another one tells of this one as well, and it is freed: a
 * subscriber that reads nothing costs a bounded number of links. If that cannot be, since it was promised, the client is disconnected.
 */
void dlxd_link_condense(struct dlxd_link *link);

/* What is to be sent next, whether that has fds, and whether it waits for credit. */
enum dlxd_link_step dlxd_link_next(struct dlxd_link *link);
bool dlxd_link_step_has_fds(enum dlxd_link_step step);
bool dlxd_link_step_needs_credit(const struct dlxd_link *link, enum dlxd_link_step step);
/* Put the link where it belongs in its subscription's `pending`: after each change of its state. */
void dlxd_link_schedule(struct dlxd_link *link);

/* What the next step is about: valid when dlxd_link_next() said DROPPED or ARENA. */
struct dlxd_arena *dlxd_link_next_dropped(struct dlxd_link *link);
struct dlxd_arena *dlxd_link_next_arena(const struct dlxd_link *link);

/* The step was taken: its packet is in the socket. Frees the link after FAILED; may free a publisher
 * after GONE. */
void dlxd_link_step_done(struct dlxd_link *link, enum dlxd_link_step step);

/* The subscriber has received ArenaDropped: a dlxd_landed_fn. */
void dlxd_link_drop_landed(struct dlxd_flight *flight);

/* Was, or will the subscriber be, told of this arena, so that it must hear of its drop? That is
 * right until it was told of the drop: then arena_seq moves on. */
bool dlxd_link_knows(const struct dlxd_link *link, const struct dlxd_arena *arena);

/* Was the subscription there before a publisher that is to wait for it, and has one of them yet
 * to be told of the link? */
bool dlxd_link_is_awaited(const struct dlxd_link *link);

static inline uint64_t dlxd_link_id(const struct dlxd_link *link)
{
    return link->by_id.id;
}

#endif
