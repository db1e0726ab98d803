/* SPDX-License-Identifier: Apache-2.0 */

/* Publisher.publish(): one tensor, a set, or a message that was received. */

#include "asking.h"
#include "debug.h"
#include "errors.h"
#include "message.h"
#include "publisher.h"
#include "source.h"
#include <stdlib.h>
#include <string.h>

/* Bytes to copy from which on it pays to let other threads run meanwhile. */
#define COPY_ALONE (32U * 1024)

static PyTypeObject *report_type;

struct parcel {
    uint32_t n;
    bool is_set;
    struct dlxpy_source *sources; /* n; &first if there is one */
    struct dlx_item *items;       /* n, of a set */
    PyObject *names;              /* tuple that keeps the names, of a set with names */
    PyObject *meta;               /* bytes; NULL: none */
    struct dlxpy_source first;
};

/* ---- packing ------------------------------------------------------------------------------- */

static void unpack(struct parcel *parcel, bool spent)
{
    for (uint32_t i = 0; i < parcel->n; i++)
        dlxpy_source_end(&parcel->sources[i], spent);
    if (parcel->sources != &parcel->first)
        free(parcel->sources);
    free(parcel->items);
    Py_XDECREF(parcel->names);
    Py_XDECREF(parcel->meta);
}

static int make_room(struct parcel *parcel, Py_ssize_t n)
{
    if (n < 1 || n > DLX_TENSORS_MAX) {
        (void)dlxpy_raise_text(DLX_E_INVALID, "a set of %zd tensors: 1 to %d are allowed", n,
                               DLX_TENSORS_MAX);
        return -1;
    }
    parcel->is_set = true;
    parcel->sources = malloc((size_t)n * sizeof *parcel->sources);
    parcel->items = calloc((size_t)n, sizeof *parcel->items);
    if (parcel->sources && parcel->items)
        return 0;
    PyErr_NoMemory();
    return -1;
}

/* Put the tensor's place before what went wrong. */
static void name_tensor(PyObject *key, Py_ssize_t i)
{
    PyObject *add_note, *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    add_note = value ? PyObject_GetAttrString(value, "add_note") : NULL;
    PyObject *note = key ? PyUnicode_FromFormat("tensor %zd, %R", i, key)
                         : PyUnicode_FromFormat("tensor %zd", i);
    PyObject *done = add_note && note ? PyObject_CallFunctionObjArgs(add_note, note, NULL) : NULL;
    Py_XDECREF(done);
    Py_XDECREF(note);
    Py_XDECREF(add_note);
    PyErr_Clear();
    PyErr_Restore(type, value, trace);
}

/* The name of a tensor: str; of what was received, as the bytes that came; None for none. Returns 0, or -1. */
static int read_name(PyObject *key, const char **ret)
{
    Py_ssize_t size = 0;
    *ret = NULL;
    if (!key || key == Py_None)
        return 0;
    *ret = PyBytes_Check(key) ? PyBytes_AsString(key) : PyUnicode_AsUTF8AndSize(key, &size);
    if (PyBytes_Check(key))
        size = PyBytes_Size(key);
    if (*ret && (Py_ssize_t)strlen(*ret) == size)
        return 0;
    if (*ret)
        PyErr_Format(PyExc_ValueError, "a name of a tensor with a NUL in it: %R", key);
    return -1;
}

static int add(struct parcel *parcel, PyObject *key, PyObject *object, enum dlxpy_use use,
               uint64_t publisher)
{
    uint32_t i = parcel->n;
    const char *name;
    if (read_name(key, &name) < 0)
        return -1;
    if (dlxpy_source_begin(&parcel->sources[i], object, use, publisher, parcel) < 0) {
        name_tensor(key, i);
        return -1;
    }
    parcel->items[i] = (struct dlx_item){name, parcel->sources[i].tensor};
    parcel->n++;
    return 0;
}

