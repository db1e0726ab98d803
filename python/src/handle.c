/* SPDX-License-Identifier: Apache-2.0 */
#include "handle.h"
#include "args.h"
#include "errors.h"
#include "wait.h"
#include <stdio.h>
#include <string.h>
#include <time.h>

static PyTypeObject *event_type;

static struct dlxpy_handle *cast(PyObject *self)
{
    return (struct dlxpy_handle *)self;
}

struct dlxpy_handle *dlxpy_handle_new(const struct dlxpy_handle_kind *kind, void *of_libdlx,
                                      const char *topic)
{
    struct dlxpy_handle *h = PyObject_New(struct dlxpy_handle, *kind->type);
    if (!h) {
        kind->unref(of_libdlx);
        return NULL;
    }
    memset((char *)h + sizeof(PyObject), 0, kind->size - sizeof(PyObject));
    h->of.any = of_libdlx;
    h->kind = kind;
    (void)snprintf(h->what, sizeof h->what, topic ? "%s of %s" : "%s", kind->what, topic);
    h->topic = topic ? PyUnicode_FromString(topic) : NULL;
    if (topic && !h->topic)
        Py_CLEAR(h);
    return h;
}

/* Leaving may wait, for the daemon, and for subscribers that are on their way to a new one. */
static void drop(struct dlxpy_handle *h)
{
    void *of_libdlx = h->of.any;
    h->of.any = NULL;
    dlxpy_wait_unref(h->kind->unref, of_libdlx);
}

/* As drop(), for a caller that can raise the exception of a signal's handler. Returns 0; -1 with an
 * exception; the object is gone in both cases. */
static int drop_or_raise(struct dlxpy_handle *h)
{
    struct dlxpy_wait wait;
    void *of_libdlx = h->of.any;
    h->of.any = NULL;
    dlxpy_wait_begin(&wait, h, true);
    h->kind->unref(of_libdlx);
    return dlxpy_wait_end(&wait, 0);
}

void dlxpy_handle_dealloc(PyObject *self)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (cast(self)->kind->closing && !cast(self)->closed)
        dlxpy_handle_wake_tasks(self);
    PyErr_Restore(type, value, trace);
    if (cast(self)->of.any)
        drop(cast(self));
    Py_XDECREF(cast(self)->topic);
    dlxpy_free_object(self);
}

/* ---- using and closing --------------------------------------------------------------------- */

/* Let the thread that is inside leave, unless it is this one, in a finalizer. */
static void queue(const struct dlxpy_handle *h)
{
    if (h->user == PyThread_get_thread_ident())
        return;
    uint64_t deadline = dlxpy_deadline(DLXPY_QUEUE_NS);
    for (long ns = 50000; dlxpy_time_left(deadline) > 0; ns = ns < 1000000 ? 2 * ns : ns) {
        Py_BEGIN_ALLOW_THREADS(void)
        nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
        Py_END_ALLOW_THREADS
        if (h->n_users == 0)
            return;
    }
}

int dlxpy_handle_enter(struct dlxpy_handle *h)
{
    bool shared = h->kind->shared;
    if (h->kind->queues && h->n_users > 0 && !h->closed)
        queue(h);
    if (h->closed) {
        (void)dlxpy_raise_closed(h->what);
        return -1;
    }
    if (!shared && h->n_users > 0) {
        bool is_mine = h->user == PyThread_get_thread_ident();
        (void)dlxpy_raise_text(
            DLX_E_IN_USE, "%s is in use by %s", h->what,
            is_mine ? "a call of this thread, which was interrupted while it waits for "
                      "dlpackd, messages or subscribers"
                    : "another thread: make one for each thread");
        return -1;
    }
    h->n_users++;
    h->user = PyThread_get_thread_ident();
    return 0;
}

void dlxpy_handle_leave(struct dlxpy_handle *h)
{
    if (--h->n_users == 0 && h->closed)
        drop(h);
}

void dlxpy_handle_wake_tasks(PyObject *self)
{
    PyObject *name = PyUnicode_FromString("dlx._aio");
    PyObject *module = name ? PyImport_GetModule(name) : NULL; /* if it was ever loaded */
    bool is_there = module && module != Py_None;               /* None: Python ends */
    PyObject *ret =
        is_there ? PyObject_CallMethod(module, "closing", "N", PyLong_FromVoidPtr(self)) : NULL;
    if (!ret && PyErr_Occurred())
        PyErr_WriteUnraisable(NULL);
    Py_XDECREF(ret);
    Py_XDECREF(module);
    Py_XDECREF(name);
}

int dlxpy_handle_go_on(const struct dlxpy_handle *h)
{
    if (PyErr_CheckSignals() < 0)
        return -1;
    if (!h || !h->closed || !h->of.any) /* the thread that drops it is not hurried */
        return 0;
    (void)dlxpy_raise_closed(h->what);
    return -1;
}

