/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of cuMemCreate: our own, and the chunks that a framework mapped side by side. No context
 * need be current, but to write zeros. Each chunk is mapped whole, at its offset 0: the
 * driver takes nothing else.
 */
#include "common/amount.h"
#include "common/error.h"
#include "gpu/cuda_driver.h"
#include <dlpack/dlpack.h>
#include <string.h>

#define FD_HANDLE CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

/* Give back what `memory` has: the first `n_mapped` pieces are mapped. */
static void cuda_vmm_destroy(const struct dlx_cuda *cu, struct dlx_gpu_memory *memory,
                             uint32_t n_mapped)
{
    CUdeviceptr at = dlx__cuda_ptr(memory->base);
    for (uint32_t i = 0; i < n_mapped; i++) {
        (void)cu->cuMemUnmap(at, memory->pieces[i].size);
        at += memory->pieces[i].size;
    }
    if (memory->base && !memory->is_placed)
        (void)cu->cuMemAddressFree(dlx__cuda_ptr(memory->base), memory->size);
    for (uint32_t i = 0; i < memory->n_pieces; i++) {
        if (memory->pieces[i].identity != 0)
            (void)cu->cuMemRelease(memory->pieces[i].identity);
    }
    free(memory->pieces);
    dlx__cuda_drop_context(cu, memory);
    *memory = (struct dlx_gpu_memory){0};
}

static int reserve(const struct dlx_cuda *cu, uint64_t size, void **ret)
{
    CUdeviceptr va;
    CUresult result = cu->cuMemAddressReserve(&va, size, 0, 0, 0);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "cuMemAddressReserve of %llu bytes",
                              (unsigned long long)size);
    *ret = (void *)(uintptr_t)va;
    return 0;
}

static int cuda_vmm_reserve(uint64_t size, void **ret)
{
    const struct dlx_cuda *cu;
    int r = dlx__cuda(&cu);
    return r < 0 ? r : reserve(cu, size, ret);
}

static void cuda_vmm_unreserve(void *at, uint64_t size)
{
    const struct dlx_cuda *cu;
    if (dlx__cuda(&cu) == 0)
        (void)cu->cuMemAddressFree(dlx__cuda_ptr(at), size);
}

static int allow(const struct dlx_cuda *cu, const struct dlx_gpu_memory *memory, int32_t device,
                 enum dlx_gpu_access access)
{
    CUmemAccessDesc desc = dlx__cuda_access(device, access);
    CUresult result = cu->cuMemSetAccess(dlx__cuda_ptr(memory->base), memory->size, &desc, 1);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "cuMemSetAccess for CUDA device %d", device);
    return 0;
}

/* The zeros are written on a new stream, so they neither wait for other work of the process nor
 * delay it. */
static int cuda_vmm_clear(struct dlx_gpu_memory *memory)
{
    const struct dlx_cuda *cu;
    struct dlx_cuda_scope scope;
    CUstream stream;
    int r = dlx__cuda(&cu);
    if (r == 0)
        r = dlx__cuda_enter(cu, memory->device, &scope);
    if (r < 0)
        return r;
    CUresult result = cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS) {
        result = cu->cuMemsetD32Async(dlx__cuda_ptr(memory->base), 0, memory->size / 4, stream);
        bool is_queued = result == CUDA_SUCCESS;
        if (is_queued)
            result = cu->cuStreamSynchronize(stream);
        if (is_queued && result != CUDA_SUCCESS) /* it may still run: the memory is unmapped next */
            (void)cu->cuStreamSynchronize(stream);
        (void)cu->cuStreamDestroy(stream);
    }
    if (result == CUDA_SUCCESS) {
        dlx__cuda_leave_for(&scope, memory);
        return 0;
    }
    dlx__cuda_leave(&scope);
    return dlx__cuda_fail(cu, result, "cannot clear %llu bytes on CUDA device %d",
                          (unsigned long long)memory->size, memory->device);
}

