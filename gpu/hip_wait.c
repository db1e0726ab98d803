/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for work that was queued on a HIP device by others. */
#include "common/error.h"
#include "gpu/hip_runtime.h"

static int check_stream(const struct dlx_hip *hip, hipStream_t stream)
{
    hipStreamCaptureStatus status = hipStreamCaptureStatusNone;
    hipError_t error = hip->hipStreamIsCapturing(stream, &status);
    if (error == hipErrorStreamCaptureImplicit ||
        (error == hipSuccess && status != hipStreamCaptureStatusNone))
        return dlx__fail(DLX_E_INVALID,
                         "the HIP stream is being captured, and cannot be waited for: end the "
                         "capture first");
    return error == hipSuccess ? 0 : dlx__hip_fail(hip, error, "cannot look at a HIP stream");
}

static int hip_wait_sync(const struct dlx_hip *hip, hipStream_t stream)
{
    int r = check_stream(hip, stream);
    hipError_t error = r == 0 ? hip->hipStreamSynchronize(stream) : hipSuccess;
    return error == hipSuccess ? r : dlx__hip_fail(hip, error, "cannot wait for a HIP stream");
}

int dlx__hip_wait_stream(int32_t device, void *stream)
{
    const struct dlx_hip *hip;
    struct dlx_hip_scope before;
    int r = dlx__hip(&hip);
    if (r == 0)
        r = dlx__hip_enter(hip, device, &before);
    if (r < 0)
        return r;
    r = hip_wait_sync(hip, stream);
    dlx__hip_leave(hip, &before);
    return r;
}

/* On a stream of the current device that neither waits for others nor delays them. */
static int copy_now(const struct dlx_hip *hip, void *to, const void *from, uint64_t size,
                    bool to_host)
{
    hipStream_t stream;
    hipError_t error = hip->hipStreamCreateWithFlags(&stream, hipStreamNonBlocking);
    if (error == hipSuccess) {
        void *memory = (void *)(uintptr_t)from;
        error = to_host ? hip->hipMemcpyDtoHAsync(to, memory, size, stream)
                        : hip->hipMemcpyDtoDAsync(to, memory, size, stream);
        if (error == hipSuccess)
            error = hip->hipStreamSynchronize(stream);
        (void)hip->hipStreamDestroy(stream);
    }
    return error == hipSuccess ? 0 : dlx__hip_fail(hip, error, "cannot copy on a HIP device");
}

/* The stream may be one of another device, which may not reach the memory, and runtimes of version
 * 5.2 do not say whose it is: so it is waited for before. */
int dlx__hip_copy(int32_t device, void *to, const void *from, uint64_t size, void *stream)
{
    const struct dlx_hip *hip;
    struct dlx_hip_scope before;
    int r = dlx__hip(&hip);
    if (r == 0)
        r = dlx__hip_enter(hip, device, &before);
    if (r < 0)
        return r;
    r = hip_wait_sync(hip, stream);
    if (r == 0)
        r = copy_now(hip, to, from, size, false);
    dlx__hip_leave(hip, &before);
    return r;
}

int dlx__hip_copy_to_host(int32_t device, void *to, const void *from, uint64_t size)
{
    const struct dlx_hip *hip;
    struct dlx_hip_scope before;
    int r = dlx__hip(&hip);
    if (r == 0)
        r = dlx__hip_enter(hip, device, &before);
    if (r < 0)
        return r;
    r = copy_now(hip, to, from, size, true);
    dlx__hip_leave(hip, &before);
    return r;
}

/* HIP does not say which errors end the context. These have the numbers of those of which CUDA says
 * it, and the last two say that nothing is left that could run. */
static bool hip_wait_is_end(hipError_t error)
{
    switch (error) {
    case hipErrorIllegalAddress:
    case hipErrorLaunchTimeOut:
    case hipErrorAssert:
    case hipErrorLaunchFailure:
    case hipErrorContextIsDestroyed:
    case hipErrorDeinitialized:
        return true;
    default:
        return false;
    }
}

int dlx__hip_wait_work(const struct dlx_gpu_work *work)
{
    const struct dlx_hip *hip;
    struct dlx_hip_scope before;
    int r = dlx__hip(&hip);
    if (r == 0)
        r = dlx__hip_enter(hip, work->device, &before);
    if (r < 0)
        return r;
    hipError_t error = hip->hipDeviceSynchronize();
    dlx__hip_leave(hip, &before);
    if (error == hipSuccess)
        return 0;
    r = dlx__hip_fail(hip, error, "cannot wait for HIP device %d", work->device);
    return hip_wait_is_end(error) ? DLX_E_DEVICE : r == DLX_E_DEVICE ? DLX_E_SYSTEM : r;
}
