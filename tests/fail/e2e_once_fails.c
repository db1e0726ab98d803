/* SPDX-License-Identifier: Apache-2.0 */

/* A call for which the kernel or the allocator has no memory just then is made again, and no peer
 * loses anything. Most were found by tests/fail/faults. */

#include "common/bell.h"
#include "tests/fail/harness_fail.h"
#include "tests/harness/stream.h"

#define LONG_NS UINT64_C(600000000000)

/* From now on the next `n` calls to it fail, also between assertions of Check, which make none. */
static struct dlx_test_fail lacking;

static void lack(const char *call, size_t n)
{
    lacking = (struct dlx_test_fail){.at = 1, .n_more = n - 1, .only = call};
    dlx_test_fail(&lacking);
}

/* At least so many were made. */
static void lack_no_more(size_t n)
{
    dlx_test_fail(NULL);
    ck_assert_uint_ge(lacking.n_calls, n);
    ck_assert_ptr_nonnull(lacking.call);
}

static void take_and_check(struct dlx_subscription *s, int64_t n, int64_t value)
{
    auto_message *m = dlx_test_stream_next(s);
    dlx_test_stream_check(m, n, value);
    ck_assert_uint_eq(dlx_message_gap(m), 0);
}

TEST(a_link_that_there_is_no_memory_for_is_picked_up_later)
{
    auto_pair x = dlx_test_pair_make(PUBLISHER(.depth = 3), NULL); /* which has not seen the link */
    lack("madvise", 2); /* the page of the link; the daemon looks at it twice */
    ok(dlx_publisher_wait(x.p, 1, PATIENCE));
    lack_no_more(2);
    for (int64_t i = 0; i < 100; i++) {
        dlx_test_stream_publish(x.p, 64, i);
        take_and_check(x.s, 64, i);
    }
}

TEST(a_publisher_may_end_with_a_link_that_it_had_no_memory_for)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    lack("madvise", 1000);
    fails(dlx_publisher_wait(x.p, 1, SECOND / 20), DLX_E_TIMEOUT, "0 of 1");
    x.p = dlx_publisher_unref(x.p);
    lack_no_more(1);
}

/* The packet is still in the socket: a connection is not given up, nor what depends on it. */
TEST(a_packet_that_the_kernel_had_no_memory_for_is_read_later)
{
    auto_client *c = dlx_test_stream_connect();
    lack("recvmsg", 3);
    (void)dlx_test_stream_daemon_info(c);
    lack_no_more(4);
}

TEST(a_bell_that_could_not_be_read_is_read_later)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    take_fails(x.s, SECOND / 100, DLX_E_TIMEOUT, "no message");
    dlx_test_stream_publish(x.p, 64, 1); /* rings: it has slept */
    take_and_check(x.s, 64, 1);
    lack("recv", 1);
    for (int64_t i = 2; i < 200; i++) { /* bells are read once in some */
        take_fails(x.s, 1, DLX_E_TIMEOUT, "no message");
        dlx_test_stream_publish(x.p, 64, i);
        take_and_check(x.s, 64, i);
    }
    lack_no_more(2);
}

TEST(a_message_that_there_is_no_memory_for_is_taken_later)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_message *m = NULL;
    dlx_test_stream_publish(x.p, 64, 1);
    dlx_test_stream_publish(x.p, 64, 2);
    lack("calloc", 1000);
    int r = dlx_take(x.s, SECOND, &m);
    lack_no_more(1);
    ck_assert_int_eq(r, DLX_E_NO_MEMORY);
    take_and_check(x.s, 64, 1);
    take_and_check(x.s, 64, 2);
}

/* The table of links has to grow, for a link that a publisher waits for or for a spare one. */
TEST(a_link_that_there_is_no_room_for_is_made_later)
{
    enum { N_PUBLISHERS = 9 };
    struct dlx_publisher *p[N_PUBLISHERS];
    struct dlx_message *m = NULL;
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, "calls/a", NULL);
    size_t n_failed = 0;
    for (int i = 0; i < N_PUBLISHERS; i++) {
        p[i] = dlx_test_stream_publisher(c, "calls/a", NULL);
        lack("realloc", 1000);
        int r = dlx_take(s, 0, &m);
        dlx_test_fail(NULL);
        ck_assert_msg(r == DLX_E_EMPTY || r == DLX_E_NO_MEMORY, "%d %s", r, dlx_errmsg());
        n_failed += lacking.call != NULL;
        dlx_test_stream_publish(p[i], 64, i);
        dlx_test_stream_expect(s, 64, i);
        take_fails(s, 0, DLX_E_EMPTY, "no message is there");
    }
    ck_assert_uint_gt(n_failed, 0);
    for (int i = 0; i < N_PUBLISHERS; i++)
        dlx_publisher_unref(p[i]);
}

/* 0: ENOBUFS, 1: EINTR */
LOOP_TEST(a_bell_that_fails_once_is_rung_again, 0, 2)
{
    int pair[2];
    char byte;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    lack("send", 1);
    lacking.way = (size_t)_i;
    bool rung = dlx__ring_bell(pair[0]);
    lack_no_more(2);
    ck_assert(rung);
    ck_assert_int_eq(recv(pair[1], &byte, 1, MSG_DONTWAIT), 1);
    ck_assert_int_lt(recv(pair[1], &byte, 1, MSG_DONTWAIT), 0);
    close(pair[0]);
    close(pair[1]);
}

/* Asks for a bell: the subscription's descriptor is readable when it rings. */
static void fall_asleep(struct dlx_subscription *s)
{
    for (int i = 0; i < 2; i++) {
        ck_assert_int_ge(dlx_subscription_fd(s), 0);
        take_fails(s, 0, DLX_E_EMPTY, "");
    }
    ck_assert(!dlx_test_is_readable(dlx_subscription_fd(s), 0));
}

