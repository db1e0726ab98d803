/* SPDX-License-Identifier: Apache-2.0 */

/* Work queues whose daemon is killed and replaced: what was not done goes on, also to workers that
 * only the next daemon knows, and nothing that was done is done again. */

#include "tests/harness/fork.h"
#include "tests/restart/harness_restart.h"

#define N      10
#define TOPIC  "test/a"
#define GROUPS .groups = (const char *const[]){"g"}, .n_groups = 1

static struct dlx_subscription *worker(struct dlx_client *c)
{
    return dlx_test_stream_subscribe(c, TOPIC, SUBSCRIBE(.group = "g"));
}

/* Takes a message, also through errors that the daemon is gone. */
static int take(struct dlx_subscription *s, int64_t timeout_ns, struct dlx_message **ret)
{
    int r = dlx_take(s, timeout_ns, ret);
    for (int k = 0; k < 10 && r == DLX_E_DISCONNECTED; k++)
        r = dlx_take(s, timeout_ns, ret);
    return r;
}

static struct dlx_message *next(struct dlx_subscription *s)
{
    struct dlx_message *m = NULL;
    ok(take(s, PATIENCE, &m));
    dlx_test_stream_check(m, N, (int64_t)dlx_message_seq(m));
    return m;
}

static void check_nothing(struct dlx_subscription *s)
{
    struct dlx_message *m = NULL;
    int r = take(s, SECOND / 50, &m);
    ck_assert_msg(r == DLX_E_TIMEOUT || r == DLX_E_EMPTY, "%d %s", r, dlx_errmsg());
}

TEST(messages_without_a_worker_come_along_as_new)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    dlx_test_stream_publish_all(p, N, 1, 5);
    dlx_restart_with(p);
    auto_client *c2 = dlx_test_stream_connect();
    auto_subscription *s = worker(c2);
    dlx_test_stream_publish_all(p, N, 6, 7);
    uint64_t seen = 0;
    for (int i = 0; i < 7; i++) { /* in any order */
        auto_message *m = next(s);
        ck_assert_uint_eq(dlx_message_attempt(m), 1);
        ck_assert_uint_eq(seen & UINT64_C(1) << dlx_message_seq(m), 0);
        seen |= UINT64_C(1) << dlx_message_seq(m);
        ok(dlx_message_done(m));
    }
    ck_assert_uint_eq(seen, 0xfe);
    ok(dlx_publisher_drain(p, PATIENCE));
}

/* Odd: the group is declared. */
LOOP_TEST(workers_go_on_and_do_nothing_twice, 0, 2)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(
        c, TOPIC,
        _i ? PUBLISHER(GROUPS, .depth = 32) : PUBLISHER(.on_full = DLX_ON_FULL_BLOCK, .depth = 32));
    auto_subscription *s = worker(c), *other = worker(c);
    uint64_t seen = 0, n = 0;
    for (int round = 0; round < 4; round++) {
        dlx_test_stream_publish_all(p, N, (int64_t)n + 1, (int64_t)n + 8);
        n += 8;
        auto_message *held = next(s); /* while the daemon is killed */
        dlx_restart_with(p);
        for (int i = 0; i < 7; i++) {
            auto_message *m = next(other);
            ck_assert_uint_eq(dlx_message_attempt(m), 1);
            ck_assert_uint_eq(seen & UINT64_C(1) << dlx_message_seq(m), 0);
            seen |= UINT64_C(1) << dlx_message_seq(m);
            ok(dlx_message_done(m));
        }
        check_nothing(other);
        ck_assert_uint_eq(seen & UINT64_C(1) << dlx_message_seq(held), 0);
        seen |= UINT64_C(1) << dlx_message_seq(held);
        ok(dlx_message_done(held));
        check_nothing(s);
        if (!_i) /* it waits until they have come to the next daemon */
            eventually(({
                check_nothing(s);
                check_nothing(other);
                dlx_publisher_wait(p, 2, 0) == 0;
            }));
    }
    ck_assert_uint_eq(seen, (UINT64_C(1) << 33) - 2);
    if (_i)
        ok(dlx_publisher_drain(p, PATIENCE));
}

static void do_messages(struct dlx_subscription *s, uint64_t from, uint64_t to)
{
    for (uint64_t n = from; n <= to; n++) {
        auto_message *m = next(s);
        ck_assert_uint_eq(dlx_message_seq(m), n);
        ok(dlx_message_done(m));
    }
}

/* They find what it publishes meanwhile, as ordinary subscriptions do. */
TEST(a_publisher_that_drops_does_not_wait_for_its_workers_to_join_the_next_daemon)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, NULL);
    auto_subscription *s = worker(c);
    dlx_test_stream_publish_all(p, N, 1, 2);
    do_messages(s, 1, 2);
    dlx_restart_with(p);
    dlx_test_stream_publish_all(p, N, 3, 5);
    do_messages(s, 3, 5);
}

static void take_one_elsewhere(struct dlx_test_peer *parent)
{
    struct dlx_subscription *s = worker(dlx_test_stream_connect());
    dlx_test_peer_say(parent);
    (void)next(s);
    dlx_test_peer_say(parent);
    pause();
}

