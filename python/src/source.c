/* SPDX-License-Identifier: Apache-2.0 */
#include "source.h"
#include "dtype.h"
#include "errors.h"
#include "export.h"
#include "gpu.h"
#include <stdlib.h>
#include <string.h>

PyObject *dlxpy_attribute(PyObject *object, const char *name, bool *failed)
{
    PyObject *value = PyObject_GetAttrString(object, name);
    if (!value && PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Clear();
    else if (!value)
        *failed = true;
    return value;
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
        return dlxpy_source_check_gpu(sender, type, id);
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

/* What the object says of itself, before it is asked for its memory. Returns 1; 0: nothing; -1. */
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
    if (s->legacy && dlxpy_source_wrap(s) < 0)
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

/* PyTorch gives the memory of a tensor that is conjugated or negated only when it is read as it is,
 * without a word (its __dlpack__ refuses). */
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

/* It does not wait for the work that writes a tensor on a GPU: __dlpack__ does, which also has
 * better words for what it refuses. Returns 1; 0: ask by another protocol, *ret_threw if its
 * library refused it; -1 with an exception. */
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
    if (dlxpy_source_open_capsule(s, capsule) < 0)
        return -1;
    return s->managed ? use_managed(s, s->managed, sender)
                      : use_tensor(s, &s->legacy->dl_tensor, 0, sender);
}

/* A capsule that the caller got from another library, as from MXNet's to_dlpack_for_read(). It is
 * consumed here, whether or not the publish succeeds. */
static int try_capsule(struct dlxpy_source *s, PyObject *object, const struct dlxpy_sender *sender)
{
    if (!PyCapsule_CheckExact(object))
        return 0;
    return sender->use == DLXPY_LOOK ? dlxpy_source_look_into_capsule(s, object)
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
    PyObject *stream = dlxpy_source_stream(&sender->stream, type);
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

/* Nothing on a GPU is copied: may it be passed on? */
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
        r = way == 0   ? dlxpy_source_buffer(s, object)
            : way == 1 ? try_dlpack(s, object, sender, NULL)
                       : dlxpy_source_array_interface(s, object);
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

/* Nobody says which of the process's GPUs it is on. */
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

/* Some of them run Python, for which no exception may be there. */
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
