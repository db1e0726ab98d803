/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both kinds of HIP memory. The handle of hipMalloc memory opens at the base of its allocation.
 * That of hipMemCreate memory works as CUDA's does (gpu/cuda_vmm.c), with one chunk.
 */
#include "common/amount.h"
#include "common/error.h"
#include "gpu/hip_runtime.h"
#include <dlpack/dlpack.h>
#include <fcntl.h>
#include <string.h>

#define FD_HANDLE hipMemHandleTypePosixFileDescriptor

_Static_assert(sizeof(hipIpcMemHandle_t) == sizeof(((struct dlx_gpu_handle *)0)->token), "token");

/* The runtime does not say before which memory it exports: here it refuses what is of a pool, or of
 * hipMemCreate without a type of handle. */
static int fail_export(const struct dlx_hip *hip, hipError_t error, const char *call)
{
    int r = dlx__hip_fail(hip, error, "%s", call);
    switch (error) {
    case hipErrorInvalidValue:
    case hipErrorInvalidDevicePointer:
    case hipErrorMapFailed:
    case hipErrorInvalidHandle:
    case hipErrorNotSupported:
        return dlx__fail_prefix(DLX_E_DEVICE, "this memory cannot be shared between processes, as "
                                              "that of pools and what was created without a type "
                                              "of handle (`stage` copies it)");
    default:
        return r;
    }
}

/* ---- hip_ipc ------------------------------------------------------------------------------- */

static int export_ipc(const struct dlx_gpu_memory *memory, struct dlx_gpu_handle *ret)
{
    const struct dlx_hip *hip;
    hipIpcMemHandle_t ipc;
    struct dlx_hip_scope before;
    int r = dlx__hip(&hip);
    if (r < 0)
        return r;
    dlx__hip_lock();
    r = dlx__hip_enter(hip, memory->device, &before);
    if (r == 0) {
        hipError_t error = hip->hipIpcGetMemHandle(&ipc, memory->base);
        dlx__hip_leave(hip, &before);
        if (error != hipSuccess)
            r = fail_export(hip, error, "hipIpcGetMemHandle");
        else
            memcpy(ret->token, &ipc, sizeof ipc);
    }
    dlx__hip_unlock();
    return r;
}

/* If the runtime says how many bytes the memory has, they are as many as its publisher says. */
static int hip_memory_check_size(const struct dlx_hip *hip, const void *base, uint64_t size)
{
    hipPointer_attribute which[] = {HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                    HIP_POINTER_ATTRIBUTE_RANGE_SIZE};
    uint64_t at = (uintptr_t)base, start = 0, range = 0;
    void *data[] = {&start, &range};
    hipError_t error = hip->hipDrvPointerGetAttributes(DLX_ARRAY_SIZE(which), which, data,
                                                       (hipDeviceptr_t)(uintptr_t)base);
    if (error != hipSuccess)
        return dlx__hip_fail(hip, error, "hipDrvPointerGetAttributes");
    uint64_t left = at >= start && at - start < range ? range - (at - start) : 0;
    if (range != 0 && left < size)
        return dlx__fail(DLX_E_PROTOCOL, "the publisher says %llu bytes, and there are %llu",
                         (unsigned long long)size, (unsigned long long)left);
    return 0;
}

static int open_ipc(const struct dlx_gpu_handle *handle, int32_t home, int32_t device,
                    enum dlx_gpu_access access, void *at, struct dlx_gpu_memory *ret)
{
    const struct dlx_hip *hip;
    hipIpcMemHandle_t ipc;
    void *base;
    (void)home, (void)access, (void)at;
    struct dlx_hip_scope before;
    int r = dlx__hip(&hip);
    if (r < 0)
        return r;
    memcpy(&ipc, handle->token, sizeof ipc);
    dlx__hip_lock();
    r = dlx__hip_enter(hip, device, &before);
    if (r == 0) {
        hipError_t error = hip->hipIpcOpenMemHandle(&base, ipc, hipIpcMemLazyEnablePeerAccess);
        r = error == hipSuccess
                ? hip_memory_check_size(hip, base, handle->size)
                : dlx__hip_fail(hip, error, "hipIpcOpenMemHandle on HIP device %d", device);
        if (error == hipSuccess && r < 0)
            (void)hip->hipIpcCloseMemHandle(base);
        else if (r == 0)
            *ret = (struct dlx_gpu_memory){
                .ops = &dlx__hip_ipc_ops, .device = device, .base = base, .size = handle->size};
        dlx__hip_leave(hip, &before);
    }
    dlx__hip_unlock();
    return r;
}

