/* SPDX-License-Identifier: Apache-2.0 */

/* Sets: several named tensors and metadata as one message, all of it or nothing. */

#include "tests/harness/stream.h"

static unsigned n_deleted;

static void delete_private(DLManagedTensorVersioned *t)
{
    n_deleted++;
    free(t->manager_ctx);
    free(t);
}

/* A tensor in private memory: `rows` x `columns` of int64 that count up, every second column if
 * `gaps`. */
static DLManagedTensorVersioned *private_tensor(int64_t rows, int64_t columns, bool gaps)
{
    DLManagedTensorVersioned *t = malloc(sizeof *t);
    int64_t step = gaps ? 2 : 1, n = rows * columns * step;
    int64_t *memory = malloc(((size_t)n + 4) * sizeof *memory);
    ck_assert(t && memory);
    memory[0] = rows;
    memory[1] = columns;
    memory[2] = columns * step;
    memory[3] = step;
    for (int64_t i = 0; i < n; i++)
        memory[4 + i] = i / step;
    *t = (DLManagedTensorVersioned)INT64_TENSOR(memory + 4, memory);
    t->manager_ctx = memory;
    t->deleter = delete_private;
    t->dl_tensor.ndim = 2;
    t->dl_tensor.strides = memory + 2;
    return t;
}

static const struct dlx_bytes hello = {.data = "hello", .size = 6};

TEST(own_and_foreign_tensors_arrive_as_one)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_publish_report report = {.size = sizeof report};
    n_deleted = 0;
    struct dlx_item items[] = {
        {"own", dlx_test_stream_alloc(x.p, 100, 7)}, {"private", private_tensor(3, 4, false)},
        {NULL, dlx_test_stream_alloc(x.p, 5, 1000)}, {"gaps", private_tensor(2, 5, true)},
        {"", private_tensor(0, 5, false)},
    };
    ok(dlx_publish_set(x.p, items, 5, &hello, NULL, &report));
    ck_assert_uint_eq(n_deleted, 3);
    ck_assert_uint_eq(report.n_copied, 3);
    ck_assert_uint_eq(report.copied_bytes, (12 + 10) * 8);
    struct dlx_message *m = dlx_test_stream_next(x.s);
    ck_assert_uint_eq(dlx_message_n_tensors(m), 5);
    static const char *const names[] = {"own", "private", "", "gaps", ""};
    static const int64_t counts[] = {100, 12, 5, 10, 0}, firsts[] = {7, 0, 1000, 0, 0};
    DLManagedTensorVersioned *t[5];
    for (uint32_t i = 0; i < 5; i++) {
        ck_assert_str_eq(dlx_message_tensor_name(m, i), names[i]);
        ok(dlx_message_tensor(m, i, &t[i]));
        ck_assert_uint_eq(t[i]->flags, DLPACK_FLAG_BITMASK_READ_ONLY);
        for (int64_t k = 0; k < counts[i]; k++)
            ck_assert_int_eq(((int64_t *)t[i]->dl_tensor.data)[k], firsts[i] + k);
    }
    uint32_t found = 99;
    ok(dlx_message_tensor_find(m, "gaps", &found));
    ck_assert_uint_eq(found, 3);
    size_t size;
    ck_assert_str_eq(dlx_message_meta(m, &size), "hello");
    ck_assert_uint_eq(size, 6);
    dlx_message_unref(m);
    for (uint32_t i = 0; i < 5; i++) /* each keeps the message */
        t[i]->deleter(t[i]);
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(x.s);
    ck_assert_uint_eq(stats.n_held, 0);
    ck_assert_uint_eq(stats.taken_bytes, (100 + 12 + 5 + 10) * 8);
    /* One tensor may have a name and metadata, too; or none of it. */
    struct dlx_item one = {"only", dlx_test_stream_alloc(x.p, 4, 1)};
    ok(dlx_publish_set(x.p, &one, 1, NULL, NULL, NULL));
    dlx_test_stream_publish(x.p, 4, 2);
    auto_message *named = dlx_test_stream_next(x.s), *plain = dlx_test_stream_next(x.s);
    ck_assert_str_eq(dlx_message_tensor_name(named, 0), "only");
    ck_assert_ptr_null(dlx_message_meta(named, &size));
    ck_assert_uint_eq(size, 0);
    ck_assert_str_eq(dlx_message_tensor_name(plain, 0), "");
}

