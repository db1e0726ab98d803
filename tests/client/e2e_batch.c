/* SPDX-License-Identifier: Apache-2.0 */

/* dlx_publish_n() and dlx_take_n(): many messages in one call, each as if it were alone. */

#include "client/publish/publisher_memory.h"
#include "tests/harness/stream.h"

enum { LEN = 4 }; /* elements of a message */

static struct dlx_message *msgs[1024];
static DLManagedTensorVersioned *tensors[1024];

/* Tensors of messages `first` to `first + n - 1`. */
static void alloc_all(struct dlx_publisher *p, int64_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        tensors[i] = dlx_test_stream_alloc(p, LEN, first + i);
}

/* Publish messages of which each has its number as its value. */
static void publish_n(struct dlx_publisher *p, int64_t first, uint32_t n)
{
    uint32_t done = 0;
    alloc_all(p, first, n);
    ok(dlx_publish_n(p, tensors, n, NULL, NULL, &done));
    ck_assert_uint_eq(done, n);
}

static void check_and_release(struct dlx_message *m, int64_t value, uint64_t gap)
{
    ck_assert_uint_eq(dlx_message_seq(m), (uint64_t)value);
    ck_assert_uint_eq(dlx_message_gap(m), gap);
    dlx_test_stream_check(m, LEN, value);
    dlx_message_unref(m);
}

/* Takes messages one by one. */
static void take_each(struct dlx_subscription *s, int64_t first, int64_t last)
{
    for (int64_t i = first; i <= last; i++)
        check_and_release(dlx_test_stream_next(s), i, 0);
}

/* Take `n` at once, and no fewer. */
static void take_n(struct dlx_subscription *s, uint32_t at_most, uint32_t n)
{
    uint32_t got = 0;
    ok(dlx_take_n(s, at_most, PATIENCE, msgs, &got));
    ck_assert_uint_eq(got, n);
}

/* Takes messages from `value` on, of which the first tells the gap. */
static void expect_n(struct dlx_subscription *s, uint32_t at_most, uint32_t n, int64_t value,
                     uint64_t gap)
{
    take_n(s, at_most, n);
    for (uint32_t i = 0; i < n; i++)
        check_and_release(msgs[i], value + i, i == 0 ? gap : 0);
}

static const struct dlx_publisher_args deep = {.size = sizeof deep, .depth = 512};
static const struct dlx_subscribe_args greedy = {.size = sizeof greedy, .max_held = 1024};

TEST(a_batch_arrives_in_order)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_publish_report report = {.size = sizeof report};
    uint32_t done = 7;
    ok(dlx_publish_n(x.p, tensors, 0, NULL, NULL, &done));
    ck_assert_uint_eq(done, 0);
    alloc_all(x.p, 1, 5);
    ok(dlx_publish_n(x.p, tensors, 5, PUBLISH(.monotonic_ns = 12345), &report, &done));
    ck_assert_uint_eq(done, 5);
    ck_assert_uint_eq(report.seq, 5);
    ck_assert_uint_eq(report.n_copied, 0);
    ck_assert_uint_eq(report.copied_bytes, 0);
    ck_assert_uint_eq(report.n_subscribers, 1);
    alloc_all(x.p, 6, 2);
    ok(dlx_publish_n(x.p, tensors, 2, NULL, NULL, NULL));
    for (int64_t i = 1; i <= 7; i++) {
        struct dlx_message *m = dlx_test_stream_next(x.s);
        ck_assert(i > 5 || dlx_message_monotonic_ns(m) == 12345);
        check_and_release(m, i, 0);
    }
}

LOOP_TEST(the_first_that_fails_ends_a_batch, 0, 2)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_publish_report report = {.size = sizeof report};
    struct dlx_publish_args args = {.size = sizeof args, .strict = true};
    uint32_t done = 0;
    alloc_all(x.p, 1, 4);
    DLManagedTensorVersioned *third = tensors[2];
    int64_t shape = LEN, private[LEN] = {0};
    DLManagedTensorVersioned foreign = INT64_TENSOR(private, &shape);
    tensors[2] = _i == 0 ? NULL : &foreign;
    if (_i == 0)
        fails(dlx_publish_n(x.p, tensors, 4, &args, &report, &done), DLX_E_INVALID, "NULL");
    else
        fails(dlx_publish_n(x.p, tensors, 4, &args, &report, &done), DLX_E_WOULD_COPY, "strict");
    ck_assert_uint_eq(done, 2);
    ck_assert_uint_eq(report.seq, 2);
    /* The tensors after the failed one are still the caller's. */
    tensors[2] = third;
    ok(dlx_publish_n(x.p, tensors + 2, 2, &args, &report, &done));
    ck_assert_uint_eq(done, 2);
    expect_n(x.s, 16, 4, 1, 0);
}

