/* SPDX-License-Identifier: Apache-2.0 */

/* dlx.Caller. */

#include "call.h"
#include "errors.h"
#include "message.h"
#include "publisher.h"
#include "wait.h"

static PyTypeObject *caller_type;

static struct dlxpy_publisher *cast(PyObject *self)
{
    return (struct dlxpy_publisher *)self;
}

static struct dlx_caller *caller_of(PyObject *self)
{
    return cast(self)->handle.of.caller;
}

static void unref(void *k)
{
    dlx_caller_unref(k);
}

static const struct dlxpy_handle_kind kind = {
    &caller_type, sizeof(struct dlxpy_publisher), "the caller", false, true,
    unref,        dlxpy_handle_wake_tasks};

PyObject *dlxpy_caller_new(struct dlx_caller *k, const char *topic)
{
    PyObject *self = (PyObject *)dlxpy_handle_new(&kind, k, topic);
    if (self)
        cast(self)->number = dlxpy_publisher_number();
    return self;
}

/* ---- tensors ------------------------------------------------------------------------------- */

static int alloc_one(void *k, const struct dlx_tensor_spec *spec, DLManagedTensorVersioned **ret)
{
    return dlx_caller_alloc(k, spec, ret);
}

static int alloc(void *k, const struct dlx_tensor_spec *specs, uint32_t n,
                 DLManagedTensorVersioned **ret)
{
    return dlxpy_alloc_each(alloc_one, k, specs, n, ret);
}

static void *of_libdlx(PyObject *self)
{
    return caller_of(self);
}

static const struct dlxpy_place place = {cast, of_libdlx, alloc};
DLXPY_ALLOC_FUNCTIONS(&place)

/* ---- calls --------------------------------------------------------------------------------- */

/* A request, with its arguments. */
struct call {
    struct dlxpy_sending sending;
    struct dlx_call_args args;
};

/* The caller is entered on success. Returns 0, or -1 with an exception. */
static int begin(PyObject *self, const struct dlxpy_params *params, PyObject *const *args,
                 Py_ssize_t n_args, PyObject *kwnames, struct call *ret)
{
    PyObject *value[8];
    int64_t timeout_ns = DLX_FOREVER;
    ret->args = (struct dlx_call_args){.size = sizeof ret->args};
    if (dlxpy_parse(params, args, n_args, kwnames, value) < 0 ||
        (value[6] && dlxpy_timeout(value[6], &timeout_ns) < 0) ||
        dlxpy_flag(value[7], &ret->args.idempotent) < 0 ||
        dlxpy_handle_enter(&cast(self)->handle) < 0)
        return -1;
    if (dlxpy_send_begin(&ret->sending, cast(self), value) < 0) {
        dlxpy_handle_leave(&cast(self)->handle);
        return -1;
    }
    ret->args.timeout_ns = timeout_ns == 0 ? 1 : timeout_ns; /* of libdlx, 0: without a limit */
    ret->args.meta = &ret->sending.meta;
    ret->args.publish = &ret->sending.args;
    return 0;
}

#define NAMES                                                                                      \
    {                                                                                              \
        "tensors", "meta", "strict", "share", "stream", "stage", "timeout", "idempotent"           \
    }

PyDoc_STRVAR(
    call_doc,
    "call($self, /, tensors, *, meta=None, strict=False, share=False, stream=None, stage=False, "
    "timeout=None, idempotent=False)\n"
    "--\n"
    "\n"
    "Sends a request, which is what Publisher.publish() takes as one message, and returns\n"
    "its reply, a dlx.Message. Waits without the GIL; Ctrl-C ends the wait, and cancels\n"
    "the call.\n"
    "\n"
    "timeout     seconds for the whole call; None: without a limit. A worker does not start\n"
    "            a request whose time is over, and sees it in request.deadline\n"
    "idempotent  the request may be carried out more than once: if its worker dies, another\n"
    "            one gets it\n"
    "\n"
    "The other arguments are those of publish(). Once the request was sent, its tensors\n"
    "are spent, whatever becomes of the call.\n"
    "\n"
    "Raises dlx.CallError (the worker answered with an error, as for an exception in\n"
    "`with request:`, or let the request go without a reply); dlx.WorkerGone (the worker\n"
    "died, and the request is not idempotent); dlx.Timeout (the text says whether no\n"
    "worker serves, none took the request, or which one has it); dlx.Full (nothing was\n"
    "sent: max_in_flight calls are in flight, or one of them was sent 8 times as many\n"
    "requests ago, at least 128); dlx.TooManyHeld (release replies); and what\n"
    "publish() raises.");
