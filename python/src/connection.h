/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_CONNECTION_H
#define DLXPY_CONNECTION_H

/* dlx.Connection. */

#include "args.h"
#include "handle.h"

/* Takes `c` over, also when it fails. NULL with an exception. */
PyObject *dlxpy_connection_new(struct dlx_client *c);

/* connect.c */
PyObject *dlxpy_connect(PyObject *module, PyObject *const *args, Py_ssize_t n_args,
                        PyObject *kwnames);
extern const char dlxpy_connect_doc[];

/* connection_info.c: what the daemon knows. */
PyObject *dlxpy_connection_publishers(PyObject *self, PyObject *args);
PyObject *dlxpy_connection_links(PyObject *self, PyObject *publisher);
PyObject *dlxpy_connection_daemon(PyObject *self, PyObject *unused);
extern const char dlxpy_publishers_doc[], dlxpy_links_doc[], dlxpy_daemon_doc[];

#endif
