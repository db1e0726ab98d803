/* SPDX-License-Identifier: Apache-2.0 */
/* After a restart of the daemon counters go on, as the library and as `dlxctl` show them, and an
 * event tells of it. */

#include "tests/restart/harness_restart.h"

struct counters {
    struct dlx_publisher_info publisher;
    struct dlx_link_info link;
    int n_links;
};

static int note_link(const struct dlx_link_info *info, void *userdata)
{
    struct counters *counters = userdata;
    counters->link = *info;
    counters->n_links++;
    return 0;
}

/* As dlxctl asks. */
static struct counters shown(void)
{
    struct counters counters = {.n_links = 0};
    auto_client *c = dlx_test_stream_connect();
    ck_assert_uint_eq(dlx_test_stream_list(c, &counters.publisher), 1);
    ok(dlx_list_links(c, counters.publisher.publisher, note_link, &counters));
    ck_assert_int_eq(counters.n_links, 1);
    return counters;
}

static uint64_t take_all(struct dlx_subscription *s)
{
    struct dlx_message *m;
    uint64_t n = 0;
    int r;
    while ((r = dlx_take(s, 0, &m)) == 0) {
        dlx_message_unref(m);
        n++;
    }
    ck_assert_int_eq(r, DLX_E_EMPTY);
    return n;
}

static void expect(struct dlx_subscription *s, uint64_t taken, uint64_t not_taken)
{
    struct counters counters = shown();
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(s);
    ck_assert_uint_eq(stats.taken, taken);
    ck_assert_uint_eq(stats.lost + stats.skipped, not_taken);
    ck_assert_uint_eq(counters.link.taken, taken);
    ck_assert_uint_eq(counters.link.lost, stats.lost);
    ck_assert_uint_eq(counters.link.skipped, stats.skipped);
    ck_assert_uint_eq(counters.publisher.published, taken + not_taken);
    ck_assert_uint_eq(counters.publisher.published_bytes, 80 * (taken + not_taken));
}

/* Events that say so. */
static uint32_t n_reconnected(struct dlx_publisher *p, struct dlx_subscription *s,
                              const char *topic)
{
    struct dlx_event e = {.size = sizeof e};
    uint32_t n = 0;
    uint64_t reconnected_as = 0;
    while ((p ? dlx_publisher_next_event(p, &e) : dlx_subscription_next_event(s, &e)) == 0) {
        if (e.kind != DLX_EVENT_RECONNECTED)
            continue;
        n++;
        ck_assert_str_eq(e.topic, topic);
        ck_assert(e.pid == 0 && e.link == 0 && e.missed == 0);
        ck_assert((e.publisher != 0) == (p != NULL));
        reconnected_as = e.publisher;
    }
    if (p && n > 0)
        ck_assert_uint_eq(dlx_publisher_id(p), reconnected_as);
    return n;
}

/* Has it a link by the new daemon, and no other any more? */
static bool has_moved(const struct dlx_subscription *s)
{
    uint32_t n_open = 0;
    for (uint32_t i = 0; i < s->n_links; i++) {
        if (!dlx__subscriber_link_is_open(s->links[i]))
            continue;
        if (dlx__subscriber_link_is_foreign(s->links[i]))
            return false;
        n_open++;
    }
    return n_open == 1;
}

static void look(struct dlx_publisher *p, struct dlx_subscription *s)
{
    struct dlx_message *m;
    int r = dlx_publisher_wait(p, 1, SECOND / 1000);
    ck_assert(r == 0 || r == DLX_E_TIMEOUT);
    ck_assert_int_eq(dlx_take(s, SECOND / 1000, &m), DLX_E_TIMEOUT);
}

/* Both join the new daemon, and nothing is published. */
static void move(struct dlx_test_pair *pair)
{
    uint32_t n_moved = 0;
    dlx_test_stream_restart();
    for (uint64_t until = dlx__deadline(PATIENCE); n_moved == 0 || !has_moved(pair->s);
         dlx_test_before(until)) {
        look(pair->p, pair->s);
        n_moved += n_reconnected(NULL, pair->s, "test/a");
    }
}

