/* SPDX-License-Identifier: Apache-2.0 */

/* dlx_publisher_fd(): a caller that polls publishes as soon as one that waits would. */

#include "tests/harness/fork.h"
#include "tests/harness/stream.h"

/* Publishes without waiting until that fails; the numbers go on from *n. */
static void publish_until_full(struct dlx_publisher *p, int64_t *n)
{
    int r = 0;
    while (r == 0) {
        DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 10, *n + 1);
        r = dlx_publish(p, t, NULL, NULL);
        if (r < 0)
            t->deleter(t);
        else
            ++*n;
    }
    ck_assert_int_eq(r, DLX_E_FULL);
}

TEST(the_fd_is_readable_when_there_is_room_again)
{
    auto_pair x = dlx_test_pair_make(PUBLISHER_BLOCKING(.depth = 4), SUBSCRIBE_RELIABLY);
    int fd = dlx_publisher_fd(x.p);
    int64_t n = 0, taken = 0;
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(dlx_publisher_fd(x.p), fd);
    ck_assert(dlx_test_is_readable(fd, 0));
    for (int round = 0; round < 3; round++) {
        publish_until_full(x.p, &n);
        ck_assert(!dlx_test_is_readable(fd, 0));
        dlx_test_stream_take(x.s, ++taken);
        dlx_test_wait_readable(fd);
    }
    ck_assert_int_eq(n, taken + 3);
}

enum { MANY = 20000 };

static void *take_all(void *userdata)
{
    struct dlx_test_pair *x = userdata;
    dlx_test_stream_take_all(x->s, 1, MANY);
    return NULL;
}

/* Also through restarts of the daemon: nothing rings while there is none. */
LOOP_TEST(no_room_is_missed, 0, 2)
{
    auto_pair x = dlx_test_pair_make(PUBLISHER_BLOCKING(.depth = 4), SUBSCRIBE_RELIABLY);
    int fd = dlx_publisher_fd(x.p);
    pthread_t thread = dlx_test_stream_thread(take_all, &x);
    for (int64_t n = 1; n <= MANY; n++) {
        if (_i == 1 && n % (MANY / 4) == 0)
            dlx_test_stream_restart();
        DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 10, n);
        for (int r; (r = dlx_publish(x.p, t, NULL, NULL)) != 0;) {
            ck_assert_int_eq(r, DLX_E_FULL);
            dlx_test_wait_readable(fd);
        }
    }
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_uint_eq(dlx_test_stream_stats(x.p).published, MANY);
}

TEST(the_fd_is_readable_when_a_subscriber_comes)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_subscription *s[2] = {NULL};
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", NULL);
    int fd = dlx_publisher_fd(p);
    for (uint32_t i = 0; i < 2; i++) {
        fails(dlx_publisher_wait(p, i + 1, 0), DLX_E_TIMEOUT, "subscribers");
        ck_assert(!dlx_test_is_readable(fd, 0));
        ok(dlx_subscribe(c, "test/a", NULL, &s[i]));
        while (dlx_publisher_wait(p, i + 1, 0) != 0)
            dlx_test_wait_readable(fd);
    }
    dlx_test_stream_unref_subscriptions(s, 2);
}

TEST(the_fd_is_readable_when_a_subscriber_dies)
{
    auto_client *c = dlx_test_stream_connect();
    int64_t n = 0;
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", PUBLISHER_BLOCKING(.depth = 4));
    int fd = dlx_publisher_fd(p);
    pid_t pid = dlx_test_stream_subscribe_elsewhere(SUBSCRIBE_RELIABLY);
    while (dlx_publisher_wait(p, 1, 0) != 0)
        dlx_test_wait_readable(fd);
    do /* it may be readable for nothing, but not for ever */
        publish_until_full(p, &n);
    while (dlx_test_is_readable(fd, 0));
    dlx_test_fork_kill(pid);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 10, n + 1);
    while (dlx_publish(p, t, NULL, NULL) != 0)
        dlx_test_wait_readable(fd);
}

TEST(the_fd_is_refused_without_a_publisher)
{
    fails(dlx_publisher_fd(NULL), DLX_E_INVALID, "dlx_publisher_fd");
}

/* The daemon's end is told; then nothing is, until there is room. */
TEST(without_a_daemon_it_is_readable_only_when_there_is_room)
{
    auto_pair x = dlx_test_pair_make(PUBLISHER_BLOCKING(.depth = 4), SUBSCRIBE_RELIABLY);
    int fd = dlx_publisher_fd(x.p), n_told = 0;
    int64_t n = 0, taken = 0;
    publish_until_full(x.p, &n);
    ck_assert(!dlx_test_is_readable(fd, 0));
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    dlx_test_wait_readable(fd);
    do
        publish_until_full(x.p, &n);
    while (++n_told < 4 && dlx_test_is_readable(fd, 200));
    ck_assert_int_lt(n_told, 4);
    for (int round = 0; round < 3; round++) {
        dlx_test_stream_take(x.s, ++taken);
        dlx_test_wait_readable(fd);
        publish_until_full(x.p, &n);
        ck_assert_int_eq(n, taken + 4);
    }
    /* The next one is found by the call that there is room for. */
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    dlx_test_stream_take(x.s, ++taken);
    dlx_test_wait_readable(fd);
    dlx_test_stream_take_all(x.s, taken + 1, n);
    dlx_test_stream_publish_once_joined(x.p, dlx_test_stream_alloc(x.p, 10, n + 1), x.s);
}

/* Nothing tells of a new daemon, so the descriptor does now and then: after 20 ms, 40, and so
 * on. */
TEST(without_a_daemon_who_waits_for_subscribers_looks_less_and_less_often)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", NULL);
    int fd = dlx_publisher_fd(p);
    ck_assert_int_eq(dlx_publisher_wait(p, 1, 0), DLX_E_TIMEOUT);
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    uint64_t began = dlx__now_ns();
    for (int i = 0; i < 6; i++) { /* the first one tells that the daemon is lost */
        dlx_test_wait_readable(fd);
        ck_assert_int_eq(dlx_publisher_wait(p, 1, 0), DLX_E_TIMEOUT);
    }
    ck_assert_uint_ge(dlx__now_ns() - began, UINT64_C(1000000) * (20 + 40 + 80 + 160));
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    auto_client *later = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(later, "test/a", NULL);
    for (int r = DLX_E_TIMEOUT; r != 0;) {
        struct dlx_message *m;
        dlx_test_wait_readable(fd);
        r = dlx_publisher_wait(p, 1, 0);
        ck_assert(r == 0 || r == DLX_E_TIMEOUT);
        ck_assert_int_eq(dlx_take(s, 0, &m), DLX_E_EMPTY); /* it does its part */
    }
}
