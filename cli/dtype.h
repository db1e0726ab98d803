/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_DTYPE_H
#define CLI_DTYPE_H

/** Names of data types, sizes of shapes: pure functions. */

#include <dlpack/dlpack.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DTYPE_NAME_SIZE 48
/** Enough for any name of a shape: DTYPE_NDIM_MAX sizes of 20 characters. */
#define SHAPE_NAME_SIZE 1536
#define DTYPE_NDIM_MAX  64

/** "float32", with lanes "float32x4"; "code:bits:lanes" in numbers for a type without a name. */
void dtype_name(DLDataType dtype, char name[DTYPE_NAME_SIZE]);

/**
 * The type of a name, as dtype_name() writes it, or of one of NumPy's short forms ("f4", "u1").
 * Returns false when there is no such type, or it has no bits or no lanes.
 */
bool dtype_parse(const char *name, DLDataType *ret_dtype);

/** Whether dtype_name() has a name for it. */
bool dtype_is_known(DLDataType dtype);

/** Number of items of a shape. Returns false when it does not fit 2^63 - 1 or a size is negative.
 */
bool shape_items(const int64_t *shape, int32_t ndim, uint64_t *ret_n_items);

/** Bytes of n_items packed items. Returns false when they do not fit 2^63 - 1. */
bool dtype_bytes(DLDataType dtype, uint64_t n_items, uint64_t *ret_size);

/** "(3, 608, 608)", "(5,)", "()", as Python writes it. */
void shape_name(const int64_t *shape, int32_t ndim, char name[SHAPE_NAME_SIZE]);

#endif
