/* SPDX-License-Identifier: Apache-2.0 */
#include "source.h"
#include "dtype.h"
#include "errors.h"
#include "export.h"
#include "gpu.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- capsules -------------------------------------------------------------------------------- */

/* By the rules of DLPack, the consumer of a capsule renames it, and calls the deleter of the tensor
 * once. A capsule that no consumer renames calls the deleter itself. */

#define USED        "used_" DLXPY_CAPSULE
#define USED_LEGACY "used_" DLXPY_CAPSULE_LEGACY

/* `object` is no capsule of either kind, or was used before. */
static int refuse_capsule(PyObject *object)
{
    if (!PyCapsule_CheckExact(object)) {
        PyErr_Format(PyExc_TypeError, "__dlpack__() returned %R, which is no capsule", object);
        return -1;
    }
    const char *name = PyCapsule_GetName(object);
    if (PyCapsule_IsValid(object, USED) || PyCapsule_IsValid(object, USED_LEGACY))
        PyErr_Format(PyExc_BufferError,
                     "the tensor of this DLPack capsule was taken before (its name is '%s'), and "
                     "each capsule gives its tensor once: make a new one",
                     name);
    else
        PyErr_Format(PyExc_TypeError,
                     "a capsule named '%s' holds no DLPack tensor: those are named "
                     "'" DLXPY_CAPSULE "' and '" DLXPY_CAPSULE_LEGACY "'",
                     name ? name : "");
    return -1;
}

int dlxpy_source_check_version(const DLManagedTensorVersioned *managed)
{
    if (managed->version.major == DLPACK_MAJOR_VERSION)
        return 0;
    PyErr_Format(PyExc_BufferError,
                 "a tensor of DLPack %u.%u, and only 1.x is known: ask its library for that, as "
                 "x.__dlpack__(max_version=(1, 0))",
                 (unsigned)managed->version.major, (unsigned)managed->version.minor);
    return -1;
}

int dlxpy_source_check_shape(const DLTensor *t)
{
    if (t->ndim < 0 || t->ndim > DLX_NDIM_MAX)
        (void)dlxpy_raise_text(DLX_E_SHAPE, "a tensor of %d dimensions (limit %d)", (int)t->ndim,
                               DLX_NDIM_MAX);
    else if (t->ndim > 0 && !t->shape)
        PyErr_Format(PyExc_BufferError, "a tensor of %d dimensions whose shape is NULL",
                     (int)t->ndim);
    else
        return 0;
    return -1;
}

/* MXNet names its bool uint1, and gives it a byte each. Before DLPack 1.1 nothing said whether
 * small elements are packed. */
static int check_is_whole(const DLManagedTensor *legacy)
{
    DLDataType dtype = legacy->dl_tensor.dtype;
    if (dtype.code != kDLUInt || dtype.bits != 1)
        return 0;
    PyErr_SetString(PyExc_BufferError,
                    "elements of uint1 from DLPack of before 1.0, which does not say whether they "
                    "are packed: convert them to a type of whole bytes (in MXNet: "
                    "x.astype('uint8'))");
    return -1;
}

static int take_out(struct dlxpy_source *s, PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, DLXPY_CAPSULE)) {
        s->managed = PyCapsule_GetPointer(capsule, DLXPY_CAPSULE);
        (void)PyCapsule_SetName(capsule, USED);
        return 0;
    }
    if (PyCapsule_IsValid(capsule, DLXPY_CAPSULE_LEGACY)) {
        s->legacy = PyCapsule_GetPointer(capsule, DLXPY_CAPSULE_LEGACY);
        (void)PyCapsule_SetName(capsule, USED_LEGACY);
        return check_is_whole(s->legacy);
    }
    return refuse_capsule(capsule);
}