TEST(a_batch_that_finds_no_room_is_published_in_part)
{
    auto_pair x = dlx_test_pair_make(PUBLISHER_BLOCKING(.depth = 3), SUBSCRIBE_RELIABLY);
    uint32_t done = 0;
    alloc_all(x.p, 1, 6);
    fails(dlx_publish_n(x.p, tensors, 6, NULL, NULL, &done), DLX_E_FULL, "3 behind");
    ck_assert_uint_eq(done, 3);
    take_each(x.s, 1, 1);
    fails(dlx_publish_n(x.p, tensors + 3, 3, PUBLISH(.timeout_ns = SECOND / 100), NULL, &done),
          DLX_E_TIMEOUT, "3 behind");
    ck_assert_uint_eq(done, 1);
    take_each(x.s, 2, 4);
    ok(dlx_publish_n(x.p, tensors + 4, 2, NULL, NULL, &done));
    ck_assert_uint_eq(done, 2);
    take_each(x.s, 5, 6);
}

enum { MANY = 600 }; /* more than the ring has entries */

TEST(an_idle_subscriber_gets_the_last_of_a_batch)
{
    enum { DEPTH = 16 };
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    publish_n(x.p, 1, MANY);
    expect_n(x.s, DEPTH, DEPTH, MANY - DEPTH + 1, MANY - DEPTH);
}

/* No assertions: another thread has those. */
static void *take_many(void *userdata)
{
    struct dlx_subscription *s = userdata;
    struct dlx_message *m[10];
    for (uint32_t n = 0, got = 0; n < MANY; n += got) {
        if (dlx_take_n(s, 10, PATIENCE, m, &got) < 0)
            return NULL;
        for (uint32_t i = 0; i < got; i++) {
            bool good = dlx_message_seq(m[i]) == n + i + 1 &&
                        *(const int64_t *)dlx_message_tensor_peek(m[i], 0)->data == n + i + 1;
            dlx_message_unref(m[i]);
            if (!good)
                return NULL;
        }
    }
    return s;
}

TEST(a_batch_larger_than_the_ring_waits_for_a_reliable_subscriber)
{
    auto_pair x = dlx_test_pair_make(PUBLISHER_BLOCKING(.depth = 3), SUBSCRIBE_RELIABLY);
    void *result = NULL;
    uint32_t done = 0;
    alloc_all(x.p, 1, MANY);
    pthread_t thread = dlx_test_stream_thread(take_many, x.s);
    int r = dlx_publish_n(x.p, tensors, MANY, PUBLISH(.timeout_ns = PATIENCE), NULL, &done);
    ck_assert_int_eq(pthread_join(thread, &result), 0);
    ck_assert_int_eq(r, 0);
    ck_assert_uint_eq(done, MANY);
    ck_assert_ptr_eq(result, x.s);
}

static int n_deleted;

static void count_delete(DLManagedTensorVersioned *t)
{
    (void)t;
    n_deleted++;
}

TEST(a_batch_copies_what_is_private)
{
    enum { N = 6 };
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_publish_report report = {.size = sizeof report};
    int64_t shape = LEN, data[N][LEN];
    DLManagedTensorVersioned foreign[N];
    alloc_all(x.p, 1, N);
    for (int i = 1; i < N; i += 2) {
        for (int k = 0; k < LEN; k++)
            data[i][k] = i + 1 + k;
        foreign[i] = (DLManagedTensorVersioned)INT64_TENSOR(data[i], &shape);
        foreign[i].deleter = count_delete;
        tensors[i]->deleter(tensors[i]);
        tensors[i] = &foreign[i];
    }
    n_deleted = 0;
    ok(dlx_publish_n(x.p, tensors, N, NULL, &report, NULL));
    ck_assert_int_eq(n_deleted, N / 2);
    ck_assert_uint_eq(report.seq, N);
    ck_assert_uint_eq(report.n_copied, N / 2);
    ck_assert_uint_eq(report.copied_bytes, N / 2 * LEN * sizeof(int64_t));
    memset(data, 0, sizeof data);
    expect_n(x.s, N, N, 1, 0);
}

TEST(a_shared_tensor_may_be_in_a_batch_often)
{
    enum { N = 5 };
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, LEN, 7);
    for (int i = 0; i < N; i++)
        tensors[i] = t;
    ok(dlx_publish_n(x.p, tensors, N, PUBLISH(.share = true, .strict = true), NULL, NULL));
    take_n(x.s, N, N);
    t->deleter(t);
    for (int i = 0; i < N; i++) {
        dlx_test_stream_check(msgs[i], LEN, 7);
        dlx_message_unref(msgs[i]);
    }
}

