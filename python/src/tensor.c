/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor.h"
#include "args.h"
#include "dtype.h"
#include "errors.h"
#include "export.h"
#include "gpu.h"
#include "stream.h"
#include <string.h>

PyTypeObject *dlxpy_tensor_type;

/* Bytes from which on it pays to let other threads run while they are copied. */
#define COPY_ALONE (32U * 1024)

static struct dlxpy_tensor *cast(PyObject *self)
{
    return (struct dlxpy_tensor *)self;
}

/* ---- making -------------------------------------------------------------------------------- */

struct dlxpy_tensor *dlxpy_tensor_of(struct dlxpy_owner *owner)
{
    struct dlxpy_tensor *t = PyObject_New(struct dlxpy_tensor, dlxpy_tensor_type);
    if (!t)
        return NULL;
    memset((char *)t + sizeof(PyObject), 0, sizeof *t - sizeof(PyObject));
    t->owner = owner;
    return t;
}

struct dlxpy_tensor *dlxpy_tensor_new(DLManagedTensorVersioned *managed)
{
    struct dlxpy_owner *owner = dlxpy_owner_new(managed);
    if (!owner) {
        if (managed->deleter)
            managed->deleter(managed);
        PyErr_NoMemory();
        return NULL;
    }
    struct dlxpy_tensor *t = dlxpy_tensor_of(owner);
    if (!t)
        dlxpy_owner_unref(owner);
    return t;
}

struct dlxpy_tensor *dlxpy_tensor_again(const struct dlxpy_tensor *t)
{
    struct dlxpy_tensor *again = dlxpy_tensor_of(t->owner);
    if (!again)
        return NULL;
    atomic_fetch_add(&t->owner->n_refs, 1);
    again->is_received = t->is_received;
    again->generation = t->generation;
    return again;
}

DLTensor *dlxpy_tensor_data(const struct dlxpy_tensor *t)
{
    if (!t->owner) {
        PyErr_SetString(PyExc_ValueError,
                        "this tensor was published, and its memory belongs to the "
                        "message now; publish(..., share=True) lets it be read "
                        "afterwards");
        return NULL;
    }
    if (t->user) {
        PyErr_SetString(PyExc_ValueError, "this tensor is being published by another thread");
        return NULL;
    }
    return dlxpy_check_forked(t->generation) < 0 ? NULL : &t->owner->tensor->dl_tensor;
}

DLTensor *dlxpy_tensor_cpu_data(const struct dlxpy_tensor *t)
{
    DLTensor *data = dlxpy_tensor_data(t);
    return data && dlxpy_owner_is_on_gpu(t->owner) && dlxpy_gpu_refuse_cpu(t->owner) < 0 ? NULL
                                                                                         : data;
}

Py_ssize_t dlxpy_tensor_n_exports(const struct dlxpy_tensor *t)
{
    if (t->is_untracked)
        return -1;
    return t->n_views + (Py_ssize_t)atomic_load(&t->owner->n_refs) - 1;
}

void dlxpy_tensor_spend(struct dlxpy_tensor *t)
{
    t->owner->tensor = NULL;
    dlxpy_owner_unref(t->owner);
    t->owner = NULL;
}

/* Releasing memory of a GPU may wait for a thread that needs the GIL. The deleter of another
 * library's memory may run Python, for which no exception may be set. */
static void dealloc(PyObject *self)
{
    struct dlxpy_owner *owner = cast(self)->owner;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    dlxpy_clear_weakrefs(self, cast(self)->weakrefs);
    if (owner && (dlxpy_owner_is_on_gpu(owner) || owner->is_used_on)) {
        Py_BEGIN_ALLOW_THREADS
        dlxpy_owner_unref(owner);
        Py_END_ALLOW_THREADS
    } else {
        dlxpy_owner_unref(owner);
    }
    PyErr_Restore(type, value, trace);
    dlxpy_free_object(self);
}

