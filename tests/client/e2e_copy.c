/* SPDX-License-Identifier: Apache-2.0 */

/* When is a tensor copied, and whose is it afterwards: `share`, and tensors that were received. */

#include "tests/harness/stream.h"

static unsigned n_deleted;

static void count_delete(DLManagedTensorVersioned *t)
{
    (void)t;
    n_deleted++;
}

/* Tensor i of the message: int64 that count up from `value`. */
static void check(struct dlx_message *m, uint32_t i, int64_t n, int64_t value)
{
    auto_tensor *t = NULL;
    ok(dlx_message_tensor(m, i, &t));
    ck_assert_uint_eq(t->flags, DLPACK_FLAG_BITMASK_READ_ONLY);
    ck_assert_int_eq(t->dl_tensor.shape[0], n);
    for (int64_t k = 0; k < n; k++)
        ck_assert_int_eq(((int64_t *)t->dl_tensor.data)[k], value + k);
}

/* The same of the next message. */
static void take_and_check(struct dlx_subscription *s, int64_t n, int64_t value)
{
    auto_message *m = dlx_test_stream_next(s);
    check(m, 0, n, value);
}

static const struct dlx_publish_args share = {.size = sizeof share, .share = true, .strict = true};
static const struct dlx_publish_args strict = {.size = sizeof strict, .strict = true};

/* The caller's struct counts, not the tensor that it was copied from. */
LOOP_TEST(a_part_of_a_tensor_in_a_struct_of_the_callers_is_copied, 0, 2)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_publish_report report = {.size = sizeof report};
    const struct dlx_publish_args args = {.size = sizeof args};
    DLManagedTensorVersioned mine = *dlx_test_stream_alloc(x.p, 10, 7);
    int64_t shape[1] = {4};
    mine.dl_tensor.shape = shape;
    mine.dl_tensor.byte_offset = 2 * sizeof(int64_t);
    const struct dlx_item item = {.name = "part", .tensor = &mine};
    ok(_i == 0 ? dlx_publish(x.p, &mine, &args, &report)
               : dlx_publish_set(x.p, &item, 1, NULL, &args, &report));
    ck_assert_uint_eq(report.n_copied, 1);
    ck_assert_uint_eq(report.n_copied_views, 1); /* which a caller would hardly expect */
    take_and_check(x.s, 4, 9);
}

TEST(a_shared_tensor_is_published_again_without_a_copy)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_publish_report report = {.size = sizeof report};
    struct dlx_publish_args args = share;
    auto_tensor *t = dlx_test_stream_alloc(x.p, 100, 7);
    for (int i = 0; i < 3; i++) {
        ok(dlx_publish(x.p, t, &args, &report));
        ck_assert_uint_eq(report.n_copied, 0);
        ck_assert_uint_eq(report.copied_bytes, 0);
        ck_assert(t->flags & DLPACK_FLAG_BITMASK_READ_ONLY);
        ck_assert_int_eq(((int64_t *)t->dl_tensor.data)[99], 106); /* still the caller's to read */
    }
    struct dlx_message *m[3];
    for (int i = 0; i < 3; i++) {
        m[i] = dlx_test_stream_next(x.s);
        ck_assert_uint_eq(dlx_message_seq(m[i]), (uint64_t)i + 1);
        check(m[i], 0, 100, 7);
        ck_assert_ptr_eq(dlx_message_tensor_peek(m[i], 0)->data,
                         dlx_message_tensor_peek(m[0], 0)->data);
    }
    dlx_test_stream_unref_messages(m, 3);
    struct dlx_publisher_stats stats = dlx_test_stream_stats(x.p);
    ck_assert_uint_eq(stats.copied, 0);
    ck_assert_uint_eq(stats.published, 3);
    ck_assert_uint_eq(stats.published_bytes, 3 * 800);
}

/* However often the ring goes round: while the caller has it, or a subscriber holds its message,
 * its memory is not used for anything else. Then it is. */