TEST(a_refused_set_changes_nothing)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    static char meta[DLX_META_MAX + 1], name[DLX_NAME_MAX + 2];
    auto_message *m = NULL;
    struct dlx_publish_args strict = {.size = sizeof strict, .strict = true};
    struct dlx_bytes large = {meta, sizeof meta}, none = {NULL, 1};
    n_deleted = 0;
    struct dlx_item items[3] = {
        {"a", dlx_test_stream_alloc(x.p, 4, 1)},
        {"b", private_tensor(2, 2, false)},
        {"c", private_tensor(2, 2, false)},
    };
    memset(name, 'n', sizeof name - 1);
    fails(dlx_publish_set(x.p, items, 0, NULL, NULL, NULL), DLX_E_INVALID, "0 tensors");
    fails(dlx_publish_set(x.p, items, DLX_TENSORS_MAX + 1, NULL, NULL, NULL), DLX_E_INVALID,
          "65535");
    fails(dlx_publish_set(x.p, items, 3, &large, NULL, NULL), DLX_E_INVALID,
          "65537 bytes of metadata (limit DLX_META_MAX, 65536)");
    fails(dlx_publish_set(x.p, items, 3, &none, NULL, NULL), DLX_E_INVALID, "NULL");
    fails(dlx_publish_set(x.p, items, 3, NULL, &strict, NULL), DLX_E_WOULD_COPY,
          "tensor 1 (\"b\")");
    DLManagedTensorVersioned *c = items[2].tensor;
    const struct {
        struct dlx_item third;
        const char *words;
    } thirds[] = {
        {{"a", c}, "tensors 0 and 2"},
        {{name, c}, "longer than 1023"},
        {{"c", items[1].tensor}, "2 (\"c\") is in the set twice"},
        {{"c", items[0].tensor}, "2 (\"c\") is in the set twice"},
        {{"c", NULL}, "tensor 2 is NULL"},
    };
    for (size_t i = 0; i < DLX_ARRAY_SIZE(thirds); i++) {
        items[2] = thirds[i].third;
        fails(dlx_publish_set(x.p, items, 3, NULL, NULL, NULL), DLX_E_INVALID, thirds[i].words);
    }
    items[2] = (struct dlx_item){"c", c};
    c->dl_tensor.device.device_type = kDLCUDA;
    fails(dlx_publish_set(x.p, items, 3, NULL, NULL, NULL), DLX_E_DEVICE, "tensor 2 (\"c\")");
    c->dl_tensor.device.device_type = kDLCPU;
    c->dl_tensor.shape[0] = INT64_MAX;
    fails(dlx_publish_set(x.p, items, 3, NULL, NULL, NULL), DLX_E_SHAPE, "tensor 2 (\"c\")");
    fails(dlx_publish_set(x.p, &(struct dlx_item){.tensor = c}, 1, NULL, NULL, NULL), DLX_E_SHAPE,
          "tensor 0: ");                      /* without a name there is none to show */
    c->dl_tensor.shape[0] = INT64_C(1) << 40; /* more than there is, and nothing is read */
    int r = dlx_publish_set(x.p, items, 3, NULL, NULL, NULL);
    ck_assert_msg(r == DLX_E_NO_MEMORY || r == DLX_E_LIMIT, "%s", dlx_errmsg());
    c->dl_tensor.shape[0] = 2;
    c->version.major = 2;
    fails(dlx_publish_set(x.p, items, 3, NULL, NULL, NULL), DLX_E_VERSION, "tensor 2");
    c->version.major = DLPACK_MAJOR_VERSION;
    ck_assert_uint_eq(n_deleted, 0);
    ck_assert_int_eq(dlx_take(x.s, 0, &m), DLX_E_EMPTY);
    large.size--; /* the largest that is possible; all of the above is still the caller's */
    name[DLX_NAME_MAX] = '\0';
    items[2].name = name;
    ok(dlx_publish_set(x.p, items, 3, &large, NULL, NULL));
    ck_assert_uint_eq(n_deleted, 2);
    ok(dlx_take(x.s, SECOND, &m));
    ck_assert_str_eq(dlx_message_tensor_name(m, 2), name);
    size_t size;
    (void)dlx_message_meta(m, &size);
    ck_assert_uint_eq(size, DLX_META_MAX);
}