static int look_into_capsule(struct dlxpy_source *s, PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, DLXPY_CAPSULE)) {
        const DLManagedTensorVersioned *managed = PyCapsule_GetPointer(capsule, DLXPY_CAPSULE);
        if (dlxpy_source_check_version(managed) < 0)
            return -1;
        s->view.dl_tensor = managed->dl_tensor;
        return dlxpy_source_check_shape(&managed->dl_tensor) < 0 ? -1 : 1;
    }
    if (PyCapsule_IsValid(capsule, DLXPY_CAPSULE_LEGACY)) {
        const DLManagedTensor *legacy = PyCapsule_GetPointer(capsule, DLXPY_CAPSULE_LEGACY);
        s->view.dl_tensor = legacy->dl_tensor;
        return check_is_whole(legacy) < 0 || dlxpy_source_check_shape(&legacy->dl_tensor) < 0 ? -1
                                                                                              : 1;
    }
    return refuse_capsule(capsule);
}

/* ---- GPUs ------------------------------------------------------------------------------------ */

/* A managed tensor of DLPack before 1.0, in the form that libdlx takes. */
struct wrapped {
    DLManagedTensorVersioned tensor;
    DLManagedTensor *legacy;
};

static void delete_wrapped(DLManagedTensorVersioned *tensor)
{
    struct wrapped *w = tensor->manager_ctx;
    if (w->legacy->deleter)
        w->legacy->deleter(w->legacy);
    free(w);
}

static int wrap(struct dlxpy_source *s)
{
    struct wrapped *w = malloc(sizeof *w);
    if (!w) {
        PyErr_NoMemory();
        return -1;
    }
    *w = (struct wrapped){.tensor = {.version = {DLPACK_MAJOR_VERSION, 0},
                                     .manager_ctx = w,
                                     .deleter = delete_wrapped,
                                     .dl_tensor = s->legacy->dl_tensor},
                          .legacy = s->legacy};
    s->legacy = NULL;
    s->managed = &w->tensor;
    return 0;
}

/* Always the number: libraries differ in what a missing one means (PyTorch does not wait then). */
static PyObject *stream_number(const struct dlxpy_stream *stream, int device_type)
{
    if (dlxpy_stream_check(stream, device_type) < 0)
        return NULL;
    return PyLong_FromLongLong(dlxpy_stream_number(stream, device_type));
}

static int check_gpu(const struct dlxpy_sender *sender, int type, int id)
{
    const char *name = type == kDLROCM ? "ROCm" : "CUDA";
    if (sender->use == DLXPY_PASS || sender->use == DLXPY_LOOK)
        return 0;
    if (sender->use == DLXPY_SHARE)
        (void)dlxpy_raise_text(DLX_E_DEVICE,
                               "the tensor is on %s device %d, and share=True is for tensors of "
                               "empty(): without it, this one is not spent either",
                               name, id);
    else
        (void)dlxpy_raise_text(DLX_E_DEVICE,
                               "the tensor is on %s device %d: publish() takes it where it is, but "
                               "nothing is copied to the host unasked (in PyTorch: t.cpu())",
                               name, id);
    return -1;
}

/* ---- the buffer protocol, and __array_interface__: steps in bytes, types by a text ---------- */

static int make_dims(struct dlxpy_source *s, Py_ssize_t ndim)
{
    if (ndim > DLX_NDIM_MAX) {
        PyErr_Format(PyExc_ValueError, "a tensor of %zd dimensions: at most %d are carried", ndim,
                     DLX_NDIM_MAX);
        return -1;
    }
    if (s->dims != s->inline_dims)
        free(s->dims); /* of another protocol that failed */
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
    uint64_t stride = 1; /* whether there can be so many elements is checked later */
    for (Py_ssize_t i = ndim; i-- > 0; stride *= s->dims[i] > 1 ? (uint64_t)s->dims[i] : 1)
        s->dims[ndim + i] = (int64_t)stride;
}

/* ---- the buffer protocol ------------------------------------------------------------------- */

/* Returns dtype.kind of NumPy: 'M', 'm' (times), 'U', 'S' (text); 0: none; -1 with an exception. */
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

/* Says what to do with elements of this format. */
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

static int source_buffer(struct dlxpy_source *s, PyObject *object)
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

/* NumPy gives types that it does not know as "<V2" and the like; the object's dtype has their name.
 * Returns the bytes an element; 0 if there is no such type, or with an exception. Elements that are
 * smaller than a byte have one each. */
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

static int source_array_interface(struct dlxpy_source *s, PyObject *object)
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

/* ---- devices ------------------------------------------------------------------------------- */

