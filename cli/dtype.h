/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_DTYPE_H
#define CLI_DTYPE_H

/** Sizes and names of shapes: pure functions. Names of data types are those of dlx/dtype.h. */

#include <dlx/dlx.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Enough for any name of a shape: DTYPE_NDIM_MAX sizes of 20 characters. */
#define SHAPE_NAME_SIZE 1536
#define DTYPE_NDIM_MAX  64

/** Number of items of a shape. Returns false when it does not fit 2^63 - 1 or a size is negative.
 */
bool shape_items(const int64_t *shape, int32_t ndim, uint64_t *ret_n_items);

/** Bytes of n_items packed items. Returns false when they do not fit 2^63 - 1. */
bool dtype_bytes(DLDataType dtype, uint64_t n_items, uint64_t *ret_size);

/** "(3, 608, 608)", "(5,)", "()", as Python writes it. */
void shape_name(const int64_t *shape, int32_t ndim, char name[SHAPE_NAME_SIZE]);

#endif
