/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_CHILD_H
#define DLXD_CHILD_H

/* A program that the daemon runs and waits for. Call these on a worker (worker.h). */

#include "common/util.h"

enum {
    DLXD_CHILD_LATE = -1,   /* it did not end in time, and was killed */
    DLXD_CHILD_ABSENT = -2, /* it could not be started: errno says why */
};

/*
 * Run the program, with its signals as a program expects them, standard input and output at
 * /dev/null, and the daemon's standard error. Returns its exit status; 128 and the number of the
 * signal that ended it; or DLXD_CHILD_LATE, DLXD_CHILD_ABSENT.
 */
int dlxd_child_run(const char *program, char *const argv[], char *const environment[],
                   uint64_t patience_ns);

/* The environment without what the service manager told this process about itself: an array to be
 * freed, of strings that stay where they are. NULL when out of memory. On the loop. */
char **dlxd_child_environment(void);

#endif
