/* SPDX-License-Identifier: Apache-2.0 */
#include "message.h"
#include "debug.h"
#include "dtype.h"
#include "errors.h"
#include "export.h"
#include "gpu.h"
#include "qos.h"
#include "range.h"
#include <string.h>

PyTypeObject *dlxpy_message_type;
static PyTypeObject *named_type;
PyTypeObject *dlxpy_tree_message_type;

static struct dlxpy_message *cast(PyObject *self)
{
    return (struct dlxpy_message *)self;
}

struct dlx_message *dlxpy_message_of(PyObject *self)
{
    if (!cast(self)->m)
        (void)dlxpy_raise_closed("this message was released, and");
    return cast(self)->m;
}

static PyTypeObject *type_of(const struct dlx_message *m)
{
    uint32_t i = 0, n = dlx_message_n_tensors(m);
    while (i < n && !dlx_message_tensor_name(m, i)[0])
        i++;
    if (i == n)
        return dlxpy_message_type;
    /* _tree.py begins the metadata of a nested set so, and ends it with "}". */
    static const char begin[] = "{\"dlx.tree\":";
    size_t size;
    const char *meta = dlx_message_meta(m, &size);
    bool is_tree = meta && size > sizeof begin && memcmp(meta, begin, sizeof begin - 1) == 0 &&
                   meta[size - 1] == '}';
    return is_tree ? dlxpy_tree_message_type : named_type;
}

PyObject *dlxpy_message_new(struct dlx_message *m, const struct dlxpy_stream *stream,
                            enum dlxpy_memory memory)
{
    struct dlxpy_message *message = PyObject_New(struct dlxpy_message, type_of(m));
    if (!message) {
        dlx_message_unref(m);
        return NULL;
    }
    message->m = m;
    message->weakrefs = NULL;
    message->stream = *stream;
    message->is_on_gpu = false;
    message->is_settled = false;
    message->memory = memory;
    message->generation = dlxpy_fork_generation();
    if (dlxpy_debug_is_on())
        dlxpy_debug_received(m);
    return (PyObject *)message;
}