/* `sequence`: a tuple of tensors; `names`: a tuple of as many, or NULL. Takes `names` over. */
static int pack_sequence(struct parcel *parcel, PyObject *sequence, PyObject *names,
                         enum dlxpy_use use, uint64_t publisher)
{
    Py_ssize_t n = PyTuple_Size(sequence);
    parcel->names = names;
    int r = make_room(parcel, n);
    for (Py_ssize_t i = 0; r == 0 && i < n; i++)
        r = add(parcel, names ? PyTuple_GetItem(names, i) : NULL, PyTuple_GetItem(sequence, i), use,
                publisher);
    return r;
}

/* What msg.keys() gives may be published: bytes that are no UTF-8 are in it as os.fsdecode() has them. A new reference, or NULL. */
static PyObject *name_object(PyObject *key)
{
    if (PyUnicode_AsUTF8AndSize(key, NULL)) {
        Py_INCREF(key);
        return key;
    }
    PyErr_Clear();
    return PyUnicode_AsEncodedString(key, "utf-8", "surrogateescape");
}

static int pack_mapping(struct parcel *parcel, PyObject *mapping, enum dlxpy_use use,
                        uint64_t publisher)
{
    PyObject *items = PyMapping_Items(mapping);
    Py_ssize_t n = items ? PyList_Size(items) : 0;
    PyObject *names = items ? PyTuple_New(n) : NULL, *values = names ? PyTuple_New(n) : NULL;
    int r = values ? 0 : -1;
    for (Py_ssize_t i = 0; r == 0 && i < n; i++) {
        PyObject *item = PyList_GetItem(items, i), *key, *value;
        if (!PyArg_ParseTuple(item, "OO", &key, &value)) {
            r = -1;
            break;
        }
        if (!PyUnicode_Check(key)) {
            PyErr_Format(PyExc_TypeError, "names of tensors are str, not %R", key);
            r = -1;
            break;
        }
        key = name_object(key);
        if (!key) {
            r = -1;
            break;
        }
        Py_INCREF(value);
        (void)PyTuple_SetItem(names, i, key);
        (void)PyTuple_SetItem(values, i, value);
    }
    Py_XDECREF(items);
    if (r == 0)
        r = pack_sequence(parcel, values, names, use, publisher);
    else
        Py_XDECREF(names);
    Py_XDECREF(values);
    return r;
}

/* A tuple of names, bytes as they came, and None where there is none. */
static PyObject *names_of(const struct dlx_message *m)
{
    uint32_t n = dlx_message_n_tensors(m);
    PyObject *names = PyTuple_New(n);
    for (uint32_t i = 0; names && i < n; i++) {
        const char *name = dlx_message_name(m, i);
        PyObject *object = name[0] ? PyBytes_FromString(name) : Py_None;
        if (!object) {
            Py_DECREF(names);
            return NULL;
        }
        if (object == Py_None)
            Py_INCREF(object);
        (void)PyTuple_SetItem(names, i, object);
    }
    return names;
}

/* A message goes on with names and metadata. */
static int pack_message(struct parcel *parcel, PyObject *message, enum dlxpy_use use,
                        uint64_t publisher)
{
    struct dlx_message *m = dlxpy_message_of(message);
    if (!m)
        return -1;
    (void)dlx_message_ref(m); /* the collection of garbage may release it meanwhile */
    PyObject *list = PyObject_CallMethod(message, "values", NULL);
    PyObject *values = list ? PyList_AsTuple(list) : NULL;
    PyObject *names = values ? names_of(m) : NULL;
    int r = -1;
    if (names && !parcel->meta) {
        size_t size;
        const char *meta = dlx_message_meta(m, &size);
        if (size > 0)
            parcel->meta = PyBytes_FromStringAndSize(meta, (Py_ssize_t)size);
    }
    if (names && !PyErr_Occurred())
        r = pack_sequence(parcel, values, names, use, publisher);
    else
        Py_XDECREF(names);
    dlx_message_unref(m);
    Py_XDECREF(list);
    Py_XDECREF(values);
    return r;
}

