/* SPDX-License-Identifier: Apache-2.0 */

/* What fits into the brief comes out of it; what does not is left to the slot. Its use is simulated in
 * tests/sim_ring.c. */

#include "common/brief.h"
#include "tests/harness_run.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>

static struct dlx_shm_slot full(void)
{
    struct dlx_shm_slot slot = {
        .time_ns = UINT64_MAX,
        .n_tensors = 1,
        .record = {.arena = UINT32_MAX,
                   .dtype_code = 255,
                   .dtype_bits = 254,
                   .dtype_lanes = 65533,
                   .device_type = kDLCPU,
                   .ndim = DLX_BRIEF_NDIM,
                   .flags = DLX_SHM_RECORD_FLAGS_ALL,
                   .offset = UINT64_MAX - 1},
    };
    for (uint32_t i = 0; i < DLX_BRIEF_NDIM; i++)
        slot.shape[i] = UINT32_MAX - i;
    return slot;
}

START_TEST(what_is_packed_is_unpacked)
{
    struct dlx_shm_record record;
    int64_t shape[DLX_SHM_NDIM_INLINE];
    for (uint32_t ndim = 0; ndim <= DLX_BRIEF_NDIM; ndim++) {
        struct dlx_shm_slot slot = full();
        slot.record.ndim = ndim;
        struct dlx_brief brief = dlx__brief_pack(&slot, 4095, UINT64_C(0xabcd87654321));
        ck_assert_uint_eq((uint32_t)brief.words[0], 4095);
        ck_assert_uint_eq(brief.words[1], slot.time_ns);
        ck_assert(dlx__brief_is_of(&brief, UINT64_C(0xabcd87654321)));
        ck_assert(!dlx__brief_is_of(&brief, UINT64_C(0xabcd87654322)));
        ck_assert(dlx__brief_unpack(&brief, &record, shape));
        ck_assert_mem_eq(&record, &slot.record, sizeof record);
        ck_assert_mem_eq(shape, slot.shape, ndim * sizeof *shape);
    }
}
END_TEST

START_TEST(what_does_not_fit_has_no_brief_but_a_slot)
{
    struct dlx_shm_slot slot = full();
#define REFUSED(...)                                                                               \
    do {                                                                                           \
        __VA_ARGS__;                                                                               \
        struct dlx_brief brief = dlx__brief_pack(&slot, 7, 9);                                     \
        ck_assert(!dlx__brief_is_of(&brief, 9));                                                   \
        ck_assert_uint_eq((uint32_t)brief.words[0], 7);                                            \
        slot = full();                                                                             \
    } while (0)
    REFUSED(slot.n_tensors = 2);
    REFUSED(slot.flags = DLX_SHM_SLOT_MANIFEST);
    REFUSED(slot.record.flags &= ~(uint32_t)DLX_SHM_RECORD_ROW_MAJOR);
    REFUSED(slot.record.ndim = DLX_BRIEF_NDIM + 1);
    REFUSED(slot.record.device_type = kDLCUDA);
    REFUSED(slot.record.device_id = 1);
    REFUSED(slot.shape[4] = (int64_t)UINT32_MAX + 1);
#undef REFUSED
}
END_TEST

START_TEST(a_lie_about_the_dimensions_is_noticed)
{
    struct dlx_shm_slot slot = full();
    struct dlx_shm_record record;
    int64_t shape[DLX_BRIEF_NDIM];
    struct dlx_brief brief = dlx__brief_pack(&slot, 1, 1);
    for (uint64_t ndim = DLX_BRIEF_NDIM + 1; ndim < 256; ndim++) {
        brief.words[4] = (brief.words[4] & ~(UINT64_C(255) << 32)) | ndim << 32;
        ck_assert(!dlx__brief_unpack(&brief, &record, shape));
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("brief");
    TCase *tcase = tcase_create("brief");
    tcase_add_test(tcase, what_is_packed_is_unpacked);
    tcase_add_test(tcase, what_does_not_fit_has_no_brief_but_a_slot);
    tcase_add_test(tcase, a_lie_about_the_dimensions_is_noticed);
    suite_add_tcase(suite, tcase);
    return dlx_test_run(suite);
}
