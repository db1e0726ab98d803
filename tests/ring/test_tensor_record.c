/* SPDX-License-Identifier: Apache-2.0 */
/* Records of tensors, as a peer claims them: honest ones pass, all others do not. */
#include "ring/tensor.h"
#include "tests/harness/random.h"
#include "tests/harness/run.h"
#include <inttypes.h>

static uint64_t seed = 1;

static const struct dlx_shm_record good = {
    .arena = 1,
    .dtype_code = kDLFloat,
    .dtype_bits = 32,
    .dtype_lanes = 1,
    .device_type = kDLCPU,
    .ndim = 2,
    .flags = DLX_SHM_RECORD_ROW_MAJOR,
    .offset = 256,
    .size = 256,
};

TEST(good_records_pass)
{
    struct dlx_shm_record record = good;
    const int64_t shape[] = {8, 8};
    const int64_t column_major[] = {1, 8};
    ck_assert_int_eq(dlx__record_check(&record, shape, NULL, 4096), 0);
    ck_assert_int_eq(dlx__record_check(&record, shape, NULL, 512), 0);
    record.flags = DLX_SHM_RECORD_PADDED;
    ck_assert_int_eq(dlx__record_check(&record, shape, column_major, 512), 0);
    record.flags = DLX_SHM_RECORD_ROW_MAJOR;
    record.size = 0;
    record.offset = 3; /* nothing is there: not looked at */
    ck_assert_int_eq(dlx__record_check(&record, (int64_t[]){0, 8}, NULL, 0), 0);
    record.ndim = 0;
    record.size = 256;
    record.offset = 0;
    ck_assert_int_eq(dlx__record_check(&record, NULL, NULL, 256), 0);
}

TEST(hostile_records_are_refused)
{
    const int64_t shape[] = {8, 8};
    struct dlx_shm_record r;
#define REFUSED(shape, strides, arena, ...)                                                        \
    do {                                                                                           \
        r = good;                                                                                  \
        __VA_ARGS__;                                                                               \
        ck_assert_int_eq(dlx__record_check(&r, shape, strides, arena), DLX_E_BAD_PEER);            \
        ck_assert_str_ne(dlx__error_message(), "");                                                \
    } while (0)
    REFUSED(shape, NULL, 511, );
    REFUSED(shape, NULL, 0, );
    REFUSED(shape, NULL, 4096, r.size = 255);
    REFUSED(shape, NULL, 4096, r.size = 0);
    REFUSED(shape, NULL, 4096, r.offset = 257);
    REFUSED(shape, NULL, 4096, r.offset = 4096);
    REFUSED(shape, NULL, 4096, r.offset = 0U - UINT64_C(256));
    REFUSED(shape, NULL, 4096, r.size = UINT64_MAX);
    REFUSED(shape, NULL, 4096, r.size = UINT64_MAX - 255);
    REFUSED(shape, NULL, UINT64_MAX, r.offset = 0U - UINT64_C(256); r.size = 256);
    REFUSED(shape, NULL, 4096, r.flags |= 8);
    REFUSED(shape, NULL, 4096, r.flags |= UINT32_C(1) << 31);
    REFUSED(shape, NULL, 4096, r.device_type = kDLCUDA);
    REFUSED(shape, NULL, 4096, r.device_type = -1);
    REFUSED(shape, NULL, 4096, r.device_id = 1);
    REFUSED(shape, NULL, 4096, r.ndim = 65);
    REFUSED(shape, NULL, 4096, r.ndim = UINT32_MAX);
    REFUSED(shape, NULL, 4096, r.ndim = UINT32_C(1) << 31);
    REFUSED(shape, NULL, 4096, r.dtype_bits = 0);
    REFUSED(shape, NULL, 4096, r.dtype_lanes = 0);
    REFUSED(shape, NULL, 4096, r.dtype_lanes = 65535);
    REFUSED(((int64_t[]){-8, -8}), NULL, 4096, );
    REFUSED(((int64_t[]){INT64_C(1) << 32, INT64_C(1) << 32}), NULL, 4096, );
    REFUSED(shape, ((int64_t[]){-8, 1}), 4096, r.flags = 0);
    REFUSED(shape, ((int64_t[]){9, 1}), 4096, r.flags = 0);
    REFUSED(shape, ((int64_t[]){INT64_MAX, INT64_MAX}), 4096, r.flags = 0);
#undef REFUSED
}

