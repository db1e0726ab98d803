/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_FAULTS_PAGE_H
#define DLX_TESTS_FAULTS_PAGE_H

/* A page that a process under test shares with tests/fail/faults/run, which reads it also when the
 * process was killed. $FAULT_PAGE_FD is its descriptor. tests/fail/faults/stage.py knows the
 * layout. */

#include <stdatomic.h>
#include <stdint.h>

#define FAULT_PAGE_ENV  "FAULT_PAGE_FD"
#define FAULT_PAGE_SIZE 4096

struct fault_page {
    /* Set by run: allocations number fail_from to fail_from + fail_count - 1 fail. */
    uint64_t fail_from;
    uint64_t fail_count;
    /* Set by run, for a publisher: subscribers to wait for. */
    _Atomic uint64_t wanted;
    /* Of libfaultalloc.so. */
    _Atomic uint64_t allocations;
    _Atomic int64_t live; /* blocks that were not freed */
    _Atomic uint64_t failed;
    /* Of the actor. */
    _Atomic uint64_t began; /* messages: dlx_publish() was called */
    _Atomic uint64_t done;  /* and has returned; a subscriber: were taken */
    _Atomic uint64_t state; /* enum fault_state */
};

enum fault_state {
    FAULT_STARTING = 0,
    FAULT_STREAMING = 1, /* messages flow */
    FAULT_WAITING = 3,   /* a publisher: for somebody to join */
    FAULT_FINISHED = 2,  /* a publisher: everything is published; others: about to exit */
};

#endif
