/* SPDX-License-Identifier: Apache-2.0 */

/* Publisher.publish(): one tensor, a set, or a message that was received; Publisher.publish_many():
 * several of these. */

#include "debug.h"
#include "errors.h"
#include "parcel.h"
#include "publisher.h"
#include "wait.h"
#include <stdlib.h>

/* Bytes to copy, and tensors to publish, from which on it pays to let other threads run
 * meanwhile. */
#define COPY_ALONE    (32U * 1024)
#define PUBLISH_ALONE 64

static PyTypeObject *report_type;

/* Messages that are published one after the other. */
struct batch {
    struct dlxpy_publisher *p;
    const struct dlxpy_parcel *parcels;
    /* The tensor of each message without name and metadata, and NULL for others; NULL: there is
     * only one message. */
    DLManagedTensorVersioned **tensors;
    uint32_t n;
    uint32_t n_done; /* published */
};

/* The arguments that publish() and publish_many() share. */
struct wishes {
    struct dlx_publish_report report;
    struct dlx_publish_args args;
    int64_t timeout_ns;
    struct dlxpy_stream stream; /* that wrote the tensors on GPUs */
};

/* ---- publishing ---------------------------------------------------------------------------- */

static int publish_once(struct dlxpy_publisher *p, const struct dlxpy_parcel *parcel,
                        struct wishes *w)
{
    struct dlx_bytes meta = dlxpy_send_meta(parcel);
    if (!parcel->is_set && meta.size == 0)
        return dlx_publish(p->handle.of.publisher, parcel->first.tensor, &w->args, &w->report);
    struct dlx_item one = {NULL, parcel->is_set ? NULL : parcel->first.tensor};
    return dlx_publish_set(p->handle.of.publisher, parcel->is_set ? parcel->items : &one, parcel->n,
                           &meta, &w->args, &w->report);
}

/* For dlx.debug(): where the tensors of a message lie. */
static void remember(const struct dlxpy_publisher *p, const struct dlxpy_parcel *parcel,
                     uint64_t seq)
{
    for (uint32_t i = 0; i < parcel->n; i++)
        if (parcel->sources[i].own && !parcel->sources[i].on_gpu)
            dlxpy_debug_published(p->handle.what + sizeof "the publisher of",
                                  parcel->is_set ? parcel->items[i].name : NULL, seq,
                                  &parcel->sources[i].own->owner->tensor->dl_tensor);
}

/* How many messages from the next one on are single tensors. */
static uint32_t run_length(const struct batch *b)
{
    uint32_t n = 0;
    while (b->tensors && b->n_done + n < b->n && b->tensors[b->n_done + n])
        n++;
    return n;
}

/* Publish the next message, or more unless `one`. Returns as libdlx. */
static int publish_next(struct batch *b, bool one, struct wishes *w)
{
    uint32_t n = one ? 1 : run_length(b), n_done = 0;
    int r;
    if (n < 2) {
        r = publish_once(b->p, &b->parcels[b->n_done], w);
        n_done = r == 0;
    } else {
        r = dlx_publish_n(b->p->handle.of.publisher, b->tensors + b->n_done, n, &w->args,
                          &w->report, &n_done);
    }
    b->n_done += n_done;
    return r;
}

/* Is there so much to do that other threads should run meanwhile? */
static bool takes_long(const struct batch *b)
{
    size_t bytes = 0, n = 0;
    for (uint32_t i = 0; i < b->n && bytes <= COPY_ALONE && n <= PUBLISH_ALONE; i++) {
        if (dlxpy_parcel_has_gpu(&b->parcels[i]))
            return true;
        bytes += dlxpy_parcel_copied_bytes(&b->parcels[i], COPY_ALONE);
        n += b->parcels[i].n;
    }
    return bytes > COPY_ALONE || n > PUBLISH_ALONE;
}