static void close_ipc(struct dlx_gpu_memory *memory)
{
    const struct dlx_hip *hip;
    struct dlx_hip_scope before;
    dlx__hip_lock();
    if (dlx__hip(&hip) == 0 && dlx__hip_enter(hip, memory->device, &before) == 0) {
        (void)hip->hipIpcCloseMemHandle(memory->base);
        dlx__hip_leave(hip, &before);
    }
    dlx__hip_unlock();
    *memory = (struct dlx_gpu_memory){0};
}

static void forget_ipc(struct dlx_gpu_memory *memory)
{
    free(memory->pieces);
    *memory = (struct dlx_gpu_memory){0};
}

const struct dlx_gpu_ops dlx__hip_ipc_ops = {
    .kind = DLX_GPU_HIP_IPC,
    .device_type = kDLROCM,
    .export = export_ipc,
    .open = open_ipc,
    .close = close_ipc,
    .forget = forget_ipc,
};

/* ---- hip_vmm ------------------------------------------------------------------------------- */

/* The caller holds the lock. Unmap the memory if `is_mapped`; give back the addresses and the
 * handle. */
static void hip_memory_destroy(const struct dlx_hip *hip, struct dlx_gpu_memory *memory,
                               bool is_mapped)
{
    if (is_mapped)
        (void)hip->hipMemUnmap(memory->base, memory->size);
    if (memory->base && !memory->is_placed)
        (void)hip->hipMemAddressFree(memory->base, memory->size);
    for (uint32_t i = 0; i < memory->n_pieces; i++) {
        if (memory->pieces[i].identity != 0)
            (void)hip->hipMemRelease(
                (hipMemGenericAllocationHandle_t)(uintptr_t)memory->pieces[i].identity);
    }
    free(memory->pieces);
    *memory = (struct dlx_gpu_memory){0};
}

static hipMemAccessDesc access_of(int32_t device, enum dlx_gpu_access access)
{
    hipMemAccessDesc desc;
    memset(&desc, 0, sizeof desc);
    desc.location.type = hipMemLocationTypeDevice;
    desc.location.id = device;
    desc.flags =
        access == DLX_GPU_READ ? hipMemAccessFlagsProtRead : hipMemAccessFlagsProtReadWrite;
    return desc;
}

/* The caller holds the lock. */
static int reserve_for(const struct dlx_hip *hip, uint64_t size, void **ret)
{
    void *at;
    hipError_t error = hip->hipMemAddressReserve(&at, size, 0, NULL, 0);
    if (error != hipSuccess)
        return dlx__hip_fail(hip, error, "hipMemAddressReserve of %llu bytes",
                             (unsigned long long)size);
    *ret = at;
    return 0;
}

static int hip_memory_reserve(uint64_t size, void **ret)
{
    const struct dlx_hip *hip;
    int r = dlx__hip(&hip);
    if (r < 0)
        return r;
    dlx__hip_lock();
    r = reserve_for(hip, size, ret);
    dlx__hip_unlock();
    return r;
}

static void hip_memory_unreserve(void *at, uint64_t size)
{
    const struct dlx_hip *hip;
    dlx__hip_lock();
    if (dlx__hip(&hip) == 0)
        (void)hip->hipMemAddressFree(at, size);
    dlx__hip_unlock();
}

/* The caller holds the lock. Map the only piece and let `device` use it, and `home`, the GPU that
 * has it. On failure only the addresses are left. */
static int map(const struct dlx_hip *hip, struct dlx_gpu_memory *memory, int32_t home,
               enum dlx_gpu_access access)
{
    hipMemAccessDesc desc[] = {access_of(memory->device, access), access_of(home, access)};
    int r = memory->is_placed ? 0 : reserve_for(hip, memory->size, &memory->base);
    if (r < 0)
        return r;
    hipError_t error =
        hip->hipMemMap(memory->base, memory->size, 0,
                       (hipMemGenericAllocationHandle_t)(uintptr_t)memory->pieces[0].identity, 0);
    if (error != hipSuccess)
        return dlx__hip_fail(hip, error, "hipMemMap");
    error = hip->hipMemSetAccess(memory->base, memory->size, desc, home == memory->device ? 1 : 2);
    if (error != hipSuccess) {
        (void)hip->hipMemUnmap(memory->base, memory->size);
        return dlx__hip_fail(hip, error, "hipMemSetAccess for HIP device %d", memory->device);
    }
    return 0;
}