static PyObject *call(PyObject *self, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    static const char *const names[] = NAMES;
    static const struct dlxpy_params params = {"call", names, 8, 1, 1};
    static const struct dlxpy_stream none;
    struct call c;
    struct dlx_message *m = NULL;
    bool sent = false;
    struct dlxpy_wait wait;
    if (begin(self, &params, args, n_args, kwnames, &c) < 0)
        return NULL;
    dlxpy_wait_begin(&wait, &cast(self)->handle, true);
    int r = dlx_call(caller_of(self), c.sending.items, c.sending.parcel.n, &c.args, &m, &sent);
    int failed = dlxpy_wait_end(&wait, r);
    if (r == DLX_E_CALL_FAILED)
        dlxpy_amend("of_worker", "(l)", (long)dlx_caller_worker_code(caller_of(self)));
    dlxpy_send_end(&c.sending, sent);
    dlxpy_handle_leave(&cast(self)->handle);
    if (failed == 0)
        return dlxpy_message_new(m, &none, DLXPY_SHARED);
    dlx_message_unref(m);
    return NULL;
}

PyDoc_STRVAR(begin_doc,
             "_begin($self, /, tensors, *, meta=None, strict=False, share=False, stream=None, "
             "stage=False, timeout=None, idempotent=False)\n"
             "--\n"
             "\n"
             "Sends a request as call() does, and returns its number.");
static PyObject *begin_call(PyObject *self, PyObject *const *args, Py_ssize_t n_args,
                            PyObject *kwnames)
{
    static const char *const names[] = NAMES;
    static const struct dlxpy_params params = {"call_async", names, 8, 1, 1};
    struct call c;
    uint64_t number = 0;
    struct dlxpy_wait wait;
    if (begin(self, &params, args, n_args, kwnames, &c) < 0)
        return NULL;
    dlxpy_wait_begin(&wait, &cast(self)->handle, true);
    int r = dlx_call_begin(caller_of(self), c.sending.items, c.sending.parcel.n, &c.args, &number);
    int failed = dlxpy_wait_end(&wait, r);
    if (r == 0 && failed < 0)
        (void)dlx_call_cancel(caller_of(self), number);
    dlxpy_send_end(&c.sending, r == 0);
    dlxpy_handle_leave(&cast(self)->handle);
    return failed < 0 ? NULL : PyLong_FromUnsignedLongLong(number);
}

/* The exception of a call that failed; NULL with another one. */
static PyObject *make_error(const struct dlx_call_result *result)
{
    PyObject *type, *value, *trace;
    (void)dlxpy_raise_words(result->code, result->text);
    if (result->code == DLX_E_CALL_FAILED)
        dlxpy_amend("of_worker", "(l)", (long)result->worker_code);
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return value;
}

PyDoc_STRVAR(take_doc, "_take($self, /)\n"
                       "--\n"
                       "\n"
                       "Returns the number of a call that has ended, and its reply or exception;\n"
                       "None if none has ended.");
static PyObject *take(PyObject *self, PyObject *unused)
{
    static const struct dlxpy_stream none;
    struct dlx_call_result result = {.size = sizeof result};
    struct dlxpy_wait wait;
    PyObject *ret = NULL;
    (void)unused;
    if (dlxpy_handle_enter(&cast(self)->handle) < 0)
        return NULL;
    dlxpy_wait_begin(&wait, &cast(self)->handle, false);
    int r = dlx_call_take(caller_of(self), 0, &result);
    bool is_none = r == DLX_E_EMPTY || r == DLX_E_NOT_FOUND;
    int failed = dlxpy_wait_end(&wait, is_none ? 0 : r);
    if (failed == 0 && r == 0)
        ret = result.code < 0 ? make_error(&result)
                              : dlxpy_message_new(result.reply, &none, DLXPY_SHARED);
    else if (r == 0)
        dlx_message_unref(result.reply);
    dlxpy_handle_leave(&cast(self)->handle);
    if (failed == 0 && is_none)
        Py_RETURN_NONE;
    return ret ? Py_BuildValue("KN", (unsigned long long)result.call, ret) : NULL;
}

PyDoc_STRVAR(cancel_doc, "_cancel($self, call, /)\n"
                         "--\n"
                         "\n"
                         "Gives up a call by its number, if it is in flight.");
static PyObject *cancel(PyObject *self, PyObject *object)
{
    uint64_t number = 0;
    if (dlxpy_uint64(object, "call", &number) < 0 || dlxpy_handle_enter(&cast(self)->handle) < 0)
        return NULL;
    int r = dlx_call_cancel(caller_of(self), number);
    dlxpy_handle_leave(&cast(self)->handle);
    if (r < 0 && r != DLX_E_NOT_FOUND)
        return dlxpy_raise(r);
    Py_RETURN_NONE;
}

/* ---- the rest ------------------------------------------------------------------------------ */

PyDoc_STRVAR(wait_doc,
             "wait($self, /, timeout=None)\n"
             "--\n"
             "\n"
             "Waits until a worker serves, for `timeout` seconds; None: without a limit.\n"
             "Raises dlx.Timeout.");