TEST(taken_messages_are_in_order)
{
    auto_pair x = dlx_test_pair_make(&deep, &greedy);
    static const uint32_t ways[][2] = {{4, 4}, {1, 1}, {300, 295}}; /* asked for, there */
    uint32_t got = 7;
    int64_t n = 0;
    fails(dlx_take_n(x.s, 8, 0, msgs, &got), DLX_E_EMPTY, "");
    fails(dlx_take_n(x.s, 8, 1000, msgs, &got), DLX_E_TIMEOUT, "test/a");
    fails(dlx_take_n(x.s, 0, 0, msgs, &got), DLX_E_INVALID, "n is 0");
    publish_n(x.p, 1, 300);
    for (size_t k = 0; k < DLX_ARRAY_SIZE(ways); k++) {
        expect_n(x.s, ways[k][0], ways[k][1], n + 1, 0);
        n += ways[k][1];
    }
    ck_assert_int_eq(dlx_take_n(x.s, 8, 0, msgs, &got), DLX_E_EMPTY);
}

TEST(the_first_after_lost_messages_tells_the_gap)
{
    auto_pair x = dlx_test_pair_make(PUBLISHER(.depth = 4), NULL);
    for (int64_t first = 1; first <= 21; first += 10) {
        publish_n(x.p, first, 10);
        expect_n(x.s, 8, 4, first + 6, 6);
    }
}

TEST(the_end_of_a_publisher_comes_after_its_messages)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    uint32_t got = 0;
    publish_n(x.p, 1, 3);
    x.p = dlx_publisher_unref(x.p);
    expect_n(x.s, 8, 3, 1, 0);
    fails(dlx_take_n(x.s, 8, PATIENCE, msgs, &got), DLX_E_PUBLISHER_GONE, "test/a");
    ck_assert_int_eq(dlx_take_n(x.s, 8, 0, msgs, &got), DLX_E_EMPTY);
}

TEST(of_the_latest_there_is_one)
{
    auto_pair x = dlx_test_pair_make(NULL, SUBSCRIBE(.mode = DLX_MODE_LATEST));
    uint32_t got = 0;
    publish_n(x.p, 1, 100);
    expect_n(x.s, 8, 1, 100, 99);
    ck_assert_int_eq(dlx_take_n(x.s, 8, 0, msgs, &got), DLX_E_EMPTY);
}

/* A message that cannot be ends a batch, and is told by the next call. */
TEST(a_batch_ends_before_a_bad_message)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_block *block;
    uint64_t words[DLX_SHM_ENTRY_WORDS] = {0};
    uint32_t got = 0;
    publish_n(x.p, 1, 2);
    ck_assert_int_eq(dlx__publisher_block(x.p, 80, &block), 0);
    ck_assert(dlx__writer_has_room(&x.p->core));
    block->next = NULL;
    ck_assert(dlx__entry_pack_tensor(words, dlx__block_arena_id(block), 8,
                                     (DLDataType){kDLInt, 64, 1}, false, 1, (int64_t[]){10}));
    dlx__writer_put(&x.p->core, words, 1, block);
    dlx__writer_announce(&x.p->core);
    expect_n(x.s, 8, 2, 1, 0);
    fails(dlx_take_n(x.s, 8, PATIENCE, msgs, &got), DLX_E_BAD_PEER, "offset 8");
    ck_assert_uint_eq(dlx_test_stream_subscription_stats(x.s).rejected, 1);
}

/* Each in its own order; what a batch has no room for comes with the next call. */
TEST(batches_of_several_publishers_lose_nothing)
{
    enum { N = 20 };
    auto_pair x = dlx_test_pair_make(&deep, &greedy);
    uint64_t last[2] = {0, 0}, first = 0;
    uint32_t n = 0, got = 0;
    auto_publisher *other = dlx_test_stream_publisher(x.c, "test/a", &deep);
    publish_n(x.p, 1, N);
    publish_n(other, 1, N);
    while (n < 2 * N) {
        if (n % 3 == 0) {
            ok(dlx_take(x.s, PATIENCE, msgs));
            got = 1;
        } else {
            ok(dlx_take_n(x.s, 5, PATIENCE, msgs, &got));
        }
        ck_assert_uint_eq(dlx_test_stream_subscription_stats(x.s).n_held, got);
        for (uint32_t i = 0; i < got; i++) {
            if (first == 0)
                first = dlx_message_publisher(msgs[i]);
            int from = dlx_message_publisher(msgs[i]) != first;
            check_and_release(msgs[i], (int64_t)++last[from], 0);
        }
        n += got;
    }
    ck_assert_int_eq(dlx_take_n(x.s, 8, 0, msgs, &got), DLX_E_EMPTY);
}
