/* SPDX-License-Identifier: Apache-2.0 */

/* A publisher that makes no call, and many who come, read, leave and die meanwhile. */

#include "tests/harness/fork.h"
#include "tests/harness/stream.h"

/* Returns the last one. */
static struct dlx_message *read_four(struct dlx_subscription *s)
{
    dlx_test_stream_expect_all(s, 100, 1, 3);
    struct dlx_message *m = dlx_test_stream_next(s);
    dlx_test_stream_check(m, 100, 4);
    return m;
}

/* Joins, reads, tells, and stays until it is killed. */
static pid_t spawn_reader(void)
{
    struct dlx_test_child child = dlx_test_fork_child();
    if (child.pid == 0) {
        (void)read_four(dlx_test_stream_subscribe(dlx_test_stream_connect(), "test/a", NULL));
        dlx_test_fork_ready(&child); /* killed with one that it holds */
    }
    return dlx_test_fork_wait_ready(&child);
}

/* The messages that subscribers hold, and the subscribers that stay, among the many that come and
 * go. */
enum { MANY = 1000, N_HELD = MANY / 50, N_STAY = MANY * 3 / 10 };

/* Subscribes, and takes a message. */
static struct dlx_subscription *attach(struct dlx_client *c)
{
    struct dlx_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    dlx_message_unref(dlx_test_stream_next(s));
    return s;
}

/* The same, and holds a message for longer than its subscription is there. */
static struct dlx_message *read_and_leave(struct dlx_client *c)
{
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    struct dlx_message *m = read_four(s);
    return m;
}

static const struct dlx_publisher_args shallow = {.size = sizeof shallow, .retain = 4, .depth = 8};

/* There was always room, and no subscriber is there any more. */
static void check_nobody(struct dlx_publisher *p)
{
    struct dlx_publisher_stats stats = dlx_test_stream_stats(p);
    ck_assert_uint_eq(stats.refused, 0);
    ck_assert_uint_eq(stats.n_subscribers, 0);
}

/* The publisher waits for no subscriber: messages behind its depth are dropped. */
static void publish_many(struct dlx_publisher *p, int64_t first)
{
    for (int64_t i = first; i < first + 300; i++)
        dlx_test_stream_publish(p, 100, i);
}

TEST(a_thousand_come_and_go_while_the_publisher_sleeps)
{
    size_t fds_before = dlx_test_daemon_n_fds(&dlx_test_stream_daemon);
    struct dlx_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    struct dlx_subscription *stay[N_STAY];
    struct dlx_message *held[N_HELD];
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "test/a", &shallow);
    publish_many(p, -300);
    dlx_test_stream_publish_all(p, 100, 1, 4);
    size_t fds_asleep = dlx_test_daemon_n_fds(&dlx_test_stream_daemon);
    int n_stay = 0;
    /* From here on the publisher makes no call. */
    for (int i = 0; i < MANY; i++) {
        if (i % 20 == 1) /* killed with what it holds */
            dlx_test_fork_kill(spawn_reader());
        else if (i % 50 == 2)
            held[i / 50] = read_and_leave(other);
        else if (i % 10 >= 3 && i % 10 <= 5 && n_stay < N_STAY)
            stay[n_stay++] = attach(other);
        else
            dlx_subscription_unref(attach(other));
    }
    /* The subscriber wakes up. */
    dlx_test_stream_publish(p, 100, 5);
    for (int i = 0; i < N_STAY; i++) {
        dlx_test_stream_expect_all(stay[i], 100, 2, 5);
        dlx_subscription_unref(stay[i]);
    }
    /* The publisher knows each subscriber that holds a message: it goes on, and held messages stay
     * as they were. */
    publish_many(p, 6);
    for (int i = 0; i < N_HELD; i++) {
        dlx_test_stream_check(held[i], 100, 4);
        dlx_message_unref(held[i]);
    }
    dlx_test_daemon_wait_n_fds(&dlx_test_stream_daemon, fds_asleep);
    publish_many(p, 1000);
    check_nobody(p);
    dlx_publisher_unref(p);
    ok(dlx_drop_retained(other, "test/a"));
    struct dlx_daemon_info info = dlx_test_stream_daemon_info(other);
    ck_assert_uint_eq(info.shared_bytes, 0);
    ck_assert_uint_eq(info.n_links, 0);
    dlx_client_unref(c);
    dlx_client_unref(other);
    dlx_test_daemon_wait_n_fds(&dlx_test_stream_daemon, fds_before);
}

