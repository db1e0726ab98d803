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

/* connection_info.c: the daemon's lists. */
PyObject *dlxpy_connection_publishers(PyObject *self, PyObject *args);
PyObject *dlxpy_connection_links(PyObject *self, PyObject *publisher);
PyObject *dlxpy_connection_daemon(PyObject *self, PyObject *unused);
extern const char dlxpy_publishers_doc[], dlxpy_links_doc[], dlxpy_daemon_doc[];

#endif