static const char *device_name(int type)
{
    switch (type) {
    case kDLCUDAManaged:
        return "CUDA managed memory, device";
    case kDLOpenCL:
        return "OpenCL device";
    case kDLVulkan:
        return "Vulkan device";
    case kDLMetal:
        return "Metal device";
    case kDLOneAPI:
        return "oneAPI device";
    default:
        return NULL;
    }
}

static bool is_gpu(int type)
{
    return type == kDLCUDA || type == kDLROCM;
}

static int check_device(const struct dlxpy_sender *sender, int type, int id)
{
    if (type == kDLCPU || type == kDLCUDAHost || type == kDLROCMHost)
        return 0;
    if (is_gpu(type))
        return check_gpu(sender, type, id);
    const char *name = device_name(type);
    if (name)
        (void)dlxpy_raise_text(
            DLX_E_DEVICE,
            "the tensor is on %s %d: of GPUs, memory of cudaMalloc and hipMalloc "
            "is carried, and nothing is copied to the host unasked",
            name, id);
    else
        (void)dlxpy_raise_text(
            DLX_E_DEVICE,
            "the tensor is on DLPack device (%d, %d): only memory that the CPU can "
            "read, and that of CUDA and ROCm, is carried",
            type, id);
    return -1;
}

/* Asks the object for its device, before its memory. Returns 1; 0: none; -1 with an exception. */
static int ask_device(PyObject *object, const struct dlxpy_sender *sender, int *ret_type)
{
    int type, id, r = -1;
    bool failed = false;
    PyObject *method = dlxpy_attribute(object, "__dlpack_device__", &failed);
    if (!method)
        return failed ? -1 : 0;
    PyObject *device = PyObject_CallObject(method, NULL);
    if (!device)
        dlxpy_amend("refusal", "(O)", object);
    if (device && PyTuple_Check(device) && PyArg_ParseTuple(device, "ii", &type, &id))
        r = check_device(sender, type, id) < 0 ? -1 : 1;
    else if (device && !PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "__dlpack_device__() returned %R", device);
    if (r > 0)
        *ret_type = type;
    Py_XDECREF(device);
    Py_DECREF(method);
    return r;
}

/* ---- DLPack -------------------------------------------------------------------------------- */

/* PyTorch exports tensors whose values are elsewhere, or nowhere, with no address. begin() replaces
 * this text for those that are known. */
static int check_is_there(const DLTensor *t, bool padded)
{
    size_t size = t->data ? 0 : dlxpy_tensor_bytes(t, padded);
    if (size == 0 || size == SIZE_MAX) /* a shape that is refused later */
        return 0;
    PyErr_Format(PyExc_BufferError,
                 "a tensor of %zu bytes has no memory, its address is NULL: it stands for values "
                 "that are kept in another form or do not exist: publish the tensors that it is "
                 "made of, or what its library makes an ordinary tensor of",
                 size);
    return -1;
}

static int use_tensor(struct dlxpy_source *s, const DLTensor *t, uint64_t flags,
                      const struct dlxpy_sender *sender)
{
    bool padded = flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
    if (dlxpy_source_check_shape(t) < 0 ||
        (sender->use != DLXPY_LOOK && check_is_there(t, padded) < 0))
        return -1;
    s->view.dl_tensor = *t;
    s->view.flags = flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
    if (check_device(sender, (int)t->device.device_type, t->device.device_id) < 0)
        return -1;
    if (s->owner || !is_gpu((int)t->device.device_type))
        return 1;
    if (s->legacy && wrap(s) < 0)
        return -1;
    s->on_gpu = true;
    s->tensor = s->managed;
    return 1;
}

static int use_managed(struct dlxpy_source *s, DLManagedTensorVersioned *managed,
                       const struct dlxpy_sender *sender)
{
    s->managed = managed;
    if (dlxpy_source_check_version(managed) < 0)
        return -1;
    return use_tensor(s, &managed->dl_tensor, managed->flags, sender);
}

/* The table of our version, of those in the chain. */
static const DLPackExchangeAPI *exchange_api(PyObject *capsule)
{
    const DLPackExchangeAPIHeader *header = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (!header)
        PyErr_Clear();
    while (header && header->version.major != DLPACK_MAJOR_VERSION)
        header = header->prev_api;
    return (const DLPackExchangeAPI *)header;
}