/* Closing memory of a GPU may wait for a thread that needs the GIL. */
static void drop(struct dlxpy_message *message)
{
    struct dlx_message *m = message->m;
    message->m = NULL;
    if (!message->is_on_gpu) {
        dlx_message_unref(m);
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    dlx_message_unref(m);
    Py_END_ALLOW_THREADS
}

static void dealloc(PyObject *self)
{
    dlxpy_clear_weakrefs(self, cast(self)->weakrefs);
    drop(cast(self));
    dlxpy_free_object(self);
}

/* ---- tensors ------------------------------------------------------------------------------- */

/* Another thread may release the message meanwhile. Returns what libdlx does. */
static int make_private(struct dlx_message *m, uint32_t i, DLManagedTensorVersioned **ret)
{
    int r;
    (void)dlx_message_ref(m);
    Py_BEGIN_ALLOW_THREADS
    r = dlx_message_tensor_private(m, i, ret);
    dlx_message_unref(m);
    Py_END_ALLOW_THREADS
    return r;
}

/* A copy from pinned memory that does not wait looks like any other, and may be queued when all
 * that was made from the tensor is gone. */
static int make_pinned(struct dlx_message *m, uint32_t i, DLManagedTensorVersioned **ret)
{
    DLManagedTensorVersioned *t;
    int r = dlx_message_tensor(m, i, &t);
    if (r < 0)
        return r;
    r = dlx_tensor_used_on(t, DLX_STREAM_ALL);
    if (r < 0)
        t->deleter(t);
    else
        *ret = t;
    return r;
}

/* Gets a tensor on the CPU, or a private one. Returns 0, or -1 with an exception. */
static int get_tensor(const struct dlxpy_message *message, uint32_t i,
                      DLManagedTensorVersioned **ret)
{
    int r = message->memory == DLXPY_PRIVATE  ? make_private(message->m, i, ret)
            : message->memory == DLXPY_PINNED ? make_pinned(message->m, i, ret)
                                              : dlx_message_tensor(message->m, i, ret);
    if (r < 0)
        (void)dlxpy_raise(r);
    return r < 0 ? -1 : 0;
}

static struct dlxpy_tensor *tensor_on_gpu(struct dlx_message *m, uint32_t i,
                                          const struct dlxpy_stream *stream)
{
    struct dlxpy_owner *owner = dlxpy_gpu_owner(m, i, stream);
    struct dlxpy_tensor *t = owner ? dlxpy_tensor_of(owner) : NULL;
    if (!t)
        dlxpy_owner_unref(owner);
    return t;
}

/* A forked child has copies, and nothing else of a message. */
static void set_generation(struct dlxpy_tensor *t, const struct dlxpy_message *message)
{
    bool is_copy = t->owner->tensor->flags & DLPACK_FLAG_BITMASK_IS_COPIED;
    t->generation = is_copy ? 0 : message->generation;
}

struct dlxpy_tensor *dlxpy_message_tensor(struct dlxpy_message *message, uint32_t i)
{
    DLManagedTensorVersioned *managed;
    struct dlx_message *m = dlxpy_message_of((PyObject *)message);
    if (!m)
        return NULL;
    bool on_gpu = message->memory != DLXPY_PRIVATE && dlxpy_gpu_has(m, i);
    message->is_on_gpu |= on_gpu;
    if (!on_gpu && get_tensor(message, i, &managed) < 0)
        return NULL;
    struct dlxpy_tensor *t =
        on_gpu ? tensor_on_gpu(m, i, &message->stream) : dlxpy_tensor_new(managed);
    if (t) {
        t->is_received = message->memory != DLXPY_PRIVATE;
        t->owner->is_used_on = !on_gpu && message->memory == DLXPY_PINNED;
        set_generation(t, message);
    }
    return t;
}

/* Names are bytes to libdlx; a name that is no UTF-8 is in a str as os.fsdecode() gives it. Returns
 * a code, or 1 with an exception. */
static int find_name(struct dlx_message *m, PyObject *key, uint32_t *ret)
{
    PyObject *bytes = PyUnicode_AsEncodedString(key, "utf-8", "surrogateescape");
    char *name;
    int r = 1;
    if (bytes &&
        PyBytes_AsStringAndSize(bytes, &name, NULL) == 0) /* without a size: no NUL either */
        r = dlx_message_tensor_find(m, name, ret);
    Py_XDECREF(bytes);
    return r;
}

/* A tensor by its number (from the end, if negative) or its name. The message, which is there now,
 * or NULL with an exception. */
static struct dlx_message *find(PyObject *self, PyObject *key, uint32_t *ret)
{
    bool by_name = PyUnicode_Check(key);
    if (!by_name && !PyIndex_Check(key)) {
        PyErr_Format(PyExc_TypeError,
                     "a key of a message is the number or name of a tensor, not %.100R: elements "
                     "are those of a tensor, msg[0][key]",
                     key);
        return NULL;
    }
    Py_ssize_t i = by_name ? 0 : PyNumber_AsSsize_t(key, PyExc_IndexError);
    if (i == -1 && PyErr_Occurred())
        return NULL;
    struct dlx_message *m = dlxpy_message_of(self); /* now: key.__index__() may have released it */
    if (m && by_name) {
        int r = find_name(m, key, ret);
        if (r < 0)
            (void)dlxpy_raise(r);
        return r == 0 ? m : NULL;
    }
    Py_ssize_t n = m ? (Py_ssize_t)dlx_message_n_tensors(m) : 0;
    if (m && (i < -n || i >= n)) {
        PyErr_Format(PyExc_IndexError,
                     "tensor %zd of a message of %zd: the elements of the first are msg[0]", i, n);
        return NULL;
    }
    *ret = (uint32_t)(i < 0 ? i + n : i);
    return m;
}

static PyObject *get_item(PyObject *self, PyObject *key)
{
    uint32_t i;
    return find(self, key, &i) ? (PyObject *)dlxpy_message_tensor(cast(self), i) : NULL;
}

PyDoc_STRVAR(private_doc,
             "private($self, key, /)\n"
             "--\n"
             "\n"
             "Returns a writable tensor with that name or index. No other\n"
             "process or object sees what is written to it.\n"
             "\n"
             "From 256 KiB on it is a copy-on-write view: each page is copied when it is first\n"
             "written to, and the view holds the message. A smaller tensor is copied (t.copied\n"
             "is True). A tensor on a GPU raises dlx.DeviceError: use\n"
             "torch.from_dlpack(msg[key]).clone().");
static PyObject *private(PyObject *self, PyObject *key)
{
    DLManagedTensorVersioned *managed;
    uint32_t i;
    struct dlx_message *m = find(self, key, &i);
    int r = m ? make_private(m, i, &managed) : 0;
    if (!m || r < 0)
        return m ? dlxpy_raise(r) : NULL;
    struct dlxpy_tensor *t = dlxpy_tensor_new(managed);
    if (t)
        set_generation(t, cast(self));
    return (PyObject *)t;
}

/* The length of the one tensor would not fit msg[0], and 1 would not fit msg.shape. TypeError:
 * callers that ask for a length as a hint, such as list(msg), ignore no other exception. */
static Py_ssize_t length(PyObject *self)
{
    const struct dlx_message *m = dlxpy_message_of(self);
    uint32_t n = m ? dlx_message_n_tensors(m) : 0;
    if (n == 1 && Py_IS_TYPE(self, dlxpy_message_type)) {
        PyErr_SetString(PyExc_TypeError,
                        "a message of one tensor has no len(): that of the tensor is len(msg[0]), "
                        "the number of tensors is len(msg.tensors)");
        return -1;
    }
    return m ? (Py_ssize_t)n : -1;
}

/* A message is true, as `while msg := sub.try_take()` needs it. */
static int is_true(PyObject *self)
{
    (void)self;
    return 1;
}

/* A str, or None if the tensor has no name. */
static PyObject *name_of(PyObject *self, const struct dlx_message *m, uint32_t i)
{
    (void)self;
    const char *name = dlx_message_tensor_name(m, i);
    return name[0] ? PyUnicode_DecodeUTF8(name, (Py_ssize_t)strlen(name), "surrogateescape")
                   : Py_NewRef(Py_None);
}

static PyObject *tensor_of(PyObject *self, const struct dlx_message *m, uint32_t i)
{
    (void)m;
    return (PyObject *)dlxpy_message_tensor(cast(self), i);
}

/* Data type, shape and bytes, without making a dlx.Tensor, which would hold the message. */
static PyObject *spec_of(PyObject *self, const struct dlx_message *m, uint32_t i)
{
    (void)self;
    const DLTensor *t = dlx_message_tensor_peek(m, i);
    PyObject *dtype = dlxpy_dtype_name(t->dtype);
    PyObject *shape = dtype ? dlxpy_tuple_of(t->shape, t->ndim) : NULL;
    if (shape)
        return Py_BuildValue("(NNK)", dtype, shape,
                             (unsigned long long)dlxpy_tensor_bytes(t, false));
    Py_XDECREF(dtype);
    return NULL;
}

/* A list of make() for each tensor. A garbage collection may release the message meanwhile. */
static PyObject *list(PyObject *self,
                      PyObject *(*make)(PyObject *self, const struct dlx_message *m, uint32_t i))
{
    struct dlx_message *m = dlxpy_message_of(self);
    if (!m)
        return NULL;
    (void)dlx_message_ref(m);
    PyObject *ret = PyList_New(dlx_message_n_tensors(m));
    for (uint32_t i = 0; ret && i < dlx_message_n_tensors(m); i++) {
        PyObject *item = make(self, m, i);
        if (!item)
            Py_CLEAR(ret);
        else
            (void)PyList_SetItem(ret, i, item);
    }
    dlx_message_unref(m);
    return ret;
}

PyObject *dlxpy_message_tensors(PyObject *self, void *closure)
{
    (void)closure;
    return list(self, tensor_of);
}

static PyObject *get_names(PyObject *self, void *closure)
{
    (void)closure;
    return list(self, name_of);
}

static PyObject *specs(PyObject *self, PyObject *unused)
{
    (void)unused;
    return list(self, spec_of);
}

/* ---- a message of one tensor --------------------------------------------------------------- */

struct dlx_message *dlxpy_message_only_one(PyObject *self)
{
    struct dlx_message *m = dlxpy_message_of(self);
    if (!m || dlxpy_check_forked(cast(self)->generation) < 0)
        return NULL;
    if (dlx_message_n_tensors(m) == 1)
        return m;
    PyErr_Format(PyExc_BufferError,
                 "a message of %lu tensors: name the one that is meant, as msg[name] or msg[0]",
                 (unsigned long)dlx_message_n_tensors(m));
    return NULL;
}

DLManagedTensorVersioned *dlxpy_message_export(PyObject *self)
{
    DLManagedTensorVersioned *managed;
    struct dlx_message *m = dlxpy_message_only_one(self);
    if (!m || cast(self)->memory == DLXPY_PRIVATE || !dlxpy_gpu_has(m, 0))
        return m && get_tensor(cast(self), 0, &managed) == 0 ? managed : NULL;
    struct dlxpy_tensor *t = dlxpy_message_tensor(cast(self), 0);
    managed = t ? dlxpy_gpu_export(t->owner, NULL) : NULL;
    Py_XDECREF((PyObject *)t);
    return managed;
}

PyDoc_STRVAR(dlpack_doc,
             "__dlpack__($self, /, *, stream=None, max_version=None, dl_device=None, copy=None)\n"
             "--\n"
             "\n"
             "Returns the capsule of the only tensor. BufferError if the message has more.");
static PyObject *dlpack(PyObject *self, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    static const DLDevice cpu = {kDLCPU, 0};
    struct dlxpy_request request;
    if (dlxpy_request_parse(args, n_args, kwnames, &request) < 0)
        return NULL;
    const struct dlx_message *m = dlxpy_message_only_one(self);
    bool on_gpu = m && dlxpy_gpu_has(m, 0);
    if (!m || (!on_gpu && dlxpy_request_check(&request, cpu) < 0))
        return NULL;
    if (!on_gpu && request.versioned && !request.copy) {
        DLManagedTensorVersioned *managed = dlxpy_message_export(self);
        return managed ? dlxpy_capsule(managed) : NULL;
    }
    if (!on_gpu && !request.copy && cast(self)->memory != DLXPY_PRIVATE)
        return dlxpy_refuse_legacy("a received message");
    struct dlxpy_tensor *t = dlxpy_message_tensor(cast(self), 0);
    PyObject *ret = t ? dlxpy_tensor_dlpack(t, &request) : NULL;
    Py_XDECREF((PyObject *)t);
    return ret;
}

PyDoc_STRVAR(device_doc, "__dlpack_device__($self, /)\n"
                         "--\n"
                         "\n"
                         "Returns the device of the only tensor; (1, 0) if the message has more.");
static PyObject *dlpack_device(PyObject *self, PyObject *unused)
{
    const struct dlx_message *m = cast(self)->m;
    (void)unused;
    if (!m || dlx_message_n_tensors(m) > 1 || !dlxpy_gpu_has(m, 0))
        return Py_BuildValue("(ii)", kDLCPU, 0);
    if (dlxpy_check_forked(cast(self)->generation) < 0)
        return NULL;
    struct dlxpy_tensor *t = dlxpy_message_tensor(cast(self), 0);
    PyObject *ret = t ? dlxpy_tensor_device(t) : NULL;
    Py_XDECREF((PyObject *)t);
    return ret;
}

static int get_buffer(PyObject *self, Py_buffer *view, int flags)
{
    view->obj = NULL;
    PyObject *t =
        dlxpy_message_only_one(self) ? (PyObject *)dlxpy_message_tensor(cast(self), 0) : NULL;
    int r = t ? PyObject_GetBuffer(t, view, flags) : -1;
    Py_XDECREF(t); /* the view has its own reference */
    return r;
}

/* ---- attributes ---------------------------------------------------------------------------- */

static PyObject *get_topic(PyObject *self, void *closure)
{
    (void)closure;
    const struct dlx_message *m = dlxpy_message_of(self);
    return m ? PyUnicode_FromString(dlx_message_topic(m)) : NULL;
}

static PyObject *get_number(PyObject *self, void *closure)
{
    const struct dlx_message *m = dlxpy_message_of(self);
    uint64_t (*number)(const struct dlx_message *);
    *(void **)&number = closure;
    return m ? PyLong_FromUnsignedLongLong(number(m)) : NULL;
}

static PyObject *get_qos(PyObject *self, void *closure)
{
    (void)closure;
    const struct dlx_message *m = dlxpy_message_of(self);
    return m ? dlxpy_qos_of(m) : NULL;
}

static PyObject *get_meta_bytes(PyObject *self, void *closure)
{
    (void)closure;
    const struct dlx_message *m = dlxpy_message_of(self);
    size_t size = 0;
    const char *meta = m ? dlx_message_meta(m, &size) : NULL;
    return m ? PyBytes_FromStringAndSize(meta, (Py_ssize_t)size) : NULL;
}

static PyObject *get_is_released(PyObject *self, void *closure)
{
    (void)closure;
    return PyBool_FromLong(!cast(self)->m);
}

PyDoc_STRVAR(release_doc,
             "release($self, /)\n"
             "--\n"
             "\n"
             "Releases the message now. Tensors made from it stay valid, and its memory is free\n"
             "when they are gone, too. What a worker of a group has not done is given back.");
static PyObject *release(PyObject *self, PyObject *unused)
{
    (void)unused;
    (void)dlxpy_task_leave(self, true); /* also if arrays of it are still there */
    drop(cast(self));
    Py_RETURN_NONE;
}

static PyObject *enter(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (!dlxpy_message_of(self))
        return NULL;
    Py_INCREF(self);
    return self;
}

static PyObject *leave(PyObject *self, PyObject *args)
{
    bool has_failed = PyTuple_Size(args) > 0 && PyTuple_GetItem(args, 0) != Py_None;
    int r = dlxpy_task_leave(self, has_failed);
    drop(cast(self));
    if (r < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* ---- type ---------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))dlpack, METH_FASTCALL | METH_KEYWORDS, dlpack_doc},
    {"__dlpack_device__", dlpack_device, METH_NOARGS, device_doc},
    {"__enter__", enter, METH_NOARGS, NULL},
    {"__exit__", leave, METH_VARARGS, NULL},
    {"_specs", specs, METH_NOARGS, NULL},
    {"open_into", (PyCFunction)(void (*)(void))dlxpy_message_open_into,
     METH_FASTCALL | METH_KEYWORDS, dlxpy_open_into_doc},
    {"private", private, METH_O, private_doc},
    {"release", release, METH_NOARGS, release_doc},
    {"done", dlxpy_task_done, METH_NOARGS, dlxpy_task_done_doc},
    {"give_back", dlxpy_task_give_back, METH_NOARGS, dlxpy_task_give_back_doc},
    {"renew", dlxpy_task_renew, METH_NOARGS, dlxpy_task_renew_doc},
    {0},
};

