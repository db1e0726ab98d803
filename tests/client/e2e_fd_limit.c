/* SPDX-License-Identifier: Apache-2.0 */

/* Processes at their limit of open files, and replies that come too late: nothing is lost, and
 * nothing stays with the daemon. */

#include "tests/harness/fds.h"
#include "tests/harness/fork.h"
#include "tests/harness/stream.h"
#include <sys/resource.h>
#include <time.h>

static struct rlimit limit;

/* Room for so many descriptors more, and none beyond: gaps are filled. */
static void leave_room(rlim_t room)
{
    struct rlimit low;
    int next = dlx_test_fds_dup(0);
    close(next);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    low = limit;
    low.rlim_cur = (rlim_t)next + room;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
}

static void give_room(void)
{
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* Until the daemon has nothing more than it had. */
static void wait_for_baseline(struct dlx_client *c, const struct dlx_daemon_info *before)
{
    for (time_t end = time(NULL) + PATIENCE_S;;) {
        struct dlx_daemon_info now = dlx_test_stream_daemon_info(c);
        if (now.n_publishers == before->n_publishers && now.n_links == before->n_links &&
            now.shared_bytes == before->shared_bytes)
            return;
        ck_assert_msg(time(NULL) < end, "%u publishers, %u links, %lu bytes are left",
                      now.n_publishers, now.n_links, (unsigned long)now.shared_bytes);
    }
}

static int publisher_new(struct dlx_client *c, struct dlx_publisher **ret)
{
    return dlx_publisher_new(c, "test/b", NULL, ret);
}

START_TEST(calls_without_room_fail_and_leave_nothing)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    dlx_test_stream_publish(x.p, 10, 1);
    const struct dlx_daemon_info before = dlx_test_stream_daemon_info(x.c);
    size_t fds = dlx_test_daemon_n_fds(&dlx_test_stream_daemon);
    const int64_t shape = 1 << 20;
    const struct dlx_tensor_spec spec = INT64_SPEC(&shape);
    for (rlim_t room = 0; room < 3; room++) { /* a publisher has three descriptors */
        struct dlx_publisher *p = NULL;
        struct dlx_subscription *s = NULL;
        DLManagedTensorVersioned *t = NULL;
        leave_room(room);
        int codes[] = {publisher_new(x.c, &p),
                       room < 2 ? dlx_subscribe(x.c, "test/b", NULL, &s) : 0,
                       room < 1 ? dlx_alloc(x.p, &spec, &t) : 0};
        give_room();
        ck_assert_int_eq(codes[0], DLX_E_FD_LIMIT);
        ck_assert_int_eq(codes[1], room < 2 ? DLX_E_FD_LIMIT : 0);
        ck_assert_int_eq(codes[2], room < 1 ? DLX_E_FD_LIMIT : 0);
        wait_for_baseline(x.c, &before);
    }
    for (time_t end = time(NULL) + PATIENCE_S;
         dlx_test_daemon_n_fds(&dlx_test_stream_daemon) != fds;)
        ck_assert_int_lt(time(NULL), end);
    /* The connection is as it was. */
    dlx_test_stream_publish(x.p, 1 << 20, 2);
    for (int64_t i = 1; i <= 2; i++) {
        auto_message *m = dlx_test_stream_next(x.s);
        ck_assert_int_eq(((const int64_t *)dlx_message_peek(m, 0)->data)[0], i);
    }
}
END_TEST

/* The daemon stands still until the call has given up. */
TEST(replies_that_come_too_late_leave_nothing)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_connect_args args = {
        .size = sizeof args, .socket = dlx_test_stream_daemon.path, .timeout_ns = SECOND / 50};
    auto_client *c = NULL;
    struct dlx_publisher *p = NULL, *late = NULL;
    struct dlx_subscription *s = NULL;
    DLManagedTensorVersioned *t = NULL;
    const int64_t shape = 1 << 20;
    const struct dlx_tensor_spec spec = INT64_SPEC(&shape);
    for (time_t end = time(NULL) + PATIENCE_S; dlx_connect(&c, &args) < 0;)
        ck_assert_int_lt(time(NULL), end);
    for (time_t end = time(NULL) + PATIENCE_S; publisher_new(c, &p) < 0;)
        ck_assert_int_lt(time(NULL), end);
    const struct dlx_daemon_info before = dlx_test_stream_daemon_info(x.c);
    for (int i = 0; i < 3; i++) {
        dlx_test_daemon_pause(&dlx_test_stream_daemon);
        int r = i == 0   ? publisher_new(c, &late)
                : i == 1 ? dlx_subscribe(c, "test/b", NULL, &s)
                         : dlx_alloc(p, &spec, &t);
        ck_assert_int_eq(kill(dlx_test_stream_daemon.pid, SIGCONT), 0);
        ck_assert_int_eq(r, DLX_E_TIMEOUT);
    }
    /* The next call reads what is late. */
    struct dlx_daemon_info info = {.size = sizeof info};
    for (time_t end = time(NULL) + PATIENCE_S; dlx_client_get_daemon_info(c, &info) < 0;)
        ck_assert_int_lt(time(NULL), end);
    wait_for_baseline(x.c, &before);
    dlx_publisher_unref(p);
}

