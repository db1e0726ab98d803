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
    PyThreadState *released; /* NULL: this thread has the GIL */
    bool stopped;            /* with an exception */
    struct dlxpy_asking *outer;
};

/* Around such a call of `handle`, which has been entered; NULL: of none. `release`: the GIL at once, not just when the daemon is slow. */
void dlxpy_asking_begin(struct dlxpy_asking *a, const struct dlxpy_handle *handle, bool release);
/* Has the GIL again. Returns 0; -1: an exception is there (of a signal's handler; or somebody closed it), whatever the call returned. */
int dlxpy_asking_end(struct dlxpy_asking *a);

/* Drops what is of libdlx, without the GIL. */
void dlxpy_asking_unref(const struct dlxpy_handle_kind *kind, void *of_libdlx);

/* For dlx_connect_args. */
int dlxpy_asking_interrupt(void *unused);

#endif
