/* SPDX-License-Identifier: Apache-2.0 */

/* Work queues where something goes wrong at a bad moment: no message waits while a worker could
 * have it, and none is lost. */

#include "client/message/message.h"
#include "client/message/worker.h"
#include "tests/client/harness_queue.h"
#include <poll.h>
#include <stdatomic.h>

/* ---- a worker ends at a bad moment ---------------------------------------------------------- */

/* What dlx__claims_settle() does first, and no more. */
static void begin_to_give_back(struct dlx_test_peer *parent)
{
    struct dlx_subscription *s = dlx_queue_worker(dlx_test_stream_connect());
    dlx_test_peer_say(parent);
    struct dlx_message *m = dlx_queue_next(s);
    struct dlx_shm_cell cell = dlx_shm_cell_unpack(m->claim.cell);
    dlx_test_peer_say(parent);
    dlx_test_peer_hear(parent);
    cell.state = DLX_SHM_CELL_RETURNED;
    dlx_store64_release(&m->link->claims->page->cells[m->seq], dlx_shm_cell_pack(cell));
    dlx_test_peer_say(parent);
    pause();
}

TEST(a_worker_that_is_killed_while_it_gives_back_has_given_back)
{
    struct dlx_test_peer peer = dlx_test_peer_begin(begin_to_give_back);
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    dlx_test_stream_publish(p, N, 1);
    dlx_test_peer_hear(&peer);
    auto_subscription *s = dlx_queue_worker(c);
    dlx_test_stream_publish(p, N, 2);
    dlx_queue_do(s, 2, 1);
    take_fails(s, 0, DLX_E_EMPTY, ""); /* it has looked for what was given back */
    dlx_test_peer_say(&peer);
    dlx_test_peer_hear(&peer);
    dlx_test_peer_kill(&peer);
    dlx_queue_do(s, 1, 2);
    ok(dlx_publisher_drain(p, 0));
}

/* ---- leases ---------------------------------------------------------------------------------- */

/* As often as it has numbers for, between two looks of the other worker. */
TEST(a_worker_that_renews_often_keeps_its_lease)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    auto_subscription *s = dlx_test_stream_subscribe(c, TOPIC, WORKER(.lease_ns = SECOND / 5));
    auto_subscription *other = dlx_test_stream_subscribe(c, TOPIC, WORKER(.lease_ns = SECOND / 5));
    dlx_test_stream_publish(p, N, 1);
    auto_message *m = dlx_queue_next(s);
    for (int i = 0; i < 150; i++) {
        for (int k = 0; k < 16; k++)
            ok(dlx_message_renew(m));
        take_fails(other, SECOND / 50, DLX_E_TIMEOUT, "");
    }
    ok(dlx_message_done(m));
}

/* ---- a subscription ends before its messages ------------------------------------------------- */

/* 0: it is the only worker; 1: another one waits. */
LOOP_TEST(done_can_be_said_after_the_subscription_has_ended, 0, 2)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS, .depth = 1));
    struct dlx_subscription *s = dlx_queue_worker(c);
    auto_subscription *other = _i ? dlx_queue_worker(c) : NULL;
    dlx_test_stream_publish(p, N, 1);
    struct dlx_message *m = dlx_queue_next(s);
    dlx_subscription_unref(s);
    if (other)
        take_fails(other, SECOND / 50, DLX_E_TIMEOUT, "");
    ok(dlx_message_done(m));
    dlx_message_unref(m);
    ok(dlx_publisher_drain(p, SECOND / 2));
    dlx_test_stream_publish(p, N, 2);
    if (!other)
        other = dlx_queue_worker(c);
    dlx_queue_do(other, 2, 1);
    ok(dlx_publisher_drain(p, 0));
}

LOOP_TEST(messages_can_be_given_back_after_the_subscription_has_ended, 0, 2)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS, .depth = 1));
    struct dlx_subscription *s = dlx_queue_worker(c);
    auto_subscription *other = _i ? dlx_queue_worker(c) : NULL;
    dlx_test_stream_publish(p, N, 1);
    struct dlx_message *m = dlx_queue_next(s);
    dlx_subscription_unref(s);
    dlx_message_unref(m);
    if (!other)
        other = dlx_queue_worker(c);
    dlx_queue_do(other, 1, 2);
    ok(dlx_publisher_drain(p, 0));
}

/* ---- dead letters ---------------------------------------------------------------------------- */

