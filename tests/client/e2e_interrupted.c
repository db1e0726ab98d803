/* SPDX-License-Identifier: Apache-2.0 */

/* A signal handler runs while a call waits: the call says so, nothing is lost, and the next one goes on. */

#include "tests/harness/stream.h"
#include <signal.h>
#include <string.h>
#include <sys/time.h>

static void ignore(int signal)
{
    (void)signal;
}

/* Again and again, as the first may come before the call sleeps. 0: no more. */
static void interrupt_every(long us)
{
    const struct sigaction action = {.sa_handler = ignore}; /* without SA_RESTART */
    const struct itimerval every = {.it_interval = {.tv_usec = us}, .it_value = {.tv_usec = us}};
    ck_assert_int_eq(sigaction(SIGALRM, &action, NULL), 0);
    ck_assert_int_eq(setitimer(ITIMER_REAL, &every, NULL), 0);
}

START_TEST(a_take_that_waits)
{
    struct dlx_test_pair pair = dlx_test_pair_make(NULL, NULL);
    struct dlx_message *m = NULL;
    if (_i == 1)
        ck_assert_int_ge(dlx_subscription_fd(pair.s), 0);
    interrupt_every(20000);
    int r = dlx_take(pair.s, PATIENCE, &m);
    interrupt_every(0);
    fails(r, DLX_E_INTERRUPTED, "signal");
    dlx_test_stream_publish(pair.p, 10, 1);
    dlx_test_stream_take(pair.s, 1);
    dlx_test_pair_end(&pair);
}
END_TEST

START_TEST(a_publisher_that_waits_for_subscribers)
{
    struct dlx_test_pair pair = dlx_test_pair_make(NULL, NULL);
    interrupt_every(20000);
    int r = dlx_publisher_wait(pair.p, 2, PATIENCE);
    interrupt_every(0);
    fails(r, DLX_E_INTERRUPTED, "signal");
    ok(dlx_publisher_wait(pair.p, 1, PATIENCE));
    dlx_test_pair_end(&pair);
}
END_TEST

/* The tensor stays the caller's. */
START_TEST(a_publisher_that_waits_for_a_reliable_subscriber)
{
    const struct dlx_publisher_args pa = {
        .size = sizeof pa, .depth = 3, .on_full = DLX_ON_FULL_BLOCK};
    const struct dlx_subscribe_args sa = {.size = sizeof sa, .reliable = true};
    const struct dlx_publish_args wait = {.size = sizeof wait, .timeout_ns = PATIENCE};
    struct dlx_test_pair pair = dlx_test_pair_make(&pa, &sa);
    for (int64_t n = 1; n <= 3; n++)
        dlx_test_stream_publish(pair.p, 10, n);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(pair.p, 10, 4);
    interrupt_every(20000);
    int r = dlx_publish(pair.p, t, &wait);
    interrupt_every(0);
    fails(r, DLX_E_INTERRUPTED, "signal");
    for (int64_t n = 1; n <= 3; n++)
        dlx_test_stream_take(pair.s, n);
    ok(dlx_publish(pair.p, t, &wait));
    dlx_test_stream_take(pair.s, 4);
    dlx_test_pair_end(&pair);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("interrupted");
    TCase *tcase = dlx_test_stream_case("interrupted");
    tcase_add_loop_test(tcase, a_take_that_waits, 0, 2);
    tcase_add_test(tcase, a_publisher_that_waits_for_subscribers);
    tcase_add_test(tcase, a_publisher_that_waits_for_a_reliable_subscriber);
    suite_add_tcase(suite, tcase);
    return dlx_test_run(suite);
}
