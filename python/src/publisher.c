/* SPDX-License-Identifier: Apache-2.0 */
#include "publisher.h"
#include "errors.h"
#include "wait.h"

PyTypeObject *dlxpy_publisher_type;

static struct dlxpy_publisher *cast(PyObject *self)
{
    return (struct dlxpy_publisher *)self;
}

static void unref(void *p)
{
    dlx_publisher_unref(p);
}

static const struct dlxpy_handle_kind kind = {
    &dlxpy_publisher_type,  sizeof(struct dlxpy_publisher), "the publisher", false, true, unref,
    dlxpy_handle_wake_tasks};

PyObject *dlxpy_publisher_new(struct dlx_publisher *p, const char *topic, bool waits,
                              int64_t timeout_ns)
{
    struct dlxpy_publisher *self = (struct dlxpy_publisher *)dlxpy_handle_new(&kind, p, topic);
    if (self) {
        self->number = dlxpy_publisher_number();
        self->waits = waits;
        self->timeout_ns = timeout_ns;
    }
    return (PyObject *)self;
}

static int alloc(void *publisher, const struct dlx_tensor_spec *specs, uint32_t n,
                 DLManagedTensorVersioned **ret)
{
    return n == 1 ? dlx_alloc(publisher, specs, ret) : dlx_alloc_set(publisher, specs, n, ret);
}

static void *of_libdlx(PyObject *self)
{
    return cast(self)->handle.of.any;
}

static const struct dlxpy_place place = {cast, of_libdlx, alloc};
DLXPY_ALLOC_FUNCTIONS(&place)

/* ---- methods ------------------------------------------------------------------------------- */

PyDoc_STRVAR(close_doc,
             "close($self, /)\n"
             "--\n"
             "\n"
             "Closes the publisher. Subscribers keep what they hold, and can still take what was\n"
             "published. Its tensors stay valid.");

PyDoc_STRVAR(wait_doc,
             "wait($self, /, n=1, timeout=None)\n"
             "--\n"
             "\n"
             "Waits until at least n subscribers are attached, for `timeout` seconds; None:\n"
             "without a limit. Raises dlx.Timeout, which names those that are attached, and\n"
             "those that have subscribed and have to make a call first.");