static bool is_padded(const DLManagedTensorVersioned *managed)
{
    return managed->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
}

DLManagedTensorVersioned *dlxpy_tensor_copy(const DLManagedTensorVersioned *managed)
{
    const DLTensor *t = &managed->dl_tensor;
    bool padded = is_padded(managed), done;
    DLManagedTensorVersioned *copy = dlxpy_private_new(t, padded);
    if (!copy) {
        PyErr_NoMemory();
        return NULL;
    }
    if (dlxpy_tensor_bytes(t, padded) < COPY_ALONE) {
        done = dlxpy_copy_elements(copy->dl_tensor.data, t, padded);
    } else {
        Py_BEGIN_ALLOW_THREADS
        done = dlxpy_copy_elements(copy->dl_tensor.data, t, padded);
        Py_END_ALLOW_THREADS
    }
    if (done) {
        copy->flags |= DLPACK_FLAG_BITMASK_IS_COPIED;
        return copy;
    }
    copy->deleter(copy);
    PyErr_SetString(PyExc_BufferError,
                    "elements smaller than a byte are copied only where they are row-major");
    return NULL;
}

/* The owner stays, whatever happens to the object meanwhile. */
DLManagedTensorVersioned *dlxpy_tensor_own_copy(struct dlxpy_tensor *t)
{
    struct dlxpy_owner *owner = t->owner;
    if (!dlxpy_tensor_cpu_data(t))
        return NULL;
    atomic_fetch_add(&owner->n_refs, 1);
    DLManagedTensorVersioned *copy = dlxpy_tensor_copy(owner->tensor);
    dlxpy_owner_unref(owner);
    return copy;
}

/* ---- methods ------------------------------------------------------------------------------- */

PyDoc_STRVAR(dlpack_doc,
             "__dlpack__($self, /, *, stream=None, max_version=None, dl_device=None, copy=None)\n"
             "--\n"
             "\n"
             "Returns a DLPack capsule of the same memory, for `from_dlpack` of NumPy, PyTorch,\n"
             "JAX and so on. The memory stays as long as what is made from it. copy=True gives\n"
             "private, writable memory.\n"
             "\n"
             "Without max_version, the consumer is from before DLPack 1.0 and cannot see that a\n"
             "tensor is read-only: that raises BufferError, unless this is t.as_legacy().\n"
             "\n"
             "On a GPU, `stream` is the consumer's, by the rules of the Python array API: a\n"
             "number, None for the default stream, -1 for none. That stream waits until the\n"
             "data is ready, and so does that of take(stream=...). This call itself waits if\n"
             "there is no stream, or a default stream of CUDA. Objects made from the tensor are\n"
             "released when the work on these streams is done; without a stream, when all work\n"
             "on the GPU is done. The first call opens the tensor, and raises dlx.DeviceError (the "
             "GPU is not\n"
             "visible here) or dlx.PublisherGone. copy=True and another dl_device are refused.");
static PyObject *dlpack(PyObject *self, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    struct dlxpy_request request;
    if (dlxpy_request_parse(args, n_args, kwnames, &request) < 0)
        return NULL;
    return dlxpy_tensor_dlpack(cast(self), &request);
}

PyDoc_STRVAR(device_doc,
             "__dlpack_device__($self, /)\n"
             "--\n"
             "\n"
             "Returns (1, 0) for CPU memory; (2, n) or (10, n) for GPU n of CUDA or ROCm, as\n"
             "this process counts them. The first call opens the tensor, and raises what\n"
             "__dlpack__() raises.");
static PyObject *dlpack_device(PyObject *self, PyObject *unused)
{
    (void)unused;
    return dlxpy_tensor_device(cast(self));
}

PyDoc_STRVAR(as_legacy_doc,
             "as_legacy($self, /)\n"
             "--\n"
             "\n"
             "Returns the same tensor for a consumer that asks for DLPack before 1.0, which\n"
             "cannot say that memory is read-only. The caller guarantees that the consumer does\n"
             "not write: a write to a received tensor ends the process.");