static struct dlx_publisher_stats stats_of(const struct dlxpy_publisher *p)
{
    struct dlx_publisher_stats stats = {.size = sizeof stats};
    (void)dlx_publisher_get_stats(p->handle.of.publisher, &stats);
    return stats;
}

/* Returns 0; -1 with an exception, which a handler may raise after everything was published. */
static int publish_batch(struct batch *b, struct wishes *w)
{
    bool waits = w->timeout_ns != 0, alone = !waits && !takes_long(b);
    uint64_t deadline = waits ? dlxpy_deadline(w->timeout_ns) : 0;
    while (b->n_done < b->n) {
        struct dlxpy_wait wait;
        int64_t left = waits ? dlxpy_time_left(deadline) : 0;
        w->args.timeout_ns = waits && left == 0 ? 1 : left;
        dlxpy_wait_begin(&wait, &b->p->handle, !alone);
        int r = publish_next(b, dlxpy_debug_is_on(), w);
        bool failed = dlxpy_wait_end(&wait, r) < 0;
        if (r == 0 && dlxpy_debug_is_on())
            remember(b->p, &b->parcels[b->n_done - 1], w->report.seq);
        if (failed || (b->n_done < b->n && dlxpy_handle_go_on(&b->p->handle) < 0))
            return -1;
    }
    return 0;
}

/* The message is published, and only libdlx knows that it copied a view of its own memory: an array
 * made of a tensor of empty(), whose dlx.Tensor is gone. Returns 0, or -1 with an exception. */
static int check_views(struct dlxpy_publisher *p, const struct dlx_publish_report *report)
{
    if (report->n_copied_views == 0 || p->has_warned)
        return 0;
    return dlxpy_send_warn(
        p,
        "topic %U: message %llu was copied, though %u of its tensors lie in memory of "
        "empty(): they are views, as of np.asarray() or torch.from_dlpack(): publish the "
        "dlx.Tensor that empty() returned, once what was made of it is gone (del), or with "
        "share=True; further copies of this publisher are not told, Report.copied says "
        "which they are",
        p->handle.topic, (unsigned long long)report->seq, (unsigned)report->n_copied_views);
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
    PyStructSequence_SetItem(ret, 4, PyLong_FromUnsignedLong(report->n_subscribers));
    if (PyErr_Occurred())
        Py_CLEAR(ret);
    return ret;
}

/* `value`: timeout, strict, share, monotonic_ns, stream, stage, NULL where nothing was given.
 * Returns 0, or -1 with an exception. */
static int parse_wishes(const struct dlxpy_publisher *p, PyObject *const *value, struct wishes *w)
{
    *w = (struct wishes){.report = {.size = sizeof w->report},
                         .args = {.size = sizeof w->args},
                         .timeout_ns = p->timeout_ns};
    if ((value[0] && dlxpy_timeout(value[0], &w->timeout_ns) < 0) ||
        dlxpy_flag(value[1], &w->args.strict) < 0 || dlxpy_flag(value[2], &w->args.share) < 0 ||
        dlxpy_send_stream(value[4], &w->args, &w->stream) < 0 ||
        dlxpy_flag(value[5], &w->args.stage) < 0)
        return -1;
    if (value[3]) {
        PyObject *number = PyNumber_Index(value[3]); /* also a number of NumPy */
        if (number)
            w->args.monotonic_ns = PyLong_AsUnsignedLongLong(number);
        Py_XDECREF(number);
        if (PyErr_Occurred())
            return -1;
    }
    if (!p->waits)
        w->timeout_ns = 0;
    return 0;
}

static struct dlxpy_sender sender_of(const struct dlxpy_publisher *p, const struct wishes *w,
                                     const void *user)
{
    return (struct dlxpy_sender){w->args.share ? DLXPY_SHARE : DLXPY_PASS, p->number, user,
                                 w->stream};
}

/* ---- one message --------------------------------------------------------------------------- */