/* 400 come, of whom every 40th stays, and every 40th holds a message longer. */
enum { SOME = 400, N_LEFT = SOME / 40 };

struct guests {
    struct dlx_client *c;
    struct dlx_subscription *stay[N_LEFT];
    struct dlx_message *held[N_LEFT];
};

static void come_and_go(struct guests *g)
{
    for (int i = 0; i < SOME; i++) {
        if (i % 40 == 7)
            g->held[i / 40] = read_and_leave(g->c);
        else if (i % 40 == 8)
            g->stay[i / 40] = attach(g->c);
        else
            dlx_subscription_unref(attach(g->c));
    }
}

/* Subscribers that stay have not taken these messages, or know that they missed them; held ones are
 * as they were. */
static void check_guests(struct guests *g, int64_t first, int64_t last)
{
    for (int i = 0; i < N_LEFT; i++) {
        for (int64_t value = first; value <= last; value++) {
            auto_message *m = dlx_test_stream_next(g->stay[i]);
            dlx_test_stream_check(m, 100, value);
            ck_assert_uint_eq(dlx_message_gap(m), 0);
        }
        dlx_test_stream_check(g->held[i], 100, 4);
    }
}

static void guests_leave(struct guests *g)
{
    for (int i = 0; i < N_LEFT; i++) {
        dlx_subscription_unref(g->stay[i]);
        dlx_test_stream_check(g->held[i], 100, 4);
        dlx_message_unref(g->held[i]);
    }
    dlx_client_unref(g->c);
}

/* Subscribers that stay find no more messages. */
static void check_end(struct guests *g, int64_t timeout_ns, int code)
{
    for (int i = 0; i < N_LEFT; i++) {
        struct dlx_message *m = NULL;
        ck_assert_int_eq(dlx_take(g->stay[i], timeout_ns, &m), code);
    }
}

/* No daemon told of the subscribers that are left: the publisher goes on where they hold no
 * message, and they go on with it. */
LOOP_TEST(a_daemon_that_ends_leaves_all_who_are_there_to_a_publisher_that_sleeps, 0, 2)
{
    auto_client *c = dlx_test_stream_connect();
    struct guests guests = {.c = dlx_test_stream_connect()};
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", &shallow);
    dlx_test_stream_publish_all(p, 100, 1, 4);
    come_and_go(&guests);
    if (_i == 0)
        dlx_test_daemon_kill(&dlx_test_stream_daemon);
    else
        ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
    /* The publisher goes on although only its own ends of the bells are open. */
    check_guests(&guests, 2, 4);
    check_end(&guests, SECOND / 50, DLX_E_TIMEOUT);
    /* Nothing can be freed, but there is room: the stream goes on, to all. */
    dlx_test_stream_publish(p, 100, 5);
    check_guests(&guests, 5, 5);
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    publish_many(p, 6);
    for (int i = 0; i < N_LEFT; i++) { /* held messages were not overwritten */
        uint64_t seq = 5;
        dlx_test_stream_check(guests.held[i], 100, 4);
        while (seq < 305) {
            auto_message *m = dlx_test_stream_next(guests.stay[i]);
            ck_assert_uint_eq(dlx_message_seq(m), seq + dlx_message_gap(m) + 1);
            seq = dlx_message_seq(m);
            dlx_test_stream_check(m, 100, (int64_t)seq);
        }
    }
    guests_leave(&guests);
    publish_many(p, 1000);
    check_nobody(p);
}

/* A reliable one that the publisher was not told of is not waited for: what it loses by that has a
 * number. */