static PyObject *wait_for(PyObject *self, PyObject *const *args, Py_ssize_t n_args,
                          PyObject *kwnames)
{
    static const char *const names[] = {"n", "timeout"};
    static const struct dlxpy_params params = {"wait", names, 2, 2, 0};
    PyObject *value[2];
    uint32_t n = 1;
    int64_t timeout_ns = DLX_FOREVER;
    if (dlxpy_parse(&params, args, n_args, kwnames, value) < 0 ||
        dlxpy_uint32(value[0], "n", UINT32_MAX, &n) < 0 ||
        (value[1] && dlxpy_timeout(value[1], &timeout_ns) < 0) ||
        dlxpy_handle_enter(&cast(self)->handle) < 0)
        return NULL;
    struct dlxpy_wait wait;
    dlxpy_wait_begin(&wait, &cast(self)->handle, true);
    int r = dlx_publisher_wait(cast(self)->handle.of.publisher, n, timeout_ns);
    r = dlxpy_wait_end(&wait, r);
    dlxpy_handle_leave(&cast(self)->handle);
    if (r < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(drain_doc,
             "drain($self, /, timeout=None)\n"
             "--\n"
             "\n"
             "Waits until every group in `groups` has done, or given up as dead letters, all that\n"
             "was published before, for `timeout` seconds; None: without a limit. Raises\n"
             "dlx.Timeout, which names the oldest message that is not done, its age, and the\n"
             "worker that has it; dlx.InvalidError (the publisher has no groups).");
static PyObject *drain(PyObject *self, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    static const char *const names[] = {"timeout"};
    static const struct dlxpy_params params = {"drain", names, 1, 1, 0};
    PyObject *value[1];
    int64_t timeout_ns = DLX_FOREVER;
    if (dlxpy_parse(&params, args, n_args, kwnames, value) < 0 ||
        (value[0] && dlxpy_timeout(value[0], &timeout_ns) < 0) ||
        dlxpy_handle_enter(&cast(self)->handle) < 0)
        return NULL;
    struct dlxpy_wait wait;
    dlxpy_wait_begin(&wait, &cast(self)->handle, true);
    int r = dlx_publisher_drain(cast(self)->handle.of.publisher, timeout_ns);
    r = dlxpy_wait_end(&wait, r);
    dlxpy_handle_leave(&cast(self)->handle);
    if (r < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(fileno_doc,
             "fileno($self, /)\n"
             "--\n"
             "\n"
             "Returns a descriptor for select, selectors and asyncio. After the first call of\n"
             "this, it becomes readable when a publish(), wait() or drain() that failed with\n"
             "timeout=0 may succeed. Never read, write or close it.");
static PyObject *get_fileno(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (dlxpy_handle_enter(&cast(self)->handle) < 0)
        return NULL;
    int fd = dlx_publisher_fd(cast(self)->handle.of.publisher);
    dlxpy_handle_leave(&cast(self)->handle);
    return fd < 0 ? dlxpy_raise(fd) : PyLong_FromLong(fd);
}

static PyObject *get_timeout(PyObject *self, void *closure)
{
    const struct dlxpy_publisher *p = cast(self);
    (void)closure;
    if (p->waits && p->timeout_ns < 0)
        Py_RETURN_NONE;
    return PyFloat_FromDouble(p->waits ? (double)p->timeout_ns / 1e9 : 0);
}

static PyObject *get_id(PyObject *self, void *closure)
{
    struct dlxpy_publisher *p = cast(self);
    (void)closure;
    if (dlxpy_handle_enter(&p->handle) < 0)
        return NULL;
    uint64_t id = dlx_publisher_id(p->handle.of.publisher);
    dlxpy_handle_leave(&p->handle);
    return PyLong_FromUnsignedLongLong(id);
}

PyDoc_STRVAR(stats_doc,
             "stats($self, /)\n"
             "--\n"
             "\n"
             "Returns the counters since the publisher was made, as a dict:\n"
             "\n"
             "- published, published_bytes: messages, and bytes of their tensors\n"
             "- copied, copied_bytes: messages with a tensor that was copied, and bytes\n"
             "- refused, blocked: publishes that failed for want of room or subscribers, or that\n"
             "  waited for them\n"
             "- bells: sleeping subscribers that were woken, a system call each\n"
             "- n_subscribers: attached when this publisher last looked\n"
             "- n_arenas, arena_bytes, gpu_arena_bytes: shared memory for tensors now, and\n"
             "  memory of GPUs\n"
             "- cut: links that were cut because they exceeded max_held or max_held_bytes\n"
             "- undone: messages that will not be done, since the last worker of a group that was\n"
             "  not declared has left\n"
             "- gpu_waits: publishes that waited for work on a GPU\n"
             "- deleted_again: deleters called for tensors that had been published (by C code)\n"
             "- unprotected: messages that dlx.debug() could not protect completely");
static PyObject *stats(PyObject *self, PyObject *unused)
{
    struct dlxpy_publisher *p = cast(self);
    struct dlx_publisher_stats s = {.size = sizeof s};
    (void)unused;
    if (dlxpy_handle_enter(&p->handle) < 0)
        return NULL;
    struct dlxpy_wait wait; /* the call may reconnect to a restarted daemon */
    dlxpy_wait_begin(&wait, &p->handle, false);
    int r = dlxpy_wait_end(&wait, dlx_publisher_get_stats(p->handle.of.publisher, &s));
    dlxpy_handle_leave(&p->handle);
    if (r < 0)
        return NULL;
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:I,s:I,s:K,s:K,s:K,s:K,s:K,s:K}",
                         "published", s.published, "published_bytes", s.published_bytes, "copied",
                         s.copied, "copied_bytes", s.copied_bytes, "refused", s.refused, "blocked",
                         s.blocked, "bells", s.bells, "arena_bytes", s.arena_bytes, "n_arenas",
                         s.n_arenas, "n_subscribers", s.n_subscribers, "unprotected", s.unprotected,
                         "deleted_again", s.deleted_again, "cut", s.cut, "gpu_waits", s.gpu_waits,
                         "gpu_arena_bytes", s.gpu_arena_bytes, "undone", s.undone);
}

static int next_event(void *p, struct dlx_event *ret)
{
    return dlx_publisher_next_event(p, ret);
}

PyDoc_STRVAR(events_doc,
             "events($self, /)\n"
             "--\n"
             "\n"
             "Returns the events since the last call, as a list of dlx.Event: subscribers that\n"
             "came or left, and \"reconnected\" after the daemon was replaced. Waits only to\n"
             "reconnect to a restarted daemon.");
static PyObject *events(PyObject *self, PyObject *unused)
{
    (void)unused;
    return dlxpy_handle_events(&cast(self)->handle, next_event);
}

/* ---- type ---------------------------------------------------------------------------------- */

#define FAST (METH_FASTCALL | METH_KEYWORDS)
static PyMethodDef methods[] = {
    {"__enter__", dlxpy_handle_enter_context, METH_NOARGS, NULL},
    {"__exit__", dlxpy_handle_close, METH_VARARGS, NULL},
    DLXPY_ALLOC_METHODS,
    {"publish", (PyCFunction)(void (*)(void))dlxpy_publish, FAST, dlxpy_publish_doc},
    {"publish_many", (PyCFunction)(void (*)(void))dlxpy_publish_many, FAST, dlxpy_publish_many_doc},
    {"wait", (PyCFunction)(void (*)(void))wait_for, FAST, wait_doc},
    {"drain", (PyCFunction)(void (*)(void))drain, FAST, drain_doc},
    {"fileno", get_fileno, METH_NOARGS, fileno_doc},
    {"events", events, METH_NOARGS, events_doc},
    {"stats", stats, METH_NOARGS, stats_doc},
    {"close", dlxpy_handle_close, METH_NOARGS, close_doc},
    {0},
};

static PyGetSetDef getset[] = {
    {"topic", dlxpy_handle_topic, NULL, "The topic.", NULL},
    {"id", get_id, NULL,
     "The id, as messages and lists have it in `publisher`. It is another one after a\n"
     "\"reconnected\" event.",
     NULL},
    {"timeout", get_timeout, NULL, "Seconds that publish() waits; None: without a limit.", NULL},
    {"closed", dlxpy_handle_is_closed, NULL, "True if closed.", NULL},
    {0},
};

PyDoc_STRVAR(doc,
             "Publishes on one topic. Made by Connection.publisher(). One thread at a time "
             "may use it; others queue\n"
             "for up to a second. A publisher ends when it is closed or no longer referenced.");
static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)doc},
    {Py_tp_dealloc, (void *)dlxpy_handle_dealloc},
    {Py_tp_repr, (void *)dlxpy_handle_repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {0, NULL},
};
static PyType_Spec spec = {"dlx.Publisher", sizeof(struct dlxpy_publisher), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

int dlxpy_add_publisher(PyObject *module)
{
    dlxpy_publisher_type = dlxpy_add_type(module, &spec, NULL);
    return dlxpy_publisher_type ? 0 : -1;
}
