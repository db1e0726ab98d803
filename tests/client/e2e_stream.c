/* SPDX-License-Identifier: Apache-2.0 */

/* libdlx in one process, against a real daemon: streams, copying, limits, bad input. */

#include "tests/harness/stream.h"
#include <sys/prctl.h>

/* The whole suite runs on both. */
TEST(memory_is_of_the_kind_that_was_asked_for)
{
    const char *asked = getenv("DLX_MEMORY");
    auto_client *c = dlx_test_stream_connect();
    struct dlx_daemon_info info = dlx_test_stream_daemon_info(c);
    ck_assert_str_eq(info.memory, asked ? asked : "memfd");
}

TEST(a_tensor_arrives_without_a_copy)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    for (int64_t i = 0; i < 1000; i++) {
        dlx_test_stream_publish(x.p, 16, i * 100);
        auto_message *next = dlx_test_stream_next(x.s);
        ck_assert_uint_eq(dlx_message_seq(next), (uint64_t)i + 1);
        ck_assert_uint_eq(dlx_message_gap(next), 0);
        ck_assert_str_eq(dlx_message_topic(next), "test/a");
        dlx_test_stream_check(next, 16, i * 100);
    }
    struct dlx_publisher_stats stats = dlx_test_stream_stats(x.p);
    ck_assert_uint_eq(stats.published, 1000);
    ck_assert_uint_eq(stats.copied_bytes, 0);
    ck_assert_uint_eq(stats.n_subscribers, 1);
    take_fails(x.s, 0, DLX_E_EMPTY, "");
    take_fails(x.s, 1000000, DLX_E_TIMEOUT, "test/a");
}

TEST(a_tensor_outlives_message_subscription_publisher_and_client)
{
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    DLManagedTensorVersioned *a = NULL;
    auto_tensor *b = NULL, *local = dlx_test_stream_alloc(x.p, 8, 1);
    DLManagedTensor *legacy = NULL;
    struct dlx_message *m = dlx_test_pair_pass(&x, 1000, 7);
    ok(dlx_message_tensor(m, 0, &a));
    ok(dlx_message_tensor(m, 0, &b));
    fails(dlx_message_tensor(m, 1, &b), DLX_E_INVALID, "tensor 1");
    fails(dlx_message_tensor_legacy(m, 0, false, &legacy), DLX_E_READ_ONLY, "read-only");
    ok(dlx_message_tensor_legacy(m, 0, true, &legacy));
    dlx_message_unref(m);
    dlx_test_pair_end(&x);
    ck_assert_uint_eq(a->flags, DLPACK_FLAG_BITMASK_READ_ONLY);
    ck_assert_uint_eq(a->version.major, 1);
    ck_assert_ptr_eq(a->dl_tensor.data, b->dl_tensor.data);
    ck_assert_int_eq(((int64_t *)b->dl_tensor.data)[999], 7 + 999);
    ck_assert_int_eq(((int64_t *)legacy->dl_tensor.data)[0], 7);
    a->deleter(a);
    legacy->deleter(legacy);
    ck_assert_int_eq(((int64_t *)b->dl_tensor.data)[0], 7);
    ck_assert_int_eq(((int64_t *)local->dl_tensor.data)[7], 8);
}

static int n_deleted;

static void count_delete(DLManagedTensorVersioned *t)
{
    (void)t;
    n_deleted++;
}

