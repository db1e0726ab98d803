/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in driver keeps the rules of the real one: virtual memory management. */
#include "tests/gpu/harness_gpu.h"
#include "tests/harness/run.h"
#include <stdio.h>

#if DLX_TEST_HAS_GPU
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

TEST(vmm_needs_no_context)
{
    CUmemGenericAllocationHandle handle, imported;
    CUmemAllocationProp prop = dlx_test_gpu_prop(0);
    int fd;
    CU_OK(cu.cuInit(0));
    CU_OK(cu.cuMemCreate(&handle, DLX_TEST_GPU_CHUNK, &prop, 0));
    CU_OK(
        cu.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    ck_assert_int_eq(standin.standin_open_fds(), 1);
    CU_OK(cu.cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd,
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    (void)close(fd);
    CUdeviceptr a =
        dlx_test_gpu_map(handle, DLX_TEST_GPU_CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CUdeviceptr b = dlx_test_gpu_map(imported, DLX_TEST_GPU_CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READ);
    ck_assert_uint_eq(standin.standin_count(STANDIN_CONTEXTS_MADE), 0);

    (void)dlx_test_gpu_context(0);
    int value = 0;
    CU_OK(cu.cuMemsetD32(a + DLX_TEST_GPU_CHUNK - 4, 42, 1));
    CU_OK(cu.cuMemcpyDtoH(&value, b + DLX_TEST_GPU_CHUNK - 4, 4)); /* the same memory */
    ck_assert_int_eq(value, 42);
    CU_OK(cu.cuMemRelease(handle));
    CU_OK(cu.cuMemRelease(imported)); /* mappings keep it */
    CU_OK(cu.cuMemcpyDtoH(&value, b, 4));
    dlx_test_gpu_unmap(a, DLX_TEST_GPU_CHUNK);
    dlx_test_gpu_unmap(b, DLX_TEST_GPU_CHUNK);
    dlx_test_gpu_end_context(0);
}

TEST(vmm_sizes_and_offsets)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = dlx_test_gpu_prop(0);
    CUmemAccessDesc access = dlx_test_gpu_access(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CUdeviceptr address;
    size_t granularity;
    CU_OK(cu.cuInit(0));
    CU_OK(cu.cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    ck_assert_uint_eq(granularity, DLX_TEST_GPU_CHUNK);
    CU_FAILS(cu.cuMemCreate(&handle, 4096, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    CU_FAILS(cu.cuMemCreate(&handle, 0, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    CU_FAILS(cu.cuMemAddressReserve(&address, 4096, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    prop.location.id = 2;
    CU_FAILS(cu.cuMemCreate(&handle, DLX_TEST_GPU_CHUNK, &prop, 0), CUDA_ERROR_INVALID_DEVICE);
    prop.location.id = 0;

    CU_OK(cu.cuMemCreate(&handle, 2 * DLX_TEST_GPU_CHUNK, &prop, 0));
    CU_OK(cu.cuMemAddressReserve(&address, 4 * DLX_TEST_GPU_CHUNK, 0, 0, 0));
    CU_FAILS(cu.cuMemMap(address, DLX_TEST_GPU_CHUNK, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    CU_FAILS(cu.cuMemMap(address, DLX_TEST_GPU_CHUNK, DLX_TEST_GPU_CHUNK, handle, 0),
             CUDA_ERROR_INVALID_VALUE);
    CU_FAILS(cu.cuMemMap(address, 2 * DLX_TEST_GPU_CHUNK, DLX_TEST_GPU_CHUNK, handle, 0),
             CUDA_ERROR_INVALID_VALUE);
    CU_FAILS(cu.cuMemMap(address, 4 * DLX_TEST_GPU_CHUNK, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    CU_FAILS(cu.cuMemMap(address + 4096, 2 * DLX_TEST_GPU_CHUNK, 0, handle, 0),
             CUDA_ERROR_INVALID_VALUE);
    CU_FAILS(cu.cuMemMap(address + 3 * DLX_TEST_GPU_CHUNK, 2 * DLX_TEST_GPU_CHUNK, 0, handle, 0),
             CUDA_ERROR_INVALID_VALUE);
    CU_FAILS(cu.cuMemSetAccess(address, 2 * DLX_TEST_GPU_CHUNK, &access, 1),
             CUDA_ERROR_INVALID_VALUE);
    CU_OK(cu.cuMemMap(address + DLX_TEST_GPU_CHUNK, 2 * DLX_TEST_GPU_CHUNK, 0, handle, 0));
    CU_FAILS(cu.cuMemMap(address + DLX_TEST_GPU_CHUNK, 2 * DLX_TEST_GPU_CHUNK, 0, handle, 0),
             CUDA_ERROR_INVALID_VALUE);
    CU_FAILS(cu.cuMemMap(address, 2 * DLX_TEST_GPU_CHUNK, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    CU_FAILS(cu.cuMemMap(address + 2 * DLX_TEST_GPU_CHUNK, 2 * DLX_TEST_GPU_CHUNK, 0, handle, 0),
             CUDA_ERROR_INVALID_VALUE);
    CU_FAILS(cu.cuMemUnmap(address + DLX_TEST_GPU_CHUNK, DLX_TEST_GPU_CHUNK),
             CUDA_ERROR_INVALID_VALUE);
    CU_FAILS(cu.cuMemAddressFree(address, 4 * DLX_TEST_GPU_CHUNK), CUDA_ERROR_INVALID_VALUE);
    CU_OK(cu.cuMemUnmap(address + DLX_TEST_GPU_CHUNK, 2 * DLX_TEST_GPU_CHUNK));
    CU_FAILS(cu.cuMemAddressFree(address, DLX_TEST_GPU_CHUNK), CUDA_ERROR_INVALID_VALUE);
    CU_OK(cu.cuMemAddressFree(address, 4 * DLX_TEST_GPU_CHUNK));
    CU_OK(cu.cuMemRelease(handle));
    CU_FAILS(cu.cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
    dlx_test_gpu_clean();
}

TEST(vmm_access_is_kept)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = dlx_test_gpu_prop(0);
    CUdeviceptr address;
    unsigned long long flags;
    char byte = 1;
    (void)dlx_test_gpu_context(0);
    CU_OK(cu.cuMemCreate(&handle, DLX_TEST_GPU_CHUNK, &prop, 0));
    address = dlx_test_gpu_map(handle, DLX_TEST_GPU_CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READ);
    CU_OK(cu.cuMemGetAccess(&flags, &prop.location, address));
    ck_assert_uint_eq(flags, CU_MEM_ACCESS_FLAGS_PROT_READ);
    CU_OK(cu.cuMemcpyDtoH(&byte, address, 1));
    CU_FAILS(cu.cuMemcpyHtoD(address, &byte, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
    CU_FAILS(cu.cuMemcpyDtoH(&byte, address, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
    CU_OK(cu.cuDevicePrimaryCtxRelease(0));
    dlx_test_gpu_unmap(address, DLX_TEST_GPU_CHUNK); /* no context's, and it outlives them */
    CU_OK(cu.cuMemRelease(handle));
    dlx_test_gpu_clean();
}

TEST(vmm_retain_by_any_address)
{
    CUmemGenericAllocationHandle handle, again;
    CUmemAllocationProp prop = dlx_test_gpu_prop(0), found;
    CUdeviceptr plain;
    (void)dlx_test_gpu_context(0);
    CU_OK(cu.cuMemCreate(&handle, DLX_TEST_GPU_CHUNK, &prop, 0));
    CUdeviceptr address =
        dlx_test_gpu_map(handle, DLX_TEST_GPU_CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CU_OK(cu.cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(address + 12345)));
    ck_assert_uint_eq(again, handle);
    CU_OK(cu.cuMemRelease(handle));
    CU_OK(cu.cuMemGetAllocationPropertiesFromHandle(&found, again));
    ck_assert_int_eq(found.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CU_OK(cu.cuMemRelease(again));
    dlx_test_gpu_unmap(address, DLX_TEST_GPU_CHUNK);
    CU_OK(cu.cuMemAlloc(&plain, DLX_TEST_GPU_CHUNK));
    CU_FAILS(cu.cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)plain),
             CUDA_ERROR_INVALID_VALUE);
    CU_OK(cu.cuMemFree(plain));
    dlx_test_gpu_end_context(0);
}

TEST(vmm_fds_that_are_not_memory)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = dlx_test_gpu_prop(0);
    const CUmemAllocationHandleType posix = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    int fd = memfd_create("standin-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_eq(ftruncate(fd, (off_t)(DLX_TEST_GPU_CHUNK + 4096)), 0);
    CU_OK(cu.cuInit(0));
    CU_FAILS(cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, posix),
             CUDA_ERROR_INVALID_VALUE);
    CU_FAILS(cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)-1, posix),
             CUDA_ERROR_INVALID_VALUE);
    CU_FAILS(cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)0, posix),
             CUDA_ERROR_INVALID_VALUE);
    (void)close(fd);
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    CU_OK(cu.cuMemCreate(&handle, DLX_TEST_GPU_CHUNK, &prop, 0));
    CU_FAILS(cu.cuMemExportToShareableHandle(&fd, handle, posix, 0), CUDA_ERROR_INVALID_VALUE);
    CU_OK(cu.cuMemRelease(handle));
    dlx_test_gpu_clean();
}

static void import_fails(int take_fd)
{
    CUmemGenericAllocationHandle handle;
    CU_FAILS(cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)take_fd,
                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
             CUDA_ERROR_INVALID_VALUE);
    (void)close(take_fd);
}

/* A file with all the bytes of exported memory. */
static int forge(int borrow_fd, const char *name, int seals)
{
    const off_t size = (off_t)(DLX_TEST_GPU_CHUNK + 4096);
    char label[4096];
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_eq(ftruncate(fd, size), 0);
    ck_assert_int_eq(pread(borrow_fd, label, sizeof label, (off_t)DLX_TEST_GPU_CHUNK),
                     (ssize_t)sizeof label);
    ck_assert_int_eq(pwrite(fd, label, sizeof label, (off_t)DLX_TEST_GPU_CHUNK),
                     (ssize_t)sizeof label);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

TEST(vmm_fds_that_are_forged)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    CUmemGenericAllocationHandle handle, copy;
    CUmemAllocationProp prop = dlx_test_gpu_prop(0);
    int fd, good;
    CU_OK(cu.cuInit(0));
    CU_OK(cu.cuMemCreate(&handle, DLX_TEST_GPU_CHUNK, &prop, 0));
    CU_OK(
        cu.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    import_fails(forge(fd, "something", seals));
    import_fails(forge(fd, "standin-memory", F_SEAL_SHRINK));
    good = forge(fd, "standin-memory", seals); /* what the above differ from */
    CU_OK(cu.cuMemImportFromShareableHandle(&copy, (void *)(intptr_t)good,
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    (void)close(good);
    (void)close(fd);
    CU_OK(cu.cuMemRelease(copy));
    CU_OK(cu.cuMemRelease(handle));
    dlx_test_gpu_clean();
}

/* -- two devices ----------------------------------------------------------------------------- */

static CUdeviceptr kernel_address;

static void store_one(void *arg)
{
    char *p = standin.standin_store(kernel_address, 1);
    (void)arg;
    if (p)
        *p = 1;
}

TEST(peers_need_access)
{
    CUdeviceptr plain;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = dlx_test_gpu_prop(0);
    CUmemAccessDesc access = dlx_test_gpu_access(1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    int can;
    CUcontext owner = dlx_test_gpu_context(0);
    CU_OK(cu.cuDeviceCanAccessPeer(&can, 1, 0));
    ck_assert_int_eq(can, 1);
    CU_OK(cu.cuMemAlloc(&plain, 100));
    CU_OK(cu.cuMemCreate(&handle, DLX_TEST_GPU_CHUNK, &prop, 0));
    CUdeviceptr mapped =
        dlx_test_gpu_map(handle, DLX_TEST_GPU_CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

    (void)dlx_test_gpu_context(1);
    CU_OK(cu.cuCtxEnablePeerAccess(owner, 0));
    CU_FAILS(cu.cuCtxEnablePeerAccess(owner, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    CU_OK(cu.cuMemSetAccess(mapped, DLX_TEST_GPU_CHUNK, &access, 1));
    kernel_address = plain;
    CU_OK(standin.standin_launch(NULL, store_one, NULL));
    CU_OK(cu.cuCtxSynchronize());
    kernel_address = mapped;
    CU_OK(standin.standin_launch(NULL, store_one, NULL));
    CU_OK(cu.cuCtxSynchronize());
    CU_OK(cu.cuCtxDisablePeerAccess(owner));
    kernel_address = plain;
    CU_OK(standin.standin_launch(NULL, store_one, NULL));
    CU_FAILS(cu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    CU_OK(cu.cuDevicePrimaryCtxRelease(1));

    (void)dlx_test_gpu_context(1);
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    CU_OK(cu.cuMemSetAccess(mapped, DLX_TEST_GPU_CHUNK, &access, 1));
    kernel_address = mapped; /* device 0 may still use it */
    CU_OK(standin.standin_launch(NULL, store_one, NULL));
    CU_FAILS(cu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    CU_OK(cu.cuDevicePrimaryCtxRelease(1));
    CU_OK(cu.cuCtxSetCurrent(owner));
    CU_OK(cu.cuMemFree(plain));
    dlx_test_gpu_unmap(mapped, DLX_TEST_GPU_CHUNK);
    CU_OK(cu.cuMemRelease(handle));
    dlx_test_gpu_end_context(0);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_gpu_standin_case("memory"));
}

#else

DLX_TEST_GPU_SKIP_MAIN("the stand-in for NVIDIA's driver was not built")

#endif
