/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_STATE_H
#define DLXPY_STATE_H

/*
 * The first include of every file of the extension: Python's stable ABI of 3.11, libdlx, and the
 * objects that the module makes when it is loaded. The module is loaded once a process; these are
 * written then, and only read after.
 */

#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlx/dlx.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <structmember.h>

/* Types, each made by the file of its name. */
extern PyTypeObject *dlxpy_connection_type;
extern PyTypeObject *dlxpy_publisher_type;
extern PyTypeObject *dlxpy_subscription_type;
extern PyTypeObject *dlxpy_message_type;
extern PyTypeObject *dlxpy_tree_message_type; /* a dlxpy_message_type */
extern PyTypeObject *dlxpy_tensor_type;

/* Add the types and functions of a file to the module. Return 0, or -1 with an exception. */
int dlxpy_add_errors(PyObject *module);
int dlxpy_add_tensor(PyObject *module);
int dlxpy_add_message(PyObject *module);
int dlxpy_add_range(PyObject *module);
int dlxpy_add_event(PyObject *module);
int dlxpy_add_publisher(PyObject *module);
int dlxpy_add_subscription(PyObject *module);
int dlxpy_add_caller(PyObject *module);
int dlxpy_add_service(PyObject *module);
int dlxpy_add_observer(PyObject *module);
int dlxpy_add_qos(PyObject *module);
int dlxpy_add_connection(PyObject *module);
int dlxpy_add_exchange(PyObject *module);
int dlxpy_add_source(PyObject *module);
int dlxpy_add_publish(PyObject *module);

/* A type from its spec, added to the module under its last name; `base` may be NULL. NULL with an
 * exception. */
PyTypeObject *dlxpy_add_type(PyObject *module, PyType_Spec *spec, PyTypeObject *base);

/* A structseq type, likewise. */
PyTypeObject *dlxpy_add_record(PyObject *module, PyStructSequence_Desc *desc);

/* Weak references to an object of `type`, which has a member `PyObject *weakrefs`: an entry of its
 * Py_tp_members, and the first step of its dealloc. */
#define DLXPY_WEAKREFS(type)                                                                       \
    {                                                                                              \
        "__weaklistoffset__", T_PYSSIZET, offsetof(type, weakrefs), READONLY, NULL                 \
    }
static inline void dlxpy_clear_weakrefs(PyObject *self, const PyObject *weakrefs)
{
    if (weakrefs)
        PyObject_ClearWeakRefs(self);
}

/* Free an instance of one of our types and drop its type, as the last step of its dealloc. */
void dlxpy_free_object(PyObject *self);

/* An attribute of a module of this package (`module` without "dlx."), imported at the first call; a
 * new reference. NULL with an exception. */
PyObject *dlxpy_import(const char *module, const char *name);

/* An attribute, or NULL without an exception when there is none; *failed is set for any other
 * exception. */
PyObject *dlxpy_attribute(PyObject *object, const char *name, bool *failed);

#endif
