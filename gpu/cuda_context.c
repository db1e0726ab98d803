/* SPDX-License-Identifier: Apache-2.0 */
/* The contexts that some calls need, and what all kinds of memory share. */
#include "common/error.h"
#include "gpu/cuda_driver.h"
#include <fcntl.h>
#include <string.h>

/* A CUdevice is the ordinal of the device in this process. */
int dlx__cuda_device(const struct dlx_cuda *cu, int32_t device, CUdevice *ret)
{
    CUresult result = cu->cuDeviceGet(ret, device);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "no CUDA device %d in this process", device);
    return 0;
}

int dlx__cuda_can_access(int32_t device, int32_t peer, bool *ret)
{
    const struct dlx_cuda *cu;
    CUdevice dev, peer_dev;
    int can = 0;
    int r = dlx__cuda(&cu);
    if (r == 0)
        r = dlx__cuda_device(cu, device, &dev);
    if (r == 0)
        r = dlx__cuda_device(cu, peer, &peer_dev);
    if (r < 0)
        return r;
    CUresult result = cu->cuDeviceCanAccessPeer(&can, dev, peer_dev);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "cuDeviceCanAccessPeer of devices %d and %d", device,
                              peer);
    *ret = can != 0;
    return 0;
}

int dlx__cuda_enter_context(const struct dlx_cuda *cu, CUcontext context,
                            struct dlx_cuda_scope *ret)
{
    CUresult result = cu->cuCtxPushCurrent(context);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail_wait(cu, result, "cuCtxPushCurrent");
    *ret = (struct dlx_cuda_scope){.cu = cu, .mode = CU_STREAM_CAPTURE_MODE_RELAXED};
    (void)cu->cuThreadExchangeStreamCaptureMode(&ret->mode);
    return 0;
}

int dlx__cuda_enter(const struct dlx_cuda *cu, int32_t device, struct dlx_cuda_scope *ret)
{
    CUdevice dev;
    CUcontext context;
    int r = dlx__cuda_device(cu, device, &dev);
    if (r < 0)
        return r;
    CUresult result = cu->cuDevicePrimaryCtxRetain(&context, dev);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail_wait(cu, result, "no context on the CUDA device");
    r = dlx__cuda_enter_context(cu, context, ret);
    if (r < 0) {
        (void)cu->cuDevicePrimaryCtxRelease(dev);
        return r;
    }
    ret->retained = dev;
    ret->is_retained = true;
    return 0;
}

int dlx__cuda_enter_if_active(const struct dlx_cuda *cu, int32_t device, struct dlx_cuda_scope *ret,
                              bool *ret_entered)
{
    CUdevice dev;
    unsigned flags;
    int active = 0;
    int r = dlx__cuda_device(cu, device, &dev);
    if (r < 0)
        return r;
    CUresult result = cu->cuDevicePrimaryCtxGetState(dev, &flags, &active);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail_wait(cu, result, "cuDevicePrimaryCtxGetState");
    *ret_entered = active != 0;
    return active ? dlx__cuda_enter(cu, device, ret) : 0;
}

/* `*ret` is NULL for a special stream, unless the current context is one of the device. */
static CUresult find_context(const struct dlx_cuda *cu, int32_t device, CUstream stream,
                             CUcontext *ret)
{
    CUcontext current = NULL;
    CUdevice of = 0;
    struct dlx_cuda_scope scope;
    bool entered = false;
    CUresult result = cu->cuCtxGetCurrent(&current);
    *ret = NULL;
    if (result == CUDA_SUCCESS && (uintptr_t)stream > (uintptr_t)CU_STREAM_PER_THREAD) {
        /* cuda.h does not say whether a thread without a context may ask. */
        if (!current)
            (void)dlx__cuda_enter_if_active(cu, device, &scope, &entered);
        result = cu->cuStreamGetCtx(stream, ret);
        if (entered)
            dlx__cuda_leave(&scope);
        return result;
    }
    if (result == CUDA_SUCCESS && current)
        result = cu->cuCtxGetDevice(&of);
    if (result == CUDA_SUCCESS && current && of == device)
        *ret = current;
    return result;
}

/* Retain the current context, if it is a primary one. */
static CUresult retain_primary(const struct dlx_cuda *cu, struct dlx_cuda_scope *scope)
{
    CUcontext primary;
    CUdevice dev = 0;
    unsigned flags;
    int active = 0;
    unsigned long long id = 0, of_primary = 0;
    CUresult result = cu->cuCtxGetDevice(&dev);
    if (result == CUDA_SUCCESS)
        result = cu->cuDevicePrimaryCtxGetState(dev, &flags, &active);
    if (result == CUDA_SUCCESS && active)
        result = cu->cuDevicePrimaryCtxRetain(&primary, dev);
    if (result != CUDA_SUCCESS || !active)
        return result;
    result = cu->cuCtxGetId(NULL, &id);
    if (result == CUDA_SUCCESS)
        result = cu->cuCtxGetId(primary, &of_primary);
    scope->retained = dev;
    scope->is_retained = result == CUDA_SUCCESS && id == of_primary;
    if (!scope->is_retained)
        (void)cu->cuDevicePrimaryCtxRelease(dev);
    return result;
}

int dlx__cuda_enter_stream(const struct dlx_cuda *cu, int32_t device, CUstream stream,
                           struct dlx_cuda_scope *ret, bool *ret_entered)
{
    CUcontext context = NULL;
    int r = 0;
    CUresult result = find_context(cu, device, stream, &context);
    if (result == CUDA_SUCCESS && !context)
        return dlx__cuda_enter_if_active(cu, device, ret, ret_entered);
    if (result == CUDA_SUCCESS)
        r = dlx__cuda_enter_context(cu, context, ret);
    if (result != CUDA_SUCCESS || r < 0)
        return r < 0 ? r : dlx__cuda_fail(cu, result, "cannot find the context of a CUDA stream");
    result = retain_primary(cu, ret);
    *ret_entered = result == CUDA_SUCCESS;
    if (*ret_entered)
        return 0;
    dlx__cuda_leave(ret);
    return dlx__cuda_fail(cu, result, "cannot find the context of a CUDA stream");
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
