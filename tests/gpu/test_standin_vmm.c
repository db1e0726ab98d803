/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in driver keeps the rules of the real one: virtual memory management. */
#include "tests/gpu/harness_gpu_machine.h"

#if DLX_TEST_HAS_GPU

#define CHUNK DLX_TEST_GPU_CHUNK
#define POSIX CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

TEST(vmm_needs_no_context)
{
    CUmemGenericAllocationHandle imported;
    int fd;
    CU_OK(cu.cuInit(0));
    CUmemGenericAllocationHandle handle = dlx_test_gpu_create(CHUNK);
    CU_OK(cu.cuMemExportToShareableHandle(&fd, handle, POSIX, 0));
    ck_assert_int_eq(standin.standin_open_fds(), 1);
    CU_OK(cu.cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd, POSIX));
    (void)close(fd);
    CUdeviceptr a = dlx_test_gpu_map(handle, CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CUdeviceptr b = dlx_test_gpu_map(imported, CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READ);
    ck_assert_uint_eq(standin.standin_count(STANDIN_CONTEXTS_MADE), 0);

    (void)dlx_test_gpu_context(0);
    CU_OK(cu.cuMemsetD32(a + CHUNK - 4, 42, 1));
    ck_assert_uint_eq(dlx_test_gpu_word(b + CHUNK - 4), 42); /* the same memory */
    CU_OK(cu.cuMemRelease(handle));
    CU_OK(cu.cuMemRelease(imported)); /* mappings keep it */
    (void)dlx_test_gpu_word(b);
    dlx_test_gpu_unmap(a, CHUNK);
    dlx_test_gpu_unmap(b, CHUNK);
}

