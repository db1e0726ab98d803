/* SPDX-License-Identifier: Apache-2.0 */
/* Another program takes the daemon's place in the same process: docs/decisions/0030. Nothing is
 * lost. */

#include "tests/harness/fork.h"
#include "tests/harness/store.h"
#include "tests/harness/upgrade.h"
#include <stdatomic.h>
#include <sys/timerfd.h>

enum { UPGRADES = 20 };

/* The figures of docs/decisions/0030: DLX_FIGURES=1. */
static void tell(const char *what, uint64_t ns)
{
    if (getenv("DLX_FIGURES"))
        (void)fprintf(stderr, "%s: %.1f ms\n", what, (double)ns / 1e6);
}

static struct {
    struct dlx_publisher *p;
    struct dlx_subscription *s;
    atomic_bool stop;
    atomic_uint_fast64_t n_published, n_taken, to;
    uint64_t longest_publish_ns, longest_take_ns;
} stream;

/* A message each 100 us. */
static void *publish_all(void *none)
{
    const struct itimerspec each = {{0, 100000}, {0, 100000}};
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    ck_assert_int_eq(timerfd_settime(timer, 0, &each, NULL), 0);
    while (!atomic_load(&stream.stop)) {
        uint64_t n;
        ck_assert_int_eq(read(timer, &n, sizeof n), (ssize_t)sizeof n);
        uint64_t before = dlx__now_ns();
        int64_t value = (int64_t)atomic_load(&stream.n_published) + 1;
        ok(dlx_publish(stream.p, dlx_test_stream_alloc(stream.p, 10, value),
                       PUBLISH(.timeout_ns = PATIENCE), NULL));
        stream.longest_publish_ns = DLX_MAX(stream.longest_publish_ns, dlx__now_ns() - before);
        atomic_store(&stream.n_published, (uint64_t)value);
    }
    close(timer);
    return none;
}

static void *take_all(void *none)
{
    uint64_t last = dlx__now_ns(), n = 0;
    while (n < atomic_load(&stream.to)) {
        dlx_test_stream_take(stream.s, (int64_t)++n);
        uint64_t now = dlx__now_ns();
        stream.longest_take_ns = DLX_MAX(stream.longest_take_ns, now - last);
        last = now;
        atomic_store(&stream.n_taken, n);
    }
    return none;
}

static void await_50_messages(void)
{
    uint64_t n = atomic_load(&stream.n_published) + 50;
    eventually(atomic_load(&stream.n_taken) >= n);
}

TEST(a_stream_loses_nothing_through_upgrades)
{
    auto_publisher *p = dlx_test_stream_new_publisher("test/a", PUBLISHER_BLOCKING());
    auto_subscription *s = dlx_test_stream_new_subscription("test/a", SUBSCRIBE_RELIABLY);
    stream.p = p;
    stream.s = s;
    atomic_store(&stream.to, UINT64_MAX);
    pthread_t threads[] = {dlx_test_stream_thread(take_all, NULL),
                           dlx_test_stream_thread(publish_all, NULL)};
    for (int i = 0; i < UPGRADES; i++) {
        await_50_messages();
        dlx_test_upgrade_to_new();
        /* The new daemon has to be told of the publisher. */
        eventually(dlx_test_store_n_publishers() != 0);
    }
    await_50_messages();
    atomic_store(&stream.stop, true);
    ck_assert_int_eq(pthread_join(threads[1], NULL), 0);
    /* Publishes the last message: the reader waits for it. */
    uint64_t n = atomic_load(&stream.n_published) + 1;
    atomic_store(&stream.to, n);
    dlx_test_stream_publish(p, 10, (int64_t)n);
    ck_assert_int_eq(pthread_join(threads[0], NULL), 0);
    ck_assert_uint_eq(atomic_load(&stream.n_taken), n);
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(s);
    ck_assert_uint_eq(stats.lost, 0);
    ck_assert_uint_eq(stats.taken, n);
    tell("longest call of dlx_publish()", stream.longest_publish_ns);
    tell("longest time between two messages that were taken", stream.longest_take_ns);
}

static void *upgrade_all(void *done)
{
    for (int i = 0; i < UPGRADES; i++)
        dlx_test_upgrade_to_new();
    atomic_store((atomic_bool *)done, true);
    return NULL;
}

/* The socket is there throughout: a connection may wait, or be lost before it is answered, which
 * the library sees to; none is refused. */
