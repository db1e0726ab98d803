/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/restart/harness_queues.h"
#include "tests/harness/fork.h"

void dlx_queues_do(struct dlx_subscription *s, uint64_t n, uint32_t attempt)
{
    struct dlx_message *m = NULL;
    int r = dlx_take(s, PATIENCE, &m);
    for (int k = 0; k < 4 && (r == DLX_E_PUBLISHER_GONE || r == DLX_E_DISCONNECTED); k++)
        r = dlx_take(s, PATIENCE, &m);
    ok(r);
    ck_assert_uint_eq(dlx_message_seq(m), n);
    ck_assert_uint_eq(dlx_message_attempt(m), attempt);
    dlx_test_stream_check(m, 100, (int64_t)n);
    ok(dlx_message_done(m));
    dlx_message_unref(m);
}

static uint32_t n_publishers(void)
{
    auto_client *c = dlx_test_stream_connect();
    return dlx_test_stream_daemon_info(c).n_publishers;
}

void dlx_queues_await_end(void)
{
    eventually(n_publishers() == 0);
}

static void do_all(uint64_t first, uint64_t last, uint32_t attempt)
{
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, DLX_QUEUES_TOPIC, DLX_QUEUES_WORKER);
    for (uint64_t n = first; n <= last; n++)
        dlx_queues_do(s, n, n == first ? attempt : 1);
}

/* The publisher publishes 1 to 5 and goes; a worker has done 1 and 2, and goes with 3. */
static void leave_messages(void)
{
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_publisher *p =
        dlx_test_stream_publisher(c, DLX_QUEUES_TOPIC, PUBLISHER(DLX_QUEUES_GROUPS));
    auto_subscription *s = dlx_test_stream_subscribe(other, DLX_QUEUES_TOPIC, DLX_QUEUES_WORKER);
    auto_message *m = NULL;
    dlx_test_stream_publish_all(p, 100, 1, 5);
    dlx_queues_do(s, 1, 1);
    dlx_queues_do(s, 2, 1);
    ok(dlx_take(s, PATIENCE, &m));
    ck_assert_uint_eq(dlx_message_seq(m), 3);
}

void dlx_queues_tell_left(void (*next_daemon)(void))
{
    leave_messages();
    for (int i = 0; i < 3; i++)
        next_daemon();
    do_all(3, 5, 2);
    dlx_queues_await_end();
}

/* No worker has come yet, so nobody has needed a claims page. */
void dlx_queues_tell_unseen(void (*next_daemon)(void))
{
    dlx_test_store_leave_messages(DLX_QUEUES_TOPIC, PUBLISHER(DLX_QUEUES_GROUPS), 3);
    next_daemon();
    do_all(1, 3, 1);
    dlx_queues_await_end();
}

static int see_away(const struct dlx_group_info *info, void *userdata)
{
    const pid_t *pid = userdata;
    ck_assert(info->away && !info->gone && info->declared);
    ck_assert_uint_eq(info->pid, (uint32_t)*pid);
    ck_assert_uint_eq(info->waiting, 3);
    return 1;
}

/* A live publisher whose library does not run, and which is killed before it could come again. */
void dlx_queues_tell_killed(void (*next_daemon)(void))
{
    pid_t pid = dlx_test_store_publish_elsewhere(PUBLISHER(DLX_QUEUES_GROUPS), 3);
    next_daemon();
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, DLX_QUEUES_TOPIC, DLX_QUEUES_WORKER);
    struct dlx_message *m = NULL;
    /* It lives, and will bring them along. The worker and whoever lists queues are told so. */
    char who[64];
    (void)snprintf(who, sizeof who, "pid %d) made no call since dlpackd was started again",
                   (int)pid);
    fails(dlx_take(s, 1, &m), DLX_E_TIMEOUT, who);
    ck_assert_int_eq(dlx_list_groups(c, DLX_QUEUES_TOPIC, see_away, &pid), 1);
    dlx_test_fork_kill(pid);
    for (uint64_t n = 1; n <= 3; n++)
        dlx_queues_do(s, n, 1);
    dlx_subscription_unref(s);
    s = NULL;
    dlx_queues_await_end();
}

