/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_PUBLISHER_H
#define DLXPY_PUBLISHER_H

/* dlx.Publisher. */

#include "args.h"
#include "handle.h"

struct dlxpy_publisher {
    struct dlxpy_handle handle;
    uint64_t number;    /* in this process, from 1; its tensors remember it */
    int64_t timeout_ns; /* of publish(), unless that says otherwise */
    bool waits;         /* on_full="block" */
    bool has_warned;    /* the warning that tensors were copied was given */
};

/* Takes `p` over, also when it fails. NULL with an exception. */
PyObject *dlxpy_publisher_new(struct dlx_publisher *p, const char *topic, bool waits,
                              int64_t timeout_ns);

/* publish.c */
PyObject *dlxpy_publish(PyObject *self, PyObject *const *args, Py_ssize_t n_args,
                        PyObject *kwnames);
PyObject *dlxpy_publish_many(PyObject *self, PyObject *const *args, Py_ssize_t n_args,
                             PyObject *kwnames);
extern const char dlxpy_publish_doc[], dlxpy_publish_many_doc[];

/* publisher_alloc.c */
PyObject *dlxpy_publisher_empty(PyObject *self, PyObject *const *args, Py_ssize_t n_args,
                                PyObject *kwnames);
PyObject *dlxpy_publisher_zeros(PyObject *self, PyObject *const *args, Py_ssize_t n_args,
                                PyObject *kwnames);
PyObject *dlxpy_publisher_like(PyObject *self, PyObject *const *args, Py_ssize_t n_args,
                               PyObject *kwnames);
extern const char dlxpy_empty_doc[], dlxpy_zeros_doc[], dlxpy_like_doc[];

#endif
