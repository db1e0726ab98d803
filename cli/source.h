/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_SOURCE_H
#define CLI_SOURCE_H

/**
 * Tensors out of files: .npy, raw bytes. Each file may hold several, one after the other. A
 * .safetensors or .npz file is one set of named tensors. Files are read from front to back, so a
 * pipe is as good as a file, and straight into the memory that the caller gives, except where the
 * data must be rearranged.
 */

#include "cli/error.h"
#include "cli/npy.h"
#include "cli/safetensors.h"

struct source_args {
    char *const *files; /**< "-" is the standard input; borrowed for the source's life */
    size_t n_files;
    bool joined;      /**< together they are one set, and each of `files` is [NAME=]FILE */
    bool raw;         /**< they are raw bytes of `dtype` and `shape` */
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

struct source;

/**
 * "rgb=a.npy" is the tensor rgb of a set, "a.npy" and "=a.npy" the tensor a. `*ret_file` points
 * into `argument`. Returns 0 or DLX_E_INVALID with words.
 */
#define JOINED_NAME_SIZE 1024
int joined_split(const char *argument, char name[JOINED_NAME_SIZE], const char **ret_file,
                 struct cli_error *e);

/** Returns 0, DLX_E_NO_MEMORY or, of a name in a set, DLX_E_INVALID. Opens nothing yet. */
int source_new(struct source **ret, const struct source_args *args, struct cli_error *e);
struct source *source_free(struct source *s);

/** Begin with the first file again. */
void source_rewind(struct source *s);

/**
 * Look at the next tensor. Returns 1; 0 after the last one; DLX_E_INTERRUPTED when a signal came
 * (wait_signal()); DLX_E_INVALID, DLX_E_SHAPE, DLX_E_LIMIT, DLX_E_SYSTEM with words.
 */
int source_next(struct source *s, struct source_item *ret_item, struct cli_error *e);

/** Read the content of a single tensor, item.size bytes. Errors as above, and DLX_E_NO_MEMORY. */
int source_read(struct source *s, void *data, struct cli_error *e);

/** Read the content of a set: data[i] has room for item.set->tensors[i].size bytes. Errors
 *  likewise. */
int source_read_set(struct source *s, void *const *data, struct cli_error *e);

#endif
