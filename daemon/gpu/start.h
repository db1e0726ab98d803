/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_GPU_START_H
#define DLXD_GPU_START_H

/* Starting the GPU keeper, which is to outlive the daemon: dlpackd-keeper goes on in the background
 * once it listens, and then the process that was started ends. */

#include "common/error.h"

/* Of what is found: "" where there is none. */
#define DLXD_GPU_PROGRAM_SIZE 4096

struct dlxd_gpu_start {
    char program[DLXD_GPU_PROGRAM_SIZE];
    char socket[108];
    char **environment;
    int code; /* what came of it */
    char text[DLX_ERROR_TEXT_SIZE];
};

/*
 * Look for the program: $DLX_KEEPER; else beside this one, and in ../libexec from there. Returns 0,
 * DLX_E_NO_DAEMON, DLX_E_NO_MEMORY. Call dlxd_gpu_start_deinit() also then.
 */
int dlxd_gpu_start_init(struct dlxd_gpu_start *start, const char *socket);
void dlxd_gpu_start_deinit(struct dlxd_gpu_start *start);
/* On a thread: a few seconds at most. */
void dlxd_gpu_start_run(struct dlxd_gpu_start *start);

#endif
