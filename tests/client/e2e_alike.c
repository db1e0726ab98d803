/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Most messages of a stream have the type and shape of the one before, and both sides reuse what
 * they found out about that. Here all kinds follow each other in every order, and nothing of one is
 * seen in another.
 */

#include "client/publish/publisher_memory.h"
#include "tests/harness/stream.h"

enum { NDIM_MAX = 10, LAG = 6 };

struct kind {
    int32_t ndim;
    int64_t shape[NDIM_MAX];
    bool of_64_bits; /* else 32 */
    enum {
        AS_ALLOCATED,
        TRANSPOSED, /* two dimensions exchanged: not row-major */
        SHORTENED,  /* the user has changed the first dimension, where it stands */
        PRIVATE,    /* copied */
        SET,        /* a manifest */
        SET_OF_ONE, /* as large as a small tensor */
    } how;
};

static const struct kind kinds[] = {
    {1, {12}, false, AS_ALLOCATED},
    {1, {12}, true, AS_ALLOCATED},
    {2, {3, 4}, false, AS_ALLOCATED},
    {2, {4, 3}, false, AS_ALLOCATED},
    {2, {4, 3}, false, TRANSPOSED},
    {2, {4, 3}, false, SHORTENED},
    {2, {4, 3}, false, PRIVATE},
    {2, {4, 3}, false, SET},
    {2, {4, 3}, false, SET_OF_ONE},
    {2, {8, 8}, false, AS_ALLOCATED}, /* 256 bytes */
    {2, {4, 1}, false, AS_ALLOCATED},
    {2, {1, 4}, false, AS_ALLOCATED},
    {3, {3, 4, 1}, false, AS_ALLOCATED},
    {5, {1, 2, 3, 2, 1}, false, AS_ALLOCATED},
    {7, {1, 2, 1, 3, 1, 2, 1}, false, AS_ALLOCATED}, /* as many as an entry has room for */
    {10, {2, 1, 1, 1, 3, 1, 1, 2, 1, 1}, false, AS_ALLOCATED}, /* too many for it: a manifest */
    {0, {0}, false, AS_ALLOCATED},
    {2, {0, 4}, false, AS_ALLOCATED},
    {2, {100, 100}, false, AS_ALLOCATED},
    {2, {100, 100}, true, AS_ALLOCATED},
};
enum { N_KINDS = DLX_ARRAY_SIZE(kinds) };

static DLDataType dtype_of(const struct kind *kind)
{
    return (DLDataType){kDLInt, kind->of_64_bits ? 64 : 32, 1};
}

static int64_t count(int32_t ndim, const int64_t *shape)
{
    int64_t n = 1;
    for (int32_t i = 0; i < ndim; i++)
        n *= shape[i];
    return n;
}

static void fill(void *data, int64_t n, bool of_64_bits, int64_t value)
{
    for (int64_t i = 0; i < n; i++)
        if (of_64_bits)
            ((int64_t *)data)[i] = value + i;
        else
            ((int32_t *)data)[i] = (int32_t)(value + i);
}

static DLManagedTensorVersioned *alloc(struct dlx_publisher *p, const struct kind *kind,
                                       int64_t value)
{
    DLManagedTensorVersioned *t = NULL;
    ok(dlx_alloc(p, SPEC(.dtype = dtype_of(kind), .ndim = kind->ndim, .shape = kind->shape), &t));
    /* Whatever the last user of the block did to the tensor. */
    ck_assert_int_eq(t->dl_tensor.ndim, kind->ndim);
    ck_assert_uint_eq(t->flags, 0);
    int64_t stride = 1;
    for (int32_t i = kind->ndim; i-- > 0;) {
        ck_assert_int_eq(t->dl_tensor.shape[i], kind->shape[i]);
        ck_assert_int_eq(t->dl_tensor.strides[i], stride);
        stride *= kind->shape[i] ? kind->shape[i] : 1;
    }
    fill(t->dl_tensor.data, count(kind->ndim, kind->shape), kind->of_64_bits, value);
    return t;
}

/* Dimensions 0 and 1 are exchanged. */
static void swap(int64_t *two)
{
    int64_t first = two[0];
    two[0] = two[1];
    two[1] = first;
}

