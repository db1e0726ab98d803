/* SPDX-License-Identifier: Apache-2.0 */

/* Memory of publishers whose messages change their size: it goes back while other messages are
 * held, whose data stays, and comes again. */

#include "client/control/call.h"
#include "client/publish/publisher.h"
#include "client/publish/publisher_memory.h"
#include "client/subscribe/subscription.h"
#include "tests/harness/stream.h"

#define MIB    (INT64_C(1) << 20)
#define N(mib) ((mib)*MIB / 8) /* elements of dlx_test_stream_publish() */

static const struct dlx_publisher_args one = {.size = sizeof one, .history = 1};

/* The bytes of its publisher's arenas that the subscription has mapped. */
static uint64_t mapped_bytes(const struct dlx_subscription *s)
{
    uint64_t bytes = 0;
    const struct dlx_subscriber_link *subscriber_link = s->links[0];
    for (uint32_t i = 0; i < subscriber_link->n_arenas; i++)
        bytes += subscriber_link->arenas[i].size;
    return bytes;
}

/* And it has heard of all that was dropped. */
static void settle(struct dlx_test_pair *x, uint32_t n_arenas)
{
    eventually((dlx__subscription_read_notifications(x->s), x->s->links[0]->n_arenas == n_arenas));
}

static struct dlx_message *pass(struct dlx_test_pair *x, int64_t mib, int64_t value)
{
    return dlx_test_pair_pass(x, N(mib), value);
}

/* The same with a message of which only the ends are written: the first and the last element are
 * `mib`. */
static void pass_large(struct dlx_test_pair *x, int64_t mib)
{
    const int64_t n = N(mib);
    const struct dlx_tensor_spec spec = INT64_SPEC(&n);
    DLManagedTensorVersioned *t = NULL;
    ok(dlx_alloc(x->p, &spec, &t));
    int64_t *data = t->dl_tensor.data;
    data[0] = data[n - 1] = mib;
    ok(dlx_publish(x->p, t, NULL, NULL));
    auto_message *m = dlx_test_stream_next(x->s);
    const int64_t *got = dlx_message_tensor_peek(m, 0)->data;
    ck_assert_ptr_ne(got, data);
    ck_assert_int_eq(got[0], mib);
    ck_assert_int_eq(got[n - 1], mib);
}

static int add_bytes(const struct dlx_publisher_info *info, void *userdata)
{
    *(uint64_t *)userdata += info->arena_bytes;
    return 0;
}

/* All that the daemon has, and charges. */
static uint64_t charged_bytes(struct dlx_client *c)
{
    uint64_t bytes = 0;
    ok(dlx_list_publishers(c, NULL, add_bytes, &bytes));
    return bytes;
}

TEST(memory_goes_back_and_comes_again_while_others_hold_theirs)
{
    auto_pair x = dlx_test_pair_make(&one, NULL);
    auto_message *m = pass(&x, 2, 1), *other = pass(&x, 3, 2);
    for (int round = 0; round < 2; round++) {
        uint64_t most = 0;
        for (int64_t mib = 20; mib <= (round == 0 ? 38 : 28); mib += 2) {
            pass_large(&x, mib);
            most = DLX_MAX(most, dlx_test_stream_stats(x.p).arena_bytes);
        }
        struct dlx_publisher_stats stats = dlx_test_stream_stats(x.p);
        /* Of 295 MiB: five times the largest is there before the publisher looks what was
         * released. */
        ck_assert_uint_le(most, 5 * 38 * MIB);
        settle(&x, stats.n_arenas);
        ck_assert_uint_eq(mapped_bytes(x.s), stats.arena_bytes);
        ck_assert_uint_eq(charged_bytes(x.c), stats.arena_bytes);
        dlx_test_stream_check(m, N(2), 1);
        dlx_test_stream_check(other, N(3), 2);
    }
}

