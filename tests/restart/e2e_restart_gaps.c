/* SPDX-License-Identifier: Apache-2.0 */
/* Daemons end while streams are read that may lose messages: what is missing is counted, every
 * message of it. */

#include "client/publish/publisher_move.h"
#include "tests/restart/harness_restart.h"
#include <stdatomic.h>

struct writer {
    struct dlx_publisher *p;
    atomic_bool stop;
    int64_t n;
};

static void *publish_all(void *userdata)
{
    struct writer *w = userdata;
    while (!atomic_load(&w->stop)) {
        dlx_test_stream_publish(w->p, 10, ++w->n);
        sched_yield();
    }
    return NULL;
}

TEST(every_gap_has_a_number_through_restarts)
{
    struct writer writer = {.p = dlx_test_stream_new_publisher("test/a", PUBLISHER(.depth = 16))};
    struct dlx_restart_reader readers[] = {
        dlx_restart_reader_make(NULL),
        {.c = dlx_test_stream_connect()},
        dlx_restart_reader_make(SUBSCRIBE(.mode = DLX_MODE_LATEST)),
    };
    readers[1].s = dlx_test_stream_subscribe(readers[1].c, "test/*", NULL);
    pthread_t thread = dlx_test_stream_thread(publish_all, &writer);
    for (unsigned round = 0; round < 40; round++) {
        for (unsigned k = 0; k < round * 997 % 6000; k++) { /* some time, never the same */
            (void)dlx_restart_read(&readers[k % 3], 0);
            if (k % 7 == 0)
                (void)dlx_restart_reader_stats(&readers[k % 3]);
            if (k % 50 == 0)
                sched_yield();
        }
        dlx_test_stream_restart();
    }
    atomic_store(&writer.stop, true);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    dlx_publisher_unref(writer.p);
    for (unsigned i = 0; i < 3; i++) {
        struct dlx_subscription_stats stats;
        uint64_t until = dlx__deadline(PATIENCE);
        do {
            while (dlx_restart_read(&readers[i], 0) == 0)
                ;
            stats = dlx_restart_reader_stats(&readers[i]);
            dlx_test_before(until);
        } while (stats.n_publishers > 0);
        /* The last ones have no next. */
        ck_assert_uint_ge(stats.lost + stats.skipped, readers[i].gaps);
        ck_assert_uint_eq(stats.taken + stats.lost + stats.skipped, (uint64_t)writer.n);
        dlx_restart_reader_end(&readers[i]);
    }
}

static uint64_t count_missed(struct dlx_restart_reader *r)
{
    (void)dlx_restart_reader_stats(r);
    return r->missed;
}

static void wait_until_missed(struct dlx_restart_reader *r, uint64_t n)
{
    eventually(count_missed(r) == n);
}

/* The subscriber makes no other call than for its counters. The new daemon lists its new link. */
LOOP_TEST(messages_lost_through_a_restart_are_counted_at_once, 0, 2)
{
    const struct dlx_subscribe_args args = {.size = sizeof args,
                                            .mode = _i == 0 ? DLX_MODE_ALL : DLX_MODE_LATEST};
    auto_reader r = dlx_restart_reader_make(&args);
    auto_publisher *p =
        dlx_test_stream_new_publisher("test/a", PUBLISHER(.depth = 4, .retain = _i ? 3 : 0));
    dlx_test_stream_publish_all(p, 10, 1, 10);
    struct dlx_subscription_stats stats = dlx_restart_reader_stats(&r);
    ck_assert_uint_eq(stats.lost + stats.skipped, 6);
    dlx_restart_with(p);
    dlx_restart_subscribe_again(r.s);
    dlx_test_stream_publish_all(p, 10, 11, 12);
    wait_until_missed(&r, 8);
    dlx_test_stream_publish_all(p, 10, 13, 20);
    wait_until_missed(&r, 16);
    dlx_restart_read_to(&r, 20);
    stats = dlx_restart_reader_stats(&r);
    ck_assert_uint_eq(stats.lost + stats.skipped, _i == 0 ? 16 : 19);
    ck_assert_uint_eq(stats.taken, _i == 0 ? 4 : 1);
}

