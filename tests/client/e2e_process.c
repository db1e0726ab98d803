/* SPDX-License-Identifier: Apache-2.0 */

/* libdlx between processes: death of each side and of the daemon, reliable streams, fork. */

#include "client/control/connection.h"
#include "client/subscribe/subscription.h"
#include "tests/harness/fds.h"
#include "tests/harness/fork.h"
#include "tests/harness/stream.h"

/* Fork; the child runs `fn` with a fresh connection and never returns. Waits until it says that it
 * is ready. */
static struct dlx_test_peer spawn(void (*fn)(struct dlx_client *c, struct dlx_test_peer *parent))
{
    struct dlx_test_peer peer = dlx_test_fork_peer();
    if (peer.pid == 0) {
        fn(dlx_test_stream_connect(), &peer);
        _exit(0);
    }
    dlx_test_peer_hear(&peer);
    return peer;
}

static void publish_for_ever(struct dlx_client *c, struct dlx_test_peer *parent)
{
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "test/stream", NULL);
    dlx_test_peer_say(parent);
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    for (int64_t i = 1;; i++)
        dlx_test_stream_publish(p, 64, i);
}

/* Each has its number as its value. */
static void check_and_release(struct dlx_message *m)
{
    dlx_test_stream_check(m, 64, (int64_t)dlx_message_seq(m));
    dlx_message_unref(m);
}

TEST(a_killed_publisher_leaves_what_it_published)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_message *held[4], *m = NULL;
    int r;
    struct dlx_test_peer peer = spawn(publish_for_ever);
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/stream", NULL);
    for (int i = 0; i < 4; i++)
        held[i] = dlx_test_stream_next(s);
    for (int i = 0; i < 10000; i++)
        check_and_release(dlx_test_stream_next(s));
    dlx_test_peer_kill(&peer);
    /* Drain: all that was published and not overwritten is still right. */
    while ((r = dlx_take(s, PATIENCE, &m)) == 0)
        check_and_release(m);
    ck_assert_msg(r == DLX_E_PUBLISHER_GONE, "%d %s", r, dlx_errmsg());
    for (int i = 0; i < 4; i++)
        check_and_release(held[i]);
}

enum { N_HELD = 16, ELEMENTS = 1 << 17 }; /* 1 MiB */

static void take_and_hold(struct dlx_client *c, struct dlx_test_peer *parent)
{
    struct dlx_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    dlx_test_peer_say(parent);
    for (int i = 0; i < N_HELD; i++)
        (void)dlx_test_stream_next(s);
    dlx_test_peer_say(parent);
    pause();
}

TEST(a_killed_subscriber_gives_its_memory_back)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", PUBLISHER(.depth = N_HELD));
    struct dlx_test_peer peer = spawn(take_and_hold);
    dlx_test_stream_publish_all(p, ELEMENTS, 1, N_HELD);
    dlx_test_peer_hear(&peer); /* it holds all of them */
    dlx_test_stream_publish_all(p, ELEMENTS, 1, N_HELD);
    const uint64_t bytes = dlx_test_stream_stats(p).arena_bytes;
    ck_assert_uint_ge(bytes, 2 * N_HELD * ELEMENTS * sizeof(int64_t));
    dlx_test_peer_kill(&peer);
    /* At once: death is the kernel's word. */
    dlx_test_stream_publish_all(p, ELEMENTS, 1, 100);
    struct dlx_publisher_stats stats = dlx_test_stream_stats(p);
    ck_assert_uint_eq(stats.n_subscribers, 0);
    ck_assert_uint_le(stats.arena_bytes, bytes);
}

static void take_reliably(struct dlx_client *c, struct dlx_test_peer *parent)
{
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", SUBSCRIBE_RELIABLY);
    dlx_test_peer_say(parent);
    dlx_test_stream_expect_all(s, 4, 1, 20000);
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(s);
    ck_assert_uint_eq(stats.lost + stats.skipped, 0);
}

TEST(a_blocking_publisher_loses_nothing_for_reliable_subscribers)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", PUBLISHER_BLOCKING(.depth = 8));
    struct dlx_test_peer one = spawn(take_reliably), other = spawn(take_reliably);
    ok(dlx_publisher_wait(p, 2, PATIENCE));
    for (int64_t i = 1; i <= 20000; i++)
        ok(dlx_publish(p, dlx_test_stream_alloc(p, 4, i), PUBLISH(.timeout_ns = PATIENCE), NULL));
    dlx_test_peer_join(&one);
    dlx_test_peer_join(&other);
}

/* Another program in the same process: no subscriber reads any more, and none is dead. */
static void execute_cat(void)
{
    int nothing[2];
    ck_assert_int_eq(pipe(nothing), 0); /* what it waits for never comes */
    ck_assert_int_ge(dup2(nothing[0], STDIN_FILENO), 0);
    execlp("cat", "cat", NULL);
    _exit(127);
}