static PyGetSetDef getset[] = {
    {"tensors", dlxpy_message_tensors, NULL, "A list of all tensors, in order.", NULL},
    {"names", get_names, NULL, "A list of the names of all tensors; None for one without a name.",
     NULL},
    {"topic", get_topic, NULL, "The topic that the message was published on.", NULL},
    {"seq", get_number, NULL, "The number of the message, 1 for its publisher's first.",
     (void *)dlx_message_seq},
    {"gap", get_number, NULL,
     "How many messages were lost or skipped between the one taken before and this one.",
     (void *)dlx_message_gap},
    {"monotonic_ns", get_number, NULL, "The time of publication, as time.monotonic_ns().",
     (void *)dlx_message_monotonic_ns},
    {"publisher", get_number, NULL, "The id of the publisher; a newer one has a greater id.",
     (void *)dlx_message_publisher},
    {"qos", get_qos, NULL,
     "What its publisher offers, and whether that waits for this subscription: a dlx.Qos.", NULL},
    {"meta_bytes", get_meta_bytes, NULL, "The metadata as bytes, as they were sent.", NULL},
    {"attempt", dlxpy_task_attempt, NULL,
     "Which delivery of the message to a worker of its group this is, 1 for the first; 0 if the "
     "subscription is in no group.",
     NULL},
    {"released", get_is_released, NULL, "True if released.", NULL},
    {0},
};

