/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A publisher goes on with a new daemon, and closes or is killed before a subscriber has come
 * there: what it had published meanwhile is counted when its link ends.
 */

#include "client/publish/publisher_move.h"
#include "client/publish/publisher_link.h"
#include "tests/harness/fork.h"
#include "tests/restart/harness_restart.h"

/* Waits until the publisher announces itself to the new daemon. */
static void wait_for_daemon(struct dlx_publisher *p)
{
    uint64_t epoch = p->epoch;
    for (uint64_t until = dlx__deadline(PATIENCE); p->epoch == epoch; dlx_test_before(until))
        dlx__publisher_check(p, dlx__now_ns(), DLX_HURRY_NOW_AND_THEN, 0);
}

static void replace_daemon(struct dlx_publisher *p)
{
    dlx_test_stream_restart();
    wait_for_daemon(p);
}

static void publish_to(struct dlx_publisher *p, uint64_t last)
{
    while (p->core.head < last)
        dlx_test_stream_publish(p, 10, (int64_t)p->core.head + 1);
}

/* Closes the publisher, which does not wait for subscribers that have yet to come. */
static void close_at_once(struct dlx_publisher *p)
{
    p->watch.linger_ns = 0;
    dlx_publisher_unref(p);
}

/* Take what is there until the last publisher is gone. */
static void take_rest(struct dlx_restart_reader *r, int64_t timeout_ns)
{
    int code;
    for (uint64_t until = dlx__deadline(PATIENCE);
         (code = dlx_restart_read(r, timeout_ns)) != DLX_E_PUBLISHER_GONE; dlx_test_before(until))
        ck_assert(code == 0 || code == DLX_E_EMPTY || code == DLX_E_TIMEOUT);
}

/* The event of its only link's end. */
static void check_event(struct dlx_restart_reader *r, uint32_t kind)
{
    struct dlx_event e = {.size = sizeof e};
    ok(dlx_subscription_next_event(r->s, &e));
    ck_assert_uint_eq(e.kind, DLX_EVENT_JOINED);
    do
        ok(dlx_subscription_next_event(r->s, &e));
    while (e.kind == DLX_EVENT_RECONNECTED);
    ck_assert_uint_eq(e.kind, kind);
}

/* The ways to take, how many were taken before the daemon died, and how many daemons follow. */
static const struct way {
    enum dlx_mode mode;
    int64_t spin_ns, timeout_ns;
    bool has_fd;
    uint64_t n_before;
    int n_daemons;
} ways[] = {
    {.timeout_ns = SECOND, .n_before = 3, .n_daemons = 1},
    {.timeout_ns = SECOND, .n_before = 1, .n_daemons = 1},
    {.timeout_ns = SECOND, .n_before = 3, .n_daemons = 3},
    {.n_before = 2, .n_daemons = 2},
    {.has_fd = true, .n_before = 3, .n_daemons = 1},
    {.spin_ns = DLX_SPIN_ALWAYS, .timeout_ns = SECOND, .n_before = 3, .n_daemons = 1},
    {.mode = DLX_MODE_LATEST, .timeout_ns = SECOND, .n_before = 3, .n_daemons = 2},
};

LOOP_TEST(a_publisher_that_closes_before_subscribers_are_back_leaves_its_last_number, 0,
          DLX_ARRAY_SIZE(ways))
{
    const struct way *way = &ways[_i];
    struct dlx_publisher *p = dlx_test_stream_new_publisher("test/a", NULL);
    auto_reader r = dlx_restart_reader_make(SUBSCRIBE(.mode = way->mode, .spin_ns = way->spin_ns));
    for (uint64_t n = 1; n <= 3; n++) {
        publish_to(p, n);
        if (n <= way->n_before)
            dlx_restart_read_to(&r, n);
    }
    if (way->has_fd)
        ck_assert_int_ge(dlx_subscription_fd(r.s), 0);
    for (int i = 0; i < way->n_daemons; i++) {
        replace_daemon(p);
        publish_to(p, p->core.head + 6);
    }
    uint64_t n_missed = p->core.head - 3;
    close_at_once(p);
    take_rest(&r, way->timeout_ns);
    struct dlx_subscription_stats stats = dlx_restart_reader_stats(&r);
    ck_assert_uint_eq(stats.taken, 3);
    ck_assert_uint_eq(stats.lost, way->mode == DLX_MODE_LATEST ? 0 : n_missed);
    ck_assert_uint_eq(stats.skipped, way->mode == DLX_MODE_LATEST ? n_missed : 0);
    check_event(&r, DLX_EVENT_LEFT);
}

/* Odd: it keeps them only while it is there. */
LOOP_TEST(messages_that_a_publisher_leaves_with_the_new_daemon_are_not_lost, 0, 2)
{
    struct dlx_publisher *p = dlx_test_stream_new_publisher(
        "test/a", PUBLISHER(.retain = 2, .retain_for_ns = _i ? DLX_RETAIN_LATCHED : 0));
    auto_reader r = dlx_restart_reader_make(NULL);
    publish_to(p, 3);
    dlx_restart_read_to(&r, 3);
    replace_daemon(p);
    publish_to(p, 9);
    close_at_once(p);
    r.s->next_try_ns = UINT64_MAX; /* it leaves its link before it has another one */
    take_rest(&r, SECOND);
    ck_assert_uint_eq(dlx_restart_reader_stats(&r).lost, _i ? 6 : 4);
    check_event(&r, DLX_EVENT_LEFT);
    if (_i == 0) {
        r.s->next_try_ns = 0;
        ck_assert_int_eq(dlx_restart_read(&r, 0), DLX_E_DISCONNECTED); /* said once */
        dlx_restart_read_to(&r, 9);
        ck_assert_uint_eq(r.taken, 5);
        ck_assert_uint_eq(r.gaps, 4);
        ck_assert_uint_eq(dlx_restart_reader_stats(&r).lost, 4);
    }
}

