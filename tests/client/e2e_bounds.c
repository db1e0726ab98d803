/* SPDX-License-Identifier: Apache-2.0 */

/* The messages that a publisher lets one subscriber hold: takes beyond that fail, and a link that
 * holds more is cut. */

#include "client/publish/publisher_link.h"
#include "client/subscribe/subscription.h"
#include "tests/harness/stream.h"

#define N       10 /* elements of a message, */
#define BYTES   80 /* and its bytes */
#define LARGE_N INT64_C(8192)
#define LARGE   (LARGE_N * 8)

/* By one call for each message, or by one for all that may be taken. */
static void take_held(struct dlx_subscription *s, bool at_once, struct dlx_message **held,
                      uint32_t n, uint32_t most)
{
    uint32_t got = 0;
    if (at_once)
        ok(dlx_take_n(s, most, PATIENCE, held, &got));
    for (; got < n; got++)
        ok(dlx_take(s, PATIENCE, &held[got]));
    ck_assert_uint_eq(got, n);
}

/* `n` of five messages may be held, which `word` says of the others. */
static void check_limit(struct dlx_test_pair *x, uint32_t n, const char *word, bool at_once)
{
    enum { ALL = 5 };
    struct dlx_message *held[ALL] = {0}, *m = NULL;
    uint32_t got;
    dlx_test_stream_publish_all(x->p, N, 1, ALL);
    take_held(x->s, at_once, held, n, ALL);
    for (int i = 0; i < 3; i++) {
        fails(dlx_take(x->s, PATIENCE, &m), DLX_E_TOO_MANY_HELD, word);
        fails(dlx_take_n(x->s, 1, 0, &m, &got), DLX_E_TOO_MANY_HELD, "test/a");
    }
    for (uint32_t i = 0; i < ALL; i++) {
        dlx_test_stream_check(held[i], N, i + 1);
        ck_assert_uint_eq(dlx_message_gap(held[i]), 0);
        ck_assert_uint_eq(dlx_message_seq(held[i]), i + 1);
        dlx_message_unref(held[i]);
        if (i + n < ALL)
            ok(dlx_take(x->s, PATIENCE, &held[i + n]));
    }
    ck_assert_int_eq(dlx_take(x->s, 0, &m), DLX_E_EMPTY);
}

/* The publisher's count, the subscription's if that is lower, or bytes, of which the last message
 * may be larger than what is left. */
static const struct {
    uint32_t max_held;
    uint64_t max_held_bytes;
    uint32_t max_held_here;
    uint32_t n;
    const char *words;
} limits[] = {
    {2, 0, 8, 2, "2 messages are held, the limit of the publisher"},
    {9, 0, 3, 3, "3 messages are held, the limit of this subscription"},
    {0, 2 * BYTES, 8, 2, "160 B are held, and the publisher allows 160 B"},
    {0, 2 * BYTES + 2, 8, 3, "240 B are held, and the publisher allows 162 B"},
};

LOOP_TEST(a_take_beyond_the_limit_fails_until_one_is_released, 0, 2 * DLX_ARRAY_SIZE(limits))
{
    const int i = _i / 2;
    auto_pair x =
        dlx_test_pair_make(PUBLISHER_BLOCKING(.max_held = limits[i].max_held,
                                              .max_held_bytes = limits[i].max_held_bytes),
                           SUBSCRIBE(.reliable = true, .max_held = limits[i].max_held_here));
    check_limit(&x, limits[i].n, limits[i].words, _i % 2);
}

TEST(a_subscriber_of_the_newest_message_is_bounded_too)
{
    auto_pair x =
        dlx_test_pair_make(PUBLISHER(.max_held_bytes = 1), SUBSCRIBE(.mode = DLX_MODE_LATEST));
    struct dlx_message *m = dlx_test_pair_pass(&x, N, 1);
    for (int64_t i = 2; i <= 5; i++) {
        dlx_test_stream_publish(x.p, N, i);
        take_fails(x.s, 0, DLX_E_TOO_MANY_HELD, "max_held_bytes");
    }
    dlx_message_unref(m);
    dlx_test_stream_expect(x.s, N, 5);
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(x.s);
    ck_assert_uint_eq(stats.taken, 2);
    ck_assert_uint_eq(stats.skipped, 3);
}