/*
 * Its links wait in their socket until it has room, and hold everything until then. A publisher
 * that blocks waits for them when it is `depth` ahead, and says so.
 */
START_TEST(a_publisher_without_room_attaches_subscribers_later)
{
    enum { DEPTH = 8, N = 20 };
    const bool blocks = _i == DLX_ON_FULL_BLOCK;
    int begin[2], attached[2];
    char byte = 0;
    ck_assert_int_eq(pipe(begin), 0);
    ck_assert_int_eq(pipe(attached), 0);
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        struct dlx_subscribe_args sa = {.size = sizeof sa, .reliable = blocks};
        struct dlx_message *m = NULL;
        ck_assert_int_eq(read(begin[0], &byte, 1), 1);
        struct dlx_client *c = dlx_test_stream_connect();
        struct dlx_subscription *s = dlx_test_stream_subscribe(c, "test/a", &sa);
        ck_assert_int_eq(write(attached[1], "", 1), 1);
        do { /* one that is not reliable may have been overtaken */
            dlx_message_unref(m);
            ok(dlx_take(s, PATIENCE, &m));
            dlx_test_stream_check(m, 10, (int64_t)dlx_message_seq(m));
            ck_assert(!blocks || dlx_message_gap(m) == 0);
        } while (dlx_message_seq(m) < N);
        dlx_message_unref(m);
        dlx_subscription_unref(s);
        dlx_client_unref(c);
        _exit(0);
    }
    struct dlx_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p =
        dlx_test_stream_publisher(c, "test/a", PUBLISHER(.depth = DEPTH, .on_full = (uint32_t)_i));
    DLManagedTensorVersioned *t[N]; /* their arenas need room, too */
    for (int i = 0; i < N; i++)
        t[i] = dlx_test_stream_alloc(p, 10, i + 1);
    leave_room(1);
    ck_assert_int_eq(write(begin[1], "", 1), 1);
    ck_assert_int_eq(read(attached[0], &byte, 1), 1);
    int n = 0, r = 0;
    while (n < N - 1 && (r = dlx_publish(p, t[n], NULL)) == 0)
        n++;
    char why[512];
    (void)snprintf(why, sizeof why, "%s", dlx_client_errmsg(NULL));
    int waited = dlx_publisher_wait(p, 1, SECOND / 50); /* and does not spin */
    give_room();
    if (blocks)
        ck_assert_msg(n == DEPTH && r == DLX_E_FULL && strstr(why, "open files"), "%d, %d: %s", n,
                      r, why);
    else
        ck_assert_int_eq(n, N - 1);
    ck_assert_int_eq(waited, DLX_E_TIMEOUT);
    for (; n < N; n++)
        ok(dlx_publish(p, t[n], PUBLISH(.timeout_ns = PATIENCE)));
    dlx_test_fork_join(pid);
    dlx_publisher_unref(p);
    dlx_client_unref(c);
    for (int i = 0; i < 2; i++) {
        close(begin[i]);
        close(attached[i]);
    }
}
END_TEST

/* It hears so from dlx_take(), and of the publisher when it has room. */
START_TEST(a_subscriber_without_room_attaches_later)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_message *m = NULL;
    int begin[2];
    char byte;
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    ck_assert_int_eq(pipe(begin), 0);
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        close(begin[1]);
        struct dlx_client *other = dlx_test_stream_connect();
        struct dlx_publisher *p = dlx_test_stream_publisher(other, "test/a", NULL);
        dlx_test_stream_publish(p, 10, 1);
        ck_assert_int_eq(read(begin[0], &byte, 1), 0); /* until it is told, or its parent is gone */
        dlx_publisher_unref(p);
        dlx_client_unref(other);
        _exit(0);
    }
    leave_room(0);
    int r = dlx_take(s, PATIENCE, &m), again = dlx_take(s, PATIENCE, &m);
    give_room();
    ck_assert_int_eq(r, DLX_E_FD_LIMIT);
    ck_assert_int_eq(again, DLX_E_FD_LIMIT);
    dlx_test_stream_expect(s, 10, 1);
    close(begin[1]);
    dlx_test_fork_join(pid);
    close(begin[0]);
}
END_TEST

int main(void)
{
    TCase *tcase = dlx_test_stream_case("fd_limit");
    if (dlx_test_valgrind()) {
        puts("SKIP: valgrind keeps RLIMIT_NOFILE to itself");
    } else {
        tcase_add_test(tcase, calls_without_room_fail_and_leave_nothing);
        tcase_add_loop_test(tcase, a_publisher_without_room_attaches_subscribers_later, 0, 2);
        tcase_add_test(tcase, a_subscriber_without_room_attaches_later);
    }
    return dlx_test_run_case(tcase);
}
