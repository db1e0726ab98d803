/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/users/pace.h"

#define SECOND_NS UINT64_C(1000000000)

/* The same pace as seen at `now`: a second that is over becomes the one before. */
static struct dlxd_pace advance(const struct dlxd_pace *pace, uint64_t now)
{
    uint64_t passed = now - pace->began_ns;
    if (passed < SECOND_NS)
        return *pace;
    if (passed < 2 * SECOND_NS)
        return (struct dlxd_pace){.began_ns = pace->began_ns + SECOND_NS, .n_before = pace->n};
    return (struct dlxd_pace){.began_ns = now};
}

/* The share of `n` requests, spread evenly over a second, that falls into `part_ns`. */
static uint64_t part_of(uint64_t n, uint64_t part_ns)
{
    return n * part_ns / SECOND_NS; /* below 2^34 requests a second, this cannot overflow */
}

void dlxd_pace_count(struct dlxd_pace *pace, uint64_t now)
{
    *pace = advance(pace, now);
    pace->n++;
}

uint64_t dlxd_pace_used(const struct dlxd_pace *pace, uint64_t now)
{
    const struct dlxd_pace at = advance(pace, now);
    return at.n + part_of(at.n_before, at.began_ns + SECOND_NS - now);
}

uint64_t dlxd_pace_next_ns(const struct dlxd_pace *pace, uint64_t max, uint64_t now)
{
    const struct dlxd_pace at = advance(pace, now);
    if (max == 0)
        return UINT64_MAX;
    if (dlxd_pace_used(&at, now) < max)
        return now;
    /* The time at which the counted part of the previous second is small enough for one more
     * request. */
    if (at.n < max)
        return at.began_ns + SECOND_NS - ((max - at.n) * SECOND_NS - 1) / at.n_before;
    return at.began_ns + 2 * SECOND_NS - (max * SECOND_NS - 1) / at.n;
}
