/* SPDX-License-Identifier: Apache-2.0 */
#include "errors.h"
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static PyObject *make_error; /* dlx._errors.make */
static volatile unsigned fork_generation = 1;

PyObject *dlxpy_text(const char *text)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "backslashreplace");
}

PyObject *dlxpy_raise_words(int code, const char *text)
{
    PyObject *object = dlxpy_text(text);
    PyObject *error =
        object ? PyObject_CallFunction(make_error, "isO", code, dlx_error_name(code), object)
               : NULL;
    Py_XDECREF(object);
    if (error) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
    return NULL;
}

PyObject *dlxpy_raise(int code)
{
    const char *text = dlx_errmsg();
    return dlxpy_raise_words(code, text[0] ? text : dlx_strerror(code));
}

PyObject *dlxpy_raise_text(int code, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return dlxpy_raise_words(code, text);
}

PyObject *dlxpy_raise_closed(const char *what)
{
    char text[512];
    (void)snprintf(text, sizeof text, "%s is closed", what);
    return dlxpy_raise_words(0, text);
}

void dlxpy_amend(const char *function, const char *format, ...)
{
    PyObject *type, *value, *trace;
    va_list list;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    va_start(list, format);
    PyObject *more = Py_VaBuildValue(format, list);
    va_end(list);
    PyObject *first = more ? PyTuple_Pack(1, value) : NULL;
    PyObject *args = first ? PySequence_Concat(first, more) : NULL;
    PyObject *call = args ? dlxpy_import("_errors", function) : NULL;
    PyObject *other = call ? PyObject_CallObject(call, args) : NULL;
    Py_XDECREF(call);
    Py_XDECREF(args);
    Py_XDECREF(first);
    Py_XDECREF(more);
    if (other && other != Py_None)
        PyErr_SetObject((PyObject *)Py_TYPE(other), other);
    if (PyErr_Occurred() && (other || dlxpy_pass_over() < 0)) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
    } else {
        PyErr_Restore(type, value, trace);
    }
    Py_XDECREF(other);
}

int dlxpy_pass_over(void)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyErr_Clear();
    return 0;
}

/* ---- fork ---------------------------------------------------------------------------------- */

static void in_child(void)
{
    fork_generation++;
}

unsigned dlxpy_fork_generation(void)
{
    return fork_generation;
}

int dlxpy_check_forked(unsigned generation)
{
    if (generation == 0 || generation == fork_generation)
        return 0;
    (void)dlxpy_raise_text(
        DLX_E_FORKED, "this is memory of the parent process, which a forked child does not have: "
                      "call dlx.connect() in the child");
    return -1;
}

int dlxpy_add_errors(PyObject *module)
{
    static bool is_registered;
    (void)module;
    int r = is_registered ? 0 : pthread_atfork(NULL, NULL, in_child);
    is_registered |= r == 0;
    if (r != 0) {
        errno = r;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    make_error = dlxpy_import("_errors", "make");
    return make_error ? 0 : -1;
}
