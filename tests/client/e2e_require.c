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
                      const struct dlx_publish_args *args)
{
    uint32_t n = 0;
    struct dlx_item item = {.tensor = t};
    if (way == 0)
        return dlx_publish(p, t, args);
    return way == 1 ? dlx_publish_n(p, &t, 1, args, &n) : dlx_publish_set(p, &item, 1, NULL, args);
}

LOOP_TEST(a_message_for_nobody_is_not_published, 0, 3)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", &one);
    struct dlx_publish_report report = {.size = sizeof report};
    struct dlx_publish_args args = {.size = sizeof args, .report = &report};
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 10, 1);
    fails(publish_by(_i, p, t, &args), DLX_E_TIMEOUT,
          "min_subscribers is 1 (it did not wait: timeout_ns is 0): topic test/a has 0 of 1 "
          "subscribers");
    args.timeout_ns = SECOND / 100;
    fails(publish_by(_i, p, t, &args), DLX_E_TIMEOUT, "min_subscribers is 1: topic test/a has ");
    struct dlx_publisher_stats stats = dlx_test_stream_stats(p);
    ck_assert_uint_eq(stats.published, 0);
    ck_assert_uint_eq(stats.full, 2);
    ck_assert_uint_eq(stats.blocked, 1);
    struct dlx_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    args.timeout_ns = 0;
    ok(publish_by(_i, p, t, &args)); /* it stayed the caller's */
    ck_assert_uint_eq(report.n_subscribers, 1);
    dlx_test_stream_take(s, 1);
    dlx_subscription_unref(s);
    auto_tensor *next = dlx_test_stream_alloc(p, 10, 2);
    fails(publish_by(_i, p, next, &args), DLX_E_TIMEOUT, "0 of 1 subscribers");
}

TEST(who_has_left_and_holds_messages_is_no_subscriber)
{
    auto_pair x = dlx_test_pair_make(&one, NULL);
    auto_message *m = dlx_test_pair_pass(&x, 10, 1);
    x.s = dlx_subscription_unref(x.s);
    auto_tensor *t = dlx_test_stream_alloc(x.p, 10, 2);
    fails(dlx_publish(x.p, t, NULL), DLX_E_TIMEOUT, "0 of 1 subscribers");
    dlx_test_stream_check(m, 10, 1);
}

TEST(a_message_waits_for_the_first_subscriber)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", &one);
    struct dlx_test_peer child = spawn_subscriber(1);
    dlx_test_peer_say(&child);
    ok(dlx_publish(p, dlx_test_stream_alloc(p, 10, 1), &patiently));
    dlx_test_peer_join(&child);
}

/* It is noticed, and the next message waits for another one. */
TEST(a_subscriber_that_was_killed_is_none)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", &one);
    struct dlx_test_peer first = spawn_subscriber(UINT64_MAX), second = spawn_subscriber(3);
    dlx_test_peer_say(&first);
    ok(dlx_publish(p, dlx_test_stream_alloc(p, 10, 1), &patiently));
    dlx_test_peer_kill(&first);
    for (struct dlx_event event = {.size = sizeof event}; event.kind != DLX_EVENT_LOST;)
        (void)dlx_publisher_next_event(p, &event);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 10, 2);
    fails(dlx_publish(p, t, NULL), DLX_E_TIMEOUT, "0 of 1 subscribers");
    dlx_test_peer_say(&second);
    ok(dlx_publish(p, t, &patiently));
    ok(dlx_publish(p, dlx_test_stream_alloc(p, 10, 3), &patiently));
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
        struct dlx_publish_args args = patiently;
        args.report = &report;
        ok(dlx_publish(p, dlx_test_stream_alloc(p, n << 18, n), &args)); /* with new memory */
        if (n < 6)                                                       /* after that it leaves */
            ck_assert_uint_eq(report.n_subscribers, 1);
        if (n % 2 == 0 && n < 6)
            dlx_test_stream_restart();
    }
    dlx_test_peer_join(&child);
}
