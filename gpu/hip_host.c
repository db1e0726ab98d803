/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the host that is registered for fast copies to a HIP device. */
#include "common/error.h"
#include "gpu/hip_runtime.h"

/* The runtime keeps a device that was used until the process ends: there is nothing to release. */
int dlx__hip_retain(int32_t device)
{
    const struct dlx_hip *hip;
    struct dlx_hip_scope before;
    int r = dlx__hip(&hip);
    if (r == 0)
        r = dlx__hip_enter(hip, device, &before);
    if (r == 0)
        dlx__hip_leave(hip, &before);
    return r;
}

void dlx__hip_release(int32_t device)
{
    (void)device;
}

/* HIP 5.2 has no flag for memory that is mapped read-only: the runtime pins it as it is, or
 * refuses. */
int dlx__hip_pin(int32_t device, const void *at, uint64_t size)
{
    const struct dlx_hip *hip;
    struct dlx_hip_scope before;
    int r = dlx__hip(&hip);
    if (r == 0)
        r = dlx__hip_enter(hip, device, &before);
    if (r < 0)
        return r;
    hipError_t error = hip->hipHostRegister((void *)(uintptr_t)at, size, hipHostRegisterPortable);
    dlx__hip_leave(hip, &before);
    return error == hipSuccess ? 0 : dlx__hip_fail(hip, error, "hipHostRegister");
}

int dlx__hip_unpin(int32_t device, const void *at)
{
    const struct dlx_hip *hip;
    struct dlx_hip_scope before;
    int r = dlx__hip(&hip);
    if (r == 0)
        r = dlx__hip_enter(hip, device, &before);
    if (r < 0)
        return r;
    hipError_t error = hip->hipHostUnregister((void *)(uintptr_t)at);
    dlx__hip_leave(hip, &before);
    if (error == hipErrorHostMemoryNotRegistered) /* the device was reset */
        return 0;
    return error == hipSuccess ? 0 : dlx__hip_fail(hip, error, "hipHostUnregister");
}
