/* SPDX-License-Identifier: Apache-2.0 */

/* Sizes of shapes and data types, and shapes as text. */

#include "cli/dtype.h"
#include <inttypes.h>
#include <stdio.h>

bool shape_items(const int64_t *shape, int32_t ndim, uint64_t *ret_n_items)
{
    uint64_t n = 1;
    bool empty = false;
    for (int32_t i = 0; i < ndim; i++) {
        if (shape[i] < 0)
            return false;
        empty = empty || shape[i] == 0;
    }
    for (int32_t i = 0; i < ndim && !empty; i++)
        if (__builtin_mul_overflow(n, (uint64_t)shape[i], &n) || n > INT64_MAX)
            return false;
    *ret_n_items = empty ? 0 : n;
    return true;
}

bool dtype_bytes(DLDataType dtype, uint64_t n_items, uint64_t *ret_size)
{
    uint64_t item_bits = (uint64_t)dtype.bits * dtype.lanes, bits, size;
    if (item_bits % 8 == 0) {
        if (__builtin_mul_overflow(n_items, item_bits / 8, &size))
            return false;
    } else {
        if (__builtin_mul_overflow(n_items, item_bits, &bits))
            return false;
        size = bits / 8 + (bits % 8 != 0);
    }
    if (size > INT64_MAX)
        return false;
    *ret_size = size;
    return true;
}

void shape_name(const int64_t *shape, int32_t ndim, char name[SHAPE_NAME_SIZE])
{
    size_t at = 0;
    name[at++] = '(';
    for (int32_t i = 0; i < ndim && i < DTYPE_NDIM_MAX; i++)
        at += (size_t)snprintf(name + at, SHAPE_NAME_SIZE - at, "%s%" PRId64, i ? ", " : "",
                               shape[i]);
    (void)snprintf(name + at, SHAPE_NAME_SIZE - at, "%s", ndim == 1 ? ",)" : ")");
}