/* A daemon that stops frees publishers and subscriptions in some order; the publishers go on. */
LOOP_TEST(a_daemon_that_stops_says_of_no_publisher_that_it_has_gone, 0, 2)
{
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    struct dlx_message *m = NULL;
    auto_publisher *p = dlx_test_stream_publisher(_i ? other : c, "test/a", NULL);
    auto_subscription *s = dlx_test_stream_subscribe(_i ? c : other, "test/a", NULL);
    dlx_test_stream_publish(p, 10, 1);
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
    for (int64_t i = 1; i < 10; i++) {
        dlx_test_stream_take(s, i);
        fails(dlx_take(s, 1000000, &m), DLX_E_TIMEOUT, "test/a");
        dlx_test_stream_publish(p, 10, i + 1);
    }
    ck_assert_uint_eq(dlx_test_stream_subscription_stats(s).n_publishers, 1);
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
}

/* The publisher went on in a block that a daemon in between knew, and has gone: its block does not
 * say so, no daemon sends notifications, and a subscriber that never sleeps does not hear the bell.
 * Odd: the subscriber spins; from 2: there is nothing to take, so that each look is for the next
 * block. */
LOOP_TEST(a_sleepless_subscriber_hears_that_a_publisher_has_gone_after_its_daemon, 0, 4)
{
    struct dlx_message *m = NULL;
    int64_t n = 0;
    int r;
    struct dlx_publisher *p = dlx_test_stream_new_publisher("test/a", NULL);
    auto_subscription *s = dlx_test_stream_new_subscription(
        "test/a", SUBSCRIBE(.spin_ns = _i % 2 ? DLX_SPIN_ALWAYS : 0));
    dlx_test_stream_restart();
    for (uint64_t until = dlx__deadline(PATIENCE); p->epoch == 0; dlx_test_before(until)) {
        if (_i < 2)
            dlx_test_stream_publish(p, 10, ++n);
        else
            dlx__publisher_check(p, 0, DLX_HURRY_NOW_AND_THEN, 0);
    }
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    dlx_publisher_unref(p);
    uint64_t until = dlx__deadline(PATIENCE);
    while ((r = dlx_take(s, _i % 2 ? SECOND : 0, &m)) == 0 || r == DLX_E_EMPTY ||
           r == DLX_E_TIMEOUT) {
        m = dlx_message_unref(m);
        dlx_test_before(until);
    }
    ck_assert_int_eq(r, DLX_E_PUBLISHER_GONE);
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
}

/* The publisher published to the new daemon and left before the subscriber had a link there: each
 * message that did not come is lost. Not all (0), or all (1) of the old link were taken. */
LOOP_TEST(messages_before_the_new_link_are_counted, 0, 2)
{
    auto_reader r = dlx_restart_reader_make(NULL);
    struct dlx_publisher *p = dlx_test_stream_new_publisher("test/a", NULL);
    dlx_test_stream_publish_all(p, 10, 1, 3);
    dlx_restart_read_to(&r, _i == 0 ? 2 : 3);
    dlx_restart_with(p);
    dlx_test_stream_publish_all(p, 10, 4, 9);
    /* Its publisher leaves before it has read the offer. */
    dlx_restart_subscribe_again(r.s);
    p->daemon.base = p->core.head; /* it does not wait for us */
    dlx_publisher_unref(p);
    uint64_t until = dlx__deadline(PATIENCE);
    do {
        (void)dlx_restart_read(&r, SECOND / 100);
        dlx_test_before(until);
    } while (dlx_restart_reader_stats(&r).n_publishers > 0);
    ck_assert_uint_eq(r.taken, 3);
    ck_assert_uint_eq(dlx_restart_reader_stats(&r).lost, 6);
}

/* The publisher lost its connection to the new daemon before the subscriber had a link there, and
 * came back: it has gone, and has not. */
TEST(messages_of_a_publisher_that_came_back_are_counted_once)
{
    auto_client *c = dlx_test_stream_connect();
    auto_message *m = NULL;
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", NULL);
    auto_subscription *s = dlx_test_stream_new_subscription("test/a", NULL);
    dlx_test_stream_publish_all(p, 10, 1, 3);
    dlx_test_stream_take_all(s, 1, 3);
    dlx_restart_with(p);
    dlx_test_stream_publish_all(p, 10, 4, 9);
    dlx_restart_subscribe_again(s);
    ck_assert_int_eq(shutdown(c->sock, SHUT_RDWR), 0);
    dlx_restart_announce(p);
    int r;
    uint64_t until = dlx__deadline(PATIENCE);
    do {
        dlx_test_stream_publish(p, 10, (int64_t)p->core.head + 1);
        r = dlx_take(s, SECOND / 100, &m);
        dlx_test_before(until);
    } while (r == DLX_E_TIMEOUT);
    ok(r);
    ck_assert_uint_eq(dlx_message_gap(m), dlx_message_seq(m) - 4);
    ck_assert_uint_eq(dlx_test_stream_subscription_stats(s).lost, dlx_message_gap(m));
}