/* Of 64 MiB that a burst needed: the next messages give back what is too much, and no more. */
TEST(a_burst_leaves_what_the_next_one_may_need)
{
    enum { BURST = 16, MIB_EACH = 4 };
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", PUBLISHER(.depth = 1, .history = 1));
    DLManagedTensorVersioned *t[BURST];
    for (int64_t i = 0; i < BURST; i++)
        t[i] = dlx_test_stream_alloc(p, N(MIB_EACH), i);
    ck_assert_uint_ge(dlx_test_stream_stats(p).arena_bytes, BURST * MIB_EACH * MIB);
    for (int64_t i = 0; i < BURST; i++)
        t[i]->deleter(t[i]);
    dlx_test_stream_publish_all(p, 10, 1, 4);
    uint64_t bytes = dlx_test_stream_stats(p).arena_bytes;
    ck_assert_uint_ge(bytes, (32 - MIB_EACH) * MIB);
    ck_assert_uint_le(bytes, (32 + MIB_EACH) * MIB);
    ck_assert_uint_eq(charged_bytes(c), bytes);
}

/* Looks for memory come once in `depth` messages while there is much, and rarely afterwards:
 * however many of the former there were, the latter find memory that no message needed. */
TEST(rest_of_a_burst_goes_back_when_no_other_comes)
{
    enum { BURST = 16, MIB_EACH = 4 };
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", PUBLISHER(.depth = 1, .history = 1));
    for (int64_t n_between = 1; n_between <= 3; n_between++) {
        DLManagedTensorVersioned *t[BURST];
        for (int64_t i = 0; i < BURST; i++)
            t[i] = dlx_test_stream_alloc(p, N(MIB_EACH), i);
        dlx_test_stream_publish_all(p, 10, 1, n_between);
        for (int64_t i = 0; i < BURST; i++)
            t[i]->deleter(t[i]);
        dlx_test_stream_publish_all(p, 10, 1, 3 * DLX_TRIM_EVERY);
        uint64_t bytes = dlx_test_stream_stats(p).arena_bytes;
        ck_assert_uint_le(bytes, MIB);
        ck_assert_uint_eq(charged_bytes(c), bytes);
    }
}

/* Makes an arena of 2 MiB and one of `mib` MiB, with nothing in them. */
static struct dlx_publisher *make_empty_arenas(struct dlx_client *c, int64_t mib)
{
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "test/a", &one);
    auto_tensor *t = dlx_test_stream_alloc(p, N(2), 1), *u = dlx_test_stream_alloc(p, N(mib), 2);
    ck_assert_uint_eq(dlx_test_stream_stats(p).n_arenas, 2);
    return p;
}

/* The connection has no time for that: another call is on its way. */
TEST(an_arena_that_the_daemon_cannot_be_told_of_stays)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = make_empty_arenas(c, 9);
    ck_assert_int_eq(dlx__lock_until(&c->lock, UINT64_MAX), 0);
    ck_assert(!dlx__publisher_drop_empty(p, false));
    dlx__lock_release(&c->lock);
    ck_assert_uint_eq(charged_bytes(c), dlx_test_stream_stats(p).arena_bytes);
    ck_assert(dlx__publisher_drop_empty(p, false));
    ck_assert_uint_eq(charged_bytes(c), 0);
}

/* Lets the daemon go on once the client's socket has no room. */
static void *go_on_when_full(void *userdata)
{
    const struct dlx_client *c = userdata;
    struct pollfd room = {.fd = c->sock, .events = POLLOUT};
    while (poll(&room, 1, 0) == 1)
        sched_yield();
    ck_assert_int_eq(kill(dlx_test_stream_daemon.pid, SIGCONT), 0);
    return NULL;
}

/* More arenas are empty than the socket has room for drops of them. */
TEST(end_of_publisher_that_retains_gives_all_empty_arenas_back)
{
    enum { N_ARENAS = 24 };
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    DLManagedTensorVersioned *t[N_ARENAS];
    ck_assert_int_eq(setsockopt(c->sock, SOL_SOCKET, SO_SNDBUF, &(int){1}, sizeof(int)), 0);
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "test/a", PUBLISHER(.retain = 1));
    dlx_test_stream_publish(p, 10, 1);
    for (int i = 0; i < N_ARENAS; i++)
        t[i] = dlx_test_stream_alloc(p, N(1), i);
    for (int i = 0; i < N_ARENAS; i++)
        t[i]->deleter(t[i]);
    ck_assert_uint_gt(dlx_test_stream_stats(p).n_arenas, N_ARENAS);
    dlx_test_daemon_pause(&dlx_test_stream_daemon);
    pthread_t thread = dlx_test_stream_thread(go_on_when_full, c);
    dlx_publisher_unref(p);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_uint_le(charged_bytes(other), MIB);
    dlx_test_stream_get(other, "test/a", 10, 1);
}