const char dlxpy_publish_doc[] =
    "publish($self, /, tensors, *, meta=None, timeout=..., strict=False, share=False, "
    "monotonic_ns=0, stream=None, stage=False)\n"
    "--\n"
    "\n"
    "Publishes one message: a tensor of any library, a dict of named tensors (a\n"
    "state_dict), which may be nested and contain scalars, a list or tuple of tensors,\n"
    "or a received message. A subscriber gets all of it or nothing. A DLPack capsule is\n"
    "a tensor, too; it is consumed, even if the call fails.\n"
    "\n"
    "A tensor of empty(), zeros() or empty_like() of this publisher is passed on\n"
    "without a copy and is spent: using it again raises ValueError. If anything made\n"
    "from it (an ndarray, a torch.Tensor, a memoryview) still exists, it is copied, and\n"
    "the first time a dlx.CopyWarning says so. Further copies are not reported: check\n"
    "Report.copied. All other tensors are copied. The dlx.Report that is returned has\n"
    ".copied, .n_copied and .copied_bytes, the number of the message (.seq), and how\n"
    "many subscriptions it was published to (.subscribers).\n"
    "\n"
    "A tensor on a GPU (CUDA, ROCm) is passed on without a copy if its memory is of\n"
    "cudaMalloc or hipMalloc or allows descriptors; with stage=True other memory is\n"
    "copied. The tensor is not spent, but do not modify it until all subscribers have\n"
    "released it: a later call of this publisher lets go of it. publish() waits, without\n"
    "the GIL, until `stream` has written it; Ctrl-C does not interrupt that.\n"
    "\n"
    "meta     a dict that JSON can hold, also with tuples, bytes and int keys; or\n"
    "         bytes: at most 65,536 bytes\n"
    "timeout  seconds to wait for subscribers, with on_full=\"block\" or require; None:\n"
    "         without a limit\n"
    "strict   raise dlx.WouldCopy instead of copying\n"
    "share    keep the tensor: it is read-only from then on, and may be published again\n"
    "         without a copy. The caller promises not to write to it through\n"
    "         objects made from it\n"
    "monotonic_ns  time of publication, of time.monotonic_ns(); 0: now\n"
    "stream   the stream that writes the tensors on GPUs; it is passed to their\n"
    "         __dlpack__(). A number (1: the legacy default stream of CUDA, 2: that of\n"
    "         the thread; 0: the default stream of ROCm), or a stream of PyTorch, CuPy\n"
    "         or cuda.core; None: the default stream of each GPU\n"
    "stage    copy GPU memory that cannot be shared (managed memory, pools without\n"
    "         descriptors), on that GPU, and wait for the copy, instead of raising\n"
    "         dlx.DeviceError\n"
    "\n"
    "Raises TypeError (not a tensor, not a stream), BufferError (a tensor that DLPack\n"
    "does not describe), dlx.DeviceError (GPU memory that cannot be shared), what\n"
    "__dlpack__() raises, ValueError (an invalid stream), dlx.InvalidError, dlx.Full or\n"
    "dlx.Timeout (the text names the subscriber), dlx.WouldCopy, dlx.NoMemory,\n"
    "dlx.LimitError, dlx.DaemonError, dlx.Closed.";
