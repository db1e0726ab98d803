/* SPDX-License-Identifier: Apache-2.0 */

/* A tensor as bytes, and what was pickled so: dlx/_tensor.py has the rest. */

#include "dtype.h"
#include "tensor.h"
#include <string.h>

/* Bytes from which on it pays to let other threads run while they are copied. */
#define COPY_ALONE (32U * 1024)

static struct dlxpy_tensor *cast(PyObject *self)
{
    return (struct dlxpy_tensor *)self;
}

static bool is_padded(const DLManagedTensorVersioned *managed)
{
    return managed->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
}

/* Another tensor object, whose buffer is the memory of this one as bytes, row-major: of a copy
 * if it has other strides. */
PyObject *dlxpy_tensor_as_bytes(PyObject *self, PyObject *unused)
{
    (void)unused;
    const DLTensor *t = dlxpy_tensor_cpu_data(cast(self));
    if (!t)
        return NULL;
    if (!dlxpy_is_row_major(t)) {
        DLManagedTensorVersioned *copy = dlxpy_tensor_own_copy(cast(self));
        PyObject *row_major = copy ? (PyObject *)dlxpy_tensor_new(copy) : NULL;
        PyObject *ret = row_major ? dlxpy_tensor_as_bytes(row_major, NULL) : NULL;
        Py_XDECREF(row_major);
        return ret;
    }
    struct dlxpy_owner *owner = cast(self)->owner;
    DLManagedTensorVersioned *managed =
        dlxpy_owner_export_bytes(owner, dlxpy_tensor_bytes(t, is_padded(owner->tensor)));
    if (!managed)
        return PyErr_NoMemory();
    struct dlxpy_tensor *ret = dlxpy_tensor_new(managed);
    if (ret)
        ret->generation = cast(self)->generation;
    return (PyObject *)ret;
}

/* ---- unpickling ---------------------------------------------------------------------------- */

/* Of a shape and data type that take `size` bytes. NULL with an exception. */
static DLManagedTensorVersioned *make_private(PyObject *shape, PyObject *dtype, bool padded,
                                              size_t size)
{
    int64_t dims[DLX_NDIM_MAX];
    DLTensor like = {.ndim = (int32_t)PyTuple_Size(shape), .shape = dims};
    size_t n = 1;
    if (dlxpy_dtype(dtype, &like.dtype) < 0)
        return NULL;
    for (int32_t i = 0; i < like.ndim && like.ndim <= DLX_NDIM_MAX; i++) {
        dims[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
        if (dims[i] == -1 && PyErr_Occurred())
            return NULL;
        if (dims[i] < 0 || __builtin_mul_overflow(n, (size_t)dims[i], &n) || n > PTRDIFF_MAX / 256)
            n = SIZE_MAX;
    }
    if (like.ndim > DLX_NDIM_MAX || n == SIZE_MAX || dlxpy_tensor_bytes(&like, padded) != size) {
        PyErr_SetString(PyExc_ValueError, "shape and dtype do not fit the number of bytes");
        return NULL;
    }
    DLManagedTensorVersioned *managed = dlxpy_private_new(&like, padded);
    if (!managed)
        PyErr_NoMemory();
    return managed;
}

static void copy(void *to, const Py_buffer *from)
{
    size_t size = (size_t)from->len;
    if (size >= COPY_ALONE) {
        Py_BEGIN_ALLOW_THREADS
        memcpy(to, from->buf, size);
        Py_END_ALLOW_THREADS
    } else if (size > 0) {
        memcpy(to, from->buf, size);
    }
}

PyDoc_STRVAR(from_bytes_doc, "tensor_from_bytes($module, data, shape, dtype, padded=False, /)\n"
                             "--\n"
                             "\n"
                             "A private tensor of these bytes; what a pickle holds.");
static PyObject *tensor_from_bytes(PyObject *self, PyObject *args)
{
    Py_buffer data;
    PyObject *shape, *dtype;
    int padded = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*O!O|p", &data, &PyTuple_Type, &shape, &dtype, &padded))
        return NULL;
    DLManagedTensorVersioned *managed = make_private(shape, dtype, padded, (size_t)data.len);
    if (managed)
        copy(managed->dl_tensor.data, &data);
    PyBuffer_Release(&data);
    return managed ? (PyObject *)dlxpy_tensor_new(managed) : NULL;
}

static PyMethodDef functions[] = {
    {"tensor_from_bytes", tensor_from_bytes, METH_VARARGS, from_bytes_doc},
    {0},
};

int dlxpy_add_pickle(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