TEST(shared_memory_comes_back_after_its_deleter_and_its_messages)
{
    auto_pair x = dlx_test_pair_make(PUBLISHER(.depth = 16), NULL);
    for (int order = 0; order < 2; order++) {
        DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 512, 1000);
        const void *memory = t->dl_tensor.data;
        ok(dlx_publish(x.p, t, &share, NULL));
        ok(dlx_publish(x.p, t, &share, NULL));
        struct dlx_message *held = dlx_test_stream_next(x.s);
        dlx_message_unref(dlx_test_stream_next(x.s));
        for (int step = 0; step < 3; step++) {
            bool gone = step == 2;
            if (step == 1 + order)
                t->deleter(t);
            if (step == 2 - order)
                held = dlx_message_unref(held);
            bool seen = false;
            for (int64_t i = 0; i < 100; i++) {
                DLManagedTensorVersioned *again = dlx_test_stream_alloc(x.p, 512, i);
                seen |= again->dl_tensor.data == memory;
                ok(dlx_publish(x.p, again, &strict, NULL));
                dlx_message_unref(dlx_test_stream_next(x.s));
                if (held)
                    dlx_test_stream_check(held, 512, 1000);
            }
            ck_assert_int_eq(seen, gone);
            if (step < 1 + order) {
                ck_assert_int_eq(((const int64_t *)memory)[511], 1511);
                ck_assert(t->flags & DLPACK_FLAG_BITMASK_READ_ONLY);
            }
        }
    }
    auto_tensor *fresh = dlx_test_stream_alloc(x.p, 512, 0);
    ck_assert_uint_eq(fresh->flags, 0);
}

TEST(sharing_needs_no_more_memory_however_long)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    for (int i = 0; i < 20000; i++) {
        bool passes = i % 2; /* at last */
        DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 400, i);
        ok(dlx_publish(x.p, t, &share, NULL));
        ok(dlx_publish(x.p, t, passes ? &strict : &share, NULL));
        if (!passes)
            t->deleter(t);
        for (int k = 0; k < 2; k++)
            dlx_test_stream_expect(x.s, 400, i);
    }
    ck_assert_uint_lt(dlx_test_stream_stats(x.p).arena_bytes,
                      4 << 20); /* of 64 MB that were published */
}

TEST(shared_tensors_are_in_sets_and_messages)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_publish_report report = {.size = sizeof report};
    struct dlx_publish_args args = share;
    auto_tensor *a = dlx_test_stream_alloc(x.p, 10, 100);
    DLManagedTensorVersioned *b = dlx_test_stream_alloc(x.p, 20, 200);
    /* In one set twice, as tied weights are; and with what is not shared before and after. */
    struct dlx_item tied[] = {{"embed", a}, {"norm", b}, {"head", a}};
    ok(dlx_publish_set(x.p, tied, 3, NULL, &args, &report));
    ck_assert_uint_eq(report.n_copied, 0);
    ck_assert(a->flags & DLPACK_FLAG_BITMASK_READ_ONLY);
    ok(dlx_publish(x.p, a, &args, &report));
    fails(dlx_publish_set(x.p, tied, 3, NULL, &strict, NULL), DLX_E_INVALID, "twice");
    /* Without `share` all of it passes: what other messages have, and what is new. */
    struct dlx_item last[] = {{"b", b}, {"new", dlx_test_stream_alloc(x.p, 30, 300)}};
    ok(dlx_publish_set(x.p, last, 2, NULL, &strict, NULL));
    struct dlx_message *m[] = {dlx_test_stream_next(x.s), dlx_test_stream_next(x.s),
                               dlx_test_stream_next(x.s)};
    ck_assert_uint_eq(dlx_message_n_tensors(m[0]), 3);
    check(m[0], 0, 10, 100);
    check(m[0], 1, 20, 200);
    check(m[0], 2, 10, 100);
    check(m[1], 0, 10, 100);
    check(m[2], 0, 20, 200);
    check(m[2], 1, 30, 300);
    const void *a_at = dlx_message_tensor_peek(m[0], 0)->data,
               *b_at = dlx_message_tensor_peek(m[0], 1)->data;
    ck_assert_ptr_eq(dlx_message_tensor_peek(m[0], 2)->data, a_at);
    ck_assert_ptr_eq(dlx_message_tensor_peek(m[1], 0)->data, a_at);
    ck_assert_ptr_eq(dlx_message_tensor_peek(m[2], 0)->data, b_at);
    dlx_test_stream_unref_messages(m, 2);
    for (int64_t i = 0; i < 300; i++) /* the one that is held keeps b */
        dlx_test_stream_publish(x.p, 20, i);
    check(m[2], 0, 20, 200);
    dlx_message_unref(m[2]);
    ck_assert_int_eq(((int64_t *)a->dl_tensor.data)[9], 109);
}