PyObject *dlxpy_publish(PyObject *self, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    static const char *const names[] = {"tensors", "meta",         "timeout", "strict",
                                        "share",   "monotonic_ns", "stream",  "stage"};
    static const struct dlxpy_params params = {"publish", names, 8, 1, 1};
    struct dlxpy_publisher *p = (struct dlxpy_publisher *)self;
    struct dlxpy_parcel parcel;
    struct batch b = {.p = p, .parcels = &parcel, .n = 1};
    struct wishes w;
    PyObject *value[8];
    if (n_args > 1) {
        PyErr_SetString(PyExc_TypeError,
                        "publish() takes one message: metadata is named, publish(x, meta={...}), "
                        "and several tensors are a dict or a list");
        return NULL;
    }
    if (dlxpy_parse(&params, args, n_args, kwnames, value) < 0 ||
        parse_wishes(p, value + 2, &w) < 0 || dlxpy_handle_enter(&p->handle) < 0)
        return NULL;
    struct dlxpy_sender sender = sender_of(p, &w, &parcel);
    dlxpy_parcel_init(&parcel);
    int r = dlxpy_parcel_add_meta(&parcel, value[1]);
    if (r == 0)
        r = dlxpy_parcel_pack(&parcel, value[0], &sender);
    if (r == 0)
        r = dlxpy_send_check_copies(&parcel, p, w.args.strict);
    if (r == 0)
        r = publish_batch(&b, &w);
    dlxpy_parcel_unpack(&parcel, b.n_done == 1 && !w.args.share);
    if (r == 0)
        r = check_views(p, &w.report);
    dlxpy_handle_leave(&p->handle);
    return r == 0 ? make_report(&w.report) : NULL;
}

/* ---- several messages ---------------------------------------------------------------------- */

/* libdlx may use the memory of a message again before it comes to the next one: it cannot tell that
 * it had that tensor before. */
static int check_once(const struct dlxpy_parcel *parcel)
{
    for (uint32_t i = 0; i < parcel->n; i++)
        if (parcel->sources[i].own && parcel->sources[i].is_again) {
            (void)dlxpy_raise_text(DLX_E_INVALID,
                                   "tensor %u is there twice, and is spent when it is published: "
                                   "publish it with share=True",
                                   i);
            return -1;
        }
    return 0;
}

/* A message of several. Returns 0, or -1 with an exception that tells which. */
static int pack_one(struct dlxpy_parcel *parcel, PyObject *messages, Py_ssize_t i,
                    struct dlxpy_publisher *p, const struct wishes *w,
                    const struct dlxpy_sender *sender)
{
    dlxpy_parcel_init(parcel);
    int r = dlxpy_parcel_pack(parcel, PyTuple_GetItem(messages, i), sender);
    if (r == 0 && !w->args.share)
        r = check_once(parcel);
    if (r == 0)
        r = dlxpy_send_check_copies(parcel, p, w->args.strict);
    if (r < 0)
        dlxpy_amend("name_item", "(sn)", "messages", i);
    return r;
}

/* The publisher is entered, and there is room for all in `parcels` and b->tensors. Returns 0, or -1
 * with an exception. */
static int publish_all(struct batch *b, struct dlxpy_parcel *parcels, PyObject *messages,
                       struct wishes *w)
{
    struct dlxpy_sender sender = sender_of(b->p, w, parcels);
    uint32_t n_packed = 0, n_copied = 0;
    int r = 0;
    while (r == 0 && n_packed < b->n) {
        struct dlxpy_parcel *parcel = &parcels[n_packed];
        r = pack_one(parcel, messages, n_packed, b->p, w, &sender);
        bool is_one = r == 0 && !parcel->is_set && !parcel->meta;
        b->tensors[n_packed++] = is_one ? parcel->first.tensor : NULL;
    }
    if (r == 0) {
        uint64_t copied_bytes = stats_of(b->p).copied_bytes;
        r = publish_batch(b, w);
        w->report.copied_bytes = stats_of(b->p).copied_bytes - copied_bytes;
        if (r == 0)
            r = check_views(b->p, &w->report);
    }
    for (uint32_t i = 0; i < n_packed; i++) {
        n_copied += dlxpy_parcel_n_copied(&parcels[i]);
        dlxpy_parcel_unpack(&parcels[i], i < b->n_done && !w->args.share);
    }
    w->report.n_copied = n_copied;
    return r;
}

