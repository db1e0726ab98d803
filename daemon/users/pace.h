/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_PACE_H
#define DLXD_PACE_H

/*
 * How many requests a user has made in the last second, and when it may make the next one: a
 * sliding window. Requests are counted in whole seconds, the first of which starts with the first
 * request after a pause. The requests of the previous second count in part, as if they had been
 * spread evenly: those less than one second old. So a user that has paused may make a second's
 * requests at once, and one that never pauses makes as many in each second. No I/O and no clock
 * here; times are those of CLOCK_MONOTONIC.
 */
#include <stdint.h>

/* All zero: no request was made yet. */
struct dlxd_pace {
    uint64_t began_ns; /* start of the current second */
    uint64_t n;        /* requests in the current second */
    uint64_t n_before; /* requests in the previous second */
};

/* Counts one request. */
void dlxd_pace_count(struct dlxd_pace *pace, uint64_t now_ns);
/* The number of requests in the last second. */
uint64_t dlxd_pace_used(const struct dlxd_pace *pace, uint64_t now_ns);
/* When the next request may come, at a rate of `max` per second: `now_ns` if it may come now,
 * UINT64_MAX (never) if `max` is 0. */
uint64_t dlxd_pace_next_ns(const struct dlxd_pace *pace, uint64_t max, uint64_t now_ns);

#endif
