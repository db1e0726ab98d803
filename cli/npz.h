/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_NPZ_H
#define CLI_NPZ_H

/**
 * NumPy's .npz files: zip archives with a .npy file for each array, which is named like its member
 * without ".npy". libzip reads and writes them. A build without it (DLX_NO_ZIP) refuses them.
 */

#include "cli/save.h"
#include <stddef.h>
#include <stdint.h>

/** Parts of help and of errors, which name .npz only where it can be read and written. */
#ifdef DLX_NO_ZIP
#define NPZ_COMMA ""
#define NPZ_AND   ""
#define NPZ_OR    ""
#else
#define NPZ_COMMA ", .npz"
#define NPZ_AND   " and .npz"
#define NPZ_OR    " or .npz"
#endif

/** Whether these first bytes are those of a zip archive. */
bool npz_is(const uint8_t *data, size_t size);

/**
 * Write all tensors of a message to an archive without compression, as numpy.savez() does: a tensor
 * without a name is called arr_<its place in the message>. Metadata is left out. Returns as
 * save_tensor(), and DLX_E_INVALID (a name that is there twice).
 */
int npz_save(const struct dlx_message *m, const char *path, struct save_report *ret_report,
             struct cli_error *e);

#endif
