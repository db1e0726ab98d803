/* SPDX-License-Identifier: Apache-2.0 */
#include "subscription.h"
#include "errors.h"
#include "message.h"
#include "wait.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

PyTypeObject *dlxpy_subscription_type;

static struct dlxpy_subscription *cast(PyObject *self)
{
    return (struct dlxpy_subscription *)self;
}

static void unref(void *s)
{
    dlx_subscription_unref(s);
}

/* The next one; NULL when everything was given. */
static struct dlx_message *give(struct dlxpy_taken *taken)
{
    struct dlx_message **all = taken->many ? taken->many : &taken->one;
    return taken->n_given < taken->n ? all[taken->n_given++] : NULL;
}

static void drop_taken(struct dlxpy_taken *taken)
{
    struct dlx_message *m;
    while ((m = give(taken)))
        dlx_message_unref(m);
    free(taken->many);
    *taken = (struct dlxpy_taken){0};
}

/* Most messages that a subscription holds. */
#define MOST_HELD 4096

/* Room for a list of `n` messages; 0: for one message. Returns 0, or -1 with an exception. */
static int make_room(struct dlxpy_taken *taken, uint32_t n)
{
    *taken = (struct dlxpy_taken){.room = n == 0 ? 1 : n < MOST_HELD ? n : MOST_HELD};
    if (n == 0)
        return 0;
    taken->many = malloc(taken->room * sizeof(struct dlx_message *));
    if (taken->many)
        return 0;
    PyErr_NoMemory();
    return -1;
}

static void drop_kept(PyObject *self)
{
    drop_taken(&cast(self)->kept);
}

static void dealloc(PyObject *self)
{
    drop_kept(self);
    dlxpy_handle_dealloc(self);
}

static void closing(PyObject *self)
{
    drop_kept(self);
    dlxpy_handle_wake_tasks(self);
}

static const struct dlxpy_handle_kind kind = {&dlxpy_subscription_type,
                                              sizeof(struct dlxpy_subscription),
                                              "the subscription",
                                              false,
                                              false,
                                              unref,
                                              closing};

PyObject *dlxpy_subscription_new(struct dlx_subscription *s, const char *topic, int64_t timeout_ns,
                                 enum dlxpy_memory memory, bool hints)
{
    struct dlxpy_subscription *self =
        (struct dlxpy_subscription *)dlxpy_handle_new(&kind, s, topic);
    if (self) {
        self->timeout_ns = timeout_ns;
        self->memory = memory;
        self->hints = hints;
    }
    return (PyObject *)self;
}

/* ---- taking -------------------------------------------------------------------------------- */

/* Of a take that a signal's handler ended: what it took, and errors that libdlx tells once, are for
 * the next one. */
static void keep(struct dlxpy_subscription *self, int r, struct dlxpy_taken *taken)
{
    if (r == 0 && !self->handle.closed) {
        self->kept = *taken;
        *taken = (struct dlxpy_taken){0};
    } else if (r < 0 && r != DLX_E_EMPTY && r != DLX_E_TIMEOUT && r != DLX_E_INTERRUPTED) {
        self->kept_code = r;
    }
}

/* Moves as many kept messages as there is room for. */
static void give_kept(struct dlxpy_taken *kept, struct dlxpy_taken *taken)
{
    struct dlx_message **to = taken->many ? taken->many : &taken->one;
    while (taken->n < taken->room && (to[taken->n] = give(kept)))
        taken->n++;
    if (kept->n_given == kept->n)
        drop_taken(kept);
}

/* Returns the code, with an exception. */
static int raise_ended(const struct dlxpy_subscription *self)
{
    (void)dlxpy_raise_text(DLX_E_PUBLISHER_GONE,
                           "%.440s; subscribe with stay=True to wait for the next one",
                           self->reason);
    return DLX_E_PUBLISHER_GONE;
}

/* Takes messages into `taken`, which has room and is empty. Returns 0; DLX_E_EMPTY
 * or DLX_E_TIMEOUT, without an exception; another code of libdlx, or 1, with one. */
