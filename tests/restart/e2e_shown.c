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

/* A publisher that has published 1 to n, and makes no call while the daemon is replaced. */
static void begin_with(const struct dlx_publisher_args *args, int64_t size, int64_t n)
{
    const struct dlx_connect_args soon = {
        .size = sizeof soon, .socket = dlx_test_stream_daemon.path, .timeout_ns = 3 * SECOND};
    ok(dlx_connect(&c, &soon));
    p = dlx_test_store_publisher(c, "test/a", args);
    dlx_test_stream_publish_all(p, size, 1, n);
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "dlx-pid-", 1);
    dlx_test_store_restart();
    other = dlx_test_stream_connect();
}

static struct dlx_subscription *subscribe(const struct dlx_subscribe_args *args)
{
    struct dlx_subscription *s = dlx_test_stream_subscribe(other, "test/a", args);
    return s;
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
    struct dlx_publisher_stats stats = {.size = sizeof stats};
    for (uint64_t until = dlx__deadline(PATIENCE);;) {
        ck_assert_uint_lt(dlx__now_ns(), until);
        ok(dlx_publisher_wait(p, 0, 0));
        ok(dlx_publisher_get_stats(p, &stats));
        if (stats.n_subscribers > 0)
            return;
    }
}

static int find(const struct dlx_publisher_info *info, void *userdata)
{
    *(struct dlx_publisher_info *)userdata = *info;
    return 0;
}

TEST(a_newcomer_gets_what_an_idle_publisher_retains)
{
    struct dlx_publisher_info info = {.retained = 1};
    begin_with(&dlx_test_retain_2, 100, 5);
    ck_assert_msg(
        strstr(dlx_test_stream_daemon.said, "what 1 publishers retain; nobody sees what 0 "), "%s",
        dlx_test_stream_daemon.said);
    dlx_test_store_check_there("test/a", 4, 5);
    dlx_test_store_check_there("test/a", 4, 5);
    ok(dlx_list_publishers(c, NULL, find, &info));
    ck_assert_int_eq(info.retained, 0); /* it is there */
    /* Then it publishes, and nobody who was there misses anything, or gets it twice. */
    auto_subscription *s = subscribe(NULL);
    dlx_test_store_take(s, 4, 4);
    dlx_test_stream_publish_all(p, 100, 6, 10);
    dlx_test_store_take(s, 5, 10);
    ck_assert_int_eq(dlx_test_store_n_publishers(), 1);
}

LOOP_TEST(a_newcomer_goes_over_to_a_publisher_that_wakes_up, 0, 2)
{
    struct dlx_subscription_stats stats = {.size = sizeof stats};
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
    ok(dlx_subscription_get_stats(s, &stats));
    ck_assert_uint_eq(stats.lost, 0);
    ck_assert_uint_eq(stats.taken, 3);
}

/* It has memory for three messages. */
TEST(what_a_newcomer_holds_stays_as_it_is_while_the_publisher_goes_on)
{
    begin_with(&dlx_test_retain_1, LARGE, 5);
    auto_subscription *s = subscribe(NULL);
    auto_message *held = dlx_test_stream_next(s);
    for (int64_t i = 6; i <= 60; i++) {
        dlx_test_stream_publish(p, LARGE, i);
        dlx_test_stream_check(held, LARGE, 5);
    }
}

/* The daemon that has shown it has ended, too. What the publisher has left to write to is soon
 * used up; it goes on when the newcomer has let go, though it was never told of that one. */