TEST(private_memory_is_copied_once_and_compacted_and_reported)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    float data[3][4];
    int64_t shape[2] = {4, 3}, strides[2] = {1, -4};
    struct dlx_publish_report report = {.size = sizeof report};
    struct dlx_publish_args args = {.size = sizeof args};
    auto_tensor *r = NULL;
    for (int i = 0; i < 12; i++)
        data[i / 4][i % 4] = (float)i;
    DLManagedTensorVersioned t = {
        .version = {1, 0},
        .deleter = count_delete,
        .dl_tensor = {.data = &data[0][0],
                      .byte_offset = 8 * sizeof(float), /* the last row: rows go backwards */
                      .device = {kDLCPU, 0},
                      .ndim = 2,
                      .dtype = {kDLFloat, 32, 1},
                      .shape = shape,
                      .strides = strides}};
    n_deleted = 0;
    args.strict = true;
    fails(dlx_publish(x.p, &t, &args, &report), DLX_E_WOULD_COPY, "strict");
    ck_assert_int_eq(n_deleted, 0);
    args.strict = false;
    ok(dlx_publish(x.p, &t, &args, &report));
    ck_assert_int_eq(n_deleted, 1);
    ck_assert_uint_eq(report.copied_bytes, 48);
    ck_assert_uint_eq(report.n_copied, 1);
    ck_assert_uint_eq(report.n_copied_views, 0);
    ck_assert_uint_eq(report.seq, 1);
    struct dlx_message *m = dlx_test_stream_next(x.s);
    ok(dlx_message_tensor(m, 0, &r));
    dlx_message_unref(m);
    ck_assert_uint_eq(r->flags, DLPACK_FLAG_BITMASK_READ_ONLY);
    ck_assert_int_eq(r->dl_tensor.strides[0], 3);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 3; j++)
            ck_assert_float_eq(((float *)r->dl_tensor.data)[i * 3 + j], data[2 - j][i]);
}

TEST(shapes_of_all_kinds_arrive)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    DLManagedTensorVersioned *t = NULL;
    int64_t shape[DLX_NDIM_MAX];
    for (int i = 0; i < DLX_NDIM_MAX; i++)
        shape[i] = i < 3 ? 2 : 1;
    static const int32_t ndims[] = {0, 1, 8, 9, 64};
    for (size_t k = 0; k < DLX_ARRAY_SIZE(ndims); k++) {
        /* An unknown type. */
        ok(dlx_alloc(x.p, SPEC(.dtype = {200, 16, 1}, .ndim = ndims[k], .shape = shape), &t));
        ((uint16_t *)t->dl_tensor.data)[0] = (uint16_t)k;
        ok(dlx_publish(x.p, t, NULL, NULL));
        auto_message *m = dlx_test_stream_next(x.s);
        const DLTensor *r = dlx_message_tensor_peek(m, 0);
        ck_assert_int_eq(r->ndim, ndims[k]);
        ck_assert_int_eq(r->dtype.code, 200);
        ck_assert_uint_eq(((const uint16_t *)r->data)[0], k);
        for (int32_t i = 0; i < r->ndim; i++)
            ck_assert_int_eq(r->shape[i], shape[i]);
    }
    const int64_t none[2] = {3, 0};
    ok(dlx_alloc(x.p, SPEC(.dtype = {kDLFloat, 32, 1}, .ndim = 2, .shape = none), &t));
    ck_assert_ptr_null(t->dl_tensor.data);
    ok(dlx_publish(x.p, t, NULL, NULL));
    auto_message *m = dlx_test_stream_next(x.s);
    ck_assert_int_eq(dlx_message_tensor_peek(m, 0)->shape[1], 0);
    ck_assert_ptr_null(dlx_message_tensor_peek(m, 0)->data);
}

TEST(a_view_of_an_allocated_tensor_is_not_copied)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 64, 0);
    int64_t shape[2] = {2, 4}, strides[2] = {1, 8}; /* transposed */
    t->dl_tensor.ndim = 2;
    t->dl_tensor.shape = shape;
    t->dl_tensor.strides = strides;
    t->dl_tensor.byte_offset = 256; /* from element 32 */
    ok(dlx_publish(x.p, t, PUBLISH(.strict = true), NULL));
    auto_message *m = dlx_test_stream_next(x.s);
    const DLTensor *r = dlx_message_tensor_peek(m, 0);
    ck_assert_int_eq(r->strides[1], 8);
    ck_assert_uint_eq(r->byte_offset, 0);
    ck_assert_int_eq(((const int64_t *)r->data)[0], 32);
}

