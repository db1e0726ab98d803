/* SPDX-License-Identifier: Apache-2.0 */

/* A publisher that waits sleeps, whatever its subscribers do: each poll() that may sleep is
 * counted. */

#include "client/message/subscriber_link.h"
#include "client/publish/publisher.h"
#include "client/publish/publisher_move.h"
#include "client/subscribe/subscription.h"
#include "tests/harness/fork.h"
#include "tests/harness/stream.h"
#include <sys/syscall.h>

/* A wait that does not sleep asks some thousand times in the time of these tests, one that sleeps
 * once in 20 ms. */
enum { WAIT_MS = 200, POLLS_MAX = 40 };

static int n_polls;

int poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
    struct timespec t = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
    n_polls += timeout_ms != 0;
    return (int)syscall(SYS_ppoll, fds, n, timeout_ms < 0 ? NULL : &t, NULL, 0);
}

static const int64_t wait_ns = WAIT_MS * INT64_C(1000000);

/* Until there is no room any more; then it has waited, and slept. */
static void publish_until_blocked(struct dlx_publisher *p)
{
    int r = 0;
    for (int64_t i = 1; r == 0; i++) {
        DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 10, i);
        n_polls = 0;
        r = dlx_publish(p, t, PUBLISH(.timeout_ns = wait_ns), NULL);
        if (r < 0)
            t->deleter(t);
    }
    ck_assert_int_eq(r, DLX_E_TIMEOUT);
    ck_assert_int_ge(n_polls, 1);
    ck_assert_int_le(n_polls, POLLS_MAX);
}

TEST(a_bell_that_says_nothing_more_does_not_keep_it_awake)
{
    auto_pair x = dlx_test_pair_make(PUBLISHER_BLOCKING(.depth = 4), SUBSCRIBE_RELIABLY);
    dlx_test_stream_publish(x.p, 10, 1);
    dlx_test_stream_take(x.s, 1);
    ck_assert_int_eq(shutdown(x.s->links[0]->bell, SHUT_WR), 0);
    publish_until_blocked(x.p);
    for (int i = 0; i < 4; i++) { /* it is a subscriber as before, but for its bell */
        auto_message *m = dlx_test_stream_next(x.s);
        ck_assert_uint_eq(dlx_message_gap(m), 0);
    }
}

TEST(a_subscriber_that_died_with_its_daemon_does_not_keep_it_awake)
{
    auto_pair x = dlx_test_pair_make(PUBLISHER_BLOCKING(.depth = 4), SUBSCRIBE_RELIABLY);
    pid_t pid = dlx_test_stream_subscribe_elsewhere(SUBSCRIBE_RELIABLY);
    ok(dlx_publisher_wait(x.p, 2, PATIENCE));
    dlx_test_stream_restart();
    eventually(
        (dlx__publisher_check(x.p, dlx__now_ns(), DLX_HURRY_NOW_AND_THEN, 0), x.p->epoch != 0));
    dlx_test_fork_kill(pid);
    publish_until_blocked(x.p); /* for the other one, who makes no call and so does not come */
    ck_assert_ptr_nonnull(strstr(dlx_errmsg(), "have yet to join the new dlpackd"));
}

TEST(a_wait_for_subscribers_sleeps_when_daemon_and_subscriber_died)
{
    auto_pair x = dlx_test_pair_make(PUBLISHER_BLOCKING(.depth = 4), SUBSCRIBE_RELIABLY);
    pid_t pid = dlx_test_stream_subscribe_elsewhere(SUBSCRIBE_RELIABLY);
    ok(dlx_publisher_wait(x.p, 2, PATIENCE));
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    dlx_test_fork_kill(pid);
    n_polls = 0;
    fails(dlx_publisher_wait(x.p, 3, wait_ns), DLX_E_TIMEOUT, "of 3 subscribers");
    ck_assert_int_ge(n_polls, 1);
    ck_assert_int_le(n_polls, POLLS_MAX);
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL); /* as the fixture left it */
}
