/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_ARGS_H
#define DLXPY_ARGS_H

/* Arguments of methods (METH_FASTCALL | METH_KEYWORDS), and time-outs. */

#include "state.h"
#include <stdbool.h>

struct dlxpy_params {
    const char *function;     /* for messages: "publish" */
    const char *const *names; /* n names */
    int n;
    int n_positional; /* the first ones may be given by position */
    int n_required;   /* the first ones must be given */
};

/* `ret` has room for n borrowed references; NULL where nothing was given. Returns 0, or -1 with
 * TypeError. */
int dlxpy_parse(const struct dlxpy_params *params, PyObject *const *args, Py_ssize_t n_args,
                PyObject *kwnames, PyObject **ret);

/* A str, or a path; NULL for None. Returns 0, or -1 with an exception. *ret_keep is to be dropped
 * by the caller. */
int dlxpy_text_of(PyObject *object, PyObject **ret_keep, const char **ret);
/* As dlxpy_text_of(), for a topic: None is an error, too. */
int dlxpy_topic_of(PyObject *object, PyObject **ret_keep, const char **ret);

/* A time-out in seconds: a number >= 0, or None for no limit, as nanoseconds; -1 with an
 * exception. */
int dlxpy_timeout(PyObject *object, int64_t *ret_ns);

/* A number of 0 to `max`. NULL leaves *ret alone. Returns 0, or -1 with an exception that names
 * `what`. */
int dlxpy_uint32(PyObject *object, const char *what, uint32_t max, uint32_t *ret);

/* A number from 0 on, likewise. */
int dlxpy_uint64(PyObject *object, const char *what, uint64_t *ret);

/* Is the object true? NULL leaves *ret alone. Returns 0, or -1 with an exception. */
int dlxpy_flag(PyObject *object, bool *ret);

/* A GPU: "cuda:1", "cuda" (the first one), "rocm:0"; or an object with that text, as
 * torch.device("cuda:1"). NULL and None leave *ret alone. Returns 0, or -1 with an exception that
 * names `what`. */
int dlxpy_gpu_device(PyObject *object, const char *what, DLDevice *ret);
/* As dlxpy_gpu_device(), and also "cpu". */
int dlxpy_device(PyObject *object, const char *what, DLDevice *ret);

/* The end of a time-out that begins now; UINT64_MAX: never. And the time left until then: 0 when it
 * is over, DLX_FOREVER. */
uint64_t dlxpy_deadline(int64_t timeout_ns);
int64_t dlxpy_time_left(uint64_t deadline);

/* "1.5 s", for messages. */
struct dlxpy_text {
    char text[48];
};
struct dlxpy_text dlxpy_seconds(int64_t ns);

#endif
