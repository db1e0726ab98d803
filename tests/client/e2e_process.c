/* SPDX-License-Identifier: Apache-2.0 */

/* libdlx between processes: death of each side and of the daemon, reliable streams, fork. */

#include "client/control/reconnect.h"
#include "client/subscribe/subscription.h"
#include "tests/harness/fds.h"
#include "tests/harness/fork.h"
#include "tests/harness/stream.h"
#include <time.h>

/* ---- other processes ----------------------------------------------------------------------- */

/* Fork; the child runs `fn` with a fresh connection and never returns. */
static pid_t spawn(void (*fn)(struct dlx_client *c, int ready), int *ret_ready)
{
    int fds[2];
    ck_assert_int_eq(pipe(fds), 0);
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        close(fds[0]);
        fn(dlx_test_stream_connect(), fds[1]);
        _exit(0);
    }
    close(fds[1]);
    *ret_ready = fds[0];
    return pid;
}

static void wait_ready(int fd)
{
    char byte;
    ck_assert_int_eq(read(fd, &byte, 1), 1);
    close(fd);
}

static void say_ready(int fd)
{
    ck_assert_int_eq(write(fd, "", 1), 1);
}

static int reap(pid_t pid)
{
    int status = 0;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return status;
}

static void publish_for_ever(struct dlx_client *c, int ready)
{
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "test/stream", NULL);
    say_ready(ready);
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    for (int64_t i = 1;; i++)
        dlx_test_stream_publish(p, 64, i);
}

TEST(a_killed_publisher_leaves_what_it_published)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_message *held[4] = {0}, *m = NULL;
    int64_t value[4];
    int ready, r;
    pid_t pid = spawn(publish_for_ever, &ready);
    wait_ready(ready);
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/stream", NULL);
    for (int i = 0; i < 4; i++) {
        ok(dlx_take(s, PATIENCE, &held[i]));
        value[i] = (int64_t)dlx_message_seq(held[i]);
    }
    for (int i = 0; i < 10000; i++) {
        m = dlx_test_stream_next(s);
        dlx_test_stream_check(m, 64, (int64_t)dlx_message_seq(m));
        dlx_message_unref(m);
    }
    kill(pid, SIGKILL);
    ck_assert(WIFSIGNALED(reap(pid)));
    /* Drain: all that was published and not overwritten is still right. */
    while ((r = dlx_take(s, PATIENCE, &m)) == 0) {
        dlx_test_stream_check(m, 64, (int64_t)dlx_message_seq(m));
        dlx_message_unref(m);
    }
    ck_assert_msg(r == DLX_E_PUBLISHER_GONE, "%d %s", r, dlx_client_errmsg(c));
    for (int i = 0; i < 4; i++) {
        dlx_test_stream_check(held[i], 64, value[i]);
        dlx_message_unref(held[i]);
    }
}

enum { N_HELD = 16, ELEMENTS = 1 << 17 }; /* 1 MiB */

static void take_and_hold(struct dlx_client *c, int ready)
{
    struct dlx_message *m = NULL;
    struct dlx_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    say_ready(ready);
    for (int i = 0; i < N_HELD; i++)
        ok(dlx_take(s, PATIENCE, &m));
    say_ready(ready);
    pause();
}

TEST(a_killed_subscriber_gives_its_memory_back)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_publisher_stats held = {.size = sizeof held}, stats = {.size = sizeof stats};
    char byte;
    int ready;
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", PUBLISHER(.depth = N_HELD));
    pid_t pid = spawn(take_and_hold, &ready);
    ck_assert_int_eq(read(ready, &byte, 1), 1);
    for (int64_t i = 0; i < N_HELD; i++)
        dlx_test_stream_publish(p, ELEMENTS, i);
    ck_assert_int_eq(read(ready, &byte, 1), 1); /* it holds all of them */
    close(ready);
    for (int64_t i = 0; i < N_HELD; i++)
        dlx_test_stream_publish(p, ELEMENTS, i);
    ok(dlx_publisher_get_stats(p, &held));
    ck_assert_uint_ge(held.arena_bytes, 2 * N_HELD * ELEMENTS * sizeof(int64_t));
    kill(pid, SIGKILL);
    ck_assert(WIFSIGNALED(reap(pid)));
    /* At once: death is the kernel's word. */
    for (int64_t i = 0; i < 100; i++)
        dlx_test_stream_publish(p, ELEMENTS, i);
    ok(dlx_publisher_get_stats(p, &stats));
    ck_assert_uint_eq(stats.n_subscribers, 0);
    ck_assert_uint_le(stats.arena_bytes, held.arena_bytes);
}

static void take_reliably(struct dlx_client *c, int ready)
{
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", SUBSCRIBE(.reliable = true));
    say_ready(ready);
    for (int64_t i = 1; i <= 20000; i++)
        dlx_test_stream_expect(s, 4, i);
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(s);
    ck_assert_uint_eq(stats.lost + stats.skipped, 0);
}

TEST(a_blocking_publisher_loses_nothing_for_reliable_subscribers)
{
    auto_client *c = dlx_test_stream_connect();
    int ready[2];
    pid_t pid[2];
    auto_publisher *p =
        dlx_test_stream_publisher(c, "test/a", PUBLISHER(.depth = 8, .on_full = DLX_ON_FULL_BLOCK));
    for (int i = 0; i < 2; i++)
        pid[i] = spawn(take_reliably, &ready[i]);
    for (int i = 0; i < 2; i++)
        wait_ready(ready[i]);
    ok(dlx_publisher_wait(p, 2, PATIENCE));
    for (int64_t i = 1; i <= 20000; i++)
        ok(dlx_publish(p, dlx_test_stream_alloc(p, 4, i), PUBLISH(.timeout_ns = PATIENCE)));
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(reap(pid[i]), 0);
}

