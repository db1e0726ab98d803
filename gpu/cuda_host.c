/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the host that is registered for fast copies to a CUDA device. */
#include "common/error.h"
#include "gpu/cuda_driver.h"

int dlx__cuda_retain(int32_t device)
{
    const struct dlx_cuda *cu;
    struct dlx_cuda_scope scope;
    int r = dlx__cuda(&cu);
    if (r == 0)
        r = dlx__cuda_enter(cu, device, &scope);
    if (r < 0)
        return r;
    scope.is_retained = false; /* until dlx__cuda_release() */
    dlx__cuda_leave(&scope);
    return 0;
}

void dlx__cuda_release(int32_t device)
{
    const struct dlx_cuda *cu;
    CUdevice dev;
    if (dlx__cuda(&cu) == 0 && cu->cuDeviceGet(&dev, device) == CUDA_SUCCESS)
        (void)cu->cuDevicePrimaryCtxRelease(dev);
}

/* The flags that register memory which the CPU may only read: READ_ONLY where the device supports
 * it, and none where the device uses the page tables of the CPU. */
static int find_flags(const struct dlx_cuda *cu, int32_t device, unsigned *ret)
{
    CUdevice dev;
    int knows_flag = 0, uses_tables = 0;
    int r = dlx__cuda_device(cu, device, &dev);
    if (r < 0)
        return r;
    CUresult result = cu->cuDeviceGetAttribute(
        &knows_flag, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, dev);
    if (result == CUDA_SUCCESS)
        result = cu->cuDeviceGetAttribute(
            &uses_tables, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, dev);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "cuDeviceGetAttribute");
    if (!knows_flag && !uses_tables)
        return dlx__fail(DLX_E_DEVICE, "CUDA device %d cannot pin memory that is mapped read-only",
                         device);
    *ret = CU_MEMHOSTREGISTER_PORTABLE | (knows_flag ? CU_MEMHOSTREGISTER_READ_ONLY : 0U);
    return 0;
}

int dlx__cuda_pin(int32_t device, const void *at, uint64_t size)
{
    const struct dlx_cuda *cu;
    struct dlx_cuda_scope scope;
    unsigned flags = 0;
    int r = dlx__cuda(&cu);
    if (r == 0)
        r = find_flags(cu, device, &flags);
    if (r == 0)
        r = dlx__cuda_enter(cu, device, &scope);
    if (r < 0)
        return r;
    CUresult result = cu->cuMemHostRegister((void *)(uintptr_t)at, size, flags);
    dlx__cuda_leave(&scope);
    return result == CUDA_SUCCESS ? 0 : dlx__cuda_fail(cu, result, "cuMemHostRegister");
}

int dlx__cuda_unpin(int32_t device, const void *at)
{
    const struct dlx_cuda *cu;
    struct dlx_cuda_scope scope;
    int r = dlx__cuda(&cu);
    if (r == 0)
        r = dlx__cuda_enter(cu, device, &scope);
    if (r < 0)
        return r;
    CUresult result = cu->cuMemHostUnregister((void *)(uintptr_t)at);
    dlx__cuda_leave(&scope);
    /* A reset of the device (cudaDeviceReset) has unregistered everything. */
    if (result == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
        return 0;
    return result == CUDA_SUCCESS ? 0 : dlx__cuda_fail(cu, result, "cuMemHostUnregister");
}