TEST(a_full_publisher_names_who_is_behind)
{
    auto_pair x = dlx_test_pair_make(PUBLISHER_BLOCKING(.depth = 4), SUBSCRIBE_RELIABLY);
    char word[64];
    struct dlx_message *m = dlx_test_pair_pass(&x, 4, 1);
    dlx_test_stream_publish_all(x.p, 4, 2, 5);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 4, 6);
    /* A program may have any name, also one that would clear a terminal. */
    ck_assert_int_eq(prctl(PR_SET_NAME, "cam\033[2J"), 0);
    (void)snprintf(word, sizeof word, "cam?[2J (pid %d) holds 1 and is 4 behind", getpid());
    fails(dlx_publish(x.p, t, NULL, NULL), DLX_E_FULL, word);
    fails(dlx_publish(x.p, t, NULL, NULL), DLX_E_FULL, "depth 4");
    dlx_test_stream_check(m, 4, 1);
    dlx_message_unref(m);
    fails(dlx_publish(x.p, t, NULL, NULL), DLX_E_FULL, "holds 0 and is 4 behind");
    ok(dlx_take(x.s, SECOND, &m));
    ok(dlx_publish(x.p, t, NULL, NULL));
    dlx_test_stream_check(m, 4, 2);
    dlx_message_unref(m);
}

TEST(full_publisher_names_its_history_where_that_is_larger_than_its_depth)
{
    auto_pair x =
        dlx_test_pair_make(PUBLISHER_BLOCKING(.depth = 2, .history = 4), SUBSCRIBE_RELIABLY);
    dlx_test_stream_publish_all(x.p, 4, 1, 4);
    auto_tensor *t = dlx_test_stream_alloc(x.p, 4, 5);
    fails(dlx_publish(x.p, t, NULL, NULL), DLX_E_FULL, "(history 4)");
    ck_assert_ptr_nonnull(strstr(dlx_errmsg(), "raise history"));
}

TEST(a_full_publisher_names_no_subscriber_that_does_not_block)
{
    auto_pair x = dlx_test_pair_make(PUBLISHER_BLOCKING(.depth = 4), SUBSCRIBE_RELIABLY);
    auto_subscription *loses =
        dlx_test_stream_subscribe(x.c, "test/a", SUBSCRIBE(.mode = DLX_MODE_LATEST));
    auto_subscription *follows = dlx_test_stream_subscribe(x.c, "test/a", SUBSCRIBE_RELIABLY);
    dlx_test_stream_publish(x.p, 10, 1);
    auto_message *held = dlx_test_stream_next(loses);
    dlx_test_stream_take(x.s, 1);
    dlx_test_stream_take(follows, 1);
    dlx_test_stream_publish_all(x.p, 10, 2, 5);
    dlx_test_stream_take(follows, 2);
    auto_message *other = dlx_test_stream_next(follows);
    auto_tensor *t = dlx_test_stream_alloc(x.p, 10, 6);
    fails(dlx_publish(x.p, t, NULL, NULL), DLX_E_FULL, "holds 0 and is 4 behind; wait longer");
    ck_assert_ptr_null(strstr(dlx_errmsg(), "behind, "));
    ck_assert_ptr_nonnull(strstr(dlx_errmsg(), "or stop that subscriber"));
}

/* Held messages only take memory. */
LOOP_TEST(held_messages_do_not_stop_a_publisher, 0, 2)
{
    auto_pair x =
        dlx_test_pair_make(PUBLISHER(.depth = 2, .on_full = (uint32_t)_i),
                           SUBSCRIBE(.max_held = 600, .reliable = _i == DLX_ON_FULL_BLOCK));
    struct dlx_message *m[600];
    for (int64_t i = 0; i < 600; i++) { /* more than the ring has entries */
        dlx_test_stream_publish(x.p, 4, i);
        m[i] = dlx_test_stream_next(x.s);
    }
    for (int64_t i = 0; i < 600; i++) {
        dlx_test_stream_check(m[i], 4, i);
        dlx_message_unref(m[i]);
    }
}