TEST(a_worker_of_the_next_daemon_takes_what_one_of_the_former_had_when_it_is_killed)
{
    struct dlx_test_peer peer = dlx_test_fork_peer();
    if (peer.pid == 0)
        take_one_elsewhere(&peer);
    dlx_test_peer_hear(&peer);
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    dlx_test_stream_publish_all(p, N, 1, 3);
    dlx_test_peer_hear(&peer);
    kill(peer.pid, SIGSTOP); /* it does not come to the next daemon */
    dlx_restart_with(p);
    auto_client *c2 = dlx_test_stream_connect();
    auto_subscription *s = worker(c2);
    check_nothing(s); /* the former worker lives, and may do them */
    fails(dlx_publisher_drain(p, 0), DLX_E_TIMEOUT, "group g has not done message 1");
    dlx_test_peer_kill(&peer);
    fails(dlx_publisher_drain(p, SECOND / 50), DLX_E_TIMEOUT, "message 1"); /* it looks */
    uint64_t seen = 0;
    for (int i = 0; i < 3; i++) {
        auto_message *m = next(s);
        ck_assert_uint_eq(dlx_message_attempt(m), 2);
        seen |= UINT64_C(1) << dlx_message_seq(m);
        ok(dlx_message_done(m));
    }
    ck_assert_uint_eq(seen, 0xe);
    ok(dlx_publisher_drain(p, PATIENCE));
}

TEST(workers_share_without_a_daemon)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    struct dlx_test_peer peer = dlx_test_fork_peer();
    if (peer.pid == 0)
        take_one_elsewhere(&peer);
    dlx_test_peer_hear(&peer);
    auto_subscription *s = worker(c);
    dlx_test_stream_publish(p, N, 1);
    auto_message *held = NULL, *mine = NULL;
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    dlx_test_stream_publish(p, N, 2);
    (void)take(s, PATIENCE, &mine); /* 1 or 2; the peer has the other one */
    ok(dlx_message_done(mine));
    dlx_test_peer_hear(&peer);
    dlx_test_peer_kill(&peer); /* nobody tells of that */
    uint64_t before = dlx__now_ns();
    held = next(s);
    ck_assert_uint_eq(dlx_message_attempt(held), 2);
    ck_assert_uint_lt(dlx__now_ns() - before, SECOND / 2);
    ok(dlx_message_done(held));
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
}

static void come_late(struct dlx_test_peer *parent)
{
    struct dlx_subscription *s = worker(dlx_test_stream_connect());
    struct dlx_message *m = NULL;
    dlx_test_peer_say(parent);
    dlx_test_peer_hear(parent);
    ck_assert_int_eq(take(s, PATIENCE, &m), 0);
    ck_assert_uint_eq(dlx_message_attempt(m), 2);
    ok(dlx_message_done(m));
    dlx_test_peer_say(parent);
}

/* A worker of a group that nobody declared sleeps while another one has come, worked and gone at
 * the next daemon. */
TEST(a_worker_that_comes_late_to_the_next_daemon_tells_what_others_may_have_done)
{
    struct dlx_test_peer peer = dlx_test_fork_peer();
    if (peer.pid == 0) {
        come_late(&peer);
        _exit(0);
    }
    dlx_test_peer_hear(&peer);
    dlx_test_stream_restart();
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(
        c, TOPIC, PUBLISHER(.groups = (const char *const[]){"kept"}, .n_groups = 1));
    auto_subscription *s = worker(c);
    dlx_test_stream_publish(p, N, 1);
    auto_message *m = next(s);
    ck_assert_uint_eq(dlx_message_attempt(m), 1);
    ok(dlx_message_done(m));
    m = dlx_message_unref(m);
    s = dlx_subscription_unref(s);
    dlx_test_peer_say(&peer);
    dlx_test_peer_hear(&peer);
    dlx_test_peer_join(&peer);
}

/* Takes and does what there is. */
static void do_all(struct dlx_subscription *s, uint64_t *seen)
{
    struct dlx_message *m = NULL;
    while (dlx_take(s, 0, &m) == 0) {
        *seen |= UINT64_C(1) << dlx_message_seq(m);
        ok(dlx_message_done(m));
        dlx_message_unref(m);
    }
}

/* The daemon has told the worker of as many links as it does before the worker makes a call, and
 * ends then: the worker has not heard of the memory of the last message. */
TEST(a_message_in_memory_that_the_worker_was_not_told_of_is_not_lost)
{
    enum { N_OTHERS = 20, LARGE = 100000 };
    struct dlx_publisher *others[N_OTHERS];
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    auto_subscription *s = dlx_test_stream_subscribe(other, "test/*", SUBSCRIBE(.group = "g"));
    uint64_t seen = 0;
    dlx_test_stream_publish(p, N, 1);
    do_all(s, &seen);
    ck_assert_uint_eq(seen, 1 << 1);
    for (int i = 0; i < N_OTHERS; i++)
        others[i] = dlx_test_stream_publisher(c, "test/b", NULL);
    dlx_test_stream_publish(p, LARGE, 2);
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    do_all(s, &seen);
    ck_assert_uint_eq(seen, 1 << 1);
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    dlx_restart_announce(p);
    for (uint64_t until = dlx__deadline(PATIENCE); dlx_publisher_drain(p, SECOND / 100) < 0;) {
        ck_assert_msg(dlx__now_ns() < until, "%s", dlx_errmsg());
        do_all(s, &seen);
    }
    ck_assert_uint_eq(seen, 1 << 1 | 1 << 2);
    ck_assert_uint_eq(dlx_test_stream_subscription_stats(s).dead, 0);
    for (int i = 0; i < N_OTHERS; i++)
        dlx_publisher_unref(others[i]);
}