TEST(newcomers_get_in_throughout)
{
    static atomic_bool done;
    uint64_t longest = 0, n = 0;
    dlx_test_store_leave_messages("test/a", &dlx_test_retain_1, 3);
    atomic_store(&done, false);
    pthread_t thread = dlx_test_stream_thread(upgrade_all, &done);
    while (!atomic_load(&done)) {
        auto_client *c = NULL;
        auto_message *m = NULL;
        uint64_t before = dlx__now_ns();
        int r = dlx_connect(CONNECT(.timeout_ns = PATIENCE), &c);
        if (r < 0) /* this thread asserts nothing: another one does */
            _exit(2);
        /* The daemon's place may be taken between the call and its answer. */
        while ((r = dlx_get(c, "test/a", PATIENCE, &m)) == DLX_E_DISCONNECTED)
            ;
        if (r < 0 || ((const int64_t *)dlx_message_tensor_peek(m, 0)->data)[0] != 3)
            _exit(3);
        longest = DLX_MAX(longest, dlx__now_ns() - before);
        n++;
    }
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_uint_ge(n, UPGRADES);
    tell("longest time until a newcomer had a message", longest);
}

/* The library of the publishers does not run meanwhile: they make no call. */
TEST(messages_that_idle_live_publishers_retain_are_there_at_once)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p = dlx_test_store_publisher(c, "test/a", &dlx_test_retain_2);
    struct dlx_publisher *l = dlx_test_store_publisher(
        c, "test/l", PUBLISHER(.retain = 2, .retain_for_ns = DLX_RETAIN_LATCHED));
    dlx_test_stream_publish_all(p, 100, 1, 5);
    dlx_test_stream_publish_all(l, 100, 1, 5);
    dlx_test_store_leave_messages("test/b", &dlx_test_retain_1, 3);
    for (int i = 0; i < 3; i++) {
        dlx_test_upgrade();
        ck_assert_int_eq(dlx_test_store_n_publishers(), 3);
        dlx_test_store_check_there("test/a", 4, 5);
        dlx_test_store_check_there("test/l", 4, 5);
        dlx_test_store_check_there("test/b", 3, 3);
    }
    /* The streams go on, and newcomers with them. */
    auto_client *other = dlx_test_stream_connect();
    dlx_subscription_unref(dlx_test_stream_subscribe(other, "test/*", NULL));
    auto_subscription *s = dlx_test_stream_subscribe(other, "test/a", NULL);
    dlx_test_store_take(s, 4, 4);
    dlx_test_stream_publish_all(p, 100, 6, 10);
    dlx_test_store_take(s, 5, 10);
    dlx_publisher_unref(p);
    dlx_publisher_unref(l);
    dlx_test_store_drop("test/a");
    ck_assert_int_eq(dlx_test_store_n_publishers(), 1); /* what was latched went with its end */
    dlx_test_store_drop("test/b");
}

LOOP_TEST(a_publisher_that_dies_after_an_upgrade_leaves_what_it_should, 0, 2)
{
    struct dlx_publisher_args args = dlx_test_retain_2;
    if (_i == 1)
        args.retain_for_ns = DLX_RETAIN_LATCHED;
    pid_t pid = dlx_test_store_publish_elsewhere(&args, 5);
    dlx_test_upgrade();
    dlx_test_store_check_there("test/a", 4, 5);
    dlx_test_fork_kill(pid);
    if (_i == 0) {
        dlx_test_upgrade();
        dlx_test_store_check_there("test/a", 4, 5);
        dlx_test_store_drop("test/a");
    }
    eventually(dlx_test_store_n_publishers() == 0);
}

TEST(more_than_a_service_manager_keeps_survives)
{
    enum { N = 2000 };
    static struct dlx_publisher *publishers[N];
    const int n = dlx_test_valgrind() ? 300 : N; /* which takes a minute there */
    char topic[32], words[100];
    struct rlimit files;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
    if (dlx_test_skips(files.rlim_max < 8 * N, "2000 topics need 16000 descriptors (ulimit -Hn)"))
        return;
    files.rlim_cur = files.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
    auto_client *c = dlx_test_stream_connect();
    for (int i = 0; i < n; i++) {
        (void)snprintf(topic, sizeof topic, "test/%d", i);
        publishers[i] = dlx_test_store_publisher(c, topic, &dlx_test_retain_1);
        dlx_test_stream_publish(publishers[i], 10, i);
        if (i % 2 == 0) /* half of them are live */
            publishers[i] = dlx_publisher_unref(publishers[i]);
    }
    uint64_t before = dlx__now_ns();
    dlx_test_upgrade_signal(SIGUSR2);
    (void)snprintf(words, sizeof words, "what %d publishers retain; nobody sees what 0 of them", n);
    dlx_test_upgrade_await(words);
    dlx_test_upgrade_await("listening on ");
    tell("an upgrade with 2,000 retained topics", dlx__now_ns() - before);
    auto_client *other = dlx_test_stream_connect();
    for (int i = 0; i < n; i++) {
        auto_message *m = NULL;
        (void)snprintf(topic, sizeof topic, "test/%d", i);
        ok(dlx_get(other, topic, PATIENCE, &m));
        dlx_test_stream_check(m, 10, i);
    }
    ck_assert_int_eq(dlx_test_store_n_publishers(), n);
    dlx_test_stream_unref_publishers(publishers, (size_t)n);
}

