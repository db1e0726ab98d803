/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes, strides, data types: sizes, row-major order, extents, compaction. */
#include "ring/tensor.h"
#include "tests/harness/random.h"
#include "tests/harness/run.h"

#ifdef DLX_SANITIZE
enum { N_RANDOM = 1500 }; /* 20 times as slow there */
#else
enum { N_RANDOM = 6000 };
#endif

static const DLDataType f32 = {kDLFloat, 32, 1};
static const DLDataType u8 = {kDLUInt, 8, 1};
static const DLDataType u1 = {kDLUInt, 1, 1};
static const DLDataType f4 = {kDLFloat4_e2m1fn, 4, 1};
static const DLDataType f6 = {kDLFloat6_e2m3fn, 6, 1};

static uint64_t seed = 1;

TEST(sizes)
{
    static const struct {
        DLDataType dtype;
        bool padded;
        int32_t ndim;
        int64_t shape[3];
        uint64_t size;
    } cases[] = {
        {{kDLFloat, 32, 1}, false, 0, {0}, 4},
        {{kDLFloat, 32, 1}, false, 3, {2, 3, 5}, 120},
        {{kDLFloat, 16, 3}, false, 1, {5}, 30},
        {{kDLUInt, 8, 1}, false, 1, {INT64_MAX}, INT64_MAX},
        {{kDLOpaqueHandle, 248, 65535}, false, 1, {2}, UINT64_C(31) * 65535 * 2},
        {{kDLUInt, 1, 1}, false, 1, {1}, 1},
        {{kDLUInt, 1, 1}, false, 1, {8}, 1},
        {{kDLUInt, 1, 1}, false, 1, {9}, 2},
        {{kDLUInt, 1, 1}, true, 1, {9}, 9},
        {{kDLFloat4_e2m1fn, 4, 1}, false, 1, {3}, 2},
        {{kDLFloat4_e2m1fn, 4, 1}, true, 1, {3}, 3},
        {{kDLFloat4_e2m1fn, 4, 2}, false, 1, {3}, 3},
        {{kDLFloat6_e2m3fn, 6, 1}, false, 1, {4}, 3},
        {{kDLFloat6_e2m3fn, 6, 1}, false, 1, {5}, 4},
        {{kDLFloat6_e2m3fn, 6, 1}, true, 1, {5}, 5},
        {{kDLInt, 4, 3}, false, 1, {3}, 5},
        {{kDLInt, 4, 3}, true, 1, {3}, 6},
        {{kDLFloat, 32, 1}, true, 1, {3}, 12},
        {{kDLUInt, 1, 1}, false, 1, {INT64_MAX}, UINT64_C(1) << 60},
        {{kDLUInt, 1, 1}, false, 2, {2, INT64_C(1) << 62}, UINT64_C(1) << 60},
        {{kDLFloat, 32, 1}, false, 1, {0}, 0},
        /* The product of the other sizes overflows, but there are no elements. */
        {{kDLFloat, 32, 1}, false, 3, {INT64_MAX, INT64_MAX, 0}, 0},
    };
    for (size_t i = 0; i < DLX_ARRAY_SIZE(cases); i++) {
        const int64_t *shape = cases[i].ndim ? cases[i].shape : NULL;
        uint64_t size = 7;
        int r = dlx__tensor_size(cases[i].dtype, cases[i].padded, cases[i].ndim, shape, &size);
        ck_assert_msg(r == 0, "case %zu: %d", i, r);
        ck_assert_msg(size == cases[i].size, "case %zu: %ju", i, (uintmax_t)size);
    }
}

