/* SPDX-License-Identifier: Apache-2.0 */

/* Memory that is described by the buffer protocol or by __array_interface__: steps in bytes, types
 * by a text. */

#include "dtype.h"
#include "source.h"
#include "errors.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int make_dims(struct dlxpy_source *s, Py_ssize_t ndim)
{
    if (ndim > DLX_NDIM_MAX) {
        PyErr_Format(PyExc_ValueError, "a tensor of %zd dimensions: at most %d are carried", ndim,
                     DLX_NDIM_MAX);
        return -1;
    }
    if (s->dims != s->inline_dims)
        free(s->dims); /* of another protocol, that failed */
    s->dims = 2 * ndim <= DLXPY_SOURCE_DIMS ? s->inline_dims
                                            : malloc((size_t)(2 * ndim) * sizeof *s->dims);
    if (!s->dims) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static DLTensor describe(const struct dlxpy_source *s, void *data, Py_ssize_t ndim,
                         DLDataType dtype)
{
    return (DLTensor){.data = data,
                      .device = {kDLCPU, 0},
                      .ndim = (int32_t)ndim,
                      .dtype = dtype,
                      .shape = s->dims,
                      .strides = s->dims + ndim};
}

/* Steps are counted in elements from here on. */
static int set_stride(struct dlxpy_source *s, Py_ssize_t ndim, Py_ssize_t i, int64_t bytes,
                      int64_t item)
{
    if (bytes % item != 0) {
        PyErr_Format(PyExc_BufferError,
                     "steps of %lld bytes are no multiple of the item size, %lld: copy it first",
                     (long long)bytes, (long long)item);
        return -1;
    }
    s->dims[ndim + i] = bytes / item;
    return 0;
}

static void set_row_major(struct dlxpy_source *s, Py_ssize_t ndim)
{
    uint64_t stride = 1; /* whether there can be so many elements is looked at later */
    for (Py_ssize_t i = ndim; i-- > 0; stride *= s->dims[i] > 1 ? (uint64_t)s->dims[i] : 1)
        s->dims[ndim + i] = (int64_t)stride;
}

/* ---- the buffer protocol ------------------------------------------------------------------- */

/* Of NumPy: 'M', 'm' (times), 'U', 'S' (text); 0: it has none; -1 with an exception. */
static int kind_of(PyObject *object)
{
    PyObject *dtype = PyObject_GetAttrString(object, "dtype");
    PyObject *kind = dtype ? PyObject_GetAttrString(dtype, "kind") : NULL;
    const char *text = kind && PyUnicode_Check(kind) ? PyUnicode_AsUTF8AndSize(kind, NULL) : NULL;
    int ret = text ? text[0] : 0;
    if (PyErr_Occurred() && dlxpy_pass_over() < 0)
        ret = -1;
    Py_XDECREF(kind);
    Py_XDECREF(dtype);
    return ret;
}

static int fail_time(PyObject *object)
{
    PyErr_Format(PyExc_BufferError,
                 "a time of %R is no type of DLPack: publish its number, x.astype(\"int64\"), and "
                 "say its unit in meta",
                 (PyObject *)Py_TYPE(object));
    return -1;
}

/* An array of times shows nothing: its own error does not say what to do. */
static int fail_buffer(PyObject *object)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    int kind = kind_of(object);
    if (kind == 0 || (kind > 0 && kind != 'M' && kind != 'm')) {
        PyErr_Restore(type, value, trace);
        dlxpy_amend("refusal", "(O)", object);
        return -1;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return kind < 0 ? -1 : fail_time(object);
}

/* numpy.datetime64 and timedelta64 show the bytes of their number. 0, or -1 with an exception. */
static int check_is_no_time(PyObject *object, const Py_buffer *b)
{
    if (b->ndim != 1 || b->shape[0] != 8 || b->itemsize != 1)
        return 0;
    int kind = kind_of(object);
    return kind == 'M' || kind == 'm' ? fail_time(object) : kind < 0 ? -1 : 0;
}

/* What to do with elements of this format. */
static const char *remedy_of(const char *format)
{
    char last = format[0] ? format[strlen(format) - 1] : '\0';
    if (strncmp(format, "T{", 2) == 0)
        return "publish its fields as named tensors, {name: x[name] for name in x.dtype.names}";
    if (last == 'O')
        return "convert Python objects to numbers, x.astype(\"float32\")";
    if (last == 'w' || last == 's' || last == 'p')
        return "put text into meta, or publish its bytes as uint8";
    if (format[0] == '>' || format[0] == '!' || format[0] == '<')
        return "convert it, x.astype(x.dtype.newbyteorder(\"=\"))";
    return "convert it, x.astype(\"float32\") for example";
}

int dlxpy_source_buffer(struct dlxpy_source *s, PyObject *object)
{
    DLDataType dtype;
    if (!PyObject_CheckBuffer(object))
        return 0;
    if (PyObject_GetBuffer(object, &s->buffer, PyBUF_RECORDS_RO) < 0) {
        s->buffer.obj = NULL;
        return fail_buffer(object);
    }
    const Py_buffer *b = &s->buffer;
    if (check_is_no_time(object, b) < 0)
        goto fail;
    if (!dlxpy_dtype_of_format(b->format, b->itemsize, &dtype)) {
        PyErr_Format(
            PyExc_BufferError,
            "elements of format '%s', %zd bytes each: only numbers that DLPack has, in native "
            "byte order, are carried; %s",
            b->format ? b->format : "B", b->itemsize, remedy_of(b->format ? b->format : "B"));
        goto fail;
    }
    if (make_dims(s, b->ndim) < 0)
        goto fail;
    for (int i = 0; i < b->ndim; i++)
        s->dims[i] = b->shape[i];
    set_row_major(s, b->ndim);
    for (int i = 0; b->strides && i < b->ndim; i++)
        if (set_stride(s, b->ndim, i, b->strides[i], b->itemsize) < 0)
            goto fail;
    s->view.dl_tensor = describe(s, b->buf, b->ndim, dtype);
    return 1;
fail:
    PyBuffer_Release(&s->buffer);
    s->buffer.obj = NULL;
    return -1;
}

/* ---- __array_interface__ ------------------------------------------------------------------- */

/* An entry of the dictionary, borrowed; NULL when it is not there, or None. */
static PyObject *entry(PyObject *interface, const char *name)
{
    PyObject *value = PyDict_GetItemString(interface, name);
    return value == Py_None ? NULL : value;
}

/* Of "<V2" and the like, which NumPy says of types that it does not know, the object's dtype has
 * the name. Returns the bytes an element; 0 if there is no such type, or with an exception.
 * Elements that are smaller than a byte have one each. */
static size_t named_type(struct dlxpy_source *s, PyObject *object, unsigned long itemsize,
                         DLDataType *ret)
{
    PyObject *dtype = PyObject_GetAttrString(object, "dtype");
    bool found = dtype && dlxpy_dtype(dtype, ret) == 0;
    Py_XDECREF(dtype);
    if (!found && dlxpy_pass_over() < 0)
        return 0;
    if (found && ret->lanes == 1 && ret->bits < 8 && itemsize == 1) {
        s->view.flags |= DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
        return 1;
    }
    return found && dlxpy_dtype_bytes(*ret) == itemsize ? itemsize : 0;
}

/* Returns the bytes an element; 0 with an exception. */
static size_t read_type(struct dlxpy_source *s, PyObject *object, PyObject *interface,
                        DLDataType *ret)
{
    PyObject *typestr = entry(interface, "typestr");
    bool is_text = typestr && PyUnicode_Check(typestr);
    const char *text = is_text ? PyUnicode_AsUTF8AndSize(typestr, NULL) : NULL;
    if (!text || strlen(text) < 3) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "__array_interface__ without a typestr");
        return 0;
    }
    unsigned long itemsize = strtoul(text + 2, NULL, 10);
    if (text[0] != '>' || itemsize == 1) {
        if (text[1] != 'V' && dlx_dtype_parse(text + 1, ret) == 0)
            return dlxpy_dtype_bytes(*ret);
        size_t item = named_type(s, object, itemsize, ret);
        if (item > 0)
            return item;
        if (PyErr_Occurred())
            return 0;
    }
    PyErr_Format(PyExc_BufferError,
                 "elements of type '%s': only numbers that DLPack has, in native byte order, are "
                 "carried",
                 text);
    return 0;
}

