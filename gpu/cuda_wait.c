/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for work that was queued on a CUDA device by others, and copying what it wrote. */
#include "common/error.h"
#include "gpu/cuda_driver.h"

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
        r = dlx__cuda_enter_stream(cu, device, stream, &scope, &entered);
    if (r < 0 || !entered)
        return r;
    r = wait_stream(cu, stream);
    dlx__cuda_leave(&scope);
    return r;
}

void *dlx__cuda_own_context(int32_t device)
{
    const struct dlx_cuda *cu;
    struct dlx_cuda_scope scope;
    CUcontext current = NULL;
    bool entered = false, is_own;
    if (dlx__cuda(&cu) < 0 || dlx__cuda_enter_stream(cu, device, NULL, &scope, &entered) < 0 ||
        !entered)
        return NULL;
    is_own = !scope.is_retained && cu->cuCtxGetCurrent(&current) == CUDA_SUCCESS;
    dlx__cuda_leave(&scope);
    return is_own ? current : NULL;
}

/* Leaves the scope. */
static int wait_context(struct dlx_cuda_scope *scope)
{
    const struct dlx_cuda *cu = scope->cu;
    CUresult result = cu->cuCtxSynchronize();
    dlx__cuda_leave(scope);
    return result == CUDA_SUCCESS
               ? 0
               : dlx__cuda_fail_wait(cu, result, "cannot wait for the work of a CUDA context");
}

/* A context that is not valid has been destroyed, and its work with it. */
static int wait_own(const struct dlx_cuda *cu, CUcontext own)
{
    struct dlx_cuda_scope scope;
    CUresult result = cu->cuCtxPushCurrent(own);
    if (result == CUDA_ERROR_INVALID_CONTEXT)
        return 0;
    if (result == CUDA_SUCCESS) {
        CUcontext popped;
        (void)cu->cuCtxPopCurrent(&popped);
        int r = dlx__cuda_enter_context(cu, own, &scope);
        return r < 0 ? r : wait_context(&scope);
    }
    return dlx__cuda_fail_wait(cu, result, "cuCtxPushCurrent");
}

/* The worse result is one after which the work may go on. */
static int worse(int a, int b)
{
    return a == 0 || !dlx__gpu_has_ended(b) ? b : a;
}

int dlx__cuda_wait_work(const struct dlx_gpu_work *work)
{
    const struct dlx_cuda *cu;
    struct dlx_cuda_scope scope;
    bool entered = false;
    int r = dlx__cuda(&cu), of_own = 0;
    if (r == 0 && work->own)
        of_own = wait_own(cu, work->own);
    if (r == 0)
        r = dlx__cuda_enter_if_active(cu, work->device, &scope, &entered);
    if (r == 0 && entered)
        r = wait_context(&scope);
    return worse(of_own, r);
}

/* Make a context current in which `*stream` copies on the device. A stream of another device is
 * waited for, and the copy is on a default stream of this one. */
static int enter_for_copy(const struct dlx_cuda *cu, int32_t device, CUstream *stream,
                          struct dlx_cuda_scope *ret)
{
    bool entered = false;
    CUdevice of = device;
    int r = dlx__cuda_enter_stream(cu, device, *stream, ret, &entered);
    if (r < 0)
        return r;
    CUresult result = entered ? cu->cuCtxGetDevice(&of) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        r = dlx__cuda_fail(cu, result, "cuCtxGetDevice");
    else if (of != device)
        r = wait_stream(cu, *stream);
    if (entered && (r < 0 || of != device))
        dlx__cuda_leave(ret);
    else if (entered)
        return 0;
    *stream = of == device ? *stream : CU_STREAM_PER_THREAD;
    return r < 0 ? r : dlx__cuda_enter(cu, device, ret);
}

/* Wait for a copy that was queued, or was refused with `result`. */
static int finish_copy(const struct dlx_cuda *cu, CUresult result, CUstream stream, uint64_t size,
                       int32_t device)
{
    if (result == CUDA_SUCCESS)
        result = cu->cuStreamSynchronize(stream);
    return result == CUDA_SUCCESS
               ? 0
               : dlx__cuda_fail(cu, result, "cannot copy %llu bytes on CUDA device %d",
                                (unsigned long long)size, device);
}

