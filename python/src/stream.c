/* SPDX-License-Identifier: Apache-2.0 */
#include "stream.h"

/* The number that stands for the legacy default stream of CUDA. */
#define LEGACY 1

static int set_number(PyObject *object, enum dlxpy_stream_kind kind, struct dlxpy_stream *ret)
{
    PyObject *index = PyNumber_Index(object);
    long long number = index ? PyLong_AsLongLong(index) : -1;
    Py_XDECREF(index);
    if (number == -1 && PyErr_Occurred())
        return -1;
    if (number < 0 && (number < -1 || kind == DLXPY_STREAM_OBJECT)) {
        PyErr_Format(PyExc_ValueError, "a stream is its address, 0, 1, 2 or -1, not %lld", number);
        return -1;
    }
    *ret = (struct dlxpy_stream){number < 0 ? DLXPY_STREAM_ANY : kind, (uintptr_t)number};
    return 0;
}

/* (0, address) */
static int set_from_pair(PyObject *pair, struct dlxpy_stream *ret)
{
    int version;
    PyObject *address;
    if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2) {
        PyErr_Format(PyExc_TypeError, "__cuda_stream__ gave %R, which is no pair", pair);
        return -1;
    }
    if (!PyArg_ParseTuple(pair, "iO", &version, &address))
        return -1;
    if (version == 0)
        return set_number(address, DLXPY_STREAM_OBJECT, ret);
    PyErr_Format(PyExc_ValueError, "__cuda_stream__ of version %d: only 0 is known", version);
    return -1;
}

/* Attributes of stream objects. The first one was a property in early versions of cuda.core.
 * Returns 1; 0: it has none; -1 with an exception. */
static int try_object(PyObject *object, struct dlxpy_stream *ret)
{
    static const char *const names[] = {"__cuda_stream__", "cuda_stream", "ptr"};
    bool failed = false;
    for (int i = 0; i < 3 && !failed; i++) {
        PyObject *value = dlxpy_attribute(object, names[i], &failed);
        if (!value)
            continue;
        if (i == 0 && PyCallable_Check(value)) {
            PyObject *pair = PyObject_CallObject(value, NULL);
            Py_DECREF(value);
            value = pair;
        }
        int r = !value   ? -1
                : i == 0 ? set_from_pair(value, ret)
                         : set_number(value, DLXPY_STREAM_OBJECT, ret);
        Py_XDECREF(value);
        return r < 0 ? -1 : 1;
    }
    return failed ? -1 : 0;
}

int dlxpy_stream_parse(PyObject *object, struct dlxpy_stream *ret)
{
    *ret = (struct dlxpy_stream){DLXPY_STREAM_NONE, 0};
    if (!object || object == Py_None)
        return 0;
    if (PyLong_CheckExact(object))
        return set_number(object, DLXPY_STREAM_NUMBER, ret);
    int r = PyBool_Check(object) ? 0 : try_object(object, ret);
    if (r != 0)
        return r < 0 ? -1 : 0;
    if (!PyBool_Check(object) && PyIndex_Check(object))
        return set_number(object, DLXPY_STREAM_NUMBER, ret);
    PyErr_Format(PyExc_TypeError,
                 "a stream is None, a number, or a stream of PyTorch, CuPy or cuda.core (with "
                 "cuda_stream, ptr or __cuda_stream__), not %R",
                 object);
    return -1;
}

int dlxpy_stream_check(const struct dlxpy_stream *s, int device_type)
{
    const char *why = NULL;
    if (s->kind == DLXPY_STREAM_NUMBER && device_type == kDLCUDA && s->number == 0)
        why = "stream 0 of CUDA can be either default stream: 1 is the legacy one, 2 the one of "
              "the thread";
    if (s->kind == DLXPY_STREAM_NUMBER && device_type == kDLROCM &&
        (s->number == LEGACY || s->number == DLXPY_STREAM_PER_THREAD))
        why = "streams 1 and 2 are of CUDA only: 0 is the default stream of ROCm";
    if (why)
        PyErr_SetString(PyExc_ValueError, why);
    return why ? -1 : 0;
}

void *dlxpy_stream_handle(const struct dlxpy_stream *s)
{
    return (void *)s->number; /* 0 of None, too */
}

long long dlxpy_stream_number(const struct dlxpy_stream *s, int device_type)
{
    if (s->kind == DLXPY_STREAM_ANY)
        return -1;
    return s->number == 0 && device_type == kDLCUDA ? LEGACY : (long long)s->number;
}