static const enum dlx_mode modes[] = {DLX_MODE_ALL, DLX_MODE_LATEST};

LOOP_TEST(counters_go_on_with_the_next_daemon, 0, 2)
{
    auto_pair pair = dlx_test_pair_make(NULL, SUBSCRIBE(.mode = modes[_i]));
    uint64_t n = 0, taken = 0;
    for (int i = 0; i < 3; i++) {
        /* More than the depth: most of them are lost, or skipped. */
        dlx_test_stream_publish_all(pair.p, 10, (int64_t)n + 1, (int64_t)n + 50);
        n += 50;
        taken += take_all(pair.s);
        ck_assert_uint_gt(n, taken);
        expect(pair.s, taken, n - taken);
        move(&pair);
        expect(pair.s, taken, n - taken);
    }
}

/* Restarts the daemon until both have joined the next one, without a take. */
static void move_without_take(const struct dlx_test_pair *pair, uint32_t n_open)
{
    struct dlx_event e = {.size = sizeof e};
    dlx_test_stream_restart();
    for (uint64_t until = dlx__deadline(PATIENCE); pair->s->n_open < n_open;
         dlx_test_before(until)) {
        int r = dlx_publisher_wait(pair->p, 1, SECOND / 1000);
        ck_assert(r == 0 || r == DLX_E_TIMEOUT);
        r = dlx_subscription_next_event(pair->s, &e); /* reads notifications, takes nothing */
        ck_assert(r == 0 || r == DLX_E_EMPTY);
    }
}

/* The new link is there, and counts, before the last messages of the old one are taken. */
TEST(messages_taken_by_the_old_link_count_for_the_new_one)
{
    auto_pair pair = dlx_test_pair_make(NULL, NULL);
    dlx_test_stream_publish_all(pair.p, 10, 1, 4);
    dlx_test_stream_take_all(pair.s, 1, 4);
    dlx_test_stream_publish_all(pair.p, 10, 5, 10);
    move_without_take(&pair, 2);
    ck_assert_uint_eq(shown().link.taken, 4);
    dlx_test_stream_take_all(pair.s, 5, 10);
    ck_assert_uint_eq(take_all(pair.s), 0);
    ck_assert(has_moved(pair.s));
    expect(pair.s, 10, 0);
}

/* Each daemon adds a link. They have their turns in order, and the newest one shows the counts. */
LOOP_TEST(a_slow_subscription_goes_on_through_the_links_of_several_daemons, 0, 2)
{
    enum { N_DAEMONS = 4 };
    auto_pair pair = dlx_test_pair_make(_i == 1 ? PUBLISHER_BLOCKING(.depth = 64) : NULL,
                                        SUBSCRIBE(.reliable = _i == 1));
    int64_t n = 4;
    dlx_test_stream_publish_all(pair.p, 10, 1, n);
    dlx_test_stream_take_all(pair.s, 1, n);
    for (uint32_t i = 1; i < N_DAEMONS; i++) {
        dlx_test_stream_publish_all(pair.p, 10, n + 1, n + 2);
        n += 2;
        move_without_take(&pair, i + 1);
        ck_assert_uint_eq(pair.s->n_open, i + 1);
        ck_assert_uint_eq(shown().link.taken, 4);
    }
    dlx_test_stream_publish_all(pair.p, 10, n + 1, n + 2);
    n += 2;
    dlx_test_stream_take_all(pair.s, 5, n);
    ck_assert_uint_eq(take_all(pair.s), 0);
    ck_assert(has_moved(pair.s));
    expect(pair.s, (uint64_t)n, 0);
}

