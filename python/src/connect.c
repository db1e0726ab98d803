/* SPDX-License-Identifier: Apache-2.0 */

/* dlx.connect(): waits for the daemon's answer, and for one that is started. */

#include "asking.h"
#include "errors.h"
#include "connection.h"
#include "job.h"
#include <stdlib.h>
#include <string.h>

struct attempt {
    struct dlxpy_job job;
    struct dlx_connect_args args;
    char *socket, *name;
    struct dlx_client *c;
};

static void attempt_free(struct dlxpy_job *job)
{
    struct attempt *attempt = (struct attempt *)job;
    dlx_client_unref(attempt->c);
    free(attempt->socket);
    free(attempt->name);
    free(attempt);
}

static void run(struct dlxpy_job *job)
{
    struct attempt *attempt = (struct attempt *)job;
    job->r = dlx_connect(&attempt->c, &attempt->args);
}

/* 0 is the default of libdlx, and no answer comes at once. Who gives a time also waits for a daemon that is not there. */
static int parse_timeout(PyObject *object, struct dlx_connect_args *args)
{
    if (!object || object == Py_None)
        return 0;
    if (dlxpy_timeout(object, &args->timeout_ns) < 0)
        return -1;
    args->wait_ns = args->timeout_ns;
    if (args->timeout_ns != 0)
        return 0;
    PyErr_SetString(PyExc_ValueError,
                    "the timeout of a connection is more than 0 seconds, or None for 5: "
                    "every answer of the daemon takes time");
    return -1;
}

/* NULL with an exception. */
static struct attempt *attempt_new(const struct dlx_connect_args *args)
{
    struct attempt *attempt = calloc(1, sizeof *attempt);
    if (!attempt)
        return (struct attempt *)PyErr_NoMemory();
    dlxpy_job_init(&attempt->job, run, attempt_free);
    attempt->args = *args;
    attempt->args.socket = attempt->socket = args->socket ? strdup(args->socket) : NULL;
    attempt->args.name = attempt->name = args->name ? strdup(args->name) : NULL;
    if ((!args->socket || attempt->socket) && (!args->name || attempt->name))
        return attempt;
    attempt_free(&attempt->job);
    return (struct attempt *)PyErr_NoMemory();
}

static PyObject *finish(struct attempt *attempt)
{
    if (dlxpy_job_do(&attempt->job, NULL) < 0) {
        const char *socket = attempt->args.socket;
        if (socket && *socket != '/' && *socket != '.' &&
            PyErr_ExceptionMatches(PyExc_ConnectionError))
            dlxpy_add_note("connect() takes the path of a daemon's socket, or nothing: topics are "
                           "named in publisher(), subscribe() and get()");
        return NULL;
    }
    struct dlx_client *c = attempt->c;
    const char *passed_over = dlx_client_passed_over(c);
    if (*passed_over && PyErr_WarnFormat(PyExc_RuntimeWarning, 1,
                                         "this program does not see the topics of a dlpackd that "
                                         "refused it: %s",
                                         passed_over) < 0)
        return NULL;
    attempt->c = NULL;
    return dlxpy_connection_new(c);
}

const char dlxpy_connect_doc[] =
    "connect($module, /, socket=None, *, name=None, timeout=None, autospawn=True)\n--\n\n"
    "Connect to dlpackd; where nobody named one and none answers, start a private one for "
    "this user, which ends\n"
    "when nobody has been connected for 10 seconds.\n\n"
    "socket     path of the daemon's socket; None: $DLX_SOCKET, else the usual places\n"
    "name       of this program, for `dlxctl ls`, at most 63 bytes\n"
    "timeout    seconds that this and later calls wait for the daemon's answer, more than 0; None: "
    "5. If it is\n"
    "           given, this call also waits so long for a daemon that is not there yet, unless it "
    "starts one\n"
    "autospawn  False: never start a daemon (as DLX_AUTOSPAWN=no)\n\n"
    "Ctrl-C interrupts it. Raises dlx.DaemonError (none there, none came in time, none could be "
    "started),\n"
    "dlx.Timeout (no answer), dlx.AccessError, dlx.LimitError.";
PyObject *dlxpy_connect(PyObject *module, PyObject *const *args, Py_ssize_t n_args,
                        PyObject *kwnames)
{
    static const char *const names[] = {"socket", "name", "timeout", "autospawn"};
    static const struct dlxpy_params params = {"connect", names, 4, 1, 0};
    struct dlx_connect_args connect_args = {.size = sizeof connect_args,
                                            .interrupt = dlxpy_asking_interrupt};
    PyObject *value[4], *socket, *name = NULL, *ret = NULL;
    bool autospawn = true;
    (void)module;
    if (dlxpy_parse(&params, args, n_args, kwnames, value) < 0 ||
        dlxpy_flag(value[3], &autospawn) < 0 || parse_timeout(value[2], &connect_args) < 0)
        return NULL;
    connect_args.autospawn = autospawn ? DLX_AUTOSPAWN_DEFAULT : DLX_AUTOSPAWN_NEVER;
    if (dlxpy_text_of(value[0], &socket, &connect_args.socket) == 0 &&
        dlxpy_text_of(value[1], &name, &connect_args.name) == 0) {
        struct attempt *attempt = attempt_new(&connect_args);
        if (attempt) {
            ret = finish(attempt);
            dlxpy_job_leave(&attempt->job);
        }
    }
    Py_XDECREF(socket);
    Py_XDECREF(name);
    return ret;
}
