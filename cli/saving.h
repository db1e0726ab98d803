/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_SAVING_H
#define CLI_SAVING_H

/** Messages into files, for the commands that save: what the command line asks for, and what is
 *  said about it. */

#include "cli/cli.h"
#include "cli/progress.h"

#define SAVING_NO_TENSOR UINT32_MAX

struct saving {
    struct cli *cli;
    const char *topic; /**< or pattern */
    const char *file;  /**< or pattern, its suffix says what it is */
    uint32_t tensor;   /**< the one that a .npy file gets; SAVING_NO_TENSOR: not asked for */
    bool set;          /**< into .safetensors, npz into .npz: saving_check() sets them */
    bool npz;
    struct progress *progress; /**< of writing a large message */
    bool told_type, told_more, told_meta;
};

/** Does the command line make sense? Else the program ends with usage status. */
void saving_check(struct saving *s, struct argp_state *state);

/**
 * Write a message to `path`, and a JSON object to stdout if that was asked for; say once what the
 * file cannot hold. Failures are reported. Returns an exit status, that of a signal (CLI_SIGNAL) if
 * one came and the file was not written, and the size of the file.
 */
int saving_write(struct saving *s, const struct dlx_message *m, const char *path,
                 uint64_t *ret_size);

#endif
