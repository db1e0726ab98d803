/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_SOURCE_H
#define CLI_SOURCE_H

/**
 * Tensors out of files: .npy, raw bytes. Each file may hold several, one after the other. A
 * .safetensors or .npz file is one set of named tensors. Files are read from front to back, so a
 * pipe is as good as a file, and straight into the memory that the caller gives, except where the
 * data must be rearranged.
 */

#include "cli/source_item.h"

struct source;

/**
 * "rgb=a.npy" is the tensor rgb of a set, "a.npy" and "=a.npy" the tensor a. `*ret_file` points
 * into `argument`. Returns 0 or DLX_E_INVALID with words.
 */
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
