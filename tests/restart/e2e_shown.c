/* SPDX-License-Identifier: Apache-2.0 */
/*
 * After a restart of the daemon, what a live publisher retains that makes no call: newcomers get it
 * at once, and hold it whatever the publisher does then. docs/decisions/0023.
 */

#include "client/publish/publisher.h"
#include "common/shm_name.h"
#include "tests/harness/fork.h"
#include "tests/harness/store.h"
#include <sys/syscall.h>

#define LARGE 100000 /* elements: a message has an arena of its own */

static struct dlx_client *c, *other; /* of the publisher, and of newcomers */
static struct dlx_publisher *p;

/* A publisher that has published 1 to n. */
static void publish_first(const struct dlx_publisher_args *args, int64_t size, int64_t n)
{
    ok(dlx_connect(CONNECT(.timeout_ns = 3 * SECOND), &c));
    p = dlx_test_store_publisher(c, "test/a", args);
    dlx_test_stream_publish_all(p, size, 1, n);
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "dlx-pid-", 1);
}

/* And that makes no call while the daemon is replaced. */
static void begin_with(const struct dlx_publisher_args *args, int64_t size, int64_t n)
{
    publish_first(args, size, n);
    dlx_test_store_restart();
    other = dlx_test_stream_connect();
}

static struct dlx_subscription *subscribe(const struct dlx_subscribe_args *args)
{
    return dlx_test_stream_subscribe(other, "test/a", args);
}

static void end(void)
{
    p = dlx_publisher_unref(p);
    c = dlx_client_unref(c);
    other = dlx_client_unref(other);
}

/* Until the daemon knows the publisher again, which has nothing to publish. */
static void wake_up(void)
{
    uint64_t until = dlx__deadline(PATIENCE);
    do {
        dlx_test_before(until);
        ok(dlx_publisher_wait(p, 0, 0));
    } while (dlx_test_stream_stats(p).n_subscribers == 0);
}

TEST(a_newcomer_gets_what_an_idle_publisher_retains)
{
    struct dlx_publisher_info info = {.retained = 1};
    begin_with(&dlx_test_retain_2, 100, 5);
    contains(dlx_test_stream_daemon.said, "what 1 publishers retain; nobody sees what 0 ");
    for (int i = 0; i < 2; i++)
        dlx_test_store_check_there("test/a", 4, 5);
    ck_assert_uint_eq(dlx_test_stream_list(c, &info), 1);
    ck_assert_int_eq(info.retained, 0); /* it is there */
    /* Then the publisher publishes, and no subscriber that was there misses anything, or gets it
     * twice. */
    auto_subscription *s = subscribe(NULL);
    dlx_test_store_take(s, 4, 4);
    dlx_test_stream_publish_all(p, 100, 6, 10);
    dlx_test_store_take(s, 5, 10);
    ck_assert_int_eq(dlx_test_store_n_publishers(), 1);
}

LOOP_TEST(a_newcomer_goes_over_to_a_publisher_that_wakes_up, 0, 2)
{
    struct dlx_message *m = NULL;
    begin_with(&dlx_test_retain_2, 100, 5);
    auto_subscription *s = subscribe(NULL);
    dlx_test_store_take(s, 4, _i == 0 ? 3 : 5); /* before, or after, it has taken them */
    wake_up();
    if (_i == 0)
        dlx_test_store_take(s, 4, 5);
    ck_assert_int_eq(dlx_take(s, 0, &m), DLX_E_EMPTY);
    dlx_test_stream_publish(p, 100, 6);
    dlx_test_store_take(s, 6, 6);
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(s);
    ck_assert_uint_eq(stats.lost, 0);
    ck_assert_uint_eq(stats.taken, 3);
}

/* The publisher has memory for three messages. */
TEST(a_message_that_a_newcomer_holds_stays_as_it_is_while_the_publisher_goes_on)
{
    begin_with(&dlx_test_retain_1, LARGE, 5);
    auto_subscription *s = subscribe(NULL);
    auto_message *held = dlx_test_stream_next(s);
    for (int64_t i = 6; i <= 60; i++) {
        dlx_test_stream_publish(p, LARGE, i);
        dlx_test_stream_check(held, LARGE, 5);
    }
}

/* Returns as dlx_alloc(). */
static int publish_large(int64_t value)
{
    DLManagedTensorVersioned *t = NULL;
    const struct dlx_tensor_spec spec = INT64_SPEC((const int64_t[]){LARGE});
    int r = dlx_alloc(p, &spec, &t);
    if (r < 0)
        return r;
    for (int i = 0; i < LARGE; i++)
        ((int64_t *)t->dl_tensor.data)[i] = value;
    ok(dlx_publish(p, t, NULL, NULL));
    return 0;
}

