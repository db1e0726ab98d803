/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_EXTERNAL_H
#define CLI_EXTERNAL_H

/**
 * Commands that are programs of their own: `dlxctl NAME` runs dlxctl-NAME, or dlx-NAME, in the
 * folder of dlxctl, in ../libexec/dlpackd from there, or else on $PATH.
 */

#include "cli/cli.h"

/** Such a command that this project has, whether it is installed or not. */
struct cli_external {
    const char *name;
    const char *package; /**< that has it */
    const char *help;
};
extern const struct cli_external cli_externals[];
extern const size_t cli_n_externals;

/** Returns NULL: there is none of this name. */
const struct cli_external *cli_external_known(const char *name);

/** Find the program of a command. Returns its path, which the caller frees; NULL: there is none. */
char *cli_external_find(const char *name);

/** Become the program, with these arguments, of which the first is the command. `cli` has the
 *  options that stood before the command. Returns CLI_FAILURE, after a report. */
int cli_external_run(const struct cli *cli, const char *path, char *const *words);

#endif