static PyObject *as_legacy(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (!dlxpy_tensor_data(cast(self)))
        return NULL;
    struct dlxpy_tensor *again = dlxpy_tensor_again(cast(self));
    if (again)
        again->gives_legacy = true;
    return (PyObject *)again;
}

PyDoc_STRVAR(copy_doc, "copy($self, /)\n"
                       "--\n"
                       "\n"
                       "Returns a copy in private memory, row-major and writable.");
static PyObject *copy(PyObject *self, PyObject *unused)
{
    (void)unused;
    DLManagedTensorVersioned *managed = dlxpy_tensor_own_copy(cast(self));
    return managed ? (PyObject *)dlxpy_tensor_new(managed) : NULL;
}

/* Returns the same memory as unsigned integers, for types without a name in NumPy. */
static PyObject *as_bits(PyObject *self, PyObject *unused)
{
    (void)unused;
    const DLTensor *t = dlxpy_tensor_cpu_data(cast(self));
    if (!t)
        return NULL;
    DLManagedTensorVersioned *managed = dlxpy_owner_export(cast(self)->owner);
    if (!managed)
        return PyErr_NoMemory();
    managed->dl_tensor.dtype.code = kDLUInt;
    struct dlxpy_tensor *bits = dlxpy_tensor_new(managed);
    if (bits)
        bits->generation = cast(self)->generation;
    return (PyObject *)bits;
}

/* _view(offset, shape, strides) in elements, for indexing; the caller keeps to the tensor's
 * memory. */
