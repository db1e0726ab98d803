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

/* What libdlx calls its functions, and what they are called here. Longer names first. */
static const struct {
    const char *c, *python;
} names[] = {
    {"the time of dlx_connect_args", "the timeout of dlx.connect()"},
    {"dlx_connect()", "dlx.connect()"},
    {"is not from dlx_alloc() of this publisher",
     "is not the dlx.Tensor that empty() of this publisher returned, but perhaps an array made of "
     "it"},
    {"dlx_alloc()", "empty()"},
    {"dlx_message_tensor()", "a message"},
    {"dlx_tensor_used_on", "used_on"},
    {"DLManagedTensorVersioned", "a capsule of DLPack 1.0"},
    {"`strict`", "strict=True"},
    {"`share`", "share=True"},
    {"`stage`", "stage=True"},
    {"min_subscribers is", "require is"},
    {" (it did not wait: timeout_ns is 0)", ""},
    {"retain_for_ns", "retain_for"},
    {"mode LATEST passes", "latest=True passes"},
    {"this program only connects", "autospawn=False"},
    {"`reliable`", "reliable=True"},
    {"on_full)", "on_full=\"block\")"},
};

/* Replace the names, where there is room. */
static void translate(const char *from, char *to, size_t size)
{
    size_t used = 0;
    while (*from && used + 1 < size) {
        size_t i = 0, n = sizeof names / sizeof names[0];
        while (i < n && strncmp(from, names[i].c, strlen(names[i].c)) != 0)
            i++;
        if (i == n) {
            to[used++] = *from++;
            continue;
        }
        int added = snprintf(to + used, size - used, "%s", names[i].python);
        used = used + (size_t)added < size ? used + (size_t)added : size - 1;
        from += strlen(names[i].c);
    }
    to[used] = '\0';
}

/* The words may hold names of tensors, which are any bytes, and may be cut within a character. */
static PyObject *raise(int code, const char *words)
{
    char text[640];
    translate(words, text, sizeof text);
    PyObject *object = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "backslashreplace");
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
    const char *text = dlx_client_errmsg(NULL);
    return raise(code, text[0] ? text : dlx_strerror(code));
}

PyObject *dlxpy_raise_text(int code, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return raise(code, text);
}

PyObject *dlxpy_raise_closed(const char *what)
{
    char text[512];
    (void)snprintf(text, sizeof text, "%s is closed", what);
    return raise(0, text);
}

void dlxpy_add_note(const char *format, ...)
{
    PyObject *type, *value, *trace;
    va_list args;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    va_start(args, format);
    PyObject *note = PyUnicode_FromFormatV(format, args);
    va_end(args);
    PyObject *done = note && value ? PyObject_CallMethod(value, "add_note", "O", note) : NULL;
    Py_XDECREF(done);
    Py_XDECREF(note);
    PyErr_Clear();
    PyErr_Restore(type, value, trace);
}

void dlxpy_name_place(const char *format, ...)
{
    PyObject *type, *value, *trace;
    va_list args;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    va_start(args, format);
    PyObject *place = PyUnicode_FromFormatV(format, args);
    va_end(args);
    PyObject *function = place && value ? dlxpy_import("_errors", "name_place") : NULL;
    PyObject *done = function ? PyObject_CallFunctionObjArgs(function, value, place, NULL) : NULL;
    Py_XDECREF(done);
    Py_XDECREF(function);
    Py_XDECREF(place);
    PyErr_Clear();
    PyErr_Restore(type, value, trace);
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
