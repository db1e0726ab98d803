/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/users/pace.h"

#define SECOND_NS UINT64_C(1000000000)

/* The same pace at `now`: a second that has passed is the one before. */
static struct dlxd_pace advance(const struct dlxd_pace *pace, uint64_t now)
{
    uint64_t passed = now - pace->began_ns;
    if (passed < SECOND_NS)
        return *pace;
    if (passed < 2 * SECOND_NS)
        return (struct dlxd_pace){.began_ns = pace->began_ns + SECOND_NS, .n_before = pace->n};
    return (struct dlxd_pace){.began_ns = now};
}

/* How many of `n` requests, evenly spread over a second, fall into `part_ns` of it. */
static uint64_t part_of(uint64_t n, uint64_t part_ns)
{
    return n * part_ns / SECOND_NS; /* nobody makes 2^34 requests in a second */
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
    /* When so little of the second before still counts that there is room for one. */
    if (at.n < max)
        return at.began_ns + SECOND_NS - ((max - at.n) * SECOND_NS - 1) / at.n_before;
    return at.began_ns + 2 * SECOND_NS - (max * SECOND_NS - 1) / at.n;
}
