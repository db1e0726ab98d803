/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/harness_gpu_machine.h"

#if DLX_TEST_HAS_GPU
#include "tests/harness/patience.h"

uint64_t dlx_test_gpu_n_freed_open;
uint64_t dlx_test_gpu_n_captures_broken;

static void setup(void)
{
    dlx_test_gpu_n_freed_open = 0;
    dlx_test_gpu_n_captures_broken = 0;
    dlx_test_gpu_machine(2);
    dlx_test_gpu_load();
    if (dlx_test_gpu_is_standin()) /* else it says which GPU may be used */
        ck_assert_int_eq(unsetenv("CUDA_VISIBLE_DEVICES"), 0);
}

static void teardown(void)
{
    dlx_test_gpu_machine_end();
    if (!dlx_test_gpu_is_standin()) {
        dlx_test_gpu_unchecked("what breaks the driver's rules without an error");
        return;
    }
    ck_assert_uint_eq(standin.standin_count(STANDIN_FREED_WHILE_OPEN), dlx_test_gpu_n_freed_open);
    ck_assert_uint_eq(standin.standin_count(STANDIN_USED_AFTER_REVOKE), 0);
    ck_assert_uint_eq(standin.standin_count(STANDIN_UNMAPPED_IN_USE), 0);
    ck_assert_uint_eq(standin.standin_count(STANDIN_UNMAPPED_REGISTERED), 0);
    ck_assert_uint_eq(standin.standin_count(STANDIN_CAPTURES_BROKEN),
                      dlx_test_gpu_n_captures_broken);
    ck_assert_uint_eq(standin.standin_count(STANDIN_CALLS_AFTER_FORK), 0);
}

TCase *dlx_test_gpu_case(const char *name)
{
    TCase *tc = tcase_create(name);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, dlx_test_gpu_timeout(2 * PATIENCE_S));
    return tc;
}

void dlx_test_gpu_fill(CUdeviceptr at, uint64_t size, uint32_t word)
{
    CU_OK(cu.cuMemsetD32(at, word, size / 4));
    CU_OK(cu.cuCtxSynchronize());
}

uint32_t dlx_test_gpu_word(CUdeviceptr at)
{
    uint32_t word;
    CU_OK(cu.cuMemcpyDtoH(&word, at, sizeof word));
    return word;
}