/* A subscriber that does not look is sent four arenas, and then its daemon ends. Its publisher goes
 * on without a daemon, or (odd) with the next one. */
LOOP_TEST(a_subscriber_without_every_arena_hears_how_many_it_misses, 0, 2)
{
    static const int64_t sizes[] = {10, 3000, 9000, 30000, 70000};
    struct dlx_message *m = NULL;
    int code;
    dlx_set_debug(false); /* arenas have other sizes in it */
    struct dlx_publisher *p = dlx_test_stream_new_publisher("test/a", PUBLISHER(.depth = 32));
    auto_reader r = dlx_restart_reader_make(NULL);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(sizes); i++)
        dlx_test_stream_publish(p, sizes[i], 1);
    publish_to(p, 20);
    if (_i == 0)
        dlx_test_daemon_kill(&dlx_test_stream_daemon);
    else
        replace_daemon(p);
    publish_to(p, 25);
    close_at_once(p);
    while ((code = dlx_take(r.s, SECOND, &m)) != DLX_E_PUBLISHER_GONE) {
        ok(code);
        r.taken++;
        dlx_message_unref(m);
    }
    struct dlx_subscription_stats stats = dlx_restart_reader_stats(&r);
    ck_assert_uint_eq(stats.taken + stats.lost, 25);
    ck_assert_uint_gt(stats.lost, 0); /* they lie where it cannot look */
    if (_i == 0)
        dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
}

/* A publisher says anything over its bell, and hangs up: only its own messages seem to be lost.
 * Odd: also that the daemon has disconnected the subscriber, which one take then says. */
LOOP_TEST(lies_over_a_bell_cost_no_other_stream, 0, 2)
{
    uint8_t bytes[1000];
    int n_cut = 0;
    auto_publisher *p = dlx_test_stream_new_publisher("test/a", NULL);
    auto_publisher *liar = dlx_test_stream_new_publisher("test/a", NULL);
    auto_reader r = dlx_restart_reader_make(NULL);
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    ok(dlx_publisher_wait(liar, 1, PATIENCE));
    publish_to(p, 3);
    dlx_restart_read_to(&r, 3);
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(_i == 0 ? UINT8_MAX : i * 37);
    const struct dlx_publisher_link *publisher_link =
        (const void *)liar->core.links[0]; /* its first field */
    ck_assert_int_eq(send(publisher_link->bell, bytes, sizeof bytes, MSG_NOSIGNAL),
                     (int)sizeof bytes);
    ck_assert_int_eq(shutdown(publisher_link->bell, SHUT_RDWR), 0);
    for (uint64_t until = dlx__deadline(PATIENCE); dlx_restart_reader_stats(&r).n_publishers > 1;
         dlx_test_before(until)) {
        int code = dlx_restart_read(&r, SECOND / 100);
        n_cut += code == DLX_E_DISCONNECTED;
        ck_assert(code == DLX_E_TIMEOUT || code == DLX_E_DISCONNECTED);
    }
    ck_assert_int_eq(n_cut, _i);
    ck_assert_uint_le(dlx_restart_reader_stats(&r).lost, INT64_MAX);
    publish_to(p, 6);
    dlx_restart_read_to(&r, 6);
    ck_assert_uint_eq(r.gaps, 0);
}

/* A publisher in a process of its own: three messages, and six more when the daemon was
 * replaced. */
static void publish_until_killed(int sock, const void *none)
{
    (void)none;
    struct dlx_publisher *p = dlx_test_stream_publisher(dlx_test_stream_connect(), "test/a", NULL);
    dlx_test_say(sock);
    dlx_test_hear(sock);
    publish_to(p, 3);
    dlx_test_say(sock);
    dlx_test_hear(sock);
    wait_for_daemon(p);
    publish_to(p, 9);
    dlx_test_say(sock);
    for (;;)
        pause();
}

/* Odd: the subscriber was on its way to the new daemon, which tells the last number. Else no peer
 * does. */
LOOP_TEST(a_publisher_killed_before_subscribers_are_back_is_lost, 0, 2)
{
    struct dlx_test_part publisher = dlx_test_part_begin(publish_until_killed, NULL);
    dlx_test_hear(publisher.sock);
    auto_reader r = dlx_restart_reader_make(NULL);
    dlx_test_say(publisher.sock);
    dlx_restart_read_to(&r, 2);
    dlx_test_hear(publisher.sock);
    dlx_test_stream_restart();
    dlx_test_say(publisher.sock);
    dlx_test_hear(publisher.sock);
    if (_i) {
        dlx_restart_subscribe_again(r.s);
        dlx_test_wait_readable(r.s->sock); /* the offer of a link */
    } else {
        dlx__subscription_read_notifications(r.s);
    }
    dlx_test_part_kill(&publisher);
    take_rest(&r, SECOND);
    ck_assert_uint_eq(r.taken, 3);
    ck_assert_uint_eq(dlx_restart_reader_stats(&r).lost, _i ? 6 : 0);
    check_event(&r, DLX_EVENT_LOST);
}