/* Another program in the same process: nobody reads any more, and nobody is dead. */
static void execute_cat(void)
{
    int nothing[2];
    ck_assert_int_eq(pipe(nothing), 0); /* what it waits for never comes */
    ck_assert_int_ge(dup2(nothing[0], STDIN_FILENO), 0);
    execlp("cat", "cat", NULL);
    _exit(127);
}

static struct dlx_subscription *subscribe_reliably(struct dlx_client *c)
{
    return dlx_test_stream_subscribe(c, "test/a", SUBSCRIBE(.reliable = true));
}

static void take_one_and_execute(struct dlx_client *c, int ready)
{
    struct dlx_subscription *s = subscribe_reliably(c);
    say_ready(ready);
    (void)dlx_test_stream_next(s);
    execute_cat();
}

static void execute_at_once(struct dlx_client *c, int ready)
{
    (void)subscribe_reliably(c);
    say_ready(ready);
    execute_cat();
}

static void publish_beside(void (*other)(struct dlx_client *c, int ready))
{
    auto_client *c = dlx_test_stream_connect();
    int ready;
    auto_publisher *p =
        dlx_test_stream_publisher(c, "test/a", PUBLISHER(.depth = 8, .on_full = DLX_ON_FULL_BLOCK));
    auto_subscription *s = subscribe_reliably(c);
    pid_t pid = spawn(other, &ready);
    wait_ready(ready);
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    for (int64_t i = 1; i <= 100; i++) {
        auto_message *m = NULL;
        ok(dlx_publish(p, dlx_test_stream_alloc(p, 4, i), PUBLISH(.timeout_ns = PATIENCE)));
        ok(dlx_take(s, PATIENCE, &m)); /* who is still there loses nothing */
        dlx_test_stream_check(m, 4, i);
    }
    ck_assert_int_eq(kill(pid, SIGKILL), 0); /* it lived until now */
    ck_assert_int_eq(WTERMSIG(reap(pid)), SIGKILL);
}

TEST(a_reliable_subscriber_that_executes_another_program_is_not_waited_for)
{
    publish_beside(take_one_and_execute);
}

TEST(a_reliable_subscriber_that_executes_before_its_first_take_is_not_waited_for)
{
    publish_beside(execute_at_once);
}

TEST(a_stream_goes_on_while_the_daemon_is_dead)
{
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_publisher *p2 = NULL;
    dlx_test_stream_publish(x.p, 64, 1);
    struct dlx_message *m = dlx_test_stream_next(x.s);
    dlx_message_unref(m);
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    for (int64_t i = 0; i < 5000; i++) {
        dlx_test_stream_publish(x.p, 64, i);
        dlx_test_stream_expect(x.s, 64, i);
    }
    fails(dlx_publisher_new(x.c, "test/b", NULL, &p2), DLX_E_DISCONNECTED,
          dlx_test_stream_daemon.path);
    dlx_test_pair_end(&x);
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

static bool is_readable(int fd, int timeout_ms)
{
    struct pollfd pfd = {.fd = fd, .events = POLLIN};
    int n = poll(&pfd, 1, timeout_ms);
    ck_assert_int_ge(n, 0);
    return n > 0;
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

static void end_sleeper(pid_t pid)
{
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert(WIFSIGNALED(reap(pid)));
}

TEST(a_timer_that_a_forked_child_has_does_not_keep_the_fd_readable)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_message *m = NULL;
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    int fd = dlx_subscription_fd(s);
    ck_assert_int_ge(fd, 0);
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    ck_assert_int_eq(dlx_take(s, PATIENCE, &m), DLX_E_DISCONNECTED);
    ck_assert_int_ge(s->timer, 0);
    pid_t pid = fork_sleeper();
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    for (time_t end = time(NULL) + PATIENCE_S; s->timer >= 0;) {
        ck_assert_int_lt(time(NULL), end);
        ck_assert(is_readable(fd, PATIENCE_MS));
        ck_assert_int_eq(dlx_take(s, 0, &m), DLX_E_EMPTY);
    }
    ck_assert_uint_eq(n_watched(fd), 2); /* its socket, and what made the first poll look */
    /* What the daemon still has to say is over at some time; a timer would not be. */
    for (time_t end = time(NULL) + PATIENCE_S;
         is_readable(fd, 5 * (int)(DLX_RECONNECT_NS / 1000000));) {
        ck_assert_int_lt(time(NULL), end);
        ck_assert_int_eq(dlx_take(s, 0, &m), DLX_E_EMPTY);
    }
    end_sleeper(pid);
}

TEST(a_closed_subscription_whose_descriptors_a_forked_child_has_is_not_readable)
{
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    int fd = dlx_subscription_fd(x.s);
    ck_assert_int_ge(fd, 0);
    ck_assert(is_readable(fd, 0)); /* "look" */
    ck_assert_uint_eq(n_watched(fd), 3);
    fd = dlx_test_fds_dup(fd); /* as an event loop may have it */
    pid_t pid = fork_sleeper();
    dlx_test_pair_end(&x);
    ck_assert_uint_eq(n_watched(fd), 0);
    ck_assert(!is_readable(fd, 0));
    close(fd);
    end_sleeper(pid);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_stream_case("stream"));
}