static PyMemberDef members[] = {DLXPY_WEAKREFS(struct dlxpy_message), {0}};

PyDoc_STRVAR(
    doc,
    "A message: one or more tensors, of which a subscriber receives all or nothing. It behaves\n"
    "like what was published. One tensor without a name has the attributes of that tensor:\n"
    "msg.shape, msg.dtype, msg.numpy(), torch.from_dlpack(msg), torch.stack([msg]). A set\n"
    "without names is a sequence: msg[0], len(msg), for t in msg. So is a message of one\n"
    "tensor, but len(msg) raises TypeError there: it could be the number of tensors, or the\n"
    "extent of the one. Tensors with names are a dlx.NamedMessage, a mapping. The message is\n"
    "held until it and everything made from it are gone. A subscription holds at most\n"
    "`max_held` messages.\n"
    "\n"
    "`with msg:` releases it in the end. To a worker of a group it says that the message is\n"
    "done(), or, if an exception leaves the block, gives it back.");
PyDoc_STRVAR(named_doc, "A dlx.Message of tensors with names: a collections.abc.Mapping. The key "
                        "of a tensor without a name is its\n"
                        "index.");
static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)doc},
    {Py_tp_dealloc, (void *)dealloc},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_getset, getset},
    {Py_nb_bool, (void *)is_true},
    {Py_mp_length, (void *)length},
    {Py_mp_subscript, (void *)get_item},
    {Py_bf_getbuffer, (void *)get_buffer},
    {0, NULL},
};
PyDoc_STRVAR(tree_doc,
             "A dlx.NamedMessage of nested dicts, lists and tuples of tensors and scalars. It "
             "behaves like the outermost\n"
             "dict. msg.names has the paths, such as \"opt/m/0\", and msg.tensors all tensors.");