/* The daemon that has shown it has ended, too. The publisher's memory is soon used up; it goes on
 * when the newcomer, of which it was never told, has let go; or (odd) when a daemon comes. */
LOOP_TEST(without_a_daemon_a_publisher_waits_for_a_newcomer_that_it_does_not_know, 0, 2)
{
    begin_with(&dlx_test_retain_1, LARGE, 5);
    auto_subscription *s = subscribe(NULL);
    auto_message *held = dlx_test_stream_next(s);
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    int64_t n = 6;
    int r;
    for (; (r = publish_large(n)) == 0; n++) {
        ck_assert_int_lt(n, 60);
        dlx_test_stream_check(held, LARGE, 5);
    }
    ck_assert_int_eq(r, DLX_E_DISCONNECTED);
    if (_i == 0) {
        held = dlx_message_unref(held);
        s = dlx_subscription_unref(s);
    } else {
        dlx_test_store_run_again();
    }
    for (int64_t last = n + 50; n < last; n++) {
        r = publish_large(n);
        for (uint64_t until = dlx__deadline(PATIENCE); _i && r == DLX_E_DISCONNECTED;
             dlx_test_before(until))
            r = publish_large(n);
        ok(r);
        if (held)
            dlx_test_stream_check(held, LARGE, 5);
    }
    if (_i == 0)
        dlx_test_store_run_again();
}

/* An earlier subscriber has a link that the publisher knows, so the stream goes on without a
 * daemon. */
TEST(a_subscription_that_was_there_keeps_its_link)
{
    struct dlx_message *m = NULL;
    c = dlx_test_stream_connect();
    other = dlx_test_stream_connect();
    p = dlx_test_store_publisher(c, "test/a", &dlx_test_retain_1);
    auto_subscription *s = subscribe(NULL);
    dlx_test_stream_publish(p, LARGE, 1);
    auto_message *held = dlx_test_stream_next(s);
    for (int64_t i = 2; i <= 5; i++) { /* until it has memory for as many as it needs */
        dlx_test_stream_publish(p, LARGE, i);
        dlx_test_stream_expect(s, LARGE, i);
    }
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "dlx-pid-", 1);
    dlx_test_store_restart();
    uint64_t until = dlx__deadline(PATIENCE);
    struct dlx_client *looks = dlx_test_stream_connect();
    do { /* it has come back */
        dlx_test_before(until);
        ck_assert_int_eq(dlx_take(s, SECOND / 1000, &m), DLX_E_TIMEOUT);
    } while (dlx_test_stream_daemon_info(looks).n_clients < 2);
    for (int i = 0; i < 50; i++)
        ck_assert_int_eq(dlx_take(s, SECOND / 1000, &m), DLX_E_TIMEOUT);
    dlx_client_unref(looks);
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    for (int64_t i = 6; i <= 50; i++) {
        dlx_test_stream_publish(p, LARGE, i);
        dlx_test_stream_expect(s, LARGE, i);
        dlx_test_stream_check(held, LARGE, 1);
    }
    dlx_test_store_run_again();
}

TEST(a_newcomer_of_a_daemon_that_ends_too_misses_nothing)
{
    begin_with(&dlx_test_retain_2, 100, 5);
    auto_subscription *s = subscribe(NULL), *slow = subscribe(NULL);
    dlx_test_store_take(s, 4, 5);
    for (int i = 0; i < 2; i++) {
        dlx_test_store_restart();
        dlx_test_store_check_there("test/a", 4, 5);
    }
    dlx_test_store_take(slow, 4, 4);
    dlx_test_stream_publish_all(p, 100, 6, 10);
    dlx_test_store_take(s, 6, 10);
    dlx_test_store_take(slow, 5, 10);
}

/* In a child: it publishes 1 to 5, and one more whenever it hears that it should. */
static void publish_on(int sock, const void *args)
{
    struct dlx_publisher *mine =
        dlx_test_store_publisher(dlx_test_stream_connect(), "test/a", args);
    dlx_test_stream_publish_all(mine, 100, 1, 5);
    dlx_test_say(sock);
    for (int64_t n = 6;; n++) {
        dlx_test_hear(sock);
        dlx_test_stream_publish(mine, 100, n);
        dlx_test_say(sock);
    }
}