TEST(impossible_sizes_are_refused_and_nothing_is_written)
{
    static const struct {
        DLDataType dtype;
        int32_t ndim;
        int64_t shape[4];
        const char *words;
    } cases[] = {
        {{kDLUInt, 8, 1}, -1, {0}, "-1 dimensions"},
        {{kDLUInt, 8, 1}, INT32_MIN, {0}, "dimensions must be at most 64"},
        {{kDLUInt, 8, 1}, 65, {0}, "65 dimensions must be at most 64"},
        {{kDLUInt, 8, 1}, INT32_MAX, {0}, "dimensions must be at most 64"},
        {{kDLUInt, 8, 1}, 2, {3, -1}, "dimension 1 has size -1"},
        {{kDLUInt, 8, 1}, 2, {0, INT64_MIN}, "dimension 1 has size"},
        {{kDLUInt, 0, 1}, 1, {1}, "0 bits"},
        {{kDLUInt, 8, 0}, 1, {1}, "0 lanes"},
        {{kDLUInt, 16, 1}, 1, {INT64_MAX}, "2^63-1"},
        {{kDLUInt, 8, 1}, 2, {2, INT64_C(1) << 62}, "2^63-1"},
        {{kDLUInt, 64, 1}, 1, {INT64_C(1) << 60}, "2^63-1"},
        {{kDLUInt, 8, 1}, 2, {INT64_C(1) << 32, INT64_C(1) << 32}, "2^63-1"},
        {{kDLUInt, 8, 1}, 3, {INT64_C(1) << 32, INT64_C(1) << 32, 2}, "2^63-1"},
        {{kDLUInt, 1, 1}, 2, {4, INT64_C(1) << 62}, "2^63-1"},
        {{kDLFloat4_e2m1fn, 4, 1}, 2, {INT64_C(1) << 31, INT64_C(1) << 32}, "2^63-1"},
        {{kDLFloat, 248, 65535}, 1, {INT64_C(1) << 50}, "2^63-1"},
    };
    for (size_t i = 0; i < DLX_ARRAY_SIZE(cases); i++) {
        uint64_t size = 7;
        dlx__error_clear();
        ck_assert_msg(dlx__tensor_size(cases[i].dtype, false, cases[i].ndim, cases[i].shape,
                                       &size) == DLX_E_SHAPE,
                      "case %zu", i);
        ck_assert_uint_eq(size, 7);
        ck_assert_msg(strstr(dlx__error_message(), cases[i].words), "case %zu: %s", i,
                      dlx__error_message());
    }
    uint64_t size = 7;
    ck_assert_int_eq(dlx__tensor_size(u8, false, 1, NULL, &size), DLX_E_SHAPE);
    /* Padded bits are bytes: 2^63 of them are one too many. */
    ck_assert_int_eq(dlx__tensor_size(u1, true, 2, (int64_t[]){2, INT64_C(1) << 62}, &size),
                     DLX_E_SHAPE);
}

TEST(most_dimensions)
{
    int64_t shape[DLX_SHM_NDIM_MAX], strides[DLX_SHM_NDIM_MAX];
    uint64_t size;
    for (unsigned i = 0; i < DLX_SHM_NDIM_MAX; i++)
        shape[i] = i < 32 ? 2 : 1;
    ck_assert_int_eq(dlx__tensor_size(u8, false, 64, shape, &size), 0);
    ck_assert_uint_eq(size, UINT64_C(1) << 32);
    dlx__tensor_row_major(64, shape, strides);
    ck_assert_int_eq(strides[0], INT64_C(1) << 31);
    ck_assert_int_eq(strides[63], 1);
    ck_assert(dlx__tensor_is_row_major(64, shape, strides));
    for (unsigned i = 0; i < DLX_SHM_NDIM_MAX; i++)
        shape[i] = 2;
    ck_assert_int_eq(dlx__tensor_size(u1, false, 64, shape, &size), DLX_E_SHAPE);
    dlx__tensor_row_major(64, shape, strides); /* no undefined behaviour */
}

TEST(row_major_strides)
{
    static const struct {
        int32_t ndim;
        int64_t shape[4];
        int64_t strides[4];
    } cases[] = {
        {3, {2, 3, 5}, {15, 5, 1}},
        {4, {1, 3, 1, 5}, {15, 5, 5, 1}},
        {3, {4, 0, 5}, {5, 5, 1}},
        {4, {1, 1, 0, 1}, {1, 1, 1, 1}},
    };
    int64_t strides[4];
    for (size_t i = 0; i < DLX_ARRAY_SIZE(cases); i++) {
        dlx__tensor_row_major(cases[i].ndim, cases[i].shape, strides);
        for (int32_t d = 0; d < cases[i].ndim; d++)
            ck_assert_msg(strides[d] == cases[i].strides[d], "case %zu, dimension %d", i, d);
    }
    dlx__tensor_row_major(0, NULL, NULL);
}