static void publish_set(struct dlx_publisher *p, DLManagedTensorVersioned *t,
                        const struct kind *kind, int64_t value)
{
    const bool two = kind->how == SET;
    const struct dlx_item items[] = {{"one", t}, {"two", two ? alloc(p, kind, value) : NULL}};
    ok(dlx_publish_set(p, items, two ? 2 : 1, NULL, NULL, NULL));
}

static void publish_private(struct dlx_publisher *p, const struct kind *kind, int64_t value)
{
    int64_t data[12], shape[NDIM_MAX];
    memcpy(shape, kind->shape, sizeof shape);
    ck_assert_int_le(count(kind->ndim, shape), 12);
    fill(data, count(kind->ndim, shape), kind->of_64_bits, value);
    DLManagedTensorVersioned mine = {.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION},
                                     .dl_tensor = {.data = data,
                                                   .device = {kDLCPU, 0},
                                                   .ndim = kind->ndim,
                                                   .dtype = dtype_of(kind),
                                                   .shape = shape}};
    ok(dlx_publish(p, &mine, NULL, NULL));
}

static void publish(struct dlx_publisher *p, const struct kind *kind, int64_t value)
{
    if (kind->how == PRIVATE)
        return publish_private(p, kind, value);
    DLManagedTensorVersioned *t = alloc(p, kind, value);
    if (kind->how == SET || kind->how == SET_OF_ONE)
        return publish_set(p, t, kind, value);
    if (kind->how == TRANSPOSED) {
        swap(t->dl_tensor.shape);
        swap(t->dl_tensor.strides);
    }
    t->dl_tensor.shape[0] -= kind->how == SHORTENED;
    ok(dlx_publish(p, t, NULL, NULL));
}

/* Element `at` of the tensor, counted in row-major order. */
static int64_t element(const DLTensor *t, int64_t at)
{
    int64_t offset = 0;
    for (int32_t i = t->ndim; i-- > 0; at /= t->shape[i])
        offset += at % t->shape[i] * t->strides[i];
    return t->dtype.bits == 64 ? ((const int64_t *)t->data)[offset]
                               : ((const int32_t *)t->data)[offset];
}

static void check_tensor(const DLTensor *t, const struct kind *kind, int64_t value)
{
    int64_t shape[NDIM_MAX];
    memcpy(shape, kind->shape, sizeof shape);
    if (kind->how == TRANSPOSED)
        swap(shape);
    shape[0] -= kind->how == SHORTENED;
    ck_assert_int_eq(t->ndim, kind->ndim);
    ck_assert_int_eq(t->dtype.bits, kind->of_64_bits ? 64 : 32);
    ck_assert_uint_eq(t->byte_offset, 0);
    for (int32_t i = 0; i < t->ndim; i++)
        ck_assert_int_eq(t->shape[i], shape[i]);
    int64_t n = count(t->ndim, shape);
    ck_assert(n > 0 || !t->data);
    for (int64_t i = 0; i < n; i++) {
        int64_t k = kind->how == TRANSPOSED ? i % shape[1] * shape[0] + i / shape[1] : i;
        int64_t got = element(t, i);
        if (got != value + k)
            ck_abort_msg("element %lld is %lld, not %lld", (long long)i, (long long)got,
                         (long long)(value + k));
    }
}

/* A receiver that writes where it should not: to the shape and the strides that it was given. */
static void scribble(DLTensor *t)
{
    for (int32_t i = 0; i < t->ndim; i++)
        t->shape[i] = t->strides[i] = -7;
    t->ndim = 99;
    t->data = t;
}

static struct dlx_message *take(struct dlx_subscription *s, const struct kind *kind, int64_t value)
{
    DLManagedTensorVersioned *t = NULL;
    struct dlx_message *m = dlx_test_stream_next(s);
    ck_assert_uint_eq(dlx_message_n_tensors(m), kind->how == SET ? 2 : 1);
    for (uint32_t i = 0; i < dlx_message_n_tensors(m); i++) {
        check_tensor(dlx_message_tensor_peek(m, i), kind, value);
        ok(dlx_message_tensor(m, i, &t));
        check_tensor(&t->dl_tensor, kind, value);
        ck_assert_uint_eq(t->flags, DLPACK_FLAG_BITMASK_READ_ONLY);
        scribble(&t->dl_tensor);
        t->deleter(t);
    }
    return m;
}