static PyObject *make_view(PyObject *self, PyObject *args)
{
    PyObject *shape, *strides;
    long long offset;
    const DLTensor *t = dlxpy_tensor_cpu_data(cast(self));
    if (!t ||
        !PyArg_ParseTuple(args, "LO!O!", &offset, &PyTuple_Type, &shape, &PyTuple_Type, &strides))
        return NULL;
    int64_t item = (int64_t)dlxpy_dtype_bytes(t->dtype);
    if (item == 0) {
        PyErr_SetString(PyExc_BufferError, "elements that are no whole bytes cannot be indexed");
        return NULL;
    }
    int32_t n = (int32_t)PyTuple_Size(shape);
    DLManagedTensorVersioned *managed = dlxpy_owner_view(cast(self)->owner, offset * item, n);
    if (!managed)
        return PyErr_NoMemory();
    for (int32_t i = 0; i < n; i++) {
        managed->dl_tensor.shape[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
        managed->dl_tensor.strides[i] = PyLong_AsLongLong(PyTuple_GetItem(strides, i));
    }
    struct dlxpy_tensor *view = dlxpy_tensor_new(managed);
    if (view) {
        view->generation = cast(self)->generation;
        view->is_received = cast(self)->is_received;
        view->gives_legacy = cast(self)->gives_legacy;
    }
    return (PyObject *)view;
}

PyDoc_STRVAR(used_on_doc,
             "used_on($self, stream, /)\n"
             "--\n"
             "\n"
             "Declares that only work on this GPU stream (and others that are named so) reads a\n"
             "received tensor in CPU memory, of a subscription with `pin`, such as a copy that\n"
             "does not wait. When the tensor and everything made from it are gone, it is released\n"
             "once the work that is then on the stream is done; -1: at once, because no stream\n"
             "reads it. If no stream is named, its release waits for all work of this process on\n"
             "the GPU. Raises dlx.DeviceError without `pin`, and for a tensor on a GPU, whose\n"
             "streams take() and __dlpack__() name.");
static PyObject *used_on(PyObject *self, PyObject *object)
{
    struct dlxpy_stream stream;
    if (!dlxpy_tensor_data(cast(self)) || dlxpy_stream_parse(object, &stream) < 0)
        return NULL;
    struct dlxpy_owner *owner = cast(self)->owner;
    if (dlxpy_owner_is_on_gpu(owner))
        return dlxpy_raise_text(DLX_E_DEVICE, "the tensor is on a GPU: take(stream=...) and "
                                              "__dlpack__(stream=...) name the streams of it");
    bool is_none = stream.kind == DLXPY_STREAM_ANY;
    if (!is_none && stream.number == DLXPY_STREAM_PER_THREAD) {
        PyErr_SetString(PyExc_ValueError, "the stream has to be one that any thread can wait for, "
                                          "not 2");
        return NULL;
    }
    int r =
        dlx_tensor_used_on(owner->tensor, is_none ? DLX_STREAM_NONE : dlxpy_stream_handle(&stream));
    if (r < 0)
        return dlxpy_raise(r);
    owner->is_used_on = true;
    Py_RETURN_NONE;
}

/* ---- attributes ---------------------------------------------------------------------------- */

PyObject *dlxpy_tuple_of(const int64_t *values, int32_t n)
{
    PyObject *ret = PyTuple_New(n);
    for (int32_t i = 0; ret && i < n; i++) {
        PyObject *value = PyLong_FromLongLong(values[i]);
        if (!value) {
            Py_DECREF(ret);
            return NULL;
        }
        (void)PyTuple_SetItem(ret, i, value);
    }
    return ret;
}

static PyObject *get_shape(PyObject *self, void *closure)
{
    (void)closure;
    const DLTensor *t = dlxpy_tensor_data(cast(self));
    return t ? dlxpy_tuple_of(t->shape, t->ndim) : NULL;
}

static PyObject *get_strides(PyObject *self, void *closure)
{
    (void)closure;
    const DLTensor *t = dlxpy_tensor_data(cast(self));
    const int64_t *strides = t && cast(self)->owner->strides ? cast(self)->owner->strides
                             : t                             ? t->strides
                                                             : NULL;
    return t ? dlxpy_tuple_of(strides, t->ndim) : NULL;
}

static PyObject *get_ndim(PyObject *self, void *closure)
{
    (void)closure;
    const DLTensor *t = dlxpy_tensor_data(cast(self));
    return t ? PyLong_FromLong(t->ndim) : NULL;
}

static PyObject *get_dtype(PyObject *self, void *closure)
{
    (void)closure;
    const DLTensor *t = dlxpy_tensor_data(cast(self));
    return t ? dlxpy_dtype_name(t->dtype) : NULL;
}

static PyObject *get_itemsize(PyObject *self, void *closure)
{
    (void)closure;
    const DLTensor *t = dlxpy_tensor_data(cast(self));
    if (!t)
        return NULL;
    size_t whole = dlxpy_dtype_bytes(t->dtype);
    return whole ? PyLong_FromSize_t(whole)
                 : PyFloat_FromDouble((double)t->dtype.bits * t->dtype.lanes / 8.0);
}

static PyObject *get_nbytes(PyObject *self, void *closure)
{
    (void)closure;
    const DLTensor *t = dlxpy_tensor_data(cast(self));
    DLDevice unused;
    if (!t)
        return NULL;
    /* Whether parts of bytes are padded is known when it is open. */
    if (cast(self)->owner->gpu && dlxpy_dtype_bytes(t->dtype) == 0 &&
        dlxpy_gpu_open(cast(self)->owner, &unused) < 0)
        return NULL;
    return PyLong_FromSize_t(dlxpy_tensor_bytes(t, is_padded(cast(self)->owner->tensor)));
}

static PyObject *get_flag(PyObject *self, void *bit)
{
    if (!dlxpy_tensor_data(cast(self)))
        return NULL;
    return PyBool_FromLong((cast(self)->owner->tensor->flags & (uint64_t)(uintptr_t)bit) != 0);
}

static PyObject *get_device(PyObject *self, void *closure)
{
    const struct dlxpy_owner *owner = cast(self)->owner;
    DLDevice device;
    (void)closure;
    if (!owner || (!cast(self)->user && !dlxpy_owner_is_on_gpu(owner)))
        return PyUnicode_FromString("cpu");
    if (!dlxpy_tensor_data(cast(self)) || dlxpy_gpu_open(owner, &device) < 0)
        return NULL;
    return dlxpy_gpu_name(owner);
}

static PyObject *get_status(PyObject *self, void *closure)
{
    const struct dlxpy_owner *owner = cast(self)->owner;
    (void)closure;
    if (!dlxpy_tensor_data(cast(self)))
        return NULL;
    return owner->gpu ? dlxpy_gpu_status(owner) : PyUnicode_FromString("ready");
}

static PyObject *get_is_published(PyObject *self, void *closure)
{
    (void)closure;
    return PyBool_FromLong(!cast(self)->owner);
}

static PyObject *repr(PyObject *self)
{
    const struct dlxpy_tensor *t = cast(self);
    if (!t->owner)
        return PyUnicode_FromString("<dlx.Tensor, published>");
    if (t->user)
        return PyUnicode_FromString("<dlx.Tensor, being published>");
    const DLManagedTensorVersioned *managed = t->owner->tensor;
    PyObject *dtype = dlxpy_dtype_name(managed->dl_tensor.dtype);
    PyObject *shape =
        dtype ? dlxpy_tuple_of(managed->dl_tensor.shape, managed->dl_tensor.ndim) : NULL;
    bool on_gpu = dlxpy_owner_is_on_gpu(t->owner);
    PyObject *where = on_gpu ? dlxpy_gpu_name(t->owner) : PyUnicode_FromString("");
    PyObject *ret = NULL;
    if (shape && where)
        ret = PyUnicode_FromFormat(
            "<dlx.Tensor %S %S%s%U%s%s>", dtype, shape, on_gpu ? " on " : "", where,
            managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY ? ", read-only" : "",
            t->is_received ? ", received"
            : t->publisher ? (on_gpu ? ", to be shared" : ", in shared memory")
                           : "");
    Py_XDECREF(where);
    Py_XDECREF(dtype);
    Py_XDECREF(shape);
    return ret;
}

static Py_ssize_t length(PyObject *self)
{
    const DLTensor *t = dlxpy_tensor_data(cast(self));
    if (t && t->ndim > 0)
        return (Py_ssize_t)t->shape[0];
    if (t)
        PyErr_SetString(PyExc_TypeError, "a tensor of no dimensions has no length");
    return -1;
}

/* ---- DLPack -------------------------------------------------------------------------------- */

static PyObject *gpu_dlpack(const struct dlxpy_tensor *t, const struct dlxpy_request *request)
{
    DLDevice device;
    if (dlxpy_gpu_open(t->owner, &device) < 0 || dlxpy_request_check(request, device) < 0)
        return NULL;
    if (!request->versioned && !t->gives_legacy)
        return dlxpy_refuse_legacy("this tensor");
    DLManagedTensorVersioned *managed = dlxpy_gpu_export(t->owner, &request->stream);
    if (!managed || request->versioned)
        return managed ? dlxpy_capsule(managed) : NULL;
    struct dlxpy_owner *owner = dlxpy_owner_new(managed);
    if (!owner) {
        managed->deleter(managed);
        return PyErr_NoMemory();
    }
    DLManagedTensor *legacy = dlxpy_owner_export_legacy(owner);
    dlxpy_owner_unref(owner);
    return dlxpy_capsule_legacy(legacy);
}

PyObject *dlxpy_tensor_dlpack(struct dlxpy_tensor *t, const struct dlxpy_request *request)
{
    if (!dlxpy_tensor_data(t))
        return NULL;
    if (t->owner->gpu)
        return gpu_dlpack(t, request);
    if (dlxpy_request_check(request, t->owner->tensor->dl_tensor.device) < 0)
        return NULL;
    if (request->copy) {
        DLManagedTensorVersioned *copy = dlxpy_tensor_own_copy(t);
        struct dlxpy_owner *owner = copy && !request->versioned ? dlxpy_owner_new(copy) : NULL;
        if (!copy || request->versioned)
            return copy ? dlxpy_capsule(copy) : NULL;
        if (!owner) {
            copy->deleter(copy);
            return PyErr_NoMemory();
        }
        DLManagedTensor *legacy = dlxpy_owner_export_legacy(owner);
        dlxpy_owner_unref(owner);
        return dlxpy_capsule_legacy(legacy);
    }
    if (request->versioned)
        return dlxpy_capsule(dlxpy_owner_export(t->owner));
    if (t->owner->tensor->flags & DLPACK_FLAG_BITMASK_READ_ONLY && !t->gives_legacy)
        return dlxpy_refuse_legacy("this tensor");
    if (t->owner->tensor->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED) {
        PyErr_SetString(PyExc_BufferError, "elements that are padded to a byte need DLPack 1.1");
        return NULL;
    }
    return dlxpy_capsule_legacy(dlxpy_owner_export_legacy(t->owner));
}

PyObject *dlxpy_tensor_device(const struct dlxpy_tensor *t)
{
    const DLTensor *data = dlxpy_tensor_data(t);
    DLDevice device = data ? data->device : (DLDevice){0};
    if (!data || (t->owner->gpu && dlxpy_gpu_open(t->owner, &device) < 0))
        return NULL;
    return Py_BuildValue("(ii)", (int)device.device_type, (int)device.device_id);
}

/* ---- pickles: to bytes and from bytes; dlx/_tensor.py has the rest -------------------------- */

/* Another tensor object, whose buffer is the memory of this one as bytes, row-major: of a copy
 * if it has other strides. */
static PyObject *as_bytes(PyObject *self, PyObject *unused)
{
    (void)unused;
    const DLTensor *t = dlxpy_tensor_cpu_data(cast(self));
    if (!t)
        return NULL;
    if (!dlxpy_is_row_major(t)) {
        DLManagedTensorVersioned *copy = dlxpy_tensor_own_copy(cast(self));
        PyObject *row_major = copy ? (PyObject *)dlxpy_tensor_new(copy) : NULL;
        PyObject *ret = row_major ? as_bytes(row_major, NULL) : NULL;
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

/* Makes a private tensor whose shape and data type take `size` bytes. NULL with an exception. */
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

static void copy_bytes(void *to, const Py_buffer *from)
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
        copy_bytes(managed->dl_tensor.data, &data);
    PyBuffer_Release(&data);
    return managed ? (PyObject *)dlxpy_tensor_new(managed) : NULL;
}

/* ---- module function ----------------------------------------------------------------------- */

/* The name of a data type, given in any form. */
static PyObject *dtype_name(PyObject *self, PyObject *object)
{
    DLDataType dtype;
    (void)self;
    return dlxpy_dtype(object, &dtype) == 0 ? dlxpy_dtype_name(dtype) : NULL;
}

/* ---- type ---------------------------------------------------------------------------------- */

#define FAST (METH_FASTCALL | METH_KEYWORDS)
static PyMethodDef methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))dlpack, FAST, dlpack_doc},
    {"__dlpack_device__", dlpack_device, METH_NOARGS, device_doc},
    {"_as_bytes", as_bytes, METH_NOARGS, NULL},
    {"_as_bits", as_bits, METH_NOARGS, NULL},
    {"_view", make_view, METH_VARARGS, NULL},
    {"as_legacy", as_legacy, METH_NOARGS, as_legacy_doc},
    {"copy", copy, METH_NOARGS, copy_doc},
    {"used_on", used_on, METH_O, used_on_doc},
    {0},
};

