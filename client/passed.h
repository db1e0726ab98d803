/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_PASSED_H
#define DLX_CLIENT_PASSED_H

/*
 * How far a subscription got with publishers that have gone and may be seen again: they retain messages, have gone on with
 * another daemon, or did not say that they close, as one that the daemon disconnected. No message is to come twice, and what
 * is missing is counted. The newest DLX_PASSED_MAX of them are remembered.
 */

#include <stdint.h>

#define DLX_PASSED_MAX 256U

/* What a subscription has counted on links that have ended: struct dlx_subscription_stats. */
struct dlx_passed_counts {
    uint64_t taken, taken_bytes, skipped, lost;
};

struct dlx_passed_entry {
    uint64_t origin; /* of the publisher */
    uint64_t seq;    /* the last message that was passed */
    uint64_t untold; /* as dlx__reader_untold() */
    struct dlx_passed_counts counts;
};

/* All zero: none. */
struct dlx_passed {
    struct dlx_passed_entry *entries; /* [DLX_PASSED_MAX]; NULL until there is one */
    uint64_t n;                       /* ever added */
};

void dlx__passed_deinit(struct dlx_passed *passed);
/* For lack of memory it is forgotten. */
void dlx__passed_add(struct dlx_passed *passed, uint64_t origin, uint64_t seq, uint64_t untold);
/* Counted on a link that has ended, to the publisher with this origin. One that is not remembered has
 * no counts. */
void dlx__passed_count(struct dlx_passed *passed, uint64_t origin,
                       const struct dlx_passed_counts *counts);
/* The counts of this publisher, whose next link goes on with them. They are zero from then on. */
struct dlx_passed_counts dlx__passed_take_counts(struct dlx_passed *passed, uint64_t origin);
/* All zero: nothing, as far as is remembered. */
struct dlx_passed_entry dlx__passed_find(const struct dlx_passed *passed, uint64_t origin);

#endif