static void let_publish(const struct dlx_test_part *child)
{
    dlx_test_say(child->sock);
    dlx_test_hear(child->sock);
}

/* The child makes no call while the daemon is replaced. */
static struct dlx_test_part begin_with_child(const struct dlx_publisher_args *args)
{
    struct dlx_test_part child = dlx_test_part_begin(publish_on, args);
    dlx_test_hear(child.sock);
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "dlx-pid-", 1);
    dlx_test_store_restart();
    other = dlx_test_stream_connect();
    return child;
}

LOOP_TEST(a_publisher_that_dies_unheard_leaves_its_messages, 0, 2)
{
    struct dlx_message *m = NULL;
    struct dlx_test_part child = begin_with_child(&dlx_test_retain_2);
    auto_subscription *s = subscribe(NULL);
    auto_message *held = dlx_test_stream_next(s);
    dlx_test_store_take(s, 5, 5);
    if (_i > 0) /* s has its link by a daemon that has ended, too */
        dlx_test_store_restart();
    ck_assert_int_eq(dlx_take(s, 0, &m), DLX_E_EMPTY);
    dlx_test_part_kill(&child);
    int r;
    do
        r = dlx_take(s, PATIENCE, &m);
    while (r == DLX_E_DISCONNECTED);
    ck_assert_int_eq(r, DLX_E_PUBLISHER_GONE);
    /* The end is told once, and no message comes twice. */
    ck_assert_int_eq(dlx_take(s, SECOND / 20, &m), DLX_E_TIMEOUT);
    dlx_test_store_check_there("test/a", 4, 5);
    dlx_test_store_restart();
    dlx_test_store_check_there("test/a", 4, 5);
    dlx_test_stream_check(held, 100, 4);
}

/* Newcomers come while the publisher does. */
TEST(a_publisher_that_wakes_up_while_a_newcomer_joins_loses_it_nothing)
{
    struct dlx_test_part child = begin_with_child(&dlx_test_retain_2);
    int64_t n = 5;
    for (int round = 0; round < 20; round++) {
        struct dlx_subscription *s[3];
        for (int i = 0; i < 3; i++) {
            if (i == round % 3)
                dlx_test_say(child.sock);
            s[i] = subscribe(NULL);
        }
        dlx_test_hear(child.sock);
        let_publish(&child);
        n += 2;
        for (int i = 0; i < 3; i++) {
            for (int64_t last = 0, seq; last < n; last = seq) {
                auto_message *m = dlx_test_stream_next(s[i]);
                seq = (int64_t)dlx_message_seq(m);
                dlx_test_stream_check(m, 100, seq);
                ck_assert_int_eq(seq, last == 0 ? DLX_MAX(seq, n - 3) : last + 1);
            }
            dlx_subscription_unref(s[i]);
        }
        dlx_client_unref(other);
        dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "dlx-pid-", 1);
        dlx_test_store_restart();
        other = dlx_test_stream_connect();
    }
    dlx_test_part_kill(&child);
}

/* The publisher would not wait for it: it gets the one that has announced itself, or what that has
 * left. */
LOOP_TEST(a_reliable_newcomer_waits_for_the_publisher_itself, 0, 2)
{
    struct dlx_message *m = NULL;
    struct dlx_test_part child = begin_with_child(PUBLISHER_BLOCKING(.retain = 2));
    auto_subscription *s = subscribe(SUBSCRIBE_RELIABLY), *any = subscribe(NULL);
    dlx_test_store_take(any, 4, 5);
    ck_assert_int_eq(dlx_take(s, 0, &m), DLX_E_EMPTY);
    if (_i == 0) {
        let_publish(&child); /* 6 */
        dlx_test_store_take(s, 5, 6);
        dlx_test_store_take(any, 6, 6);
        dlx_test_part_kill(&child);
    } else {
        dlx_test_part_kill(&child);
        dlx_test_store_take(s, 4, 5);
    }
    ck_assert_int_eq(dlx_take(s, PATIENCE, &m), DLX_E_PUBLISHER_GONE);
    ck_assert_int_eq(dlx_take(any, PATIENCE, &m), DLX_E_PUBLISHER_GONE);
}

/* The publisher goes on in its old block, and no process that could ring the newcomer knows of
 * both. */
