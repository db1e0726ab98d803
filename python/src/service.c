/* SPDX-License-Identifier: Apache-2.0 */

/* dlx.Service and dlx.Request. */

#include "call.h"
#include "errors.h"
#include "message.h"
#include "publisher.h"
#include "wait.h"
#include <stdlib.h>

static PyTypeObject *service_type;
static PyTypeObject *request_type;

/* A request that was taken. */
struct taken {
    struct dlx_request *request;
    struct taken *next; /* in `let_go` */
};

struct service {
    struct dlxpy_publisher sender; /* of replies; timeout_ns is that of take() and of loops */
    struct taken *kept;            /* of a take that a signal's handler ended, for the next one */
    struct taken *let_go;          /* while another thread was inside: released when it leaves */
};

struct request {
    PyObject_HEAD struct taken *taken; /* NULL: released */
    struct service *service;           /* a reference */
    PyObject *message;
    unsigned generation; /* of fork */
    bool is_answered;
};

static struct service *cast(PyObject *self)
{
    return (struct service *)self;
}

static struct request *request_cast(PyObject *self)
{
    return (struct request *)self;
}

/* ---- entering ------------------------------------------------------------------------------ */

static void unref_request(void *request)
{
    dlx_request_unref(request);
}

/* This thread is inside. */
static void release_let_go(struct service *s)
{
    struct taken *taken;
    while ((taken = s->let_go)) {
        s->let_go = taken->next;
        dlxpy_wait_unref(unref_request, taken->request);
        free(taken);
    }
}

static void leave(struct service *s)
{
    release_let_go(s);
    dlxpy_handle_leave(&s->sender.handle);
}

/* Releases a request, now, or when the thread that is inside leaves. */
static void let_go(struct service *s, struct taken *taken)
{
    if (!taken)
        return;
    taken->next = s->let_go;
    s->let_go = taken;
    if (s->sender.handle.n_users > 0)
        return;
    s->sender.handle.n_users++;
    s->sender.handle.user = PyThread_get_thread_ident();
    leave(s);
}

static void unref(void *s)
{
    dlx_service_unref(s);
}

static void closing(PyObject *self)
{
    struct taken *kept = cast(self)->kept;
    cast(self)->kept = NULL;
    if (kept) {
        kept->next = cast(self)->let_go;
        cast(self)->let_go = kept;
    }
    dlxpy_handle_wake_tasks(self);
}

static const struct dlxpy_handle_kind kind = {
    &service_type, sizeof(struct service), "the service", false, true, unref, closing};

static void dealloc(PyObject *self)
{
    struct service *s = cast(self);
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    closing(self);
    s->sender.handle.n_users = 1; /* nobody is inside: its requests refer to it */
    release_let_go(s);
    s->sender.handle.n_users = 0;
    PyErr_Restore(type, value, trace);
    dlxpy_handle_dealloc(self);
}

PyObject *dlxpy_service_new(struct dlx_service *s, const char *topic, int64_t timeout_ns)
{
    PyObject *self = (PyObject *)dlxpy_handle_new(&kind, s, topic);
    if (self) {
        cast(self)->sender.number = dlxpy_publisher_number();
        cast(self)->sender.timeout_ns = timeout_ns;
    }
    return self;
}

/* ---- taking -------------------------------------------------------------------------------- */

/* The service is entered; `taken` goes to the request, also on failure. */
static PyObject *make_request(struct service *s, struct taken *taken,
                              const struct dlxpy_stream *stream)
{
    struct dlx_message *m = dlx_message_ref(dlx_request_message(taken->request));
    struct dlxpy_message *message =
        (struct dlxpy_message *)dlxpy_message_new(m, stream, DLXPY_SHARED);
    struct request *request = message ? PyObject_New(struct request, request_type) : NULL;
    if (!request) {
        Py_XDECREF((PyObject *)message);
        let_go(s, taken);
        return NULL;
    }
    message->is_settled = true; /* by the reply, and not by `with message:` */
    request->taken = taken;
    request->service = cast(Py_NewRef((PyObject *)s));
    request->message = (PyObject *)message;
    request->generation = dlxpy_fork_generation();
    request->is_answered = false;
    return (PyObject *)request;
}

