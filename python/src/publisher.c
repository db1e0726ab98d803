/* SPDX-License-Identifier: Apache-2.0 */
#include "publisher.h"
#include "errors.h"
#include <stdio.h>
#include <string.h>

PyTypeObject *dlxpy_publisher_type;
static PyTypeObject *event_type;

static struct dlxpy_publisher *cast(PyObject *self)
{
    return (struct dlxpy_publisher *)self;
}

PyObject *dlxpy_publisher_new(struct dlx_publisher *p, const char *topic, bool waits,
                              int64_t timeout_ns)
{
    static uint64_t last_number;
    struct dlxpy_publisher *self = PyObject_New(struct dlxpy_publisher, dlxpy_publisher_type);
    if (!self) {
        dlx_publisher_unref(p);
        return NULL;
    }
    memset((char *)self + sizeof(PyObject), 0, sizeof *self - sizeof(PyObject));
    self->p = p;
    self->number = ++last_number;
    self->waits = waits;
    self->timeout_ns = timeout_ns;
    (void)snprintf(self->what, sizeof self->what, "the publisher of %s", topic);
    self->topic = PyUnicode_FromString(topic);
    if (!self->topic)
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* Leaving may wait, for subscribers that are on their way to a new daemon. */
static void drop(struct dlxpy_publisher *self)
{
    struct dlx_publisher *p = self->p;
    self->p = NULL;
    Py_BEGIN_ALLOW_THREADS
    dlx_publisher_unref(p);
    Py_END_ALLOW_THREADS
}

int dlxpy_publisher_enter(struct dlxpy_publisher *p)
{
    return dlxpy_enter(&p->guard, false, p->what);
}

void dlxpy_publisher_leave(struct dlxpy_publisher *p)
{
    if (dlxpy_leave(&p->guard))
        drop(p);
}

static void dealloc(PyObject *self)
{
    if (cast(self)->p)
        drop(cast(self));
    Py_XDECREF(cast(self)->topic);
    dlxpy_free_object(self);
}

/* ---- methods ------------------------------------------------------------------------------- */

PyDoc_STRVAR(close_doc,
             "close()\n--\n\n"
             "Leave. Subscribers keep what they hold and drain what was published; its tensors\n"
             "stay valid.");
static PyObject *close_it(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (dlxpy_close(&cast(self)->guard))
        drop(cast(self));
    Py_RETURN_NONE;
}

static PyObject *enter(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (dlxpy_publisher_enter(cast(self)) < 0)
        return NULL;
    dlxpy_publisher_leave(cast(self));
    Py_INCREF(self);
    return self;
}

static PyObject *leave(PyObject *self, PyObject *args)
{
    return close_it(self, args);
}

/* Returns 0; -1 with an exception. */
static int wait_for(struct dlxpy_publisher *p, uint32_t n, int64_t timeout_ns)
{
    struct dlxpy_wait wait = dlxpy_wait_begin(timeout_ns);
    for (;;) {
        int r;
        int64_t slice = dlxpy_wait_slice(&wait, DLXPY_SLICE_NS);
        Py_BEGIN_ALLOW_THREADS
        r = dlx_publisher_wait(p->p, n, slice);
        Py_END_ALLOW_THREADS
        if (r == 0)
            return 0;
        bool again =
            r == DLX_E_INTERRUPTED || (r == DLX_E_TIMEOUT && dlxpy_wait_slice(&wait, 1) > 0);
        if (!again) {
            (void)dlxpy_raise(r);
            return -1;
        }
        if (PyErr_CheckSignals() < 0)
            return -1;
        if (p->guard.closed) {
            (void)dlxpy_raise_closed(p->what);
            return -1;
        }
    }
}

PyDoc_STRVAR(
    wait_doc,
    "wait(n=1, timeout=None)\n--\n\n"
    "Wait until at least n subscribers are attached. timeout: seconds, None without a limit.\n"
    "Raises dlx.Timeout, which tells how many are.");
static PyObject *wait(PyObject *self, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    static const char *const names[] = {"n", "timeout"};
    static const struct dlxpy_params params = {"wait", names, 2, 2, 0};
    PyObject *value[2];
    uint32_t n = 1;
    int64_t timeout_ns = DLX_FOREVER;
    if (dlxpy_parse(&params, args, n_args, kwnames, value) < 0 ||
        dlxpy_uint32(value[0], "n", UINT32_MAX, &n) < 0 ||
        (value[1] && dlxpy_timeout(value[1], &timeout_ns) < 0) ||
        dlxpy_publisher_enter(cast(self)) < 0)
        return NULL;
    int r = wait_for(cast(self), n, timeout_ns);
    dlxpy_publisher_leave(cast(self));
    if (r < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(stats_doc,
             "stats()\n--\n\nCounters since the start: a dict, as struct dlx_publisher_stats.");
static PyObject *stats(PyObject *self, PyObject *unused)
{
    struct dlxpy_publisher *p = cast(self);
    struct dlx_publisher_stats s = {.size = sizeof s};
    (void)unused;
    if (dlxpy_publisher_enter(p) < 0)
        return NULL;
    int r = dlx_publisher_get_stats(p->p, &s);
    dlxpy_publisher_leave(p);
    if (r < 0)
        return dlxpy_raise(r);
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:I,s:I,s:K}", "published", s.published,
                         "published_bytes", s.published_bytes, "copied", s.copied, "copied_bytes",
                         s.copied_bytes, "full", s.full - p->n_repeats, "blocked",
                         s.blocked - p->n_repeats, "bells", s.bells, "arena_bytes", s.arena_bytes,
                         "n_arenas", s.n_arenas, "n_subscribers", s.n_subscribers, "unprotected",
                         s.unprotected);
}

PyDoc_STRVAR(
    events_doc,
    "events()\n--\n\n"
    "Which subscribers came or left since the last call: a list of dlx.Event. Never waits.");
static PyObject *events(PyObject *self, PyObject *unused)
{
    struct dlx_event event = {.size = sizeof event};
    (void)unused;
    if (dlxpy_publisher_enter(cast(self)) < 0)
        return NULL;
    PyObject *ret = PyList_New(0);
    int r = 0;
    while (ret && (r = dlx_publisher_next_event(cast(self)->p, &event)) == 0) {
        PyObject *item = dlxpy_event(&event);
        if (!item || PyList_Append(ret, item) < 0)
            Py_CLEAR(ret);
        Py_XDECREF(item);
    }
    if (ret && r != DLX_E_EMPTY) {
        Py_CLEAR(ret);
        (void)dlxpy_raise(r);
    }
    dlxpy_publisher_leave(cast(self));
    return ret;
}

PyObject *dlxpy_event(const struct dlx_event *event)
{
    static const char *const kinds[] = {"?", "joined", "left", "lost"};
    PyObject *ret = PyStructSequence_New(event_type);
    if (!ret)
        return NULL;
    const char *kind = kinds[event->kind <= DLX_EVENT_LOST ? event->kind : 0];
    PyStructSequence_SetItem(ret, 0, PyUnicode_FromString(kind));
    PyStructSequence_SetItem(ret, 1, PyUnicode_FromString(event->topic));
    PyStructSequence_SetItem(ret, 2, PyLong_FromUnsignedLong(event->pid));
    PyStructSequence_SetItem(ret, 3, PyLong_FromUnsignedLongLong(event->link));
    PyStructSequence_SetItem(ret, 4, PyLong_FromUnsignedLongLong(event->publisher));
    PyStructSequence_SetItem(ret, 5, PyLong_FromUnsignedLongLong(event->missed));
    if (PyErr_Occurred())
        Py_CLEAR(ret);
    return ret;
}

static PyObject *get_topic(PyObject *self, void *closure)
{
    (void)closure;
    Py_INCREF(cast(self)->topic);
    return cast(self)->topic;
}

static PyObject *get_is_closed(PyObject *self, void *closure)
{
    (void)closure;
    return PyBool_FromLong(cast(self)->guard.closed);
}

static PyObject *repr(PyObject *self)
{
    return PyUnicode_FromFormat("<dlx.Publisher of %U%s>", cast(self)->topic,
                                cast(self)->guard.closed ? ", closed" : "");
}

/* ---- type ---------------------------------------------------------------------------------- */

#define FAST (METH_FASTCALL | METH_KEYWORDS)
static PyMethodDef methods[] = {
    {"__enter__", enter, METH_NOARGS, NULL},
    {"__exit__", leave, METH_VARARGS, NULL},
    {"empty", (PyCFunction)(void (*)(void))dlxpy_publisher_empty, FAST, dlxpy_empty_doc},
    {"zeros", (PyCFunction)(void (*)(void))dlxpy_publisher_zeros, FAST, dlxpy_zeros_doc},
    {"like", dlxpy_publisher_like, METH_O, dlxpy_like_doc},
    {"publish", (PyCFunction)(void (*)(void))dlxpy_publish, FAST, dlxpy_publish_doc},
    {"wait", (PyCFunction)(void (*)(void))wait, FAST, wait_doc},
    {"events", events, METH_NOARGS, events_doc},
    {"stats", stats, METH_NOARGS, stats_doc},
    {"close", close_it, METH_NOARGS, close_doc},
    {0},
};

static PyGetSetDef getset[] = {
    {"topic", get_topic, NULL, "Its topic.", NULL},
    {"closed", get_is_closed, NULL, "Was it closed?", NULL},
    {0},
};

PyDoc_STRVAR(doc, "Publishes on one topic; made by Connection.publisher(). One thread at a time "
                  "may use it. It ends\n"
                  "when it is closed, or nothing refers to it.");
static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)doc}, {Py_tp_dealloc, (void *)dealloc}, {Py_tp_repr, (void *)repr},
    {Py_tp_methods, methods}, {Py_tp_getset, getset},           {0, NULL},
};
static PyType_Spec spec = {"dlx.Publisher", sizeof(struct dlxpy_publisher), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

static PyStructSequence_Field event_fields[] = {
    {"kind", "\"joined\", \"left\" (it closed), or \"lost\" (its process died, or it was cut off)"},
    {"topic", "of the publisher"},
    {"pid", "of the other side"},
    {"link", "id"},
    {"publisher", "id"},
    {"missed", "events before this one that were dropped: 64 are kept"},
    {NULL, NULL},
};
static PyStructSequence_Desc event_desc = {"dlx.Event", "Who came or left.", event_fields, 6};

int dlxpy_add_publisher(PyObject *module)
{
    dlxpy_publisher_type = dlxpy_add_type(module, &spec);
    event_type = dlxpy_publisher_type ? dlxpy_add_record(module, &event_desc) : NULL;
    return event_type ? 0 : -1;
}
