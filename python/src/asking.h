/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_ASKING_H
#define DLXPY_ASKING_H

/*
 * Calls of libdlx that seldom ask the daemon, and then wait for it: Ctrl-C ends them, and other threads run meanwhile.
 * A thread for each (job.h) would cost more than they do.
 */

#include "handle.h"

struct dlxpy_asking {
    const struct dlxpy_handle *handle;
    PyThreadState *released;       /* NULL: this thread has the GIL */
    bool stopped;                  /* with an exception */
    struct dlxpy_asking *outer;    /* in whose wait Python runs, and made this */
    struct dlxpy_leaving *leaving; /* of the outermost: what is to leave when libdlx has returned */
    char words[512];               /* of the call, if something left since */
};

/* Around such a call of `handle`, which has been entered, or is dropped. `release`: the GIL at once, not just when the daemon is slow. */
void dlxpy_asking_begin(struct dlxpy_asking *a, const struct dlxpy_handle *handle, bool release);
/* Has the GIL again. Returns 0; -1: an exception is there (of a signal's handler; or somebody closed it), whatever the call returned. */
int dlxpy_asking_end(struct dlxpy_asking *a);

/* As dlxpy_raise(), for a code that the call returned. NULL. */
void *dlxpy_asking_raise(const struct dlxpy_asking *a, int code);

/*
 * While such a call waits Python may run in its thread: a signal's handler, or the collection of garbage. What is dropped there leaves
 * when libdlx has returned; and a call of the same connection would wait for ever: it may not.
 */

/* Drops what is of libdlx, without the GIL. */
void dlxpy_asking_leave(struct dlxpy_leaving *leaving);

/* Returns false: that is not needed, and not done. */
bool dlxpy_asking_leave_later(struct dlxpy_leaving *leaving);

/* May a call of `h` wait for the daemon here? 0, or -1 with dlx.InUse. `h` may be NULL. */
int dlxpy_asking_may_wait(const struct dlxpy_handle *h);

/* For dlx_connect_args. */
int dlxpy_asking_interrupt(void *unused);

#endif