static int take_from_libdlx(struct dlxpy_subscription *self, int64_t timeout_ns,
                            struct dlxpy_taken *taken)
{
    struct dlx_subscription *s = self->handle.of.subscription;
    struct dlxpy_wait wait;
    dlxpy_wait_begin(&wait, &self->handle, timeout_ns != 0);
    int r = taken->many ? dlx_take_n(s, taken->room, timeout_ns, taken->many, &taken->n)
                        : dlx_take(s, timeout_ns, &taken->one);
    if (r == 0 && !taken->many)
        taken->n = 1;
    self->hints &= r != 0;
    self->ended |= r == DLX_E_PUBLISHER_GONE;
    const char *reason = dlx_errmsg(); /* now: a signal's handler may use libdlx, too */
    if (r < 0 && r != DLX_E_EMPTY && r != DLX_E_TIMEOUT)
        (void)snprintf(self->reason, sizeof self->reason, "%s",
                       reason[0] ? reason : dlx_strerror(r));
    if (!dlxpy_wait_leave(&wait)) {
        keep(self, r, taken);
        return 1;
    }
    if (r == DLX_E_PUBLISHER_GONE)
        return raise_ended(self);
    if (r < 0 && r != DLX_E_EMPTY && r != DLX_E_TIMEOUT)
        (void)dlxpy_raise_text(r, "%s", self->reason);
    return r;
}

/* Takes messages that are there, without waiting. But libdlx may find a new daemon, which takes
 * time to answer. Returns as take_from_libdlx(). */
static int look(struct dlxpy_subscription *self, struct dlxpy_taken *taken)
{
    int r = self->kept_code;
    if (self->ended)
        return raise_ended(self);
    if (r != 0) {
        self->kept_code = 0;
        (void)dlxpy_raise_text(r, "%s", self->reason);
        return r;
    }
    if (self->kept.n > 0) {
        give_kept(&self->kept, taken);
        return 0;
    }
    return take_from_libdlx(self, 0, taken);
}

/* ---- a topic without a publisher ------------------------------------------------------------ */

/* A wait of so many seconds without a publisher warns that the name may be wrong. */
#define HINT_S 5

/* Returns 0, or -1 with an exception: the program turns warnings into exceptions. */
static int warn_of_no_publisher(struct dlxpy_subscription *self)
{
    struct dlx_subscription_stats stats = {.size = sizeof stats};
    if (dlx_subscription_get_stats(self->handle.of.subscription, &stats) < 0 ||
        stats.n_publishers > 0)
        return 0;
    self->hints = false;
    PyObject *errors = PyImport_ImportModule("dlx._errors");
    PyObject *category = errors ? PyObject_GetAttrString(errors, "NoPublisherWarning") : NULL;
    int r = category ? PyErr_WarnFormat(
                           category, 1,
                           "topic %.200s: no message for %d s, since nobody publishes it: `dlxctl "
                           "ls` shows the topics that exist, and `dlxctl info` which daemon this "
                           "is; subscribe with stay=True to wait without this warning",
                           PyUnicode_AsUTF8AndSize(self->handle.topic, NULL), HINT_S)
                     : -1;
    Py_XDECREF(category);
    Py_XDECREF(errors);
    return r;
}

/* As take_from_libdlx(), for a take that waits. */
static int take_or_warn(struct dlxpy_subscription *self, int64_t timeout_ns,
                        struct dlxpy_taken *taken)
{
    const int64_t hint_ns = INT64_C(1000000000) * HINT_S;
    if (!self->hints || (timeout_ns >= 0 && timeout_ns <= hint_ns))
        return take_from_libdlx(self, timeout_ns, taken);
    int r = take_from_libdlx(self, hint_ns, taken);
    if (r != DLX_E_TIMEOUT)
        return r;
    if (warn_of_no_publisher(self) < 0)
        return 1;
    return take_from_libdlx(self, timeout_ns < 0 ? timeout_ns : timeout_ns - hint_ns, taken);
}