LOOP_TEST(without_a_daemon_a_publisher_waits_for_a_newcomer_that_it_does_not_know, 0, 2)
{
    DLManagedTensorVersioned *t = NULL;
    struct dlx_tensor_spec spec = {
        .size = sizeof spec, .dtype = {kDLInt, 64, 1}, .ndim = 1, .shape = (int64_t[]){LARGE}};
    begin_with(&dlx_test_retain_1, LARGE, 5);
    struct dlx_subscription *s = subscribe(NULL);
    struct dlx_message *held = dlx_test_stream_next(s);
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    int64_t n = 5;
    int r;
    while ((r = dlx_alloc(p, &spec, &t)) == 0) {
        ck_assert_int_lt(n++, 60);
        int64_t *data = t->dl_tensor.data;
        for (int i = 0; i < LARGE; i++)
            data[i] = n;
        ok(dlx_publish(p, t, NULL));
        dlx_test_stream_check(held, LARGE, 5);
    }
    ck_assert_int_eq(r, DLX_E_DISCONNECTED);
    if (_i == 0) {
        dlx_message_unref(held);
        s = dlx_subscription_unref(s);
        for (int64_t i = 1; i <= 50; i++)
            dlx_test_stream_publish(p, LARGE, n + i);
        dlx_test_store_run_again();
    } else { /* or a daemon comes */
        dlx_test_store_run_again();
        for (int64_t i = 1; i <= 50; i++) {
            uint64_t until = dlx__deadline(PATIENCE);
            while ((r = dlx_alloc(p, &spec, &t)) == DLX_E_DISCONNECTED)
                ck_assert_uint_lt(dlx__now_ns(), until);
            ok(r);
            int64_t *data = t->dl_tensor.data;
            for (int k = 0; k < LARGE; k++)
                data[k] = n + i;
            ok(dlx_publish(p, t, NULL));
            dlx_test_stream_check(held, LARGE, 5);
        }
        dlx_message_unref(held);
    }
    dlx_subscription_unref(s);
}

/* Who was there has a link that the publisher knows, so the stream goes on without a daemon. */
TEST(a_subscription_that_was_there_keeps_its_link)
{
    struct dlx_daemon_info info = {.size = sizeof info};
    struct dlx_subscription *s = NULL;
    struct dlx_message *m = NULL, *held = NULL;
    c = dlx_test_stream_connect();
    other = dlx_test_stream_connect();
    p = dlx_test_store_publisher(c, "test/a", &dlx_test_retain_1);
    s = subscribe(NULL);
    for (int64_t i = 1; i <= 5; i++) { /* until it has memory for as many as it needs */
        dlx_test_stream_publish(p, LARGE, i);
        ok(dlx_take(s, PATIENCE, i == 1 ? &held : &m));
        dlx_message_unref(i == 1 ? NULL : m);
    }
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "dlx-pid-", 1);
    dlx_test_store_restart();
    uint64_t until = dlx__deadline(PATIENCE);
    struct dlx_client *looks = dlx_test_stream_connect();
    do { /* it has come back */
        ck_assert_uint_lt(dlx__now_ns(), until);
        ck_assert_int_eq(dlx_take(s, SECOND / 1000, &m), DLX_E_TIMEOUT);
        ok(dlx_client_get_daemon_info(looks, &info));
    } while (info.n_clients < 2);
    for (int i = 0; i < 50; i++)
        ck_assert_int_eq(dlx_take(s, SECOND / 1000, &m), DLX_E_TIMEOUT);
    dlx_client_unref(looks);
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    for (int64_t i = 6; i <= 50; i++) {
        dlx_test_stream_publish(p, LARGE, i);
        dlx_test_stream_expect(s, LARGE, i);
        dlx_test_stream_check(held, LARGE, 1);
    }
    dlx_message_unref(held);
    dlx_test_store_run_again();
    dlx_subscription_unref(s);
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

/* A child: it publishes 1 to n, and on each byte one more. */
struct child {
    pid_t pid;
    int to, from;
};

static void tell(const struct child *child)
{
    char byte;
    ck_assert_int_eq(write(child->to, "", 1), 1);
    ck_assert_int_eq(read(child->from, &byte, 1), 1);
}

static void child_main(const struct dlx_publisher_args *args, int64_t n, int in, int out)
{
    char byte;
    struct dlx_publisher *mine =
        dlx_test_store_publisher(dlx_test_stream_connect(), "test/a", args);
    dlx_test_stream_publish_all(mine, 100, 1, n);
    while (write(out, "", 1) == 1 && read(in, &byte, 1) == 1)
        dlx_test_stream_publish(mine, 100, ++n);
    _exit(0);
}