static int clear_vmm(struct dlx_gpu_memory *memory)
{
    const struct dlx_hip *hip;
    hipStream_t stream;
    struct dlx_hip_scope before;
    int r = dlx__hip(&hip);
    if (r < 0)
        return r;
    dlx__hip_lock();
    r = dlx__hip_enter(hip, memory->device, &before);
    if (r == 0) {
        hipError_t error = hip->hipStreamCreateWithFlags(&stream, hipStreamNonBlocking);
        if (error == hipSuccess) {
            error = hip->hipMemsetD32Async(memory->base, 0, memory->size / 4, stream);
            bool is_queued = error == hipSuccess;
            if (is_queued)
                error = hip->hipStreamSynchronize(stream);
            /* It may still run, and the memory is unmapped next. */
            if (is_queued && error != hipSuccess)
                (void)hip->hipStreamSynchronize(stream);
            (void)hip->hipStreamDestroy(stream);
        }
        dlx__hip_leave(hip, &before);
        if (error != hipSuccess)
            r = dlx__hip_fail(hip, error, "cannot clear memory of HIP device %d", memory->device);
    }
    dlx__hip_unlock();
    return r;
}

/* The caller holds the lock. The members of hipMemAllocationProp changed between versions. */
static int hip_memory_create(const struct dlx_hip *hip, int32_t device, uint64_t size,
                             struct dlx_gpu_piece *ret)
{
    hipMemAllocationProp prop;
    size_t granularity;
    uint64_t whole;
    hipMemGenericAllocationHandle_t handle;
    int built_for = HIP_VERSION_MAJOR * 100 + HIP_VERSION_MINOR;
    if (hip->version / 100000 != built_for)
        return dlx__fail(DLX_E_DEVICE,
                         "this libdlx was built for HIP %d.%d and cannot allocate with HIP %d.%d",
                         HIP_VERSION_MAJOR, HIP_VERSION_MINOR, hip->version / 10000000,
                         hip->version / 100000 % 100);
    memset(&prop, 0, sizeof prop);
    prop.type = hipMemAllocationTypePinned;
    prop.location.type = hipMemLocationTypeDevice;
    prop.location.id = device;
    prop.requestedHandleType = FD_HANDLE;
    hipError_t error = hip->hipMemGetAllocationGranularity(&granularity, &prop,
                                                           hipMemAllocationGranularityMinimum);
    if (error != hipSuccess)
        return dlx__hip_fail(hip, error, "HIP device %d has no memory that can be shared", device);
    if (!dlx__align_up(size, granularity, &whole))
        return dlx__fail(DLX_E_NO_MEMORY, "too many bytes");
    error = hip->hipMemCreate(&handle, whole, &prop, 0);
    if (error != hipSuccess)
        return dlx__hip_fail(hip, error, "hipMemCreate of %s on HIP device %d", DLX_AMOUNT(size),
                             device);
    *ret = (struct dlx_gpu_piece){.identity = (uintptr_t)handle, .size = whole};
    return 0;
}