TEST(messages_that_a_reliable_subscriber_loses_with_its_daemon_are_counted)
{
    static const struct dlx_subscribe_args reliable = {
        .size = sizeof reliable, .history = 1, .reliable = true};
    enum { N_JOIN = 200, LAST = 60 };
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_subscription *s = NULL;
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", PUBLISHER_BLOCKING(.depth = 16));
    dlx_test_stream_publish(p, 10, 1);
    for (int i = 0; i < N_JOIN; i++) {
        s = dlx_subscription_unref(s);
        ok(dlx_subscribe(other, "test/a", i < N_JOIN - 1 ? NULL : &reliable, &s));
    }
    auto_message *m = dlx_test_stream_next(s);
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    /* The window can be filled; what is in it cannot be dropped. */
    int64_t n = 1;
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 10, 2);
    while (dlx_publish(p, t, NULL, NULL) == 0)
        t = dlx_test_stream_alloc(p, 10, ++n + 1);
    ck_assert_ptr_nonnull(strstr(dlx_errmsg(), "dlpackd ended before it told of them"));
    ck_assert_int_eq(n, 16);
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    uint64_t seq = 1;
    while (seq < LAST) {
        auto_message *next = NULL;
        if (n < LAST && dlx_publish(p, t, NULL, NULL) == 0)
            t = ++n < LAST ? dlx_test_stream_alloc(p, 10, n + 1) : NULL;
        else if (dlx_take(s, SECOND / 100, &next) == 0) {
            ck_assert_uint_eq(dlx_message_seq(next), seq + dlx_message_gap(next) + 1);
            seq = dlx_message_seq(next);
            dlx_test_stream_check(next, 10, (int64_t)seq);
        }
    }
    dlx_test_stream_check(m, 10, 1);
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(s);
    ck_assert_uint_eq(stats.taken + stats.lost, LAST);
}

/* Each subscriber wakes up for one message, and sleeps on. */
TEST(all_who_sleep_are_woken_for_a_single_message)
{
    enum { N_SLEEP = 500 };
    static struct dlx_subscription *s[N_SLEEP];
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    struct dlx_message *m = NULL;
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", NULL);
    for (int i = 0; i < N_SLEEP; i++) {
        s[i] = dlx_test_stream_subscribe(other, "test/a", NULL);
        ck_assert_int_ge(dlx_subscription_fd(s[i]), 0);
        take_fails(s[i], 0, DLX_E_EMPTY, "");
    }
    dlx_test_stream_publish(p, 10, 1);
    for (int i = 0; i < N_SLEEP; i++) {
        int r;
        do {
            dlx_test_wait_readable(dlx_subscription_fd(s[i]));
            r = dlx_take(s[i], 0, &m);
        } while (r == DLX_E_EMPTY);
        ok(r);
        dlx_test_stream_check(m, 10, 1);
        dlx_message_unref(m);
    }
    ok(dlx_publisher_wait(p, N_SLEEP, PATIENCE));
    dlx_test_stream_unref_subscriptions(s, N_SLEEP);
}

/* With all that it retains, and nothing of who waited. */
TEST(a_publisher_may_end_while_hundreds_wait)
{
    size_t fds_before = dlx_test_daemon_n_fds(&dlx_test_stream_daemon);
    struct dlx_client *c = dlx_test_stream_connect();
    struct guests guests = {.c = dlx_test_stream_connect()};
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "test/a", &shallow);
    dlx_test_stream_publish_all(p, 100, 1, 4);
    come_and_go(&guests);
    dlx_publisher_unref(p);
    check_guests(&guests, 2, 4);
    check_end(&guests, PATIENCE, DLX_E_PUBLISHER_GONE);
    ok(dlx_drop_retained(guests.c, "test/a"));
    guests_leave(&guests);
    dlx_client_unref(c);
    dlx_test_daemon_wait_n_fds(&dlx_test_stream_daemon, fds_before);
}

