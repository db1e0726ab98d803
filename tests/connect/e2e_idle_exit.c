/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon that a program started ends when no client is connected and nothing is retained, and not
 * before. */

#include "tests/harness/spawn.h"

/* Starts a daemon that retains a message: returns its pid. */
static pid_t retain_for(int64_t retain_for_ns)
{
    auto_client *c = dlx_test_spawn_connect();
    auto_publisher *p = dlx_test_stream_publisher(
        c, "test/a", PUBLISHER(.history = 1, .retain = 1, .retain_for_ns = retain_for_ns));
    dlx_test_stream_publish(p, 64, 7);
    return dlx_test_spawn_pid(c);
}

LOOP_TEST(retained_messages_keep_the_daemon, 0, 2)
{
    pid_t pid = retain_for(_i * 3600 * SECOND);
    dlx_test_spawn_stays(pid);
    struct dlx_client *c = dlx_test_spawn_connect();
    ck_assert_int_eq(dlx_test_spawn_pid(c), pid);
    ok(dlx_drop_retained(c, "test/a"));
    dlx_client_unref(c);
    dlx_test_spawn_wait_end(pid);
}

TEST(the_daemon_goes_when_what_was_retained_has_expired)
{
    pid_t pid = retain_for(SECOND / 10);
    dlx_test_spawn_wait_end(pid);
}

int main(void)
{
    if (dlx_test_skips(dlx_test_valgrind(), "valgrind has no pidfds, and its own way with clone()"))
        return 77;
    return dlx_test_run_case(dlx_test_spawn_case("idle"));
}
