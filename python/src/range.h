/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_RANGE_H
#define DLXPY_RANGE_H

/* dlx.GpuRange: addresses in which one message after another is opened. */

#include "state.h"

/* The method open_into() of a message. */
extern const char dlxpy_open_into_doc[];
PyObject *dlxpy_message_open_into(PyObject *self, PyObject *const *args, Py_ssize_t n_args,
                                  PyObject *kwnames);

#endif
