/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_SOURCE_ITEM_H
#define CLI_SOURCE_ITEM_H

/** The arguments of a source, and the items that it finds. */

#include "cli/error.h"
#include "cli/npy.h"
#include "cli/safetensors.h"

#define JOINED_NAME_SIZE 1024

struct source_args {
    char *const *files; /**< "-" is the standard input; borrowed for the source's life */
    size_t n_files;
    bool joined;      /**< the files together are one set, and each of them is [NAME=]FILE */
    bool raw;         /**< the files are raw bytes of `dtype` and `shape` */
    DLDataType dtype; /**< bits 0: as the file says */
    int32_t ndim;
    int64_t shape[NPY_NDIM_MAX];
};

/** The next tensor, or set. */
struct source_item {
    const struct safetensors *set; /**< NULL: one tensor, as follows; lives until the next item */
    DLDataType dtype;
    int32_t ndim;
    int64_t shape[NPY_NDIM_MAX];
    uint64_t size;    /**< bytes, of a set all together */
    const char *file; /**< "standard input" for "-" */
};

#endif
