/* SPDX-License-Identifier: Apache-2.0 */

/* A publisher that makes no call, and many who come, read, leave and die meanwhile. */

#include "tests/harness_fork.h"
#include "tests/harness_stream.h"
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#define N 100

static const struct dlx_publisher_args retain_4 = {.size = sizeof retain_4, .retain = 4};

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
static pid_t spawn_reader(int *ret_fd)
{
    int fds[2];
    ck_assert_int_eq(pipe(fds), 0);
    pid_t pid = dlx_test_fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        struct dlx_client *c = dlx_test_stream_connect();
        struct dlx_subscription *s = NULL;
        ok(dlx_subscribe(c, "test/a", NULL, &s));
        (void)read_four(s); /* killed with one that it holds */
        ck_assert_int_eq(write(fds[1], "", 1), 1);
        for (;;)
            pause();
    }
    close(fds[1]);
    *ret_fd = fds[0];
    return pid;
}

START_TEST(a_hundred_come_and_go_while_the_publisher_sleeps)
{
    size_t fds_before = dlx_test_daemon_n_fds(&dlx_test_stream_daemon);
    struct dlx_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    struct dlx_publisher *p = NULL;
    struct dlx_publisher_stats stats = {.size = sizeof stats};
    struct dlx_subscription *stay[N / 4];
    struct dlx_message *held[N / 4];
    pid_t pids[N / 4];
    int fds[N / 4];
    ok(dlx_publisher_new(c, "test/a", &retain_4, &p));
    for (int64_t i = 1; i <= 4; i++)
        dlx_test_stream_publish(p, 100, i);
    size_t fds_asleep = dlx_test_daemon_n_fds(&dlx_test_stream_daemon);
    /* From here on the publisher makes no call. */
    for (int i = 0; i < N / 4; i++)
        pids[i] = spawn_reader(&fds[i]);
    for (int i = 0; i < N / 2; i++) {
        struct dlx_subscription *s = NULL;
        ok(dlx_subscribe(other, "test/a", NULL, &s));
        if (i % 2 == 0) {
            stay[i / 2] = s;
            continue;
        }
        held[i / 2] = read_four(s); /* longer than its subscription is there */
        dlx_subscription_unref(s);
    }
    for (int i = 0; i < N / 4; i++) {
        char byte;
        ck_assert_int_eq(read(fds[i], &byte, 1), 1);
        close(fds[i]);
        ck_assert_int_eq(kill(pids[i], SIGKILL), 0);
        ck_assert_int_eq(waitpid(pids[i], NULL, 0), pids[i]);
        pids[i] = spawn_reader(&fds[i]); /* and another one, who lives */
    }
    for (int i = 0; i < N / 4; i++) {
        char byte;
        dlx_message_unref(read_four(stay[i]));
        ck_assert_int_eq(read(fds[i], &byte, 1), 1);
    }
    /* It wakes up: half of them are there, and get what comes. */
    ok(dlx_publisher_get_stats(p, &stats));
    dlx_test_stream_publish(p, 100, 5);
    for (int i = 0; i < N / 4; i++) {
        struct dlx_message *m = NULL;
        ok(dlx_take(stay[i], PATIENCE, &m));
        dlx_test_stream_check(m, 100, 5);
        dlx_message_unref(m);
        dlx_subscription_unref(stay[i]);
        close(fds[i]);
        ck_assert_int_eq(kill(pids[i], SIGKILL), 0);
        ck_assert_int_eq(waitpid(pids[i], NULL, 0), pids[i]);
    }
    for (int i = 0; i < N / 4; i++) {
        dlx_test_stream_check(held[i], 100, 4);
        dlx_message_unref(held[i]);
    }
    dlx_test_daemon_wait_n_fds(&dlx_test_stream_daemon, fds_asleep);
    ok(dlx_publisher_wait(p, 0, 0));
    dlx_test_stream_publish(p, 100, 6);
    ok(dlx_publisher_get_stats(p, &stats));
    ck_assert_uint_eq(stats.n_subscribers, 0);
    dlx_publisher_unref(p);
    ok(dlx_retained_drop(other, "test/a"));
    struct dlx_daemon_info info = {.size = sizeof info};
    ok(dlx_client_get_daemon_info(other, &info));
    ck_assert_uint_eq(info.shared_bytes, 0);
    ck_assert_uint_eq(info.n_links, 0);
    dlx_client_unref(c);
    dlx_client_unref(other);
    dlx_test_daemon_wait_n_fds(&dlx_test_stream_daemon, fds_before);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("asleep");
    TCase *tcase = dlx_test_stream_case("asleep");
    tcase_add_test(tcase, a_hundred_come_and_go_while_the_publisher_sleeps);
    suite_add_tcase(suite, tcase);
    return dlx_test_run(suite);
}
