/* SPDX-License-Identifier: Apache-2.0 */

/* The clock of publishers, with a counter and a system's clock of our own, and with the real
 * ones. */

#include "client/base/clock.h"
#include "tests/harness/run.h"

#define MS UINT64_C(1000000)

/* A counter of `per_us` ticks a microsecond, which began `offset` ticks before the system's
 * clock. */
struct counter {
    uint64_t per_us, offset;
};

static uint64_t ticks_at(const struct counter *counter, uint64_t ns)
{
    return counter->offset + ns * counter->per_us / 1000;
}

static bool is_good_for(const struct dlx_clock *clock, const struct counter *counter, uint64_t ns)
{
    return ticks_at(counter, ns) - clock->ticks < clock->span;
}

/* Gives the clock the system's time; must the counter be trusted then? */
static void look_at(struct dlx_clock *clock, const struct counter *counter, uint64_t ns,
                    bool is_believed)
{
    ck_assert_uint_eq(dlx__clock_learn(clock, ticks_at(counter, ns - 10), ns,
                                       ticks_at(counter, ns + 10)), /* it takes 20 ns */
                      ns);
    ck_assert_int_eq(clock->span > 0, is_believed);
}

static void learn_rate(struct dlx_clock *clock, const struct counter *counter, uint64_t ns)
{
    look_at(clock, counter, ns, false);
    look_at(clock, counter, ns + 9 * MS, false);
    look_at(clock, counter, ns + 10 * MS, true);
}

/* By the counter, within 100 ns. */
static void check_time(struct dlx_clock *clock, const struct counter *counter, uint64_t ns)
{
    uint64_t told = dlx__clock_at(clock, ticks_at(counter, ns));
    ck_assert_uint_le(told, ns + 100);
    ck_assert_uint_ge(told + 100, ns);
}

TEST(the_counter_tells_the_time_once_its_rate_is_known)
{
    static const struct counter counters[] = {
        {24, 5}, {1000, 0}, {2995, UINT64_MAX - 1000}, {5100, 1}};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(counters); i++) {
        const struct counter *counter = &counters[i];
        struct dlx_clock clock = {0};
        uint64_t start = 1000 * MS, now = start + 10 * MS;
        learn_rate(&clock, counter, start);
        for (uint64_t ns = now + 1000; ns < now + MS - 1000; ns += 1000) {
            ck_assert(is_good_for(&clock, counter, ns));
            check_time(&clock, counter, ns);
        }
        ck_assert(!is_good_for(&clock, counter, now + MS + 1000));
    }
}

TEST(times_never_go_back)
{
    const struct counter counter = {3000, 0};
    struct dlx_clock clock = {0};
    uint64_t now = 1010 * MS;
    learn_rate(&clock, &counter, 1000 * MS);
    uint64_t told = dlx__clock_at(&clock, ticks_at(&counter, now + MS / 2));
    /* The system's clock was slowed down: 300 ns less than the counter says. */
    uint64_t ticks = ticks_at(&counter, now + MS / 2 + 10);
    ck_assert_uint_eq(dlx__clock_learn(&clock, ticks - 30, now + MS / 2 - 300, ticks + 30), told);
    ck_assert_uint_ge(dlx__clock_at(&clock, ticks + 1), told);
}

TEST(a_counter_that_jumps_is_not_believed)
{
    struct counter counter = {3000, UINT64_C(1) << 40};
    struct dlx_clock clock = {0};
    learn_rate(&clock, &counter, 1000 * MS);
    counter.offset = 0; /* back */
    ck_assert(!is_good_for(&clock, &counter, 1011 * MS));
    look_at(&clock, &counter, 1025 * MS, false);
    look_at(&clock, &counter, 1036 * MS, true);
    counter.per_us = 2000; /* on another machine */
    look_at(&clock, &counter, 1060 * MS, false);
    look_at(&clock, &counter, 1071 * MS, true);
}

TEST(a_look_that_was_interrupted_does_not_count)
{
    const struct counter counter = {3000, 0};
    struct dlx_clock clock = {0};
    learn_rate(&clock, &counter, 1000 * MS);
    uint64_t rate = clock.rate;
    ck_assert_uint_eq(dlx__clock_learn(&clock, ticks_at(&counter, 1020 * MS), 1020 * MS,
                                       ticks_at(&counter, 1025 * MS)),
                      1020 * MS);
    ck_assert_uint_eq(clock.span, 0);
    ck_assert_uint_eq(clock.rate, rate);
    look_at(&clock, &counter, 1026 * MS, true);
    /* After a long pause the rate is measured again. */
    look_at(&clock, &counter, 9000 * MS, true);
    ck_assert_uint_eq(clock.rate, rate);
}

/* 1 ms between the counter and the clock would make the rate 10 % wrong. */
TEST(measuring_that_began_with_an_interrupted_look_begins_again)
{
    const struct counter counter = {3000, 0};
    struct dlx_clock clock = {0};
    uint64_t now = 1000 * MS;
    ck_assert_uint_eq(
        dlx__clock_learn(&clock, ticks_at(&counter, now - 2 * MS), now, ticks_at(&counter, now)),
        now);
    look_at(&clock, &counter, now + 10 * MS, false);
    now += 20 * MS;
    look_at(&clock, &counter, now, true);
    check_time(&clock, &counter, now + MS / 2);
}

/* Whether or not this machine's clock goes by the counter. */
TEST(the_clock_agrees_with_the_system_clock)
{
    struct dlx_clock clock = {0};
    uint64_t last = 0, start = dlx__now_ns();
    while (dlx__now_ns() - start < 50 * MS) {
        uint64_t before = dlx__now_ns(), told = dlx__clock_now(&clock), after = dlx__now_ns();
        ck_assert_uint_ge(told + 10000, before);
        ck_assert_uint_le(told, after + 10000);
        ck_assert_uint_ge(told, last);
        last = told;
    }
}

int main(void)
{
    return dlx_test_run_case(tcase_create("clock"));
}
