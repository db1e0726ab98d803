/* SPDX-License-Identifier: Apache-2.0 */

/* Arithmetic over shapes, compaction against a naive copy, and records and manifests that lie. */

#include "common/error.h"
#include "common/manifest.h"
#include "common/tensor.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>

static const DLDataType f32 = {kDLFloat, 32, 1}, f4x2 = {kDLFloat4_e2m1fn, 4, 2},
                        i4 = {kDLInt, 4, 1};

START_TEST(sizes_are_checked)
{
    uint64_t size = 1;
    int64_t shape[65] = {3, 5}, huge[2] = {INT64_MAX, 2}, edge[1] = {INT64_MAX / 4};
    ck_assert_int_eq(dlx__tensor_size(f32, false, 2, shape, &size), 0);
    ck_assert_uint_eq(size, 60);
    ck_assert_int_eq(dlx__tensor_size(f32, false, 0, NULL, &size), 0);
    ck_assert_uint_eq(size, 4);
    ck_assert_int_eq(dlx__tensor_size(i4, false, 2, shape, &size), 0);
    ck_assert_uint_eq(size, 8); /* 15 elements of 4 bits */
    ck_assert_int_eq(dlx__tensor_size(i4, true, 2, shape, &size), 0);
    ck_assert_uint_eq(size, 15);
    ck_assert_int_eq(dlx__tensor_size(f4x2, false, 2, shape, &size), 0);
    ck_assert_uint_eq(size, 15);
    ck_assert_int_eq(dlx__tensor_size(f32, false, 1, edge, &size), 0);
    ck_assert_int_eq(dlx__tensor_size(f32, false, 2, huge, &size), DLX_E_SHAPE);
    ck_assert_int_eq(dlx__tensor_size(f32, false, 65, shape, &size), DLX_E_SHAPE);
    ck_assert_int_eq(dlx__tensor_size(f32, false, -1, shape, &size), DLX_E_SHAPE);
    ck_assert_int_eq(dlx__tensor_size(f32, false, 1, NULL, &size), DLX_E_SHAPE);
    ck_assert_int_eq(dlx__tensor_size((DLDataType){0, 0, 1}, false, 1, shape, &size), DLX_E_SHAPE);
    ck_assert_int_eq(dlx__tensor_size((DLDataType){0, 8, 0}, false, 1, shape, &size), DLX_E_SHAPE);
    shape[1] = -5;
    ck_assert_int_eq(dlx__tensor_size(f32, false, 2, shape, &size), DLX_E_SHAPE);
    huge[1] = 0; /* no elements: no bytes, whatever the rest is */
    ck_assert_int_eq(dlx__tensor_size(f32, false, 2, huge, &size), 0);
    ck_assert_uint_eq(size, 0);
}
END_TEST

/* Element by element, bit by bit. */
static void naive(uint8_t *dst, const DLTensor *t, uint64_t bits, int32_t d, int64_t at,
                  uint64_t *n)
{
    if (d == t->ndim) {
        for (uint64_t b = 0; b < bits; b++) {
            int64_t from = at * (int64_t)bits + (int64_t)b;
            const uint8_t *src = (const uint8_t *)t->data + t->byte_offset;
            uint64_t to = *n * bits + b;
            if (src[from >> 3] & (1U << (from & 7)))
                dst[to >> 3] = (uint8_t)(dst[to >> 3] | (1U << (to & 7)));
        }
        ++*n;
        return;
    }
    for (int64_t i = 0; i < t->shape[d]; i++)
        naive(dst, t, bits, d + 1, at + i * t->strides[d], n);
}

START_TEST(compaction_is_what_a_naive_copy_does)
{
    static const DLDataType types[] = {{kDLUInt, 8, 1},   {kDLFloat, 16, 1}, {kDLFloat, 32, 1},
                                       {kDLFloat, 64, 1}, {kDLUInt, 8, 3},   {kDLComplex, 128, 1},
                                       {kDLInt, 4, 1},    {kDLInt, 2, 1},    {kDLFloat, 6, 1}};
    uint8_t *data = malloc(65536);
    ck_assert_ptr_nonnull(data);
    srandom((unsigned)_i + 1);
    for (int i = 0; i < 65536; i++)
        data[i] = (uint8_t)random();
    for (int k = 0; k < 50; k++) {
        int64_t shape[4], strides[4];
        DLTensor t = {.data = data, .byte_offset = 32768, .ndim = (int32_t)(random() % 5)};
        t.dtype = types[(size_t)random() % DLX_ARRAY_SIZE(types)];
        t.shape = shape;
        t.strides = strides;
        for (int32_t i = 0; i < t.ndim; i++) {
            shape[i] = 1 + random() % 5;
            strides[i] = random() % 61 - 30;
        }
        if (random() % 3 == 0) /* some that merge */
            dlx__tensor_row_major(t.ndim, shape, strides);
        uint64_t bits = (uint64_t)t.dtype.bits * t.dtype.lanes, size, n = 0;
        ck_assert_int_eq(dlx__tensor_size(t.dtype, false, t.ndim, shape, &size), 0);
        uint8_t *want = calloc(1, size), *got = malloc(size);
        ck_assert(want && got);
        naive(want, &t, bits, 0, 0, &n);
        ck_assert_int_eq(dlx__tensor_compact(got, &t, false), 0);
        if (size * 8 != n * bits) { /* unused bits of the last byte are not compared */
            uint8_t mask = (uint8_t)((1U << (n * bits % 8)) - 1);
            got[size - 1] &= mask;
        }
        ck_assert_mem_eq(got, want, size);
        free(want);
        free(got);
    }
    free(data);
}
END_TEST