static PyType_Slot tree_slots[] = {
    {Py_tp_doc, (void *)tree_doc},
    {Py_tp_dealloc, (void *)dealloc},
    {0, NULL},
};
static PyType_Slot named_slots[] = {
    {Py_tp_doc, (void *)named_doc},
    {Py_tp_dealloc, (void *)dealloc},
    {0, NULL},
};
#define FLAGS (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION)
static PyType_Spec spec = {"dlx.Message", sizeof(struct dlxpy_message), 0,
                           FLAGS | Py_TPFLAGS_BASETYPE, slots};
static PyType_Spec named_spec = {"dlx.NamedMessage", sizeof(struct dlxpy_message), 0,
                                 FLAGS | Py_TPFLAGS_BASETYPE, named_slots};
static PyType_Spec tree_spec = {"dlx.TreeMessage", sizeof(struct dlxpy_message), 0, FLAGS,
                                tree_slots};

int dlxpy_add_message(PyObject *module)
{
    dlxpy_message_type = dlxpy_add_type(module, &spec, NULL);
    named_type =
        dlxpy_message_type ? dlxpy_add_type(module, &named_spec, dlxpy_message_type) : NULL;
    dlxpy_tree_message_type = named_type ? dlxpy_add_type(module, &tree_spec, named_type) : NULL;
    return dlxpy_tree_message_type ? 0 : -1;
}
