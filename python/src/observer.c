/* SPDX-License-Identifier: Apache-2.0 */
#include "observer.h"
#include "args.h"
#include "errors.h"
#include "qos.h"
#include "wait.h"

static PyTypeObject *observer_type, *observed_type;

struct dlxpy_observer {
    struct dlxpy_handle handle;
    struct dlx_observed kept; /* for the next call, if `has_kept`: a signal's handler raised */
    bool has_kept;
};

static struct dlxpy_observer *cast(PyObject *self)
{
    return (struct dlxpy_observer *)self;
}

static void unref(void *o)
{
    dlx_observer_unref(o);
}

static const struct dlxpy_handle_kind kind = {
    &observer_type, sizeof(struct dlxpy_observer), "the observer", false, false,
    unref,          dlxpy_handle_wake_tasks};

PyObject *dlxpy_observer_new(struct dlx_observer *o, const char *topic)
{
    return (PyObject *)dlxpy_handle_new(&kind, o, topic);
}

/* ---- what is told -------------------------------------------------------------------------- */

static PyObject *make_names(const char *const *names, uint32_t n)
{
    PyObject *ret = PyTuple_New((Py_ssize_t)n);
    for (uint32_t i = 0; ret && i < n; i++) {
        PyObject *name = dlxpy_text(names[i]);
        if (!name || PyTuple_SetItem(ret, (Py_ssize_t)i, name) < 0)
            Py_CLEAR(ret);
    }
    return ret;
}

/* The fields of both come first, then 7 of a publisher, then 4 of a subscription. Others stay
 * None. */
enum { OF_PUBLISHER = 8, OF_SUBSCRIPTION = 15, N_FIELDS = 19 };

static void set_publisher(PyObject *ret, const struct dlx_observed *x)
{
    PyStructSequence_SetItem(ret, OF_PUBLISHER, PyBool_FromLong(x->retained));
    PyStructSequence_SetItem(ret, OF_PUBLISHER + 1, dlxpy_on_full(x->on_full));
    PyStructSequence_SetItem(ret, OF_PUBLISHER + 2, PyLong_FromUnsignedLong(x->depth));
    PyStructSequence_SetItem(ret, OF_PUBLISHER + 3, PyLong_FromUnsignedLong(x->history));
    PyStructSequence_SetItem(ret, OF_PUBLISHER + 4, PyLong_FromUnsignedLong(x->retain));
    PyStructSequence_SetItem(ret, OF_PUBLISHER + 5, dlxpy_retain_for(x->retain_for_ns));
    PyStructSequence_SetItem(ret, OF_PUBLISHER + 6, make_names(x->groups, x->n_groups));
}

static void set_subscription(PyObject *ret, const struct dlx_observed *x)
{
    PyStructSequence_SetItem(ret, OF_SUBSCRIPTION, PyBool_FromLong(x->mode == DLX_MODE_LATEST));
    PyStructSequence_SetItem(ret, OF_SUBSCRIPTION + 1, PyBool_FromLong(x->reliable));
    PyStructSequence_SetItem(ret, OF_SUBSCRIPTION + 2, PyBool_FromLong(x->accepts_unreliable));
    PyStructSequence_SetItem(ret, OF_SUBSCRIPTION + 3,
                             x->group[0] ? dlxpy_text(x->group) : Py_NewRef(Py_None));
}

static PyObject *make_observed(const struct dlx_observed *x)
{
    bool is_publisher = x->kind == DLX_OBSERVED_PUBLISHER;
    bool is_subscription = x->kind == DLX_OBSERVED_SUBSCRIPTION;
    PyObject *ret = PyStructSequence_New(observed_type);
    if (!ret)
        return NULL;
    PyStructSequence_SetItem(ret, 0,
                             PyUnicode_FromString(is_publisher      ? "publisher"
                                                  : is_subscription ? "subscription"
                                                                    : "all"));
    PyStructSequence_SetItem(ret, 1, PyBool_FromLong(x->gone));
    PyStructSequence_SetItem(ret, 2, PyBool_FromLong(x->own));
    PyStructSequence_SetItem(ret, 3, PyLong_FromUnsignedLongLong(x->id));
    PyStructSequence_SetItem(ret, 4, PyLong_FromUnsignedLong(x->pid));
    PyStructSequence_SetItem(ret, 5, PyLong_FromUnsignedLong(x->uid));
    PyStructSequence_SetItem(ret, 6, dlxpy_text(x->topic));
    PyStructSequence_SetItem(ret, 7, dlxpy_text(x->client_name));
    for (int i = OF_PUBLISHER; i < N_FIELDS; i++)
        if (i < OF_SUBSCRIPTION ? !is_publisher : !is_subscription)
            PyStructSequence_SetItem(ret, i, Py_NewRef(Py_None));
    if (is_publisher)
        set_publisher(ret, x);
    if (is_subscription)
        set_subscription(ret, x);
    if (PyErr_Occurred())
        Py_CLEAR(ret);
    return ret;
}

/* The next change; NULL with an exception. */
static PyObject *next_change(struct dlxpy_observer *self, int64_t timeout_ns)
{
    struct dlx_observed observed = {.size = sizeof observed};
    struct dlxpy_wait wait;
    PyObject *ret = NULL;
    if (dlxpy_handle_enter(&self->handle) < 0)
        return NULL;
    if (self->has_kept) {
        self->has_kept = false;
        ret = make_observed(&self->kept);
    } else {
        dlxpy_wait_begin(&wait, &self->handle, timeout_ns != 0);
        int r = dlx_observer_next(self->handle.of.observer, timeout_ns, &observed);
        if (dlxpy_wait_end(&wait, r) == 0) {
            ret = make_observed(&observed);
        } else if (r == 0) {
            self->kept = observed;
            self->has_kept = true;
        }
    }
    dlxpy_handle_leave(&self->handle);
    return ret;
}

