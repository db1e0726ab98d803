/* SPDX-License-Identifier: Apache-2.0 */

/* min_subscribers of struct dlx_publisher_args: a message that would reach too few is not
 * published. */

#include "tests/harness/fork.h"
#include "tests/harness/stream.h"

static const struct dlx_publisher_args one = {.size = sizeof one, .min_subscribers = 1};

/* A process that subscribes when it is told to, and takes until it has the message of this
 * number. */
struct child {
    pid_t pid;
    int fd; /* a byte: go on */
};

static struct child spawn_subscriber(uint64_t last)
{
    struct child child;
    int fds[2];
    ck_assert_int_eq(pipe(fds), 0);
    child.pid = dlx_test_fork();
    ck_assert_int_ge(child.pid, 0);
    if (child.pid == 0) {
        struct dlx_message *m = NULL;
        char byte;
        close(fds[1]);
        ck_assert_int_eq(read(fds[0], &byte, 1), 1);
        struct dlx_client *c = dlx_test_stream_connect();
        struct dlx_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
        for (uint64_t seq = 0; seq < last; dlx_message_unref(m)) {
            ok(dlx_take(s, PATIENCE, &m));
            seq = dlx_message_seq(m);
        }
        _exit(0);
    }
    close(fds[0]);
    child.fd = fds[1];
    return child;
}

static void go_on(struct child *child)
{
    ck_assert_int_eq(write(child->fd, "", 1), 1);
    close(child->fd);
}

static void expect_success(struct child *child)
{
    dlx_test_fork_join(child->pid);
}

static struct dlx_publisher *new_publisher(struct dlx_client *c)
{
    return dlx_test_stream_publisher(c, "test/a", &one);
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
    auto_publisher *p = new_publisher(c);
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
    t = dlx_test_stream_alloc(p, 10, 2);
    fails(publish_by(_i, p, t, &args), DLX_E_TIMEOUT, "0 of 1 subscribers");
    t->deleter(t);
}

TEST(who_has_left_and_holds_messages_is_no_subscriber)
{
    auto_pair x = dlx_test_pair_make(&one, NULL);
    dlx_test_stream_publish(x.p, 10, 1);
    auto_message *m = dlx_test_stream_next(x.s);
    x.s = dlx_subscription_unref(x.s);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 10, 2);
    fails(dlx_publish(x.p, t, NULL), DLX_E_TIMEOUT, "0 of 1 subscribers");
    t->deleter(t);
    dlx_test_stream_check(m, 10, 1);
}

TEST(a_message_waits_for_the_first_subscriber)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = new_publisher(c);
    struct child child = spawn_subscriber(1);
    go_on(&child);
    ok(dlx_publish(p, dlx_test_stream_alloc(p, 10, 1), PUBLISH(.timeout_ns = PATIENCE)));
    expect_success(&child);
}

/* It is noticed, and the next message waits for another one. */
TEST(a_subscriber_that_was_killed_is_none)
{
    const struct dlx_publish_args wait = {.size = sizeof wait, .timeout_ns = PATIENCE};
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = new_publisher(c);
    struct child first = spawn_subscriber(UINT64_MAX), second = spawn_subscriber(3);
    go_on(&first);
    ok(dlx_publish(p, dlx_test_stream_alloc(p, 10, 1), &wait));
    dlx_test_fork_kill(first.pid);
    for (struct dlx_event event = {.size = sizeof event}; event.kind != DLX_EVENT_LOST;)
        (void)dlx_publisher_next_event(p, &event);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 10, 2);
    fails(dlx_publish(p, t, NULL), DLX_E_TIMEOUT, "0 of 1 subscribers");
    go_on(&second);
    ok(dlx_publish(p, t, &wait));
    ok(dlx_publish(p, dlx_test_stream_alloc(p, 10, 3), &wait));
    expect_success(&second);
}

TEST(subscribers_are_waited_for_with_a_new_daemon)
{
    const struct dlx_publish_args wait = {.size = sizeof wait, .timeout_ns = PATIENCE};
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = new_publisher(c);
    struct child child = spawn_subscriber(6);
    go_on(&child);
    for (int64_t n = 1; n <= 6; n++) {
        struct dlx_publish_report report = {.size = sizeof report};
        struct dlx_publish_args args = wait;
        args.report = &report;
        ok(dlx_publish(p, dlx_test_stream_alloc(p, n << 18, n), &args)); /* with new memory */
        if (n < 6)                                                       /* after that it leaves */
            ck_assert_uint_eq(report.n_subscribers, 1);
        if (n % 2 == 0 && n < 6)
            dlx_test_stream_restart();
    }
    expect_success(&child);
}