static struct dlx_item *make_large(struct dlx_publisher *p, uint32_t n)
{
    struct dlx_tensor_spec *specs = calloc(n, sizeof *specs);
    DLManagedTensorVersioned **tensors = calloc(n, sizeof(DLManagedTensorVersioned *));
    struct dlx_item *items = calloc(n, sizeof *items);
    static const int64_t sizes[] = {1, 40, 3};
    ck_assert(specs && tensors && items);
    for (uint32_t i = 0; i < n; i++)
        specs[i] = (struct dlx_tensor_spec)INT64_SPEC(&sizes[i % 3]);
    ok(dlx_alloc_set(p, specs, n, tensors));
    for (uint32_t i = 0; i < n; i++) {
        char name[40];
        (void)snprintf(name, sizeof name, "layers.%u.weight", i);
        items[i] = (struct dlx_item){strdup(name), tensors[i]};
        *(int64_t *)tensors[i]->dl_tensor.data = i;
    }
    free(specs);
    free(tensors);
    return items;
}

static void free_large(struct dlx_item *items, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        free((char *)(uintptr_t)items[i].name);
    free(items);
}

TEST(as_many_tensors_as_there_may_be_in_one_arena)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    uint32_t n = DLX_TENSORS_MAX, found;
    struct dlx_item *items = make_large(x.p, n);
    ck_assert_uint_eq(dlx_test_stream_stats(x.p).n_arenas, 1);
    ok(dlx_publish_set(x.p, items, n, NULL, NULL, NULL));
    ck_assert_uint_eq(dlx_test_stream_stats(x.p).copied_bytes, 0);
    auto_message *m = dlx_test_stream_next(x.s);
    ck_assert_uint_eq(dlx_message_n_tensors(m), n);
    for (uint32_t i = 0; i < n; i++) {
        ok(dlx_message_tensor_find(m, items[i].name, &found));
        ck_assert_uint_eq(found, i);
        ck_assert_int_eq(*(const int64_t *)dlx_message_tensor_peek(m, i)->data, i);
    }
    free_large(items, n);
}

static void *use_all(void *userdata)
{
    struct dlx_message *m = userdata;
    char name[40];
    uint32_t found;
    for (uint32_t i = 0; i < 300; i++) {
        DLManagedTensorVersioned *t;
        (void)snprintf(name, sizeof name, "layers.%u.weight", i);
        ok(dlx_message_tensor_find(m, name, &found));
        ok(dlx_message_tensor(m, found, &t));
        ck_assert_int_eq(*(const int64_t *)t->dl_tensor.data, i);
        t->deleter(t);
    }
    return NULL;
}

TEST(threads_share_a_message)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    for (int round = 0; round < 20; round++) {
        pthread_t threads[4];
        struct dlx_item *items = make_large(x.p, 300);
        ok(dlx_publish_set(x.p, items, 300, &hello, NULL, NULL));
        auto_message *m = dlx_test_stream_next(x.s);
        for (int i = 0; i < 4; i++)
            threads[i] = dlx_test_stream_thread(use_all, m);
        for (int i = 0; i < 4; i++)
            ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        free_large(items, 300);
    }
}