/* A dict, or another mapping that is no tensor. */
static bool is_mapping(PyObject *object)
{
    if (PyDict_Check(object))
        return true;
    if (!PyMapping_Check(object) || PyObject_CheckBuffer(object) ||
        PyObject_HasAttrString(object, "__dlpack__"))
        return false;
    return PyObject_HasAttrString(object, "items") && PyObject_HasAttrString(object, "keys");
}

static int pack(struct parcel *parcel, PyObject *object, enum dlxpy_use use, uint64_t publisher)
{
    if (Py_IS_TYPE(object, dlxpy_message_type))
        return pack_message(parcel, object, use, publisher);
    if (PyList_Check(object) || PyTuple_Check(object)) {
        PyObject *tuple = PySequence_Tuple(object);
        int r = tuple ? pack_sequence(parcel, tuple, NULL, use, publisher) : -1;
        Py_XDECREF(tuple);
        return r;
    }
    if (!Py_IS_TYPE(object, dlxpy_tensor_type) && is_mapping(object))
        return pack_mapping(parcel, object, use, publisher);
    parcel->sources = &parcel->first;
    if (dlxpy_source_begin(&parcel->first, object, use, publisher, parcel) < 0)
        return -1;
    parcel->n = 1;
    return 0;
}

static int pack_meta(struct parcel *parcel, PyObject *meta)
{
    if (!meta || meta == Py_None)
        return 0;
    PyObject *encode = dlxpy_import("_meta", "encode");
    parcel->meta = encode ? PyObject_CallFunctionObjArgs(encode, meta, NULL) : NULL;
    Py_XDECREF(encode);
    return parcel->meta ? 0 : -1;
}

/* ---- publishing ---------------------------------------------------------------------------- */

static int publish_once(struct dlxpy_publisher *p, const struct parcel *parcel,
                        const struct dlx_publish_args *args)
{
    struct dlx_bytes meta = {0};
    if (parcel->meta) {
        char *data;
        Py_ssize_t size;
        (void)PyBytes_AsStringAndSize(parcel->meta, &data, &size);
        meta = (struct dlx_bytes){data, (size_t)size};
    }
    if (!parcel->is_set && meta.size == 0)
        return dlx_publish(p->handle.of.publisher, parcel->first.tensor, args);
    struct dlx_item one = {NULL, parcel->is_set ? NULL : parcel->first.tensor};
    return dlx_publish_set(p->handle.of.publisher, parcel->is_set ? parcel->items : &one, parcel->n,
                           &meta, args);
}

/* Is there so much to copy that other threads should run meanwhile? */
static bool takes_long(const struct parcel *parcel)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < parcel->n; i++)
        if (!parcel->sources[i].own) {
            const DLTensor *t = &parcel->sources[i].view.dl_tensor;
            size_t n = 8; /* per element, roughly */
            for (int32_t k = 0; k < t->ndim && n < COPY_ALONE; k++)
                n *= t->shape[k] > 0 ? (size_t)t->shape[k] : 0;
            bytes += n;
        }
    return bytes > COPY_ALONE || parcel->n > 64;
}

/* Returns 0; -1 with an exception, which may be that of a signal's handler though it was published. *ret_code: what libdlx returned last. */
static int publish_in_parts(struct dlxpy_publisher *p, const struct parcel *parcel,
                            struct dlx_publish_args *args, int64_t timeout_ns, int *ret_code)
{
    struct dlxpy_wait wait = dlxpy_wait_begin(timeout_ns);
    bool alone = timeout_ns == 0 && !takes_long(parcel);
    for (;;) {
        struct dlxpy_asking asking;
        args->timeout_ns = dlxpy_wait_slice(&wait, DLXPY_SLICE_NS);
        dlxpy_asking_begin(&asking, &p->handle, !alone);
        int r = publish_once(p, parcel, args);
        bool stopped = dlxpy_asking_end(&asking) < 0;
        *ret_code = stopped && r < 0 ? DLX_E_INTERRUPTED : r;
        if (stopped)
            return -1;
        if (r == 0)
            return 0;
        bool again =
            r == DLX_E_INTERRUPTED || (r == DLX_E_TIMEOUT && dlxpy_wait_slice(&wait, 1) > 0);
        if (!again) {
            (void)dlxpy_asking_raise(&asking, r);
            return -1;
        }
        *ret_code = DLX_E_INTERRUPTED;
        if (dlxpy_handle_go_on(&p->handle) < 0)
            return -1;
    }
}

