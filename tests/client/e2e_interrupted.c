/* SPDX-License-Identifier: Apache-2.0 */

/* A program that is stopped and continued runs no signal handler: its call goes on waiting. */

#include "tests/harness/fork.h"
#include "tests/harness/stream.h"

/* As proc_pid_stat(5) has it; 'Z' also for one that is not there. */
static char state_of(pid_t pid)
{
    char path[64], stat[512] = "";
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    size_t n = file ? fread(stat, 1, sizeof stat - 1, file) : 0;
    if (file)
        (void)fclose(file);
    stat[n] = '\0';
    const char *end = strrchr(stat, ')');
    return end && end[1] == ' ' ? end[2] : 'Z';
}

/* The child sleeps in the call that it is about to make; there it is stopped and continued. */
static void stop_and_continue(const struct dlx_test_peer *peer)
{
    char state;
    dlx_test_peer_hear(peer);
    for (int i = 0; i < 5; i++) {
        eventually((state = state_of(peer->pid)) == 'S' || state == 'Z');
        ck_assert_msg(state == 'S', "the wait has ended");
        ck_assert_int_eq(kill(peer->pid, SIGSTOP), 0);
        ck_assert_int_eq(waitpid(peer->pid, NULL, WUNTRACED), peer->pid);
        ck_assert_int_eq(kill(peer->pid, SIGCONT), 0);
    }
}

/* 0: in dlx_take(); 1: likewise, and its descriptor is used, too. */
LOOP_TEST(a_take_that_waits_is_stopped_and_continued, 0, 2)
{
    struct dlx_test_peer peer = dlx_test_fork_peer();
    auto_client *c = dlx_test_stream_connect();
    if (peer.pid == 0) {
        struct dlx_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
        ck_assert(_i == 0 || dlx_subscription_fd(s) >= 0);
        dlx_test_peer_say(&peer);
        dlx_test_stream_take(s, 1);
        _exit(0);
    }
    stop_and_continue(&peer);
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", NULL);
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    dlx_test_stream_publish(p, 10, 1);
    dlx_test_peer_join(&peer);
}

/* First for a subscriber, then for room. */
TEST(a_publisher_that_waits_is_stopped_and_continued)
{
    struct dlx_test_peer peer = dlx_test_fork_peer();
    auto_client *c = dlx_test_stream_connect();
    if (peer.pid == 0) {
        struct dlx_publisher *p =
            dlx_test_stream_publisher(c, "test/a", PUBLISHER_BLOCKING(.depth = 3));
        dlx_test_peer_say(&peer);
        ok(dlx_publisher_wait(p, 1, PATIENCE));
        dlx_test_stream_publish_all(p, 10, 1, 3);
        DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 10, 4);
        dlx_test_peer_say(&peer);
        ok(dlx_publish(p, t, PUBLISH(.timeout_ns = PATIENCE), NULL));
        dlx_publisher_unref(p);
        _exit(0);
    }
    stop_and_continue(&peer);
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", SUBSCRIBE_RELIABLY);
    stop_and_continue(&peer);
    dlx_test_stream_take_all(s, 1, 4);
    dlx_test_peer_join(&peer);
}