/* As if the memory of one that waits for its turn could not be read. */
static void reject_waiting(struct dlx_subscription *s)
{
    for (uint32_t i = 0; i < s->n_links; i++)
        if (s->links[i]->after && s->links[i]->after->after == NULL) {
            dlx__fail(DLX_E_BAD_PEER, "rejected by a test");
            dlx__subscription_reject(s, s->links[i]);
            return;
        }
    ck_abort_msg("no link waits");
}

/* What the link would have brought is lost, and counted once: when the next link goes on after the
 * one before, or when the publisher has left. */
LOOP_TEST(a_link_that_fails_before_its_turn_loses_its_messages_once, 0, 2)
{
    auto_pair pair = dlx_test_pair_make(NULL, NULL);
    struct dlx_message *m;
    dlx_test_stream_publish_all(pair.p, 10, 1, 4);
    dlx_test_stream_take_all(pair.s, 1, 4);
    dlx_test_stream_publish_all(pair.p, 10, 5, 6);
    move_without_take(&pair, 2);
    dlx_test_stream_publish_all(pair.p, 10, 7, 8);
    reject_waiting(pair.s);
    ck_assert_uint_eq(pair.s->n_open, 1);
    if (_i == 0) {
        move_without_take(&pair, 2);
        dlx_test_stream_take_all(pair.s, 5, 6);
        ck_assert_uint_eq(take_all(pair.s), 0);
        expect(pair.s, 6, 2);
    } else {
        pair.p = dlx_publisher_unref(pair.p);
        dlx_test_stream_take_all(pair.s, 5, 6);
        ck_assert_int_eq(dlx_take(pair.s, PATIENCE, &m), DLX_E_PUBLISHER_GONE);
        ck_assert_uint_eq(dlx_test_stream_subscription_stats(pair.s).taken, 6);
        ck_assert_uint_eq(dlx_test_stream_subscription_stats(pair.s).lost, 2);
    }
}

/* The link after it waits for the one before it, and tells the gap. */
TEST(a_link_that_fails_between_two_others_leaves_their_order)
{
    auto_pair pair = dlx_test_pair_make(NULL, NULL);
    dlx_test_stream_publish_all(pair.p, 10, 1, 4);
    for (uint32_t i = 2; i <= 3; i++) {
        move_without_take(&pair, i);
        dlx_test_stream_publish_all(pair.p, 10, 2 * i + 1, 2 * i + 2);
    }
    reject_waiting(pair.s);
    dlx_test_stream_take_all(pair.s, 1, 4);
    auto_message *m = dlx_test_stream_next(pair.s);
    dlx_test_stream_check(m, 10, 7);
    ck_assert_uint_eq(dlx_message_gap(m), 2);
    ck_assert_uint_eq(take_all(pair.s), 1);
    ck_assert(has_moved(pair.s));
    expect(pair.s, 6, 2);
}

/* Publishes, so that the publisher looks who is there. Returns how many were taken. */
static uint64_t publish_and_take(const struct dlx_test_pair *pair, uint64_t n)
{
    struct dlx_message *m = NULL;
    uint64_t taken = 0;
    int r;
    dlx_test_stream_publish(pair->p, 10, (int64_t)n);
    while ((r = dlx_take(pair->s, 0, &m)) == 0 || r == DLX_E_PUBLISHER_GONE) {
        taken += r == 0;
        m = dlx_message_unref(m);
    }
    ck_assert_int_eq(r, DLX_E_EMPTY);
    sched_yield();
    return taken;
}

/* Odd: the publisher, whose link has ended before it comes back. Else the subscriber: the publisher
 * stays, and goes on in the same control block. */
