/* SPDX-License-Identifier: Apache-2.0 */
#include "connection.h"
#include "errors.h"
#include "message.h"
#include "publisher.h"
#include "subscription.h"
#include "wait.h"
#include <string.h>

PyTypeObject *dlxpy_connection_type;

/* That a publisher may declare: as DLX_SHM_GROUPS_MAX. */
#define GROUPS_MAX 16

static struct dlxpy_handle *cast(PyObject *self)
{
    return (struct dlxpy_handle *)self;
}

static void unref(void *c)
{
    dlx_client_unref(c);
}

static const struct dlxpy_handle_kind kind = {&dlxpy_connection_type,
                                              sizeof(struct dlxpy_handle),
                                              "the connection",
                                              true,
                                              false,
                                              unref,
                                              NULL};

struct dlx_client *dlxpy_connection_enter(PyObject *self, struct dlxpy_wait *wait)
{
    if (dlxpy_handle_enter(cast(self)) < 0)
        return NULL;
    dlxpy_wait_begin(wait, cast(self), true);
    return cast(self)->of.client;
}

int dlxpy_connection_leave(PyObject *self, struct dlxpy_wait *wait, int r)
{
    int ret = dlxpy_wait_end(wait, r);
    dlxpy_handle_leave(cast(self));
    return ret;
}

/* ---- connect ------------------------------------------------------------------------------- */

int dlxpy_connection_check_number(const char *function, Py_ssize_t n_args, Py_ssize_t least,
                                  Py_ssize_t most)
{
    if (n_args >= least && n_args <= most)
        return 0;
    PyErr_Format(PyExc_TypeError, "%s() of %zd arguments", function, n_args);
    return -1;
}

/* 0 is the default of libdlx, and no answer comes at once. A call with a time also waits for a
 * daemon to come. */
static int parse_timeout(PyObject *object, struct dlx_connect_args *args)
{
    if (object == Py_None)
        return 0;
    if (dlxpy_timeout(object, &args->timeout_ns) < 0)
        return -1;
    args->wait_ns = args->timeout_ns;
    if (args->timeout_ns != 0)
        return 0;
    PyErr_SetString(PyExc_ValueError,
                    "the timeout of a connection is more than 0 seconds, or None for 5: "
                    "every answer of the daemon takes time");
    return -1;
}

/* Takes `c` over. */
static PyObject *connection_new(struct dlx_client *c)
{
    const char *refused_by = dlx_client_refused_by(c);
    if (*refused_by && PyErr_WarnFormat(PyExc_RuntimeWarning, 2,
                                        "this program does not see the topics of a dlpackd that "
                                        "refused it: %s",
                                        refused_by) < 0) {
        dlx_client_unref(c);
        return NULL;
    }
    return (PyObject *)dlxpy_handle_new(&kind, c, NULL);
}

PyDoc_STRVAR(connect_doc, "_connect($module, socket, name, timeout, autospawn, /)\n"
                          "--\n"
                          "\n");
static PyObject *connect_it(PyObject *module, PyObject *const *args, Py_ssize_t n_args)
{
    struct dlx_connect_args connect_args = {.size = sizeof connect_args,
                                            .interrupt = dlxpy_wait_interrupt};
    PyObject *socket = NULL, *name = NULL, *ret = NULL;
    bool autospawn = true;
    (void)module;
    if (dlxpy_connection_check_number("_connect", n_args, 4, 4) < 0 ||
        dlxpy_flag(args[3], &autospawn) < 0 || parse_timeout(args[2], &connect_args) < 0)
        return NULL;
    connect_args.autospawn = autospawn ? DLX_AUTOSPAWN_DEFAULT : DLX_AUTOSPAWN_NEVER;
    if (dlxpy_text_of(args[0], &socket, &connect_args.socket) == 0 &&
        dlxpy_text_of(args[1], &name, &connect_args.name) == 0) {
        struct dlx_client *c = NULL;
        struct dlxpy_wait wait;
        dlxpy_wait_begin(&wait, NULL, true);
        int r = dlx_connect(&connect_args, &c);
        if (dlxpy_wait_end(&wait, r) == 0)
            ret = connection_new(c);
        else
            dlx_client_unref(c);
    }
    Py_XDECREF(socket);
    Py_XDECREF(name);
    return ret;
}

