/* SPDX-License-Identifier: Apache-2.0 */
#include "client/base/clock.h"
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* The rate is measured over at least this time, and at most over what dlx__clock_learn() can
 * multiply. */
#define MEASURE_NS     UINT64_C(10000000)
#define MEASURE_NS_MAX (UINT64_C(1) << 32)
/* The share of that time that looks at the system's clock may take at both ends: an interrupt may
 * come between a look at it and at the counter. */
#define LOOK_PART 4096U
/* A look that takes longer is tried again, at most this often. */
#define LOOK_NS   UINT64_C(250)
#define LOOKS_MAX 3
/* A look that takes longer does not tell when in its course the clock had that time. */
#define LOOK_NS_MAX UINT64_C(2500)
/* A rate that changes by more than this part is that of another counter: a virtual machine has
 * moved. */
#define CHANGE_PART 64U

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool counter_is_clock;

/* Does the system's clock go by the counter? Then the kernel has seen that it goes steadily, and
 * alike on all processors. */
static void find_out(void)
{
#if defined __x86_64__ && defined PR_GET_TSC
    static const char wanted[] = "tsc\n";
    char name[sizeof wanted] = "";
    int allowed = 0;
    if (prctl(PR_GET_TSC, &allowed) < 0 || allowed != PR_TSC_ENABLE)
        return;
    int fd = open("/sys/devices/system/clocksource/clocksource0/current_clocksource",
                  O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t n = read(fd, name, sizeof name);
    close(fd);
    counter_is_clock = n == (ssize_t)strlen(wanted) && memcmp(name, wanted, strlen(wanted)) == 0;
#endif
}

/* The rate since measuring began. Not yet: too little time has passed. Then again from here. */
static void measure(struct dlx_clock *clock, uint64_t ticks, uint64_t ns, uint64_t uncertain)
{
    uint64_t passed = ticks - clock->since_ticks, passed_ns = ns - clock->since_ns;
    if (clock->since_ns != 0 && passed_ns < MEASURE_NS)
        return;
    if (clock->since_ns != 0 && passed_ns < MEASURE_NS_MAX && passed > 0) {
        uint64_t rate = (passed_ns << 32) / passed, other = clock->rate;
        uint64_t change = rate > other ? rate - other : other - rate;
        if (uncertain + clock->since_uncertain <= passed / LOOK_PART)
            clock->rate = other != 0 && change > other / CHANGE_PART ? 0 : rate;
        else if (uncertain >= clock->since_uncertain)
            return; /* a longer time, or a better look, will do */
    }
    clock->since_ticks = ticks;
    clock->since_ns = ns;
    clock->since_uncertain = uncertain;
}

static bool took_longer(const struct dlx_clock *clock, uint64_t ticks, uint64_t ns)
{
    return clock->rate == 0 || ticks > (ns << 32) / clock->rate;
}

uint64_t dlx__clock_learn(struct dlx_clock *clock, uint64_t before, uint64_t ns, uint64_t after)
{
    uint64_t uncertain = after - before, ticks = before + uncertain / 2;
    measure(clock, ticks, ns, uncertain);
    clock->span =
        took_longer(clock, uncertain, LOOK_NS_MAX) ? 0 : (DLX_CLOCK_SPAN_NS << 32) / clock->rate;
    clock->ticks = ticks;
    clock->ns = clock->last = DLX_MAX(ns, clock->last);
    return clock->last;
}

uint64_t dlx__clock_look(struct dlx_clock *clock)
{
    uint64_t before = 0, ns = 0, after = UINT64_MAX;
    (void)pthread_once(&once, find_out);
    if (!counter_is_clock)
        return dlx__now_ns();
    for (int i = 0; i < LOOKS_MAX && took_longer(clock, after - before, LOOK_NS); i++) {
        uint64_t start = dlx__clock_ticks(), then = dlx__now_ns(), end = dlx__clock_ticks();
        if (end - start < after - before) {
            before = start;
            ns = then;
            after = end;
        }
    }
    return dlx__clock_learn(clock, before, ns, after);
}