/* The memory of both comes back, of the one with its deleter, of the other with its message. */
TEST(a_set_of_shared_and_copied_tensors_needs_no_more_memory_however_long)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    int64_t n = 3, memory[] = {5, 6, 7};
    DLManagedTensorVersioned foreign = INT64_TENSOR(memory, &n);
    for (int i = 0; i < 5000; i++) {
        DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 400, i);
        const struct dlx_item items[] = {{"shared", t}, {"copied", &foreign}};
        ok(dlx_publish_set(x.p, items, 2, NULL, PUBLISH(.share = true), NULL));
        t->deleter(t);
        auto_message *m = dlx_test_stream_next(x.s);
        check(m, 0, 400, i);
        check(m, 1, 3, 5);
    }
    ck_assert_uint_lt(dlx_test_stream_stats(x.p).arena_bytes,
                      4 << 20); /* of 16 MB that were allocated */
}

/* A view of a shared tensor, and a scalar and a tensor of nothing. */
TEST(the_form_of_a_shared_tensor_is_the_callers)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    auto_tensor *t = dlx_test_stream_alloc(x.p, 64, 0), *empty = dlx_test_stream_alloc(x.p, 0, 0),
                *many = NULL;
    ok(dlx_publish(x.p, t, &share, NULL));
    t->dl_tensor.shape[0] = 32;
    t->dl_tensor.byte_offset = 256;
    ok(dlx_publish(x.p, t, &share, NULL));
    ok(dlx_publish(x.p, empty, &share, NULL));
    int64_t shape[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1}; /* by a manifest */
    ok(dlx_alloc(x.p, SPEC(.dtype = {kDLInt, 64, 1}, .ndim = 9, .shape = shape), &many));
    *(int64_t *)many->dl_tensor.data = 5;
    ok(dlx_publish(x.p, many, &share, NULL));
    ok(dlx_publish(x.p, many, &share, NULL));
    static const int64_t n[] = {64, 32, 0, 1, 1}, value[] = {0, 32, 0, 5, 5};
    for (int i = 0; i < 5; i++)
        take_and_check(x.s, n[i], value[i]);
}

TEST(with_share_a_copied_tensor_stays_the_callers_too)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_publish_report report = {.size = sizeof report};
    struct dlx_publish_args args = {.size = sizeof args, .share = true};
    int64_t n = 3, memory[] = {5, 6, 7};
    DLManagedTensorVersioned foreign = INT64_TENSOR(memory, &n);
    auto_tensor *moved = dlx_test_stream_alloc(x.p, 8, 0);
    foreign.deleter = count_delete;
    void *data = moved->dl_tensor.data;
    moved->dl_tensor.data = (int64_t *)data + 2; /* what is received is aligned */
    moved->dl_tensor.shape[0] = 3;
    n_deleted = 0;
    fails(dlx_publish(x.p, &foreign, &share, NULL), DLX_E_WOULD_COPY, "not from dlx_alloc()");
    fails(dlx_publish(x.p, moved, &share, NULL), DLX_E_WOULD_COPY, "moved");
    struct dlx_item items[] = {{"foreign", &foreign}, {"moved", moved}};
    fails(dlx_publish_set(x.p, items, 2, NULL, &share, NULL), DLX_E_WOULD_COPY,
          "tensor 0 (\"foreign\")");
    ok(dlx_publish(x.p, &foreign, &args, &report));
    ck_assert_uint_eq(report.n_copied, 1);
    ok(dlx_publish(x.p, moved, &args, &report));
    ck_assert_uint_eq(report.n_copied, 1);
    ck_assert_uint_eq(report.copied_bytes, 24);
    /* The memory was not shared: it may be written. */
    ck_assert_uint_eq(foreign.flags | moved->flags, 0);
    memory[0] = 4;
    ((int64_t *)data)[2] = 1;
    memory[0] = 5;
    ((int64_t *)data)[2] = 2;
    ok(dlx_publish_set(x.p, items, 2, NULL, &args, &report));
    ck_assert_uint_eq(report.n_copied, 2);
    DLManagedTensor legacy = {.dl_tensor = foreign.dl_tensor};
    ok(dlx_publish_legacy(x.p, &legacy, &args, &report));
    ck_assert_uint_eq(n_deleted, 0);
    for (int i = 0; i < 4; i++) {
        auto_message *m = dlx_test_stream_next(x.s);
        check(m, 0, 3, i == 1 ? 2 : 5);
        if (i == 2)
            check(m, 1, 3, 2);
    }
}

