/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_PUBLISHER_H
#define DLXPY_PUBLISHER_H

/* dlx.Publisher. */

#include "send.h"

/* Takes `p` over, also when it fails. NULL with an exception. */
PyObject *dlxpy_publisher_new(struct dlx_publisher *p, const char *topic, bool waits,
                              int64_t timeout_ns);

/* publish.c */
PyObject *dlxpy_publish(PyObject *self, PyObject *const *args, Py_ssize_t n_args,
                        PyObject *kwnames);
PyObject *dlxpy_publish_many(PyObject *self, PyObject *const *args, Py_ssize_t n_args,
                             PyObject *kwnames);
extern const char dlxpy_publish_doc[], dlxpy_publish_many_doc[];

/* publisher_alloc.c: methods of those that send. */
struct dlxpy_place {
    struct dlxpy_publisher *(*sender)(PyObject *self); /* is entered meanwhile */
    void *(*of)(PyObject *self); /* of libdlx, once it is entered; NULL with an exception */
    int (*alloc)(void *of, const struct dlx_tensor_spec *specs, uint32_t n,
                 DLManagedTensorVersioned **ret);
};
PyObject *dlxpy_alloc_empty(const struct dlxpy_place *place, PyObject *self, PyObject *const *args,
                            Py_ssize_t n_args, PyObject *kwnames);
PyObject *dlxpy_alloc_zeros(const struct dlxpy_place *place, PyObject *self, PyObject *const *args,
                            Py_ssize_t n_args, PyObject *kwnames);
PyObject *dlxpy_alloc_like(const struct dlxpy_place *place, PyObject *self, PyObject *const *args,
                           Py_ssize_t n_args, PyObject *kwnames);
extern const char dlxpy_empty_doc[], dlxpy_zeros_doc[], dlxpy_like_doc[];

/* Allocate by a function for one tensor: all `n`, or none. */
int dlxpy_alloc_each(int (*one)(void *of, const struct dlx_tensor_spec *spec,
                                DLManagedTensorVersioned **ret),
                     void *of, const struct dlx_tensor_spec *specs, uint32_t n,
                     DLManagedTensorVersioned **ret);

/* Define empty(), zeros() and empty_like() of a type by its place, for DLXPY_ALLOC_METHODS. */
#define DLXPY_ALLOC_METHOD(name, place)                                                            \
    static PyObject *name(PyObject *self, PyObject *const *args, Py_ssize_t n_args,                \
                          PyObject *kwnames)                                                       \
    {                                                                                              \
        return dlxpy_##name(place, self, args, n_args, kwnames);                                   \
    }
#define DLXPY_ALLOC_FUNCTIONS(place)                                                               \
    DLXPY_ALLOC_METHOD(alloc_empty, place)                                                         \
    DLXPY_ALLOC_METHOD(alloc_zeros, place)                                                         \
    DLXPY_ALLOC_METHOD(alloc_like, place)
#define DLXPY_ALLOC_ENTRY(name, function, doc)                                                     \
    {                                                                                              \
        name, (PyCFunction)(void (*)(void))(function), METH_FASTCALL | METH_KEYWORDS, doc          \
    }
#define DLXPY_ALLOC_METHODS                                                                        \
    DLXPY_ALLOC_ENTRY("empty", alloc_empty, dlxpy_empty_doc),                                      \
        DLXPY_ALLOC_ENTRY("zeros", alloc_zeros, dlxpy_zeros_doc),                                  \
        DLXPY_ALLOC_ENTRY("empty_like", alloc_like, dlxpy_like_doc)

#endif