PyDoc_STRVAR(hint_after_doc, "Seconds without a message after which _hint() is due; None: never.");
static PyObject *get_hint_after(PyObject *self, void *closure)
{
    (void)closure;
    if (cast(self)->hints)
        return PyLong_FromLong(HINT_S);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(hint_doc, "_hint($self, /)\n"
                       "--\n"
                       "\n"
                       "Warns, once, if nobody publishes the topic.");
static PyObject *hint(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (dlxpy_handle_enter(&cast(self)->handle) < 0)
        return NULL;
    int r = cast(self)->hints ? warn_of_no_publisher(cast(self)) : 0;
    dlxpy_handle_leave(&cast(self)->handle);
    if (r < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* The beginning of dlx_take()'s text for a wait in vain; the reason follows. */
#define LATE "no message in time"

/* A take that waits, for at least 1 ns: only then libdlx says why no message came. The exception
 * names `waited_ns`, the time that the caller waited. Returns as take(). */
static int take_or_say_why(struct dlxpy_subscription *self, int64_t timeout_ns, int64_t waited_ns,
                           struct dlxpy_taken *taken)
{
    int r = take_or_warn(self, timeout_ns == 0 ? 1 : timeout_ns, taken);
    if (r != DLX_E_TIMEOUT)
        return r;
    char words[512];
    (void)snprintf(words, sizeof words, "%s", dlx_errmsg());
    const char *why = strstr(words, LATE);
    const char *topic = PyUnicode_AsUTF8AndSize(self->handle.topic, NULL);
    why = why ? why + strlen(LATE) : "";
    if (waited_ns == 0)
        (void)dlxpy_raise_text(DLX_E_EMPTY, "topic %.200s has no message%s", topic, why);
    else
        (void)dlxpy_raise_text(r, "topic %.200s: no message within %s%s", topic,
                               dlxpy_seconds(waited_ns).text, why);
    return r;
}

/* As look(), with an exception in any case. If too many messages are held, libdlx waits for those
 * that work on a GPU still uses. */
static int take(struct dlxpy_subscription *self, int64_t timeout_ns, struct dlxpy_taken *taken)
{
    int r = look(self, taken);
    bool may_wait = r == DLX_E_TOO_MANY_HELD && timeout_ns != 0;
    if (may_wait)
        PyErr_Clear();
    return r == DLX_E_EMPTY || may_wait ? take_or_say_why(self, timeout_ns, timeout_ns, taken) : r;
}

/* Makes a dlx.Message, or a list of them, of what was taken. Messages that remain after a failure
 * are dropped later. NULL with an exception. */
static PyObject *make_result(struct dlxpy_taken *taken, const struct dlxpy_stream *stream,
                             enum dlxpy_memory memory)
{
    struct dlx_message *m;
    if (!taken->many)
        return dlxpy_message_new(give(taken), stream, memory);
    PyObject *ret = PyList_New(0);
    while (ret && (m = give(taken))) {
        PyObject *message = dlxpy_message_new(m, stream, memory);
        if (!message || PyList_Append(ret, message) < 0)
            Py_CLEAR(ret);
        Py_XDECREF(message);
    }
    return ret;
}

/* The result of a take; NULL with an exception. */
static PyObject *take_messages(struct dlxpy_subscription *self, int64_t timeout_ns, uint32_t n,
                               const struct dlxpy_stream *stream, int *ret_code)
{
    struct dlxpy_taken taken;
    if (make_room(&taken, n) < 0)
        return NULL;
    if (dlxpy_handle_enter(&self->handle) < 0) {
        drop_taken(&taken);
        return NULL;
    }
    int r = take(self, timeout_ns, &taken);
    PyObject *ret = r == 0 ? make_result(&taken, stream, self->memory) : NULL;
    drop_taken(&taken);
    *ret_code = r;
    dlxpy_handle_leave(&self->handle);
    return ret;
}

PyDoc_STRVAR(take_doc,
             "take($self, /, timeout=..., *, stream=None)\n"
             "--\n"
             "\n"
             "Takes the next dlx.Message.\n"
             "\n"
             "timeout  seconds; 0 does not wait, None waits without a limit; left out: that of\n"
             "         the subscription. Ctrl-C, and other signals with handlers, interrupt the\n"
             "         wait; other threads run during it\n"
             "stream   the stream on which tensors on GPUs are used: a number, a stream of\n"
             "         PyTorch, CuPy or cuda.core, or -1 for any\n"
             "\n"
             "When __dlpack__() is called, `stream` waits until the tensor is ready, and so does\n"
             "the stream that the library passes to it; no CPU waits. t.status tells whether the\n"
             "tensor was ready. Objects made from it are released when the work on both streams\n"
             "is done, so they must exist until then. With -1, and for the default streams of\n"
             "CUDA, __dlpack__() itself waits.\n"
             "\n"
             "Raises dlx.Timeout; dlx.PublisherGone (the publishers have left and everything\n"
             "they published was taken: from then on each call raises it; never with stay=True);\n"
             "dlx.TooManyHeld (release some); dlx.PeerError (a publisher wrote invalid values:\n"
             "its link is cut); dlx.DaemonError; dlx.Closed.");
static PyObject *take_next(PyObject *self, PyObject *const *args, Py_ssize_t n_args,
                           PyObject *kwnames)
{
    static const char *const names[] = {"timeout", "stream"};
    static const struct dlxpy_params params = {"take", names, 2, 1, 0};
    int64_t timeout_ns = cast(self)->timeout_ns;
    struct dlxpy_stream stream;
    PyObject *value[2];
    int r;
    if (dlxpy_parse(&params, args, n_args, kwnames, value) < 0 ||
        (value[0] && dlxpy_timeout(value[0], &timeout_ns) < 0) ||
        dlxpy_stream_parse(value[1], &stream) < 0)
        return NULL;
    return take_messages(cast(self), timeout_ns, 0, &stream, &r);
}

/* The number of messages that take_many() may give. Returns 0, or -1 with an exception. */
static int parse_n(PyObject *object, uint32_t *ret)
{
    if (dlxpy_uint32(object, "n", UINT32_MAX, ret) < 0)
        return -1;
    if (*ret > 0)
        return 0;
    PyErr_SetString(PyExc_ValueError, "n is 1 or more");
    return -1;
}

PyDoc_STRVAR(take_many_doc,
             "take_many($self, /, n, timeout=..., *, stream=None)\n"
             "--\n"
             "\n"
             "Takes a list of 1 to n messages: waits for the first as take() does, and takes the\n"
             "others that are there without waiting, for less than one take() each. The list is\n"
             "shorter if the subscription may hold no more (max_held). Raises what take()\n"
             "raises, but only if there is no message to return.");
static PyObject *take_many(PyObject *self, PyObject *const *args, Py_ssize_t n_args,
                           PyObject *kwnames)
{
    static const char *const names[] = {"n", "timeout", "stream"};
    static const struct dlxpy_params params = {"take_many", names, 3, 2, 1};
    int64_t timeout_ns = cast(self)->timeout_ns;
    struct dlxpy_stream stream;
    PyObject *value[3];
    uint32_t n;
    int r;
    if (dlxpy_parse(&params, args, n_args, kwnames, value) < 0 || parse_n(value[0], &n) < 0 ||
        (value[1] && dlxpy_timeout(value[1], &timeout_ns) < 0) ||
        dlxpy_stream_parse(value[2], &stream) < 0)
        return NULL;
    return take_messages(cast(self), timeout_ns, n, &stream, &r);
}

/* A loop ends where take() says that the publishers have left. */
static PyObject *next(PyObject *self)
{
    static const struct dlxpy_stream none;
    int r = 0;
    PyObject *message = take_messages(cast(self), cast(self)->timeout_ns, 0, &none, &r);
    if (!message && r == DLX_E_PUBLISHER_GONE)
        PyErr_Clear();
    return message;
}

static PyObject *iterate(PyObject *self)
{
    Py_INCREF(self);
    return self;
}

PyDoc_STRVAR(poll_doc,
             "_poll($self, n=0, stream=None, waited=..., /)\n"
             "--\n"
             "\n"
             "Returns a message, or None if there is none. With n: a list of 1 to n messages.\n"
             "With `waited`, the seconds that the caller waited: dlx.Timeout if there is none.");
static PyObject *poll_it(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    struct dlxpy_taken taken;
    struct dlxpy_stream stream;
    PyObject *ret = NULL;
    uint32_t n = 0;
    int64_t waited_ns = 0;
    if (dlxpy_uint32(n_args > 0 ? args[0] : NULL, "n", UINT32_MAX, &n) < 0 ||
        dlxpy_stream_parse(n_args > 1 ? args[1] : NULL, &stream) < 0 ||
        (n_args > 2 && dlxpy_timeout(args[2], &waited_ns) < 0) || make_room(&taken, n) < 0)
        return NULL;
    if (dlxpy_handle_enter(&cast(self)->handle) < 0) {
        drop_taken(&taken);
        return NULL;
    }
    int r = look(cast(self), &taken);
    if (r == DLX_E_EMPTY && n_args > 2)
        r = take_or_say_why(cast(self), 0, waited_ns, &taken);
    if (r == 0) {
        ret = make_result(&taken, &stream, cast(self)->memory);
    } else if (r == DLX_E_EMPTY) {
        ret = Py_None;
        Py_INCREF(ret);
    }
    drop_taken(&taken);
    dlxpy_handle_leave(&cast(self)->handle);
    return ret;
}

/* Would take() return or raise at once? A message that is found is kept for it, and so is its
 * exception. */
static PyObject *is_ready(PyObject *self, PyObject *unused)
{
    struct dlxpy_subscription *s = cast(self);
    struct dlxpy_taken taken;
    (void)unused;
    if (dlxpy_handle_enter(&s->handle) < 0)
        return NULL;
    bool ready = s->ended || s->kept.n > 0 || s->kept_code != 0;
    (void)make_room(&taken, 0);
    int r = ready ? 0 : look(s, &taken);
    if (!ready && (r == 0 || r == DLX_E_BAD_PEER)) /* take() itself says the rest again */
        keep(s, r, &taken);
    if (r < 0 && r != DLX_E_EMPTY)
        PyErr_Clear();
    drop_taken(&taken);
    dlxpy_handle_leave(&s->handle);
    return r == 1 ? NULL : PyBool_FromLong(r != DLX_E_EMPTY);
}

PyDoc_STRVAR(check_doc, "_check($self, n, stream, timeout=..., /)\n"
                        "--\n"
                        "\n"
                        "Raise what take_many() would at once; n is None for take().");
static PyObject *check(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    struct dlxpy_stream stream;
    int64_t ns;
    uint32_t n;
    (void)self;
    if (n_args < 2)
        PyErr_BadArgument();
    if (n_args < 2 || (args[0] != Py_None && parse_n(args[0], &n) < 0) ||
        (n_args > 2 && dlxpy_timeout(args[2], &ns) < 0) || dlxpy_stream_parse(args[1], &stream) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* ---- the rest ------------------------------------------------------------------------------ */

PyDoc_STRVAR(fileno_doc,
             "fileno($self, /)\n"
             "--\n"
             "\n"
             "Returns a descriptor for select, selectors and asyncio, which is readable when\n"
             "take() may return a message. Rely on that only after take(timeout=0) raised\n"
             "dlx.Timeout. Never read, write or close it.");
static PyObject *get_fileno(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (dlxpy_handle_enter(&cast(self)->handle) < 0)
        return NULL;
    int fd = dlx_subscription_fd(cast(self)->handle.of.subscription);
    dlxpy_handle_leave(&cast(self)->handle);
    return fd < 0 ? dlxpy_raise(fd) : PyLong_FromLong(fd);
}

PyDoc_STRVAR(stats_doc,
             "stats($self, /)\n"
             "--\n"
             "\n"
             "Returns the counters since the subscription was made, as a dict:\n"
             "\n"
             "- taken, taken_bytes: messages, and bytes of their tensors\n"
             "- lost: messages that can never be taken: dropped, which counts at once, or\n"
             "  published through a daemon that this subscription did not reach in time\n"
             "- skipped: messages that latest=True passed over, or that were dropped before\n"
             "- n_held: messages held now\n"
             "- n_publishers: publishers attached now\n"
             "- has_daemon: False if the daemon has ended and no other one was joined yet\n"
             "- sleeps: sleeps of take(), one or more system calls each\n"
             "- rejected: links cut because their publisher wrote invalid values\n"
             "- pinned_bytes, pin_failures: memory that is pinned now; arenas that could not be\n"
             "  pinned (pin=)\n"
             "- n_claimed, done, redelivered, dead: of a worker of a group, messages that are\n"
             "  neither done nor given back now; that it has done; that it took with an attempt\n"
             "  above 1; and dead letters that it found\n"
             "- gpu_waits, gpu_errors, gpu_late: releases and tensors that waited for a GPU;\n"
             "  releases that found it lost; streams that continued before the tensor was ready");
static PyObject *stats(PyObject *self, PyObject *unused)
{
    struct dlx_subscription_stats s = {.size = sizeof s};
    (void)unused;
    if (dlxpy_handle_enter(&cast(self)->handle) < 0)
        return NULL;
    int r = dlx_subscription_get_stats(cast(self)->handle.of.subscription, &s);
    dlxpy_handle_leave(&cast(self)->handle);
    if (r < 0)
        return dlxpy_raise(r);
    return Py_BuildValue(
        "{s:K,s:K,s:K,s:K,s:K,s:K,s:I,s:I,s:K,s:K,s:K,s:K,s:K,s:N,s:I,s:K,s:K,s:K}", "taken",
        s.taken, "taken_bytes", s.taken_bytes, "skipped", s.skipped, "lost", s.lost, "sleeps",
        s.sleeps, "rejected", s.rejected, "n_held", s.n_held, "n_publishers", s.n_publishers,
        "gpu_waits", s.gpu_waits, "gpu_errors", s.gpu_errors, "gpu_late", s.gpu_late,
        "pinned_bytes", s.pinned_bytes, "pin_failures", s.pin_failures, "has_daemon",
        PyBool_FromLong(s.has_daemon), "n_claimed", s.n_claimed, "done", s.done, "redelivered",
        s.redelivered, "dead", s.dead);
}

static int next_event(void *s, struct dlx_event *ret)
{
    return dlx_subscription_next_event(s, ret);
}

PyDoc_STRVAR(events_doc,
             "events($self, /)\n"
             "--\n"
             "\n"
             "Returns the events since the last call, as a list of dlx.Event: publishers that\n"
             "came or left, memory that could not be pinned, dead letters of a group, and\n"
             "\"reconnected\" after the daemon was replaced. Never waits.");
static PyObject *events(PyObject *self, PyObject *unused)
{
    (void)unused;
    return dlxpy_handle_events(&cast(self)->handle, next_event);
}

PyDoc_STRVAR(close_doc,
             "close($self, /)\n"
             "--\n"
             "\n"
             "Closes the subscription. Held messages stay valid. A take() of another thread, or\n"
             "a task that waits, ends with dlx.Closed.");

static PyObject *get_timeout(PyObject *self, void *closure)
{
    (void)closure;
    if (cast(self)->timeout_ns < 0)
        Py_RETURN_NONE;
    return PyFloat_FromDouble((double)cast(self)->timeout_ns / 1e9);
}

static int set_timeout(PyObject *self, PyObject *value, void *closure)
{
    (void)closure;
    return dlxpy_timeout(value ? value : Py_None, &cast(self)->timeout_ns);
}

/* ---- type ---------------------------------------------------------------------------------- */

#define FAST (METH_FASTCALL | METH_KEYWORDS)
static PyMethodDef methods[] = {
    {"__enter__", dlxpy_handle_enter_context, METH_NOARGS, NULL},
    {"__exit__", dlxpy_handle_close, METH_VARARGS, NULL},
    {"take", (PyCFunction)(void (*)(void))take_next, FAST, take_doc},
    {"take_many", (PyCFunction)(void (*)(void))take_many, FAST, take_many_doc},
    {"_poll", (PyCFunction)(void (*)(void))poll_it, METH_FASTCALL, poll_doc},
    {"_ready", is_ready, METH_NOARGS, NULL},
    {"_hint", hint, METH_NOARGS, hint_doc},
    {"_check", (PyCFunction)(void (*)(void))check, METH_FASTCALL, check_doc},
    {"fileno", get_fileno, METH_NOARGS, fileno_doc},
    {"events", events, METH_NOARGS, events_doc},
    {"stats", stats, METH_NOARGS, stats_doc},
    {"close", dlxpy_handle_close, METH_NOARGS, close_doc},
    {0},
};

static PyGetSetDef getset[] = {
    {"topic", dlxpy_handle_topic, NULL, "The topic or pattern.", NULL},
    {"timeout", get_timeout, set_timeout, "Seconds that take() and loops wait; None: no limit.",
     NULL},
    {"closed", dlxpy_handle_is_closed, NULL, "True if closed.", NULL},
    {"_hint_after", get_hint_after, NULL, hint_after_doc, NULL},
    {0},
};

PyDoc_STRVAR(
    doc, "Receives the messages of a topic, or of all topics that match a pattern. Made by\n"
         "Connection.subscribe(). `for msg in s` and `async for msg in s` end where take() raises\n"
         "dlx.PublisherGone, and raise dlx.Timeout. One thread at a time may use it.");
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
static PyType_Spec spec = {"dlx.Subscription", sizeof(struct dlxpy_subscription), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

int dlxpy_add_subscription(PyObject *module)
{
    dlxpy_subscription_type = dlxpy_add_type(module, &spec, NULL);
    return dlxpy_subscription_type ? 0 : -1;
}