int dlx__cuda_copy_to_host(int32_t device, void *to, const void *from, uint64_t size)
{
    const struct dlx_cuda *cu;
    struct dlx_cuda_scope scope;
    int r = dlx__cuda(&cu);
    if (r == 0)
        r = dlx__cuda_enter(cu, device, &scope);
    if (r < 0)
        return r;
    CUresult result = cu->cuMemcpyDtoHAsync(to, dlx__cuda_ptr(from), size, CU_STREAM_PER_THREAD);
    r = finish_copy(cu, result, CU_STREAM_PER_THREAD, size, device);
    dlx__cuda_leave(&scope);
    return r;
}

int dlx__cuda_copy(int32_t device, void *to, const void *from, uint64_t size, void *on_stream)
{
    const struct dlx_cuda *cu;
    struct dlx_cuda_scope scope;
    CUstream stream = on_stream;
    int r = dlx__cuda(&cu);
    if (r == 0)
        r = enter_for_copy(cu, device, &stream, &scope);
    if (r < 0)
        return r;
    r = dlx__cuda_check_stream(cu, stream);
    if (r == 0) {
        CUresult result =
            cu->cuMemcpyDtoDAsync(dlx__cuda_ptr(to), dlx__cuda_ptr(from), size, stream);
        r = finish_copy(cu, result, stream, size, device);
    }
    dlx__cuda_leave(&scope);
    return r;
}

/* ---- events -------------------------------------------------------------------------------- */

/* Events are of primary contexts alone: one of a context that the program has made would end with
 * that, perhaps while a thread waits for it. */

/* An event on a default stream would wait for work of other streams, too. */
static bool is_idle(const struct dlx_cuda *cu, CUstream stream)
{
    return (uintptr_t)stream > (uintptr_t)CU_STREAM_PER_THREAD &&
           cu->cuStreamQuery(stream) == CUDA_SUCCESS;
}

static int cuda_wait_record(const struct dlx_cuda *cu, CUstream stream, bool is_primary,
                            CUevent *ret)
{
    int r = dlx__cuda_check_stream(cu, stream);
    if (r < 0 || is_idle(cu, stream))
        return r;
    if (!is_primary)
        return dlx__fail(DLX_E_DEVICE, "the CUDA stream is not of a primary context");
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
        r = dlx__cuda_enter_stream(cu, device, stream, &scope, &entered);
    if (r < 0 || !entered)
        return r;
    r = cuda_wait_record(cu, stream, scope.is_retained, &event);
    if (event) {
        ret->event = event;
        ret->device = scope.retained;
        scope.is_retained = false; /* until dlx__cuda_event_end() */
    }
    dlx__cuda_leave(&scope);
    return r;
}

static int write_words(const struct dlx_cuda *cu, const struct dlx_gpu_event *event,
                       CUstream stream, const struct dlx_gpu_word *words, uint32_t n,
                       uint32_t *ret_n)
{
    for (; *ret_n < n; ++*ret_n) {
        const struct dlx_gpu_word *word = &words[*ret_n];
        CUresult result =
            cu->cuStreamWriteValue32(stream, word->at, word->value, CU_STREAM_WRITE_VALUE_DEFAULT);
        if (result != CUDA_SUCCESS)
            return dlx__cuda_fail(cu, result, "cuStreamWriteValue32");
    }
    return cu->cuEventRecord(event->event, stream) == CUDA_SUCCESS ? 0 : 1;
}

int dlx__cuda_write_words(const struct dlx_gpu_event *event, void *stream,
                          const struct dlx_gpu_word *words, uint32_t n, uint32_t *ret_n)
{
    const struct dlx_cuda *cu;
    struct dlx_cuda_scope scope;
    bool entered = false;
    int r = dlx__cuda(&cu);
    if (r == 0)
        r = dlx__cuda_enter_stream(cu, event->device, stream, &scope, &entered);
    if (r == 0 && !entered)
        r = dlx__fail(DLX_E_DEVICE, "the stream of an event has no context any more");
    if (r < 0)
        return r;
    r = write_words(cu, event, stream, words, n, ret_n);
    dlx__cuda_leave(&scope);
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
    if (result == CUDA_SUCCESS)
        return 0;
    r = dlx__cuda_fail_wait(cu, result, "cannot wait for CUDA's work");
    /* Nobody but a reset of the device destroys the event: the work has ended with its context. */
    return result == CUDA_ERROR_INVALID_HANDLE ? DLX_E_DEVICE : r;
}

void dlx__cuda_event_end(struct dlx_gpu_event *event)
{
    const struct dlx_cuda *cu;
    if (dlx__cuda(&cu) < 0)
        return;
    (void)cu->cuEventDestroy(event->event);
    (void)cu->cuDevicePrimaryCtxRelease(event->device);
}
