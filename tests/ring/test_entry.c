/* SPDX-License-Identifier: Apache-2.0 */

/* The words of a ring entry. */

#include "ring/entry.h"
#include "tests/harness/run.h"

TEST(a_packed_tensor_is_unpacked)
{
    const int64_t shape[] = {UINT32_MAX, 2, 3, 0, 5, 6, UINT32_MAX - 1};
    for (int32_t ndim = 0; ndim <= (int32_t)DLX_SHM_NDIM_ENTRY; ndim++) {
        uint64_t words[DLX_SHM_ENTRY_WORDS] = {77};
        int64_t back[DLX_SHM_NDIM_ENTRY] = {0};
        DLDataType dtype = {kDLBfloat, 16, 65535}, back_dtype = {0, 0, 0};
        bool padded;
        int32_t back_ndim;
        ck_assert(dlx__entry_pack_tensor(words, UINT32_MAX, UINT64_MAX - 255, dtype, ndim % 2, ndim,
                                         shape));
        ck_assert(dlx__entry_unpack_tensor(words, &back_dtype, &padded, &back_ndim, back));
        ck_assert_uint_eq(words[0], 77);
        ck_assert_uint_eq(dlx__entry_kind(words), DLX_SHM_KIND_TENSOR);
        ck_assert_uint_eq(dlx__entry_arena(words), UINT32_MAX);
        ck_assert_uint_eq(dlx__entry_offset(words), UINT64_MAX - 255);
        ck_assert_int_eq(memcmp(&dtype, &back_dtype, sizeof dtype), 0);
        ck_assert_int_eq(padded, ndim % 2);
        ck_assert_int_eq(back_ndim, ndim);
        ck_assert_int_eq(memcmp(back, shape, (size_t)ndim * sizeof *shape), 0);
    }
}

TEST(a_tensor_that_does_not_fit_is_not_packed)
{
    uint64_t words[DLX_SHM_ENTRY_WORDS];
    const DLDataType dtype = {kDLUInt, 8, 1};
    int64_t shape[DLX_SHM_NDIM_ENTRY + 1] = {1, 1, 1, 1, 1, 1, 1, 1};
    ck_assert(!dlx__entry_pack_tensor(words, 1, 0, dtype, false, DLX_SHM_NDIM_ENTRY + 1, shape));
    for (int32_t i = 0; i < (int32_t)DLX_SHM_NDIM_ENTRY; i++) {
        shape[i] = INT64_C(1) << 32;
        ck_assert(!dlx__entry_pack_tensor(words, 1, 0, dtype, false, DLX_SHM_NDIM_ENTRY, shape));
        shape[i] = 1;
    }
    ck_assert(dlx__entry_pack_tensor(words, 1, 0, dtype, false, DLX_SHM_NDIM_ENTRY, shape));
}

TEST(a_packed_manifest_says_where_it_is)
{
    uint64_t words[DLX_SHM_ENTRY_WORDS];
    dlx__entry_pack_manifest(words, 7, 1 << 20, UINT64_C(1) << 40, DLX_SHM_TENSORS_MAX);
    ck_assert_uint_eq(dlx__entry_kind(words), DLX_SHM_KIND_MANIFEST);
    ck_assert_uint_eq(dlx__entry_arena(words), 7);
    ck_assert_uint_eq(dlx__entry_offset(words), 1 << 20);
    ck_assert_uint_eq(words[4], UINT64_C(1) << 40);
    ck_assert_uint_eq(words[5], DLX_SHM_TENSORS_MAX);
}

TEST(a_new_place_leaves_the_rest_of_the_entry)
{
    uint64_t words[DLX_SHM_ENTRY_WORDS] = {0}, before[DLX_SHM_ENTRY_WORDS];
    const int64_t shape[] = {3, 4};
    ck_assert(dlx__entry_pack_tensor(words, 1, 256, (DLDataType){kDLFloat, 32, 4}, true, 2, shape));
    memcpy(before, words, sizeof words);
    dlx__entry_set_place(words, UINT32_MAX, 512);
    ck_assert_uint_eq(dlx__entry_arena(words), UINT32_MAX);
    ck_assert_uint_eq(dlx__entry_offset(words), 512);
    dlx__entry_set_place(words, 1, 256);
    ck_assert_int_eq(memcmp(before, words, sizeof words), 0);
}

TEST(dimensions_and_flags_that_cannot_be_are_refused)
{
    uint64_t words[DLX_SHM_ENTRY_WORDS] = {0};
    int64_t shape[DLX_SHM_NDIM_ENTRY];
    DLDataType dtype;
    bool padded;
    int32_t ndim;
    words[3] = (uint64_t)(DLX_SHM_NDIM_ENTRY + 1) << 32;
    ck_assert(!dlx__entry_unpack_tensor(words, &dtype, &padded, &ndim, shape));
    for (uint32_t flags = 0; flags < 256; flags++) {
        words[3] = (uint64_t)flags << 40;
        ck_assert_int_eq(dlx__entry_unpack_tensor(words, &dtype, &padded, &ndim, shape),
                         (flags & ~(uint32_t)DLX_SHM_RECORD_PADDED) == 0);
    }
}

TEST(a_ring_has_twice_as_many_entries_as_its_window)
{
    ck_assert_uint_eq(dlx_shm_n_entries(1), DLX_SHM_ENTRIES_MIN);
    ck_assert_uint_eq(dlx_shm_n_entries(128), 256);
    ck_assert_uint_eq(dlx_shm_n_entries(129), 512);
    ck_assert_uint_eq(dlx_shm_n_entries(DLX_SHM_DEPTH_MAX), DLX_SHM_ENTRIES_MAX);
    for (uint32_t window = 1; window <= DLX_SHM_DEPTH_MAX; window++)
        ck_assert(dlx_shm_n_entries_is_valid(dlx_shm_n_entries(window)));
    ck_assert(!dlx_shm_n_entries_is_valid(0) && !dlx_shm_n_entries_is_valid(128));
    ck_assert(!dlx_shm_n_entries_is_valid(257) && !dlx_shm_n_entries_is_valid(16384));
}

int main(void)
{
    return dlx_test_run_case(tcase_create("entry"));
}
