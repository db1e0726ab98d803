/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs of CUDA, and the table of what can be done with them. */
#include "gpu/cuda_driver.h"
#include <dlpack/dlpack.h>
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
    if (r == 0)
        r = dlx__cuda_device(cu, device, &dev);
    if (r < 0)
        return r;
    CUresult result = cu->cuDeviceGetUuid(&id, dev);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "cuDeviceGetUuid of device %d", device);
    memcpy(ret->bytes, id.bytes, sizeof ret->bytes);
    return 0;
}

static int cuda_device_memory_size(int32_t device, uint64_t *ret)
{
    const struct dlx_cuda *cu;
    CUdevice dev;
    size_t bytes;
    int r = dlx__cuda(&cu);
    if (r == 0)
        r = dlx__cuda_device(cu, device, &dev);
    if (r < 0)
        return r;
    CUresult result = cu->cuDeviceTotalMem(&bytes, dev);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "cuDeviceTotalMem of device %d", device);
    *ret = bytes;
    return 0;
}

const struct dlx_gpu_api dlx__cuda_api = {
    .name = "CUDA",
    .device_type = kDLCUDA,
    .own_kind = DLX_GPU_CUDA_VMM,
    .count = cuda_device_count,
    .uuid = cuda_device_uuid,
    .memory_size = cuda_device_memory_size,
    .can_access = dlx__cuda_can_access,
    .classify = dlx__cuda_classify,
    .event_record = dlx__cuda_event_record,
    .event_wait = dlx__cuda_event_wait,
    .event_end = dlx__cuda_event_end,
    .gate_shut = dlx__cuda_gate_shut,
    .page_add = dlx__cuda_page_add,
    .write_words = dlx__cuda_write_words,
    .wait_stream = dlx__cuda_wait_stream,
    .own = dlx__cuda_own_context,
    .wait_work = dlx__cuda_wait_work,
    .check_range = dlx__cuda_check_range,
    .copy = dlx__cuda_copy,
    .copy_to_host = dlx__cuda_copy_to_host,
    .retain = dlx__cuda_retain,
    .release = dlx__cuda_release,
    .pin = dlx__cuda_pin,
    .unpin = dlx__cuda_unpin,
};
