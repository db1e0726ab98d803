/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs of HIP, and what a framework's pointer points to. */
#include "common/error.h"
#include "gpu/hip_runtime.h"
#include <dlpack/dlpack.h>
#include <string.h>

static int hip_device_count(int32_t *ret)
{
    const struct dlx_hip *hip;
    int n;
    int r = dlx__hip(&hip);
    if (r < 0)
        return r;
    hipError_t error = hip->hipGetDeviceCount(&n);
    if (error != hipSuccess)
        return dlx__hip_fail(hip, error, "hipGetDeviceCount");
    *ret = n;
    return 0;
}

static int hip_device_uuid(int32_t device, struct dlx_gpu_uuid *ret)
{
    const struct dlx_hip *hip;
    hipUUID id;
    int r = dlx__hip(&hip);
    if (r < 0)
        return r;
    hipError_t error = hip->hipDeviceGetUuid(&id, device);
    if (error != hipSuccess)
        return dlx__hip_fail(hip, error, "no HIP device %d in this process", device);
    memcpy(ret->bytes, id.bytes, sizeof ret->bytes);
    return 0;
}

static int hip_device_memory_size(int32_t device, uint64_t *ret)
{
    const struct dlx_hip *hip;
    size_t bytes;
    int r = dlx__hip(&hip);
    if (r < 0)
        return r;
    hipError_t error = hip->hipDeviceTotalMem(&bytes, device);
    if (error != hipSuccess)
        return dlx__hip_fail(hip, error, "hipDeviceTotalMem of device %d", device);
    *ret = bytes;
    return 0;
}

static int hip_device_can_access(int32_t device, int32_t peer, bool *ret)
{
    const struct dlx_hip *hip;
    int can = 0;
    int r = dlx__hip(&hip);
    if (r < 0)
        return r;
    hipError_t error = hip->hipDeviceCanAccessPeer(&can, device, peer);
    if (error != hipSuccess)
        return dlx__hip_fail(hip, error, "hipDeviceCanAccessPeer of devices %d and %d", device,
                             peer);
    *ret = can != 0;
    return 0;
}

/* All fields are 0 where the runtime does not know the address. */
struct attributes {
    uint64_t memory_type;
    uint64_t is_managed;
    uint64_t device;
    uint64_t buffer_id;
    uint64_t range_start;
    uint64_t range_size;
};

static int hip_device_get_attributes(const struct dlx_hip *hip, const void *ptr,
                                     struct attributes *ret)
{
    hipPointer_attribute which[] = {
        HIP_POINTER_ATTRIBUTE_MEMORY_TYPE,      HIP_POINTER_ATTRIBUTE_IS_MANAGED,
        HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL,   HIP_POINTER_ATTRIBUTE_BUFFER_ID,
        HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR, HIP_POINTER_ATTRIBUTE_RANGE_SIZE};
    *ret = (struct attributes){0};
    void *data[] = {&ret->memory_type, &ret->is_managed,  &ret->device,
                    &ret->buffer_id,   &ret->range_start, &ret->range_size};
    _Static_assert(DLX_ARRAY_SIZE(which) == DLX_ARRAY_SIZE(data), "in the same order");
    hipError_t error = hip->hipDrvPointerGetAttributes(DLX_ARRAY_SIZE(which), which, data,
                                                       (hipDeviceptr_t)(uintptr_t)ptr);
    if (error != hipSuccess)
        return dlx__hip_fail(hip, error, "hipDrvPointerGetAttributes");
    return 0;
}

static int hip_device_refuse(const char *why)
{
    return dlx__fail(DLX_E_DEVICE, "this memory cannot be shared between processes: %s", why);
}

static bool hip_device_covers(const struct attributes *a, uint64_t at, uint64_t size)
{
    return at >= a->range_start && at - a->range_start < a->range_size &&
           size <= a->range_size - (at - a->range_start);
}

/* Version 6 moved the numbers of memory types by one. */
static bool is_device_memory(const struct dlx_hip *hip, const struct attributes *a)
{
    return a->memory_type == (hip->version >= 60000000 ? 2 : 1);
}

/*
 * Memory of hipMemCreate is known by its handle, which becomes ours. The runtime does not say where
 * mappings end, so only a tensor that lies in one chunk can be shared.
 */
