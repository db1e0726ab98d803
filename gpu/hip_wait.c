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

/* What is copied, if any, and then everything on the stream. */
static int copy_and_wait(int32_t device, void *to, const void *from, uint64_t size, void *stream)
{
    const struct dlx_hip *hip;
    hipError_t error = hipSuccess;
    int before = 0, r = dlx__hip(&hip);
    if (r == 0)
        r = dlx__hip_enter(hip, device, &before);
    if (r < 0)
        return r;
    r = check_stream(hip, stream);
    if (r == 0 && size > 0)
        error = hip->hipMemcpyDtoDAsync(to, (void *)(uintptr_t)from, size, stream);
    if (r == 0 && error == hipSuccess)
        error = hip->hipStreamSynchronize(stream);
    dlx__hip_leave(hip, before);
    if (r == 0 && error != hipSuccess)
        r = dlx__hip_fail(
            hip, error, size > 0 ? "cannot copy on a HIP stream" : "cannot wait for a HIP stream");
    return r;
}

int dlx__hip_wait_stream(int32_t device, void *stream)
{
    return copy_and_wait(device, NULL, NULL, 0, stream);
}

int dlx__hip_copy(int32_t device, void *to, const void *from, uint64_t size, void *stream)
{
    return copy_and_wait(device, to, from, size, stream);
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
    int before = 0, r = dlx__hip(&hip);
    if (r == 0)
        r = dlx__hip_enter(hip, work->device, &before);
    if (r < 0)
        return r;
    hipError_t error = hip->hipDeviceSynchronize();
    dlx__hip_leave(hip, before);
    if (error == hipSuccess)
        return 0;
    r = dlx__hip_fail(hip, error, "cannot wait for HIP device %d", work->device);
    return hip_wait_is_end(error) ? DLX_E_DEVICE : r == DLX_E_DEVICE ? DLX_E_SYSTEM : r;
}