TEST(a_failed_publish_shares_nothing)
{
    auto_pair x = dlx_test_pair_make(PUBLISHER(.depth = 3, .on_full = DLX_ON_FULL_BLOCK),
                                     SUBSCRIBE(.reliable = true));
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 10, 1);
    for (int64_t i = 0; i < 3; i++)
        dlx_test_stream_publish(x.p, 10, i);
    struct dlx_item item = {"t", t};
    fails(dlx_publish(x.p, t, &share, NULL), DLX_E_FULL, "3 behind");
    fails(dlx_publish_set(x.p, &item, 1, NULL, &share, NULL), DLX_E_FULL, "3 behind");
    ck_assert_uint_eq(t->flags, 0);
    ((int64_t *)t->dl_tensor.data)[0] = 1;
    for (int i = 0; i < 3; i++)
        dlx_message_unref(dlx_test_stream_next(x.s));
    ok(dlx_publish(x.p, t, &strict, NULL));
    take_and_check(x.s, 10, 1);
}

/* The deleter on another thread, before or after the publisher has gone; the subscriber holds the
 * message. */
LOOP_TEST(a_shared_tensor_outlives_its_publisher, 0, 2)
{
    const bool after = _i == 1;
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 100, 7);
    pthread_t thread;
    ok(dlx_publish(x.p, t, &share, NULL));
    ok(dlx_publish(x.p, t, &share, NULL));
    auto_message *m = dlx_test_stream_next(x.s);
    if (!after)
        thread = dlx_test_stream_delete_elsewhere(t);
    x.p = dlx_publisher_unref(x.p);
    dlx_test_stream_check(m, 100, 7);
    if (after) {
        ck_assert_int_eq(((int64_t *)t->dl_tensor.data)[99], 106);
        thread = dlx_test_stream_delete_elsewhere(t);
    }
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    dlx_test_stream_check(m, 100, 7);
}

/* Publish tensor 0 of what was received on `p`, in every form that it can have; `s` receives it. */
static void publish_received(struct dlx_message *received, struct dlx_publisher *p,
                             struct dlx_subscription *s)
{
    struct dlx_publish_report report = {.size = sizeof report};
    struct dlx_publish_args args = {.size = sizeof args};
    struct dlx_publisher_stats before = dlx_test_stream_stats(p), after;
    DLManagedTensorVersioned *t, *u;
    DLManagedTensor *legacy, peeked = {.dl_tensor = *dlx_message_tensor_peek(received, 0)};

    ok(dlx_message_tensor(received, 0, &t));
    ok(dlx_message_tensor(received, 0, &u));
    ok(dlx_message_tensor_legacy(received, 0, true, &legacy));
    struct dlx_item items[] = {
        {"own", dlx_test_stream_alloc(p, 3, 1)}, {"received", t}, {"again", u}};
    fails(dlx_publish(p, t, &strict, NULL), DLX_E_WOULD_COPY, "was received");
    const char *words = dlx_errmsg();
    char pid[32];
    (void)snprintf(pid, sizeof pid, "on topic test/a (pid %d)", (int)getpid());
    ck_assert_msg(strstr(words, "memory of a message of this publisher") || strstr(words, pid),
                  "%s", words);
    fails(dlx_publish_legacy(p, legacy, &strict, NULL), DLX_E_WOULD_COPY, "was received");
    fails(dlx_publish_legacy(p, &peeked, &strict, NULL), DLX_E_WOULD_COPY, "not from dlx_alloc()");
    fails(dlx_publish_set(p, items, 3, NULL, &strict, NULL), DLX_E_WOULD_COPY,
          "tensor 1 (\"received\") was received");

