/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_TENSOR_H
#define DLX_COMMON_TENSOR_H

/*
 * Arithmetic over shapes, strides and data types, with every step checked for overflow because the
 * numbers come from users and from other processes. Shapes and strides count elements; an element
 * has `bits * lanes` bits. Types smaller than a byte are packed in little-endian bit order unless
 * `padded` is set, in which case each element has whole bytes
 * (DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED).
 */

#include "ring/layout.h"
#include <dlpack/dlpack.h>

/* The general case of dlx__tensor_size(). */
dlx_for_gpu int dlx__tensor_size_any(DLDataType dtype, bool padded, int32_t ndim,
                                     const int64_t *shape, uint64_t *ret_size);

/* Computes the bytes of a row-major tensor. Returns 0, or DLX_E_SHAPE with the reason: ndim below 0
 * or above DLX_SHM_NDIM_MAX, a negative size, more than 2^63-1 bytes, no bits or no lanes. */
static inline int dlx__tensor_size(DLDataType dtype, bool padded, int32_t ndim,
                                   const int64_t *shape, uint64_t *ret_size)
{
    uint32_t bits = (uint32_t)dtype.bits * dtype.lanes;
    if (dlx_likely(ndim > 0 && ndim <= (int32_t)DLX_SHM_NDIM_MAX && bits > 0 && bits % 8 == 0 &&
                   shape)) {
        int64_t bytes = bits / 8;
        bool ordinary = true; /* every product is positive and did not overflow */
        for (int32_t i = 0; i < ndim; i++)
            ordinary &= (shape[i] > 0) & !__builtin_mul_overflow(bytes, shape[i], &bytes);
        if (dlx_likely(ordinary)) {
            *ret_size = (uint64_t)bytes;
            return 0;
        }
    }
    return dlx__tensor_size_any(dtype, padded, ndim, shape, ret_size);
}

/* Fills `strides` for row-major order, as NumPy and PyTorch export it: each stride is the product
 * of the sizes behind it, also for a dimension of size 1. A size of 0 counts as 1, as in PyTorch.
 * dlx__tensor_size() has checked the shape. */
static inline void dlx__tensor_row_major(int32_t ndim, const int64_t *shape, int64_t *strides)
{
    int64_t stride = 1;
    for (int32_t i = ndim; i-- > 0;) {
        strides[i] = stride;
        /* Cannot overflow for tensors with elements; an empty tensor may have any strides. */
        if (dlx_unlikely(__builtin_mul_overflow(stride, DLX_MAX(shape[i], 1), &stride)))
            stride = 1;
    }
}

/* Are the elements in row-major order? Ignores the strides that no element depends on: those of
 * dimensions of size 1, and all of an empty tensor. True of NULL strides. */
bool dlx__tensor_is_row_major(int32_t ndim, const int64_t *shape, const int64_t *strides);

/* Can a record leave these strides out (DLX_SHM_RECORD_ROW_MAJOR)? True if they are those of
 * dlx__tensor_row_major(). Consumers compare also the strides that no element depends on, so others
 * there are carried, except negative ones, which PyTorch does not accept. */
dlx_for_gpu bool dlx__tensor_strides_follow(int32_t ndim, const int64_t *shape,
                                            const int64_t *strides);

/* Computes the bytes that a tensor without negative strides spans, from its element 0. Returns 0,
 * or DLX_E_SHAPE as dlx__tensor_size() does, and for a negative stride. */
dlx_for_gpu int dlx__tensor_extent(DLDataType dtype, bool padded, int32_t ndim,
                                   const int64_t *shape, const int64_t *strides,
                                   uint64_t *ret_size);

/* Copies `src` in row-major order to `dst`, which has room for dlx__tensor_size() bytes. Honours
 * byte_offset and NULL, zero and negative strides. Returns 0, or DLX_E_SHAPE if the span of the
 * strides overflows or data is NULL with elements. */
int dlx__tensor_compact(void *dst, const DLTensor *src, bool padded);

/* True for GPUs, whose memory is in none of our arenas. */
static inline bool dlx__device_is_gpu(int32_t device_type)
{
    return device_type == kDLCUDA || device_type == kDLROCM;
}

static inline bool dlx__tensor_is_on_gpu(const DLTensor *t)
{
    return dlx__device_is_gpu((int32_t)t->device.device_type);
}

/* Like dlx__record_check(), for a tensor on a GPU in an allocation of `size` bytes. `size` 0: there
 * is no allocation, so the tensor must be empty; UINT64_MAX: the size is unknown. */
dlx_for_gpu int dlx__record_check_gpu(const struct dlx_shm_record *record, const int64_t *shape,
                                      const int64_t *strides, uint64_t size);

/* The general case of dlx__record_check(). */
int dlx__record_check_any(const struct dlx_shm_record *record, const int64_t *shape,
                          const int64_t *strides, uint64_t arena_size);

/* Checks that a record, which a peer wrote, describes a tensor inside an arena of `arena_size`
 * bytes. `shape` has record->ndim sizes, and so has `strides` unless ROW_MAJOR. Returns 0, or
 * DLX_E_BAD_PEER with the reason. */
static inline int dlx__record_check(const struct dlx_shm_record *record, const int64_t *shape,
                                    const int64_t *strides, uint64_t arena_size)
{
    DLDataType dtype = {record->dtype_code, record->dtype_bits, record->dtype_lanes};
    uint64_t need, room;
    if (dlx_likely(record->flags == DLX_SHM_RECORD_ROW_MAJOR && record->device_type == kDLCPU &&
                   record->device_id == 0 && record->offset % DLX_SHM_ALIGN == 0 &&
                   !__builtin_sub_overflow(arena_size, record->offset, &room) &&
                   record->size <= room && record->ndim <= DLX_SHM_NDIM_MAX &&
                   dlx__tensor_size(dtype, false, (int32_t)record->ndim, shape, &need) == 0 &&
                   need <= record->size))
        return 0;
    return dlx__record_check_any(record, shape, strides, arena_size);
}

#endif