TEST(a_newcomer_that_sleeps_hears_of_a_publisher_that_cannot_come)
{
    struct dlx_message *m = NULL;
    begin_with(&dlx_test_retain_2, 100, 5);
    auto_subscription *s = subscribe(NULL);
    int fd = dlx_subscription_fd(s);
    dlx_test_store_take(s, 4, 5);
    ck_assert_int_eq(dlx_take(s, 0, &m), DLX_E_EMPTY);
    c->next_try_ns = UINT64_MAX; /* it does not look for a daemon */
    dlx_test_stream_publish(p, 100, 6);
    int r;
    do {
        dlx_test_wait_readable(fd);
        r = dlx_take(s, 0, &m);
    } while (r == DLX_E_EMPTY);
    ok(r);
    dlx_test_stream_check(m, 100, 6);
    dlx_message_unref(m);
    c->next_try_ns = 0;
}

/* The publisher closes before it has noticed another daemon, which shows its retained messages. */
LOOP_TEST(messages_of_a_publisher_that_closed_unheard_end_in_time, 0, 2)
{
    struct dlx_message *m = NULL;
    begin_with(PUBLISHER(.retain = 2, .retain_for_ns = SECOND / 5), 100, 5);
    auto_subscription *s = _i == 0 ? NULL : subscribe(NULL);
    p = dlx_publisher_unref(p);
    if (s) {
        dlx_test_store_take(s, 4, 5);
        ck_assert_int_eq(dlx_take(s, PATIENCE, &m), DLX_E_PUBLISHER_GONE);
    }
    eventually(dlx_test_store_n_publishers() == 0);
}

/*
 * Locks every region of the daemon, by its own descriptors: what its subscribers get is of the same
 * descriptions. Names tell the kinds of regions apart only among memfds, so it takes them all.
 */
static void lock_as_a_subscriber(void)
{
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    auto_fd pidfd = (int)syscall(SYS_pidfd_open, dlx_test_stream_daemon.pid, 0);
    unsigned n = 0;
    for (int fd = 0; fd < 200; fd++) {
        char path[64], name[256] = "";
        auto_fd got = (int)syscall(SYS_pidfd_getfd, pidfd, fd, 0);
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", got);
        if (got >= 0 && readlink(path, name, sizeof name - 1) > 0 &&
            (strstr(name, "memfd:dlx-") || strstr(name, "/" DLX_SHM_NAME_PREFIX)))
            n += fcntl(got, F_OFD_SETLK, &lock) == 0;
    }
    ck_assert_uint_gt(n, 0);
}

LOOP_TEST(a_lock_of_a_subscriber_that_has_gone_stops_nobody, 0, 2)
{
    struct dlx_publisher_info info = {.n_subscribers = 1};
    publish_first(&dlx_test_retain_1, LARGE, 5);
    other = dlx_test_stream_connect();
    struct dlx_subscription *s = subscribe(NULL);
    lock_as_a_subscriber();
    if (_i == 0) {
        s = dlx_subscription_unref(s);
        for (uint64_t until = dlx__deadline(PATIENCE); info.n_subscribers > 0;
             dlx_test_before(until))
            (void)dlx_test_stream_list(other, &info);
    } else { /* it goes while there is no daemon: the next one has the same description */
        dlx_test_daemon_kill(&dlx_test_stream_daemon);
        s = dlx_subscription_unref(s);
        dlx_test_store_run_again();
    }
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    dlx_test_stream_publish_all(p, LARGE, 6, 60);
    dlx_test_store_run_again();
    dlx_subscription_unref(s);
}

/* The publisher's own write lock is in the way of the newcomer's, and harms no other subscriber. */
TEST(a_publisher_that_locks_its_own_block_keeps_nobody_from_subscribing)
{
    begin_with(&dlx_test_retain_2, 100, 5);
    struct dlx_publisher *good = dlx_test_store_publisher(other, "test/good", &dlx_test_retain_1);
    dlx_test_stream_publish(good, 100, 1);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    ck_assert_int_eq(fcntl(p->daemon.control_fd, F_OFD_SETLK, &lock), 0);
    auto_subscription *s = dlx_test_stream_subscribe(other, "test/*", NULL);
    dlx_test_store_take(s, 1, 1);
    lock.l_type = F_UNLCK;
    ck_assert_int_eq(fcntl(p->daemon.control_fd, F_OFD_SETLK, &lock), 0);
    wake_up(); /* now it counts like any other */
    dlx_test_store_take(s, 4, 5);
    dlx_publisher_unref(good);
    dlx_test_store_drop("test/good");
}

int main(void)
{
    TCase *tcase = dlx_test_store_case("shown");
    tcase_add_checked_fixture(tcase, NULL, end);
    return dlx_test_run_case(tcase);
}
