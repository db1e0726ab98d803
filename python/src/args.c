/* SPDX-License-Identifier: Apache-2.0 */
#include "args.h"
#include "errors.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- parsing ------------------------------------------------------------------------------- */

static int find(const struct dlxpy_params *params, PyObject *name)
{
    for (int i = 0; i < params->n; i++)
        if (PyUnicode_CompareWithASCIIString(name, params->names[i]) == 0)
            return i;
    char known[256] = "";
    size_t n = 0;
    for (int i = 0; i < params->n && n < sizeof known; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i > 0 ? ", " : "",
                              params->names[i]);
    PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument %R: it has %s",
                 params->function, name, known);
    return -1;
}

int dlxpy_parse(const struct dlxpy_params *params, PyObject *const *args, Py_ssize_t n_args,
                PyObject *kwnames, PyObject **ret)
{
    if (n_args > params->n_positional) {
        PyErr_Format(PyExc_TypeError, "%s() takes %d positional arguments but %zd were given",
                     params->function, params->n_positional, n_args);
        return -1;
    }
    for (int i = 0; i < params->n; i++)
        ret[i] = i < n_args ? args[i] : NULL;
    Py_ssize_t n_names = kwnames ? PyTuple_Size(kwnames) : 0;
    for (Py_ssize_t k = 0; k < n_names; k++) {
        int i = find(params, PyTuple_GetItem(kwnames, k));
        if (i < 0)
            return -1;
        if (ret[i]) {
            PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%s'",
                         params->function, params->names[i]);
            return -1;
        }
        ret[i] = args[n_args + k];
    }
    for (int i = 0; i < params->n_required; i++)
        if (!ret[i]) {
            PyErr_Format(PyExc_TypeError, "%s() missing required argument: '%s'", params->function,
                         params->names[i]);
            return -1;
        }
    return 0;
}

int dlxpy_text_of(PyObject *object, PyObject **ret_keep, const char **ret)
{
    *ret = NULL;
    *ret_keep = NULL;
    if (!object || object == Py_None)
        return 0;
    if (!PyUnicode_FSConverter(object, ret_keep))
        return -1;
    *ret = PyBytes_AsString(*ret_keep);
    return *ret ? 0 : -1;
}

int dlxpy_topic_of(PyObject *object, PyObject **ret_keep, const char **ret)
{
    if (dlxpy_text_of(object, ret_keep, ret) == 0 && *ret)
        return 0;
    if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_TypeError))
        PyErr_Format(PyExc_TypeError, "a topic is a str such as \"cam/front\", not %R", object);
    return -1;
}

/* As PyFloat_AsDouble(), with words for a value that is no number. */
static double seconds_of(PyObject *object)
{
    double seconds = PyFloat_AsDouble(object);
    if (seconds == -1.0 && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_TypeError))
        PyErr_Format(PyExc_TypeError,
                     "a time is a number of seconds, such as 0.5, or None for no limit: not %R",
                     object);
    return seconds;
}

/* As PyLong_AsLongLong(), likewise. */
static long long number_of(PyObject *object, const char *what)
{
    long long value = PyLong_AsLongLong(object);
    if (value == -1 && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_TypeError))
        PyErr_Format(PyExc_TypeError, "%s is a whole number, not %R", what, object);
    return value;
}

int dlxpy_timeout(PyObject *object, int64_t *ret_ns)
{
    if (object == Py_None) {
        *ret_ns = DLX_FOREVER;
        return 0;
    }
    double seconds = seconds_of(object);
    if (seconds == -1.0 && PyErr_Occurred())
        return -1;
    if (isnan(seconds) || seconds < 0) {
        PyErr_Format(PyExc_ValueError,
                     "a time is a number of seconds >= 0, or None for no limit: not %R", object);
        return -1;
    }
    *ret_ns = seconds >= 9e9 ? DLX_FOREVER : (int64_t)ceil(seconds * 1e9);
    return 0;
}