void dlx_test_gpu_end_capture(CUstream stream)
{
    CUgraph graph;
    CUstreamCaptureStatus status;
    CU_OK(cu.cuStreamIsCapturing(stream, &status));
    ck_assert_int_eq(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CU_OK(cu.cuStreamEndCapture(stream, &graph));
    CU_OK(cu.cuGraphDestroy(graph));
}

static CUmemAllocationProp prop_of(CUmemAllocationHandleType type)
{
    CUmemAllocationProp prop = dlx_test_gpu_prop(0);
    prop.requestedHandleTypes = type;
    return prop;
}

static void map(CUdeviceptr at, uint64_t size, CUmemGenericAllocationHandle handle)
{
    CUmemAccessDesc desc = dlx_test_gpu_access(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CU_OK(cu.cuMemMap(at, size, 0, handle, 0));
    CU_OK(cu.cuMemSetAccess(at, size, &desc, 1));
}

void dlx_test_gpu_segment_make(struct dlx_test_gpu_segment *ret, uint32_t n, uint64_t chunk_size,
                               CUmemAllocationHandleType type)
{
    CUmemAllocationProp prop = prop_of(type);
    ck_assert_uint_le(n, DLX_ARRAY_SIZE(ret->handles));
    ret->n = n;
    ret->chunk_size = chunk_size;
    ret->reserved = (uint64_t)8 * n * chunk_size;
    CU_OK(cu.cuMemAddressReserve(&ret->base, ret->reserved, 0, 0, 0));
    for (uint32_t i = 0; i < n; i++) {
        CU_OK(cu.cuMemCreate(&ret->handles[i], chunk_size, &prop, 0));
        map(ret->base + i * chunk_size, chunk_size, ret->handles[i]);
    }
}

void dlx_test_gpu_segment_remap(struct dlx_test_gpu_segment *segment, uint32_t i)
{
    CUmemAllocationProp prop = prop_of(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUdeviceptr at = segment->base + i * segment->chunk_size;
    CU_OK(cu.cuMemUnmap(at, segment->chunk_size));
    CU_OK(cu.cuMemRelease(segment->handles[i]));
    CU_OK(cu.cuMemCreate(&segment->handles[i], segment->chunk_size, &prop, 0));
    map(at, segment->chunk_size, segment->handles[i]);
}

void dlx_test_gpu_segment_free(struct dlx_test_gpu_segment *segment)
{
    for (uint32_t i = 0; i < segment->n; i++) {
        CU_OK(cu.cuMemUnmap(segment->base + i * segment->chunk_size, segment->chunk_size));
        CU_OK(cu.cuMemRelease(segment->handles[i]));
    }
    CU_OK(cu.cuMemAddressFree(segment->base, segment->reserved));
}

CUdeviceptr dlx_test_gpu_pool_make(uint64_t size, CUmemAllocationHandleType type,
                                   CUmemoryPool *ret_pool)
{
    const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .handleTypes = type,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUdeviceptr at;
    CU_OK(cu.cuMemPoolCreate(ret_pool, &props));
    CU_OK(cu.cuMemAllocFromPoolAsync(&at, size, *ret_pool, NULL));
    CU_OK(cu.cuCtxSynchronize());
    return at;
}

void dlx_test_gpu_pool_free(CUmemoryPool pool, CUdeviceptr at)
{
    CU_OK(cu.cuMemFreeAsync(at, NULL));
    CU_OK(cu.cuCtxSynchronize());
    CU_OK(cu.cuMemPoolDestroy(pool));
}

struct dlx_test_gpu_state dlx_test_gpu_state_now(void)
{
    struct dlx_test_gpu_state now = {.n_fds = dlx_test_gpu_n_fds()};
    for (int i = 0; i <= STANDIN_LAST_LIVE && dlx_test_gpu_is_standin(); i++)
        now.counts[i] = standin.standin_count((enum standin_counter)i);
    now.n_free = dlx_test_gpu_free_memory();
    (void)cu.cuCtxGetCurrent(&now.current); /* NULL while the driver is not loaded */
    return now;
}

void dlx_test_gpu_state_check(const struct dlx_test_gpu_state *before)
{
    struct dlx_test_gpu_state now = dlx_test_gpu_state_now();
    for (int i = 0; i <= STANDIN_LAST_LIVE && dlx_test_gpu_is_standin(); i++)
        ck_assert_msg(now.counts[i] == before->counts[i], "%s: %llu before, now %llu",
                      standin.standin_count_name((enum standin_counter)i),
                      (unsigned long long)before->counts[i], (unsigned long long)now.counts[i]);
    dlx_test_gpu_check_n_fds(before->n_fds);
    ck_assert_ptr_eq(now.current, before->current);
    if (before->n_free > 0 && !dlx_test_gpu_is_standin())
        dlx_test_gpu_check_free_memory(before->n_free);
}

/* The functions that make or look. Those that give back are called on the way out, and cannot be
 * undone. */
static const char *const may_fail[] = {
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetUuid",
    "cuDevicePrimaryCtxRetain",
    "cuCtxPushCurrent",
    "cuPointerGetAttributes",
    "cuMemGetAllocationGranularity",
    "cuMemCreate",
    "cuMemRetainAllocationHandle",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
    "cuStreamCreate",
    "cuStreamSynchronize",
    "cuMemsetD32Async",
    "cuMemcpyDtoDAsync",
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle",
    "cuMemPoolExportToShareableHandle",
    "cuMemPoolImportFromShareableHandle",
    "cuMemPoolExportPointer",
    "cuMemPoolImportPointer",
    "cuMemPoolSetAccess",
};

uint32_t dlx_test_gpu_fail_each(int (*fn)(void), void (*undo)(void))
{
    struct dlx_test_gpu_state before = dlx_test_gpu_state_now();
    uint32_t n_failed = 0;
    for (size_t i = 0; i < DLX_ARRAY_SIZE(may_fail); i++) {
        for (uint64_t k = 1;; k++) {
            ck_assert(standin.standin_fail_here(may_fail[i], k, CUDA_ERROR_OUT_OF_MEMORY));
            int r = fn();
            bool has_failed = standin.standin_fail_clear() > 0;
            if (r >= 0)
                undo();
            dlx_test_gpu_state_check(&before);
            if (!has_failed)
                break;
            if (r == 1)
                continue;
            ck_assert_msg(r == DLX_E_NO_MEMORY, "%s %llu: %d", may_fail[i], (unsigned long long)k,
                          r);
            contains(dlx__error_message(), "CUDA_ERROR_OUT_OF_MEMORY");
            n_failed++;
        }
    }
    return n_failed;
}

#endif
