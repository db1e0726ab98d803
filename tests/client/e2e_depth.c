/* SPDX-License-Identifier: Apache-2.0 */

/* How far a subscriber may be behind, and how much memory that and what is held cost. */

#include "tests/harness/fork.h"
#include "tests/harness/stream.h"

#define MIB     (UINT64_C(1) << 20)
#define MIB_N   (INT64_C(1) << 17) /* elements of 1 MiB */
#define LARGE_N (INT64_C(6) << 17)
#define SMALL_N INT64_C(8)

static uint64_t arena_bytes(struct dlx_publisher *p)
{
    return dlx_test_stream_stats(p).arena_bytes;
}

static void take_and_release(struct dlx_subscription *s, int64_t n, int64_t value)
{
    auto_message *m = dlx_test_stream_next(s);
    ck_assert_uint_eq(dlx_message_seq(m), (uint64_t)value);
    dlx_test_stream_check(m, n, value);
}

/* A message of which only the ends are written. */
static DLManagedTensorVersioned *alloc_cheaply(struct dlx_publisher *p, int64_t n, int64_t value)
{
    const struct dlx_tensor_spec spec = INT64_SPEC(&n);
    DLManagedTensorVersioned *t = NULL;
    ok(dlx_alloc(p, &spec, &t));
    ((int64_t *)t->dl_tensor.data)[0] = ((int64_t *)t->dl_tensor.data)[n - 1] = value;
    return t;
}

/* Publishes a message once there is room; the message arrives. */
static void pass_cheaply(struct dlx_test_pair *x, int64_t n, int64_t value)
{
    ok(dlx_publish(x->p, alloc_cheaply(x->p, n, value), PUBLISH(.timeout_ns = PATIENCE), NULL));
    auto_message *m = dlx_test_stream_next(x->s);
    const int64_t *data = dlx_message_tensor_peek(m, 0)->data;
    ck_assert_int_eq(data[0], value);
    ck_assert_int_eq(data[n - 1], value);
}

/* Held ones, whose values count up. */
static void check_and_release(struct dlx_message **m, int64_t count, int64_t n, int64_t value)
{
    for (int64_t i = 0; i < count; i++) {
        dlx_test_stream_check(m[i], n, value + i);
        dlx_message_unref(m[i]);
    }
}

LOOP_TEST(an_idle_subscriber_gets_the_last_messages, 0, 2)
{
    enum { N = 40, DEPTH = 16 }; /* the default */
    const int64_t n = _i == 0 ? SMALL_N : LARGE_N;
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_message *m = NULL;
    dlx_test_stream_publish_all(x.p, n, 1, N);
    for (int64_t i = N - DEPTH + 1; i <= N; i++) {
        m = dlx_test_stream_next(x.s);
        ck_assert_uint_eq(dlx_message_gap(m), i == N - DEPTH + 1 ? N - DEPTH : 0);
        ck_assert_uint_eq(dlx_message_seq(m), (uint64_t)i);
        check_and_release(&m, 1, n, i);
    }
    ck_assert_int_eq(dlx_take(x.s, 0, &m), DLX_E_EMPTY);
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(x.s);
    ck_assert_uint_eq(stats.lost, N - DEPTH);
    ck_assert_uint_eq(stats.taken, DEPTH);
}

/* Each taken message makes room, held or not. */
LOOP_TEST(a_publisher_waits_for_a_reliable_subscriber_at_its_depth, 0, 4)
{
    enum { DEPTH = 5 };
    const int64_t n = _i & 1 ? LARGE_N : SMALL_N;
    const bool holds = _i & 2;
    auto_pair x = dlx_test_pair_make(PUBLISHER_BLOCKING(.depth = DEPTH),
                                     SUBSCRIBE(.reliable = true, .max_held = 32));
    struct dlx_message *held[32];
    int64_t taken = 0, published = 0;
    for (int64_t k = DEPTH; k >= 0; k--) { /* first without a message that was taken */
        DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, n, published + 1);
        while (published < taken + DEPTH) {
            ok(dlx_publish(x.p, t, NULL, NULL));
            t = dlx_test_stream_alloc(x.p, n, ++published + 1);
        }
        fails(dlx_publish(x.p, t, NULL, NULL), DLX_E_FULL, "5 behind");
        t->deleter(t);
        for (int64_t i = 0; i < k; i++) {
            if (holds)
                held[taken] = dlx_test_stream_next(x.s);
            else
                take_and_release(x.s, n, taken + 1);
            taken++;
        }
    }
    check_and_release(held, holds ? taken : 0, n, 1);
}

TEST(a_publisher_of_one_large_set_needs_memory_for_two)
{
    enum { N_TENSORS = 4 };
    auto_client *c = dlx_test_stream_connect();
    int64_t n = 4 * MIB_N;
    struct dlx_tensor_spec specs[N_TENSORS];
    DLManagedTensorVersioned *t[N_TENSORS];
    struct dlx_item items[N_TENSORS];
    dlx_set_debug(false); /* its blocks are larger */
    auto_publisher *p = dlx_test_stream_publisher(
        c, "test/a", PUBLISHER(.retain = 1, .retain_for_ns = DLX_RETAIN_LATCHED));
    for (int i = 0; i < N_TENSORS; i++)
        specs[i] = (struct dlx_tensor_spec)INT64_SPEC(&n);
    for (int round = 0; round < 10; round++) {
        ok(dlx_alloc_set(p, specs, N_TENSORS, t));
        for (int i = 0; i < N_TENSORS; i++)
            items[i] = (struct dlx_item){.tensor = t[i]};
        ok(dlx_publish_set(p, items, N_TENSORS, NULL, NULL, NULL));
        ck_assert_uint_le(arena_bytes(p), 2 * (4 * N_TENSORS * MIB + 8192));
    }
}