/* PyTorch exports the memory of a lazily conjugated or negated tensor as it is, without an error
 * (its __dlpack__ refuses). */
static int check_is_plain(PyObject *object, const char *question, const char *answer)
{
    bool failed = false;
    PyObject *method = dlxpy_attribute(object, question, &failed);
    PyObject *said = method ? PyObject_CallObject(method, NULL) : NULL;
    int r = (method && !said) || failed ? -1 : said ? PyObject_IsTrue(said) : 0;
    Py_XDECREF(said);
    Py_XDECREF(method);
    if (r > 0)
        PyErr_Format(PyExc_BufferError,
                     "a tensor of which %s() is true has other values in memory than it shows: "
                     "publish t.%s()",
                     question, answer);
    return r == 0 ? 0 : -1;
}

/* The exception that is there, amended as a refusal, out of the way; NULL with an exception. */
static PyObject *take_exception(PyObject *object)
{
    PyObject *type, *value, *trace;
    dlxpy_amend("refusal", "(O)", object);
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return value;
}

/* Asks through the C exchange API, which does not wait for the work that writes a tensor on a GPU.
 * __dlpack__ does, and words refusals better. Returns 1; 0: ask by another protocol,
 * *ret_threw if the library refused the object; -1 with an exception. */
static int try_exchange(struct dlxpy_source *s, PyObject *object, const struct dlxpy_sender *sender,
                        PyObject **ret_threw)
{
    bool failed = false;
    PyObject *capsule =
        dlxpy_attribute((PyObject *)Py_TYPE(object), "__dlpack_c_exchange_api__", &failed);
    if (!capsule)
        return failed ? -1 : 0;
    const DLPackExchangeAPI *api = exchange_api(capsule);
    Py_DECREF(capsule); /* the table lives as long as the process */
    if (!api || !api->managed_tensor_from_py_object_no_sync)
        return 0;
    if (check_is_plain(object, "is_conj", "resolve_conj") < 0 ||
        check_is_plain(object, "is_neg", "resolve_neg") < 0)
        return -1;
    DLManagedTensorVersioned *managed = NULL;
    if (api->managed_tensor_from_py_object_no_sync(object, &managed) != 0) {
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            return -1;
        *ret_threw = take_exception(object);
        return *ret_threw ? 0 : -1;
    }
    if (is_gpu((int)managed->dl_tensor.device.device_type)) {
        if (managed->deleter)
            managed->deleter(managed);
        return 0;
    }
    return use_managed(s, managed, sender);
}

/* Take the tensor out of a capsule. */
static int open_capsule(struct dlxpy_source *s, PyObject *capsule,
                        const struct dlxpy_sender *sender)
{
    if (take_out(s, capsule) < 0)
        return -1;
    return s->managed ? use_managed(s, s->managed, sender)
                      : use_tensor(s, &s->legacy->dl_tensor, 0, sender);
}

/* A capsule that the caller got from another library, as from MXNet's to_dlpack_for_read(). This
 * function consumes it, whether or not the publish succeeds. */
static int try_capsule(struct dlxpy_source *s, PyObject *object, const struct dlxpy_sender *sender)
{
    if (!PyCapsule_CheckExact(object))
        return 0;
    return sender->use == DLXPY_LOOK ? look_into_capsule(s, object)
                                     : open_capsule(s, object, sender);
}

/* `stream`: for __dlpack__(); NULL: of no device that has streams. */
static PyObject *call_dlpack(PyObject *method, PyObject *stream)
{
    PyObject *none = PyTuple_New(0);
    PyObject *version =
        Py_BuildValue("{s:(ii)}", "max_version", DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION);
    bool ready =
        none && version && (!stream || PyDict_SetItemString(version, "stream", stream) == 0);
    PyObject *capsule = ready ? PyObject_Call(method, none, version) : NULL;
    /* From before DLPack 1.0. Subclasses of TypeError are about something else. */
    if (!capsule && ready && PyErr_Occurred() == PyExc_TypeError &&
        PyDict_DelItemString(version, "max_version") == 0) {
        PyErr_Clear();
        capsule = PyObject_Call(method, none, version);
    }
    Py_XDECREF(version);
    Py_XDECREF(none);
    return capsule;
}