TEST(row_major_order_is_recognised)
{
    const int64_t shape[] = {2, 3, 5};
    const int64_t ones[] = {1, 3, 1};
    ck_assert(dlx__tensor_is_row_major(0, NULL, NULL));
    ck_assert(dlx__tensor_is_row_major(3, shape, NULL));
    ck_assert(dlx__tensor_is_row_major(3, shape, (int64_t[]){15, 5, 1}));
    ck_assert(!dlx__tensor_is_row_major(3, shape, (int64_t[]){15, 5, 2}));
    ck_assert(!dlx__tensor_is_row_major(3, shape, (int64_t[]){16, 5, 1}));
    ck_assert(!dlx__tensor_is_row_major(3, shape, (int64_t[]){-15, 5, 1}));
    ck_assert(!dlx__tensor_is_row_major(3, shape, (int64_t[]){0, 5, 1}));
    ck_assert(!dlx__tensor_is_row_major(3, shape, (int64_t[]){1, 2, 6}));
    /* The stride of a dimension of size 1 is never used. */
    ck_assert(dlx__tensor_is_row_major(3, ones, (int64_t[]){-77, 1, INT64_MIN}));
    ck_assert(!dlx__tensor_is_row_major(3, ones, (int64_t[]){3, 2, 1}));
    /* Without elements, no stride is. */
    ck_assert(dlx__tensor_is_row_major(2, (int64_t[]){0, 3}, (int64_t[]){9, -9}));
    /* 2^63 elements, of a bit each: the outermost step still is a number. */
    ck_assert(dlx__tensor_is_row_major(2, (int64_t[]){2, INT64_C(1) << 62},
                                       (int64_t[]){INT64_C(1) << 62, 1}));
    ck_assert(dlx__tensor_is_row_major(3, (int64_t[]){1, 2, INT64_C(1) << 62},
                                       (int64_t[]){5, INT64_C(1) << 62, 1}));
}

TEST(strides_follow_from_the_shape_if_every_one_of_them_is_row_major)
{
    const int64_t ones[] = {1, 3, 1}, empty[] = {2, 0, 3}, full[] = {2, 3, 5};
    ck_assert(dlx__tensor_strides_follow(0, NULL, NULL));
    ck_assert(dlx__tensor_strides_follow(3, ones, NULL));
    ck_assert(dlx__tensor_strides_follow(3, ones, (int64_t[]){3, 1, 1}));
    ck_assert(dlx__tensor_strides_follow(3, empty, (int64_t[]){3, 3, 1}));
    ck_assert(dlx__tensor_strides_follow(3, full, (int64_t[]){15, 5, 1}));
    ck_assert(!dlx__tensor_strides_follow(3, ones, (int64_t[]){1, 1, 1}));
    ck_assert(!dlx__tensor_strides_follow(3, ones, (int64_t[]){3, 1, 0}));
    ck_assert(!dlx__tensor_strides_follow(3, empty, (int64_t[]){0, 3, 1}));
    ck_assert(!dlx__tensor_strides_follow(3, full, (int64_t[]){15, 5, 2}));
    /* Negative ones are left out where no element depends on them, and nowhere else. */
    ck_assert(dlx__tensor_strides_follow(3, ones, (int64_t[]){-3, 1, 1}));
    ck_assert(dlx__tensor_strides_follow(3, empty, (int64_t[]){INT64_MIN, 9, 1}));
    ck_assert(!dlx__tensor_strides_follow(3, ones, (int64_t[]){3, -1, 1}));
    ck_assert(!dlx__tensor_strides_follow(3, ones, (int64_t[]){-3, 2, 1}));
}