/* Only the take of a message that is there fails. */
TEST(a_subscriber_that_holds_all_it_may_is_told_what_else_there_is)
{
    auto_pair x = dlx_test_pair_make(PUBLISHER(.max_held_bytes = BYTES), NULL);
    dlx_test_stream_publish(x.p, N, 1);
    auto_message *held = dlx_test_stream_next(x.s);
    take_fails(x.s, 0, DLX_E_EMPTY, "");
    take_fails(x.s, 1000000, DLX_E_TIMEOUT, "no message in time");
    x.p = dlx_publisher_unref(x.p);
    take_fails(x.s, PATIENCE, DLX_E_PUBLISHER_GONE, "test/a");
    dlx_test_stream_check(held, N, 1);
}

/* A message that was taken, and waited for its arena, while a batch comes from another link. */
TEST(a_message_that_waited_counts_when_a_batch_takes_it)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/0", PUBLISHER(.max_held_bytes = LARGE)),
                   *q = dlx_test_stream_publisher(c, "test/1", NULL);
    struct dlx_message *m[2] = {NULL};
    uint32_t got = 0, n = 0;
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/*", NULL);
    for (int round = 0; round < 2; round++) { /* the first one makes what is like it a rule */
        dlx_test_stream_publish(p, N, round);
        dlx_test_stream_publish(q, N, round);
        if (round == 1) {
            ck_assert_uint_eq(s->n_active, 2);
            while (s->n_alone > 0 || s->active[s->next]->core.is_bounded) {
                s->n_alone = 0;
                s->next = (s->next + 1) % 2;
            }
            struct dlx_subscriber_link *waits = s->active[(s->next + 1) % 2];
            ck_assert_int_eq(dlx__reader_take(&waits->core, waits->pending, 1), 1);
            waits->first_pending = 0;
            waits->n_pending = 1;
        }
        for (n = 0; n < 2; n += got)
            ok(dlx_take_n(s, 2 - n, PATIENCE, &m[n], &got));
        for (int i = 0; i < 2; i++) {
            const struct dlx_subscriber_link *subscriber_link = s->links[i];
            ck_assert_uint_eq(atomic_load(&subscriber_link->held_bytes),
                              subscriber_link->core.is_bounded ? BYTES : 0);
        }
        dlx_test_stream_unref_messages(m, 2);
        for (int i = 0; i < 2; i++)
            ck_assert_uint_eq(atomic_load(&s->links[i]->held_bytes), 0);
    }
}

/* Of a set, all tensors count, as long as one of them is held. */
TEST(bytes_count_until_the_last_tensor_is_deleted_on_another_thread)
{
    auto_pair x = dlx_test_pair_make(PUBLISHER(.max_held_bytes = BYTES + 1), NULL);
    for (int round = 0; round < 20; round++) {
        DLManagedTensorVersioned *t[2];
        const struct dlx_item items[] = {{"a", dlx_test_stream_alloc(x.p, N, 1)},
                                         {"b", dlx_test_stream_alloc(x.p, N, 2)}};
        ok(dlx_publish_set(x.p, items, 2, NULL, NULL, NULL));
        struct dlx_message *m = dlx_test_pair_pass(&x, N, 3);
        for (uint32_t i = 0; i < 2; i++)
            ok(dlx_message_tensor(m, i, &t[i]));
        dlx_message_unref(m);
        for (int i = 0; i < 2; i++) {
            take_fails(x.s, 0, DLX_E_TOO_MANY_HELD, "160 B are held");
            ck_assert_int_eq(pthread_join(dlx_test_stream_delete_elsewhere(t[i]), NULL), 0);
        }
        dlx_test_stream_expect(x.s, N, 3);
        ck_assert_uint_eq(x.s->links[0]->held_bytes, 0);
    }
}

static void expect_one_at_a_time(struct dlx_subscription *s)
{
    struct dlx_message *m = dlx_test_stream_next(s);
    take_fails(s, PATIENCE, DLX_E_TOO_MANY_HELD, "the publisher");
    dlx_message_unref(m);
    dlx_message_unref(dlx_test_stream_next(s));
}

