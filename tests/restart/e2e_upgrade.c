/* SPDX-License-Identifier: Apache-2.0 */

/* Another program takes the daemon's place in the same process: docs/decisions/0030. Nothing is
 * lost. */

#include "tests/harness/fork.h"
#include "tests/harness/store.h"
#include "tests/harness/upgrade.h"
#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <sys/un.h>

enum { UPGRADES = 20 };

/* The figures of docs/decisions/0030: DLX_FIGURES=1. */
static void tell(const char *what, uint64_t ns)
{
    if (getenv("DLX_FIGURES"))
        (void)fprintf(stderr, "%s: %.1f ms\n", what, (double)ns / 1e6);
}

/* ---- streams --------------------------------------------------------------------------------- */

static struct {
    struct dlx_client *c;
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
                       PUBLISH(.timeout_ns = PATIENCE)));
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

static void await_taken(uint64_t n)
{
    uint64_t deadline = dlx__deadline(PATIENCE);
    while (atomic_load(&stream.n_taken) < n) {
        ck_assert_uint_lt(dlx__now_ns(), deadline);
        (void)poll(NULL, 0, 1);
    }
}

/* The new daemon has been told of the publisher. */
static void await_publisher(void)
{
    uint64_t deadline = dlx__deadline(PATIENCE);
    while (dlx_test_store_n_publishers() == 0) {
        ck_assert_uint_lt(dlx__now_ns(), deadline);
        (void)poll(NULL, 0, 1);
    }
}

TEST(a_stream_loses_nothing_through_upgrades)
{
    struct dlx_subscribe_args reliable = {.size = sizeof reliable, .reliable = true};
    struct dlx_subscription_stats stats = {.size = sizeof stats};
    pthread_t threads[2];
    memset(&stream, 0, sizeof stream);
    atomic_store(&stream.to, UINT64_MAX);
    stream.c = dlx_test_stream_connect();
    auto_client *other = dlx_test_stream_connect();
    ok(dlx_publisher_new(stream.c, "test/a", PUBLISHER(.on_full = DLX_ON_FULL_BLOCK), &stream.p));
    ok(dlx_subscribe(other, "test/a", &reliable, &stream.s));
    ck_assert_int_eq(pthread_create(&threads[0], NULL, take_all, NULL), 0);
    ck_assert_int_eq(pthread_create(&threads[1], NULL, publish_all, NULL), 0);
    for (int i = 0; i < UPGRADES; i++) {
        await_taken(atomic_load(&stream.n_published) + 50);
        dlx_test_upgrade_to_new();
        await_publisher();
    }
    await_taken(atomic_load(&stream.n_published) + 50);
    atomic_store(&stream.stop, true);
    ck_assert_int_eq(pthread_join(threads[1], NULL), 0);
    /* One more, which is the last: the reader waits for it. */
    uint64_t n = atomic_load(&stream.n_published) + 1;
    atomic_store(&stream.to, n);
    dlx_test_stream_publish(stream.p, 10, (int64_t)n);
    ck_assert_int_eq(pthread_join(threads[0], NULL), 0);
    ck_assert_uint_eq(atomic_load(&stream.n_taken), n);
    ok(dlx_subscription_get_stats(stream.s, &stats));
    ck_assert_uint_eq(stats.lost, 0);
    ck_assert_uint_eq(stats.taken, n);
    tell("longest call of dlx_publish()", stream.longest_publish_ns);
    tell("longest time between two messages that were taken", stream.longest_take_ns);
    dlx_subscription_unref(stream.s);
    dlx_publisher_unref(stream.p);
    dlx_client_unref(stream.c);
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
    const struct dlx_connect_args args = {
        .size = sizeof args, .socket = dlx_test_stream_daemon.path, .timeout_ns = PATIENCE};
    dlx_test_store_leave_messages("test/a", &dlx_test_retain_1, 3);
    atomic_store(&done, false);
    pthread_t thread = dlx_test_stream_thread(upgrade_all, &done);
    while (!atomic_load(&done)) {
        auto_client *c = NULL;
        auto_message *m = NULL;
        uint64_t before = dlx__now_ns();
        int r = dlx_connect(&c, &args);
        if (r < 0) /* nobody says Assert here: another thread does */
            _exit(2);
        /* The daemon's place may be taken between the call and its answer. */
        while ((r = dlx_get(c, "test/a", PATIENCE, &m)) == DLX_E_DISCONNECTED)
            ;
        if (r < 0 || ((const int64_t *)dlx_message_peek(m, 0)->data)[0] != 3)
            _exit(3);
        longest = DLX_MAX(longest, dlx__now_ns() - before);
        n++;
    }
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_uint_ge(n, UPGRADES);
    tell("longest time until a newcomer had a message", longest);
}

/* ---- what is retained ------------------------------------------------------------------------ */

