/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for work that was queued on a CUDA device by others, and copying what it wrote. */
#include "common/error.h"
#include "gpu/cuda_driver.h"

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
        return dlx__cuda_fail(cu, result, "cuDevicePrimaryCtxGetState of CUDA device %d", device);
    *ret_entered = active != 0;
    return active ? dlx__cuda_enter(cu, device, ret) : 0;
}

int dlx__cuda_check_stream(const struct dlx_cuda *cu, CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = cu->cuStreamIsCapturing(stream, &status);
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ||
        (result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE))
        return dlx__fail(DLX_E_INVALID,
                         "the CUDA stream is being captured, and cannot be waited for: end the "
                         "capture first");
    return result == CUDA_SUCCESS ? 0 : dlx__cuda_fail(cu, result, "cannot look at a CUDA stream");
}

static int wait_stream(const struct dlx_cuda *cu, CUstream stream)
{
    int r = dlx__cuda_check_stream(cu, stream);
    CUresult result = r == 0 ? cu->cuStreamSynchronize(stream) : CUDA_SUCCESS;
    return result == CUDA_SUCCESS ? r : dlx__cuda_fail(cu, result, "cannot wait for a CUDA stream");
}

int dlx__cuda_wait_stream(int32_t device, void *stream)
{
    const struct dlx_cuda *cu;
    struct dlx_cuda_scope scope;
    bool entered = false;
    int r = dlx__cuda(&cu);
    if (r == 0)
        r = dlx__cuda_enter_if_active(cu, device, &scope, &entered);
    if (r < 0)
        return r;
    r = wait_stream(cu, stream);
    if (entered)
        dlx__cuda_leave(&scope);
    return r;
}

int dlx__cuda_wait_device(int32_t device)
{
    const struct dlx_cuda *cu;
    struct dlx_cuda_scope scope;
    bool entered = false;
    int r = dlx__cuda(&cu);
    if (r == 0)
        r = dlx__cuda_enter_if_active(cu, device, &scope, &entered);
    if (r < 0 || !entered)
        return r;
    CUresult result = cu->cuCtxSynchronize();
    dlx__cuda_leave(&scope);
    return result == CUDA_SUCCESS
               ? 0
               : dlx__cuda_fail(cu, result, "cannot wait for CUDA device %d", device);
}

int dlx__cuda_copy(int32_t device, void *to, const void *from, uint64_t size, void *stream)
{
    const struct dlx_cuda *cu;
    struct dlx_cuda_scope scope;
    int r = dlx__cuda(&cu);
    if (r == 0)
        r = dlx__cuda_enter(cu, device, &scope);
    if (r < 0)
        return r;
    r = dlx__cuda_check_stream(cu, stream);
    if (r == 0) {
        CUresult result =
            cu->cuMemcpyDtoDAsync(dlx__cuda_ptr(to), dlx__cuda_ptr(from), size, stream);
        if (result == CUDA_SUCCESS)
            result = cu->cuStreamSynchronize(stream);
        if (result != CUDA_SUCCESS)
            r = dlx__cuda_fail(cu, result, "cannot copy %llu bytes on CUDA device %d",
                               (unsigned long long)size, device);
    }
    dlx__cuda_leave(&scope);
    return r;
}

/* ---- events -------------------------------------------------------------------------------- */

/* An event on a default stream would wait for work of other streams, too. */
static bool is_idle(const struct dlx_cuda *cu, CUstream stream)
{
    return (uintptr_t)stream > (uintptr_t)CU_STREAM_PER_THREAD &&
           cu->cuStreamQuery(stream) == CUDA_SUCCESS;
}

static int cuda_wait_record(const struct dlx_cuda *cu, CUstream stream, CUevent *ret)
{
    int r = dlx__cuda_check_stream(cu, stream);
    if (r < 0 || is_idle(cu, stream))
        return r;
    CUresult result = cu->cuEventCreate(ret, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "cuEventCreate");
    result = cu->cuEventRecord(*ret, stream);
    if (result == CUDA_SUCCESS)
        return 0;
    (void)cu->cuEventDestroy(*ret);
    return dlx__cuda_fail(cu, result, "cuEventRecord");
}

int dlx__cuda_event_record(int32_t device, void *stream, struct dlx_gpu_event *ret)
{
    const struct dlx_cuda *cu;
    struct dlx_cuda_scope scope;
    CUevent event = NULL;
    bool entered = false;
    int r = dlx__cuda(&cu);
    if (r == 0)
        r = dlx__cuda_enter_if_active(cu, device, &scope, &entered);
    if (r < 0)
        return r;
    /* Nothing of this process runs there without a context, which may be one of its own making. */
    r = entered ? cuda_wait_record(cu, stream, &event) : wait_stream(cu, stream);
    ret->event = event;
    if (entered) {
        ret->has_context = r == 0 && event && scope.is_retained;
        ret->context = scope.retained;
        scope.is_retained = scope.is_retained && !ret->has_context;
        dlx__cuda_leave(&scope);
    }
    return r;
}

int dlx__cuda_event_wait(const struct dlx_gpu_event *event, bool block)
{
    const struct dlx_cuda *cu;
    struct dlx_cuda_scope scope;
    int r = dlx__cuda(&cu);
    if (r == 0 && event->event)
        r = dlx__cuda_enter(cu, event->device, &scope);
    if (r < 0 || !event->event)
        return r;
    CUresult result = block ? cu->cuEventSynchronize(event->event) : cu->cuEventQuery(event->event);
    dlx__cuda_leave(&scope);
    if (result == CUDA_ERROR_NOT_READY)
        return 1;
    return result == CUDA_SUCCESS ? 0 : dlx__cuda_fail(cu, result, "cannot wait for CUDA's work");
}

void dlx__cuda_event_end(struct dlx_gpu_event *event)
{
    const struct dlx_cuda *cu;
    if (dlx__cuda(&cu) < 0)
        return;
    (void)cu->cuEventDestroy(event->event);
    if (event->has_context)
        (void)cu->cuDevicePrimaryCtxRelease(event->context);
}
