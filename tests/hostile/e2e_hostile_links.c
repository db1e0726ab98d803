/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Subscriptions that are closed, and hold messages: their publisher keeps its part of each. A
 * client that does so a thousand times meets a limit; one that gives the messages back later is
 * charged for nothing any more.
 */

#include "client/message/subscriber_link.h"
#include "client/subscribe/subscription.h"
#include "tests/harness/fork.h"
#include "tests/harness/stream.h"
#include <sys/prctl.h>
#include <sys/resource.h>

enum { ROUNDS = 2000, PUBLISHER_BEARS = 96, HOARDER_BEARS = 40 };

/* A process connects as one that can bear so many links. */
static void bear(unsigned n)
{
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 64 + 2 * (rlim_t)n;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static struct dlx_publisher *shallow_publisher(struct dlx_client *c)
{
    return dlx_test_stream_publisher(c, "test/a", PUBLISHER(.depth = 4));
}

static const struct dlx_subscribe_args newest = {.size = sizeof newest, .history = 1};

/* 0: attached, and something was read. */
static int join(struct dlx_client *c, struct dlx_subscription **ret)
{
    struct dlx_message *m = NULL;
    int r = dlx_subscribe(c, "test/a", &newest, ret);
    if (r == 0)
        r = dlx_take(*ret, PATIENCE, &m);
    dlx_message_unref(m);
    return r;
}

struct outcome {
    int attached, refused;
    char why[256];
};

/* Subscribes, says that it holds a message, and closes; over and over. Then it stays. */
static void hoard(unsigned bears, int tell)
{
    struct outcome outcome = {.attached = 0};
    bear(bears);
    struct dlx_client *c = dlx_test_stream_connect();
    for (int i = 0; i < ROUNDS; i++) {
        struct dlx_subscription *s = NULL;
        int r = join(c, &s);
        if (r == 0) {
            dlx_store64_sc(&s->links[0]->page->hold[0], 1);
            outcome.attached++;
        } else {
            ck_assert_msg(r == DLX_E_LIMIT, "%d: %s", r, dlx_errmsg());
            (void)snprintf(outcome.why, sizeof outcome.why, "%s", dlx_errmsg());
            outcome.refused++;
        }
        dlx_subscription_unref(s);
    }
    ck_assert_int_eq(write(tell, &outcome, sizeof outcome), sizeof outcome);
    for (;;)
        pause();
}

/* Everything that is published arrives. */
static void stream(struct dlx_publisher *p, struct dlx_subscription *s, int64_t *value, int n)
{
    while (n-- > 0) {
        dlx_test_stream_publish(p, 10, ++*value);
        struct dlx_message *m = dlx_test_stream_next(s);
        dlx_test_stream_check(m, 10, *value);
        ck_assert_uint_eq(dlx_message_gap(m), 0);
        dlx_message_unref(m);
    }
}

enum { LOW_LIMIT, NO_LIMIT, N_HOARDERS };

LOOP_TEST(closed_subscriptions_that_hold_messages_meet_a_limit, 0, N_HOARDERS)
{
    if (dlx_test_valgrind()) {
        puts("SKIP: valgrind keeps RLIMIT_NOFILE to itself");
        return;
    }
    struct outcome outcome = {.attached = 0};
    int64_t value = 0;
    int fds[2];
    ck_assert_int_eq(pipe(fds), 0);
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    bear(PUBLISHER_BEARS);
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_publisher *p = shallow_publisher(c);
    auto_subscription *s = dlx_test_stream_subscribe(other, "test/a", NULL), *newcomer = NULL;
    stream(p, s, &value, 20);
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
        hoard(_i == LOW_LIMIT ? HOARDER_BEARS : PUBLISHER_BEARS * 2, fds[1]);
    }
    close(fds[1]);
    struct pollfd done = {.fd = fds[0], .events = POLLIN};
    while (poll(&done, 1, 1) == 0)
        stream(p, s, &value, 10);
    ck_assert_int_eq(read(fds[0], &outcome, sizeof outcome), sizeof outcome);
    close(fds[0]);
    ck_assert_int_eq(outcome.attached, _i == LOW_LIMIT ? HOARDER_BEARS : PUBLISHER_BEARS - 1);
    ck_assert_int_eq(outcome.attached + outcome.refused, ROUNDS);
    char expected[64];
    (void)snprintf(expected, sizeof expected, "%d closed subscriptions still hold messages",
                   outcome.attached);
    ck_assert_msg(strstr(outcome.why, expected), "%s", outcome.why);
    stream(p, s, &value, 300);
    if (_i == NO_LIMIT) {
        ck_assert_int_eq(join(other, &newcomer), DLX_E_LIMIT);
        newcomer = dlx_subscription_unref(newcomer);
        dlx_test_fork_kill(pid);
    }
    uint64_t deadline = dlx__deadline(PATIENCE);
    int r;
    while ((r = join(other, &newcomer)) == DLX_E_LIMIT) /* who looked just now does not again */
        ck_assert(dlx__now_ns() < deadline);
    ok(r);
    stream(p, s, &value, 1);
    dlx_test_stream_expect(newcomer, 10, value);
    if (_i == LOW_LIMIT)
        dlx_test_fork_kill(pid);
}

TEST(messages_given_back_after_their_subscriptions_are_charged_no_more)
{
    enum { N = 20 };
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_publisher *p = shallow_publisher(c);
    struct dlx_message *held[N];
    dlx_test_stream_publish(p, 10, 1);
    struct dlx_daemon_info before = dlx_test_stream_daemon_info(c);
    ck_assert_uint_eq(before.n_links, 0);
    for (int i = 0; i < N; i++) {
        auto_subscription *s = dlx_test_stream_subscribe(other, "test/a", &newest);
        held[i] = dlx_test_stream_next(s);
    }
    ck_assert_uint_eq(dlx_test_stream_daemon_info(c).n_links, N);
    ck_assert_uint_gt(dlx_test_stream_daemon_info(c).shared_bytes, before.shared_bytes);
    for (int i = 0; i < N; i++)
        dlx_test_stream_check(held[i], 10, 1);
    dlx_test_stream_unref_messages(held, N);
    uint64_t deadline = dlx__deadline(PATIENCE);
    /* no peer has told, and the publisher does not look again so soon */
    while (dlx_test_stream_daemon_info(c).n_links > 0)
        ck_assert(dlx__now_ns() < deadline);
    ck_assert_uint_eq(dlx_test_stream_daemon_info(c).shared_bytes, before.shared_bytes);
}

/* Also when no client asks. */
TEST(messages_given_back_leave_no_descriptor_with_the_daemon)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = shallow_publisher(c);
    dlx_test_stream_publish(p, 10, 1);
    size_t n_fds = dlx_test_daemon_n_fds(&dlx_test_stream_daemon);
    struct dlx_subscription *s = dlx_test_stream_subscribe(c, "test/a", &newest);
    struct dlx_message *m = dlx_test_stream_next(s);
    dlx_subscription_unref(s);
    dlx_test_daemon_wait_n_fds(&dlx_test_stream_daemon, n_fds + 1); /* its page */
    dlx_message_unref(m);
    dlx_test_daemon_wait_n_fds(&dlx_test_stream_daemon, n_fds);
}

int main(void)
{
    TCase *tcase = dlx_test_stream_case("hostile_links");
    tcase_set_timeout(tcase, 60);
    return dlx_test_run_case(tcase);
}