/* The caller holds the lock. */
static hipError_t export_piece(const struct dlx_hip *hip, const struct dlx_gpu_piece *piece,
                               struct dlx_gpu_chunk *ret)
{
    int fd = -1;
    hipError_t error = hip->hipMemExportToShareableHandle(
        &fd, (hipMemGenericAllocationHandle_t)(uintptr_t)piece->identity, FD_HANDLE, 0);
    if (error == hipSuccess) {
        (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
        *ret = (struct dlx_gpu_chunk){.size = piece->size, .fd = fd};
    }
    return error;
}

/* The descriptor keeps the memory. */
static int create_vmm(int32_t device, uint64_t size, struct dlx_gpu_handle *ret)
{
    const struct dlx_hip *hip;
    struct dlx_gpu_piece piece = {0};
    struct dlx_gpu_handle handle = {.kind = DLX_GPU_HIP_VMM};
    int r = dlx__hip(&hip);
    if (r == 0)
        r = dlx__gpu_handle_reserve(&handle, 1);
    if (r < 0)
        return r;
    dlx__hip_lock();
    r = hip_memory_create(hip, device, size, &piece);
    if (r == 0) {
        hipError_t error = export_piece(hip, &piece, &handle.chunks[0]);
        if (error != hipSuccess)
            r = dlx__hip_fail(hip, error, "hipMemExportToShareableHandle");
        (void)hip->hipMemRelease((hipMemGenericAllocationHandle_t)(uintptr_t)piece.identity);
    }
    dlx__hip_unlock();
    if (r < 0) {
        dlx__gpu_handle_deinit(&handle);
        return r;
    }
    handle.size = piece.size;
    handle.n_received = handle.n_chunks;
    *ret = handle;
    return 0;
}

static int export_vmm(const struct dlx_gpu_memory *memory, struct dlx_gpu_handle *ret)
{
    const struct dlx_hip *hip;
    int r = dlx__hip(&hip);
    if (r == 0)
        r = dlx__gpu_handle_reserve(ret, 1);
    if (r < 0)
        return r;
    dlx__hip_lock();
    hipError_t error = export_piece(hip, &memory->pieces[0], &ret->chunks[0]);
    dlx__hip_unlock();
    if (error == hipSuccess)
        return 0;
    dlx__gpu_handle_deinit(ret);
    return fail_export(hip, error, "hipMemExportToShareableHandle");
}

static int open_vmm(const struct dlx_gpu_handle *handle, int32_t home, int32_t device,
                    enum dlx_gpu_access access, void *at, struct dlx_gpu_memory *ret)
{
    const struct dlx_hip *hip;
    struct dlx_gpu_memory memory = {.ops = &dlx__hip_vmm_ops,
                                    .device = device,
                                    .is_placed = at != NULL,
                                    .base = at,
                                    .size = handle->size};
    hipMemGenericAllocationHandle_t imported;
    int r = dlx__hip(&hip);
    if (r < 0)
        return r;
    if (handle->n_chunks != 1)
        return dlx__fail(DLX_E_DEVICE, "it has %u chunks, and HIP memory is shared in one",
                         handle->n_chunks);
    dlx__hip_lock();
    r = dlx__gpu_memory_pieces(&memory, 1);
    if (r == 0) {
        hipError_t error = hip->hipMemImportFromShareableHandle(
            &imported, (void *)(uintptr_t)handle->chunks[0].fd, FD_HANDLE);
        if (error != hipSuccess)
            r = dlx__hip_fail(hip, error, "hipMemImportFromShareableHandle");
        else
            memory.pieces[0] =
                (struct dlx_gpu_piece){.identity = (uintptr_t)imported, .size = handle->size};
    }
    if (r == 0)
        r = map(hip, &memory, home, access);
    if (r < 0)
        hip_memory_destroy(hip, &memory, false);
    else
        *ret = memory;
    dlx__hip_unlock();
    return r;
}

static void close_vmm(struct dlx_gpu_memory *memory)
{
    const struct dlx_hip *hip;
    dlx__hip_lock();
    if (dlx__hip(&hip) == 0)
        hip_memory_destroy(hip, memory, true);
    dlx__hip_unlock();
}

/* The mapping belongs to the framework; only the handle is this library's. */
static void forget_vmm(struct dlx_gpu_memory *memory)
{
    const struct dlx_hip *hip;
    memory->base = NULL;
    dlx__hip_lock();
    if (dlx__hip(&hip) == 0)
        hip_memory_destroy(hip, memory, false);
    dlx__hip_unlock();
}

const struct dlx_gpu_ops dlx__hip_vmm_ops = {
    .kind = DLX_GPU_HIP_VMM,
    .device_type = kDLROCM,
    .export_pins = true,
    .import_stays = true,
    .create = create_vmm,
    .clear = clear_vmm,
    .export = export_vmm,
    .open = open_vmm,
    .reserve = hip_memory_reserve,
    .unreserve = hip_memory_unreserve,
    .close = close_vmm,
    .forget = forget_vmm,
};
