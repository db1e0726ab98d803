/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_LINK_H
#define DLXD_LINK_H

/*
 * A link: one publisher and one subscription, and how far the subscriber has been told.
 *
 *   NEW --LinkOffer--> OFFERED --LinkReady--> PREPARED <--> PROVING
 *    |                   |                       |             |
 *    |                   |                       |           READY --LinkAdded--> ADDED
 *    |                   |                       |             |                    |
 *    |                   |                       |             |               LinkOpen --> OPEN
 *    +-------------------+-----------------------+-------------+--> FAILED --LinkFailed--> (freed)
 *
 * A step for which the daemon lacks descriptors, memory or a thread leaves the link as it is, and
 * is tried again (lack.h): one whose page could not be checked is PREPARED again.
 *
 * A link is made for one publisher, or as a spare for one that does not exist yet. A spare link
 * goes from READY to SPARE, with SpareSealed. A publisher can get it once its subscriber has
 * prepared the page, that is from PROVING on. It is an early link then: the publisher has it
 * before it can publish.
 *
 *   DLXD_MADE_FOR_PUBLISHER          DLXD_MADE_AS_SPARE --dlxd_link_assign()--> DLXD_MADE_EARLY
 *
 * link.c decides what is sent next; delivery.c sends it and reports back. No I/O here, except the
 * check of whether an ending link drains.
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
struct dlxd_pending_join;
struct dlxd_workers;

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

enum dlxd_link_step {
    DLXD_STEP_NONE,
    /* Without fds: these need no credit. */
    DLXD_STEP_FAILED,
    DLXD_STEP_DROPPED,
    DLXD_STEP_GONE,  /* keeps its turn: see dlxd_link_schedule() */
    DLXD_STEP_SEAL,  /* SpareSealed of a spare link */
    DLXD_STEP_PROVE, /* no packet */
    /* With fds: */
    DLXD_STEP_OFFER,
    DLXD_STEP_JOIN, /* LinkAdded; LinkOpen follows */
    DLXD_STEP_OPEN,
    DLXD_STEP_ARENA,
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

/* Makes a link between the two, to be offered. A limit makes the link FAILED, which the subscriber
 * is told; that is no error here. Returns 0, DLX_E_NO_MEMORY. */
int dlxd_link_new(struct dlxd_subscription *subscription, struct dlxd_publisher *publisher,
                  uint64_t id, bool from_start);
/* Makes a spare link for a future publisher. Returns 0; without a link, DLX_E_NO_MEMORY or
 * DLX_E_LIMIT. */
int dlxd_link_new_spare(struct dlxd_subscription *subscription, uint64_t id);
/* The page of the link is prepared, and a worker is to check it, or to check it again. */
void dlxd_link_set_prepared(struct dlxd_link *link);
/* The worker checks it. If it is a spare link, a publisher can get it from now on. */
void dlxd_link_set_proving(struct dlxd_link *link);
/* Is it a spare link whose page is prepared? */
static inline bool dlxd_link_is_free(const struct dlxd_link *link)
{
    return link->made == DLXD_MADE_AS_SPARE && link->state >= DLXD_LINK_PROVING &&
           link->state <= DLXD_LINK_SPARE;
}
/* Gives a free spare link to a publisher that has just become ready. Returns 0; or, without a
 * change, DLX_E_LIMIT or DLX_E_NO_MEMORY. */
int dlxd_link_assign(struct dlxd_link *link, struct dlxd_publisher *publisher);
/* Ends the link, whatever the reason, and tells the publisher's side. May free a GONE publisher.
 * Accepts NULL. */
void dlxd_link_end(struct dlxd_link *link);
/* Makes the link FAILED: the subscriber will get LinkFailed. May free a GONE publisher. */
void dlxd_link_fail(struct dlxd_link *link, int code, const char *text);
/* The same for a link whose publisher is GONE. */
void dlxd_link_fail_gone(struct dlxd_link *link);
/* Called for a FAILED link. If its subscriber has many failures unread, another failed link reports
 * this one as well and this one is freed, so that a subscriber that reads nothing costs a bounded
 * number of links. If this link must be reported itself, the client is disconnected. */
void dlxd_link_condense(struct dlxd_link *link);

/* The next step to take; whether it sends fds; whether it waits for credit. */
enum dlxd_link_step dlxd_link_next(struct dlxd_link *link);
bool dlxd_link_step_has_fds(enum dlxd_link_step step);
bool dlxd_link_step_needs_credit(const struct dlxd_link *link, enum dlxd_link_step step);
/* Puts the link in its place in the subscription's `pending`. Call it after each change of the
 * state. */
void dlxd_link_schedule(struct dlxd_link *link);

/* The arena of the next step. Valid if dlxd_link_next() returned DROPPED or ARENA. */
struct dlxd_arena *dlxd_link_next_dropped(struct dlxd_link *link);
struct dlxd_arena *dlxd_link_next_arena(const struct dlxd_link *link);

/* The step was taken: its packet is in the socket. Frees the link after FAILED; may free a
 * publisher after GONE. */
void dlxd_link_step_done(struct dlxd_link *link, enum dlxd_link_step step);

/* The subscriber has received ArenaDropped. This is a dlxd_landed_fn. */
void dlxd_link_drop_landed(struct dlxd_flight *flight);

/* Was the subscriber told of this arena, or will it be, so that it must be told of the drop? Valid
 * until it was told of the drop, when arena_seq moves on. */
bool dlxd_link_knows(const struct dlxd_link *link, const struct dlxd_arena *arena);

/* Did the subscription exist before a publisher that must wait for it, and has one of the two yet
 * to be told of the link? */
bool dlxd_link_is_awaited(const struct dlxd_link *link);

static inline uint64_t dlxd_link_id(const struct dlxd_link *link)
{
    return link->by_id.id;
}

#endif