static void *hang_up(void *stop)
{
    while (!atomic_load((atomic_bool *)stop)) {
        (void)kill(dlx_test_stream_daemon.pid, SIGHUP);
        (void)sched_yield();
    }
    return NULL;
}

/* By default, it ends a process. */
TEST(signals_that_come_meanwhile_wait)
{
    for (int i = 0; i < UPGRADES; i++) {
        static atomic_bool stop;
        atomic_store(&stop, false);
        pthread_t thread = dlx_test_stream_thread(hang_up, &stop);
        dlx_test_upgrade();
        atomic_store(&stop, true);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
    }
    dlx_test_stream_restart(); /* no process reads its output any more */
}

TEST(the_file_that_runs_is_not_replaced_by_itself)
{
    dlx_test_upgrade_signal(SIGHUP);
    dlx_test_upgrade_await("read the configuration again");
    dlx_test_upgrade_to_new();
    dlx_test_upgrade_signal(SIGHUP);
    dlx_test_upgrade_await("read the configuration again");
}

/* The daemon has no configuration to read again, and no service manager. */
TEST(sighup_never_ends_a_daemon)
{
    const char *config = dlx_test_stream_daemon.option[0];
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
    dlx_test_stream_daemon.option[0] = NULL;
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    dlx_test_store_leave_messages("test/a", &dlx_test_retain_1, 3);
    auto_client *c = dlx_test_stream_connect();
    for (int i = 0; i < 3; i++) {
        dlx_test_upgrade_signal(SIGHUP);
        dlx_test_stream_get(c, "test/a", 100, 3);
    }
    dlx_test_upgrade_to_new();
    auto_client *next = dlx_test_stream_connect();
    dlx_test_stream_get(next, "test/a", 100, 3);
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
    dlx_test_stream_daemon.option[0] = config;
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
}

TEST(no_descriptor_is_left_by_upgrades)
{
    char lock[300];
    dlx_test_store_leave_messages("test/a", &dlx_test_retain_1, 3);
    dlx_test_store_leave_messages("test/b", &dlx_test_retain_2, 3);
    /* The daemon's own descriptors, and the regions of two topics. */
    dlx_test_upgrade();
    size_t n_fds = dlx_test_daemon_n_fds(&dlx_test_stream_daemon);
    for (int i = 0; i < 50; i++) {
        auto_pair x = dlx_test_pair_make(NULL, NULL);
        dlx_test_upgrade();
    }
    dlx_test_daemon_wait_n_fds(&dlx_test_stream_daemon, n_fds);
    dlx_test_store_check_there("test/a", 3, 3);
    dlx_test_store_drop("test/a");
    dlx_test_store_drop("test/b");
    dlx_test_daemon_wait_n_fds(&dlx_test_stream_daemon, n_fds - 4);
    /* The lock of the daemon was there all along. */
    (void)dlx_test_daemon_refuses(dlx_test_stream_daemon.path, 1, "another dlpackd (pid ");
    /* The daemon removes its files. */
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
    ck_assert_int_lt(access(dlx_test_stream_daemon.path, F_OK), 0);
    (void)snprintf(lock, sizeof lock, "%s.lock", dlx_test_stream_daemon.path);
    ck_assert_int_lt(access(lock, F_OK), 0);
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
}

static void pass_socket(void *fd)
{
    dlx_test_pass_sockets(fd, 1, "dlpackd.socket");
}

TEST(a_socket_of_the_service_manager_is_handed_on)
{
    struct dlx_test_daemon *daemon = &dlx_test_stream_daemon;
    char lock[300];
    ck_assert_int_eq(dlx_test_daemon_stop(daemon), 0);
    auto_fd fd = dlx_test_listen(daemon->path, SOCK_SEQPACKET);
    dlx_test_daemon_start_prepared(daemon, pass_socket, &fd);
    dlx_test_store_leave_messages("test/a", &dlx_test_retain_1, 3);
    for (int i = 0; i < 3; i++) {
        dlx_test_upgrade_to_new();
        dlx_test_store_check_there("test/a", 3, 3);
    }
    (void)snprintf(lock, sizeof lock, "%.255s.lock", daemon->path);
    ck_assert_int_lt(access(lock, F_OK), 0);
    ck_assert_int_eq(dlx_test_daemon_stop(daemon), 0);
    ck_assert_int_eq(access(daemon->path, F_OK), 0); /* it is not the daemon's */
    (void)unlink(daemon->path);
    dlx_test_daemon_start(daemon, NULL);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_upgrade_case("upgrade"));
}