/* A caller may release what it began with. */
TEST(a_take_that_finds_only_a_dead_letter_leaves_its_result_alone)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    auto_subscription *s = dlx_test_stream_subscribe(c, TOPIC, WORKER(.max_attempts = 1));
    dlx_test_stream_publish(p, N, 1);
    dlx_message_unref(dlx_queue_next(s));
    struct dlx_message *m = NULL;
    fails(dlx_take(s, 0, &m), DLX_E_EMPTY, "");
    ck_assert_ptr_null(m);
    ck_assert_uint_eq(dlx_test_stream_subscription_stats(s).dead, 1);
}

/* ---- busy workers ---------------------------------------------------------------------------- */

/* A worker that never waits, since there is always a message. */
TEST(a_busy_worker_hears_of_a_killed_one)
{
    struct dlx_test_peer peer = dlx_test_peer_begin(dlx_queue_take_one);
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS, .depth = 4096));
    auto_subscription *s = NULL;
    dlx_test_stream_publish_all(p, N, 1, 4000);
    dlx_test_peer_hear(&peer);
    s = dlx_queue_worker(c);
    dlx_queue_do(s, 2, 1);
    dlx_test_peer_kill(&peer);
    bool found = false;
    for (uint32_t k = 0; k < 1500 && !found; k++) {
        auto_message *m = dlx_queue_next(s);
        found = dlx_message_seq(m) == 1;
        ok(dlx_message_done(m));
        (void)poll(NULL, 0, found ? 0 : 1); /* the work */
    }
    ck_assert(found);
}

/* ---- many ------------------------------------------------------------------------------------ */

TEST(a_worker_may_have_4096_messages)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS, .depth = 4096));
    auto_subscription *s = dlx_test_stream_subscribe(c, TOPIC, WORKER(.max_held = 4096));
    auto_subscription *other = dlx_test_stream_subscribe(c, TOPIC, WORKER(.max_held = 4096));
    static struct dlx_message *m[5000];
    for (int64_t first = 1; first <= 4096 * 4; first += 4096) {
        uint32_t n, n_all = 0;
        dlx_test_stream_publish_all(p, N, first, first + 4095);
        while (n_all < 4096) {
            ok(dlx_take_n(n_all % 2 ? other : s, 5000, PATIENCE, m + n_all, &n));
            n_all += n;
        }
        ck_assert_uint_eq(n_all, 4096);
        if (first == 4097) { /* all of them again */
            dlx_test_stream_unref_messages(m, 4096);
            for (n_all = 0; n_all < 4096; n_all += n)
                ok(dlx_take_n(other, 5000, PATIENCE, m + n_all, &n));
        }
        for (uint32_t i = 4096; i-- > 0;)
            ok(dlx_message_done(m[i]));
        ok(dlx_publisher_drain(p, 0));
        dlx_test_stream_unref_messages(m, 4096);
    }
}

TEST(a_queue_of_one_message_never_stops)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS, .depth = 1));
    struct dlx_subscription *s[3] = {dlx_queue_worker(c), dlx_queue_worker(c), dlx_queue_worker(c)};
    for (int64_t n = 1; n <= 3000; n++) {
        dlx_test_stream_publish(p, N, n);
        auto_message *m = dlx_queue_next(s[n % 3]);
        if (n % 5 == 0) {
            ok(dlx_message_give_back(m));
            dlx_queue_do(s[(n + 1) % 3], (uint64_t)n, 2);
        } else {
            ok(dlx_message_done(m));
        }
    }
    dlx_test_stream_unref_subscriptions(s, 3);
}

TEST(a_group_on_a_pattern_follows_publishers_that_come_and_go)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_subscription *s[2];
    uint32_t n_taken = 0;
    for (int i = 0; i < 2; i++)
        s[i] = dlx_test_stream_subscribe(c, "test/*", WORKER());
    for (int round = 0; round < 30; round++) {
        char topic[32];
        (void)snprintf(topic, sizeof topic, "test/t%d", round % 4);
        auto_publisher *p = dlx_test_stream_publisher(c, topic, PUBLISHER(GROUPS));
        dlx_test_stream_publish_all(p, N, 1, 10);
        if (round % 3 == 0)
            p = dlx_publisher_unref(p);
        for (int k = 0; k < 10; k++) {
            auto_message *m = dlx_queue_next(s[k % 2]);
            ck_assert_uint_eq(dlx_message_attempt(m), 1);
            ok(dlx_message_done(m));
            n_taken++;
        }
        if (p)
            ok(dlx_publisher_drain(p, 0));
    }
    ck_assert_uint_eq(n_taken, 300);
    dlx_test_stream_unref_subscriptions(s, 2);
}

