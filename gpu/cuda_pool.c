/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a pool (cudaMallocAsync) that was made with a handle type: the pool's descriptor, and
 * 64 bytes that name the allocation in it. Importers have to free it before the exporter does, and
 * to open it once: the driver does not count (NVIDIA's bug 5570902, as cuda.core says, which
 * recognises an allocation by the 64 bytes, too).
 */
#include "common/error.h"
#include "gpu/cuda_driver.h"
#include <dlpack/dlpack.h>
#include <string.h>

#define FD_HANDLE CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

_Static_assert(sizeof(CUmemPoolPtrExportData) == sizeof(((struct dlx_gpu_handle *)0)->token),
               "token");

static int export_pointer(const struct dlx_gpu_memory *memory, struct dlx_gpu_handle *ret)
{
    const struct dlx_cuda *cu;
    CUmemPoolPtrExportData data;
    int fd = -1;
    int r = dlx__cuda(&cu);
    if (r == 0)
        r = dlx__gpu_handle_reserve(ret, 1);
    if (r < 0)
        return r;
    CUresult result = cu->cuMemPoolExportToShareableHandle(&fd, memory->pool, FD_HANDLE, 0);
    if (result == CUDA_SUCCESS) {
        dlx__cuda_cloexec(fd);
        ret->chunks[0] = (struct dlx_gpu_chunk){.size = memory->size, .fd = fd};
        result = cu->cuMemPoolExportPointer(&data, dlx__cuda_ptr(memory->base));
    }
    if (result != CUDA_SUCCESS) {
        dlx__gpu_handle_deinit(ret);
        return dlx__cuda_fail(cu, result, "cannot share memory of a CUDA memory pool");
    }
    memcpy(ret->token, &data, sizeof data);
    return 0;
}

/* Uses the current context. */
static CUresult import_pointer(const struct dlx_cuda *cu, const struct dlx_gpu_handle *handle,
                               int32_t home, struct dlx_gpu_memory *memory)
{
    CUmemoryPool pool;
    CUmemPoolPtrExportData data;
    CUdeviceptr at;
    CUmemAccessDesc desc = dlx__cuda_access(memory->device, DLX_GPU_READ_WRITE);
    memcpy(&data, handle->token, sizeof data);
    CUresult result = cu->cuMemPoolImportFromShareableHandle(
        &pool, (void *)(uintptr_t)handle->chunks[0].fd, FD_HANDLE, 0);
    if (result != CUDA_SUCCESS)
        return result;
    if (home != memory->device)
        result = cu->cuMemPoolSetAccess(pool, &desc, 1);
    if (result == CUDA_SUCCESS)
        result = cu->cuMemPoolImportPointer(&at, pool, &data);
    if (result != CUDA_SUCCESS) {
        (void)cu->cuMemPoolDestroy(pool);
        return result;
    }
    memory->pool = pool;
    memory->base = (void *)(uintptr_t)at;
    return CUDA_SUCCESS;
}

/* Uses the device's context. */
static void cuda_pool_release(const struct dlx_cuda *cu, const struct dlx_gpu_memory *memory)
{
    (void)cu->cuMemFree(dlx__cuda_ptr(memory->base));
    (void)cu->cuMemPoolDestroy(memory->pool);
}

static int open_pointer(const struct dlx_gpu_handle *handle, int32_t home, int32_t device,
                        enum dlx_gpu_access access, void *address, struct dlx_gpu_memory *ret)
{
    const struct dlx_cuda *cu;
    struct dlx_cuda_scope scope;
    struct dlx_gpu_memory memory = {
        .ops = &dlx__cuda_pool_ops, .device = device, .size = handle->size};
    (void)access, (void)address;
    int r = dlx__cuda(&cu);
    if (r == 0)
        r = dlx__cuda_enter(cu, device, &scope);
    if (r < 0)
        return r;
    CUresult result = import_pointer(cu, handle, home, &memory);
    if (result != CUDA_SUCCESS) {
        dlx__cuda_leave(&scope);
        return dlx__cuda_fail(cu, result, "cannot open memory of a CUDA memory pool");
    }
    r = dlx__cuda_check_size(cu, dlx__cuda_ptr(memory.base), handle->size);
    if (r < 0) {
        cuda_pool_release(cu, &memory);
        dlx__cuda_leave(&scope);
        return r;
    }
    dlx__cuda_leave_for(&scope, &memory);
    *ret = memory;
    return 0;
}

static void close_pointer(struct dlx_gpu_memory *memory)
{
    const struct dlx_cuda *cu;
    struct dlx_cuda_scope scope;
    if (dlx__cuda(&cu) == 0 && dlx__cuda_enter(cu, memory->device, &scope) == 0) {
        cuda_pool_release(cu, memory);
        dlx__cuda_leave(&scope);
        dlx__cuda_drop_context(cu, memory);
    }
    *memory = (struct dlx_gpu_memory){0};
}

static void cuda_pool_forget(struct dlx_gpu_memory *memory)
{
    free(memory->pieces);
    *memory = (struct dlx_gpu_memory){0};
}

const struct dlx_gpu_ops dlx__cuda_pool_ops = {
    .kind = DLX_GPU_CUDA_POOL,
    .device_type = kDLCUDA,
    .export_pins = true,
    .opens_once = true,
    .export = export_pointer,
    .open = open_pointer,
    .close = close_pointer,
    .forget = cuda_pool_forget,
};