/* Waits for a request. The service is entered. NULL with an exception. */
static struct taken *take_taken(struct service *s, int64_t timeout_ns)
{
    struct taken *taken = s->kept;
    s->kept = NULL;
    if (taken)
        return taken;
    taken = calloc(1, sizeof *taken);
    if (!taken) {
        PyErr_NoMemory();
        return NULL;
    }
    struct dlxpy_wait wait;
    dlxpy_wait_begin(&wait, &s->sender.handle, timeout_ns != 0);
    int r = dlx_service_take(s->sender.handle.of.service, timeout_ns, &taken->request);
    if (dlxpy_wait_end(&wait, r) == 0)
        return taken;
    if (r < 0)
        free(taken);
    else if (s->sender.handle.closed)
        let_go(s, taken);
    else
        s->kept = taken;
    return NULL;
}

/* NULL with an exception. */
static PyObject *take_request(struct service *s, int64_t timeout_ns,
                              const struct dlxpy_stream *stream)
{
    if (dlxpy_handle_enter(&s->sender.handle) < 0)
        return NULL;
    release_let_go(s); /* while another thread was in empty() */
    struct taken *taken = take_taken(s, timeout_ns);
    PyObject *ret = taken ? make_request(s, taken, stream) : NULL;
    leave(s);
    return ret;
}

PyDoc_STRVAR(take_doc,
             "take($self, /, timeout=..., *, stream=None)\n"
             "--\n"
             "\n"
             "Takes the next dlx.Request. What is not worth starting is not handed out: requests\n"
             "that were cancelled, whose time is over, or whose caller is gone; and those that a\n"
             "worker had when it died, unless they are idempotent.\n"
             "\n"
             "timeout  seconds; 0 does not wait, None waits without a limit; left out: that of\n"
             "         the service\n"
             "stream   as for Subscription.take()\n"
             "\n"
             "Raises dlx.Timeout; dlx.TooManyHeld (answer some requests); dlx.DaemonError and\n"
             "dlx.LimitError (there is no way to reply to the caller: the request stays, and the\n"
             "next take() tries again); dlx.Closed.");
static PyObject *take(PyObject *self, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    static const char *const names[] = {"timeout", "stream"};
    static const struct dlxpy_params params = {"take", names, 2, 1, 0};
    int64_t timeout_ns = cast(self)->sender.timeout_ns;
    struct dlxpy_stream stream;
    PyObject *value[2];
    if (dlxpy_parse(&params, args, n_args, kwnames, value) < 0 ||
        (value[0] && dlxpy_timeout(value[0], &timeout_ns) < 0) ||
        dlxpy_stream_parse(value[1], &stream) < 0)
        return NULL;
    return take_request(cast(self), timeout_ns, &stream);
}

static PyObject *next(PyObject *self)
{
    static const struct dlxpy_stream none;
    return take_request(cast(self), cast(self)->sender.timeout_ns, &none);
}

static PyObject *iterate(PyObject *self)
{
    return Py_NewRef(self);
}

/* ---- the rest of a service ----------------------------------------------------------------- */

PyDoc_STRVAR(fileno_doc,
             "fileno($self, /)\n"
             "--\n"
             "\n"
             "Returns a descriptor for select, selectors and asyncio, which is readable\n"
             "when take() may return a request. Rely on that only after take(timeout=0)\n"
             "raised dlx.Timeout. Never read, write or close it.");
static PyObject *get_fileno(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (dlxpy_handle_enter(&cast(self)->sender.handle) < 0)
        return NULL;
    int fd = dlx_service_fd(cast(self)->sender.handle.of.service);
    leave(cast(self));
    return fd < 0 ? dlxpy_raise(fd) : PyLong_FromLong(fd);
}

PyDoc_STRVAR(stats_doc,
             "stats($self, /)\n"
             "--\n"
             "\n"
             "Returns the counters since the service was made, as a dict:\n"
             "\n"
             "- requests, replies, errors: requests that take() returned; answers with tensors;\n"
             "  answers with an error, also those of requests that were let go\n"
             "- expired, gone, abandoned, refused: requests that were not handed out, since they\n"
             "  were cancelled or their time was over; since an earlier worker died; since their\n"
             "  caller was gone (also answers in vain); messages that are no requests\n"
             "- n_held, n_callers: requests that are not answered now; callers that this worker\n"
             "  has a way to answer to");