/* A worker of a former daemon lives and has message 1: its number is not given to another one. */
void dlx_queues_tell_held(void (*next_daemon)(void))
{
    dlx_test_store_leave_messages(DLX_QUEUES_TOPIC, PUBLISHER(DLX_QUEUES_GROUPS), 2);
    struct dlx_test_child child = dlx_test_fork_child();
    if (child.pid == 0) {
        struct dlx_client *c = dlx_test_stream_connect();
        struct dlx_message *m = NULL;
        ok(dlx_take(dlx_test_stream_subscribe(c, DLX_QUEUES_TOPIC, DLX_QUEUES_WORKER), PATIENCE,
                    &m));
        ck_assert_uint_eq(dlx_message_seq(m), 1);
        dlx_test_fork_ready(&child);
    }
    pid_t pid = dlx_test_fork_wait_ready(&child);
    next_daemon();
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, DLX_QUEUES_TOPIC, DLX_QUEUES_WORKER);
    struct dlx_message *m = NULL;
    dlx_queues_do(s, 2, 1);
    int r = dlx_take(s, 0, &m);
    ck_assert_msg(r == DLX_E_EMPTY || r == DLX_E_PUBLISHER_GONE, "%d", r);
    dlx_test_fork_kill(pid);
    dlx_queues_do(s, 1, 2);
    dlx_subscription_unref(s);
    s = NULL;
    dlx_queues_await_end();
}

/* The next daemon answers nothing while the publisher ends, so that nobody can tell it. Its process
 * lives on. */
void dlx_queues_tell_silent(void (*next_daemon)(void))
{
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_publisher *p =
        dlx_test_stream_publisher(c, DLX_QUEUES_TOPIC, PUBLISHER(DLX_QUEUES_GROUPS));
    auto_subscription *s = dlx_test_stream_subscribe(other, DLX_QUEUES_TOPIC, DLX_QUEUES_WORKER);
    dlx_test_stream_publish_all(p, 100, 1, 4);
    dlx_queues_do(s, 1, 1);
    next_daemon();
    dlx_test_daemon_pause(&dlx_test_stream_daemon);
    dlx_publisher_unref(p);
    p = NULL;
    ck_assert_int_eq(kill(dlx_test_stream_daemon.pid, SIGCONT), 0);
    dlx_queues_do(s, 2, 1);
    dlx_subscription_unref(s);
    s = NULL;
    do_all(3, 4, 1);
    dlx_queues_await_end();
}

static void finish_in_silence(int sock, const void *userdata)
{
    struct dlx_client *c = dlx_test_stream_connect();
    struct dlx_message *m = NULL;
    struct dlx_subscription *s = dlx_test_stream_subscribe(c, DLX_QUEUES_TOPIC, DLX_QUEUES_WORKER);
    (void)userdata;
    ok(dlx_take(s, PATIENCE, &m));
    dlx_test_say(sock);
    dlx_test_hear(sock);
    ok(dlx_message_done(m));
    dlx_test_say(sock);
    dlx_test_hear(sock);
}

/* A worker of a former daemon finishes the last message, and makes no other call. */
void dlx_queues_tell_finished(void (*next_daemon)(void))
{
    struct dlx_test_part part;
    dlx_test_store_leave_messages(DLX_QUEUES_TOPIC, PUBLISHER(DLX_QUEUES_GROUPS), 1);
    part = dlx_test_part_begin(finish_in_silence, NULL);
    dlx_test_hear(part.sock);
    next_daemon();
    ck_assert_uint_eq(n_publishers(), 1);
    dlx_test_say(part.sock);
    dlx_test_hear(part.sock);
    dlx_queues_await_end();
    dlx_test_part_kill(&part);
}