/* Of several sizes in turn, each held for a while: after the first messages no arena comes or
 * goes. */
TEST(a_steady_stream_keeps_its_arenas)
{
    auto_pair x = dlx_test_pair_make(&one, NULL);
    struct dlx_message *held[3] = {NULL};
    uint32_t last = 0;
    for (int64_t i = 0; i < 40; i++) {
        struct dlx_message **at = &held[i % 3];
        dlx_message_unref(*at);
        *at = pass(&x, 1 + i % 3, i);
        dlx_test_stream_check(*at, N(1 + i % 3), i);
        const struct dlx_subscriber_link *subscriber_link = x.s->links[0];
        const uint32_t newest = subscriber_link->arenas[subscriber_link->n_arenas - 1].id;
        if (i == 20)
            last = newest;
        ck_assert(i <= 20 || newest == last); /* ids are never used again */
    }
    dlx_test_stream_unref_messages(held, 3);
}

/* The parts of the set are small and its manifest is large: dlx_alloc_set() makes room for all of
 * it. */
TEST(a_set_lies_in_one_arena_with_its_manifest)
{
    enum { N_TENSORS = 20000 };
    static struct dlx_tensor_spec specs[N_TENSORS];
    static DLManagedTensorVersioned *tensors[N_TENSORS];
    static struct dlx_item items[N_TENSORS];
    auto_pair x = dlx_test_pair_make(&one, NULL);
    int64_t shape = 1;
    for (int i = 0; i < N_TENSORS; i++)
        specs[i] = *SPEC(.dtype = {kDLUInt, 8, 1}, .ndim = 1, .shape = &shape);
    for (int round = 1; round <= 3; round++) {
        ok(dlx_alloc_set(x.p, specs, N_TENSORS, tensors));
        for (int i = 0; i < N_TENSORS; i++) {
            *(uint8_t *)tensors[i]->dl_tensor.data = (uint8_t)(i + round);
            items[i] = (struct dlx_item){.tensor = tensors[i]};
        }
        ok(dlx_publish_set(x.p, items, N_TENSORS, NULL, NULL, NULL));
        ck_assert_uint_le(dlx_test_stream_stats(x.p).n_arenas, (uint32_t)round);
        auto_message *m = dlx_test_stream_next(x.s);
        for (uint32_t i = 0; i < N_TENSORS; i++)
            ck_assert_uint_eq(*(const uint8_t *)dlx_message_tensor_peek(m, i)->data,
                              (uint8_t)(i + (uint32_t)round));
    }
}

TEST(without_a_daemon_a_large_tensor_goes_where_it_fits)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = make_empty_arenas(c, 9);
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    auto_tensor *t0 = dlx_test_stream_alloc(p, N(3), 1), *t1 = dlx_test_stream_alloc(p, N(3), 2),
                *t2 = dlx_test_stream_alloc(p, N(3), 3);
    ck_assert_uint_eq(dlx_test_stream_stats(p).n_arenas, 2);
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
}

/* The publisher waits for the daemon once, not for each message. */
TEST(a_daemon_that_does_not_answer_is_not_asked_each_time)
{
    auto_client *c = NULL;
    ok(dlx_connect(CONNECT(.timeout_ns = SECOND), &c));
    auto_publisher *p = make_empty_arenas(c, 9);
    dlx_test_daemon_pause(&dlx_test_stream_daemon);
    uint64_t begin = dlx__now_ns();
    auto_tensor *t0 = dlx_test_stream_alloc(p, N(3), 1);
    uint64_t asked = dlx__now_ns();
    auto_tensor *t1 = dlx_test_stream_alloc(p, N(3), 2), *t2 = dlx_test_stream_alloc(p, N(3), 3);
    uint64_t not_asked = dlx__now_ns();
    ck_assert_int_eq(kill(dlx_test_stream_daemon.pid, SIGCONT), 0);
    ck_assert_uint_ge(asked - begin, (uint64_t)SECOND);
    ck_assert_uint_lt(not_asked - asked, (uint64_t)SECOND);
}

static uint32_t arena_of(struct dlx_publisher *p)
{
    const struct dlx_block *block = p->core.block->payloads[p->core.head & p->core.block->mask];
    return dlx__block_arena_id(block);
}

static bool has_arena(struct dlx_subscription *s, uint32_t id)
{
    return dlx__subscriber_link_has_arena(s->links[0], id);
}