/* After a restart each link has its own bounds: until nothing comes on the old one, and then two
 * more. */
static void publish_on_a_new_link(struct dlx_test_pair *x)
{
    const uint64_t before = dlx_publisher_id(x->p);
    for (uint64_t publisher = before; publisher == before;) {
        auto_message *m = dlx_test_pair_pass(x, N, 3);
        publisher = dlx_message_publisher(m);
    }
    dlx_test_stream_publish_all(x->p, N, 4, 5);
}

LOOP_TEST(bounds_outlive_the_daemon_and_the_publisher, 0, 2)
{
    const struct dlx_publisher_args pa = {
        .size = sizeof pa, .retain = 2, .max_held = _i ? 0 : 1, .max_held_bytes = _i ? BYTES : 0};
    auto_pair x = dlx_test_pair_make(&pa, NULL);
    dlx_test_stream_publish_all(x.p, N, 1, 2);
    expect_one_at_a_time(x.s);
    dlx_test_stream_restart();
    publish_on_a_new_link(&x);
    expect_one_at_a_time(x.s);
    x.p = dlx_publisher_unref(x.p);
    dlx_subscription_unref(x.s);
    ok(dlx_subscribe(x.c, "test/a", NULL, &x.s)); /* what is retained */
    expect_one_at_a_time(x.s);
}

/* The bounds are unknown to its library. */
static void make_liar(struct dlx_subscription *s)
{
    struct dlx_subscriber_link *subscriber_link = s->links[0];
    while (!dlx__subscriber_link_is_open(subscriber_link))
        dlx__subscription_read_notifications(s);
    subscriber_link->core.max_held = subscriber_link->max_held;
    subscriber_link->most_held_bytes = UINT64_MAX;
}

struct cast {
    struct dlx_client *c;
    struct dlx_publisher *p;
    struct dlx_subscription *honest, *liar;
    struct dlx_message *held[8], *taken[8]; /* by the honest one, and by the liar */
    int64_t published;
    struct dlx_shm_link *page; /* of the liar, which outlives its link */
};

static struct cast make_cast(const struct dlx_publisher_args *pa, bool is_reliable)
{
    struct cast x = {.c = dlx_test_stream_connect()};
    const struct dlx_subscribe_args sa = {
        .size = sizeof sa, .max_held = 8, .reliable = is_reliable};
    x.p = dlx_test_stream_publisher(x.c, "test/a", pa);
    x.honest = dlx_test_stream_subscribe(x.c, "test/a", &sa);
    x.liar = dlx_test_stream_subscribe(x.c, "test/a", &sa);
    make_liar(x.liar);
    x.page = x.liar->links[0]->page;
    return x;
}

/* Publishes a message, which both take and hold; the honest one holds no more than `n`. */
static void publish_and_hold(struct cast *x, uint32_t n_honest, uint32_t n_liar)
{
    uint32_t i = (uint32_t)x->published++, at = i % n_honest;
    dlx_test_stream_publish(x->p, LARGE_N, x->published);
    if (x->held[at])
        dlx_test_stream_check(x->held[at], LARGE_N, x->published - (int64_t)n_honest);
    dlx_message_unref(x->held[at]);
    ok(dlx_take(x->honest, PATIENCE, &x->held[at]));
    dlx_test_stream_check(x->held[at], LARGE_N, x->published);
    ck_assert_uint_eq(dlx_message_gap(x->held[at]), 0);
    if (i < n_liar)
        ok(dlx_take(x->liar, PATIENCE, &x->taken[i]));
    else /* the publisher need not wait for it */
        dlx_store64_sc(&x->page->cursor, (uint64_t)x->published);
}

static void end_cast(struct cast *x)
{
    dlx_test_stream_unref_messages(x->held, DLX_ARRAY_SIZE(x->held));
    dlx_test_stream_unref_messages(x->taken, DLX_ARRAY_SIZE(x->taken));
    dlx_subscription_unref(x->honest);
    dlx_subscription_unref(x->liar);
    dlx_publisher_unref(x->p);
    dlx_client_unref(x->c);
}