static PyGetSetDef getset[] = {
    {"shape", get_shape, NULL, "The shape, a tuple.", NULL},
    {"strides", get_strides, NULL, "The strides in elements, not bytes; a tuple.", NULL},
    {"ndim", get_ndim, NULL, "The number of dimensions, 0 to 64.", NULL},
    {"dtype", get_dtype, NULL, "The name of the data type, such as \"uint8\".", NULL},
    {"itemsize", get_itemsize, NULL, "Bytes per element; 0.5 for int4.", NULL},
    {"nbytes", get_nbytes, NULL, "Bytes of all elements.", NULL},
    {"readonly", get_flag, NULL, "True if read-only.",
     (void *)(uintptr_t)DLPACK_FLAG_BITMASK_READ_ONLY},
    {"_is_padded", get_flag, NULL, NULL,
     (void *)(uintptr_t)DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED},
    {"copied", get_flag, NULL,
     "True if it is a private copy. (The report of publish() says what that copied.)",
     (void *)(uintptr_t)DLPACK_FLAG_BITMASK_IS_COPIED},
    {"device", get_device, NULL, "\"cpu\", \"cuda:0\", \"rocm:0\".", NULL},
    {"published", get_is_published, NULL, "True if publish() has passed on its memory.", NULL},
    {"status", get_status, NULL,
     "Whether a received tensor on a GPU was ready when its stream continued: ask when the stream\n"
     "has done its work. \"ready\"; \"waiting\": the stream still waits; \"PUBLISHER_GONE\",\n"
     "\"DEVICE\" (an error of the publisher's GPU) or \"TIMEOUT\": what it read has no meaning. "
     "If\n"
     "several streams waited for the message, that of the one that began last.",
     NULL},
    {"__array_interface__", dlxpy_tensor_array_interface, NULL,
     "The protocol of NumPy, version 3. A tensor of empty() has it only once it is read-only.",
     NULL},
    {"__cuda_array_interface__", dlxpy_tensor_cuda_array_interface, NULL,
     "The same for tensors on CUDA GPUs.", NULL},
    {0},
};