/* Whether memory of the device can be marked for GPUDirect RDMA: network cards reach no other one
 * of cuMemCreate, and NIXL and UCX could not register it. */
static bool may_mark_for_rdma(const struct dlx_cuda *cu, CUdevice device)
{
    int is_supported = 0;
    CUresult result = cu->cuDeviceGetAttribute(
        &is_supported, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device);
    return result == CUDA_SUCCESS && is_supported;
}

/* Create whole pieces of at least `size` bytes. */
static CUresult create_pieces(const struct dlx_cuda *cu, const CUmemAllocationProp *prop,
                              uint64_t size, struct dlx_gpu_piece *ret)
{
    size_t granularity;
    uint64_t whole;
    CUmemGenericAllocationHandle handle;
    CUresult result =
        cu->cuMemGetAllocationGranularity(&granularity, prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (result != CUDA_SUCCESS)
        return result;
    if (!dlx__align_up(size, granularity, &whole))
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = cu->cuMemCreate(&handle, whole, prop, 0);
    if (result == CUDA_SUCCESS)
        *ret = (struct dlx_gpu_piece){.identity = handle, .size = whole};
    return result;
}

static int export_chunks(const struct dlx_gpu_memory *memory, struct dlx_gpu_handle *ret)
{
    const struct dlx_cuda *cu;
    int r = dlx__cuda(&cu);
    if (r == 0)
        r = dlx__gpu_handle_reserve(ret, memory->n_pieces);
    for (uint32_t i = 0; r == 0 && i < memory->n_pieces; i++) {
        int fd = -1;
        CUresult result =
            cu->cuMemExportToShareableHandle(&fd, memory->pieces[i].identity, FD_HANDLE, 0);
        if (result != CUDA_SUCCESS) {
            r = dlx__cuda_fail(cu, result, "cuMemExportToShareableHandle of chunk %u of %u", i + 1,
                               memory->n_pieces);
            dlx__gpu_handle_deinit(ret);
            break;
        }
        dlx__cuda_cloexec(fd);
        ret->chunks[i] = (struct dlx_gpu_chunk){.size = memory->pieces[i].size, .fd = fd};
    }
    return r;
}

/* Create the one piece of our own memory. */
static int create_piece(const struct dlx_cuda *cu, int32_t device, uint64_t size,
                        struct dlx_gpu_piece *ret)
{
    CUmemAllocationProp prop;
    CUdevice of;
    int r = dlx__cuda_device(cu, device, &of);
    if (r < 0)
        return r;
    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    prop.requestedHandleTypes = FD_HANDLE;
    prop.allocFlags.gpuDirectRDMACapable = may_mark_for_rdma(cu, of);
    CUresult result = create_pieces(cu, &prop, size, ret);
    if (prop.allocFlags.gpuDirectRDMACapable && result != CUDA_SUCCESS &&
        result != CUDA_ERROR_OUT_OF_MEMORY) { /* the mark is refused, and can be done without */
        prop.allocFlags.gpuDirectRDMACapable = 0;
        result = create_pieces(cu, &prop, size, ret);
    }
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "cuMemCreate of %s on CUDA device %d", DLX_AMOUNT(size),
                              device);
    return 0;
}

/* The descriptor keeps the memory. */
static int cuda_vmm_create(int32_t device, uint64_t size, struct dlx_gpu_handle *ret)
{
    const struct dlx_cuda *cu;
    struct dlx_gpu_piece piece = {0};
    struct dlx_gpu_handle handle = {.kind = DLX_GPU_CUDA_VMM};
    int r = dlx__cuda(&cu);
    if (r == 0)
        r = create_piece(cu, device, size, &piece);
    if (r < 0)
        return r;
    const struct dlx_gpu_memory memory = {.n_pieces = 1, .pieces = &piece};
    r = export_chunks(&memory, &handle);
    (void)cu->cuMemRelease(piece.identity);
    if (r < 0)
        return r;
    handle.size = piece.size;
    handle.n_received = handle.n_chunks;
    *ret = handle;
    return 0;
}