/* The library of the publishers does not run meanwhile: they make no call. */
TEST(what_idle_live_publishers_retain_is_there_at_once)
{
    const struct dlx_publisher_args latched = {
        .size = sizeof latched, .retain = 2, .retain_for_ns = DLX_RETAIN_LATCHED};
    struct dlx_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p = dlx_test_store_publisher(c, "test/a", &dlx_test_retain_2),
                         *l = dlx_test_store_publisher(c, "test/l", &latched);
    for (int64_t i = 1; i <= 5; i++) {
        dlx_test_stream_publish(p, 100, i);
        dlx_test_stream_publish(l, 100, i);
    }
    dlx_test_store_leave_messages("test/b", &dlx_test_retain_1, 3);
    for (int i = 0; i < 3; i++) {
        dlx_test_upgrade();
        ck_assert_int_eq(dlx_test_store_n_publishers(), 3);
        dlx_test_store_check_there("test/a", 4, 5);
        dlx_test_store_check_there("test/l", 4, 5);
        dlx_test_store_check_there("test/b", 3, 3);
    }
    /* They go on, and newcomers with them. */
    struct dlx_client *other = dlx_test_stream_connect();
    struct dlx_subscription *s = dlx_test_stream_subscribe(other, "test/*", NULL);
    dlx_subscription_unref(s);
    ok(dlx_subscribe(other, "test/a", NULL, &s));
    dlx_test_store_take(s, 4, 4);
    dlx_test_stream_publish_all(p, 100, 6, 10);
    dlx_test_store_take(s, 5, 10);
    dlx_subscription_unref(s);
    dlx_publisher_unref(p);
    dlx_publisher_unref(l);
    dlx_client_unref(other);
    dlx_client_unref(c);
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
    for (uint64_t until = dlx__deadline(PATIENCE); dlx_test_store_n_publishers() > 0;)
        ck_assert_uint_lt(dlx__now_ns(), until);
}

TEST(more_than_a_service_manager_keeps_survives)
{
    enum { N = 2000 };
    static struct dlx_publisher *publishers[N];
    const int n = dlx_test_valgrind() ? 300 : N; /* which takes a minute there */
    char topic[32], words[100];
    struct rlimit files;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
    if (files.rlim_max < 8 * N) {
        printf("SKIP: %d topics need %d descriptors (ulimit -Hn)\n", N, 8 * N);
        return;
    }
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

/* ---- signals and descriptors ----------------------------------------------------------------- */

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
    dlx_test_stream_restart(); /* nobody reads what it says any more */
}

TEST(the_file_that_runs_is_not_replaced_by_itself)
{
    dlx_test_upgrade_signal(SIGHUP);
    dlx_test_upgrade_await("read the configuration again");
    dlx_test_upgrade_to_new();
    dlx_test_upgrade_signal(SIGHUP);
    dlx_test_upgrade_await("read the configuration again");
}

TEST(no_descriptor_is_left_by_upgrades)
{
    char log[512];
    struct dlx_client *c = dlx_test_stream_connect();
    dlx_test_store_leave_messages("test/a", &dlx_test_retain_1, 3);
    dlx_test_store_leave_messages("test/b", &dlx_test_retain_2, 3);
    dlx_client_unref(c);
    /* What it has of its own, and the regions of two topics. */
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
    /* Its lock was there all along. */
    ck_assert_int_eq(dlx_test_daemon_fail(dlx_test_stream_daemon.path, log, sizeof log), 1);
    ck_assert_msg(strstr(log, "another dlpackd (pid "), "%s", log);
    /* What it made it removes. */
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
    ck_assert_int_lt(access(dlx_test_stream_daemon.path, F_OK), 0);
    (void)snprintf(log, sizeof log, "%s.lock", dlx_test_stream_daemon.path);
    ck_assert_int_lt(access(log, F_OK), 0);
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
}

/* In the child: its descriptor 3 is the socket. */
static void pass_socket(void *fd)
{
    char pid[16];
    if (dup2(*(int *)fd, 3) < 0)
        _exit(125);
    (void)snprintf(pid, sizeof pid, "%d", (int)getpid());
    setenv("LISTEN_PID", pid, 1);
    setenv("LISTEN_FDS", "1", 1);
}

TEST(a_socket_of_the_service_manager_is_handed_on)
{
    struct dlx_test_daemon *daemon = &dlx_test_stream_daemon;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char lock[300];
    ck_assert_int_eq(dlx_test_daemon_stop(daemon), 0);
    memcpy(address.sun_path, daemon->path, strlen(daemon->path));
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(fd, 16), 0);
    dlx_test_daemon_start_prepared(daemon, pass_socket, &fd);
    dlx_test_store_leave_messages("test/a", &dlx_test_retain_1, 3);
    for (int i = 0; i < 3; i++) {
        dlx_test_upgrade_to_new();
        dlx_test_store_check_there("test/a", 3, 3);
    }
    (void)snprintf(lock, sizeof lock, "%s.lock", daemon->path);
    ck_assert_int_lt(access(lock, F_OK), 0);
    ck_assert_int_eq(dlx_test_daemon_stop(daemon), 0);
    ck_assert_int_eq(access(daemon->path, F_OK), 0); /* it is not the daemon's */
    close(fd);
    (void)unlink(daemon->path);
    dlx_test_daemon_start(daemon, NULL);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_upgrade_case("upgrade"));
}
