/* SPDX-License-Identifier: Apache-2.0 */

/* Items and bytes of a tensor, in whatever order its strides have them. */

#include "cli/tensor.h"
#include "cli/dtype.h"

bool tensor_size(const DLTensor *t, uint64_t *ret_n_items, uint64_t *ret_size)
{
    return t->ndim >= 0 && t->ndim <= DTYPE_NDIM_MAX &&
           shape_items(t->shape, t->ndim, ret_n_items) &&
           dtype_bytes(t->dtype, *ret_n_items, ret_size);
}

bool tensor_is_compact(const DLTensor *t)
{
    int64_t step = 1;
    if (!t->strides)
        return true;
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] == 0)
            return true;
    for (int32_t i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] != 1 && t->strides[i] != step)
            return false;
        step *= t->shape[i];
    }
    return true;
}

bool tensor_is_readable(const DLTensor *t)
{
    bool host = t->device.device_type == kDLCPU || t->device.device_type == kDLCUDAHost ||
                t->device.device_type == kDLROCMHost;
    return host && (tensor_is_compact(t) || t->dtype.bits * t->dtype.lanes % 8 == 0);
}

const uint8_t *tensor_data(const DLTensor *t)
{
    return t->data ? (const uint8_t *)t->data + t->byte_offset : NULL;
}

const uint8_t *tensor_item(const DLTensor *t, uint64_t index)
{
    int64_t at = 0;
    for (int32_t i = t->ndim - 1; i >= 0; i--) {
        at += (int64_t)(index % (uint64_t)t->shape[i]) * t->strides[i];
        index /= (uint64_t)t->shape[i];
    }
    return tensor_data(t) + at * (t->dtype.bits * t->dtype.lanes / 8);
}