TEST(extents)
{
    static const struct {
        DLDataType dtype;
        int32_t ndim;
        int64_t shape[3];
        int64_t strides[3];
        uint64_t size; /* 0: refused */
    } cases[] = {
        {{kDLFloat, 32, 1}, 2, {3, 4}, {4, 1}, 48},
        {{kDLFloat, 32, 1}, 2, {3, 4}, {1, 3}, 48},
        {{kDLFloat, 32, 1}, 2, {3, 4}, {0, 1}, 16},
        {{kDLFloat, 32, 1}, 2, {3, 4}, {0, 0}, 4},
        {{kDLFloat, 32, 1}, 2, {3, 4}, {10, 2}, 108},
        {{kDLFloat, 32, 1}, 2, {1, 4}, {INT64_MAX, 1}, 16},
        {{kDLUInt, 1, 1}, 2, {2, 4}, {5, 1}, 2},
        {{kDLFloat4_e2m1fn, 4, 1}, 1, {3}, {2}, 3},
        {{kDLUInt, 8, 1}, 1, {2}, {INT64_MAX - 1}, INT64_MAX},
        {{kDLUInt, 8, 1}, 1, {2}, {INT64_MAX}, 0},
        {{kDLUInt, 16, 1}, 1, {2}, {INT64_MAX / 2}, 0},
        {{kDLUInt, 8, 1}, 2, {2, 2}, {INT64_MAX, INT64_MAX}, 0},
        {{kDLUInt, 8, 1}, 2, {3, 3}, {INT64_MAX, INT64_MAX}, 0},
        /* The index of the last element is the greatest number that 64 bits have, or one less. */
        {{kDLUInt, 8, 1}, 3, {2, 2, 2}, {INT64_MAX, INT64_MAX, 0}, 0},
        {{kDLUInt, 8, 1}, 3, {2, 2, 2}, {INT64_MAX, INT64_MAX, 1}, 0},
        {{kDLUInt, 8, 1}, 3, {2, 2, 2}, {INT64_MAX, INT64_MAX, 2}, 0},
        {{kDLUInt, 8, 1}, 2, {INT64_MAX, 3}, {INT64_MAX, 1}, 0},
        {{kDLUInt, 8, 1}, 2, {3, 4}, {4, -1}, 0},
        {{kDLUInt, 8, 1}, 2, {3, 4}, {INT64_MIN, 1}, 0},
        {{kDLUInt, 8, 1}, 2, {3, -4}, {4, 1}, 0},
        {{kDLUInt, 0, 1}, 2, {3, 4}, {4, 1}, 0},
        {{kDLUInt, 8, 1}, 65, {0}, {0}, 0},
        {{kDLUInt, 8, 1}, -1, {0}, {0}, 0},
    };
    for (size_t i = 0; i < DLX_ARRAY_SIZE(cases); i++) {
        uint64_t size = 77, expected = cases[i].size ? cases[i].size : 77; /* left as it was */
        int r = dlx__tensor_extent(cases[i].dtype, false, cases[i].ndim, cases[i].shape,
                                   cases[i].strides, &size);
        ck_assert_msg(r == (cases[i].size ? 0 : DLX_E_SHAPE), "case %zu: %d", i, r);
        ck_assert_msg(size == expected, "case %zu: %ju", i, (uintmax_t)size);
    }
    uint64_t size = 7; /* without elements there are no bytes */
    ck_assert_int_eq(dlx__tensor_extent(f32, false, 2, (int64_t[]){INT64_MAX, 0},
                                        (int64_t[]){INT64_MAX, INT64_MAX}, &size),
                     0);
    ck_assert_uint_eq(size, 0);
}

struct view {
    DLTensor tensor;
    uint8_t *memory;
    bool padded;
    int64_t bits; /* from one element to the next */
    int64_t low;  /* the least place, in elements, <= 0 */
    int64_t high; /* the greatest one */
    int64_t shape[6];
    int64_t strides[6];
};

static const struct {
    DLDataType dtype;
    bool padded;
} types[] = {{{kDLUInt, 1, 1}, false},
             {{kDLUInt, 1, 1}, true},
             {{kDLUInt, 2, 1}, false},
             {{kDLFloat4_e2m1fn, 4, 1}, false},
             {{kDLInt, 4, 1}, true},
             {{kDLInt, 4, 3}, false},
             {{kDLInt, 4, 3}, true},
             {{kDLInt, 4, 2}, false},
             {{kDLFloat6_e2m3fn, 6, 1}, false},
             {{kDLFloat6_e2m3fn, 6, 1}, true},
             {{kDLUInt, 8, 1}, false},
             {{kDLUInt, 8, 3}, false},
             {{kDLFloat, 16, 1}, false},
             {{kDLFloat, 32, 1}, false},
             {{kDLInt, 64, 1}, false},
             {{kDLComplex, 128, 1}, false},
             {{kDLInt, 9, 7}, false},
             {{kDLFloat, 32, 5}, true}};

/* Memory of exactly the bytes that the strides reach, so that a sanitizer sees every step
 * outside. */