/* Records around every limit: the short way through the checks says what the whole way does. */
TEST(the_short_way_agrees_with_the_whole_one)
{
    static const int64_t sizes[] = {-1,        0,        1, 2, 255, INT64_C(1) << 32, INT64_MAX / 8,
                                    INT64_MAX, INT64_MIN};
    static const uint64_t bytes[] = {
        0, 1, 255, 256, 257, 4095, 4096, 4097, INT64_MAX, UINT64_MAX, UINT64_MAX - 255};
    int n_good = 0;
#define ONE_OF(values) values[dlx_test_random(&seed) % DLX_ARRAY_SIZE(values)]
    for (int i = 0; i < 300000; i++) {
        int64_t shape[3] = {ONE_OF(sizes), 1, 1}, strides[3] = {1, 1, 1};
        if (dlx_test_random_in(&seed, 0, 1))
            shape[2] = ONE_OF(sizes);
        struct dlx_shm_record r = {
            .arena = 1,
            .dtype_bits =
                (uint8_t)(dlx_test_random_in(&seed, 0, 7) ? 8 : dlx_test_random_in(&seed, 0, 32)),
            .dtype_lanes = (uint16_t)dlx_test_random_in(&seed, 0, 9) ? 1 : 0,
            .device_type = dlx_test_random_in(&seed, 0, 30) ? kDLCPU : kDLCUDA,
            .device_id = dlx_test_random_in(&seed, 0, 30) ? 0 : 1,
            .ndim =
                dlx_test_random_in(&seed, 0, 30) ? (uint32_t)dlx_test_random_in(&seed, 0, 3) : 65,
            .flags = dlx_test_random_in(&seed, 0, 3) ? DLX_SHM_RECORD_ROW_MAJOR
                                                     : (uint32_t)dlx_test_random_in(&seed, 0, 8),
            .offset = ONE_OF(bytes),
            .size = ONE_OF(bytes)};
        uint64_t arena = ONE_OF(bytes), size = 7, whole_size = 7;
        DLDataType dtype = {r.dtype_code, r.dtype_bits, r.dtype_lanes};
        bool padded = r.flags & DLX_SHM_RECORD_PADDED;
        int r1 = dlx__record_check(&r, shape, strides, arena);
        int r2 = dlx__tensor_size(dtype, padded, (int32_t)r.ndim, shape, &size);
        n_good += r1 == 0;
        /* An assertion that holds is dear, too. */
        if (r1 != dlx__record_check_any(&r, shape, strides, arena) ||
            r2 != dlx__tensor_size_any(dtype, padded, (int32_t)r.ndim, shape, &whole_size) ||
            size != whole_size)
            ck_abort_msg("record %d: %d, size: %d, %" PRIu64 " and %" PRIu64, i, r1, r2, size,
                         whole_size);
    }
#undef ONE_OF
    ck_assert_int_gt(n_good, 1000);
}

TEST(records_on_gpus_lie_in_their_allocation)
{
    const int64_t shape[] = {8, 8}, gaps[] = {16, 2};
    struct dlx_shm_record on_gpu = good, r;
    on_gpu.arena = 0;
    on_gpu.device_type = kDLCUDA;
    on_gpu.offset = 12; /* of the framework, which aligns as it likes */
    ck_assert_int_eq(dlx__record_check_gpu(&on_gpu, shape, NULL, 268), 0);
    ck_assert_int_eq(dlx__record_check_gpu(&on_gpu, shape, NULL, UINT64_MAX), 0);
    r = on_gpu;
    r.flags = 0;
    r.size = 4 * (7 * 16 + 7 * 2 + 1);
    ck_assert_int_eq(dlx__record_check_gpu(&r, shape, gaps, 1024), 0);
    r.size--;
    ck_assert_int_eq(dlx__record_check_gpu(&r, shape, gaps, 1024), DLX_E_BAD_PEER);
    r = on_gpu;
    r.size = 0;
    ck_assert_int_eq(dlx__record_check_gpu(&r, (int64_t[]){0, 8}, NULL, 0), 0);
#define REFUSED(size, ...)                                                                         \
    do {                                                                                           \
        r = on_gpu;                                                                                \
        __VA_ARGS__;                                                                               \
        ck_assert_int_eq(dlx__record_check_gpu(&r, shape, NULL, size), DLX_E_BAD_PEER);            \
    } while (0)
    REFUSED(267, );
    REFUSED(0, );
    REFUSED(4096, r.size = 255);
    REFUSED(4096, r.offset = UINT64_MAX);
    REFUSED(UINT64_MAX, r.offset = UINT64_MAX);
    REFUSED(4096, r.arena = 1);
    REFUSED(4096, r.device_id = 1);
    REFUSED(4096, r.flags |= 0x80);
    REFUSED(4096, r.ndim = 65);
#undef REFUSED
}

int main(void)
{
    return dlx_test_run_case(tcase_create("records"));
}
