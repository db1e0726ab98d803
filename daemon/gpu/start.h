/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_GPU_START_H
#define DLXD_GPU_START_H

/* Starts the GPU keeper, which outlives the daemon: dlpackd-keeper continues in the background once
 * it listens, and the started process ends then. */

#include "common/error.h"

/* The size of the found path; "" if there is none. */
#define DLXD_GPU_PROGRAM_SIZE 4096

struct dlxd_gpu_start {
    char program[DLXD_GPU_PROGRAM_SIZE];
    char socket[108];
    char **environment;
    int code; /* the result */
    char text[DLX_ERROR_TEXT_SIZE];
};

/* Finds the program: $DLX_KEEPER, or otherwise beside this program or in ../libexec from there.
 * Returns 0, DLX_E_NO_DAEMON, DLX_E_NO_MEMORY. Call dlxd_gpu_start_deinit() also on failure. */
int dlxd_gpu_start_init(struct dlxd_gpu_start *start, const char *socket);
void dlxd_gpu_start_deinit(struct dlxd_gpu_start *start);
/* Runs on a worker, for a few seconds at most. */
void dlxd_gpu_start_run(struct dlxd_gpu_start *start);

#endif
