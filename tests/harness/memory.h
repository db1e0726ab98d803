/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_MEMORY_H
#define DLX_TESTS_HARNESS_MEMORY_H

/* The actions of a region's writer, honest or not. */

#include "tests/harness/run.h"

/* Write zeros to its first `size` bytes: these pages stay. Sets no seals. */
void dlx_test_memory_fill(int writer_fd, uint64_t size);
/* Take pages away again. */
void dlx_test_memory_punch(int writer_fd, uint64_t at, uint64_t size);
/* The seals that a writer sets. */
void dlx_test_memory_seal(int writer_fd);

/*
 * A process that has the lock of a region's file, in a write(2) that waits for ever: its memory is
 * never provided (userfaultfd). The process ends with the test, or when it is told to let go.
 */
struct dlx_test_lock {
    pid_t pid;
    int faults; /* its userfaultfd */
};

/* Returns when the process has the lock. False, with a line that begins with SKIP, where this
 * cannot be done. */
bool dlx_test_memory_lock(struct dlx_test_lock *lock, int writer_fd);
void dlx_test_memory_unlock(struct dlx_test_lock *lock);

#endif