static struct child spawn(const struct dlx_publisher_args *args, int64_t n)
{
    int to[2], from[2];
    char byte;
    ck_assert_int_eq(pipe(to) + pipe(from), 0);
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        close(to[1]);
        child_main(args, n, to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    ck_assert_int_eq(read(from[0], &byte, 1), 1);
    return (struct child){pid, to[1], from[0]};
}

static void kill_child(const struct child *child)
{
    dlx_test_fork_kill(child->pid);
    close(child->to);
    close(child->from);
}

LOOP_TEST(a_publisher_that_dies_unheard_leaves_its_messages, 0, 2)
{
    struct dlx_message *m = NULL, *held = NULL;
    struct child child = spawn(&dlx_test_retain_2, 5);
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "dlx-pid-", 1);
    dlx_test_store_restart();
    other = dlx_test_stream_connect();
    auto_subscription *s = subscribe(NULL);
    ok(dlx_take(s, PATIENCE, &held));
    dlx_test_store_take(s, 5, 5);
    if (_i > 0) /* s has its link by a daemon that has ended, too */
        dlx_test_store_restart();
    ck_assert_int_eq(dlx_take(s, 0, &m), DLX_E_EMPTY);
    kill_child(&child);
    int r;
    do
        r = dlx_take(s, PATIENCE, &m);
    while (r == DLX_E_DISCONNECTED);
    ck_assert_int_eq(r, DLX_E_PUBLISHER_GONE);
    ck_assert_int_eq(dlx_take(s, SECOND / 20, &m),
                     DLX_E_TIMEOUT); /* it is told once, and no message comes twice */
    dlx_test_store_check_there("test/a", 4, 5);
    dlx_test_store_restart();
    dlx_test_store_check_there("test/a", 4, 5);
    dlx_test_stream_check(held, 100, 4);
    dlx_message_unref(held);
}

/* Newcomers come while the publisher does. */
TEST(a_publisher_that_wakes_up_while_a_newcomer_joins_loses_it_nothing)
{
    struct child child = spawn(&dlx_test_retain_2, 5);
    int64_t n = 5;
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "dlx-pid-", 1);
    for (int round = 0; round < 20; round++) {
        struct dlx_subscription *s[3];
        dlx_test_store_restart();
        other = dlx_test_stream_connect();
        for (int i = 0; i < 3; i++) {
            if (i == round % 3)
                ck_assert_int_eq(write(child.to, "", 1), 1);
            s[i] = subscribe(NULL);
        }
        char byte;
        ck_assert_int_eq(read(child.from, &byte, 1), 1);
        n++;
        tell(&child);
        n++;
        for (int i = 0; i < 3; i++) {
            struct dlx_message *m = NULL;
            int64_t last = 0;
            while (last < n) {
                ok(dlx_take(s[i], PATIENCE, &m));
                int64_t seq = (int64_t)dlx_message_seq(m);
                dlx_test_stream_check(m, 100, seq);
                ck_assert_int_eq(seq, last == 0 ? DLX_MAX(seq, n - 3) : last + 1);
                last = seq;
                dlx_message_unref(m);
            }
            dlx_subscription_unref(s[i]);
        }
        other = dlx_client_unref(other);
        dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "dlx-pid-", 1);
    }
    kill_child(&child);
}

/* The publisher would not wait for it: it gets the one that has announced itself, or what that has
 * left. */
LOOP_TEST(a_reliable_newcomer_waits_for_the_publisher_itself, 0, 2)
{
    static const struct dlx_subscribe_args reliable = {.size = sizeof reliable, .reliable = 1};
    struct dlx_message *m = NULL;
    struct child child = spawn(PUBLISHER(.retain = 2, .on_full = DLX_ON_FULL_BLOCK), 5);
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "dlx-pid-", 1);
    dlx_test_store_restart();
    other = dlx_test_stream_connect();
    auto_subscription *s = subscribe(&reliable), *any = subscribe(NULL);
    dlx_test_store_take(any, 4, 5);
    ck_assert_int_eq(dlx_take(s, 0, &m), DLX_E_EMPTY);
    if (_i == 0) {
        tell(&child); /* 6 */
        dlx_test_store_take(s, 5, 6);
        dlx_test_store_take(any, 6, 6);
        kill_child(&child);
    } else {
        kill_child(&child);
        dlx_test_store_take(s, 4, 5);
    }
    ck_assert_int_eq(dlx_take(s, PATIENCE, &m), DLX_E_PUBLISHER_GONE);
    ck_assert_int_eq(dlx_take(any, PATIENCE, &m), DLX_E_PUBLISHER_GONE);
}