/* Publishes 1 to 4, tells, and goes on when it is told to. */
static struct dlx_test_peer spawn_publisher(void)
{
    struct dlx_test_peer peer = dlx_test_fork_peer();
    if (peer.pid == 0) {
        struct dlx_client *c = dlx_test_stream_connect();
        struct dlx_publisher *p = dlx_test_stream_publisher(c, "test/a", &shallow);
        dlx_test_stream_publish_all(p, 100, 1, 4);
        dlx_test_peer_say(&peer);
        dlx_test_peer_hear(&peer);
        dlx_test_stream_publish(p, 100, 5);
        dlx_test_peer_say(&peer);
        dlx_test_peer_hear(&peer);
        publish_many(p, 6);
        ck_assert_uint_eq(dlx_test_stream_stats(p).refused, 0);
        dlx_publisher_unref(p);
        dlx_client_unref(c);
        _exit(0);
    }
    dlx_test_peer_hear(&peer);
    return peer;
}

TEST(hundreds_come_and_go_while_the_publisher_is_stopped)
{
    size_t fds_before = dlx_test_daemon_n_fds(&dlx_test_stream_daemon);
    struct guests guests = {.c = dlx_test_stream_connect()};
    int status;
    struct dlx_test_peer peer = spawn_publisher();
    ck_assert_int_eq(kill(peer.pid, SIGSTOP), 0);
    ck_assert_int_eq(waitpid(peer.pid, &status, WUNTRACED), peer.pid);
    ck_assert(WIFSTOPPED(status));
    come_and_go(&guests);
    ck_assert_int_eq(kill(peer.pid, SIGCONT), 0);
    dlx_test_peer_say(&peer);
    dlx_test_peer_hear(&peer);
    check_guests(&guests, 2, 5);
    dlx_test_peer_say(&peer);
    dlx_test_peer_join(&peer);
    ok(dlx_drop_retained(guests.c, "test/a"));
    guests_leave(&guests);
    dlx_test_daemon_wait_n_fds(&dlx_test_stream_daemon, fds_before);
}

/* Many come, and say so by a letter each; each of the 40 who stay is to get what comes after all
 * have joined. */
static void come_and_expect(int sock, int64_t value)
{
    struct dlx_subscription *stay[SOME / 10];
    auto_client *c = dlx_test_stream_connect();
    for (int i = 0; i < SOME; i++) {
        struct dlx_subscription *s = attach(c);
        if (i % 10 == 0)
            stay[i / 10] = s;
        else
            dlx_subscription_unref(s);
        ck_assert_int_eq(send(sock, i % 7 ? "-" : "w", 1, 0), 1);
    }
    ck_assert_int_eq(send(sock, "e", 1, 0), 1);
    for (int i = 0; i < SOME / 10; i++) {
        int64_t last;
        do {
            auto_message *m = dlx_test_stream_next(stay[i]);
            last = *(const int64_t *)dlx_message_tensor_peek(m, 0)->data;
            dlx_test_stream_check(m, 100, last);
        } while (last != value);
    }
    dlx_test_stream_unref_subscriptions(stay, SOME / 10);
}

/* The publisher wakes up at moments that have nothing to do with what happens to those who wait. */
TEST(a_publisher_may_wake_up_at_any_moment)
{
    enum { N_ROUNDS = 4 };
    auto_client *c = dlx_test_stream_connect();
    int64_t value = 4;
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", &shallow);
    dlx_test_stream_publish_all(p, 100, 1, value);
    for (int round = 0; round < N_ROUNDS; round++) {
        char byte;
        struct dlx_test_peer peer = dlx_test_fork_peer();
        if (peer.pid == 0) {
            come_and_expect(peer.sock, -1 - round);
            _exit(0);
        }
        /* Sleeps longer from round to round, and wakes while others go on joining. */
        for (int n = 0; recv(peer.sock, &byte, 1, 0) == 1 && byte != 'e';)
            if (byte == 'w' && ++n % (8 << round) == 0)
                dlx_test_stream_publish(p, 100, ++value);
        dlx_test_stream_publish(p, 100, -1 - round);
        dlx_test_peer_join(&peer);
    }
    publish_many(p, 1000);
    check_nobody(p);
}