int dlxpy_uint32(PyObject *object, const char *what, uint32_t max, uint32_t *ret)
{
    if (!object)
        return 0;
    long long value = number_of(object, what);
    if (value == -1 && PyErr_Occurred())
        return -1;
    if (value < 0 || value > max) {
        PyErr_Format(PyExc_ValueError, "%s is a number from 0 to %lu, not %lld", what,
                     (unsigned long)max, value);
        return -1;
    }
    *ret = (uint32_t)value;
    return 0;
}

int dlxpy_uint64(PyObject *object, const char *what, uint64_t *ret)
{
    if (!object)
        return 0;
    long long value = number_of(object, what);
    if (value == -1 && PyErr_Occurred())
        return -1;
    if (value < 0) {
        PyErr_Format(PyExc_ValueError, "%s is a number from 0 on, not %lld", what, value);
        return -1;
    }
    *ret = (uint64_t)value;
    return 0;
}

int dlxpy_flag(PyObject *object, bool *ret)
{
    if (object && (PyUnicode_Check(object) || PyBytes_Check(object))) { /* "no" is true to Python */
        PyErr_Format(PyExc_TypeError, "True or False is wanted, not %R", object);
        return -1;
    }
    int r = object ? PyObject_IsTrue(object) : *ret;
    if (r < 0)
        return -1;
    *ret = r > 0;
    return 0;
}

/* The digits after a colon; -1: other text follows. No colon: the first device. */
static int32_t parse_ordinal(const char *text)
{
    char *end;
    if (*text == '\0')
        return 0;
    if (text[0] != ':' || text[1] < '0' || text[1] > '9')
        return -1;
    long value = strtol(text + 1, &end, 10);
    return *end == '\0' && value <= INT32_MAX ? (int32_t)value : -1;
}

static bool parse_device(const char *text, DLDevice *ret)
{
    static const struct {
        const char *name;
        DLDeviceType type;
    } devices[] = {{"cpu", kDLCPU}, {"cuda", kDLCUDA}, {"rocm", kDLROCM}};
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        size_t n = strlen(devices[i].name);
        int32_t id = strncmp(text, devices[i].name, n) == 0 ? parse_ordinal(text + n) : -1;
        if (id >= 0) {
            *ret = (DLDevice){devices[i].type, id};
            return true;
        }
    }
    return false;
}

/* `kinds`: the possible values, in words. */
static int device_of(PyObject *object, const char *what, bool may_be_cpu, const char *kinds,
                     DLDevice *ret)
{
    DLDevice device;
    if (!object || object == Py_None)
        return 0;
    PyObject *str = PyObject_Str(object);
    const char *text = str ? PyUnicode_AsUTF8AndSize(str, NULL) : NULL;
    bool is_one =
        text && parse_device(text, &device) && (may_be_cpu || device.device_type != kDLCPU);
    if (is_one)
        *ret = device;
    else if (text)
        PyErr_Format(PyExc_ValueError, "%s is %s such as \"cuda:0\" or \"rocm:0\", not %R", what,
                     kinds, object);
    Py_XDECREF(str);
    return is_one ? 0 : -1;
}

int dlxpy_gpu_device(PyObject *object, const char *what, DLDevice *ret)
{
    return device_of(object, what, false, "a GPU,", ret);
}

int dlxpy_device(PyObject *object, const char *what, DLDevice *ret)
{
    return device_of(object, what, true, "\"cpu\", or a GPU", ret);
}

/* ---- times --------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

uint64_t dlxpy_deadline(int64_t timeout_ns)
{
    return timeout_ns < 0 ? UINT64_MAX : now_ns() + (uint64_t)timeout_ns;
}

int64_t dlxpy_time_left(uint64_t deadline)
{
    if (deadline == UINT64_MAX)
        return DLX_FOREVER;
    uint64_t now = now_ns();
    return deadline > now ? (int64_t)(deadline - now) : 0;
}

struct dlxpy_text dlxpy_seconds(int64_t ns)
{
    struct dlxpy_text ret;
    (void)snprintf(ret.text, sizeof ret.text, "%g s", (double)ns / 1e9);
    return ret;
}
