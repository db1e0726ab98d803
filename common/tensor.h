/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_TENSOR_H
#define DLX_COMMON_TENSOR_H

/*
 * Arithmetic over shapes, strides and data types, all of it checked for overflow: the numbers come
 * from users and from other processes. Shapes and strides count elements; an element is `bits * lanes`
 * bits. Types of less than a byte are packed, little-endian bits, unless `padded` (then each element
 * has whole bytes: DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED).
 */

#include "common/shm.h"
#include <dlpack/dlpack.h>

/*
 * Bytes of a row-major tensor. Returns 0, or DLX_E_SHAPE with the reason: ndim below 0 or above
 * DLX_SHM_NDIM_MAX, a negative size, more than 2^63-1 bytes, no bits or no lanes.
 */
int dlx__tensor_size(DLDataType dtype, bool padded, int32_t ndim, const int64_t *shape,
                     uint64_t *ret_size);

/* Fill `strides` for row-major order. Dimensions of size 1 get stride 1, as every framework accepts. The
 * shape was checked by dlx__tensor_size(). */
void dlx__tensor_row_major(int32_t ndim, const int64_t *shape, int64_t *strides);

/* Do these strides (NULL: yes) describe row-major order, dimensions of size 1 aside? */
bool dlx__tensor_is_row_major(int32_t ndim, const int64_t *shape, const int64_t *strides);

/*
 * Bytes that a strided tensor without negative strides spans from its element 0. Returns 0 or
 * DLX_E_SHAPE (as above, and a negative stride).
 */
int dlx__tensor_extent(DLDataType dtype, bool padded, int32_t ndim, const int64_t *shape,
                       const int64_t *strides, uint64_t *ret_size);

/*
 * Copy `src` to row-major order at `dst`, which has room for dlx__tensor_size() bytes. Honours byte_offset,
 * NULL, zero and negative strides. Returns 0 or DLX_E_SHAPE (strides whose span overflows, or data NULL
 * with elements).
 */
int dlx__tensor_compact(void *dst, const DLTensor *src, bool padded);

/*
 * Is what a peer wrote a tensor inside an arena of `arena_size` bytes? `shape` has record->ndim sizes,
 * `strides` likewise unless ROW_MAJOR. Returns 0, or DLX_E_BAD_PEER with the reason.
 */
int dlx__record_check(const struct dlx_shm_record *record, const int64_t *shape,
                      const int64_t *strides, uint64_t arena_size);

#endif