/* The publisher says that an arena is gone, which may be a lie; the subscription hears of it. */
static void drop(struct dlx_test_pair *x, uint32_t arena)
{
    ck_assert_int_eq(dlx__call_arena_drop(x->c, x->p->id, arena, false), 0);
    dlx_test_wait_readable(x->s->sock);
    dlx__subscription_read_notifications(x->s);
}

/* The subscriber unmaps the arena although it holds messages in others, but not while it holds one
 * there, whatever the publisher says. */
TEST(a_dropped_arena_stays_mapped_for_what_lies_in_it_alone)
{
    auto_pair x = dlx_test_pair_make(&one, NULL);
    struct dlx_message *m[3];
    uint32_t arenas[3];
    for (int i = 0; i < 3; i++) {
        m[i] = pass(&x, 2, i);
        arenas[i] = arena_of(x.p);
        for (int k = 0; k < i; k++)
            ck_assert_uint_ne(arenas[k], arenas[i]);
    }
    for (int i = 0; i < 2; i++)
        drop(&x, arenas[i]);
    for (int i = 0; i < 2; i++) {
        for (int k = i; k < 3; k++)
            dlx_test_stream_check(m[k], N(2), k);
        dlx_message_unref(m[i]);
        dlx__subscriber_link_sweep_arenas(x.s->links[0]);
        for (int k = i; k < 3; k++)
            ck_assert_int_eq(has_arena(x.s, arenas[k]), k > i);
    }
    dlx_test_stream_check(m[2], N(2), 2);
    dlx_message_unref(m[2]);
}

TEST(an_impossible_allocation_costs_no_arena)
{
    auto_pair x = dlx_test_pair_make(&one, NULL);
    const int64_t shape = INT64_C(1) << 50;
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 10, 1), *none = NULL;
    t->deleter(t); /* its arena is empty */
    const uint32_t n_arenas = dlx_test_stream_stats(x.p).n_arenas;
    ck_assert_uint_gt(n_arenas, 0);
    fails(dlx_alloc(x.p, SPEC(.dtype = {kDLUInt, 8, 1}, .ndim = 1, .shape = &shape), &none),
          DLX_E_NO_MEMORY, "a tensor or a set may have at most 64.0 TiB");
    ck_assert_uint_eq(dlx_test_stream_stats(x.p).n_arenas, n_arenas);
}

/* A set may lie in several. */
TEST(an_arena_stays_mapped_for_a_set_with_a_tensor_in_it)
{
    auto_pair x = dlx_test_pair_make(&one, NULL);
    struct dlx_message *single = pass(&x, 2, 1), *set = NULL;
    uint32_t other = arena_of(x.p);
    struct dlx_item items[3] = {{.name = "a"}, {.name = "b"}, {.name = "none"}};
    items[0].tensor = dlx_test_stream_alloc(x.p, N(2), 10);
    items[1].tensor = dlx_test_stream_alloc(x.p, N(3), 20);
    items[2].tensor = dlx_test_stream_alloc(x.p, 0, 0);
    uint32_t arenas[2];
    for (int i = 0; i < 2; i++) {
        arenas[i] = dlx__block_arena_id(dlx__block_of(x.p->heap, items[i].tensor));
        ck_assert_uint_ne(arenas[i], other);
    }
    ok(dlx_publish_set(x.p, items, 3, NULL, NULL, NULL));
    ok(dlx_take(x.s, PATIENCE, &set));
    const uint32_t dropped[] = {other, arenas[0], arenas[1]};
    for (int i = 0; i < 3; i++)
        drop(&x, dropped[i]);
    dlx_message_unref(single);
    dlx__subscriber_link_sweep_arenas(x.s->links[0]);
    ck_assert(!has_arena(x.s, other));
    for (uint32_t i = 0; i < 2; i++) {
        const DLTensor *t = dlx_message_tensor_peek(set, i);
        ck_assert(has_arena(x.s, arenas[i]));
        for (int64_t k = 0; k < t->shape[0]; k++)
            ck_assert_int_eq(((const int64_t *)t->data)[k], 10 + 10 * i + k);
    }
    dlx_message_unref(set);
    dlx__subscriber_link_sweep_arenas(x.s->links[0]);
    ck_assert(!has_arena(x.s, arenas[0]) && !has_arena(x.s, arenas[1]));
}
