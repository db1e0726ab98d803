/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs of CUDA, and the contexts that some calls need. */
#include "common/error.h"
#include "gpu/cuda_driver.h"
#include <dlpack/dlpack.h>
#include <fcntl.h>
#include <string.h>

static int cuda_device_count(int32_t *ret)
{
    const struct dlx_cuda *cu;
    int n;
    int r = dlx__cuda(&cu);
    if (r < 0)
        return r;
    CUresult result = cu->cuDeviceGetCount(&n);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "cuDeviceGetCount");
    *ret = n;
    return 0;
}

/* The UUID of a MIG instance is its own, as far as the driver's second version goes (cuda_load.c).
 * */
static int cuda_device_uuid(int32_t device, struct dlx_gpu_uuid *ret)
{
    const struct dlx_cuda *cu;
    CUdevice dev;
    CUuuid id;
    int r = dlx__cuda(&cu);
    if (r < 0)
        return r;
    CUresult result = cu->cuDeviceGet(&dev, device);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "no CUDA device %d in this process", device);
    result = cu->cuDeviceGetUuid(&id, dev);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "cuDeviceGetUuid of device %d", device);
    memcpy(ret->bytes, id.bytes, sizeof ret->bytes);
    return 0;
}

const struct dlx_gpu_api dlx__cuda_api = {
    .name = "CUDA",
    .device_type = kDLCUDA,
    .own_kind = DLX_GPU_CUDA_VMM,
    .count = cuda_device_count,
    .uuid = cuda_device_uuid,
    .classify = dlx__cuda_classify,
    .event_record = dlx__cuda_event_record,
    .event_wait = dlx__cuda_event_wait,
    .event_end = dlx__cuda_event_end,
    .gate_shut = dlx__cuda_gate_shut,
    .gate_open = dlx__cuda_gate_open,
    .wait_stream = dlx__cuda_wait_stream,
    .wait_device = dlx__cuda_wait_device,
    .check_range = dlx__cuda_check_range,
    .copy = dlx__cuda_copy,
    .retain = dlx__cuda_retain,
    .release = dlx__cuda_release,
    .pin = dlx__cuda_pin,
    .unpin = dlx__cuda_unpin,
};

int dlx__cuda_enter_context(const struct dlx_cuda *cu, CUcontext context,
                            struct dlx_cuda_scope *ret)
{
    CUresult result = cu->cuCtxPushCurrent(context);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "cuCtxPushCurrent");
    *ret = (struct dlx_cuda_scope){.cu = cu, .mode = CU_STREAM_CAPTURE_MODE_RELAXED};
    (void)cu->cuThreadExchangeStreamCaptureMode(&ret->mode);
    return 0;
}

int dlx__cuda_enter(const struct dlx_cuda *cu, int32_t device, struct dlx_cuda_scope *ret)
{
    CUdevice dev;
    CUcontext context;
    CUresult result = cu->cuDeviceGet(&dev, device);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "no CUDA device %d in this process", device);
    result = cu->cuDevicePrimaryCtxRetain(&context, dev);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "no context on CUDA device %d", device);
    int r = dlx__cuda_enter_context(cu, context, ret);
    if (r < 0) {
        (void)cu->cuDevicePrimaryCtxRelease(dev);
        return r;
    }
    ret->retained = dev;
    ret->is_retained = true;
    return 0;
}

void dlx__cuda_leave(struct dlx_cuda_scope *scope)
{
    CUcontext popped;
    (void)scope->cu->cuThreadExchangeStreamCaptureMode(&scope->mode);
    (void)scope->cu->cuCtxPopCurrent(&popped);
    if (scope->is_retained)
        (void)scope->cu->cuDevicePrimaryCtxRelease(scope->retained);
}

void dlx__cuda_leave_for(struct dlx_cuda_scope *scope, struct dlx_gpu_memory *memory)
{
    memory->has_context = scope->is_retained;
    scope->is_retained = false;
    dlx__cuda_leave(scope);
}

void dlx__cuda_drop_context(const struct dlx_cuda *cu, struct dlx_gpu_memory *memory)
{
    CUdevice dev;
    if (memory->has_context && cu->cuDeviceGet(&dev, memory->device) == CUDA_SUCCESS)
        (void)cu->cuDevicePrimaryCtxRelease(dev);
    memory->has_context = false;
}

void dlx__cuda_cloexec(int borrow_fd)
{
    int flags = fcntl(borrow_fd, F_GETFD);
    if (flags >= 0)
        (void)fcntl(borrow_fd, F_SETFD, flags | FD_CLOEXEC);
}

int dlx__cuda_check_size(const struct dlx_cuda *cu, CUdeviceptr at, uint64_t size)
{
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                   CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    uint64_t start = 0, range = 0;
    void *data[] = {&start, &range};
    CUresult result = cu->cuPointerGetAttributes(DLX_ARRAY_SIZE(which), which, data, at);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "cuPointerGetAttributes");
    uint64_t left = at >= start && at - start < range ? range - (at - start) : 0;
    if (range != 0 && left < size)
        return dlx__fail(DLX_E_PROTOCOL, "the publisher says %llu bytes, and there are %llu",
                         (unsigned long long)size, (unsigned long long)left);
    return 0;
}

CUmemAccessDesc dlx__cuda_access(int32_t device, enum dlx_gpu_access access)
{
    CUmemAccessDesc desc;
    memset(&desc, 0, sizeof desc);
    desc.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    desc.location.id = device;
    desc.flags =
        access == DLX_GPU_READ ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return desc;
}
