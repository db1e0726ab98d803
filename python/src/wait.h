/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_WAIT_H
#define DLXPY_WAIT_H

/*
 * Calls of libdlx that may wait. While they do, other threads run, and libdlx asks from time to
 * time whether to wait on: then the handlers of signals run, and a handle that another thread has
 * closed is noticed. A handler may raise an exception, which ends the wait.
 *
 *     dlxpy_wait_begin(&wait, handle, true);
 *     int r = dlx_publisher_wait(...);
 *     if (dlxpy_wait_end(&wait, r) < 0)
 *         return NULL;
 */

#include "handle.h"

struct dlxpy_wait {
    const struct dlxpy_handle *handle; /* NULL: there is none to be closed */
    PyThreadState *released;           /* NULL: this thread has the GIL */
    bool is_deaf;                      /* goes on whatever comes: nobody could be told */
    bool stopped;                      /* with an exception */
    struct dlxpy_wait *outer;          /* around this one, which a handler or finalizer made */
};

/* `handle` was entered. `release`: release the GIL at once, not only when libdlx asks. */
void dlxpy_wait_begin(struct dlxpy_wait *wait, const struct dlxpy_handle *handle, bool release);

/* Has the GIL again. Returns false if the wait was stopped: an exception is there, whatever the
 * call returned. */
bool dlxpy_wait_leave(struct dlxpy_wait *wait);

/* The same, for a call that returned `r`. Returns 0: it succeeded; -1 with an exception. Where that
 * is a handler's, the call may have succeeded: r says so. */
int dlxpy_wait_end(struct dlxpy_wait *wait, int r);

/* Drop what is of libdlx where nobody can be told of a signal. */
void dlxpy_wait_unref(void (*unref)(void *of_libdlx), void *of_libdlx);

/* For dlx_connect_args. */
int dlxpy_wait_interrupt(void *unused);

#endif