static void view_fill(struct view *view)
{
    int64_t elements = 1;
    view->low = view->high = 0;
    for (int32_t i = 0; i < view->tensor.ndim; i++) {
        int64_t span = (view->shape[i] - 1) * view->strides[i];
        elements *= view->shape[i];
        if (view->shape[i] > 0 && span < 0)
            view->low += span;
        else if (view->shape[i] > 0)
            view->high += span;
    }
    size_t before = (size_t)((-view->low * view->bits + 7) / 8);
    size_t after = elements ? (size_t)(((view->high + 1) * view->bits + 7) / 8) : 0;
    view->memory = malloc(before + after + (before + after == 0));
    ck_assert_ptr_nonnull(view->memory);
    for (size_t i = 0; i < before + after; i++)
        view->memory[i] = (uint8_t)(dlx_test_random(&seed) >> 40);
    view->tensor.byte_offset = before / 2;
    view->tensor.data = view->memory + (before - before / 2);
    view->tensor.shape = view->shape;
    view->tensor.strides = view->strides;
}

static void random_view(struct view *view)
{
    size_t type = (size_t)dlx_test_random_in(&seed, 0, DLX_ARRAY_SIZE(types) - 1);
    *view = (struct view){.padded = types[type].padded};
    view->tensor.dtype = types[type].dtype;
    view->tensor.ndim = (int32_t)dlx_test_random_in(&seed, 0, 5);
    view->bits = types[type].dtype.bits * types[type].dtype.lanes;
    if (view->padded)
        view->bits = (view->bits + 7) / 8 * 8;
    int32_t ndim = view->tensor.ndim;
    int order[6] = {0, 1, 2, 3, 4, 5};
    for (int32_t i = 0; i < ndim; i++)
        view->shape[i] = dlx_test_random_in(&seed, 0, 30) ? dlx_test_random_in(&seed, 1, 5) : 0;
    switch (dlx_test_random_in(&seed, 0, 2)) {
    case 0: /* anything */
        for (int32_t i = 0; i < ndim; i++)
            view->strides[i] = dlx_test_random_in(&seed, -7, 7);
        break;
    case 1: /* dense, with the dimensions in another order, and some of them backwards */
        for (int32_t i = ndim - 1; i > 0; i--) {
            int64_t j = dlx_test_random_in(&seed, 0, i);
            int swap = order[i];
            order[i] = order[j];
            order[j] = swap;
        }
        /* fall through */
    default: /* dense, with some of them broadcast */
        for (int64_t i = ndim - 1, stride = 1; i >= 0; i--) {
            int d = order[i];
            view->strides[d] = stride;
            stride *= view->shape[d] ? view->shape[d] : 1;
            if (dlx_test_random_in(&seed, 0, 4) == 0)
                view->strides[d] = order[0] == 0 ? 0 : -view->strides[d];
        }
    }
    view_fill(view);
}

static int bit_at(const uint8_t *data, int64_t bit)
{
    int64_t byte = bit >= 0 ? bit / 8 : -((-bit + 7) / 8);
    return data[byte] >> (bit - byte * 8) & 1;
}

/* Element by element, bit by bit. */
static void check_compaction(struct view *view)
{
    const DLTensor *tensor = &view->tensor;
    const uint8_t *from = (const uint8_t *)tensor->data + tensor->byte_offset;
    uint64_t size;
    int64_t n = 1, index[6] = {0};
    ck_assert_int_eq(
        dlx__tensor_size(tensor->dtype, view->padded, tensor->ndim, tensor->shape, &size), 0);
    uint8_t *dst = malloc(size + (size == 0));
    ck_assert_ptr_nonnull(dst);
    memset(dst, 0xa5, size);
    ck_assert_int_eq(dlx__tensor_compact(dst, tensor, view->padded), 0);
    for (int32_t i = 0; i < tensor->ndim; i++)
        n *= view->shape[i];
    for (int64_t e = 0; e < n; e++) {
        int64_t place = 0;
        for (int32_t i = 0; i < tensor->ndim; i++)
            place += index[i] * view->strides[i];
        for (int64_t b = 0; b < view->bits; b++)
            ck_assert_int_eq(bit_at(dst, e * view->bits + b), bit_at(from, place * view->bits + b));
        for (int32_t i = tensor->ndim; i-- > 0;) {
            if (++index[i] < view->shape[i])
                break;
            index[i] = 0;
        }
    }
    if (n > 0 && !dlx__tensor_is_row_major(tensor->ndim, view->shape, view->strides))
        for (int64_t b = n * view->bits; b < (int64_t)size * 8; b++)
            ck_assert_int_eq(bit_at(dst, b), 0);
    free(dst);
}