static PyObject *wait_for(PyObject *self, PyObject *const *args, Py_ssize_t n_args,
                          PyObject *kwnames)
{
    static const char *const names[] = {"timeout"};
    static const struct dlxpy_params params = {"wait", names, 1, 1, 0};
    PyObject *value[1];
    int64_t timeout_ns = DLX_FOREVER;
    struct dlxpy_wait wait;
    if (dlxpy_parse(&params, args, n_args, kwnames, value) < 0 ||
        (value[0] && dlxpy_timeout(value[0], &timeout_ns) < 0) ||
        dlxpy_handle_enter(&cast(self)->handle) < 0)
        return NULL;
    dlxpy_wait_begin(&wait, &cast(self)->handle, true);
    int r = dlxpy_wait_end(&wait, dlx_caller_wait(caller_of(self), timeout_ns));
    dlxpy_handle_leave(&cast(self)->handle);
    if (r < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(fileno_doc,
             "fileno($self, /)\n"
             "--\n"
             "\n"
             "Returns a descriptor that call_async() polls: it is readable when a call\n"
             "may have ended. Never read, write or close it.");
static PyObject *get_fileno(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (dlxpy_handle_enter(&cast(self)->handle) < 0)
        return NULL;
    int fd = dlx_caller_fd(caller_of(self));
    dlxpy_handle_leave(&cast(self)->handle);
    return fd < 0 ? dlxpy_raise(fd) : PyLong_FromLong(fd);
}

PyDoc_STRVAR(stats_doc,
             "stats($self, /)\n"
             "--\n"
             "\n"
             "Returns the counters since the caller was made, as a dict:\n"
             "\n"
             "- calls, replies: requests that were sent; calls that got a reply\n"
             "- failed, workers_gone, timed_out, cancelled: calls that ended with dlx.CallError,\n"
             "  with dlx.WorkerGone, with dlx.Timeout, or were cancelled\n"
             "- late: replies that were dropped, since their calls were over\n"
             "- n_in_flight, n_workers: calls in flight now, and workers attached");
static PyObject *stats(PyObject *self, PyObject *unused)
{
    struct dlx_caller_stats s = {.size = sizeof s};
    struct dlxpy_wait wait; /* the call may reconnect to a restarted daemon */
    (void)unused;
    if (dlxpy_handle_enter(&cast(self)->handle) < 0)
        return NULL;
    dlxpy_wait_begin(&wait, &cast(self)->handle, false);
    int r = dlxpy_wait_end(&wait, dlx_caller_get_stats(caller_of(self), &s));
    dlxpy_handle_leave(&cast(self)->handle);
    if (r < 0)
        return NULL;
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:I,s:I}", "calls", s.calls, "replies",
                         s.replies, "failed", s.failed, "workers_gone", s.workers_gone, "timed_out",
                         s.timed_out, "cancelled", s.cancelled, "late", s.late, "n_in_flight",
                         s.n_in_flight, "n_workers", s.n_workers);
}

PyDoc_STRVAR(close_doc, "close($self, /)\n"
                        "--\n"
                        "\n"
                        "Cancels the calls in flight and closes the caller. Replies stay valid.");

/* ---- type ---------------------------------------------------------------------------------- */

#define FAST (METH_FASTCALL | METH_KEYWORDS)
static PyMethodDef methods[] = {
    {"__enter__", dlxpy_handle_enter_context, METH_NOARGS, NULL},
    {"__exit__", dlxpy_handle_close, METH_VARARGS, NULL},
    DLXPY_ALLOC_METHODS,
    {"call", (PyCFunction)(void (*)(void))call, FAST, call_doc},
    {"_begin", (PyCFunction)(void (*)(void))begin_call, FAST, begin_doc},
    {"_take", take, METH_NOARGS, take_doc},
    {"_cancel", cancel, METH_O, cancel_doc},
    {"wait", (PyCFunction)(void (*)(void))wait_for, FAST, wait_doc},
    {"fileno", get_fileno, METH_NOARGS, fileno_doc},
    {"stats", stats, METH_NOARGS, stats_doc},
    {"close", dlxpy_handle_close, METH_NOARGS, close_doc},
    {0},
};

static PyGetSetDef getset[] = {
    {"topic", dlxpy_handle_topic, NULL, "The topic of the service.", NULL},
    {"closed", dlxpy_handle_is_closed, NULL, "True if closed.", NULL},
    {0},
};

PyDoc_STRVAR(doc, "Sends requests to the workers of a service, and gets their replies. Made by\n"
                  "Connection.caller(). One thread at a time may use it; with call_async(), up\n"
                  "to max_in_flight tasks of one event loop.");
static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)doc},
    {Py_tp_dealloc, (void *)dlxpy_handle_dealloc},
    {Py_tp_repr, (void *)dlxpy_handle_repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {0, NULL},
};
static PyType_Spec spec = {"dlx.Caller", sizeof(struct dlxpy_publisher), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

int dlxpy_add_caller(PyObject *module)
{
    caller_type = dlxpy_add_type(module, &spec, NULL);
    return caller_type ? 0 : -1;
}
