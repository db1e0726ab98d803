/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_SAVE_FILE_H
#define CLI_SAVE_FILE_H

/** Files that appear when they are complete, and tensors' content into them. */

#include "cli/error.h"
#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>

#define SAVE_PATH_SIZE 4096

/** Write all of it. Returns 0; DLX_E_SYSTEM with errno; DLX_E_INTERRUPTED: a signal that is held
 *  back (cli/wait.h) is to end this. */
int save_bytes(int fd, const void *data, uint64_t size);

/** Write the `size` bytes of a readable tensor's `n_items` items, row-major and packed. Likewise.
 *  */
int save_items(int fd, const DLTensor *t, uint64_t n_items, uint64_t size);

/** Writes a file's content with the functions above, and returns what they do. */
typedef int (*save_content_fn)(int fd, const void *content);

/**
 * Have `write` make a file: under a temporary name, synced to the disk, and renamed when it is
 * complete. A file that is replaced keeps its permissions; a symbolic link stays, and the file that
 * it leads to is replaced. A signal that ends the program does so when the temporary file is gone.
 * A device or a pipe is written to; "-" is the standard output; a terminal is refused.
 *
 * Returns 0; DLX_E_SYSTEM and DLX_E_INVALID (a terminal) with words; DLX_E_INTERRUPTED: a signal
 * came that is caught, and the file was not written.
 */
int save_file(const char *path, save_content_fn write, const void *content, struct cli_error *e);

#endif
