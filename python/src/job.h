/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_JOB_H
#define DLXPY_JOB_H

/*
 * Calls of libdlx that wait for the daemon's answer, whatever signals come: half an answer is of no use to anybody. So that Ctrl-C works
 * all the same, a thread makes the call, and who waits for it may leave; what comes of it is dropped then.
 */

#include "handle.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

/* The first member of each. */
struct dlxpy_job {
    void (*run)(struct dlxpy_job *job);  /* in the thread, without the GIL: sets r */
    void (*free)(struct dlxpy_job *job); /* with what is still in it */
    int r;
    char words[512]; /* why it failed */
    /* The thread has run, or nobody waits for it any more: who comes second frees it. */
    atomic_bool alone;
    _Atomic uint32_t done; /* a futex; it has run */
    pthread_t thread;
    bool started;
};

/* Zeroes are in it. */
void dlxpy_job_init(struct dlxpy_job *job, void (*run)(struct dlxpy_job *job),
                    void (*free)(struct dlxpy_job *job));

/*
 * Have it run, and wait for it. Returns 0: it has run, and succeeded; or -1 with an exception: it failed, or a signal's handler raised
 * one, or another thread closed `h` (NULL: nothing to close). After it, once: dlxpy_job_leave().
 */
int dlxpy_job_do(struct dlxpy_job *job, const struct dlxpy_handle *h);
void dlxpy_job_leave(struct dlxpy_job *job);

/* Is this the thread of a job that nobody waits for any more? */
bool dlxpy_job_is_left(void);

#endif
