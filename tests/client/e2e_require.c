/* SPDX-License-Identifier: Apache-2.0 */

/* min_subscribers of struct dlx_publisher_args: a message that would reach too few is not
 * published. */

#include "tests/harness/fork.h"
#include "tests/harness/stream.h"

static const struct dlx_publisher_args one = {.size = sizeof one, .min_subscribers = 1};
static const struct dlx_publish_args patiently = {.size = sizeof patiently, .timeout_ns = PATIENCE};

/* A process that subscribes when it is told to, and takes until it has the message of this
 * number. */
static struct dlx_test_peer spawn_subscriber(uint64_t last)
{
    struct dlx_test_peer peer = dlx_test_fork_peer();
    if (peer.pid == 0) {
        dlx_test_peer_hear(&peer);
        struct dlx_subscription *s =
            dlx_test_stream_subscribe(dlx_test_stream_connect(), "test/a", NULL);
        for (uint64_t seq = 0; seq < last;) {
            auto_message *m = dlx_test_stream_next(s);
            seq = dlx_message_seq(m);
        }
        _exit(0);
    }
    return peer;
}

static int publish_by(int way, struct dlx_publisher *p, DLManagedTensorVersioned *t,
                      const struct dlx_publish_args *args, struct dlx_publish_report *ret)
{
    uint32_t n = 0;
    struct dlx_item item = {.tensor = t};
    if (way == 0)
        return dlx_publish(p, t, args, ret);
    return way == 1 ? dlx_publish_n(p, &t, 1, args, ret, &n)
                    : dlx_publish_set(p, &item, 1, NULL, args, ret);
}

LOOP_TEST(a_message_for_nobody_is_not_published, 0, 3)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", &one);
    struct dlx_publish_report report = {.size = sizeof report};
    struct dlx_publish_args args = {.size = sizeof args};
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 10, 1);
    fails(publish_by(_i, p, t, &args, &report), DLX_E_TIMEOUT,
          "min_subscribers is 1 (it did not wait: timeout_ns is 0): topic test/a has 0 of 1 "
          "subscribers");
    args.timeout_ns = SECOND / 100;
    fails(publish_by(_i, p, t, &args, &report), DLX_E_TIMEOUT,
          "min_subscribers is 1: topic test/a has ");
    struct dlx_publisher_stats stats = dlx_test_stream_stats(p);
    ck_assert_uint_eq(stats.published, 0);
    ck_assert_uint_eq(stats.refused, 2);
    ck_assert_uint_eq(stats.blocked, 1);
    struct dlx_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    args.timeout_ns = 0;
    ok(publish_by(_i, p, t, &args, &report)); /* it stayed the caller's */
    ck_assert_uint_eq(report.n_subscribers, 1);
    dlx_test_stream_take(s, 1);
    dlx_subscription_unref(s);
    auto_tensor *next = dlx_test_stream_alloc(p, 10, 2);
    fails(publish_by(_i, p, next, &args, &report), DLX_E_TIMEOUT, "0 of 1 subscribers");
}

/* ---- whom a wait has seen -------------------------------------------------------------------- */

static void wait_in_vain(struct dlx_publisher *p, uint32_t n, const char *words)
{
    fails(dlx_publisher_wait(p, n, SECOND / 20), DLX_E_TIMEOUT, words);
}

/* The publisher waits (0), or publishes only for a subscriber (1). */
LOOP_TEST(a_wait_for_subscribers_says_that_nobody_subscribes, 0, 2)
{
    char words[400];
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", _i ? &one : NULL);
    (void)snprintf(words, sizeof words,
                   "topic test/a has 0 of 1 subscribers; nobody subscribes to it at %s",
                   dlx_test_stream_daemon.path);
    if (_i == 0) {
        wait_in_vain(p, 1, words);
        return;
    }
    auto_tensor *t = dlx_test_stream_alloc(p, 10, 1);
    fails(dlx_publish(p, t, PUBLISH(.timeout_ns = SECOND / 20), NULL), DLX_E_TIMEOUT, words);
}

/* Programs ask so often. */
TEST(a_wait_without_time_asks_no_daemon)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", NULL);
    fails(dlx_publisher_wait(p, 1, 0), DLX_E_TIMEOUT, "topic test/a has 0 of 1 subscribers");
    ck_assert_ptr_null(strchr(dlx_errmsg(), ';'));
}

/* The subscriber has been ready for two publishers, and is in no call since. */
TEST(a_wait_for_subscribers_names_who_must_make_a_call_first)
{
    char words[400];
    auto_client *c = dlx_test_stream_connect();
    pid_t pid = dlx_test_stream_subscribe_elsewhere(NULL);
    struct dlx_publisher *p[3];
    for (int i = 0; i < 3; i++)
        p[i] = dlx_test_stream_publisher(c, "test/a", NULL);
    for (int i = 0; i < 2; i++)
        ok(dlx_publisher_wait(p[i], 1, PATIENCE));
    (void)snprintf(words, sizeof words, "(pid %d) subscribed, and must make a call first", pid);
    wait_in_vain(p[2], 1, words);
    ck_assert_ptr_nonnull(strstr(dlx_errmsg(), "has 0 of 1 subscribers; "));
    ck_assert_ptr_nonnull(strstr(dlx_errmsg(), "subscribe for more publishers"));
    /* An attached subscriber does not hide it. */
    auto_subscription *s = dlx_test_stream_new_subscription("test/a", NULL);
    ok(dlx_publisher_wait(p[2], 1, PATIENCE));
    wait_in_vain(p[2], 2, words);
    dlx_test_fork_kill(pid);
    (void)snprintf(words, sizeof words, "(pid %d); nobody else subscribes to it", getpid());
    do /* until the daemon has seen the end */
        wait_in_vain(p[2], 2, "has 1 of 2 subscribers: ");
    while (!strstr(dlx_errmsg(), words));
    dlx_test_stream_unref_publishers(p, 3);
}