static struct dlx_publisher_stats stats_of(const struct dlxpy_publisher *p)
{
    struct dlx_publisher_stats stats = {.size = sizeof stats};
    (void)dlx_publisher_get_stats(p->handle.of.publisher, &stats);
    return stats;
}

/* The same. A wait is one, in how many parts ever. */
static int publish(struct dlxpy_publisher *p, const struct parcel *parcel,
                   struct dlx_publish_args *args, int64_t timeout_ns, int *ret_code)
{
    if (timeout_ns == 0)
        return publish_in_parts(p, parcel, args, 0, ret_code);
    struct dlx_publisher_stats before = stats_of(p);
    int r = publish_in_parts(p, parcel, args, timeout_ns, ret_code);
    struct dlx_publisher_stats after = stats_of(p);
    uint64_t full = after.full - before.full, blocked = after.blocked - before.blocked;
    bool failed = *ret_code == DLX_E_FULL || *ret_code == DLX_E_TIMEOUT;
    p->more_full += full - (full > 0 && failed);
    p->more_blocked += blocked - (blocked > 0);
    return r;
}

/* libdlx does not know what was made of its tensors. */
static int check_strict(const struct parcel *parcel, const struct dlxpy_publisher *p)
{
    for (uint32_t i = 0; i < parcel->n; i++) {
        const struct dlxpy_source *s = &parcel->sources[i];
        struct dlxpy_tensor *t = (struct dlxpy_tensor *)s->object;
        if (s->own || !t || !Py_IS_TYPE(s->object, dlxpy_tensor_type) || t->publisher != p->number)
            continue;
        Py_ssize_t n = dlxpy_tensor_n_exports(t);
        (void)dlxpy_raise_text(DLX_E_WOULD_COPY,
                               "topic %.200s: tensor %u would be copied, since %zd array(s) made "
                               "of it are still there, and "
                               "`strict` is set: delete them first, or publish it with share=True",
                               PyUnicode_AsUTF8AndSize(p->handle.topic, NULL), i,
                               n < 0 ? 1 : n - 1);
        return -1;
    }
    return 0;
}

static PyObject *make_report(const struct dlx_publish_report *report)
{
    PyObject *ret = PyStructSequence_New(report_type);
    if (!ret)
        return NULL;
    PyStructSequence_SetItem(ret, 0, PyLong_FromUnsignedLongLong(report->seq));
    PyStructSequence_SetItem(ret, 1, PyBool_FromLong(report->n_copied > 0));
    PyStructSequence_SetItem(ret, 2, PyLong_FromUnsignedLong(report->n_copied));
    PyStructSequence_SetItem(ret, 3, PyLong_FromUnsignedLongLong(report->copied_bytes));
    if (PyErr_Occurred())
        Py_CLEAR(ret);
    return ret;
}