/* TensorFlow ends the process when it is asked for the memory of what has none that could be
 * copied. */
static int check_has_memory(PyObject *object)
{
    static const char *const without[] = {"string", "resource", "variant"};
    bool failed = false, is_without = false;
    PyObject *dtype = dlxpy_attribute(object, "dtype", &failed);
    PyObject *name = dtype ? dlxpy_attribute(dtype, "name", &failed) : NULL;
    if (failed && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear(); /* tvm-ffi raises for complex numbers, which it carries all the same */
        failed = false;
    }
    for (size_t i = 0; name && PyUnicode_Check(name) && i < 3; i++)
        is_without |= PyUnicode_CompareWithASCIIString(name, without[i]) == 0;
    if (is_without)
        PyErr_Format(PyExc_BufferError, "elements of type '%U': only numbers are carried", name);
    Py_XDECREF(name);
    Py_XDECREF(dtype);
    return is_without || failed ? -1 : 0;
}

/* `stream` as for call_dlpack(). */
static int try_dlpack(struct dlxpy_source *s, PyObject *object, const struct dlxpy_sender *sender,
                      PyObject *stream)
{
    bool failed = false;
    if (check_has_memory(object) < 0)
        return -1;
    PyObject *method = dlxpy_attribute(object, "__dlpack__", &failed);
    if (!method)
        return failed ? -1 : 0;
    PyObject *capsule = call_dlpack(method, stream);
    Py_DECREF(method);
    if (!capsule)
        return -1;
    int r = open_capsule(s, capsule, sender);
    Py_DECREF(capsule);
    return r;
}

static int try_on_gpu(struct dlxpy_source *s, PyObject *object, const struct dlxpy_sender *sender,
                      int type)
{
    PyObject *stream = stream_number(&sender->stream, type);
    int r = stream ? try_dlpack(s, object, sender, stream) : -1;
    Py_XDECREF(stream);
    return r;
}

/* ---- ours ---------------------------------------------------------------------------------- */

static int refuse_received(void)
{
    (void)dlxpy_raise_text(
        DLX_E_DEVICE, "the tensor is on a GPU and was received: its memory is its publisher's, "
                      "so publish a copy (torch.from_dlpack(t).clone())");
    return -1;
}

/* Tensors on a GPU are not copied: may this one be passed on? */
static int check_own_gpu(const struct dlxpy_tensor *t, const struct dlxpy_sender *sender)
{
    if (sender->use == DLXPY_LOOK)
        return 0;
    if (sender->use == DLXPY_COPY)
        return dlxpy_gpu_refuse_cpu(t->owner);
    if (t->owner->gpu)
        return refuse_received();
    Py_ssize_t n = sender->use == DLXPY_SHARE ? 0 : dlxpy_tensor_n_exports(t);
    if (t->publisher == sender->publisher && n == 0)
        return 0;
    PyObject *name = dlxpy_gpu_name(t->owner);
    const char *device = name ? PyUnicode_AsUTF8AndSize(name, NULL) : "a GPU";
    if (t->publisher != sender->publisher)
        (void)dlxpy_raise_text(DLX_E_DEVICE,
                               "the tensor on %s is not one that empty() or empty_like() of this "
                               "publisher returned, and nothing on a GPU is copied: publish a copy "
                               "(torch.from_dlpack(t).clone())",
                               device);
    else if (n < 0)
        (void)dlxpy_raise_text(DLX_E_WOULD_COPY,
                               "the address of the tensor on %s was given away "
                               "(__cuda_array_interface__), so something made of it may still be "
                               "there, and nothing on a GPU is copied: publish it with share=True",
                               device);
    else
        (void)dlxpy_raise_text(DLX_E_WOULD_COPY,
                               "%zd array(s) made of the tensor on %s are still there, and nothing "
                               "on a GPU is copied: delete them first, or publish it with "
                               "share=True",
                               n, device);
    Py_XDECREF(name);
    return -1;
}

