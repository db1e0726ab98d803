/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_NPY_H
#define CLI_NPY_H

/**
 * NumPy's .npy files: the header (format versions 1.0, 2.0 and 3.0), and bringing what follows it
 * into row-major, native byte order. Pure functions over memory; nothing in a header is trusted.
 *
 *     "\x93NUMPY" major minor  header size (u16, from version 2 on u32, little-endian)
 *     {'descr': '<f4', 'fortran_order': False, 'shape': (3, 608, 608), }   spaces   '\n'
 *     data
 */

#include "cli/error.h"
#include <dlpack/dlpack.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Bytes that npy_header_size() looks at. No valid file is shorter. */
#define NPY_PREFIX_SIZE 12
/** Longest header that is accepted, prefix included. NumPy itself reads up to 10,000 bytes. */
#define NPY_HEADER_SIZE_MAX 65536
#define NPY_NDIM_MAX        64

struct npy_header {
    DLDataType dtype;   /**< bits 0: the file's items have no DLPack type, see `descr` */
    uint32_t item_size; /**< bytes an item */
    uint32_t swap_size; /**< bytes of the units to be swapped, 0 for native byte order */
    bool fortran_order; /**< the first index changes fastest, and that makes a difference */
    int32_t ndim;
    int64_t shape[NPY_NDIM_MAX];
    uint64_t n_items;
    uint64_t data_size;   /**< bytes after the header, at most 2^63 - 1 */
    uint64_t header_size; /**< offset of the data */
    char descr[32];       /**< as it stands in the file */
};

/** Whether `data` begins with the magic of .npy. */
bool npy_is(const uint8_t *data, size_t size);

/**
 * How many bytes prefix and header have together. `size` must be at least NPY_PREFIX_SIZE, else
 * DLX_E_INVALID like for anything that is not .npy; DLX_E_LIMIT for a header that is too long.
 */
int npy_header_size(const uint8_t *data, size_t size, size_t *ret_size, struct cli_error *e);

/**
 * Parse prefix and header, the first npy_header_size() bytes of a file; more may follow.
 * Returns 0; DLX_E_INVALID (malformed, or truncated); DLX_E_SHAPE (a size that overflows, more than
 * NPY_NDIM_MAX dimensions, or a data type that cannot be carried: Python objects, structures,
 * text); DLX_E_LIMIT.
 */
int npy_header_parse(const uint8_t *data, size_t size, struct npy_header *ret_header,
                     struct cli_error *e);

/**
 * Take the file's items for `dtype`, which must have the size of the file's items: how bfloat16 and
 * others that .npy has no name for come back. Returns 0 or DLX_E_SHAPE.
 */
int npy_header_set_dtype(struct npy_header *header, DLDataType dtype, struct cli_error *e);

/** Swap the bytes of each unit in place. `unit_size` 0 or 1: nothing to do. */
void npy_swap(void *data, uint64_t size, uint32_t unit_size);

/** Copy column-major items of `from` to row-major items of `to`. */
void npy_transpose(const struct npy_header *header, const void *from, void *to);

/** How a tensor is stored in a file whose format may not know its type. */
struct npy_storage {
    char descr[16];
    int32_t ndim;
    int64_t shape[NPY_NDIM_MAX + 1];
    bool exact; /**< the file says the type; else `descr` only has its size */
};

/**
 * Choose how to store a tensor: types that .npy cannot name become unsigned integers of their size
 * (or void), lanes a last dimension, packed types under a byte a row of bytes.
 * Returns 0 or DLX_E_SHAPE (too many dimensions, sizes that overflow).
 */
int npy_storage_choose(DLDataType dtype, const int64_t *shape, int32_t ndim,
                       struct npy_storage *ret_storage, struct cli_error *e);

/**
 * Write prefix and header into `buffer`, byte for byte as NumPy 1.23 and later does.
 * Returns their size, a multiple of 64; 0 when `size` is too small (NPY_WRITE_SIZE_MAX is not).
 */
size_t npy_header_write(const struct npy_storage *storage, uint8_t *buffer, size_t size);
#define NPY_WRITE_SIZE_MAX 2048

#endif