TEST(compaction_agrees_with_the_reference)
{
    for (int i = 0; i < N_RANDOM; i++) {
        struct view view;
        uint64_t extent;
        seed = (uint64_t)i * 7919 + 1;
        random_view(&view);
        check_compaction(&view);
        int r = dlx__tensor_extent(view.tensor.dtype, view.padded, view.tensor.ndim, view.shape,
                                   view.strides, &extent);
        bool empty = false, negative = false;
        for (int32_t d = 0; d < view.tensor.ndim; d++) {
            empty |= view.shape[d] == 0;
            negative |= view.strides[d] < 0;
        }
        if (empty || !negative) {
            ck_assert_int_eq(r, 0);
            ck_assert_uint_eq(extent, empty ? 0 : (uint64_t)((view.high + 1) * view.bits + 7) / 8);
        } else {
            ck_assert_int_eq(r, DLX_E_SHAPE);
        }
        free(view.memory);
    }
}

TEST(compaction_of_known_views)
{
    uint8_t memory[12], dst[12];
    int64_t shape[] = {3, 4};
    DLTensor tensor = {.data = memory, .ndim = 2, .dtype = u8, .shape = shape};
    for (uint8_t i = 0; i < 12; i++)
        memory[i] = i;
    ck_assert_int_eq(dlx__tensor_compact(dst, &tensor, false), 0); /* strides NULL */
    ck_assert_mem_eq(dst, memory, 12);
    tensor.strides = (int64_t[]){1, 3}; /* transposed */
    ck_assert_int_eq(dlx__tensor_compact(dst, &tensor, false), 0);
    ck_assert_mem_eq(dst, "\0\3\6\11\1\4\7\12\2\5\10\13", 12);
    tensor.strides = (int64_t[]){-4, -1}; /* backwards, from the last element */
    tensor.byte_offset = 11;
    ck_assert_int_eq(dlx__tensor_compact(dst, &tensor, false), 0);
    for (uint8_t i = 0; i < 12; i++)
        ck_assert_int_eq(dst[i], 11 - i);
    tensor.strides = (int64_t[]){0, 0};
    ck_assert_int_eq(dlx__tensor_compact(dst, &tensor, false), 0);
    for (uint8_t i = 0; i < 12; i++)
        ck_assert_int_eq(dst[i], 11);
    /* Every other element of 4 bits; what is left of the last byte is 0. */
    memcpy(memory, "\x21\x43\x65", 3);
    tensor = (DLTensor){
        .data = memory, .ndim = 1, .dtype = f4, .shape = (int64_t[]){3}, .strides = (int64_t[]){2}};
    ck_assert_int_eq(dlx__tensor_compact(dst, &tensor, false), 0);
    ck_assert_mem_eq(dst, "\x31\x05", 2);
}

TEST(impossible_compactions_are_refused)
{
    uint8_t memory[16] = {0}, dst[16];
    DLTensor tensor = {.data = NULL, .ndim = 1, .dtype = u8, .shape = (int64_t[]){4}};
    ck_assert_int_eq(dlx__tensor_compact(dst, &tensor, false), DLX_E_SHAPE);
    tensor.shape = (int64_t[]){0};
    ck_assert_int_eq(dlx__tensor_compact(NULL, &tensor, false), 0);
    tensor.data = memory;
    tensor.ndim = 2;
    tensor.shape = (int64_t[]){2, 2};
    static int64_t strides[][2] = {
        {INT64_MAX, 1}, {INT64_MIN, 1}, {INT64_MAX, INT64_MIN}, {INT64_C(1) << 60, 1}};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(strides); i++) {
        tensor.strides = strides[i];
        ck_assert_msg(dlx__tensor_compact(dst, &tensor, false) == DLX_E_SHAPE, "case %zu", i);
    }
    tensor.dtype = f6;
    tensor.strides = (int64_t[]){INT64_C(1) << 61, 1};
    ck_assert_int_eq(dlx__tensor_compact(dst, &tensor, false), DLX_E_SHAPE);
    tensor.ndim = 65;
    ck_assert_int_eq(dlx__tensor_compact(dst, &tensor, false), DLX_E_SHAPE);
    /* A wild stride that is never used is fine. */
    tensor = (DLTensor){.data = memory,
                        .ndim = 2,
                        .dtype = u8,
                        .shape = (int64_t[]){1, 2},
                        .strides = (int64_t[]){INT64_MIN, 3}};
    ck_assert_int_eq(dlx__tensor_compact(dst, &tensor, false), 0);
}

int main(void)
{
    TCase *tcase = tcase_create("tensor");
    tcase_set_timeout(tcase, 60);
    return dlx_test_run_case(tcase);
}