TEST(a_bell_that_could_not_be_rung_is_rung_with_the_next_message)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 4, 1);
    fall_asleep(x.s);
    lack("send", 1);
    lacking.for_ns = LONG_NS;
    int r = dlx_publish(x.p, t, NULL, NULL);
    lack_no_more(DLX_BELL_TRIES);
    ok(r);
    ck_assert_uint_eq(lacking.n_calls, DLX_BELL_TRIES);
    ck_assert(!dlx_test_is_readable(dlx_subscription_fd(x.s), 0));
    dlx_test_stream_publish(x.p, 4, 2);
    dlx_test_wait_readable(dlx_subscription_fd(x.s));
    take_and_check(x.s, 4, 1);
    take_and_check(x.s, 4, 2);
}

/* The offer, LinkOpen and the announcement of each arena in turn. */
TEST(a_packet_that_could_not_be_dropped_is_handled_once)
{
    enum { N_MESSAGES = 7 };
    bool failed = true;
    size_t at;
    auto_client *c = dlx_test_stream_connect();
    for (at = 1; failed; at++) {
        auto_publisher *p =
            dlx_test_stream_publisher(c, "calls/a", PUBLISHER(.depth = 2 * N_MESSAGES));
        lacking = (struct dlx_test_fail){.at = at, .only = "recv"};
        dlx_test_fail(&lacking);
        auto_subscription *s = dlx_test_stream_subscribe(c, "calls/a", NULL);
        for (int i = 0; i < N_MESSAGES; i++) {
            dlx_test_stream_publish(p, INT64_C(1000) << i, i);
            take_and_check(s, INT64_C(1000) << i, i);
        }
        dlx_test_fail(NULL);
        ck_assert_uint_eq(dlx_test_stream_subscription_stats(s).n_publishers, 1);
        failed = lacking.call != NULL;
    }
    ck_assert_uint_gt(at, N_MESSAGES);
}

/* Less than PATIENCE: something comes at once, or never. */
#define SOON (INT64_C(5000000000))
/* The socket takes nothing for so long. */
#define FULL_NS UINT64_C(100000000)

/* Full from that packet on. */
static void fill_socket(size_t at)
{
    lacking = (struct dlx_test_fail){.at = at, .only = "sendmsg", .for_ns = FULL_NS};
    dlx_test_fail(&lacking);
}

/* An offered link has no answer yet: that is told, and the offer stays in the socket. */
static bool is_unanswered(int r)
{
    return r == DLX_E_NO_MEMORY && strstr(dlx_errmsg(), "no room for an answer");
}

/* Full from each packet on. Returns how many could not acknowledge, and subscribed all the same.
 * Any other failure is told at once. */
static size_t subscribe_when_full(struct dlx_client *c)
{
    size_t n_good = 0;
    bool failed = true;
    for (size_t at = 2; failed; at++) { /* the first one is Subscribe, which waits */
        struct dlx_subscription *s = NULL;
        fill_socket(at);
        int r = dlx_subscribe(c, "calls/*", NULL, &s);
        dlx_test_fail(NULL);
        ck_assert_msg(r == 0 || is_unanswered(r), "packet %zu: %s", at, dlx_errmsg());
        failed = lacking.call != NULL;
        n_good += r == 0 && failed;
        dlx_subscription_unref(s);
    }
    return n_good;
}

/* A pattern has more spare links than the daemon offers without an Ack. Which packet is one depends
 * on how fast it is. */
TEST(a_subscriber_that_could_not_acknowledge_tries_again)
{
    auto_client *c = NULL;
    ok(dlx_connect(CONNECT(.timeout_ns = SOON), &c));
    for (size_t n_good = 0; n_good < 3;)
        n_good += subscribe_when_full(c);
}

/* Takes all, in dlx_take() or on the descriptor, with a socket that is full from packet `at` on. */
static void take_all_when_full(struct dlx_subscription *s, int n_messages, size_t at, bool sleeps)
{
    struct pollfd pfd = {.fd = dlx_subscription_fd(s), .events = POLLIN};
    struct dlx_message *m = NULL;
    int n = 0, r = 0;
    fill_socket(at);
    while (n < n_messages && (r == 0 || is_unanswered(r))) {
        dlx_test_fail(&lacking);
        r = dlx_take(s, sleeps ? SOON : 0, &m);
        dlx_test_fail(NULL);
        n += r == 0;
        if (r == DLX_E_EMPTY)
            r = poll(&pfd, 1, (int)(SOON / 1000000)) == 1 ? 0 : DLX_E_TIMEOUT;
        m = dlx_message_unref(m);
    }
    ck_assert_msg(n == n_messages, "packet %zu: %s after %d messages", at, dlx_errmsg(), n);
}

/* Likewise of one that sleeps: 0 in dlx_take(), 1 on the descriptor; and there are more arenas than
 * come without an Ack. */
LOOP_TEST(a_subscriber_that_sleeps_and_could_not_acknowledge_tries_again, 0, 2)
{
    enum { N_MESSAGES = 7 };
    bool failed = true;
    auto_client *c = NULL;
    ok(dlx_connect(CONNECT(.timeout_ns = SOON), &c));
    for (size_t at = 1; failed; at++) {
        auto_subscription *s = dlx_test_stream_subscribe(c, "calls/a", NULL);
        auto_publisher *p =
            dlx_test_stream_publisher(c, "calls/a", PUBLISHER(.depth = 2 * N_MESSAGES));
        for (int i = 0; i < N_MESSAGES; i++)
            dlx_test_stream_publish(p, INT64_C(1000) << i, i);
        take_all_when_full(s, N_MESSAGES, at, _i == 0);
        failed = lacking.call != NULL;
    }
}