TEST(a_later_worker_does_what_a_publisher_left_undone)
{
    auto_client *c = dlx_test_stream_connect();
    for (int round = 0; round < 3; round++) {
        struct dlx_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
        auto_subscription *first = round == 1 ? dlx_queue_worker(c) : NULL;
        dlx_test_stream_publish_all(p, N, 1, 10);
        auto_message *held = first ? dlx_queue_next(first) : NULL;
        dlx_publisher_unref(p);
        held = dlx_message_unref(held);
        first = dlx_subscription_unref(first);
        auto_publisher *another = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
        auto_subscription *s = dlx_queue_worker(c);
        uint64_t seen = 0;
        for (int k = 0; k < 10; k++) {
            auto_message *m = dlx_queue_next(s);
            seen |= UINT64_C(1) << dlx_message_seq(m);
            ck_assert_uint_eq(dlx_message_attempt(m),
                              round == 1 && dlx_message_seq(m) == 1 ? 2 : 1);
            ok(dlx_message_done(m));
        }
        ck_assert_uint_eq(seen, 0x7fe);
        take_fails(s, SECOND / 50, DLX_E_TIMEOUT, "");
    }
}

TEST(a_group_does_not_begin_with_retained_messages)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p =
        dlx_test_stream_publisher(c, TOPIC, PUBLISHER_BLOCKING(.retain = 4, .history = 4));
    dlx_test_stream_publish_all(p, N, 1, 4);
    auto_subscription *s = dlx_queue_worker(c);
    take_fails(s, 0, DLX_E_EMPTY, "");
    dlx_test_stream_publish(p, N, 5);
    dlx_queue_do(s, 5, 1);
}

/* ---- fork ------------------------------------------------------------------------------------ */

static void fork_with_a_message(struct dlx_test_peer *parent)
{
    struct dlx_subscription *s = dlx_queue_worker(dlx_test_stream_connect());
    dlx_test_peer_say(parent);
    struct dlx_message *m = dlx_queue_next(s);
    if (dlx_test_fork() == 0) {
        if (dlx_message_done(m) != DLX_E_FORKED || dlx_message_give_back(m) != DLX_E_FORKED)
            _exit(1);
        dlx_message_unref(m);
        dlx_subscription_unref(s);
        dlx_test_peer_say(parent);
        dlx_test_peer_hear(parent); /* it outlives its parent */
        _exit(0);
    }
    pause();
}

TEST(a_child_of_a_worker_does_not_keep_what_that_had)
{
    struct dlx_test_peer peer = dlx_test_peer_begin(fork_with_a_message);
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    dlx_test_stream_publish(p, N, 1);
    dlx_test_peer_hear(&peer);
    auto_subscription *s = dlx_queue_worker(c);
    take_fails(s, SECOND / 50, DLX_E_TIMEOUT, "");
    ck_assert_int_eq(kill(peer.pid, SIGKILL), 0);
    dlx_queue_do(s, 1, 2);
    dlx_test_peer_say(&peer);
    dlx_test_peer_kill(&peer);
}

TEST(a_group_without_a_worker_keeps_what_the_other_group_has_done)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p = dlx_test_stream_publisher(
        c, TOPIC, PUBLISHER(.groups = (const char *const[]){"a", "b"}, .n_groups = 2));
    auto_subscription *a = dlx_test_stream_subscribe(c, TOPIC, SUBSCRIBE(.group = "a"));
    dlx_test_stream_publish_all(p, N, 1, 64);
    for (uint64_t n = 1; n <= 44; n++)
        dlx_queue_do(a, n, 1);
    auto_message *held = dlx_queue_next(a);
    dlx_publisher_unref(p);
    ok(dlx_message_done(held));
    held = dlx_message_unref(held);
    for (uint64_t n = 46; n <= 64; n++)
        dlx_queue_do(a, n, 1);
    take_fails(a, PATIENCE, DLX_E_PUBLISHER_GONE, "");
    a = dlx_subscription_unref(a);
    auto_subscription *b = dlx_test_stream_subscribe(c, TOPIC, SUBSCRIBE(.group = "b"));
    for (uint64_t n = 1; n <= 64; n++)
        dlx_queue_do(b, n, 1);
}