static int read_dims(struct dlxpy_source *s, PyObject *interface, int64_t item,
                     Py_ssize_t *ret_ndim)
{
    PyObject *shape = entry(interface, "shape"), *strides = entry(interface, "strides");
    Py_ssize_t ndim = shape && PyTuple_Check(shape) ? PyTuple_Size(shape) : -1;
    if (ndim < 0 || (strides && (!PyTuple_Check(strides) || PyTuple_Size(strides) != ndim))) {
        PyErr_SetString(PyExc_TypeError,
                        "__array_interface__ with a shape or strides that are none");
        return -1;
    }
    if (make_dims(s, ndim) < 0)
        return -1;
    for (Py_ssize_t i = 0; i < ndim; i++)
        s->dims[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
    if (PyErr_Occurred())
        return -1;
    set_row_major(s, ndim);
    for (Py_ssize_t i = 0; strides && i < ndim; i++) {
        int64_t bytes = PyLong_AsLongLong(PyTuple_GetItem(strides, i));
        if (PyErr_Occurred() || set_stride(s, ndim, i, bytes, item) < 0)
            return -1;
    }
    *ret_ndim = ndim;
    return 0;
}

int dlxpy_source_array_interface(struct dlxpy_source *s, PyObject *object)
{
    bool failed = false;
    DLDataType dtype;
    Py_ssize_t ndim;
    size_t item;
    void *address;
    int r = -1;
    PyObject *interface = dlxpy_attribute(object, "__array_interface__", &failed);
    if (!interface)
        return failed ? -1 : 0;
    PyObject *data = PyDict_Check(interface) ? entry(interface, "data") : NULL;
    if (!data || !PyTuple_Check(data) || PyTuple_Size(data) != 2 || entry(interface, "mask")) {
        PyErr_SetString(PyExc_TypeError,
                        "__array_interface__ that has a mask, or no address, is not supported");
    } else if ((item = read_type(s, object, interface, &dtype)) > 0 &&
               read_dims(s, interface, (int64_t)item, &ndim) == 0) {
        address = PyLong_AsVoidPtr(PyTuple_GetItem(data, 0));
        s->view.dl_tensor = describe(s, address, ndim, dtype);
        r = PyErr_Occurred() ? -1 : 1;
    }
    Py_DECREF(interface);
    return r;
}