/* ---- for dlx/_connection.py: every argument is given, by position -------------------------- */

/* How long messages stay when their publisher has gone. */
static int parse_retain_for(PyObject *object, int64_t *ret)
{
    if (object == Py_None) /* of libdlx, 0: without a limit */
        return 0;
    if (dlxpy_timeout(object, ret) < 0)
        return -1;
    if (*ret == DLX_FOREVER)
        *ret = 0;
    else if (*ret == 0)
        PyErr_SetString(PyExc_ValueError,
                        "retain_for is more than 0 seconds: give \"latched\" for messages that do "
                        "not stay when the publisher has gone, None for no limit");
    return PyErr_Occurred() ? -1 : 0;
}

static void unref_publisher(void *p)
{
    dlx_publisher_unref(p);
}

PyDoc_STRVAR(publisher_doc, "_publisher($self, topic, history, blocks, depth, retain, latched, "
                            "retain_for, timeout, max_held, max_held_bytes, require, groups, /)\n"
                            "--\n"
                            "\n");
/* A name that is borrowed from `object`; NULL for None. Returns 0, or -1 with an exception. */
static int parse_name(PyObject *object, const char **ret)
{
    Py_ssize_t size = 0;
    *ret = NULL;
    if (object == Py_None)
        return 0;
    *ret = PyUnicode_AsUTF8AndSize(object, &size);
    if (*ret && strlen(*ret) != (size_t)size)
        PyErr_Format(PyExc_ValueError, "a name with a NUL: %R", object);
    return PyErr_Occurred() ? -1 : 0;
}

/* The names of `groups`, a tuple of str. Returns 0, or -1 with an exception. */
static int parse_groups(PyObject *groups, const char *names[GROUPS_MAX],
                        struct dlx_publisher_args *ret)
{
    Py_ssize_t n = PyTuple_Size(groups);
    if (n > GROUPS_MAX)
        PyErr_Format(PyExc_ValueError, "%zd groups: at most %d are possible", n, GROUPS_MAX);
    for (Py_ssize_t i = 0; i < n && !PyErr_Occurred(); i++)
        (void)parse_name(PyTuple_GetItem(groups, i), &names[i]);
    if (PyErr_Occurred())
        return -1;
    ret->groups = n > 0 ? names : NULL;
    ret->n_groups = (uint32_t)n;
    return 0;
}

static PyObject *publisher(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    struct dlx_publisher_args pub = {.size = sizeof pub};
    const char *groups[GROUPS_MAX];
    PyObject *keep;
    const char *topic;
    int64_t timeout_ns;
    bool blocks = false, latched = false;
    if (dlxpy_connection_check_number("_publisher", n_args, 12, 12) < 0 ||
        dlxpy_uint32(args[1], "history", UINT32_MAX, &pub.history) < 0 ||
        dlxpy_flag(args[2], &blocks) < 0 ||
        dlxpy_uint32(args[3], "depth", UINT32_MAX, &pub.depth) < 0 ||
        dlxpy_uint32(args[4], "retain", UINT32_MAX, &pub.retain) < 0 ||
        dlxpy_flag(args[5], &latched) < 0 || parse_retain_for(args[6], &pub.retain_for_ns) < 0 ||
        dlxpy_timeout(args[7], &timeout_ns) < 0 ||
        dlxpy_uint32(args[8], "max_held", UINT32_MAX, &pub.max_held) < 0 ||
        dlxpy_uint64(args[9], "max_held_bytes", &pub.max_held_bytes) < 0 ||
        dlxpy_uint32(args[10], "require", UINT32_MAX, &pub.min_subscribers) < 0 ||
        parse_groups(args[11], groups, &pub) < 0 || dlxpy_topic_of(args[0], &keep, &topic) < 0)
        return NULL;
    pub.on_full = blocks ? DLX_ON_FULL_BLOCK : DLX_ON_FULL_DROP;
    if (latched)
        pub.retain_for_ns = DLX_RETAIN_LATCHED;
    struct dlx_publisher *p = NULL;
    struct dlxpy_wait wait;
    struct dlx_client *c = dlxpy_connection_enter(self, &wait);
    PyObject *ret = NULL;
    if (c && dlxpy_connection_leave(self, &wait, dlx_publisher_new(c, topic, &pub, &p)) == 0)
        ret = dlxpy_publisher_new(p, topic, blocks || pub.min_subscribers > 0, timeout_ns);
    else if (p)
        dlxpy_wait_unref(unref_publisher, p);
    Py_XDECREF(keep);
    return ret;
}