TEST(sets_of_one_size_need_no_more_memory_after_a_while)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    uint64_t before = 0;
    for (int i = 0; i < 200; i++) {
        struct dlx_item *items = make_large(x.p, 1000);
        ok(dlx_publish_set(x.p, items, 1000, NULL, NULL, NULL));
        auto_message *m = dlx_test_stream_next(x.s);
        ck_assert_int_eq(*(const int64_t *)dlx_message_tensor_peek(m, 999)->data, 999);
        free_large(items, 1000);
        if (i == 50)
            before = dlx_test_stream_stats(x.p).arena_bytes;
    }
    ck_assert_uint_le(dlx_test_stream_stats(x.p).arena_bytes, before);
}

TEST(a_set_that_cannot_be_allocated_leaves_nothing)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    int64_t small = 10, large = INT64_C(1) << 50, negative = -1;
    DLManagedTensorVersioned *t[3];
    struct dlx_tensor_spec specs[] = {INT64_SPEC(&small), INT64_SPEC(&small), INT64_SPEC(&small)};
    fails(dlx_alloc_set(x.p, specs, 0, t), DLX_E_INVALID, "0 tensors");
    specs[2].shape = &negative;
    fails(dlx_alloc_set(x.p, specs, 3, t), DLX_E_SHAPE, "tensor 2");
    specs[2].shape = &large;
    int r = dlx_alloc_set(x.p, specs, 3, t);
    ck_assert_msg(r == DLX_E_NO_MEMORY || r == DLX_E_LIMIT, "%s", dlx_errmsg());
    specs[2].shape = &small;
    ok(dlx_alloc_set(x.p, specs, 3, t));
    for (int i = 0; i < 3; i++)
        t[i]->deleter(t[i]);
}

/* A tensor of no bytes lies in no arena, so none of its memory is still to come: a reliable
 * subscription would wait for it forever, and the publisher for the subscription. */
LOOP_TEST(a_set_with_an_empty_tensor_reaches_a_reliable_subscription, 0, 2)
{
    auto_pair x = dlx_test_pair_make(PUBLISHER_BLOCKING(.depth = 2), SUBSCRIBE_RELIABLY);
    bool is_private = _i == 1;
    for (int64_t n = 1; n <= 5; n++) {
        struct dlx_item items[] = {
            {"before", dlx_test_stream_alloc(x.p, 0, 0)},
            {"some", dlx_test_stream_alloc(x.p, 10, n)},
            {"after", is_private ? private_tensor(0, 5, false) : dlx_test_stream_alloc(x.p, 0, 0)}};
        ok(dlx_publish_set(x.p, items, DLX_ARRAY_SIZE(items), NULL, PUBLISH(.timeout_ns = PATIENCE),
                           NULL));
        auto_message *m = dlx_test_stream_next(x.s);
        ck_assert_uint_eq(dlx_message_seq(m), (uint64_t)n);
        ck_assert_int_eq(dlx_message_tensor_peek(m, 0)->shape[0], 0);
        ck_assert_int_eq(*(const int64_t *)dlx_message_tensor_peek(m, 1)->data, n);
        ck_assert_int_eq(dlx_message_tensor_peek(m, 2)->shape[0], 0);
    }
}

/* A program that was compiled with another version has other members, and says how many bytes. */
LOOP_TEST(the_first_spec_of_a_set_says_how_far_apart_they_are, 0, 2)
{
    static const size_t sizes[] = {offsetof(struct dlx_tensor_spec, device),
                                   sizeof(struct dlx_tensor_spec) + 3 * sizeof(uint64_t)};
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    static _Alignas(struct dlx_tensor_spec) uint8_t specs[3 * 128];
    const int64_t shapes[] = {10, 20, 30};
    DLManagedTensorVersioned *t[3];
    for (size_t i = 0; i < 3; i++) {
        struct dlx_tensor_spec spec = INT64_SPEC(&shapes[i]);
        spec.size = sizes[_i];
        memcpy(specs + i * sizes[_i], &spec, DLX_MIN(sizeof spec, sizes[_i]));
    }
    ok(dlx_alloc_set(x.p, (const struct dlx_tensor_spec *)(const void *)specs, 3, t));
    for (size_t i = 0; i < 3; i++) {
        ck_assert_int_eq(t[i]->dl_tensor.shape[0], shapes[i]);
        t[i]->deleter(t[i]);
    }
}