TEST(vmm_sizes_are_whole_chunks)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = dlx_test_gpu_prop(0);
    CUdeviceptr address;
    size_t granularity;
    CU_OK(cu.cuInit(0));
    CU_OK(cu.cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    ck_assert_uint_eq(granularity, CHUNK);
    CU_FAILS(cu.cuMemCreate(&handle, 4096, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    CU_FAILS(cu.cuMemCreate(&handle, 0, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    CU_FAILS(cu.cuMemAddressReserve(&address, 4096, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    prop.location.id = 2;
    CU_FAILS(cu.cuMemCreate(&handle, CHUNK, &prop, 0), CUDA_ERROR_INVALID_DEVICE);
}

/* Two chunks of memory, in four of addresses. */
TEST(vmm_mappings_are_whole_and_apart)
{
    static const struct {
        size_t at, size, offset;
    } refused[] = {{0, CHUNK, 0},
                   {0, CHUNK, CHUNK},
                   {0, 2 * CHUNK, CHUNK},
                   {0, 4 * CHUNK, 0},
                   {4096, 2 * CHUNK, 0},
                   {3 * CHUNK, 2 * CHUNK, 0},
                   {CHUNK, 2 * CHUNK, 0},
                   {0, 2 * CHUNK, 0}, /* from here on since it is mapped */
                   {2 * CHUNK, 2 * CHUNK, 0}};
    const size_t n_before = 6;
    CUmemAccessDesc access = dlx_test_gpu_access(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CUdeviceptr base;
    CU_OK(cu.cuInit(0));
    CUmemGenericAllocationHandle handle = dlx_test_gpu_create(2 * CHUNK);
    CU_OK(cu.cuMemAddressReserve(&base, 4 * CHUNK, 0, 0, 0));
    CU_FAILS(cu.cuMemSetAccess(base, 2 * CHUNK, &access, 1), CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(refused); i++) {
        if (i == n_before)
            CU_OK(cu.cuMemMap(base + CHUNK, 2 * CHUNK, 0, handle, 0));
        CUresult result =
            cu.cuMemMap(base + refused[i].at, refused[i].size, refused[i].offset, handle, 0);
        ck_assert_msg(result == CUDA_ERROR_INVALID_VALUE, "row %zu: %d", i, (int)result);
    }
    CU_FAILS(cu.cuMemUnmap(base + CHUNK, CHUNK), CUDA_ERROR_INVALID_VALUE);
    CU_FAILS(cu.cuMemAddressFree(base, 4 * CHUNK), CUDA_ERROR_INVALID_VALUE);
    CU_OK(cu.cuMemUnmap(base + CHUNK, 2 * CHUNK));
    CU_FAILS(cu.cuMemAddressFree(base, CHUNK), CUDA_ERROR_INVALID_VALUE);
    CU_OK(cu.cuMemAddressFree(base, 4 * CHUNK));
    CU_OK(cu.cuMemRelease(handle));
    CU_FAILS(cu.cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
}

/* A file like that of exported memory, with its last page if it is to have a label. */
static int forge(int borrow_fd, const char *name, int seals, bool has_label)
{
    char label[4096] = {0};
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (has_label)
        ck_assert_int_eq(pread(borrow_fd, label, sizeof label, (off_t)CHUNK), sizeof label);
    ck_assert_int_eq(pwrite(fd, label, sizeof label, (off_t)CHUNK), sizeof label);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

TEST(vmm_fds_are_told_from_forged_ones)
{
    enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };
    static const struct {
        const char *name;
        int seals;
        bool has_label;
    } rows[] = {{"standin-memory", SEALS, true}, /* what the others differ from */
                {"something", SEALS, true},
                {"standin-memory", F_SEAL_SHRINK, true},
                {"standin-memory", SEALS, false}};
    CUmemGenericAllocationHandle copy;
    CUmemAllocationProp prop = dlx_test_gpu_prop(0);
    int fd;
    CU_OK(cu.cuInit(0));
    CUmemGenericAllocationHandle handle = dlx_test_gpu_create(CHUNK);
    CU_OK(cu.cuMemExportToShareableHandle(&fd, handle, POSIX, 0));
    for (size_t i = 0; i < DLX_ARRAY_SIZE(rows); i++) {
        int forged = forge(fd, rows[i].name, rows[i].seals, rows[i].has_label);
        CUresult result = cu.cuMemImportFromShareableHandle(&copy, (void *)(intptr_t)forged, POSIX);
        ck_assert_msg(result == (i == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE), "row %zu", i);
        (void)close(forged);
    }
    CU_FAILS(cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)-1, POSIX),
             CUDA_ERROR_INVALID_VALUE);
    (void)close(fd);
    CU_OK(cu.cuMemRelease(copy));
    CU_OK(cu.cuMemRelease(handle));
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    CU_OK(cu.cuMemCreate(&handle, CHUNK, &prop, 0));
    CU_FAILS(cu.cuMemExportToShareableHandle(&fd, handle, POSIX, 0), CUDA_ERROR_INVALID_VALUE);
    CU_OK(cu.cuMemRelease(handle));
}

static CUdeviceptr kernel_address;

static void store_one(void *arg)
{
    char *p = standin.standin_store(kernel_address, 1);
    (void)arg;
    if (p)
        *p = 1;
}

/* A kernel of the current device stores there, or fails. */
static void store_gives(CUdeviceptr at, CUresult code)
{
    kernel_address = at;
    CU_OK(standin.standin_launch(NULL, store_one, NULL));
    CU_FAILS(cu.cuCtxSynchronize(), code);
}

/* Memory of cuMemAlloc is its own device's; a mapping is those devices' that have access. */
TEST(another_device_needs_access)
{
    CUdeviceptr plain;
    CUmemAccessDesc access = dlx_test_gpu_access(1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CUcontext owner = dlx_test_gpu_context(0);
    CU_OK(cu.cuMemAlloc(&plain, 100));
    CUmemGenericAllocationHandle handle = dlx_test_gpu_create(CHUNK);
    CUdeviceptr mapped = dlx_test_gpu_map(handle, CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    (void)dlx_test_gpu_context(1);
    CU_OK(cu.cuMemSetAccess(mapped, CHUNK, &access, 1));
    store_gives(mapped, CUDA_SUCCESS);
    store_gives(plain, CUDA_ERROR_ILLEGAL_ADDRESS);
    CU_OK(cu.cuDevicePrimaryCtxRelease(1));

    (void)dlx_test_gpu_context(1);
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    CU_OK(cu.cuMemSetAccess(mapped, CHUNK, &access, 1));
    store_gives(mapped, CUDA_ERROR_ILLEGAL_ADDRESS); /* device 0 may still use it */
    CU_OK(cu.cuDevicePrimaryCtxRelease(1));
    CU_OK(cu.cuCtxSetCurrent(owner));
    CU_OK(cu.cuMemFree(plain));
    dlx_test_gpu_unmap(mapped, CHUNK);
    CU_OK(cu.cuMemRelease(handle));
}

#endif

GPU_MAIN(dlx_test_gpu_standin_case("memory"))