    ok(dlx_publish_legacy(p, legacy, &args, &report));
    ck_assert_uint_eq(report.n_copied, 1);
    ok(dlx_publish_legacy(p, &peeked, &args, &report));
    ck_assert_uint_eq(report.n_copied, 1);
    args.share = true; /* it stays ours, and is copied all the same */
    ok(dlx_publish(p, t, &args, &report));
    ck_assert_uint_eq(report.n_copied, 1);
    ck_assert_uint_eq(report.copied_bytes, 24);
    args.share = false;
    ok(dlx_publish_set(p, items, 3, NULL, &args, &report)); /* spends t and u */
    ck_assert_uint_eq(report.n_copied, 2);
    ck_assert_uint_eq(report.copied_bytes, 48);
    ok(dlx_message_tensor(received, 0, &t));
    ok(dlx_publish(p, t, NULL, NULL));
    after = dlx_test_stream_stats(p);
    ck_assert_uint_eq(after.copied - before.copied, 5);
    ck_assert_uint_eq(after.copied_bytes - before.copied_bytes, 6 * 24);

    for (int i = 0; i < 5; i++) {
        auto_message *m = dlx_test_stream_next(s);
        check(m, 0, 3, i == 3 ? 1 : 70);
        if (i == 3) {
            check(m, 1, 3, 70);
            check(m, 2, 3, 70);
        }
        ck_assert_ptr_ne(dlx_message_tensor_peek(m, 0)->data, peeked.dl_tensor.data);
    }
}

enum { BY_ITS_PUBLISHER, TO_ANOTHER_TOPIC, OF_A_SET, AFTER_ITS_PUBLISHER_LEFT, N_WAYS };

/* Of a message with a manifest the managed tensors are made elsewhere. */
LOOP_TEST(a_received_tensor_is_copied, 0, N_WAYS)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/b", NULL);
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/b", NULL);
    const struct dlx_item items[] = {
        {"a", dlx_test_stream_alloc(x.p, 3, 70)},
        {"b", _i == OF_A_SET ? dlx_test_stream_alloc(x.p, 3, 80) : NULL}};
    ok(_i == OF_A_SET ? dlx_publish_set(x.p, items, 2, NULL, &strict, NULL)
                      : dlx_publish(x.p, items[0].tensor, &strict, NULL));
    struct dlx_message *m = dlx_test_stream_next(x.s);
    if (_i == AFTER_ITS_PUBLISHER_LEFT) {
        dlx_publisher_unref(x.p);
        take_fails(x.s, SECOND, DLX_E_PUBLISHER_GONE, "left");
        ok(dlx_publisher_new(x.c, "test/a", NULL, &x.p));
    }
    const bool elsewhere = _i == TO_ANOTHER_TOPIC;
    publish_received(m, elsewhere ? p : x.p, elsewhere ? s : x.s);
    dlx_message_unref(m);
    ck_assert_uint_eq(dlx_test_stream_subscription_stats(x.s).n_held, 0); /* nothing was kept */
}

/* Another publisher's unpublished tensor is copied too, and goes back to where it came from. */
TEST(a_tensor_of_another_publisher_is_copied)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    auto_publisher *other = dlx_test_stream_publisher(x.c, "test/b", NULL);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(other, 3, 70);
    fails(dlx_publish(x.p, t, &strict, NULL), DLX_E_WOULD_COPY,
          "not from dlx_alloc() of this publisher");
    ok(dlx_publish(x.p, t, NULL, NULL));
    take_and_check(x.s, 3, 70);
}

/* The user takes away the shape of what dlx_alloc() gave. */
TEST(a_tensor_without_a_shape_is_refused)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 3, 70);
    int64_t *shape = t->dl_tensor.shape;
    t->dl_tensor.shape = NULL;
    fails(dlx_publish(x.p, t, NULL, NULL), DLX_E_SHAPE, "shape is NULL with");
    t->dl_tensor.shape = shape;
    ok(dlx_publish(x.p, t, &strict, NULL));
}
