/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_CONNECTION_H
#define DLXPY_CONNECTION_H

/* dlx.Connection. */

#include "args.h"
#include "wait.h"

/* Around a request to the daemon. NULL with an exception: the connection is closed. */
struct dlx_client *dlxpy_connection_enter(PyObject *self, struct dlxpy_wait *wait);
/* Ends a request that returned `r`. Returns 0; -1 with an exception: as dlxpy_wait_end(). */
int dlxpy_connection_leave(PyObject *self, struct dlxpy_wait *wait, int r);

/* For functions of METH_FASTCALL: are there so many arguments? Returns 0, or -1 with TypeError. */
int dlxpy_connection_check_number(const char *function, Py_ssize_t n_args, Py_ssize_t least,
                                  Py_ssize_t most);

/* Seconds, of which 0 is "never" and None "always". Returns 0, or -1 with an exception. */
int dlxpy_connection_parse_spin(PyObject *object, int64_t *ret);

/* connection_calls.c */
PyObject *dlxpy_connection_caller(PyObject *self, PyObject *const *args, Py_ssize_t n_args);
PyObject *dlxpy_connection_serve(PyObject *self, PyObject *const *args, Py_ssize_t n_args);
PyObject *dlxpy_connection_observe(PyObject *self, PyObject *const *args, Py_ssize_t n_args);
extern const char dlxpy_connection_caller_doc[], dlxpy_connection_serve_doc[],
    dlxpy_connection_observe_doc[];

/* connection_info.c: the daemon's lists. */
PyObject *dlxpy_connection_publishers(PyObject *self, PyObject *args);
PyObject *dlxpy_connection_links(PyObject *self, PyObject *publisher);
PyObject *dlxpy_connection_groups(PyObject *self, PyObject *args);
PyObject *dlxpy_connection_claims(PyObject *self, PyObject *args);
PyObject *dlxpy_connection_daemon(PyObject *self, PyObject *unused);
extern const char dlxpy_publishers_doc[], dlxpy_links_doc[], dlxpy_groups_doc[], dlxpy_claims_doc[],
    dlxpy_daemon_doc[];

#endif