/* What a worker of a group has more: group, lease, max_attempts and dead_letters. */
static int parse_worker(PyObject *const args[4], struct dlx_subscribe_args *ret)
{
    if (parse_name(args[0], &ret->group) < 0 || parse_name(args[3], &ret->dead_letters) < 0 ||
        (args[2] != Py_None &&
         dlxpy_uint32(args[2], "max_attempts", UINT32_MAX, &ret->max_attempts) < 0))
        return -1;
    if (args[2] != Py_None && ret->max_attempts == 0) {
        PyErr_SetString(PyExc_ValueError, "max_attempts is 1 or more, or None for 5");
        return -1;
    }
    if (args[1] == Py_None)
        return 0;
    if (dlxpy_timeout(args[1], &ret->lease_ns) < 0)
        return -1;
    if (ret->lease_ns == 0)
        PyErr_SetString(PyExc_ValueError, "lease is more than 0 seconds, or None for no lease");
    return PyErr_Occurred() ? -1 : 0;
}

/* None: the loop goes on when publishers leave. */
static int parse_publishers(PyObject *object, uint32_t *ret)
{
    *ret = DLX_PUBLISHERS_ANY;
    if (object == Py_None)
        return 0;
    if (dlxpy_uint32(object, "publishers", DLX_PUBLISHERS_ANY - 1, ret) < 0)
        return -1;
    if (*ret > 0)
        return 0;
    PyErr_SetString(PyExc_ValueError, "publishers is 1 or more");
    return -1;
}

int dlxpy_connection_parse_spin(PyObject *object, int64_t *ret)
{
    if (dlxpy_timeout(object, ret) < 0)
        return -1;
    if (*ret <= 0)
        *ret = *ret == 0 ? DLX_SPIN_NEVER : DLX_SPIN_ALWAYS;
    return 0;
}

/* None: the default. */
static int parse_stream_timeout(PyObject *object, int64_t *ret)
{
    *ret = 0;
    if (object == Py_None)
        return 0;
    if (dlxpy_timeout(object, ret) < 0)
        return -1;
    if (*ret != 0)
        return 0;
    PyErr_SetString(PyExc_ValueError,
                    "stream_timeout is more than 0 seconds: give float(\"inf\") for "
                    "no limit, None for the default");
    return -1;
}

PyDoc_STRVAR(subscribe_doc, "_subscribe($self, topic, latest, history, reliable, max_held, "
                            "timeout, publishers, pin, stream_timeout, kernels_loaded, private, "
                            "device, group, lease, max_attempts, dead_letters, "
                            "accepts_unreliable, spin=..., /)\n"
                            "--\n"
                            "\n");