/* Memory is for max(depth, history) + held + 1 payloads at most. */
LOOP_TEST(messages_behind_and_held_take_no_more_memory_than_they_need, 0, 3)
{
    enum { N_HELD = 5 };
    static const struct dlx_publisher_args cases[] = {
        {.size = sizeof cases[0], .depth = 4, .history = 2},
        {.size = sizeof cases[0], .depth = 2, .history = 4},
        {.size = sizeof cases[0], .depth = 1},
    };
    const struct dlx_publisher_args *pa = &cases[_i];
    const uint64_t window = DLX_MAX(pa->depth, pa->history);
    auto_pair x = dlx_test_pair_make(pa, NULL);
    struct dlx_message *held[N_HELD];
    for (int64_t i = 0; i < N_HELD; i++) {
        dlx_test_stream_publish(x.p, MIB_N, i);
        held[i] = dlx_test_stream_next(x.s);
    }
    for (int64_t i = 0; i < 100; i++) {
        ok(dlx_publish(x.p, alloc_cheaply(x.p, MIB_N, i), NULL, NULL));
        ck_assert_uint_le(arena_bytes(x.p), (window + N_HELD + 1) * MIB);
    }
    check_and_release(held, N_HELD, MIB_N, 0);
}

/* Says that it has subscribed, takes `n` messages, says so, and sleeps with them. */
static struct dlx_test_peer spawn_hoarder(uint32_t n)
{
    struct dlx_test_peer peer = dlx_test_fork_peer();
    if (peer.pid == 0) {
        struct dlx_subscription *s = dlx_test_stream_subscribe(
            dlx_test_stream_connect(), "test/a", SUBSCRIBE(.reliable = true, .max_held = n));
        dlx_test_peer_say(&peer);
        for (uint32_t i = 0; i < n; i++)
            (void)dlx_test_stream_next(s);
        dlx_test_peer_say(&peer);
        for (;;)
            pause();
    }
    return peer;
}

LOOP_TEST(memory_that_a_killed_subscriber_held_goes_back_under_a_steady_stream, 0, 2)
{
    enum { DEPTH = 16 };
    const int64_t n_held = _i == 0 ? 200 : 512; /* from 256 arenas on, messages share larger ones */
    const uint64_t most = (DEPTH + 1) * MIB * 5 / 4 + 32 * MIB;
    auto_pair x = dlx_test_pair_make(PUBLISHER_BLOCKING(.depth = DEPTH), NULL);
    dlx_set_debug(false);
    struct dlx_test_peer hoarder = spawn_hoarder((uint32_t)n_held);
    dlx_test_peer_hear(&hoarder);
    for (int64_t i = 1; i <= n_held; i++)
        pass_cheaply(&x, MIB_N, i);
    dlx_test_peer_hear(&hoarder);
    ck_assert_uint_ge(arena_bytes(x.p), (uint64_t)n_held * MIB);
    dlx_test_peer_kill(&hoarder);
    eventually(dlx_test_stream_stats(x.p).n_subscribers == 1); /* the daemon has told */
    for (int64_t i = 1; i <= 4 * DEPTH; i++)
        pass_cheaply(&x, MIB_N, -i);
    ck_assert_uint_le(arena_bytes(x.p), most);
}

LOOP_TEST(a_subscriber_that_holds_max_held_stops_nobody, 0, 2)
{
    enum { MAX_HELD = 4, DEPTH = 4, N = 300 };
    const struct dlx_subscribe_args holder = {.size = sizeof holder, .max_held = MAX_HELD},
                                    other = {.size = sizeof other,
                                             .reliable = _i == DLX_ON_FULL_BLOCK};
    auto_pair x = dlx_test_pair_make(PUBLISHER(.depth = DEPTH, .on_full = (uint32_t)_i), &holder);
    struct dlx_message *held[MAX_HELD], *m = NULL;
    auto_subscription *s = dlx_test_stream_subscribe(x.c, "test/a", &other);
    for (int64_t i = 1; i <= N; i++) {
        dlx_test_stream_publish(x.p, SMALL_N, i);
        take_and_release(s, SMALL_N, i);
        if (i <= MAX_HELD)
            held[i - 1] = dlx_test_stream_next(x.s);
        else
            fails(dlx_take(x.s, 0, &m), DLX_E_TOO_MANY_HELD, "4 messages");
    }
    check_and_release(held, MAX_HELD, SMALL_N, 1);
    m = dlx_test_stream_next(x.s);
    ck_assert_uint_eq(dlx_message_seq(m), N - DEPTH + 1);
    ck_assert_uint_eq(dlx_message_gap(m), N - DEPTH - MAX_HELD);
    dlx_message_unref(m);
}
