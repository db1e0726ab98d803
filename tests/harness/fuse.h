/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_FUSE_H
#define DLX_TESTS_HARNESS_FUSE_H

/*
 * A file of a FUSE file system whose server, a process of its own, answers until it is told not to
 * any more. From then on a process that closes a descriptor of the file, asks for its size or
 * touches its pages waits until the server ends. Needs root and /dev/fuse.
 */

#include "tests/harness/run.h"
#include <stdatomic.h>

struct dlx_test_fuse_asked {
    atomic_int mute;                                /* 1: the server does not answer */
    atomic_int open, flush, getattr, read, release; /* requests since then */
};

struct dlx_test_fuse {
    pid_t server;
    int watch;                         /* the server ends when no process has this */
    int fd;                            /* the file, read-write */
    struct dlx_test_fuse_asked *asked; /* shared with the server and with children */
};

#define DLX_TEST_FUSE_SIZE 65536

/* Returns false, and prints a line that begins with SKIP, where there can be no such file. */
bool dlx_test_fuse_start(struct dlx_test_fuse *fuse);
/* The server does not answer from now on. Close descriptors before. */
void dlx_test_fuse_mute(struct dlx_test_fuse *fuse);
/* Wait for the first request. */
void dlx_test_fuse_wait(const atomic_int *asked);
/* Every waiting process goes on, with an error. */
void dlx_test_fuse_end(struct dlx_test_fuse *fuse);

#endif
