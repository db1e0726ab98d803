/* SPDX-License-Identifier: Apache-2.0 */

/*
 * dlx.connect(). libdlx waits for the daemon's answer, and for one that it starts, whatever signals come: a half-made connection is
 * of no use to anybody. So that Ctrl-C works all the same, a thread makes the connection, and who waits for it may leave.
 */

#include "connection.h"
#include "errors.h"
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct attempt {
    atomic_bool alone; /* of the two who have it, one has left: the other frees it */
    sem_t done;
    struct dlx_connect_args args;
    char *socket, *name;
    int r;
    struct dlx_client *c;
    char words[512]; /* why it failed */
};

static void attempt_free(struct attempt *attempt)
{
    dlx_client_unref(attempt->c);
    (void)sem_destroy(&attempt->done);
    free(attempt->socket);
    free(attempt->name);
    free(attempt);
}

static void leave(struct attempt *attempt)
{
    if (atomic_exchange(&attempt->alone, true))
        attempt_free(attempt);
}

static void *run(void *data)
{
    struct attempt *attempt = data;
    attempt->r = dlx_connect(&attempt->c, &attempt->args);
    if (attempt->r < 0)
        strncat(attempt->words, dlx_client_errmsg(NULL), sizeof attempt->words - 1);
    (void)sem_post(&attempt->done);
    leave(attempt);
    return NULL;
}

/* NULL with an exception. */
static struct attempt *attempt_new(const struct dlx_connect_args *args)
{
    struct attempt *attempt = calloc(1, sizeof *attempt);
    if (!attempt)
        return (struct attempt *)PyErr_NoMemory();
    (void)sem_init(&attempt->done, 0, 0);
    attempt->args = *args;
    attempt->args.socket = attempt->socket = args->socket ? strdup(args->socket) : NULL;
    attempt->args.name = attempt->name = args->name ? strdup(args->name) : NULL;
    if ((!args->socket || attempt->socket) && (!args->name || attempt->name))
        return attempt;
    attempt_free(attempt);
    return (struct attempt *)PyErr_NoMemory();
}

/* Signals are for the threads that were there before. Returns 0 or an errno. */
static int start(struct attempt *attempt)
{
    sigset_t all, old;
    pthread_t thread;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    int error = pthread_create(&thread, NULL, run, attempt);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (error == 0)
        (void)pthread_detach(thread);
    return error;
}

/* Returns true when it is done, early also for a signal. */
static bool wait_a_little(struct attempt *attempt)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += DLXPY_SLICE_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    return sem_clockwait(&attempt->done, CLOCK_MONOTONIC, &until) == 0;
}

static PyObject *finish(struct attempt *attempt)
{
    bool done = false;
    int error = start(attempt);
    if (error != 0) {
        atomic_store(&attempt->alone, true);
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    for (;;) {
        Py_BEGIN_ALLOW_THREADS
        done = wait_a_little(attempt);
        Py_END_ALLOW_THREADS
        if (done)
            break;
        if (PyErr_CheckSignals() < 0)
            return NULL;
    }
    if (attempt->r < 0)
        return dlxpy_raise_text(attempt->r, "%s", attempt->words);
    struct dlx_client *c = attempt->c;
    attempt->c = NULL;
    return dlxpy_connection_new(c);
}

const char dlxpy_connect_doc[] =
    "connect(socket=None, *, name=None, timeout=None, autospawn=True)\n--\n\n"
    "Connect to dlpackd; where nobody named one and none answers, start a private one for "
    "this user, which ends\n"
    "when nobody has been connected for 10 seconds.\n\n"
    "socket     path of the daemon's socket; None: $DLX_SOCKET, else the usual places\n"
    "name       of this program, for `dlxctl ls`, at most 63 bytes\n"
    "timeout    seconds that this and later calls wait for the daemon's answer; None: 5\n"
    "autospawn  False: never start a daemon (as DLX_AUTOSPAWN=no)\n\n"
    "Ctrl-C interrupts it. Raises dlx.DaemonError (none there, none could be started), "
    "dlx.Timeout, "
    "dlx.AccessError, dlx.LimitError.";
PyObject *dlxpy_connect(PyObject *module, PyObject *const *args, Py_ssize_t n_args,
                        PyObject *kwnames)
{
    static const char *const names[] = {"socket", "name", "timeout", "autospawn"};
    static const struct dlxpy_params params = {"connect", names, 4, 1, 0};
    struct dlx_connect_args connect_args = {.size = sizeof connect_args};
    PyObject *value[4], *socket, *name = NULL, *ret = NULL;
    bool autospawn = true;
    (void)module;
    if (dlxpy_parse(&params, args, n_args, kwnames, value) < 0 ||
        dlxpy_flag(value[3], &autospawn) < 0 ||
        (value[2] && value[2] != Py_None && dlxpy_timeout(value[2], &connect_args.timeout_ns) < 0))
        return NULL;
    connect_args.autospawn = autospawn ? DLX_AUTOSPAWN_DEFAULT : DLX_AUTOSPAWN_NEVER;
    if (dlxpy_text_of(value[0], &socket, &connect_args.socket) == 0 &&
        dlxpy_text_of(value[1], &name, &connect_args.name) == 0) {
        struct attempt *attempt = attempt_new(&connect_args);
        if (attempt) {
            ret = finish(attempt);
            leave(attempt);
        }
    }
    Py_XDECREF(socket);
    Py_XDECREF(name);
    return ret;
}