/* The mapping keeps the memory, so its handle is no longer needed. */
static int map_chunk(const struct dlx_cuda *cu, CUdeviceptr at, const struct dlx_gpu_chunk *chunk)
{
    CUmemGenericAllocationHandle handle;
    CUresult result =
        cu->cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)chunk->fd, FD_HANDLE);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "cuMemImportFromShareableHandle");
    result = cu->cuMemMap(at, chunk->size, 0, handle, 0);
    (void)cu->cuMemRelease(handle);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "cuMemMap of %llu bytes",
                              (unsigned long long)chunk->size);
    return 0;
}

static int open_chunks(const struct dlx_gpu_handle *handle, int32_t home, int32_t device,
                       enum dlx_gpu_access access, void *at, struct dlx_gpu_memory *ret)
{
    const struct dlx_cuda *cu;
    struct dlx_gpu_memory memory = {.ops = &dlx__cuda_vmm_ops,
                                    .device = device,
                                    .is_placed = at != NULL,
                                    .base = at,
                                    .size = handle->size};
    uint32_t n_mapped = 0;
    uint64_t offset = 0;
    int r = dlx__cuda(&cu);
    if (r < 0)
        return r;
    r = dlx__gpu_memory_pieces(&memory, handle->n_chunks);
    if (r == 0 && !at)
        r = reserve(cu, memory.size, &memory.base);
    while (r == 0 && n_mapped < handle->n_chunks) {
        const struct dlx_gpu_chunk *chunk = &handle->chunks[n_mapped];
        r = map_chunk(cu, dlx__cuda_ptr(memory.base) + offset, chunk);
        if (r == 0) {
            memory.pieces[n_mapped++].size = chunk->size;
            offset += chunk->size;
        }
    }
    if (r == 0)
        r = allow(cu, &memory, device, access);
    if (r == 0 && home != device) /* copies between the two may run on either */
        r = allow(cu, &memory, home, access);
    if (r < 0)
        cuda_vmm_destroy(cu, &memory, n_mapped);
    else
        *ret = memory;
    return r;
}

static int cuda_vmm_allow_peers(const struct dlx_gpu_memory *memory)
{
    const struct dlx_cuda *cu;
    int n = 0;
    int r = dlx__cuda(&cu);
    if (r == 0 && cu->cuDeviceGetCount(&n) != CUDA_SUCCESS)
        n = 0; /* which device is asked for is checked before */
    for (int32_t peer = 0; r == 0 && peer < n; peer++) {
        bool can = false;
        if (peer != memory->device)
            r = dlx__cuda_can_access(peer, memory->device, &can);
        if (can)
            r = allow(cu, memory, peer, DLX_GPU_READ_WRITE);
    }
    return r;
}

static void close_chunks(struct dlx_gpu_memory *memory)
{
    const struct dlx_cuda *cu;
    if (dlx__cuda(&cu) == 0)
        cuda_vmm_destroy(cu, memory, memory->n_pieces);
}

/* The mappings belong to the framework; only the handles are this library's. */
static void cuda_vmm_forget(struct dlx_gpu_memory *memory)
{
    memory->base = NULL;
    const struct dlx_cuda *cu;
    if (dlx__cuda(&cu) == 0)
        cuda_vmm_destroy(cu, memory, 0);
}

const struct dlx_gpu_ops dlx__cuda_vmm_ops = {
    .kind = DLX_GPU_CUDA_VMM,
    .device_type = kDLCUDA,
    .export_pins = true,
    .import_stays = true,
    .create = cuda_vmm_create,
    .clear = cuda_vmm_clear,
    .export = export_chunks,
    .open = open_chunks,
    .reserve = cuda_vmm_reserve,
    .unreserve = cuda_vmm_unreserve,
    .allow_peers = cuda_vmm_allow_peers,
    .close = close_chunks,
    .forget = cuda_vmm_forget,
};