static int find_memory(const struct dlx_hip *hip, const struct attributes *a, uint64_t at,
                       uint64_t size, struct dlx_gpu_memory *memory)
{
    hipMemGenericAllocationHandle_t handle;
    if (!hip_device_covers(a, at, size))
        return hip_device_refuse("it reaches beyond its allocation, or lies in several chunks, "
                                 "which `stage` copies");
    int r = dlx__gpu_memory_pieces(memory, 1);
    if (r < 0)
        return r;
    memory->base = (void *)(uintptr_t)a->range_start;
    memory->size = a->range_size;
    memory->pieces[0] = (struct dlx_gpu_piece){.identity = a->buffer_id, .size = a->range_size};
    hipError_t error = hip->hipMemRetainAllocationHandle(&handle, memory->base);
    if (error == hipErrorOutOfMemory)
        return dlx__hip_fail(hip, error, "hipMemRetainAllocationHandle");
    if (error == hipSuccess) {
        memory->ops = &dlx__hip_vmm_ops;
        memory->pieces[0].identity = (uintptr_t)handle;
    }
    return 0;
}

static int hip_device_classify(int32_t device, const void *ptr, uint64_t size,
                               struct dlx_gpu_memory *ret)
{
    const struct dlx_hip *hip;
    struct attributes a;
    struct dlx_gpu_memory memory = {.ops = &dlx__hip_ipc_ops, .device = device};
    int r = dlx__hip(&hip);
    if (r == 0)
        r = hip_device_get_attributes(hip, ptr, &a);
    if (r < 0)
        return r;
    if (a.range_size == 0)
        return hip_device_refuse("HIP does not know it: it may be ordinary host memory");
    if (a.is_managed)
        return hip_device_refuse("it is managed (unified) memory");
    if (!is_device_memory(hip, &a))
        return hip_device_refuse("it is host memory");
    if ((int32_t)a.device != device)
        return dlx__fail(DLX_E_INVALID, "the tensor says HIP device %d, its memory is on device %d",
                         device, (int32_t)a.device);
    r = find_memory(hip, &a, (uintptr_t)ptr, DLX_MAX(size, UINT64_C(1)), &memory);
    if (r < 0)
        memory.ops->forget(&memory);
    else
        *ret = memory;
    return r;
}

/* The runtime knows one chunk at a time, as a tensor of an expandable segment may lie in several:
 * this goes from chunk to chunk. */
static bool hip_device_is_mapped(const struct dlx_hip *hip, struct attributes a, uint64_t at,
                                 uint64_t size)
{
    while (!hip_device_covers(&a, at, size)) {
        if (!hip_device_covers(&a, at, 1))
            return false;
        uint64_t next = a.range_start + a.range_size;
        if (hip_device_get_attributes(hip, (const void *)(uintptr_t)next, &a) < 0 ||
            a.range_start != next)
            return false;
        size -= next - at;
        at = next;
    }
    return true;
}

static int check_range(int32_t device, const void *ptr, uint64_t size)
{
    static const char no[] = "the GPU cannot copy this memory";
    const struct dlx_hip *hip;
    struct attributes a;
    struct dlx_gpu_uuid uuid;
    int r = dlx__hip(&hip);
    if (r == 0)
        r = hip_device_uuid(device, &uuid); /* there is such a device */
    if (r == 0)
        r = hip_device_get_attributes(hip, ptr, &a);
    if (r < 0)
        return r;
    if (a.range_size == 0 || (!a.is_managed && !is_device_memory(hip, &a)))
        return dlx__fail(DLX_E_DEVICE, "%s: it is not on a GPU", no);
    return hip_device_is_mapped(hip, a, (uintptr_t)ptr, size)
               ? 0
               : dlx__fail(DLX_E_DEVICE, "%s: it reaches beyond its allocation", no);
}

const struct dlx_gpu_api dlx__hip_api = {
    .name = "HIP",
    .device_type = kDLROCM,
    .own_kind = DLX_GPU_HIP_VMM,
    .count = hip_device_count,
    .uuid = hip_device_uuid,
    .memory_size = hip_device_memory_size,
    .can_access = hip_device_can_access,
    .classify = hip_device_classify,
    .wait_stream = dlx__hip_wait_stream,
    .wait_work = dlx__hip_wait_work,
    .check_range = check_range,
    .copy = dlx__hip_copy,
    .copy_to_host = dlx__hip_copy_to_host,
    .retain = dlx__hip_retain,
    .release = dlx__hip_release,
    .pin = dlx__hip_pin,
    .unpin = dlx__hip_unpin,
};
