/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_RESUME_POSITIONS_H
#define DLX_CLIENT_RESUME_POSITIONS_H

/*
 * How far a subscription got with publishers that have gone and may be seen again: they retain
 * messages, have gone on with another daemon, or did not say that they close, as one that the
 * daemon disconnected. No message is to come twice, and what is missing is counted. The newest
 * DLX_RESUME_POSITIONS_MAX of them are remembered.
 */

#include <stdint.h>

#define DLX_RESUME_POSITIONS_MAX 256U

/* What a subscription has counted on links that have ended: struct dlx_subscription_stats. */
struct dlx_resume_counts {
    uint64_t taken, taken_bytes, skipped, lost;
};

struct dlx_resume_position {
    uint64_t origin; /* of the publisher */
    uint64_t seq;    /* the last message that was passed */
    uint64_t untold; /* as dlx__reader_untold() */
    struct dlx_resume_counts counts;
};

/* All zero: none. */
struct dlx_resume_positions {
    struct dlx_resume_position *entries; /* [DLX_RESUME_POSITIONS_MAX]; NULL until there is one */
    uint64_t n;                          /* ever added */
};

void dlx__resume_positions_deinit(struct dlx_resume_positions *positions);
/* For lack of memory it is forgotten. */
void dlx__resume_positions_add(struct dlx_resume_positions *positions, uint64_t origin,
                               uint64_t seq, uint64_t untold);
/* Counted on a link that has ended, to the publisher with this origin. One that is not remembered
 * has no counts. */
void dlx__resume_positions_count(struct dlx_resume_positions *positions, uint64_t origin,
                                 const struct dlx_resume_counts *counts);
/* The counts of this publisher, whose next link goes on with them. They are zero from then on. */
struct dlx_resume_counts dlx__resume_positions_take_counts(struct dlx_resume_positions *positions,
                                                           uint64_t origin);
/* All zero: nothing, as far as is remembered. */
struct dlx_resume_position dlx__resume_positions_find(const struct dlx_resume_positions *positions,
                                                      uint64_t origin);

#endif
