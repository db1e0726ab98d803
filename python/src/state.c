/* SPDX-License-Identifier: Apache-2.0 */
#include "state.h"
#include <string.h>

static const char *last_name(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

PyTypeObject *dlxpy_add_type(PyObject *module, PyType_Spec *spec, PyTypeObject *base)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, (PyObject *)base);
    if (type && PyModule_AddObjectRef(module, last_name(spec->name), type) < 0)
        Py_CLEAR(type);
    return (PyTypeObject *)type;
}

PyTypeObject *dlxpy_add_record(PyObject *module, PyStructSequence_Desc *desc)
{
    PyTypeObject *type = PyStructSequence_NewType(desc);
    if (type && PyModule_AddObjectRef(module, last_name(desc->name), (PyObject *)type) < 0)
        Py_CLEAR(type);
    return type;
}

void dlxpy_free_object(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_Free(self);
    Py_DECREF(type);
}

PyObject *dlxpy_import(const char *module, const char *name)
{
    PyObject *full = PyUnicode_FromFormat("dlx.%s", module);
    PyObject *imported = full ? PyImport_Import(full) : NULL;
    PyObject *ret = imported ? PyObject_GetAttrString(imported, name) : NULL;
    Py_XDECREF(imported);
    Py_XDECREF(full);
    return ret;
}

PyObject *dlxpy_attribute(PyObject *object, const char *name, bool *failed)
{
    PyObject *value = PyObject_GetAttrString(object, name);
    if (!value && PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Clear();
    else if (!value)
        *failed = true;
    return value;
}