/* The daemon ends a subscription, and not its client, when it lacks what one of its links needs.
 * Here it believes that the subscription is closed. */
TEST(subscription_that_the_daemon_ended_subscribes_again)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_message *m = NULL;
    uint64_t seq = 0, missed = 0, id = x.s->id;
    dlx_test_stream_publish(x.p, 10, 1);
    dlx_test_stream_take(x.s, 1);
    ck_assert_int_eq(shutdown(x.s->sock, SHUT_WR), 0);
    for (uint64_t until = dlx__deadline(PATIENCE); seq != x.p->core.head || x.s->id == id;
         dlx_test_before(until)) {
        dlx_test_stream_publish(x.p, 10, (int64_t)x.p->core.head + 1);
        if (dlx_take(x.s, SECOND / 100, &m) == 0) {
            seq = dlx_message_seq(m);
            missed += dlx_message_gap(m);
        }
        m = dlx_message_unref(m);
    }
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(x.s);
    ck_assert_uint_eq(stats.lost, missed);
    ck_assert_uint_eq(stats.taken + stats.lost, seq);
}

/* Of many new arenas a subscriber that does not look was not sent the last ones when its daemon
 * ended, and then its publisher left: what lies in them is lost, what came after is not. */
LOOP_TEST(messages_behind_lost_ones_are_taken_from_a_publisher_that_has_gone, 0, 3)
{
    static const int64_t sizes[] = {10, 3000, 9000, 30000, 70000, 150000, 300000, 10};
    const int64_t n = (int64_t)DLX_ARRAY_SIZE(sizes);
    auto_client *other = dlx_test_stream_connect();
    uint64_t last = 0, gaps = 0;
    int r = 0;
    dlx_set_debug(false); /* arenas have other sizes in it */
    struct dlx_publisher *p = dlx_test_stream_new_publisher("test/a", PUBLISHER(.depth = 16));
    auto_subscription *s = dlx_test_stream_subscribe(other, "test/a", NULL);
    if (_i == 1)
        ck_assert_int_ge(dlx_subscription_fd(s), 0);
    DLManagedTensorVersioned *first = dlx_test_stream_alloc(p, sizes[0], 1);
    DLManagedTensorVersioned *end = dlx_test_stream_alloc(p, sizes[n - 1], n); /* beside it */
    ok(dlx_publish(p, first, NULL, NULL));
    for (int64_t i = 1; i < n - 1; i++)
        dlx_test_stream_publish(p, sizes[i], i + 1);
    ok(dlx_publish(p, end, NULL, NULL));
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    dlx_publisher_unref(p);
    for (uint64_t until = dlx__deadline(PATIENCE); r != DLX_E_PUBLISHER_GONE;
         dlx_test_before(until)) {
        auto_message *m = NULL;
        r = dlx_take(s, _i == 2 ? SECOND / 100 : 0, &m);
        (void)poll(NULL, 0, 2); /* it looks at its bells at most once a millisecond */
        if (r < 0)
            continue;
        int64_t seq = (int64_t)dlx_message_seq(m);
        ck_assert_uint_eq(dlx_message_seq(m), last + dlx_message_gap(m) + 1);
        dlx_test_stream_check(m, sizes[seq - 1], seq);
        last = dlx_message_seq(m);
        gaps += dlx_message_gap(m);
    }
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(s);
    ck_assert_int_eq((int64_t)last, n);
    ck_assert_uint_ge(gaps, 2); /* it was sent four arenas */
    ck_assert_uint_eq(stats.lost, gaps);
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
}

/* The daemon ends its connection for a reason, and says that it has gone; it notices later, and
 * comes back. Odd: by then everything was taken, so its link has ended; from 2: the subscription is
 * reliable. */
