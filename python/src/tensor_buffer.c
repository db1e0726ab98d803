/* SPDX-License-Identifier: Apache-2.0 */

/* A tensor by the buffer protocol, by __array_interface__ and by __cuda_array_interface__. */

#include "dtype.h"
#include "gpu.h"
#include "tensor.h"
#include <stdlib.h>

struct dims {
    Py_ssize_t shape[DLX_NDIM_MAX];
    Py_ssize_t strides[DLX_NDIM_MAX]; /* bytes */
};

static const int64_t *strides_of(const struct dlxpy_tensor *t)
{
    return t->owner->strides ? t->owner->strides : t->owner->tensor->dl_tensor.strides;
}

static bool is_column_major(const DLTensor *t, const int64_t *strides)
{
    int64_t stride = 1;
    bool is = true;
    for (int32_t i = 0; i < t->ndim; i++) {
        if (t->shape[i] == 0)
            return true;
        is &= t->shape[i] == 1 || strides[i] == stride;
        stride *= t->shape[i];
    }
    return is;
}

/* Why the tensor has no such buffer; NULL if it has. */
static const char *refusal(const struct dlxpy_tensor *t, const DLTensor *data, int flags)
{
    bool row_major = dlxpy_is_row_major(data);
    bool column_major = is_column_major(data, strides_of(t));
    bool any = (flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS;
    if (!dlxpy_dtype_format(data->dtype))
        return "the buffer protocol has no such data type: use __dlpack__, or t.numpy()";
    if (flags & PyBUF_WRITABLE && t->owner->tensor->flags & DLPACK_FLAG_BITMASK_READ_ONLY)
        return "the tensor is read-only: msg.private(name), or t.copy(), can be written to";
    if (!(flags & PyBUF_ND) && (data->ndim > 1 || dlxpy_dtype_bytes(data->dtype) != 1))
        return "a buffer without shape and type would be taken for plain bytes: memoryview(t) has "
               "them, and so have t.numpy() and t.torch()";
    if (any ? !row_major && !column_major
            : ((flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS && !row_major) ||
                  ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && !column_major))
        return "the tensor is not contiguous in that way";
    if ((flags & PyBUF_STRIDES) != PyBUF_STRIDES && !row_major)
        return "the tensor has strides";
    return NULL;
}

int dlxpy_tensor_get_buffer(PyObject *self, Py_buffer *view, int flags)
{
    struct dlxpy_tensor *t = (struct dlxpy_tensor *)self;
    const DLTensor *data = dlxpy_tensor_cpu_data(t);
    view->obj = NULL;
    if (!data)
        return -1;
    const char *why = refusal(t, data, flags);
    if (why) {
        PyErr_SetString(PyExc_BufferError, why);
        return -1;
    }
    struct dims *dims = malloc(sizeof *dims);
    if (!dims) {
        PyErr_NoMemory();
        return -1;
    }
    size_t item = dlxpy_dtype_bytes(data->dtype);
    for (int32_t i = 0; i < data->ndim; i++) {
        dims->shape[i] = (Py_ssize_t)data->shape[i];
        dims->strides[i] = (Py_ssize_t)(strides_of(t)[i] * (int64_t)item);
    }
    bool with_shape = flags & PyBUF_ND, with_strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES;
    static char empty[1];
    *view = (Py_buffer){
        .buf = data->data ? (char *)data->data + data->byte_offset : empty,
        .len = (Py_ssize_t)dlxpy_tensor_bytes(data, false),
        .itemsize = (Py_ssize_t)item,
        .readonly = (t->owner->tensor->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0,
        .ndim = with_shape ? data->ndim : 1,
        .format = flags & PyBUF_FORMAT ? (char *)(uintptr_t)dlxpy_dtype_format(data->dtype) : NULL,
        .shape = with_shape && data->ndim > 0 ? dims->shape : NULL,
        .strides = with_strides && data->ndim > 0 ? dims->strides : NULL,
        .internal = dims,
    };
    Py_INCREF(self);
    view->obj = self;
    t->n_views++;
    return 0;
}

void dlxpy_tensor_release_buffer(PyObject *self, Py_buffer *view)
{
    free(view->internal);
    ((struct dlxpy_tensor *)self)->n_views--;
}

/* ---- the array interfaces ------------------------------------------------------------------ */

/* A dict with the entries of both, but the address. NULL with an exception. */
static PyObject *make_interface(const struct dlxpy_tensor *t, const DLTensor *data,
                                const char *protocol)
{
    char typestr[8];
    if (!dlxpy_dtype_typestr(data->dtype, typestr)) {
        PyErr_Format(PyExc_AttributeError, "%s: NumPy has no such data type: see t.numpy()",
                     protocol);
        return NULL;
    }
    PyObject *shape = PyTuple_New(data->ndim), *strides = PyTuple_New(data->ndim);
    for (int32_t i = 0; shape && strides && i < data->ndim; i++) {
        int64_t item = (int64_t)dlxpy_dtype_bytes(data->dtype);
        (void)PyTuple_SetItem(shape, i, PyLong_FromLongLong(data->shape[i]));
        (void)PyTuple_SetItem(strides, i, PyLong_FromLongLong(strides_of(t)[i] * item));
    }
    if (!shape || !strides || PyErr_Occurred()) {
        Py_XDECREF(shape);
        Py_XDECREF(strides);
        return NULL;
    }
    return Py_BuildValue("{s:s,s:N,s:N,s:i}", "typestr", typestr, "shape", shape, "strides",
                         strides, "version", 3);
}

/* Takes `interface` over. */
static PyObject *add_address(PyObject *interface, void *address, bool read_only)
{
    PyObject *data =
        Py_BuildValue("(NO)", PyLong_FromVoidPtr(address), read_only ? Py_True : Py_False);
    if (!data || PyDict_SetItemString(interface, "data", data) < 0)
        Py_CLEAR(interface);
    Py_XDECREF(data);
    return interface;
}

/* A tensor whose device the protocol does not cover has no such attribute, so that consumers ask
 * for another one. */
static const DLTensor *data_of(const struct dlxpy_tensor *t, bool is_there, const char *protocol)
{
    const DLTensor *data = dlxpy_tensor_data(t);
    if (data && !is_there) {
        PyErr_Format(PyExc_AttributeError, "%s: the tensor is %s", protocol,
                     dlxpy_owner_is_on_gpu(t->owner) ? "on a GPU" : "not on a GPU of CUDA");
        return NULL;
    }
    return data;
}

/* A consumer that makes an array of this keeps the object, but does not say so: refused for tensors
 * that publish() passes on if no object can write to them. hasattr() must not change the tensor. */
PyObject *dlxpy_tensor_array_interface(PyObject *self, void *closure)
{
    static const char protocol[] = "__array_interface__";
    struct dlxpy_tensor *t = (struct dlxpy_tensor *)self;
    bool is_cpu = dlxpy_tensor_is_there(t) && !dlxpy_owner_is_on_gpu(t->owner);
    const DLTensor *data = data_of(t, is_cpu, protocol);
    (void)closure;
    if (!data)
        return NULL;
    bool read_only = t->owner->tensor->flags & DLPACK_FLAG_BITMASK_READ_ONLY;
    if (t->publisher != 0 && !read_only) {
        PyErr_Format(PyExc_AttributeError,
                     "%s: a tensor that is to be published has the buffer protocol and __dlpack__, "
                     "which tell when an array made of it is gone",
                     protocol);
        return NULL;
    }
    PyObject *interface = make_interface(t, data, protocol);
    char *first = data->data ? (char *)data->data + data->byte_offset : NULL;
    return interface ? add_address(interface, first, read_only) : NULL;
}

/* A consumer keeps the object, and waits for `stream`; None: the data is ready on every stream. */
PyObject *dlxpy_tensor_cuda_array_interface(PyObject *self, void *closure)
{
    static const char protocol[] = "__cuda_array_interface__";
    struct dlxpy_tensor *t = (struct dlxpy_tensor *)self;
    bool is_cuda =
        dlxpy_tensor_is_there(t) && t->owner->tensor->dl_tensor.device.device_type == kDLCUDA;
    const DLTensor *data = data_of(t, is_cuda, protocol);
    PyObject *stream = NULL;
    (void)closure;
    if (!data)
        return NULL;
    DLTensor opened = dlxpy_owner_describe(t->owner);
    if (!t->owner->gpu)
        stream = Py_NewRef(Py_None);
    else if (dlxpy_gpu_expose_on(t->owner, &opened, &stream) < 0)
        return NULL;
    PyObject *interface = make_interface(t, data, protocol);
    if (interface && PyDict_SetItemString(interface, "stream", stream) < 0)
        Py_CLEAR(interface);
    Py_DECREF(stream);
    if (!interface)
        return NULL;
    bool read_only = t->owner->tensor->flags & DLPACK_FLAG_BITMASK_READ_ONLY;
    t->is_untracked |= !read_only; /* a consumer keeps the object, but does not say so */
    return add_address(interface, opened.data, read_only);
}
