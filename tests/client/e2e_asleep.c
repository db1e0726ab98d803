/* SPDX-License-Identifier: Apache-2.0 */

/* A publisher that makes no call, and many who come, read, leave and die meanwhile. */

#include "tests/harness/fork.h"
#include "tests/harness/stream.h"

/* Returns the last one. */
static struct dlx_message *read_four(struct dlx_subscription *s)
{
    struct dlx_message *m = NULL;
    for (int64_t i = 1; i <= 4; i++) {
        dlx_message_unref(m);
        ok(dlx_take(s, PATIENCE, &m));
        dlx_test_stream_check(m, 100, i);
    }
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

/* What they hold, and who stays, among the many who come and go. */
enum { MANY = 1000, N_HELD = MANY / 50, N_STAY = MANY * 3 / 10 };

static bool is_attached(struct dlx_client *c, struct dlx_subscription **ret)
{
    auto_message *m = NULL;
    ok(dlx_subscribe(c, "test/a", NULL, ret));
    int r = dlx_take(*ret, PATIENCE, &m);
    return r == 0;
}

static const struct dlx_publisher_args shallow = {.size = sizeof shallow, .retain = 4, .depth = 8};

/* The publisher waits for nobody: what is behind its depth is dropped. */
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
        struct dlx_subscription *s = NULL;
        if (i % 20 == 1) { /* killed with what it holds */
            dlx_test_fork_kill(spawn_reader());
        } else if (i % 50 == 2) { /* holds one longer than its subscription is there */
            ok(dlx_subscribe(other, "test/a", NULL, &s));
            held[i / 50] = read_four(s);
            dlx_subscription_unref(s);
        } else {
            ck_assert_msg(is_attached(other, &s), "%d: %s", i, dlx_client_errmsg(NULL));
            if (i % 10 >= 3 && i % 10 <= 5 && n_stay < N_STAY)
                stay[n_stay++] = s;
            else
                dlx_subscription_unref(s);
        }
    }
    /* It wakes up. */
    dlx_test_stream_publish(p, 100, 5);
    struct dlx_publisher_stats stats = dlx_test_stream_stats(p);
    for (int i = 0; i < N_STAY; i++) {
        dlx_test_stream_expect_all(stay[i], 100, 2, 5);
        dlx_subscription_unref(stay[i]);
    }
    /* Nobody whom it does not know holds anything: it goes on, and what is held is as it was. */
    publish_many(p, 6);
    for (int i = 0; i < N_HELD; i++) {
        dlx_test_stream_check(held[i], 100, 4);
        dlx_message_unref(held[i]);
    }
    dlx_test_daemon_wait_n_fds(&dlx_test_stream_daemon, fds_asleep);
    publish_many(p, 1000);
    ok(dlx_publisher_get_stats(p, &stats));
    ck_assert_uint_eq(stats.n_subscribers, 0);
    ck_assert_uint_eq(stats.full, 0);
    dlx_publisher_unref(p);
    ok(dlx_retained_drop(other, "test/a"));
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
        struct dlx_subscription *s = NULL;
        if (i % 40 == 7) {
            ok(dlx_subscribe(g->c, "test/a", NULL, &s));
            g->held[i / 40] = read_four(s);
            dlx_subscription_unref(s);
            continue;
        }
        ck_assert_msg(is_attached(g->c, &s), "%d: %s", i, dlx_client_errmsg(NULL));
        if (i % 40 == 8)
            g->stay[i / 40] = s;
        else
            dlx_subscription_unref(s);
    }
}

/* Those who stay have not taken these, or know that they missed them; what is held is as it was. */
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

/* Those that are left were told of by nobody: the publisher goes on where they hold nothing, and
 * they go on with it. */
LOOP_TEST(a_daemon_that_ends_leaves_all_who_are_there_to_a_publisher_that_sleeps, 0, 2)
{
    struct dlx_client *c = dlx_test_stream_connect();
    struct guests guests = {.c = dlx_test_stream_connect()};
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "test/a", &shallow);
    dlx_test_stream_publish_all(p, 100, 1, 4);
    come_and_go(&guests);
    if (_i == 0)
        dlx_test_daemon_kill(&dlx_test_stream_daemon);
    else
        ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
    /* That all bells hung up but those that the publisher has is not its end. */
    check_guests(&guests, 2, 4);
    for (int i = 0; i < N_LEFT; i++) {
        struct dlx_message *m = NULL;
        ck_assert_int_eq(dlx_take(guests.stay[i], SECOND / 50, &m), DLX_E_TIMEOUT);
    }
    /* Nothing can be freed, but there is room: the stream goes on, to all. */
    dlx_test_stream_publish(p, 100, 5);
    check_guests(&guests, 5, 5);
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    publish_many(p, 6);
    for (int i = 0; i < N_LEFT; i++) { /* what they hold, nobody has written to */
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
    struct dlx_publisher_stats stats = dlx_test_stream_stats(p);
    ck_assert_uint_eq(stats.full, 0);
    ck_assert_uint_eq(stats.n_subscribers, 0);
    dlx_publisher_unref(p);
    dlx_client_unref(c);
}