const char dlxpy_publish_doc[] =
    "publish(tensors, *, meta=None, timeout=..., strict=False, share=False, time_ns=0)\n--\n\n"
    "Publish one message: a tensor of any library, a dict of named ones (a state_dict), a list or "
    "tuple, or a\n"
    "message that was received. All or nothing reaches a subscriber.\n\n"
    "A tensor of empty(), zeros() or like() of this publisher is passed on without a copy, and is "
    "then spent:\n"
    "using it again raises ValueError. It is copied if anything made of it (an ndarray, a "
    "torch.Tensor, a\n"
    "memoryview) is still there, and everything else is copied, too; the dlx.Report that is "
    "returned says so\n"
    "(.copied, .n_copied, .copied_bytes, and the number of the message, .seq).\n\n"
    "meta     a dict that JSON can hold, or bytes: at most 65,536 bytes\n"
    "timeout  seconds to wait for subscribers, of a publisher with on_full=\"block\"; None: no "
    "limit\n"
    "strict   raise dlx.WouldCopy rather than copy\n"
    "share    keep the tensor: it is read-only from here on, whatever was made of it is not "
    "written to any\n"
    "         more (which is the caller's promise), and it may be published again without a copy\n"
    "time_ns  the time to stamp, of time.monotonic_ns(); 0: now\n\n"
    "Raises TypeError (no tensor), dlx.DeviceError (on a GPU), dlx.InvalidError, dlx.Full or "
    "dlx.Timeout (which\n"
    "name who is in the way), dlx.WouldCopy, dlx.NoMemory, dlx.LimitError, dlx.DaemonError, "
    "dlx.Closed.";
PyObject *dlxpy_publish(PyObject *self, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    static const char *const names[] = {"tensors", "meta", "timeout", "strict", "share", "time_ns"};
    static const struct dlxpy_params params = {"publish", names, 6, 1, 1};
    struct dlxpy_publisher *p = (struct dlxpy_publisher *)self;
    struct dlx_publish_report report = {.size = sizeof report};
    struct dlx_publish_args publish_args = {.size = sizeof publish_args, .report = &report};
    struct parcel parcel;
    int code = 1;
    int64_t timeout_ns = p->timeout_ns;
    PyObject *value[6];
    if (dlxpy_parse(&params, args, n_args, kwnames, value) < 0 ||
        (value[2] && dlxpy_timeout(value[2], &timeout_ns) < 0) ||
        dlxpy_flag(value[3], &publish_args.strict) < 0 ||
        dlxpy_flag(value[4], &publish_args.share) < 0)
        return NULL;
    if (value[5]) {
        publish_args.time_ns = PyLong_AsUnsignedLongLong(value[5]);
        if (PyErr_Occurred())
            return NULL;
    }
    if (!p->waits)
        timeout_ns = 0;
    if (dlxpy_handle_enter(&p->handle) < 0)
        return NULL;
    memset(&parcel, 0, offsetof(struct parcel, first));
    enum dlxpy_use use = publish_args.share ? DLXPY_SHARE : DLXPY_PASS;
    int r = pack_meta(&parcel, value[1]);
    if (r == 0)
        r = pack(&parcel, value[0], use, p->number);
    if (r == 0 && publish_args.strict)
        r = check_strict(&parcel, p);
    if (r == 0)
        r = publish(p, &parcel, &publish_args, timeout_ns, &code);
    if (r == 0 && dlxpy_debug_is_on())
        for (uint32_t i = 0; i < parcel.n; i++)
            if (parcel.sources[i].own)
                dlxpy_debug_published(p->handle.what + sizeof "the publisher of",
                                      parcel.is_set ? parcel.items[i].name : NULL, report.seq,
                                      &parcel.sources[i].own->owner->tensor->dl_tensor);
    unpack(&parcel, code == 0 && !publish_args.share);
    dlxpy_handle_leave(&p->handle);
    return r == 0 ? make_report(&report) : NULL;
}

/* ---- report -------------------------------------------------------------------------------- */

static PyStructSequence_Field fields[] = {
    {"seq", "number of the message, 1 for the publisher's first"},
    {"copied", "was anything copied?"},
    {"n_copied", "tensors that were copied"},
    {"copied_bytes", "payload bytes that were copied"},
    {NULL, NULL},
};
static PyStructSequence_Desc desc = {"dlx.Report", "What publish() did.", fields, 4};

int dlxpy_add_publish(PyObject *module)
{
    report_type = dlxpy_add_record(module, &desc);
    return report_type ? 0 : -1;
}