/* It goes on in its old block, and nobody who could ring the newcomer knows of both. */
TEST(a_newcomer_that_sleeps_hears_of_a_publisher_that_cannot_come)
{
    struct dlx_message *m = NULL;
    begin_with(&dlx_test_retain_2, 100, 5);
    auto_subscription *s = subscribe(NULL);
    struct pollfd pfd = {.fd = dlx_subscription_fd(s), .events = POLLIN};
    dlx_test_store_take(s, 4, 5);
    ck_assert_int_eq(dlx_take(s, 0, &m), DLX_E_EMPTY);
    c->next_try_ns = UINT64_MAX; /* it does not look for a daemon */
    dlx_test_stream_publish(p, 100, 6);
    int r;
    do {
        ck_assert_int_eq(poll(&pfd, 1, 5000), 1);
        r = dlx_take(s, 0, &m);
    } while (r == DLX_E_EMPTY);
    ok(r);
    dlx_test_stream_check(m, 100, 6);
    dlx_message_unref(m);
    c->next_try_ns = 0;
}

/* It closes before it has noticed that there is another daemon, which shows what it retains. */
LOOP_TEST(what_a_publisher_retains_ends_in_time_though_it_closed_unheard, 0, 2)
{
    struct dlx_message *m = NULL;
    begin_with(PUBLISHER(.retain = 2, .retain_for_ns = SECOND / 5), 100, 5);
    auto_subscription *s = _i == 0 ? NULL : subscribe(NULL);
    p = dlx_publisher_unref(p);
    if (s) {
        dlx_test_store_take(s, 4, 5);
        ck_assert_int_eq(dlx_take(s, PATIENCE, &m), DLX_E_PUBLISHER_GONE);
    }
    for (uint64_t until = dlx__deadline(PATIENCE); dlx_test_store_n_publishers() > 0;)
        ck_assert_uint_lt(dlx__now_ns(), until);
}

/*
 * Locks every region of the daemon, by its own descriptors: what its subscribers get is of the same
 * descriptions. Names tell the kinds of regions apart only among memfds, so it takes them all.
 */
static void lock_as_a_subscriber(void)
{
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    dlx_cleanup(dlx__closep) int pidfd =
        (int)syscall(SYS_pidfd_open, dlx_test_stream_daemon.pid, 0);
    unsigned n = 0;
    for (int fd = 0; fd < 200; fd++) {
        char path[64], name[256] = "";
        dlx_cleanup(dlx__closep) int got = (int)syscall(SYS_pidfd_getfd, pidfd, fd, 0);
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
    const struct dlx_connect_args soon = {
        .size = sizeof soon, .socket = dlx_test_stream_daemon.path, .timeout_ns = 3 * SECOND};
    ok(dlx_connect(&c, &soon));
    p = dlx_test_store_publisher(c, "test/a", &dlx_test_retain_1);
    dlx_test_stream_publish_all(p, LARGE, 1, 5);
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "dlx-pid-", 1);
    other = dlx_test_stream_connect();
    struct dlx_subscription *s = subscribe(NULL);
    lock_as_a_subscriber();
    if (_i == 0) {
        s = dlx_subscription_unref(s);
        for (uint64_t until = dlx__deadline(PATIENCE); info.n_subscribers > 0;) {
            ck_assert_uint_lt(dlx__now_ns(), until);
            ok(dlx_list_publishers(other, NULL, find, &info));
        }
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

/* Its own write lock is in the way of the newcomer's, and harms nobody else. */
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