static PyObject *subscribe(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    struct dlx_subscribe_args sub = {.size = sizeof sub, .history = DLX_HISTORY_NONE};
    PyObject *keep;
    const char *topic;
    int64_t timeout_ns;
    bool latest = false, is_private = false;
    if (dlxpy_connection_check_number("_subscribe", n_args, 17, 18) < 0 ||
        dlxpy_flag(args[1], &latest) < 0 ||
        (args[2] != Py_None &&
         dlxpy_uint32(args[2], "history", UINT32_MAX - 1, &sub.history) < 0) ||
        dlxpy_flag(args[3], &sub.reliable) < 0 ||
        dlxpy_uint32(args[4], "max_held", UINT32_MAX, &sub.max_held) < 0 ||
        dlxpy_timeout(args[5], &timeout_ns) < 0 ||
        parse_publishers(args[6], &sub.n_publishers) < 0 ||
        dlxpy_gpu_device(args[7], "pin", &sub.pin) < 0 ||
        parse_stream_timeout(args[8], &sub.stream_timeout_ns) < 0 ||
        dlxpy_flag(args[9], &sub.kernels_loaded) < 0 || dlxpy_flag(args[10], &is_private) < 0 ||
        dlxpy_gpu_device(args[11], "device", &sub.device) < 0 ||
        parse_worker(args + 12, &sub) < 0 || dlxpy_flag(args[16], &sub.accepts_unreliable) < 0 ||
        (n_args > 17 && dlxpy_connection_parse_spin(args[17], &sub.spin_ns) < 0) ||
        dlxpy_topic_of(args[0], &keep, &topic) < 0)
        return NULL;
    sub.mode = latest ? DLX_MODE_LATEST : DLX_MODE_ALL;
    struct dlx_subscription *s = NULL;
    struct dlxpy_wait wait;
    struct dlx_client *c = dlxpy_connection_enter(self, &wait);
    PyObject *ret = NULL;
    if (c && dlxpy_connection_leave(self, &wait, dlx_subscribe(c, topic, &sub, &s)) == 0)
        ret = dlxpy_subscription_new(s, topic, timeout_ns,
                                     is_private                 ? DLXPY_PRIVATE
                                     : sub.pin.device_type != 0 ? DLXPY_PINNED
                                                                : DLXPY_SHARED,
                                     sub.n_publishers != DLX_PUBLISHERS_ANY);
    else
        dlx_subscription_unref(s);
    Py_XDECREF(keep);
    return ret;
}

PyDoc_STRVAR(get_doc, "_get($self, topic, timeout, stream, /)\n"
                      "--\n"
                      "\n");
static PyObject *get(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    struct dlxpy_stream stream;
    PyObject *keep;
    int64_t timeout_ns;
    const char *topic;
    if (dlxpy_connection_check_number("_get", n_args, 3, 3) < 0 ||
        dlxpy_timeout(args[1], &timeout_ns) < 0 || dlxpy_stream_parse(args[2], &stream) < 0 ||
        dlxpy_topic_of(args[0], &keep, &topic) < 0)
        return NULL;
    struct dlx_message *m = NULL;
    struct dlxpy_wait wait;
    struct dlx_client *c = dlxpy_connection_enter(self, &wait);
    PyObject *ret = NULL;
    if (c && dlxpy_connection_leave(self, &wait, dlx_get(c, topic, timeout_ns, &m)) == 0)
        ret = dlxpy_message_new(m, &stream, DLXPY_SHARED);
    else
        dlx_message_unref(m);
    Py_XDECREF(keep);
    return ret;
}

