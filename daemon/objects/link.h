/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_LINK_H
#define DLXD_LINK_H

/*
 * What happens to a link.
 *
 * A step for which the daemon lacks descriptors, memory or a thread leaves the link as it is, and
 * is tried again (subscription.h): one whose page could not be checked is PREPARED again.
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

#include "daemon/objects/objects.h"

struct dlxd_flight;

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

/* Did the subscription exist before a publisher that must wait for it, and has one of the two yet
 * to be told of the link? */
bool dlxd_link_is_awaited(const struct dlxd_link *link);

#endif