/* Which of the bounds, and whether the publisher waits for readers. */
static struct dlx_publisher_args bounded(int i)
{
    return (struct dlx_publisher_args){.size = sizeof(struct dlx_publisher_args),
                                       .depth = 2,
                                       .on_full = i & 2 ? DLX_ON_FULL_BLOCK : DLX_ON_FULL_DROP,
                                       .max_held = i & 1 ? 0 : 3,
                                       .max_held_bytes = i & 1 ? 3 * LARGE : 0};
}

LOOP_TEST(a_link_that_holds_too_much_is_cut_and_counted_and_others_go_on, 0, 4)
{
    const struct dlx_publisher_args pa = bounded(_i);
    struct cast x = make_cast(&pa, _i & 2);
    struct dlx_event event = {.size = sizeof event};
    uint64_t link = x.liar->links[0]->id;
    /* One message more than it may hold, and, of bytes, the one that may exceed them. */
    while (dlx_test_stream_stats(x.p).cut == 0) {
        publish_and_hold(&x, 3, _i & 1 ? 5 : 4);
        ck_assert_int_le(x.published, 50);
    }
    ck_assert_int_ge(x.published, _i & 1 ? 5 : 4);
    for (int i = 0; i < 2; i++) {
        ok(dlx_publisher_next_event(x.p, &event));
        ck_assert_uint_eq(event.kind, DLX_EVENT_JOINED);
        ck_assert_str_eq(event.reason, "");
    }
    ok(dlx_publisher_next_event(x.p, &event));
    ck_assert_uint_eq(event.kind, DLX_EVENT_LOST);
    ck_assert_uint_eq(event.link, link);
    ck_assert_msg(strstr(event.reason, _i & 1 ? "256.0 KiB and a message (max_held_bytes 192.0 KiB)"
                                              : "4 hold words (max_held 3)"),
                  "%s", event.reason);
    ck_assert_int_eq(dlx_publisher_next_event(x.p, &event), DLX_E_EMPTY);
    uint32_t n_arenas = dlx_test_stream_stats(x.p).n_arenas;
    for (int i = 0; i < 100; i++)
        publish_and_hold(&x, 3, 0);
    struct dlx_publisher_stats stats = dlx_test_stream_stats(x.p);
    ck_assert_uint_eq(stats.cut, 1);
    ck_assert_uint_eq(stats.n_subscribers, 1);
    ck_assert_uint_le(stats.n_arenas, n_arenas);
    int r = 0;
    for (int i = 0; r == 0 && i < 4; i++) { /* of what was published before, at most `depth` */
        auto_message *m = NULL;
        r = dlx_take(x.liar, PATIENCE, &m);
    }
    ck_assert_int_eq(r, DLX_E_LIMIT);
    contains(dlx_errmsg(), "cut the link, which held more than it allows");
    take_fails(x.liar, SECOND / 100, DLX_E_TIMEOUT, "was cut: the publisher");
    ok(dlx_subscription_next_event(x.liar, &event));
    ck_assert_uint_eq(event.kind, DLX_EVENT_JOINED);
    ok(dlx_subscription_next_event(x.liar, &event));
    ck_assert_uint_eq(event.kind, DLX_EVENT_LOST);
    contains(event.reason, "cut the link, which held more than it allows");
    const struct dlx_subscription_stats got = dlx_test_stream_subscription_stats(x.liar);
    ck_assert_uint_eq(got.taken + got.lost, (uint64_t)x.published);
    end_cast(&x);
}

/* Both hold exactly what they may, and one more if bytes are counted. */
LOOP_TEST(an_honest_link_is_not_cut_while_memory_is_short, 0, 4)
{
    const struct dlx_publisher_args pa = bounded(_i);
    struct cast x = make_cast(&pa, _i & 2);
    const uint32_t n = _i & 1 ? 4 : 3;
    x.liar->links[0]->core.max_held = n; /* no liar here */
    for (int i = 0; i < 100; i++) {
        publish_and_hold(&x, 3, n);
        ck_assert(!dlx__publisher_link_cut(x.p));
    }
    for (uint32_t i = 0; i < n; i++)
        dlx_test_stream_check(x.taken[i], LARGE_N, i + 1);
    ck_assert_uint_eq(dlx_test_stream_stats(x.p).cut, 0);
    ck_assert_uint_eq(dlx_test_stream_stats(x.p).n_subscribers, 2);
    end_cast(&x);
}