/* A reader keeps up, or lags, or holds the last message. */
LOOP_TEST(every_kind_follows_every_other, 0, 4)
{
    /* Blocks come back soon. */
    auto_pair x = dlx_test_pair_make(PUBLISHER(.history = LAG, .depth = LAG), NULL);
    auto_message *held = NULL;
    const bool lags = _i & 1, holds = _i & 2;
    int64_t value = 1000;
    for (size_t a = 0; a < N_KINDS; a++)
        for (size_t b = 0; b < N_KINDS; b++) {
            const struct kind *const order[LAG] = {&kinds[a], &kinds[a], &kinds[b],
                                                   &kinds[b], &kinds[a], &kinds[b]};
            for (int i = 0; i < LAG; i++) {
                publish(x.p, order[i], value + i);
                for (int k = lags ? 0 : i; k <= i && (!lags || i == LAG - 1); k++) {
                    struct dlx_message *m = take(x.s, order[k], value + k);
                    dlx_message_unref(held); /* so the next one has another struct */
                    held = holds ? m : dlx_message_unref(m);
                }
            }
            value += LAG;
        }
}

/* A tensor may be like the last one, and not fit into its place. */
LOOP_TEST(a_message_like_the_last_may_still_lie_where_it_cannot, 0, 4)
{
    const bool lags = _i & 1, beyond = _i & 2;
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_message *m = NULL;
    struct dlx_block *block;
    uint64_t words[DLX_SHM_ENTRY_WORDS];
    dlx_set_debug(false);
    for (int64_t i = 1; i <= 3; i++) {
        dlx_test_stream_publish(x.p, 10, i);
        dlx_test_stream_take(x.s, i);
    }
    ck_assert_int_eq(dlx__publisher_block(x.p, 80, &block), 0);
    ck_assert(dlx__writer_has_room(&x.p->core));
    block->next = NULL;
    ck_assert(dlx__entry_pack_tensor(words, dlx__block_arena_id(block),
                                     beyond ? block->arena->size : 8, (DLDataType){kDLInt, 64, 1},
                                     false, 1, (int64_t[]){10}));
    dlx__writer_put(&x.p->core, words, 1, block);
    dlx__writer_announce(&x.p->core);
    if (lags)
        dlx_test_stream_publish(x.p, 10, 5);
    fails(dlx_take(x.s, PATIENCE, &m), DLX_E_BAD_PEER, beyond ? "arena" : "offset 8");
}

/* dlx_alloc() goes by its spec, not by the last tensor: also for an impossible spec. */
TEST(a_spec_that_cannot_be_is_refused_after_one_that_can)
{
    static const int64_t negative = -1, n = 12;
    static const struct {
        struct dlx_tensor_spec spec;
        const char *word;
    } bad[] = {
        {{.size = sizeof bad->spec, .dtype = {kDLInt, 32, 1}, .ndim = -1, .shape = &n}, "-1"},
        {{.size = sizeof bad->spec, .dtype = {kDLInt, 32, 1}, .ndim = 1}, "NULL"},
        {{.size = sizeof bad->spec, .dtype = {kDLInt, 32, 1}, .ndim = 1, .shape = &negative}, "-1"},
        {{.size = sizeof bad->spec, .dtype = {kDLInt, 32, 0}, .ndim = 1, .shape = &n}, "lanes"},
    };
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    DLManagedTensorVersioned *t = NULL;
    for (int i = 0; i < 3; i++) {
        publish(x.p, &kinds[i], 1);
        dlx_message_unref(take(x.s, &kinds[i], 1));
        for (size_t k = 0; k < DLX_ARRAY_SIZE(bad); k++)
            fails(dlx_alloc(x.p, &bad[k].spec, &t), DLX_E_SHAPE, bad[k].word);
    }
}
