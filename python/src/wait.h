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
    const struct dlxpy_handle *handle; /* NULL: none */
    PyThreadState *released;           /* NULL: this thread has the GIL */
    bool is_deaf;                      /* signals do not end the wait: no caller can raise */
    bool stopped;                      /* with an exception */
    struct dlxpy_wait *outer; /* the wait during which a handler or finalizer began this one */
};

/* `handle` was entered. `release`: release the GIL at once, not only when libdlx asks. */
void dlxpy_wait_begin(struct dlxpy_wait *wait, const struct dlxpy_handle *handle, bool release);

/* The thread has the GIL again. Returns false if the wait was stopped: an exception is set,
 * whatever the call returned. */
bool dlxpy_wait_leave(struct dlxpy_wait *wait);

/* As dlxpy_wait_leave(), for a call that returned `r`. Returns 0 if the call succeeded; -1 with an
 * exception. If a signal's handler raised it, the call may have succeeded: see `r`. */
int dlxpy_wait_end(struct dlxpy_wait *wait, int r);

/* Drop an object of libdlx where no caller can raise the exception of a signal's handler. */
void dlxpy_wait_unref(void (*unref)(void *of_libdlx), void *of_libdlx);

/* For dlx_connect_args. */
int dlxpy_wait_interrupt(void *unused);

#endif