/* Allocates the parcels, enters the publisher and calls publish_all(). */
static int publish_tuple(struct dlxpy_publisher *p, PyObject *messages, struct wishes *w,
                         uint32_t *ret_n_done)
{
    Py_ssize_t n = PyTuple_Size(messages);
    if (n > (Py_ssize_t)UINT32_MAX) {
        PyErr_Format(PyExc_ValueError, "%zd messages are too many at once", n);
        return -1;
    }
    struct batch b = {.p = p, .n = (uint32_t)n};
    struct dlxpy_parcel *parcels = malloc((size_t)(n + 1) * sizeof *parcels);
    b.tensors = malloc((size_t)(n + 1) * sizeof *b.tensors);
    b.parcels = parcels;
    int r = -1;
    if (!parcels || !b.tensors) {
        PyErr_NoMemory();
    } else if (dlxpy_handle_enter(&p->handle) == 0) {
        r = publish_all(&b, parcels, messages, w);
        dlxpy_handle_leave(&p->handle);
    }
    free(parcels);
    free(b.tensors);
    *ret_n_done = b.n_done;
    return r;
}

/* A tuple of the messages. NULL with an exception. */
static PyObject *listed(PyObject *messages)
{
    if (!PyDict_Check(messages))
        return PySequence_Tuple(messages);
    PyErr_SetString(PyExc_TypeError,
                    "publish_many() takes a list of messages, and a dict is one: publish(dict), or "
                    "publish_many([dict, ...])");
    return NULL;
}

const char dlxpy_publish_many_doc[] =
    "publish_many($self, /, messages, *, timeout=..., strict=False, share=False, monotonic_ns=0, "
    "stream=None)\n"
    "--\n"
    "\n"
    "Publishes several messages, in this order, for less than one publish() each. Each\n"
    "one is what publish() takes as one message: a tensor, a dict or list of tensors, a\n"
    "received message. Tensors cost less here than sets.\n"
    "\n"
    "Objects that are no messages, and tensors that occur twice without share=True, are\n"
    "found before anything is published. Any other failure ends the call at that\n"
    "message: `n_published` of the exception, of whatever type, is the number that was\n"
    "published. Their tensors are spent, the others are not.\n"
    "\n"
    "The arguments are those of publish() except `stage`. `timeout` is for all messages\n"
    "together. Returns the dlx.Report of the last message, which counts the copies of\n"
    "all.";
PyObject *dlxpy_publish_many(PyObject *self, PyObject *const *args, Py_ssize_t n_args,
                             PyObject *kwnames)
{
    static const char *const names[] = {"messages",     "timeout", "strict", "share",
                                        "monotonic_ns", "stream",  "stage"};
    static const struct dlxpy_params params = {"publish_many", names, 6, 1, 1};
    struct dlxpy_publisher *p = (struct dlxpy_publisher *)self;
    struct wishes w;
    PyObject *value[7] = {NULL}; /* `stage` is not asked for */
    uint32_t n_done = 0;
    if (dlxpy_parse(&params, args, n_args, kwnames, value) < 0 ||
        parse_wishes(p, value + 1, &w) < 0)
        return NULL;
    PyObject *messages = listed(value[0]);
    int r = messages ? publish_tuple(p, messages, &w, &n_done) : -1;
    Py_XDECREF(messages);
    if (r < 0)
        dlxpy_amend("count", "(I)", n_done);
    return r == 0 ? make_report(&w.report) : NULL;
}

/* ---- report -------------------------------------------------------------------------------- */

static PyStructSequence_Field fields[] = {
    {"seq", "number of the message, 1 for the publisher's first"},
    {"copied", "was anything copied?"},
    {"n_copied", "tensors that were copied"},
    {"copied_bytes", "payload bytes that were copied"},
    {"subscribers", "subscriptions that it was published to"},
    {NULL, NULL},
};
static PyStructSequence_Desc desc = {"dlx.Report", "The result of publish().", fields, 5};

int dlxpy_add_publish(PyObject *module)
{
    report_type = dlxpy_add_record(module, &desc);
    return report_type ? 0 : -1;
}