LOOP_TEST(counters_go_on_after_the_daemon_disconnected_one_side, 0, 4)
{
    const bool is_publisher = _i % 2;
    auto_client *c = dlx_test_stream_connect();
    auto_pair pair = {.c = dlx_test_stream_connect()};
    struct dlx_message *m = NULL;
    uint64_t n = 0, taken = 0;
    pair.p = dlx_test_stream_publisher(pair.c, "test/a", NULL);
    pair.s = dlx_test_stream_subscribe(c, "test/a", SUBSCRIBE(.mode = modes[_i / 2]));
    for (uint64_t reconnected = 1; reconnected <= 3; reconnected++) {
        const uint64_t end = dlx__deadline(PATIENCE), id = pair.p->id;
        dlx_test_stream_publish_all(pair.p, 10, (int64_t)n + 1, (int64_t)n + 50);
        n += 50;
        taken += take_all(pair.s);
        expect(pair.s, taken, n - taken);
        ck_assert_int_eq(shutdown(is_publisher ? pair.c->sock : c->sock, SHUT_RDWR), 0);
        if (is_publisher) {
            ck_assert_int_eq(dlx_take(pair.s, PATIENCE, &m), DLX_E_PUBLISHER_GONE);
            ck_assert_uint_eq(pair.s->n_open, 0);
        }
        while (is_publisher ? pair.p->id == id || pair.s->n_open == 0
                            : pair.s->epoch != reconnected || !has_moved(pair.s)) {
            if (is_publisher)
                pair.p->watch.next_look_ns = 0;
            taken += publish_and_take(&pair, ++n);
            ck_assert_uint_lt(dlx__now_ns(), end);
        }
        if (is_publisher)
            taken += publish_and_take(&pair, ++n);
        expect(pair.s, taken, n - taken);
    }
}

TEST(an_event_tells_each_side_once_that_the_daemon_was_replaced)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", NULL);
    struct dlx_subscription *s[3];
    uint32_t n_told[3] = {0}, p_told = 0;
    for (int i = 0; i < 3; i++)
        s[i] = dlx_test_stream_subscribe(c, "test/*", NULL);
    for (uint32_t n = 1; n <= 3; n++) {
        dlx_test_stream_restart();
        for (uint64_t until = dlx__deadline(PATIENCE);
             p_told < n || n_told[0] < n || n_told[1] < n || n_told[2] < n;
             dlx_test_before(until)) {
            for (int i = 0; i < 3; i++) {
                look(p, s[i]);
                n_told[i] += n_reconnected(NULL, s[i], "test/*");
            }
            p_told += n_reconnected(p, NULL, "test/a");
        }
        dlx_test_stream_publish(p, 10, n);
        for (int i = 0; i < 3; i++) {
            dlx_test_stream_take(s[i], n);
            ck_assert_uint_eq(n_told[i] + n_reconnected(NULL, s[i], "test/*"), n);
        }
        ck_assert_uint_eq(p_told + n_reconnected(p, NULL, "test/a"), n);
    }
    dlx_test_stream_unref_subscriptions(s, 3);
}

static void poll_stats(struct dlx_publisher *p)
{
    (void)dlx_test_stream_stats(p);
}

static void poll_events(struct dlx_publisher *p)
{
    (void)n_reconnected(p, NULL, "test/a");
}

static void (*const polls[])(struct dlx_publisher *p) = {poll_stats, poll_events};

/* The publisher has nothing more to publish: its retained messages must be found again. */
LOOP_TEST(a_publisher_that_only_polls_is_found_at_the_next_daemon, 0, DLX_ARRAY_SIZE(polls))
{
    auto_publisher *p = dlx_test_stream_new_publisher("test/a", PUBLISHER(.retain = 1));
    auto_message *m = NULL;
    dlx_test_stream_publish(p, 10, 1);
    dlx_test_stream_restart();
    auto_client *newcomer = dlx_test_stream_connect();
    ck_assert_int_eq(dlx_get(newcomer, "test/a", 0, &m), DLX_E_EMPTY);
    int r;
    uint64_t until = dlx__deadline(PATIENCE);
    do {
        dlx_test_before(until);
        polls[_i](p);
        r = dlx_get(newcomer, "test/a", 0, &m);
    } while (r == DLX_E_EMPTY);
    ok(r);
    ck_assert_uint_eq(dlx_message_seq(m), 1);
}