/* A reliable one that the publisher was not told of is not waited for: what it loses by that has a
 * number. */
TEST(what_a_reliable_subscriber_loses_with_its_daemon_is_counted)
{
    static const struct dlx_subscribe_args reliable = {
        .size = sizeof reliable, .history = 1, .reliable = true};
    enum { N_JOIN = 200, LAST = 60 };
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_subscription *s = NULL;
    auto_publisher *p = dlx_test_stream_publisher(
        c, "test/a", PUBLISHER(.on_full = DLX_ON_FULL_BLOCK, .depth = 16));
    dlx_test_stream_publish(p, 10, 1);
    for (int i = 0; i < N_JOIN; i++) {
        s = dlx_subscription_unref(s);
        ok(dlx_subscribe(other, "test/a", i < N_JOIN - 1 ? NULL : &reliable, &s));
    }
    struct dlx_message *m = dlx_test_stream_next(s);
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    /* The window can be filled; what is in it cannot be dropped. */
    int64_t n = 1;
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 10, 2);
    while (dlx_publish(p, t, NULL) == 0)
        t = dlx_test_stream_alloc(p, 10, ++n + 1);
    ck_assert_ptr_nonnull(strstr(dlx_client_errmsg(NULL), "dlpackd ended before it told of them"));
    ck_assert_int_eq(n, 16);
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    uint64_t seq = 1;
    while (seq < LAST) {
        struct dlx_message *next = NULL;
        if (n < LAST && dlx_publish(p, t, NULL) == 0)
            t = ++n < LAST ? dlx_test_stream_alloc(p, 10, n + 1) : NULL;
        else if (dlx_take(s, SECOND / 100, &next) == 0) {
            ck_assert_uint_eq(dlx_message_seq(next), seq + dlx_message_gap(next) + 1);
            seq = dlx_message_seq(next);
            dlx_test_stream_check(next, 10, (int64_t)seq);
            dlx_message_unref(next);
        }
    }
    dlx_test_stream_check(m, 10, 1);
    dlx_message_unref(m);
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(s);
    ck_assert_uint_eq(stats.taken + stats.lost, LAST);
}

/* It wakes up for one message, and sleeps on. */
TEST(all_who_sleep_are_woken_for_a_single_message)
{
    enum { N_SLEEP = 500 };
    static struct dlx_subscription *s[N_SLEEP];
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    struct dlx_message *m = NULL;
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", NULL);
    for (int i = 0; i < N_SLEEP; i++) {
        ok(dlx_subscribe(other, "test/a", NULL, &s[i]));
        ck_assert_int_ge(dlx_subscription_fd(s[i]), 0);
        ck_assert_int_eq(dlx_take(s[i], 0, &m), DLX_E_EMPTY);
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
TEST(it_may_end_while_hundreds_wait)
{
    size_t fds_before = dlx_test_daemon_n_fds(&dlx_test_stream_daemon);
    struct dlx_client *c = dlx_test_stream_connect();
    struct guests guests = {.c = dlx_test_stream_connect()};
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "test/a", &shallow);
    dlx_test_stream_publish_all(p, 100, 1, 4);
    come_and_go(&guests);
    dlx_publisher_unref(p);
    check_guests(&guests, 2, 4);
    for (int i = 0; i < N_LEFT; i++) {
        struct dlx_message *m = NULL;
        ck_assert_int_eq(dlx_take(guests.stay[i], PATIENCE, &m), DLX_E_PUBLISHER_GONE);
    }
    ok(dlx_retained_drop(guests.c, "test/a"));
    guests_leave(&guests);
    dlx_client_unref(c);
    dlx_test_daemon_wait_n_fds(&dlx_test_stream_daemon, fds_before);
}

/* Publishes 1 to 4, tells, and goes on when it is told to. */
static pid_t spawn_publisher(int *ret_sock)
{
    int pair[2];
    char byte;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        struct dlx_client *c = dlx_test_stream_connect();
        struct dlx_publisher *p = dlx_test_stream_publisher(c, "test/a", &shallow);
        dlx_test_stream_publish_all(p, 100, 1, 4);
        ck_assert_int_eq(send(pair[1], "", 1, 0), 1);
        ck_assert_int_eq(recv(pair[1], &byte, 1, 0), 1);
        dlx_test_stream_publish(p, 100, 5);
        ck_assert_int_eq(send(pair[1], "", 1, 0), 1);
        ck_assert_int_eq(recv(pair[1], &byte, 1, 0), 1);
        publish_many(p, 6);
        ck_assert_uint_eq(dlx_test_stream_stats(p).full, 0);
        dlx_publisher_unref(p);
        dlx_client_unref(c);
        _exit(0);
    }
    close(pair[1]);
    ck_assert_int_eq(recv(pair[0], &byte, 1, 0), 1);
    *ret_sock = pair[0];
    return pid;
}

