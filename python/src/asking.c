/* SPDX-License-Identifier: Apache-2.0 */
#include "asking.h"
#include "errors.h"
#include "job.h"
#include <stdio.h>
#include <stdlib.h>

/* Of this thread: the call of libdlx that it is in. NULL also while Python runs in between. */
static _Thread_local struct dlxpy_asking *innermost;

/* Of this thread: the last of those in between which Python runs, a signal's handler or the collection of garbage. libdlx holds a lock of
 * their connections: whoever waits for it here waits for himself. */
static _Thread_local struct dlxpy_asking *interrupted;

/* Threads that close something. */
static atomic_int n_closing;

void dlxpy_asking_leave(struct dlxpy_leaving *leaving)
{
    atomic_fetch_add(&n_closing, 1);
    leaving->kind->unref(leaving->of_libdlx);
    atomic_fetch_sub(&n_closing, 1);
    free(leaving);
}

bool dlxpy_asking_leave_later(struct dlxpy_leaving *leaving)
{
    struct dlxpy_asking *a = interrupted;
    if (!a)
        return false;
    while (a->outer)
        a = a->outer;
    leaving->next = a->leaving;
    a->leaving = leaving;
    return true;
}

int dlxpy_asking_may_wait(const struct dlxpy_handle *h)
{
    for (const struct dlxpy_asking *a = interrupted; h && a; a = a->outer)
        if (a->handle->client == h->client) {
            (void)dlxpy_raise_text(DLX_E_IN_USE,
                                   "%s has to wait for a call of its connection that waits for "
                                   "dlpackd, and that this signal's handler interrupted",
                                   h->what);
            return -1;
        }
    return 0;
}

void dlxpy_asking_begin(struct dlxpy_asking *a, const struct dlxpy_handle *handle, bool release)
{
    a->handle = handle;
    a->released = NULL;
    a->stopped = false;
    a->outer = interrupted;
    a->leaving = NULL;
    a->words[0] = '\0';
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

/* What was to leave meanwhile, which may take time as well. It has released the GIL: nothing is here otherwise. */
static void leave(struct dlxpy_asking *a)
{
    (void)snprintf(a->words, sizeof a->words, "%s", dlx_client_errmsg(NULL));
    while (a->leaving) {
        struct dlxpy_leaving *leaving = a->leaving;
        a->leaving = leaving->next;
        dlxpy_asking_leave(leaving);
    }
}

int dlxpy_asking_end(struct dlxpy_asking *a)
{
    if (a->leaving)
        leave(a);
    take_gil(a);
    innermost = NULL;
    return a->stopped ? -1 : 0;
}

void *dlxpy_asking_raise(const struct dlxpy_asking *a, int code)
{
    return a->words[0] ? dlxpy_raise_text(code, "%s", a->words) : dlxpy_raise(code);
}

/* In between, with the GIL: does it go on? */
static bool go_on(struct dlxpy_asking *a)
{
    if (dlxpy_asking_may_wait(a->handle) < 0)
        return false;
    interrupted = a;
    bool ret = dlxpy_handle_go_on(a->handle) == 0;
    interrupted = a->outer;
    return ret;
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
        innermost = NULL;
        a->stopped = !go_on(a);
        innermost = a;
        a->released = PyEval_SaveThread();
    }
    return a->stopped;
}
