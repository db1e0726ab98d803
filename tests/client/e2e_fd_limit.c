/* SPDX-License-Identifier: Apache-2.0 */

/* Processes at their limit of open files, and replies that come too late: nothing is lost, and
 * nothing stays with the daemon. */

#include "tests/harness/fds.h"
#include "tests/harness/fork.h"
#include "tests/harness/stream.h"
#include <sys/resource.h>

static struct rlimit limit;

static bool has_limit(void)
{
    if (dlx_test_valgrind())
        puts("SKIP: valgrind keeps RLIMIT_NOFILE to itself");
    return !dlx_test_valgrind();
}

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

/* The daemon has nothing more than it had. */
static bool is_as_before(struct dlx_client *c, const struct dlx_daemon_info *before)
{
    struct dlx_daemon_info now = dlx_test_stream_daemon_info(c);
    return now.n_publishers == before->n_publishers && now.n_links == before->n_links &&
           now.shared_bytes == before->shared_bytes;
}

static int publisher_new(struct dlx_client *c, struct dlx_publisher **ret)
{
    return dlx_publisher_new(c, "test/b", NULL, ret);
}

TEST(calls_without_room_fail_and_leave_nothing)
{
    if (!has_limit())
        return;
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
        for (rlim_t i = 0; i < 3; i++)
            ck_assert_int_eq(codes[i], room + i < 3 ? DLX_E_FD_LIMIT : 0);
        eventually(is_as_before(x.c, &before));
    }
    dlx_test_daemon_wait_n_fds(&dlx_test_stream_daemon, fds);
    /* The connection is as it was. */
    dlx_test_stream_publish(x.p, 1 << 20, 2);
    for (int64_t i = 1; i <= 2; i++) {
        auto_message *m = dlx_test_stream_next(x.s);
        ck_assert_int_eq(((const int64_t *)dlx_message_tensor_peek(m, 0)->data)[0], i);
    }
}

/* The daemon stands still until the call has given up. */
TEST(replies_that_come_too_late_leave_nothing)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    auto_client *c = NULL;
    auto_publisher *p = NULL;
    struct dlx_publisher *late = NULL;
    struct dlx_subscription *s = NULL;
    DLManagedTensorVersioned *t = NULL;
    const int64_t shape = 1 << 20;
    const struct dlx_tensor_spec spec = INT64_SPEC(&shape);
    eventually(dlx_connect(CONNECT(.timeout_ns = SECOND / 50), &c) == 0);
    eventually(publisher_new(c, &p) == 0);
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
    eventually(dlx_client_get_daemon_info(c, &info) == 0);
    eventually(is_as_before(x.c, &before));
}

/* When it is told to, subscribes, says so, and takes until the last of n messages. */
static void subscribe_when_told(const struct dlx_test_peer *peer, bool reliable, uint64_t n)
{
    dlx_test_peer_hear(peer);
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", SUBSCRIBE(.reliable = reliable));
    dlx_test_peer_say(peer);
    for (uint64_t seq = 0; seq < n;) { /* one that is not reliable may have been overtaken */
        auto_message *m = dlx_test_stream_next(s);
        seq = dlx_message_seq(m);
        dlx_test_stream_check(m, 10, (int64_t)seq);
        ck_assert(!reliable || dlx_message_gap(m) == 0);
    }
}

/*
 * Its links wait in their socket until it has room, and hold everything until then. A publisher
 * that blocks waits for them when it is `depth` ahead, and says so.
 */
LOOP_TEST(a_publisher_without_room_attaches_subscribers_later, 0, 2)
{
    enum { DEPTH = 8, N = 20 };
    const bool blocks = _i == DLX_ON_FULL_BLOCK;
    if (!has_limit())
        return;
    struct dlx_test_peer peer = dlx_test_fork_peer();
    if (peer.pid == 0) {
        subscribe_when_told(&peer, blocks, N);
        _exit(0);
    }
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p =
        dlx_test_stream_publisher(c, "test/a", PUBLISHER(.depth = DEPTH, .on_full = (uint32_t)_i));
    DLManagedTensorVersioned *t[N]; /* their arenas need room, too */
    for (int i = 0; i < N; i++)
        t[i] = dlx_test_stream_alloc(p, 10, i + 1);
    leave_room(1);
    dlx_test_peer_say(&peer);
    dlx_test_peer_hear(&peer);
    int n = 0, r = 0;
    while (n < N - 1 && (r = dlx_publish(p, t[n], NULL, NULL)) == 0)
        n++;
    char why[512];
    (void)snprintf(why, sizeof why, "%s", dlx_errmsg());
    int waited = dlx_publisher_wait(p, 1, SECOND / 50); /* and does not spin */
    give_room();
    if (blocks)
        ck_assert_msg(n == DEPTH && r == DLX_E_FULL && strstr(why, "open files"), "%d, %d: %s", n,
                      r, why);
    else
        ck_assert_int_eq(n, N - 1);
    ck_assert_int_eq(waited, DLX_E_TIMEOUT);
    for (; n < N; n++)
        ok(dlx_publish(p, t[n], PUBLISH(.timeout_ns = PATIENCE), NULL));
    dlx_test_peer_join(&peer);
}

/* dlx_take() tells the subscriber of the lack, and of the publisher once there is room. */
TEST(a_subscriber_without_room_attaches_later)
{
    if (!has_limit())
        return;
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    struct dlx_message *m = NULL;
    struct dlx_test_peer peer = dlx_test_fork_peer();
    if (peer.pid == 0) {
        struct dlx_client *other = dlx_test_stream_connect();
        struct dlx_publisher *p = dlx_test_stream_publisher(other, "test/a", NULL);
        dlx_test_stream_publish(p, 10, 1);
        dlx_test_peer_hear(&peer);
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
    dlx_test_peer_say(&peer);
    dlx_test_peer_join(&peer);
}