TEST(hundreds_come_and_go_while_the_publisher_is_stopped)
{
    size_t fds_before = dlx_test_daemon_n_fds(&dlx_test_stream_daemon);
    struct guests guests = {.c = dlx_test_stream_connect()};
    int sock, status;
    char byte;
    pid_t pid = spawn_publisher(&sock);
    ck_assert_int_eq(kill(pid, SIGSTOP), 0);
    ck_assert_int_eq(waitpid(pid, &status, WUNTRACED), pid);
    ck_assert(WIFSTOPPED(status));
    come_and_go(&guests);
    ck_assert_int_eq(kill(pid, SIGCONT), 0);
    ck_assert_int_eq(send(sock, "", 1, 0), 1);
    ck_assert_int_eq(recv(sock, &byte, 1, 0), 1);
    check_guests(&guests, 2, 5);
    ck_assert_int_eq(send(sock, "", 1, 0), 1);
    dlx_test_fork_join(pid);
    close(sock);
    struct dlx_client *c = dlx_test_stream_connect();
    ok(dlx_retained_drop(c, "test/a"));
    dlx_client_unref(c);
    guests_leave(&guests);
    dlx_test_daemon_wait_n_fds(&dlx_test_stream_daemon, fds_before);
}

/* The publisher wakes up at moments that have nothing to do with what happens to those who wait. */
TEST(it_may_wake_up_at_any_moment)
{
    enum { N_ROUNDS = 4 };
    struct dlx_client *c = dlx_test_stream_connect();
    int64_t value = 4;
    static struct dlx_publisher *p; /* of the children, too, which do not release it */
    p = dlx_test_stream_publisher(c, "test/a", &shallow);
    dlx_test_stream_publish_all(p, 100, 1, value);
    for (int round = 0; round < N_ROUNDS; round++) {
        int pair[2];
        char byte;
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        pid_t pid = dlx_test_fork();
        if (pid == 0) { /* 40 stay: each must get what comes after all have joined */
            struct dlx_subscription *stay[SOME / 10];
            struct dlx_client *other = dlx_test_stream_connect();
            for (int i = 0; i < SOME; i++) {
                struct dlx_subscription *s = NULL;
                ck_assert(is_attached(other, &s));
                if (i % 10 == 0)
                    stay[i / 10] = s;
                else
                    dlx_subscription_unref(s);
                ck_assert_int_eq(send(pair[1], i % 7 ? "-" : "w", 1, 0), 1);
            }
            ck_assert_int_eq(send(pair[1], "e", 1, 0), 1);
            for (int i = 0; i < SOME / 10; i++) {
                struct dlx_message *m = NULL;
                int64_t last = 0;
                do {
                    dlx_message_unref(m);
                    ok(dlx_take(stay[i], PATIENCE, &m));
                    last = *(const int64_t *)dlx_message_peek(m, 0)->data;
                } while (last != -1 - round);
                dlx_test_stream_check(m, 100, -1 - round);
                dlx_message_unref(m);
                dlx_subscription_unref(stay[i]);
            }
            dlx_client_unref(other);
            _exit(0);
        }
        close(pair[1]);
        /* Sleeps longer from round to round, and wakes while others go on joining. */
        for (int n = 0; recv(pair[0], &byte, 1, 0) == 1 && byte != 'e';)
            if (byte == 'w' && ++n % (8 << round) == 0)
                dlx_test_stream_publish(p, 100, ++value);
        dlx_test_stream_publish(p, 100, -1 - round);
        dlx_test_fork_join(pid);
        close(pair[0]);
    }
    publish_many(p, 1000);
    struct dlx_publisher_stats stats = dlx_test_stream_stats(p);
    ck_assert_uint_eq(stats.full, 0);
    ck_assert_uint_eq(stats.n_subscribers, 0);
    dlx_publisher_unref(p);
    dlx_client_unref(c);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_stream_case("asleep"));
}