static int use_own(struct dlxpy_source *s, struct dlxpy_tensor *t,
                   const struct dlxpy_sender *sender)
{
    enum dlxpy_use use = sender->use;
    uint64_t publisher = sender->publisher;
    const void *user = sender->user;
    s->is_again = user && t->user == user;
    DLTensor *data = s->is_again ? &t->owner->tensor->dl_tensor : dlxpy_tensor_data(t);
    if (!data)
        return -1;
    bool on_gpu = dlxpy_owner_is_on_gpu(t->owner);
    if (on_gpu && !s->is_again && check_own_gpu(t, sender) < 0)
        return -1;
    bool pass = t->publisher == publisher && t->publisher != 0 &&
                (use == DLXPY_SHARE || (use == DLXPY_PASS && dlxpy_tensor_n_exports(t) == 0));
    Py_INCREF((PyObject *)t);
    if (s->is_again || pass) {
        s->own = t;
        s->tensor = t->owner->tensor;
        s->on_gpu = on_gpu;
        t->user = user;
        return 1;
    }
    s->object = (PyObject *)t;
    s->owner = t->owner;
    atomic_fetch_add(&t->owner->n_refs, 1);
    return use_tensor(s, data, t->owner->tensor->flags, sender);
}

/* ---- what no protocol tells ----------------------------------------------------------------- */

/* numpy.ma gives its data by all of them, and its mask by none. A method of this name is something
 * else (pandas). */
static int check_is_not_masked(PyObject *object)
{
    static PyTypeObject *without; /* the last one, kept: an attribute that is not there takes as
                                     long as half a publish() */
    bool failed = false;
    if (Py_IS_TYPE(object, without))
        return 0;
    PyObject *mask = dlxpy_attribute((PyObject *)Py_TYPE(object), "mask", &failed);
    bool is_masked = mask && !PyCallable_Check(mask);
    Py_XDECREF(mask);
    if (is_masked)
        PyErr_Format(PyExc_BufferError,
                     "%R: its mask would be lost: publish x.filled(value), or x.data and x.mask "
                     "as two tensors",
                     (PyObject *)Py_TYPE(object));
    if (is_masked || failed)
        return -1;
    PyTypeObject *last = without;
    without = Py_TYPE(object);
    Py_INCREF((PyObject *)without);
    Py_XDECREF((PyObject *)last);
    return 0;
}

/* ---- any ----------------------------------------------------------------------------------- */

static int refuse(PyObject *object)
{
    PyErr_Format(PyExc_TypeError,
                 "no tensor: %R has neither __dlpack__, nor the buffer protocol, nor "
                 "__array_interface__, and is no DLPack capsule: convert it, by numpy.asarray() "
                 "for example",
                 (PyObject *)Py_TYPE(object));
    return -1;
}

/* NumPy has types for which neither its buffers nor its __dlpack__ have names, as bfloat16: the
 * last protocol may serve where the others fail. If none does, the first failure is the one to
 * tell. */