static PyObject *stats(PyObject *self, PyObject *unused)
{
    struct dlx_service_stats s = {.size = sizeof s};
    struct dlxpy_wait wait;
    (void)unused;
    if (dlxpy_handle_enter(&cast(self)->sender.handle) < 0)
        return NULL;
    dlxpy_wait_begin(&wait, &cast(self)->sender.handle, false);
    int r = dlxpy_wait_end(&wait, dlx_service_get_stats(cast(self)->sender.handle.of.service, &s));
    leave(cast(self));
    if (r < 0)
        return NULL;
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:I,s:I}", "requests", s.requests, "replies",
                         s.replies, "errors", s.errors, "expired", s.expired, "gone", s.gone,
                         "abandoned", s.abandoned, "refused", s.refused, "n_held", s.n_held,
                         "n_callers", s.n_callers);
}

PyDoc_STRVAR(close_doc,
             "close($self, /)\n"
             "--\n"
             "\n"
             "Ends the service. Requests that were not answered fail with dlx.CallError at their\n"
             "callers. A take() of another thread, or a task that waits, ends with dlx.Closed.");
static PyObject *close_service(PyObject *self, PyObject *unused)
{
    struct service *s = cast(self);
    PyObject *ret = dlxpy_handle_close(self, unused);
    if (s->let_go && s->sender.handle.n_users == 0) { /* what was kept */
        s->sender.handle.n_users++;
        leave(s);
    }
    return ret;
}

static PyObject *get_timeout(PyObject *self, void *closure)
{
    (void)closure;
    if (cast(self)->sender.timeout_ns < 0)
        Py_RETURN_NONE;
    return PyFloat_FromDouble((double)cast(self)->sender.timeout_ns / 1e9);
}

/* ---- requests ------------------------------------------------------------------------------ */

/* NULL with an exception. */
static struct dlx_request *request_of(PyObject *self)
{
    if (request_cast(self)->taken && dlxpy_check_forked(request_cast(self)->generation) == 0)
        return request_cast(self)->taken->request;
    if (!request_cast(self)->taken)
        (void)dlxpy_raise_closed("this request was released, and");
    return NULL;
}

/* NULL with an exception, and not entered. Another thread may release the request before. */
static struct dlx_request *enter(PyObject *self)
{
    struct service *s = request_cast(self)->service;
    if (dlxpy_handle_enter(&s->sender.handle) < 0)
        return NULL;
    struct dlx_request *request = request_of(self);
    if (!request)
        leave(s);
    return request;
}

static void request_release(struct request *request)
{
    struct taken *taken = request->taken;
    request->taken = NULL;
    request->is_answered = true;
    let_go(request->service, taken);
}

static void request_dealloc(PyObject *self)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    request_release(request_cast(self));
    Py_DECREF(request_cast(self)->message);
    Py_DECREF((PyObject *)request_cast(self)->service);
    PyErr_Restore(type, value, trace);
    dlxpy_free_object(self);
}

static int alloc_one(void *request, const struct dlx_tensor_spec *spec,
                     DLManagedTensorVersioned **ret)
{
    return dlx_request_alloc(request, spec, ret);
}

static int alloc(void *request, const struct dlx_tensor_spec *specs, uint32_t n,
                 DLManagedTensorVersioned **ret)
{
    return dlxpy_alloc_each(alloc_one, request, specs, n, ret);
}

static struct dlxpy_publisher *sender_of(PyObject *self)
{
    return &request_cast(self)->service->sender;
}

static void *of_libdlx(PyObject *self)
{
    return request_of(self);
}

static const struct dlxpy_place place = {sender_of, of_libdlx, alloc};
DLXPY_ALLOC_FUNCTIONS(&place)

