/* SPDX-License-Identifier: Apache-2.0 */
#include "asking.h"
#include "job.h"

/* Of this thread; a signal's handler may make calls of its own. */
static _Thread_local struct dlxpy_asking *innermost;

/* Threads that close something. */
static atomic_int n_closing;

void dlxpy_asking_unref(const struct dlxpy_handle_kind *kind, void *of_libdlx)
{
    atomic_fetch_add(&n_closing, 1);
    kind->unref(of_libdlx);
    atomic_fetch_sub(&n_closing, 1);
}

void dlxpy_asking_begin(struct dlxpy_asking *a, const struct dlxpy_handle *handle, bool release)
{
    *a = (struct dlxpy_asking){.handle = handle, .outer = innermost};
    innermost = a;
    if (release)
        a->released = PyEval_SaveThread();
}

static void take_gil(struct dlxpy_asking *a)
{
    if (a->released)
        PyEval_RestoreThread(a->released);
    a->released = NULL;
}

int dlxpy_asking_end(struct dlxpy_asking *a)
{
    take_gil(a);
    innermost = a->outer;
    return a->stopped ? -1 : 0;
}

int dlxpy_asking_interrupt(void *unused)
{
    struct dlxpy_asking *a = innermost;
    (void)unused;
    /* A job that was left waits on, to give back what comes, as long as it is in nobody's way. */
    if (!a)
        return atomic_load(&n_closing) > 0 && dlxpy_job_is_left();
    if (!a->stopped) {
        take_gil(a);
        a->stopped = dlxpy_handle_go_on(a->handle) < 0;
        a->released = PyEval_SaveThread();
    }
    return a->stopped;
}