PyDoc_STRVAR(next_doc,
             "next($self, /, timeout=None)\n"
             "--\n"
             "\n"
             "Returns what is there, or has changed, next: a dlx.Observed. What has changed\n"
             "several times since is told once, as it is now.\n"
             "\n"
             "timeout  seconds; 0 does not wait, None waits without a limit. Ctrl-C, and other\n"
             "         signals with handlers, interrupt the wait; other threads run during it\n"
             "\n"
             "Raises dlx.Timeout; dlx.AccessError, dlx.LimitError, dlx.DaemonError (a restarted\n"
             "daemon refuses this observer, which goes on trying); dlx.Closed.");
static PyObject *next_of(PyObject *self, PyObject *const *args, Py_ssize_t n_args,
                         PyObject *kwnames)
{
    static const char *const names[] = {"timeout"};
    static const struct dlxpy_params params = {"next", names, 1, 1, 0};
    PyObject *value[1];
    int64_t timeout_ns = DLX_FOREVER;
    if (dlxpy_parse(&params, args, n_args, kwnames, value) < 0 ||
        (value[0] && dlxpy_timeout(value[0], &timeout_ns) < 0))
        return NULL;
    return next_change(cast(self), timeout_ns);
}

/* A loop does not end by itself. */
static PyObject *iternext(PyObject *self)
{
    return next_change(cast(self), DLX_FOREVER);
}

PyDoc_STRVAR(fileno_doc,
             "fileno($self, /)\n"
             "--\n"
             "\n"
             "Returns a descriptor for select, selectors and asyncio, which is readable when\n"
             "next() may return a change. Rely on that only after next(0) raised dlx.Timeout.\n"
             "Never read, write or close it.");
static PyObject *get_fileno(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (dlxpy_handle_enter(&cast(self)->handle) < 0)
        return NULL;
    int fd = dlx_observer_fd(cast(self)->handle.of.observer);
    dlxpy_handle_leave(&cast(self)->handle);
    return fd < 0 ? dlxpy_raise(fd) : PyLong_FromLong(fd);
}

PyDoc_STRVAR(close_doc, "close($self, /)\n"
                        "--\n"
                        "\n"
                        "Closes the observer. A next() of another thread, or a task that waits,\n"
                        "ends with dlx.Closed.");

/* ---- types --------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"__enter__", dlxpy_handle_enter_context, METH_NOARGS, NULL},
    {"__exit__", dlxpy_handle_close, METH_VARARGS, NULL},
    {"next", (PyCFunction)(void (*)(void))next_of, METH_FASTCALL | METH_KEYWORDS, next_doc},
    {"fileno", get_fileno, METH_NOARGS, fileno_doc},
    {"close", dlxpy_handle_close, METH_NOARGS, close_doc},
    {0},
};

static PyGetSetDef getset[] = {
    {"topic", dlxpy_handle_topic, NULL, "The topic or pattern.", NULL},
    {"closed", dlxpy_handle_is_closed, NULL, "True if closed.", NULL},
    {0},
};

PyDoc_STRVAR(doc,
             "Tells which publishers and subscriptions there are, and which come and go. Made by\n"
             "Connection.observe(). `for change in o` and `async for change in o` do not end by\n"
             "themselves. One thread at a time may use it.");
static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)doc},
    {Py_tp_dealloc, (void *)dlxpy_handle_dealloc},
    {Py_tp_repr, (void *)dlxpy_handle_repr},
    {Py_tp_iter, (void *)PyObject_SelfIter},
    {Py_tp_iternext, (void *)iternext},
    {Py_am_aiter, (void *)PyObject_SelfIter},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {0, NULL},
};
static PyType_Spec spec = {"dlx.Observer", sizeof(struct dlxpy_observer), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

static PyStructSequence_Field fields[] = {
    {"kind", "\"publisher\", \"subscription\", or \"all\": all that is there was told"},
    {"gone", "True if it is gone; all else is as it was told before"},
    {"own", "True if it was made with the connection of this observer"},
    {"id", "of the publisher, as msg.publisher; or of the subscription"},
    {"pid", "of its process, as the daemon sees it; 0: unknown"},
    {"uid", "of its process"},
    {"topic", "its topic; of a subscription also a pattern"},
    {"client_name", "of its program, as in `dlxctl ls`"},
    {"retained", "of a publisher: it is gone, and the daemon keeps its messages"},
    {"on_full", "of a publisher: \"drop\" or \"block\""},
    {"depth", "of a publisher, as in publisher()"},
    {"history", "likewise"},
    {"retain", "likewise"},
    {"retain_for", "likewise; None also: without a limit"},
    {"groups", "likewise: a tuple of names"},
    {"latest", "of a subscription, as in subscribe()"},
    {"reliable", "likewise"},
    {"accepts_unreliable", "likewise"},
    {"group", "likewise; None also: none"},
    {NULL, NULL},
};
static PyStructSequence_Desc desc = {
    "dlx.Observed",
    "The present state of a publisher or a subscription. What is of the other one is None.", fields,
    N_FIELDS};

int dlxpy_add_observer(PyObject *module)
{
    observed_type = dlxpy_add_record(module, &desc);
    observer_type = observed_type ? dlxpy_add_type(module, &spec, NULL) : NULL;
    return observer_type ? 0 : -1;
}
