/* SPDX-License-Identifier: Apache-2.0 */

/* A tensor as bytes, and its pickles: by value, with protocol 5 out of band. */

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
static PyObject *as_bytes(PyObject *self)
{
    const DLTensor *t = dlxpy_tensor_cpu_data(cast(self));
    if (!t)
        return NULL;
    if (!dlxpy_is_row_major(t)) {
        DLManagedTensorVersioned *copy = dlxpy_tensor_own_copy(cast(self));
        PyObject *row_major = copy ? (PyObject *)dlxpy_tensor_new(copy) : NULL;
        PyObject *ret = row_major ? as_bytes(row_major) : NULL;
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

const char dlxpy_tobytes_doc[] =
    "tobytes($self, /)\n--\n\nIts elements as bytes, row-major, in native byte order.";
PyObject *dlxpy_tensor_tobytes(PyObject *self, PyObject *unused)
{
    PyObject *bytes = as_bytes(self);
    PyObject *ret = bytes ? PyBytes_FromObject(bytes) : NULL;
    (void)unused;
    Py_XDECREF(bytes);
    return ret;
}

/* ---- pickling ------------------------------------------------------------------------------ */

/* Takes `data` over; NULL with an exception. */
static PyObject *make_reduced(PyObject *self, PyObject *data)
{
    const DLTensor *t = data ? dlxpy_tensor_cpu_data(cast(self)) : NULL;
    PyObject *rebuild = t ? dlxpy_import("_dlx", "tensor_from_bytes") : NULL;
    PyObject *shape = rebuild ? dlxpy_tuple_of(t->shape, t->ndim) : NULL;
    PyObject *dtype = shape ? dlxpy_dtype_name(t->dtype) : NULL;
    if (dtype)
        return Py_BuildValue("(N(NNNO))", rebuild, data, shape, dtype,
                             is_padded(cast(self)->owner->tensor) ? Py_True : Py_False);
    Py_XDECREF(shape);
    Py_XDECREF(rebuild);
    Py_XDECREF(data);
    return NULL;
}

const char dlxpy_reduce_doc[] = "__reduce__($self, /)\n--\n\n"
                                "Pickled by value: what is unpickled is a private, writable copy.";
PyObject *dlxpy_tensor_reduce(PyObject *self, PyObject *unused)
{
    return make_reduced(self, dlxpy_tensor_tobytes(self, unused));
}

/* Its memory, as pickle takes it out of band. */
static PyObject *pickle_buffer(PyObject *self)
{
    PyObject *bytes = as_bytes(self);
    PyObject *pickle = bytes ? PyImport_ImportModule("pickle") : NULL;
    PyObject *ret = pickle ? PyObject_CallMethod(pickle, "PickleBuffer", "O", bytes) : NULL;
    Py_XDECREF(pickle);
    Py_XDECREF(bytes);
    return ret;
}

const char dlxpy_reduce_ex_doc[] = "__reduce_ex__($self, protocol, /)\n--\n\n"
                                   "As __reduce__(). From protocol 5 on its memory is a "
                                   "pickle.PickleBuffer: nothing is copied for "
                                   "it, and\n"
                                   "with a buffer_callback nothing at all.";
PyObject *dlxpy_tensor_reduce_ex(PyObject *self, PyObject *protocol)
{
    long number = PyLong_AsLong(protocol);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    return number < 5 ? dlxpy_tensor_reduce(self, NULL) : make_reduced(self, pickle_buffer(self));
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

PyDoc_STRVAR(from_bytes_doc,
             "tensor_from_bytes($module, data, shape, dtype, padded=False, /)\n--\n\n"
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