LOOP_TEST(a_publisher_that_was_disconnected_comes_back_with_a_gap, 0, 4)
{
    struct dlx_message *m = NULL;
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", PUBLISHER_BLOCKING());
    auto_reader r = dlx_restart_reader_make(SUBSCRIBE(.reliable = _i >= 2));
    dlx_test_stream_publish_all(p, 10, 1, 5);
    while (r.taken < (_i % 2 ? 5 : 2))
        ok(dlx_restart_read(&r, 0));
    p->watch.next_look_ns = UINT64_MAX;
    p->watch.had_daemon_tid = false;
    ck_assert_int_eq(send(c->sock, "?", 1, MSG_NOSIGNAL), 1);
    if (_i % 2)
        fails(dlx_take(r.s, PATIENCE, &m), DLX_E_PUBLISHER_GONE, "test/a");
    dlx_test_stream_publish_all(p, 10, 6, 9);
    dlx_restart_announce(p);
    uint64_t until = dlx__deadline(PATIENCE);
    for (; r.s->n_open < (_i % 2 ? 1 : 2); dlx_test_before(until))
        dlx__subscription_read_notifications(r.s);
    dlx_test_stream_publish_all(p, 10, 10, 12);
    for (; r.last < 12; dlx_test_before(until))
        (void)dlx_restart_read(&r, 0);
    struct dlx_subscription_stats stats = dlx_restart_reader_stats(&r);
    ck_assert_uint_eq(r.gaps, _i % 2 ? 4 : 0);
    ck_assert_uint_eq(stats.lost, r.gaps);
    ck_assert_uint_eq(r.taken, 12 - r.gaps);
    ck_assert_uint_eq(stats.n_publishers, 1);
}

static void *take_four(void *r)
{
    dlx_restart_read_to(r, 4);
    return NULL;
}

TEST(a_close_waits_for_subscribers_on_their_way)
{
    auto_reader r = dlx_restart_reader_make(NULL);
    struct dlx_publisher *p = dlx_test_stream_new_publisher("test/a", NULL);
    dlx_test_stream_publish(p, 10, 1);
    dlx_restart_with(p);
    dlx_test_stream_publish_all(p, 10, 2, 4);
    pthread_t thread = dlx_test_stream_thread(take_four, &r);
    p->watch.linger_ns = PATIENCE;
    dlx_publisher_unref(p);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_uint_eq(r.taken, 4);
}

/* The publisher has memory of the former daemon, and learns of the end of that in the call that
 * publishes. The subscription of before gets nothing twice. On a busy machine the new daemon may
 * not answer in the time of a stream: then it is replaced again. */
TEST(a_publish_that_reconnects_reaches_a_subscription_of_the_new_daemon)
{
    const uint64_t until = dlx__deadline(PATIENCE);
    int64_t value = 2;
    auto_publisher *p = dlx_test_stream_new_publisher("test/a", NULL);
    auto_subscription *before = dlx_test_stream_new_subscription("test/a", NULL);
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    dlx_test_stream_publish(p, 10, 1);
    dlx_test_stream_take(before, 1);
    for (int round = 0; round < 2; value += 2, dlx_test_before(until)) {
        dlx_test_stream_restart();
        auto_subscription *s = dlx_test_stream_new_subscription("test/a", NULL);
        dlx_test_stream_publish(p, 10, value);
        bool has_reconnected = dlx__writer_has_daemon(&p->core);
        dlx_test_stream_publish(p, 10, value + 1);
        dlx_test_stream_take_all(before, value, value + 1);
        if (!has_reconnected)
            continue;
        dlx_test_stream_take_all(s, value, value + 1);
        ck_assert_uint_eq(dlx_test_stream_subscription_stats(before).lost, 0);
        round++;
    }
}

/* Values are the numbers of the messages. */
static void publish_batch(struct dlx_publisher *p, int64_t from, uint32_t n)
{
    DLManagedTensorVersioned *tensors[8];
    uint32_t done = 0;
    for (uint32_t i = 0; i < n; i++)
        tensors[i] = dlx_test_stream_alloc(p, 10, from + i);
    ok(dlx_publish_n(p, tensors, n, NULL, NULL, &done));
    ck_assert_uint_eq(done, n);
}

/* Takes up to message `last`. Returns how many were taken or counted as lost. */
static int64_t account_for(struct dlx_subscription *s, int64_t last)
{
    int64_t n = 0, seq = 0;
    while (seq < last) {
        auto_message *m = dlx_test_stream_next(s);
        seq = (int64_t)dlx_message_seq(m);
        dlx_test_stream_check(m, 10, seq);
        n += 1 + (int64_t)dlx_message_gap(m);
    }
    return n;
}