/* Of several subscriptions of one process, one name; of many processes, the first ones. */
TEST(a_wait_for_subscribers_names_few_of_many)
{
    enum { N = 5 };
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", NULL);
    struct dlx_subscription *s[N];
    pid_t pids[N];
    for (int i = 0; i < N; i++)
        s[i] = dlx_test_stream_new_subscription("test/a", NULL);
    wait_in_vain(p, 2 * N + 1, "has 5 of 11 subscribers: ");
    ck_assert_ptr_null(strstr(dlx_errmsg(), " more"));
    for (int i = 0; i < N; i++)
        pids[i] = dlx_test_stream_subscribe_elsewhere(NULL);
    ok(dlx_publisher_wait(p, 2 * N, PATIENCE));
    wait_in_vain(p, 2 * N + 1, "has 10 of 11 subscribers: ");
    ck_assert_ptr_nonnull(strstr(dlx_errmsg(), " and 3 more; nobody else subscribes"));
    for (int i = 0; i < N; i++)
        dlx_test_fork_kill(pids[i]);
    dlx_test_stream_unref_subscriptions(s, N);
}

/* The daemon stands still (0), or is not there (1): the wait is not much longer. */
LOOP_TEST(a_wait_for_subscribers_says_what_it_does_not_know, 0, 2)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", NULL);
    if (_i == 0)
        ck_assert_int_eq(kill(dlx_test_stream_daemon.pid, SIGSTOP), 0);
    else
        dlx_test_daemon_kill(&dlx_test_stream_daemon);
    uint64_t before = dlx__now_ns();
    wait_in_vain(p, 1, "has 0 of 1 subscribers; who else has subscribed is not known: ");
    ck_assert_uint_lt(dlx__now_ns() - before, (uint64_t)PATIENCE);
    if (_i == 0)
        ck_assert_int_eq(kill(dlx_test_stream_daemon.pid, SIGCONT), 0);
    else
        dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
}

TEST(a_subscriber_that_left_and_holds_messages_does_not_count)
{
    auto_pair x = dlx_test_pair_make(&one, NULL);
    auto_message *m = dlx_test_pair_pass(&x, 10, 1);
    x.s = dlx_subscription_unref(x.s);
    auto_tensor *t = dlx_test_stream_alloc(x.p, 10, 2);
    fails(dlx_publish(x.p, t, NULL, NULL), DLX_E_TIMEOUT, "0 of 1 subscribers");
    dlx_test_stream_check(m, 10, 1);
}

TEST(a_message_waits_for_the_first_subscriber)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", &one);
    struct dlx_test_peer child = spawn_subscriber(1);
    dlx_test_peer_say(&child);
    ok(dlx_publish(p, dlx_test_stream_alloc(p, 10, 1), &patiently, NULL));
    dlx_test_peer_join(&child);
}

/* The publisher notices the death, and the next message waits for another subscriber. */
TEST(a_subscriber_that_was_killed_is_none)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", &one);
    struct dlx_test_peer first = spawn_subscriber(UINT64_MAX), second = spawn_subscriber(3);
    dlx_test_peer_say(&first);
    ok(dlx_publish(p, dlx_test_stream_alloc(p, 10, 1), &patiently, NULL));
    dlx_test_peer_kill(&first);
    for (struct dlx_event event = {.size = sizeof event}; event.kind != DLX_EVENT_LOST;)
        (void)dlx_publisher_next_event(p, &event);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 10, 2);
    fails(dlx_publish(p, t, NULL, NULL), DLX_E_TIMEOUT, "0 of 1 subscribers");
    dlx_test_peer_say(&second);
    ok(dlx_publish(p, t, &patiently, NULL));
    ok(dlx_publish(p, dlx_test_stream_alloc(p, 10, 3), &patiently, NULL));
    dlx_test_peer_join(&second);
}

TEST(subscribers_are_waited_for_with_a_new_daemon)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", &one);
    struct dlx_test_peer child = spawn_subscriber(6);
    dlx_test_peer_say(&child);
    for (int64_t n = 1; n <= 6; n++) {
        struct dlx_publish_report report = {.size = sizeof report};
        ok(dlx_publish(p, dlx_test_stream_alloc(p, n << 18, n), &patiently,
                       &report)); /* with new memory */
        if (n < 6)                /* after that it leaves */
            ck_assert_uint_eq(report.n_subscribers, 1);
        if (n % 2 == 0 && n < 6)
            dlx_test_stream_restart();
    }
    dlx_test_peer_join(&child);
}
