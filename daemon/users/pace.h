/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_PACE_H
#define DLXD_PACE_H

/*
 * How many requests a user has made in the last second, and when it may make the next one: a
 * sliding window. Requests are counted in whole seconds, the first of which begins with the first
 * request after a pause. Of the second before the present one, the part counts that is less than a
 * second ago, as if its requests had come evenly. So a user that has paused may make a second's
 * requests at once, and one that never pauses makes as many in each second. No I/O and no clock
 * here; times are those of CLOCK_MONOTONIC.
 */

#include <stdint.h>

/* All zero: there was no request yet. */
struct dlxd_pace {
    uint64_t began_ns; /* the second that is counted */
    uint64_t n;        /* in it */
    uint64_t n_before; /* in the one before */
};

/* One more, now. */
void dlxd_pace_count(struct dlxd_pace *pace, uint64_t now_ns);
/* In the last second. */
uint64_t dlxd_pace_used(const struct dlxd_pace *pace, uint64_t now_ns);
/* When the next one may come, with at most `max` in a second: `now_ns` if that is now. UINT64_MAX:
 * never, since `max` is 0. */
uint64_t dlxd_pace_next_ns(const struct dlxd_pace *pace, uint64_t max, uint64_t now_ns);

#endif