static void take_one_and_execute(struct dlx_client *c, struct dlx_test_peer *parent)
{
    struct dlx_subscription *s = dlx_test_stream_subscribe(c, "test/a", SUBSCRIBE_RELIABLY);
    dlx_test_peer_say(parent);
    (void)dlx_test_stream_next(s);
    execute_cat();
}

static void execute_at_once(struct dlx_client *c, struct dlx_test_peer *parent)
{
    (void)dlx_test_stream_subscribe(c, "test/a", SUBSCRIBE_RELIABLY);
    dlx_test_peer_say(parent);
    execute_cat();
}

/* Each has a link by the new daemon, which does not count the end of the former one. */
static void go_on_with_next_daemon(struct dlx_publisher *p, struct dlx_subscription *s)
{
    dlx_test_stream_restart();
    dlx_test_stream_publish_once_joined(p, dlx_test_stream_alloc(p, 4, 1), s);
    dlx_test_stream_expect(s, 4, 1);
}

/* Odd: before its first take. From 2 on: the publisher had links of a former daemon. */
LOOP_TEST(a_reliable_subscriber_that_executes_another_program_is_not_waited_for, 0, 4)
{
    int status;
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", PUBLISHER_BLOCKING(.depth = 8));
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", SUBSCRIBE_RELIABLY);
    if (_i >= 2)
        go_on_with_next_daemon(p, s);
    struct dlx_test_peer peer = spawn(_i % 2 ? execute_at_once : take_one_and_execute);
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    for (int64_t i = 1; i <= 100; i++) {
        ok(dlx_publish(p, dlx_test_stream_alloc(p, 4, i), PUBLISH(.timeout_ns = PATIENCE), NULL));
        dlx_test_stream_expect(s, 4, i); /* who is still there loses nothing */
    }
    close(peer.sock);
    ck_assert_int_eq(kill(peer.pid, SIGKILL), 0); /* it lived until now */
    ck_assert_int_eq(waitpid(peer.pid, &status, 0), peer.pid);
    ck_assert_int_eq(WTERMSIG(status), SIGKILL);
}

TEST(a_stream_goes_on_while_the_daemon_is_dead)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_publisher *p2 = NULL;
    dlx_test_stream_publish(x.p, 64, 1);
    dlx_test_stream_expect(x.s, 64, 1);
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    for (int64_t i = 0; i < 5000; i++) {
        dlx_test_stream_publish(x.p, 64, i);
        dlx_test_stream_expect(x.s, 64, i);
    }
    fails(dlx_publisher_new(x.c, "test/b", NULL, &p2), DLX_E_DISCONNECTED,
          dlx_test_stream_daemon.path);
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL); /* over the stale socket file */
}

/* Descriptors that an epoll watches, also those that this process has closed. */
static size_t n_watched(int epoll)
{
    char line[256];
    size_t n = 0;
    (void)snprintf(line, sizeof line, "/proc/self/fdinfo/%d", epoll);
    FILE *file = fopen(line, "re");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file))
        n += strncmp(line, "tfd:", 4) == 0;
    (void)fclose(file);
    return n;
}

/* A child that has every descriptor of its parent, until it is killed. */
static pid_t fork_sleeper(void)
{
    pid_t pid = dlx_test_fork();
    if (pid == 0)
        for (;;)
            pause();
    return pid;
}

TEST(a_timer_that_a_forked_child_has_does_not_keep_the_fd_readable)
{
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    int fd = dlx_subscription_fd(s);
    ck_assert_int_ge(fd, 0);
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    take_fails(s, PATIENCE, DLX_E_DISCONNECTED, "");
    ck_assert_int_ge(s->timer, 0);
    pid_t pid = fork_sleeper();
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    while (s->timer >= 0) {
        dlx_test_wait_readable(fd);
        take_fails(s, 0, DLX_E_EMPTY, "");
    }
    ck_assert_uint_eq(n_watched(fd), 2); /* its socket, and what made the first poll look */
    /* The daemon's last notifications end at some time; a timer would not. */
    while (dlx_test_is_readable(fd, 5 * (int)(DLX_RECONNECT_NS / 1000000)))
        take_fails(s, 0, DLX_E_EMPTY, "");
    dlx_test_fork_kill(pid);
}

TEST(a_closed_subscription_whose_descriptors_a_forked_child_has_is_not_readable)
{
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    int fd = dlx_subscription_fd(x.s);
    ck_assert_int_ge(fd, 0);
    ck_assert(dlx_test_is_readable(fd, 0)); /* "look" */
    ck_assert_uint_eq(n_watched(fd), 3);
    fd = dlx_test_fds_dup(fd); /* as an event loop may have it */
    pid_t pid = fork_sleeper();
    dlx_test_pair_end(&x);
    ck_assert_uint_eq(n_watched(fd), 0);
    ck_assert(!dlx_test_is_readable(fd, 0));
    close(fd);
    dlx_test_fork_kill(pid);
}