/* On a busy machine the new daemon may not answer in the time of a stream: then the publisher goes
 * on with a later call, and the daemon is replaced again. The message that follows a batch counts
 * what is missing of it. */
TEST(a_batch_that_reconnects_reaches_a_subscription_of_the_new_daemon)
{
    const int64_t n = 5;
    const uint64_t until = dlx__deadline(PATIENCE);
    int64_t last = 1;
    auto_publisher *p = dlx_test_stream_new_publisher("test/a", NULL);
    auto_subscription *before = dlx_test_stream_new_subscription("test/a", NULL);
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    dlx_test_stream_publish(p, 10, last);
    ck_assert_int_eq(account_for(before, last), last);
    for (int round = 0; round < 2; dlx_test_before(until)) {
        dlx_test_stream_restart();
        auto_subscription *s = dlx_test_stream_new_subscription("test/a", NULL);
        const int64_t first = last + 1;
        publish_batch(p, first, (uint32_t)n);
        const bool moved = dlx__writer_has_daemon(&p->core);
        last += n;
        do
            dlx_test_stream_publish(p, 10, ++last);
        while (!dlx__writer_has_daemon(&p->core));
        ck_assert_int_eq(account_for(before, last), last - first + 1);
        if (!moved)
            continue;
        ck_assert_int_eq(account_for(s, last), last - first + 1);
        round++;
    }
}

/* The subscriber makes no call while the second daemon is there, and no other daemon can make a
 * link to where the publisher has gone on: the take says so, and the third daemon ends the wait. */
TEST(a_take_says_that_its_publisher_went_on_with_a_daemon_that_has_ended)
{
    auto_publisher *p = dlx_test_stream_new_publisher("test/a", NULL);
    auto_subscription *s = dlx_test_stream_new_subscription("test/a", NULL);
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    dlx_test_stream_publish(p, 10, 1);
    dlx_test_stream_take(s, 1);
    dlx_test_stream_restart();
    eventually(((void)dlx_test_stream_stats(p), dlx__writer_has_daemon(&p->core)));
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    dlx_test_stream_publish(p, 10, 2);
    take_fails(s, SECOND / 10, DLX_E_TIMEOUT,
               "went on with another dlpackd, which ended before a call here");
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    eventually((dlx_test_stream_publish(p, 10, 3), dlx__writer_has_daemon(&p->core)));
    auto_message *m = dlx_test_stream_next(s);
    ck_assert_uint_eq(dlx_message_seq(m), 2 + dlx_message_gap(m));
}

/* The second daemon ends before the publisher has asked it for memory. Messages of that time are
 * seen, or counted, when there is a third one. */
LOOP_TEST(a_stream_goes_on_when_daemons_end_one_after_the_other, 0, 4)
{
    const int64_t n = _i < 2 ? 10 : 1 << 18; /* 2 MiB */
    uint64_t taken = 0, gaps = 0;
    int64_t value = 0;
    auto_publisher *p = dlx_test_stream_new_publisher("test/a", NULL);
    auto_subscription *s = dlx_test_stream_new_subscription("test/a", NULL);
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    dlx_test_stream_publish_all(p, n, 1, 2);
    value = 2;
    for (int round = 0; round < 3; round++) {
        dlx_test_stream_restart();
        if (_i % 2 == 0)
            dlx_test_stream_publish(p, n, ++value);
        eventually(((void)dlx_test_stream_stats(p), dlx__writer_has_daemon(&p->core)));
        dlx_test_daemon_kill(&dlx_test_stream_daemon);
        for (int i = 0; i < 5; i++)
            dlx_test_stream_publish(p, n, ++value);
        dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    }
    eventually((dlx_test_stream_publish(p, n, ++value), dlx__writer_has_daemon(&p->core)));
    for (uint64_t seq = 0; seq < (uint64_t)value; taken++) {
        auto_message *m = dlx_test_stream_next(s);
        gaps += dlx_message_gap(m);
        seq = dlx_message_seq(m);
        dlx_test_stream_check(m, n, (int64_t)seq);
    }
    ck_assert_uint_eq(taken + gaps, (uint64_t)value);
    ck_assert_uint_eq(dlx_test_stream_subscription_stats(s).lost, gaps);
}