/* dlx_drop_retained() and dlx_drop_queue(). */
static PyObject *drop(PyObject *self, PyObject *object,
                      int (*call)(struct dlx_client *c, const char *topic))
{
    PyObject *keep;
    const char *topic;
    if (dlxpy_topic_of(object, &keep, &topic) < 0)
        return NULL;
    struct dlxpy_wait wait;
    struct dlx_client *c = dlxpy_connection_enter(self, &wait);
    int r = c ? dlxpy_connection_leave(self, &wait, call(c, topic)) : -1;
    Py_XDECREF(keep);
    if (r < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(drop_retained_doc,
             "drop_retained($self, topic, /)\n"
             "--\n"
             "\n"
             "Removes messages that are retained for departed publishers of a topic. Messages\n"
             "already held stay valid. Raises dlx.NotFound, dlx.AccessError, dlx.InvalidError,\n"
             "dlx.DaemonError.");
static PyObject *drop_retained(PyObject *self, PyObject *object)
{
    return drop(self, object, dlx_drop_retained);
}

PyDoc_STRVAR(drop_queue_doc,
             "drop_queue($self, topic, /)\n"
             "--\n"
             "\n"
             "Removes what groups of departed publishers of a topic (`groups` of publisher())\n"
             "have not done. What workers have stays valid. Raises as drop_retained().");
static PyObject *drop_queue(PyObject *self, PyObject *object)
{
    return drop(self, object, dlx_drop_queue);
}

/* ---- the rest ------------------------------------------------------------------------------ */

PyDoc_STRVAR(close_doc,
             "close($self, /)\n"
             "--\n"
             "\n"
             "Closes the connection. Publishers, subscriptions and messages made with it stay\n"
             "valid.");
static PyMethodDef methods[] = {
    {"__enter__", dlxpy_handle_enter_context, METH_NOARGS, NULL},
    {"__exit__", dlxpy_handle_close, METH_VARARGS, NULL},
    {"_publisher", (PyCFunction)(void (*)(void))publisher, METH_FASTCALL, publisher_doc},
    {"_subscribe", (PyCFunction)(void (*)(void))subscribe, METH_FASTCALL, subscribe_doc},
    {"_caller", (PyCFunction)(void (*)(void))dlxpy_connection_caller, METH_FASTCALL,
     dlxpy_connection_caller_doc},
    {"_serve", (PyCFunction)(void (*)(void))dlxpy_connection_serve, METH_FASTCALL,
     dlxpy_connection_serve_doc},
    {"_observe", (PyCFunction)(void (*)(void))dlxpy_connection_observe, METH_FASTCALL,
     dlxpy_connection_observe_doc},
    {"_get", (PyCFunction)(void (*)(void))get, METH_FASTCALL, get_doc},
    {"drop_retained", drop_retained, METH_O, drop_retained_doc},
    {"drop_queue", drop_queue, METH_O, drop_queue_doc},
    {"groups", dlxpy_connection_groups, METH_VARARGS, dlxpy_groups_doc},
    {"claims", dlxpy_connection_claims, METH_VARARGS, dlxpy_claims_doc},
    {"publishers", dlxpy_connection_publishers, METH_VARARGS, dlxpy_publishers_doc},
    {"links", dlxpy_connection_links, METH_O, dlxpy_links_doc},
    {"daemon", dlxpy_connection_daemon, METH_NOARGS, dlxpy_daemon_doc},
    {"close", dlxpy_handle_close, METH_NOARGS, close_doc},
    {0},
};

static PyGetSetDef getset[] = {
    {"closed", dlxpy_handle_is_closed, NULL, "True if closed.", NULL},
    {0},
};

PyDoc_STRVAR(doc,
             "A connection to dlpackd, made by dlx.connect(). Any number of threads may use it.");
static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)doc},
    {Py_tp_dealloc, (void *)dlxpy_handle_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {0, NULL},
};
static PyType_Spec spec = {"dlx.Connection", sizeof(struct dlxpy_handle), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

static PyMethodDef functions[] = {
    {"_connect", (PyCFunction)(void (*)(void))connect_it, METH_FASTCALL, connect_doc},
    {0},
};

int dlxpy_add_connection(PyObject *module)
{
    dlxpy_connection_type = dlxpy_add_type(module, &spec, NULL);
    return dlxpy_connection_type ? PyModule_AddFunctions(module, functions) : -1;
}
