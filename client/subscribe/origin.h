/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_ORIGIN_H
#define DLX_CLIENT_ORIGIN_H

/*
 * Links of a subscription to the same publisher, which daemons that follow each other know by
 * different ids: by its origin, its id with the first of them.
 */

#include "ring/reader.h"
#include <stdbool.h>
#include <stdint.h>

struct dlx_notification;
struct dlx_subscriber_link;
struct dlx_subscription;

/*
 * How far a subscription got with publishers that have gone and may be seen again: they retain
 * messages, have gone on with another daemon, or did not say that they close, as one that the
 * daemon disconnected. No message is to come twice, and what is missing is counted. The newest
 * DLX_RESUME_POSITIONS_MAX of them are remembered.
 */
#define DLX_RESUME_POSITIONS_MAX 256U

struct dlx_resume_position {
    uint64_t origin;                   /* of the publisher */
    uint64_t seq;                      /* the last message that was passed */
    uint64_t untold;                   /* as dlx__reader_untold() */
    struct dlx_reader_counters counts; /* of links that have ended */
};

/* All zero: none. */
struct dlx_resume_positions {
    struct dlx_resume_position *entries; /* [DLX_RESUME_POSITIONS_MAX]; NULL until there is one */
    uint64_t n;                          /* ever added */
};

void dlx__resume_positions_deinit(struct dlx_resume_positions *positions);
/* Adds `counts` to what was counted before. For lack of memory it is forgotten. */
void dlx__resume_positions_add(struct dlx_resume_positions *positions, uint64_t origin,
                               uint64_t seq, uint64_t untold,
                               const struct dlx_reader_counters *counts);
/* NULL: nothing is remembered. */
struct dlx_resume_position *dlx__resume_positions_find(const struct dlx_resume_positions *positions,
                                                       uint64_t origin);

/* ---- links of a subscription ----------------------------------------------------------------- */

/* Can a publisher that resumes `origin` be the publisher of this link? One that
 * our daemon knows, and has not told us to be gone, is another's. */
bool dlx__origin_may_resume(const struct dlx_subscriber_link *link, uint64_t origin);

/* Does `publisher` claim the origin of another publisher that is still there? Then its numbers
 * belong to another stream. */
bool dlx__origin_is_anothers(const struct dlx_subscription *s, uint64_t publisher, uint64_t origin);

/* The publisher has yet to come to this daemon. Does the subscription have an open link that the
 * publisher made with an earlier one? A second link would keep the publisher from freeing
 * memory. */
bool dlx__origin_is_joined(const struct dlx_subscription *s, uint64_t origin);

/* A publisher left before our link to it was open. If an earlier link is remembered, the
 * subscription missed the messages after its position. Else the daemon says how many: all, if
 * the subscription was there first. Counts that, and returns it. */
uint64_t dlx__origin_gone_before(struct dlx_subscription *s,
                                 const struct dlx_notification *notification);

/* A link ends, and its publisher may be seen again: remember how far it got, and what it counted.
 * `n_missed`: messages after the last one that it passed, which it counts as lost, too. */
void dlx__origin_remember(struct dlx_subscription *s, const struct dlx_subscriber_link *link,
                          uint64_t n_missed);

/* The publisher is known from a link that has ended: the new one goes on at that position, with its
 * counters, which lists of links show. The subscription's total stays the same. */
void dlx__origin_resume(struct dlx_subscription *s, struct dlx_subscriber_link *link,
                        struct dlx_resume_position *passed);

#endif
