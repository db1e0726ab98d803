/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for work that was queued on a HIP device by others. */
#include "common/error.h"
#include "gpu/hip_runtime.h"

int dlx__hip_wait_stream(int32_t device, void *stream)
{
    const struct dlx_hip *hip;
    hipStreamCaptureStatus status = hipStreamCaptureStatusNone;
    int before = 0, r = dlx__hip(&hip);
    if (r == 0)
        r = dlx__hip_enter(hip, device, &before);
    if (r < 0)
        return r;
    hipError_t error = hip->hipStreamIsCapturing(stream, &status);
    if (error == hipErrorStreamCaptureImplicit ||
        (error == hipSuccess && status != hipStreamCaptureStatusNone))
        r = dlx__fail(DLX_E_INVALID, "the HIP stream is being captured, and cannot be waited for: "
                                     "end the capture first");
    else if (error == hipSuccess)
        error = hip->hipStreamSynchronize(stream);
    dlx__hip_leave(hip, before);
    if (r == 0 && error != hipSuccess)
        r = dlx__hip_fail(hip, error, "cannot wait for a HIP stream");
    return r;
}

int dlx__hip_wait_device(int32_t device)
{
    const struct dlx_hip *hip;
    int before = 0, r = dlx__hip(&hip);
    if (r == 0)
        r = dlx__hip_enter(hip, device, &before);
    if (r < 0)
        return r;
    hipError_t error = hip->hipDeviceSynchronize();
    dlx__hip_leave(hip, before);
    return error == hipSuccess ? 0
                               : dlx__hip_fail(hip, error, "cannot wait for HIP device %d", device);
}