PyDoc_STRVAR(reply_doc,
             "reply($self, /, tensors, *, meta=None, strict=False, share=False, stream=None, "
             "stage=False)\n"
             "--\n"
             "\n"
             "Answers the request, with what Publisher.publish() takes as one message, and the\n"
             "same arguments. There is one reply to a request. It never waits for the caller; if\n"
             "that has given up, the reply is dropped.\n"
             "\n"
             "Raises dlx.NotFound (the request was answered before), dlx.Closed, and what\n"
             "publish() raises; then the request can still be answered.");
static PyObject *reply(PyObject *self, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    static const char *const names[] = {"tensors", "meta", "strict", "share", "stream", "stage"};
    static const struct dlxpy_params params = {"reply", names, 6, 1, 1};
    struct service *s = request_cast(self)->service;
    struct dlx_request *request;
    struct dlxpy_sending sending;
    PyObject *value[6];
    int r = -1;
    if (dlxpy_parse(&params, args, n_args, kwnames, value) < 0 || !(request = enter(self)))
        return NULL;
    if (dlxpy_send_begin(&sending, &s->sender, value) == 0) {
        const struct dlx_reply_args reply_args = {
            .size = sizeof reply_args, .meta = &sending.meta, .publish = &sending.args};
        struct dlxpy_wait wait;
        dlxpy_wait_begin(&wait, &s->sender.handle, true);
        r = dlx_reply(request, sending.items, sending.parcel.n, &reply_args);
        bool sent = r == 0;
        request_cast(self)->is_answered |= sent;
        r = dlxpy_wait_end(&wait, r);
        dlxpy_send_end(&sending, sent);
    }
    leave(s);
    if (r < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(error_doc,
             "error($self, /, text, code=0)\n"
             "--\n"
             "\n"
             "Answers the request with an error: its call raises dlx.CallError, with this text\n"
             "(the first 1,023 bytes) and this code, any number of 32 bits, as `worker_code`.\n"
             "Raises as reply().");
static PyObject *answer_error(PyObject *self, PyObject *const *args, Py_ssize_t n_args,
                              PyObject *kwnames)
{
    static const char *const names[] = {"text", "code"};
    static const struct dlxpy_params params = {"error", names, 2, 2, 1};
    struct dlx_request *request;
    struct dlxpy_wait wait;
    PyObject *value[2];
    if (dlxpy_parse(&params, args, n_args, kwnames, value) < 0)
        return NULL;
    PyObject *bytes = PyUnicode_AsEncodedString(value[0], "utf-8", "backslashreplace");
    long code = bytes && value[1] ? PyLong_AsLong(value[1]) : 0;
    if (!PyErr_Occurred() && code != (int32_t)code)
        PyErr_Format(PyExc_OverflowError, "code is a number of 32 bits, not %ld", code);
    int r = -1;
    if (!PyErr_Occurred() && (request = enter(self))) {
        dlxpy_wait_begin(&wait, &request_cast(self)->service->sender.handle, true);
        r = dlx_reply_error(request, (int32_t)code, PyBytes_AsString(bytes));
        request_cast(self)->is_answered |= r == 0;
        r = dlxpy_wait_end(&wait, r);
        leave(request_cast(self)->service);
    }
    Py_XDECREF(bytes);
    if (r < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(release_doc,
             "release($self, /)\n"
             "--\n"
             "\n"
             "Lets go of the request and its message, as the end of a `with` block does. If it\n"
             "was not answered, its call raises dlx.CallError. Arrays made from it stay valid.");
static PyObject *release(PyObject *self, PyObject *unused)
{
    (void)unused;
    request_release(request_cast(self));
    return PyObject_CallMethod(request_cast(self)->message, "release", NULL);
}

static PyObject *enter_context(PyObject *self, PyObject *unused)
{
    (void)unused;
    return request_of(self) ? Py_NewRef(self) : NULL;
}

static PyObject *get_message(PyObject *self, void *closure)
{
    (void)closure;
    return Py_NewRef(request_cast(self)->message);
}

static PyObject *get_deadline(PyObject *self, void *closure)
{
    const struct dlx_request *request = request_of(self);
    (void)closure;
    if (!request)
        return NULL;
    uint64_t ns = dlx_request_deadline_ns(request);
    if (ns == UINT64_MAX)
        Py_RETURN_NONE;
    return PyFloat_FromDouble((double)ns / 1e9);
}

static PyObject *get_cancelled(PyObject *self, void *closure)
{
    const struct dlx_request *request = request_of(self);
    (void)closure;
    return request ? PyBool_FromLong(dlx_request_cancelled(request)) : NULL;
}

static PyObject *get_answered(PyObject *self, void *closure)
{
    (void)closure;
    return PyBool_FromLong(request_cast(self)->is_answered);
}

static PyObject *get_released(PyObject *self, void *closure)
{
    (void)closure;
    return PyBool_FromLong(!request_cast(self)->taken);
}

/* ---- types --------------------------------------------------------------------------------- */

#define FAST (METH_FASTCALL | METH_KEYWORDS)
static PyMethodDef methods[] = {
    {"__enter__", dlxpy_handle_enter_context, METH_NOARGS, NULL},
    {"__exit__", close_service, METH_VARARGS, NULL},
    {"take", (PyCFunction)(void (*)(void))take, FAST, take_doc},
    {"fileno", get_fileno, METH_NOARGS, fileno_doc},
    {"stats", stats, METH_NOARGS, stats_doc},
    {"close", close_service, METH_NOARGS, close_doc},
    {0},
};

static PyGetSetDef getset[] = {
    {"topic", dlxpy_handle_topic, NULL, "The topic or pattern.", NULL},
    {"timeout", get_timeout, NULL, "Seconds that take() and loops wait; None: no limit.", NULL},
    {"closed", dlxpy_handle_is_closed, NULL, "True if closed.", NULL},
    {0},
};

PyDoc_STRVAR(doc,
             "Takes the requests of callers, as one of the workers of a service. Made by\n"
             "Connection.serve(). `for request in s` and `async for request in s` go on until it\n"
             "is closed, and raise dlx.Timeout. One thread at a time may use it and its requests.");
static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)doc},
    {Py_tp_dealloc, (void *)dealloc},
    {Py_tp_repr, (void *)dlxpy_handle_repr},
    {Py_tp_iter, (void *)iterate},
    {Py_tp_iternext, (void *)next},
    {Py_am_aiter, (void *)iterate},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {0, NULL},
};
static PyType_Spec spec = {"dlx.Service", sizeof(struct service), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

static PyMethodDef request_methods[] = {
    {"__enter__", enter_context, METH_NOARGS, NULL},
    DLXPY_ALLOC_METHODS,
    {"reply", (PyCFunction)(void (*)(void))reply, FAST, reply_doc},
    {"error", (PyCFunction)(void (*)(void))answer_error, FAST, error_doc},
    {"release", release, METH_NOARGS, release_doc},
    {0},
};

static PyGetSetDef request_getset[] = {
    {"message", get_message, NULL, "The dlx.Message that the caller sent.", NULL},
    {"deadline", get_deadline, NULL,
     "When the time of the request is over, as time.monotonic(); None: never.", NULL},
    {"cancelled", get_cancelled, NULL,
     "Has the caller given up? It cancelled the call, its time is over, or it is gone.", NULL},
    {"answered", get_answered, NULL, "True after reply(), error() or release().", NULL},
    {"released", get_released, NULL, "True if released.", NULL},
    {0},
};

PyDoc_STRVAR(
    request_doc,
    "A request, which reply() answers. Its tensors and metadata are those of request.message,\n"
    "and reachable from here as well: request.meta, request[\"x\"], np.asarray(request).\n"
    "\n"
    "`with request:` releases it in the end. An exception that leaves the block is first\n"
    "answered as an error with its type and text, and goes on. A request that is let go\n"
    "without an answer is answered so, too.");
static PyType_Slot request_slots[] = {
    {Py_tp_doc, (void *)request_doc},
    {Py_tp_dealloc, (void *)request_dealloc},
    {Py_tp_methods, request_methods},
    {Py_tp_getset, request_getset},
    {0, NULL},
};
static PyType_Spec request_spec = {"dlx.Request", sizeof(struct request), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                   request_slots};

int dlxpy_add_service(PyObject *module)
{
    service_type = dlxpy_add_type(module, &spec, NULL);
    request_type = service_type ? dlxpy_add_type(module, &request_spec, NULL) : NULL;
    return request_type ? 0 : -1;
}