static PyMemberDef members[] = {DLXPY_WEAKREFS(struct dlxpy_tensor), {0}};

PyDoc_STRVAR(doc, "A tensor for any library: np.asarray(t), np.from_dlpack(t), "
                  "torch.from_dlpack(t), memoryview(t). A received\n"
                  "tensor is read-only, and the kernel enforces it: a library that writes "
                  "nevertheless, as PyTorch does, ends\n"
                  "the process. To write, use msg.private(name).\n"
                  "\n"
                  "A tensor on a GPU (t.device), received or from empty(device=...), is for GPU "
                  "libraries, by __dlpack__() or\n"
                  "__cuda_array_interface__. Nothing prevents writes to a received one. Code that "
                  "uses it on\n"
                  "streams that were not named, here or to take(), synchronises them before it "
                  "drops the tensor.");
static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)doc},
    {Py_tp_dealloc, (void *)dealloc},
    {Py_tp_repr, (void *)repr},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_getset, getset},
    {Py_mp_length, (void *)length},
    {Py_bf_getbuffer, (void *)dlxpy_tensor_get_buffer},
    {Py_bf_releasebuffer, (void *)dlxpy_tensor_release_buffer},
    {0, NULL},
};
static PyType_Spec spec = {"dlx.Tensor", sizeof(struct dlxpy_tensor), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

static PyMethodDef functions[] = {
    {"_dtype_name", dtype_name, METH_O, NULL},
    {"tensor_from_bytes", tensor_from_bytes, METH_VARARGS, from_bytes_doc},
    {0},
};

int dlxpy_add_tensor(PyObject *module)
{
    dlxpy_tensor_type = dlxpy_add_type(module, &spec, NULL);
    return dlxpy_tensor_type ? PyModule_AddFunctions(module, functions) : -1;
}