TEST(the_fd_is_readable_when_there_is_something)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_message *m = NULL;
    const int fd = dlx_subscription_fd(x.s);
    ck_assert_int_ge(fd, 0);
    for (int64_t i = 0; i < 100; i++) {
        ck_assert_int_eq(dlx_take(x.s, 0, &m), DLX_E_EMPTY);
        ck_assert(!dlx_test_is_readable(fd, 0));
        dlx_test_stream_publish(x.p, 4, i);
        dlx_test_wait_readable(fd);
        ok(dlx_take(x.s, 0, &m));
        dlx_test_stream_check(m, 4, i);
        dlx_message_unref(m);
    }
    ck_assert_int_eq(dlx_take(x.s, 0, &m), DLX_E_EMPTY);
    x.p = dlx_publisher_unref(x.p);
    dlx_test_wait_readable(fd);
    int r;
    while ((r = dlx_take(x.s, 0, &m)) == DLX_E_EMPTY)
        dlx_test_wait_readable(fd);
    ck_assert_int_eq(r, DLX_E_PUBLISHER_GONE);
}

/* dlxctl echo slept for ever now and then: it asked for the fd after it had looked. */
TEST(the_fd_is_readable_when_it_is_first_given)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    dlx_test_stream_publish(x.p, 4, 0); /* its arena is known from here on */
    struct dlx_message *m = dlx_test_stream_next(x.s);
    dlx_message_unref(m);
    ck_assert_int_eq(dlx_take(x.s, 0, &m), DLX_E_EMPTY);
    dlx_test_stream_publish(x.p, 4, 1);
    const int fd = dlx_subscription_fd(x.s);
    dlx_test_wait_readable(fd);
    ok(dlx_take(x.s, 0, &m));
    dlx_test_stream_check(m, 4, 1);
    dlx_message_unref(m);
    ck_assert_int_eq(dlx_take(x.s, 0, &m), DLX_E_EMPTY);
    ck_assert_int_eq(dlx_subscription_fd(x.s), fd);
    ck_assert(!dlx_test_is_readable(fd, 0));
}

TEST(frames_of_one_size_need_no_more_memory_after_a_while)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    uint64_t before = 0;
    for (int64_t i = 0; i < 2000; i++) {
        dlx_test_stream_publish(x.p, 100000, i);
        dlx_message_unref(dlx_test_stream_next(x.s));
        if (i == 20)
            before = dlx_test_stream_stats(x.p).arena_bytes;
    }
    const uint64_t after = dlx_test_stream_stats(x.p).arena_bytes;
    ck_assert_uint_le(after, before);
    /* History 4, one filled, at most 8 so that readers are disturbed less; arenas grow by a
     * quarter. */
    ck_assert_uint_le(after, 8 * 100000 * 13 * 5 / 4);
}

/* The last messages lie in arenas that the daemon sends when the ones before are acknowledged, and
 * the subscriber is slow. */
TEST(messages_of_a_publisher_that_has_gone_are_waited_for)
{
    enum { N = 24, ELEMENTS = 1 << 17 };
    auto_pair x = dlx_test_pair_make(PUBLISHER(.history = N), NULL);
    struct dlx_message *m = NULL;
    int64_t n = 0;
    int r;
    dlx_test_stream_publish_all(x.p, ELEMENTS, 0, N - 1);
    x.p = dlx_publisher_unref(x.p);
    dlx_test_daemon_pause(&dlx_test_stream_daemon);
    while ((r = dlx_take(x.s, SECOND / 10, &m)) == 0) {
        dlx_test_stream_check(m, ELEMENTS, n++);
        dlx_message_unref(m);
    }
    ck_assert_int_eq(kill(dlx_test_stream_daemon.pid, SIGCONT), 0);
    ck_assert_int_eq(r, DLX_E_TIMEOUT);
    ck_assert_int_lt(n, N);
    dlx_test_stream_expect_all(x.s, ELEMENTS, n, N - 1);
}

/* Its link stays for the message; a publisher that only asks for its counters hears of the end. */
TEST(an_ended_subscription_that_holds_a_message_is_not_counted)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    auto_message *m = dlx_test_pair_pass(&x, 10, 1);
    x.s = dlx_subscription_unref(x.s);
    eventually(dlx_test_stream_stats(x.p).n_subscribers == 0);
}