/* A message counts what its subscriber reads, not the memory that it lies in. */
TEST(parts_of_a_tensor_count_their_own_bytes)
{
    auto_pair x =
        dlx_test_pair_make(PUBLISHER(.depth = 2, .max_held = 8, .max_held_bytes = 7 * 8), NULL);
    struct dlx_message *held[8];
    for (int i = 0; i < 8; i++) {
        DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, LARGE_N, i);
        t->dl_tensor.shape[0] = 1;
        ok(dlx_publish(x.p, t, NULL, NULL));
        if (i < 7)
            ok(dlx_take(x.s, PATIENCE, &held[i]));
        else
            fails(dlx_take(x.s, PATIENCE, &held[i]), DLX_E_TOO_MANY_HELD, "56 B are held");
        ck_assert(!dlx__publisher_link_cut(x.p));
    }
    ck_assert_uint_eq(dlx__writer_link_bytes(&x.p->core, x.p->core.links[0]), 6 * 8);
    dlx_test_stream_unref_messages(held, 7);
    dlx_message_unref(dlx_test_stream_next(x.s));
    /* The same memory again, all of it. */
    for (int i = 0; i < 20; i++) {
        auto_message *m = dlx_test_pair_pass(&x, LARGE_N, i);
        const struct dlx_block *block = x.p->core.block->payloads[x.p->core.head & 255];
        ck_assert_uint_eq(dlx__block_message_bytes(block), LARGE);
    }
}

struct releaser {
    struct dlx_message *_Atomic next[16];
    atomic_bool stop;
};

static void *release_all(void *userdata)
{
    struct releaser *r = userdata;
    for (uint32_t i = 0; !atomic_load(&r->stop); i = (i + 7) % 16)
        dlx_message_unref(atomic_exchange(&r->next[i], NULL));
    for (uint32_t i = 0; i < 16; i++)
        dlx_message_unref(atomic_exchange(&r->next[i], NULL));
    return NULL;
}

struct taker {
    struct dlx_subscription *s;
    struct releaser releaser;
    atomic_bool stop;
    uint64_t n_taken, n_refused;
};

static void *take_all(void *userdata)
{
    struct taker *x = userdata;
    struct dlx_message *m = NULL;
    for (uint32_t i = 0; !atomic_load(&x->stop); i = (i + 1) % 16) {
        int r = dlx_take(x->s, 1000000, &m);
        x->n_refused += r == DLX_E_TOO_MANY_HELD;
        if (r == 0) {
            x->n_taken++;
            dlx_message_unref(atomic_exchange(&x->releaser.next[i], m));
        }
    }
    return NULL;
}

/* The publisher checks the link with each message, as it does only when it wants memory. */
TEST(an_honest_link_that_takes_and_releases_meanwhile_is_not_cut)
{
    enum { MESSAGES = 20000 };
    auto_pair pair = dlx_test_pair_make(
        PUBLISHER(.depth = 64, .max_held = 4, .max_held_bytes = 1000), SUBSCRIBE(.max_held = 16));
    struct taker x = {.s = pair.s};
    pthread_t taker = dlx_test_stream_thread(take_all, &x),
              releaser = dlx_test_stream_thread(release_all, &x.releaser);
    for (int i = 0; i < MESSAGES; i++) {
        dlx_test_stream_publish(pair.p, 1 + i % 125, i);
        for (int k = 0; k < 4; k++)
            ck_assert(!dlx__publisher_link_cut(pair.p));
    }
    atomic_store(&x.stop, true);
    ck_assert_int_eq(pthread_join(taker, NULL), 0);
    atomic_store(&x.releaser.stop, true);
    ck_assert_int_eq(pthread_join(releaser, NULL), 0);
    ck_assert_uint_gt(x.n_taken, 0);
    ck_assert_uint_eq(pair.s->links[0]->held_bytes, 0);
    ck_assert_uint_eq(dlx_test_stream_stats(pair.p).cut, 0);
}
