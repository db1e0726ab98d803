/* SPDX-License-Identifier: Apache-2.0 */

/* Which strides a received tensor has, also in dimensions of size 1 and of empty tensors. */

#include "tests/harness/stream.h"

#define NDIM 9

static const struct {
    int32_t ndim;
    int64_t shape[NDIM];
} shapes[] = {
    {4, {8, 1, 28, 28}},              /* grey images, whose strides conv2d looks at */
    {4, {1, 1, 5, 7}},                /* one of them */
    {2, {1, 77}},                     /* a row, which view() takes as another type */
    {2, {77, 1}},                     /* a column */
    {3, {1, 1, 1}},                   /* */
    {3, {3, 0, 2}},                   /* without elements */
    {4, {1, 0, 1, 4}},                /* */
    {0, {0}},                         /* a number */
    {9, {1, 2, 1, 1, 1, 1, 1, 3, 1}}, /* more dimensions than an entry of the ring has room for */
};
#define N_SHAPES ((int)DLX_ARRAY_SIZE(shapes))

/* As PyTorch defines it: the product of the sizes behind it, 0 counting as 1. */
static void check_row_major(const DLTensor *t, int which)
{
    ck_assert_int_eq(t->ndim, shapes[which].ndim);
    ck_assert(t->ndim == 0 || t->strides);
    for (int32_t i = 0; i < t->ndim; i++) {
        int64_t product = 1;
        for (int32_t k = i + 1; k < t->ndim; k++)
            product *= DLX_MAX(shapes[which].shape[k], 1);
        ck_assert_int_eq(t->shape[i], shapes[which].shape[i]);
        ck_assert_int_eq(t->strides[i], product);
    }
}

/* Tensor `i` of the message, by each way to get at it. */
static void check_received(struct dlx_message *m, uint32_t i, int which)
{
    auto_tensor *t = NULL, *private = NULL;
    DLManagedTensor *legacy;
    check_row_major(dlx_message_tensor_peek(m, i), which);
    ok(dlx_message_tensor(m, i, &t));
    check_row_major(&t->dl_tensor, which);
    ok(dlx_message_tensor_legacy(m, i, true, &legacy));
    check_row_major(&legacy->dl_tensor, which);
    legacy->deleter(legacy);
    ok(dlx_message_tensor_private(m, i, &private));
    check_row_major(&private->dl_tensor, which);
}

static DLManagedTensorVersioned *alloc(struct dlx_publisher *p, int which)
{
    DLManagedTensorVersioned *t = NULL;
    ok(dlx_alloc(
        p, SPEC(.dtype = {kDLUInt, 8, 1}, .ndim = shapes[which].ndim, .shape = shapes[which].shape),
        &t));
    return t;
}

LOOP_TEST(allocated_tensors_are_row_major_in_every_dimension, 0, N_SHAPES)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    DLManagedTensorVersioned *t = alloc(x.p, _i);
    check_row_major(&t->dl_tensor, _i);
    ok(dlx_publish(x.p, t, PUBLISH(.strict = true), NULL));
    auto_message *m = dlx_test_stream_next(x.s);
    check_received(m, 0, _i);
    DLManagedTensorVersioned *two[] = {alloc(x.p, _i), alloc(x.p, _i)};
    const struct dlx_item items[] = {{"a", two[0]}, {"b", two[1]}};
    ok(dlx_publish_set(x.p, items, 2, NULL, PUBLISH(.strict = true), NULL));
    auto_message *set = dlx_test_stream_next(x.s);
    check_received(set, 0, _i);
    check_received(set, 1, _i);
}

/* With any strides that no element depends on: those of older producers (NULL), of such as
 * normalise them (1), of broadcasts and of np.newaxis (0), of a reversed view. */