PyObject *dlxpy_handle_close(PyObject *self, PyObject *unused)
{
    struct dlxpy_handle *h = cast(self);
    bool was = h->closed, used = h->n_users > 0; /* the last user drops it */
    (void)unused;
    h->closed = true;
    if (!was && h->kind->closing)
        h->kind->closing(self);
    if (!was && !used && drop_or_raise(h) < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyObject *dlxpy_handle_enter_context(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (dlxpy_handle_enter(cast(self)) < 0)
        return NULL;
    dlxpy_handle_leave(cast(self));
    Py_INCREF(self);
    return self;
}

/* ---- attributes ---------------------------------------------------------------------------- */

PyObject *dlxpy_handle_is_closed(PyObject *self, void *closure)
{
    (void)closure;
    return PyBool_FromLong(cast(self)->closed);
}

PyObject *dlxpy_handle_topic(PyObject *self, void *closure)
{
    (void)closure;
    Py_INCREF(cast(self)->topic);
    return cast(self)->topic;
}

PyObject *dlxpy_handle_repr(PyObject *self)
{
    PyObject *type = PyObject_GetAttrString((PyObject *)Py_TYPE(self), "__name__");
    PyObject *ret = type ? PyUnicode_FromFormat("<dlx.%U of %U%s>", type, cast(self)->topic,
                                                cast(self)->closed ? ", closed" : "")
                         : NULL;
    Py_XDECREF(type);
    return ret;
}

/* ---- events -------------------------------------------------------------------------------- */

static PyObject *make_event(const struct dlx_event *event)
{
    static const char *const kinds[] = {"?",          "joined",     "left",        "lost",
                                        "unpinned",   "late",       "reconnected", "unseen",
                                        "cpu_waited", "dead_letter"};
    PyObject *ret = PyStructSequence_New(event_type);
    if (!ret)
        return NULL;
    const char *kind = kinds[event->kind <= DLX_EVENT_DEAD_LETTER ? event->kind : 0];
    PyStructSequence_SetItem(ret, 0, PyUnicode_FromString(kind));
    PyStructSequence_SetItem(ret, 1, dlxpy_text(event->topic));
    PyStructSequence_SetItem(ret, 2, PyLong_FromUnsignedLong(event->pid));
    PyStructSequence_SetItem(ret, 3, PyLong_FromUnsignedLongLong(event->link));
    PyStructSequence_SetItem(ret, 4, PyLong_FromUnsignedLongLong(event->publisher));
    PyStructSequence_SetItem(ret, 5, PyLong_FromUnsignedLongLong(event->missed));
    PyStructSequence_SetItem(ret, 6, dlxpy_text(event->reason));
    if (PyErr_Occurred())
        Py_CLEAR(ret);
    return ret;
}

PyObject *dlxpy_handle_events(struct dlxpy_handle *h,
                              int (*next)(void *of_libdlx, struct dlx_event *ret))
{
    struct dlx_event event = {.size = sizeof event};
    if (dlxpy_handle_enter(h) < 0)
        return NULL;
    PyObject *ret = PyList_New(0);
    struct dlxpy_wait wait; /* the call may reconnect to a restarted daemon */
    int r = 0;
    dlxpy_wait_begin(&wait, h, false);
    while (ret && (r = next(h->of.any, &event)) == 0) {
        PyObject *item = make_event(&event);
        if (!item || PyList_Append(ret, item) < 0)
            Py_CLEAR(ret);
        Py_XDECREF(item);
    }
    if (dlxpy_wait_end(&wait, r == DLX_E_EMPTY ? 0 : r) < 0)
        Py_CLEAR(ret);
    dlxpy_handle_leave(h);
    return ret;
}

static PyStructSequence_Field event_fields[] = {
    {"kind", "\"joined\", \"left\" (it closed), \"lost\" (its process died, or it was cut off), "
             "\"unpinned\",\n"
             "\"late\" or \"cpu_waited\" (GPUs), \"unseen\" (it left before this side looked), or "
             "\"reconnected\" (this side has joined the daemon that took the place "
             "of the last one)"},
    {"topic", "of the publisher; of \"reconnected\": that of this side, or its pattern"},
    {"pid", "of the other side; of \"reconnected\": 0"},
    {"link", "id; of \"reconnected\": 0"},
    {"publisher", "id"},
    {"missed", "events before this one that were dropped: 64 are kept"},
    {"reason",
     "why a publisher cut the link, its memory is not pinned, a stream went on too early or "
     "could not wait, or a publisher was not seen; else \"\""},
    {NULL, NULL},
};
static PyStructSequence_Desc event_desc = {"dlx.Event", "A peer that came or left.", event_fields,
                                           7};

int dlxpy_add_event(PyObject *module)
{
    event_type = dlxpy_add_record(module, &event_desc);
    return event_type ? 0 : -1;
}
