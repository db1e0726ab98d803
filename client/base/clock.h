/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_CLOCK_H
#define DLX_CLIENT_CLOCK_H

/*
 * CLOCK_MONOTONIC for threads that read it with every message. Reading the system's clock waits
 * until everything before it was executed, which is the dearest step of a message. So between two
 * looks at that clock, at most DLX_CLOCK_SPAN_NS apart, the time is told by the processor's
 * counter, whose rate is measured over and over. Where the system's clock is another one, or the
 * counter may not be read, each call looks at the system's clock.
 * docs/decisions/0019-counter-as-clock.md
 *
 * One thread at a time. Times never go back.
 */

#include "common/util.h"

#define DLX_CLOCK_SPAN_NS UINT64_C(1000000)

/* Zeroed memory is fine. */
struct dlx_clock {
    uint64_t ticks; /* of the counter, at the last look */
    uint64_t ns;    /* the time then */
    uint64_t span;  /* ticks after which the next look is due; 0: with each call */
    uint64_t rate;  /* nanoseconds a tick, times 2^32; 0: not known */
    uint64_t last;  /* the time that was told last */
    /* Where measuring the rate began. since_ns 0: nowhere. */
    uint64_t since_ticks;
    uint64_t since_ns;
    uint64_t since_uncertain; /* ticks that the look took then */
};

/* Look at the system's clock. Returns the time. */
uint64_t dlx__clock_look(struct dlx_clock *clock);

/* Likewise, when the system's clock said `ns` and the counter `before` and `after` that. */
uint64_t dlx__clock_learn(struct dlx_clock *clock, uint64_t before, uint64_t ns, uint64_t after);

static inline uint64_t dlx__clock_ticks(void)
{
#ifdef __x86_64__
    return __builtin_ia32_rdtsc();
#else
    return 0;
#endif
}

/* The time when the counter says `ticks`, which is less than `span` since the last look. */
static inline uint64_t dlx__clock_at(struct dlx_clock *clock, uint64_t ticks)
{
    return clock->last = clock->ns + ((ticks - clock->ticks) * clock->rate >> 32);
}

static inline uint64_t dlx__clock_now(struct dlx_clock *clock)
{
    uint64_t ticks = 0;
    /* Not where the counter may not be read: the span stays 0. */
    if (dlx_unlikely(clock->span == 0 ||
                     (ticks = dlx__clock_ticks()) - clock->ticks >= clock->span))
        return dlx__clock_look(clock);
    return dlx__clock_at(clock, ticks);
}

#endif
