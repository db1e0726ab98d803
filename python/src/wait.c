/* SPDX-License-Identifier: Apache-2.0 */
#include "wait.h"
#include "errors.h"

/* The call of libdlx in which this thread is. NULL also while Python runs in between. */
static _Thread_local struct dlxpy_wait *innermost;

void dlxpy_wait_begin(struct dlxpy_wait *wait, const struct dlxpy_handle *handle, bool release)
{
    *wait = (struct dlxpy_wait){.handle = handle, .outer = innermost};
    innermost = wait;
    if (release)
        wait->released = PyEval_SaveThread();
}

bool dlxpy_wait_leave(struct dlxpy_wait *wait)
{
    if (wait->released)
        PyEval_RestoreThread(wait->released);
    innermost = wait->outer;
    return !wait->stopped;
}

int dlxpy_wait_end(struct dlxpy_wait *wait, int r)
{
    if (!dlxpy_wait_leave(wait))
        return -1;
    if (r < 0 && !PyErr_Occurred()) /* this module's callback has raised it */
        (void)dlxpy_raise(r);
    return r < 0 ? -1 : 0;
}

void dlxpy_wait_unref(void (*unref)(void *of_libdlx), void *of_libdlx)
{
    struct dlxpy_wait wait;
    dlxpy_wait_begin(&wait, NULL, true);
    wait.is_deaf = true;
    unref(of_libdlx);
    (void)dlxpy_wait_leave(&wait);
}

int dlxpy_wait_interrupt(void *unused)
{
    struct dlxpy_wait *wait = innermost;
    (void)unused;
    if (!wait || wait->is_deaf || wait->stopped)
        return wait && wait->stopped;
    if (wait->released)
        PyEval_RestoreThread(wait->released);
    innermost = NULL;
    wait->stopped = dlxpy_handle_go_on(wait->handle) < 0;
    innermost = wait;
    wait->released = PyEval_SaveThread();
    return wait->stopped;
}
