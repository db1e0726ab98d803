/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_CHILD_H
#define DLXD_CHILD_H

/* Runs a program and waits for it. Call these functions on a worker (worker.h). */

#include "common/util.h"

enum {
    DLXD_CHILD_LATE = -1,   /* it did not end in time and was killed */
    DLXD_CHILD_ABSENT = -2, /* it could not be started: errno has the reason */
};

/* Runs the program with default signals, standard input and output at /dev/null, and the daemon's
 * standard error. Returns its exit status; 128 plus the number of the signal that ended it; or
 * DLXD_CHILD_LATE or DLXD_CHILD_ABSENT. */
int dlxd_child_run(const char *program, char *const argv[], char *const environment[],
                   uint64_t patience_ns);

/* The environment without the variables by which the service manager addresses this process.
 * Returns an array that the caller frees; the strings belong to `environ`. NULL: out of memory.
 * Call it on the loop. */
char **dlxd_child_environment(void);

#endif