static int try_in_turn(struct dlxpy_source *s, PyObject *object, const struct dlxpy_sender *sender)
{
    PyObject *type = NULL, *value = NULL, *trace = NULL;
    int r = 0;
    for (int way = 0; way < 3; way++) {
        r = way == 0   ? source_buffer(s, object)
            : way == 1 ? try_dlpack(s, object, sender, NULL)
                       : source_array_interface(s, object);
        if (r > 0)
            break;
        if (r < 0 && (!PyErr_ExceptionMatches(PyExc_Exception) || s->managed || s->legacy))
            break;
        if (r < 0 && !type)
            PyErr_Fetch(&type, &value, &trace);
        else
            PyErr_Clear();
        r = 0;
    }
    if (r == 0 && type) {
        PyErr_Restore(type, value, trace);
        return -1;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return r;
}

/* The object does not tell on which GPU of the process it is. */
static int refuse_cuda_array(void)
{
    (void)dlxpy_raise_text(DLX_E_DEVICE,
                           "a CUDA array without __dlpack__, which would say on which GPU it is: "
                           "publish torch.as_tensor(x, device=\"cuda\") or cupy.asarray(x), which "
                           "is the same memory");
    return -1;
}

/* Returns as try_exchange(). */
static int ask(struct dlxpy_source *s, PyObject *object, const struct dlxpy_sender *sender,
               PyObject **ret_threw)
{
    int type = kDLCPU;
    bool plain = PyBytes_CheckExact(object) || PyByteArray_CheckExact(object);
    int r = plain ? 0 : try_capsule(s, object, sender);
    if (r == 0 && !plain)
        r = try_exchange(s, object, sender, ret_threw);
    if (r != 0)
        return r;
    if (!plain && check_is_not_masked(object) < 0)
        return -1;
    r = plain ? 1 : ask_device(object, sender, &type);
    if (r < 0)
        return r;
    if (r == 0) {
        bool failed = false;
        PyObject *cuda = dlxpy_attribute(object, "__cuda_array_interface__", &failed);
        Py_XDECREF(cuda);
        if (cuda)
            return refuse_cuda_array();
        if (failed && dlxpy_pass_over() < 0)
            return -1;
    }
    return is_gpu(type) ? try_on_gpu(s, object, sender, type) : try_in_turn(s, object, sender);
}

static int begin(struct dlxpy_source *s, PyObject *object, const struct dlxpy_sender *sender)
{
    PyObject *threw = NULL;
    int r = ask(s, object, sender, &threw);
    if (r == 0 && threw)
        PyErr_SetObject((PyObject *)Py_TYPE(threw), threw);
    Py_XDECREF(threw);
    if (r == 0)
        r = PyErr_Occurred() ? -1 : refuse(object);
    if (r < 0)
        dlxpy_amend("no_memory", "(O)", object);
    return r;
}

int dlxpy_source_begin(struct dlxpy_source *s, PyObject *object, const struct dlxpy_sender *sender)
{
    memset(s, 0, sizeof *s);
    s->view.version = (DLPackVersion){DLPACK_MAJOR_VERSION, 0};
    s->tensor = &s->view;
    int r;
    if (Py_IS_TYPE(object, dlxpy_tensor_type)) {
        r = use_own(s, (struct dlxpy_tensor *)object, sender);
    } else {
        Py_INCREF(object);
        s->object = object;
        r = begin(s, object, sender);
    }
    if (r < 0)
        dlxpy_source_end(s, false);
    return r < 0 ? -1 : 0;
}

/* ---- module function ----------------------------------------------------------------------- */

PyDoc_STRVAR(tensor_doc,
             "tensor($module, object, /)\n"
             "--\n"
             "\n"
             "Makes a private, writable dlx.Tensor with the elements of any tensor that\n"
             "publish() accepts.");
static PyObject *tensor_of(PyObject *self, PyObject *object)
{
    static const struct dlxpy_sender sender = {.use = DLXPY_COPY};
    struct dlxpy_source source;
    (void)self;
    if (dlxpy_source_begin(&source, object, &sender) < 0)
        return NULL;
    DLManagedTensorVersioned *copy = dlxpy_tensor_copy(source.tensor);
    dlxpy_source_end(&source, false);
    return copy ? (PyObject *)dlxpy_tensor_new(copy) : NULL;
}

static PyMethodDef functions[] = {{"tensor", tensor_of, METH_O, tensor_doc}, {0}};

int dlxpy_add_source(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}

/* ---- the end ------------------------------------------------------------------------------- */

/* Some deleters run Python, for which no exception may be set. */
static void call_deleters(struct dlxpy_source *s)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    dlxpy_owner_unref(s->owner);
    if (s->managed && s->managed->deleter)
        s->managed->deleter(s->managed);
    if (s->legacy && s->legacy->deleter)
        s->legacy->deleter(s->legacy);
    PyErr_Restore(type, value, trace);
}

void dlxpy_source_end(struct dlxpy_source *s, bool spent)
{
    if (s->own) {
        if (!s->is_again)
            s->own->user = NULL;
        if (spent && !s->is_again)
            dlxpy_tensor_spend(s->own);
        Py_DECREF(s->own);
    }
    if (s->on_gpu && spent)
        s->managed = NULL;
    if (s->owner || s->managed || s->legacy)
        call_deleters(s);
    if (s->buffer.obj)
        PyBuffer_Release(&s->buffer);
    Py_XDECREF(s->object);
    if (s->dims != s->inline_dims)
        free(s->dims);
}
