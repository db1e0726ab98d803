/* SPDX-License-Identifier: Apache-2.0 */

/* A daemon that a program started ends when nobody is connected and nothing is retained, and not
 * before. */

#include "tests/harness/spawn.h"
#include <sys/syscall.h>

LOOP_TEST(what_is_retained_keeps_the_daemon, 0, 2)
{
    struct dlx_publisher_args args = {
        .size = sizeof args, .history = 1, .retain = 1, .retain_for_ns = _i * 3600 * SECOND};
    struct dlx_client *c = dlx_test_spawn_connect();
    pid_t pid = dlx_test_spawn_pid(c);
    struct pollfd gone = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    ck_assert_int_ge(gone.fd, 0);
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "test/a", &args);
    dlx_test_stream_publish(p, 64, 7);
    dlx_publisher_unref(p);
    dlx_client_unref(c);
    ck_assert_int_eq(poll(&gone, 1, 300), 0);
    c = dlx_test_spawn_connect();
    ck_assert_int_eq(dlx_test_spawn_pid(c), pid);
    ok(dlx_retained_drop(c, "test/a"));
    dlx_client_unref(c);
    ck_assert_int_eq(poll(&gone, 1, PATIENCE_MS), 1);
    close(gone.fd);
}

TEST(the_daemon_goes_when_what_was_retained_has_expired)
{
    struct dlx_client *c = dlx_test_spawn_connect();
    pid_t pid = dlx_test_spawn_pid(c);
    struct dlx_publisher *p = dlx_test_stream_publisher(
        c, "test/a", PUBLISHER(.history = 1, .retain = 1, .retain_for_ns = SECOND / 10));
    dlx_test_stream_publish(p, 64, 7);
    dlx_publisher_unref(p);
    dlx_client_unref(c);
    dlx_test_spawn_wait_end(pid);
}

int main(void)
{
    if (dlx_test_valgrind()) {
        printf("SKIP: valgrind has no pidfds, and its own way with clone()\n");
        return 77;
    }
    return dlx_test_run_case(dlx_test_spawn_case("idle"));
}