START_TEST(records_that_lie_are_refused)
{
    const struct dlx_shm_record good = {.arena = 1,
                                        .dtype_code = kDLFloat,
                                        .dtype_bits = 32,
                                        .dtype_lanes = 1,
                                        .device_type = kDLCPU,
                                        .ndim = 2,
                                        .offset = 256,
                                        .size = 48};
    int64_t shape[2] = {3, 4}, strides[2] = {4, 1};
    struct dlx_shm_record r = good;
    ck_assert_int_eq(dlx__record_check(&r, shape, strides, 304), 0);
    ck_assert_int_eq(dlx__record_check(&r, shape, strides, 303), DLX_E_BAD_PEER);
#define LIE(field, value)                                                                          \
    r = good;                                                                                      \
    r.field = (value);                                                                             \
    ck_assert_int_eq(dlx__record_check(&r, shape, strides, 4096), DLX_E_BAD_PEER)
    LIE(size, 47);
    LIE(offset, 255);
    LIE(offset, UINT64_MAX - 255);
    LIE(ndim, 65);
    LIE(flags, 8);
    LIE(device_type, kDLCUDA);
    LIE(device_id, 1);
    LIE(dtype_bits, 0);
    LIE(dtype_lanes, 0);
    strides[0] = -4;
    LIE(ndim, 2);
    strides[0] = INT64_MAX;
    LIE(ndim, 2);
    strides[0] = 4;
    shape[0] = INT64_MAX;
    LIE(ndim, 2);
    LIE(flags, DLX_SHM_RECORD_ROW_MAJOR);
}
END_TEST

START_TEST(manifests_come_back_and_broken_ones_stay_inside)
{
    int64_t shape[9] = {1, 2, 3, 1, 1, 1, 1, 1, 1}, strides[9] = {0};
    struct dlx_manifest_item items[2] = {{.record = {.ndim = 9, .arena = 7},
                                          .shape = shape,
                                          .strides = strides,
                                          .name = "a",
                                          .name_size = 1},
                                         {.record = {.ndim = 2, .flags = DLX_SHM_RECORD_ROW_MAJOR},
                                          .shape = shape,
                                          .name = "weights",
                                          .name_size = 7}};
    struct dlx_manifest m;
    uint64_t size = dlx__manifest_size(items, 2, 5);
    uint8_t *whole = malloc(size);
    ck_assert_ptr_nonnull(whole);
    dlx__manifest_write(whole, items, 2, "meta", 5);
    ck_assert_int_eq(dlx__manifest_read(whole, size, 2, &m), 0);
    struct dlx_manifest_item item = dlx__manifest_item(&m, 1);
    ck_assert_int_eq(item.shape[1], 2);
    ck_assert_ptr_null(item.strides);
    ck_assert_mem_eq(item.name, "weights", 7);
    ck_assert_str_eq(m.meta, "meta");
    ck_assert_int_eq(dlx__manifest_read(whole, size, 3, &m), DLX_E_BAD_PEER);
    srandom(7);
    for (int k = 0; k < 20000; k++) {
        /* An exact copy, so that a look outside is seen. */
        uint64_t n = random() % 2 ? size : (uint64_t)random() % size;
        uint8_t *copy = malloc(n ? n : 1);
        ck_assert_ptr_nonnull(copy);
        memcpy(copy, whole, n);
        for (int flips = (int)(random() % 4); n > 0 && flips > 0; flips--)
            copy[(uint64_t)random() % n] = (uint8_t)random();
        int r = dlx__manifest_read(copy, n, 2, &m);
        ck_assert(r == 0 || r == DLX_E_BAD_PEER);
        for (uint32_t i = 0; r == 0 && i < 2; i++) {
            volatile int64_t sum = 0;
            item = dlx__manifest_item(&m, i);
            for (uint32_t d = 0; d < item.record.ndim; d++)
                sum += item.shape[d] / 2 + (item.strides ? item.strides[d] / 2 : 0);
            for (uint32_t c = 0; c < item.name_size; c++)
                sum += item.name[c];
            (void)sum; /* read for the sanitizer's sake */
        }
        free(copy);
    }
    free(whole);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tensor");
    TCase *tcase = tcase_create("tensor");
    tcase_add_test(tcase, sizes_are_checked);
    tcase_add_loop_test(tcase, compaction_is_what_a_naive_copy_does, 0, 20);
    tcase_add_test(tcase, records_that_lie_are_refused);
    tcase_add_test(tcase, manifests_come_back_and_broken_ones_stay_inside);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