LOOP_TEST(copied_tensors_are_row_major_in_every_dimension, 0, N_SHAPES)
{
    static uint8_t data[8 * 28 * 28];
    static const int64_t unused[] = {1, 0, -1, INT64_C(1) << 60};
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    int64_t shape[NDIM], strides[NDIM];
    const int32_t ndim = shapes[_i].ndim;
    DLTensor t = {.data = data,
                  .device = {kDLCPU, 0},
                  .ndim = ndim,
                  .dtype = {kDLUInt, 8, 1},
                  .shape = shape,
                  .strides = strides};
    DLManagedTensorVersioned versioned = {.version = {DLPACK_MAJOR_VERSION, 0}};
    DLManagedTensor legacy = {0};
    const struct dlx_item item = {"a", &versioned};
    memcpy(shape, shapes[_i].shape, sizeof shape);
    for (size_t k = 0; k <= DLX_ARRAY_SIZE(unused); k++) {
        int64_t stride = 1;
        for (int32_t i = ndim; i-- > 0; stride *= DLX_MAX(shape[i], 1))
            strides[i] = shape[i] == 1 && k > 0 ? unused[k - 1] : stride;
        if (k == 0)
            t.strides = NULL;
        else
            t.strides = strides;
        versioned.dl_tensor = legacy.dl_tensor = t;
        ok(dlx_publish(x.p, &versioned, NULL, NULL));
        ok(dlx_publish_legacy(x.p, &legacy, NULL, NULL));
        ok(dlx_publish_set(x.p, &item, 1, NULL, NULL, NULL));
        for (int n = 0; n < 3; n++) {
            auto_message *m = dlx_test_stream_next(x.s);
            check_received(m, 0, _i);
        }
    }
}

/* A view of what dlx_alloc() gave, which is not copied. */
static const struct {
    int64_t shape[2], strides[2], arrives[2];
} views[] = {
    {{77, 1}, {1, 77}, {1, 77}},  /* a row, transposed */
    {{1, 77}, {1, 1}, {1, 1}},    /* as some libraries export a row */
    {{1, 77}, {0, 1}, {0, 1}},    /* as NumPy exports x[np.newaxis] */
    {{4, 1}, {8, 3}, {8, 3}},     /* a column of a table, with gaps */
    {{0, 3}, {1, 0}, {1, 0}},     /* no elements, transposed */
    {{1, 77}, {-77, 1}, {77, 1}}, /* no consumer needs it, and PyTorch does not take it */
    {{0, 3}, {3, -1}, {3, 1}},
};

LOOP_TEST(a_view_keeps_all_its_strides_but_negative_ones_that_nothing_depends_on, 0,
          (int)DLX_ARRAY_SIZE(views))
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    DLManagedTensorVersioned *t[2];
    for (int i = 0; i < 2; i++) {
        t[i] = dlx_test_stream_alloc(x.p, 77, 0);
        t[i]->dl_tensor.ndim = 2;
        t[i]->dl_tensor.shape = (int64_t *)(uintptr_t)views[_i].shape;
        t[i]->dl_tensor.strides = (int64_t *)(uintptr_t)views[_i].strides;
    }
    const struct dlx_item item = {"a", t[1]};
    ok(dlx_publish(x.p, t[0], PUBLISH(.strict = true), NULL));
    ok(dlx_publish_set(x.p, &item, 1, NULL, PUBLISH(.strict = true), NULL));
    for (int i = 0; i < 2; i++) {
        auto_message *m = dlx_test_stream_next(x.s);
        auto_tensor *private = NULL;
        ok(dlx_message_tensor_private(m, 0, &private));
        const DLTensor *both[] = {dlx_message_tensor_peek(m, 0), &private->dl_tensor};
        for (int k = 0; k < 2; k++)
            for (int d = 0; d < 2; d++) {
                ck_assert_int_eq(both[k]->shape[d], views[_i].shape[d]);
                ck_assert_int_eq(both[k]->strides[d], views[_i].arrives[d]);
            }
    }
}
