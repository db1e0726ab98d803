/* SPDX-License-Identifier: Apache-2.0 */
#include "connection.h"
#include "errors.h"
#include "message.h"
#include "publisher.h"
#include "subscription.h"
#include "wait.h"
#include <string.h>

PyTypeObject *dlxpy_connection_type;

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

/* 0 is the default of libdlx, and no answer comes at once. Who gives a time also waits for a daemon that is not there. */
static int parse_timeout(PyObject *object, struct dlx_connect_args *args)
{
    if (!object || object == Py_None)
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
    const char *passed_over = dlx_client_passed_over(c);
    if (*passed_over && PyErr_WarnFormat(PyExc_RuntimeWarning, 1,
                                         "this program does not see the topics of a dlpackd that "
                                         "refused it: %s",
                                         passed_over) < 0) {
        dlx_client_unref(c);
        return NULL;
    }
    return (PyObject *)dlxpy_handle_new(&kind, c, NULL);
}

static PyObject *connect_with(const struct dlx_connect_args *args)
{
    struct dlx_client *c = NULL;
    struct dlxpy_wait wait;
    dlxpy_wait_begin(&wait, NULL, true);
    int r = dlx_connect(&c, args);
    if (dlxpy_wait_end(&wait, r) == 0)
        return connection_new(c);
    dlx_client_unref(c);
    if (args->socket && *args->socket != '/' && *args->socket != '.' &&
        PyErr_ExceptionMatches(PyExc_ConnectionError))
        dlxpy_add_note("connect() takes the path of a daemon's socket, or nothing: topics are "
                       "named in publisher(), subscribe() and get()");
    return NULL;
}

PyDoc_STRVAR(
    connect_doc,
    "connect($module, /, socket=None, *, name=None, timeout=None, autospawn=True)\n--\n\n"
    "Connect to dlpackd; where nobody named one and none answers, start a private one for "
    "this user, which ends\n"
    "when nobody has been connected for 10 seconds.\n\n"
    "socket     path of the daemon's socket; None: $DLX_SOCKET, else the usual places\n"
    "name       of this program, for `dlxctl ls`, at most 63 bytes\n"
    "timeout    seconds that this and later calls wait for the daemon's answer, more than 0; None: "
    "5. If it is\n"
    "           given, this call also waits so long for a daemon that is not there yet, unless it "
    "starts one\n"
    "autospawn  False: never start a daemon (as DLX_AUTOSPAWN=no)\n\n"
    "Ctrl-C interrupts it. Raises dlx.DaemonError (none there, none came in time, none could be "
    "started),\n"
    "dlx.Timeout (no answer), dlx.AccessError, dlx.LimitError.");
static PyObject *connect_it(PyObject *module, PyObject *const *args, Py_ssize_t n_args,
                            PyObject *kwnames)
{
    static const char *const names[] = {"socket", "name", "timeout", "autospawn"};
    static const struct dlxpy_params params = {"connect", names, 4, 1, 0};
    struct dlx_connect_args connect_args = {.size = sizeof connect_args,
                                            .interrupt = dlxpy_wait_interrupt};
    PyObject *value[4], *socket, *name = NULL, *ret = NULL;
    bool autospawn = true;
    (void)module;
    if (dlxpy_parse(&params, args, n_args, kwnames, value) < 0 ||
        dlxpy_flag(value[3], &autospawn) < 0 || parse_timeout(value[2], &connect_args) < 0)
        return NULL;
    connect_args.autospawn = autospawn ? DLX_AUTOSPAWN_DEFAULT : DLX_AUTOSPAWN_NEVER;
    if (dlxpy_text_of(value[0], &socket, &connect_args.socket) == 0 &&
        dlxpy_text_of(value[1], &name, &connect_args.name) == 0)
        ret = connect_with(&connect_args);
    Py_XDECREF(socket);
    Py_XDECREF(name);
    return ret;
}

/* ---- publisher ----------------------------------------------------------------------------- */

static int parse_on_full(PyObject *object, uint32_t *ret)
{
    if (!object)
        return 0;
    bool drops = PyUnicode_Check(object) && PyUnicode_CompareWithASCIIString(object, "drop") == 0;
    if (drops ||
        (PyUnicode_Check(object) && PyUnicode_CompareWithASCIIString(object, "block") == 0)) {
        *ret = drops ? DLX_ON_FULL_DROP : DLX_ON_FULL_BLOCK;
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "on_full is \"drop\" or \"block\", not %R", object);
    return -1;
}

static int parse_retain_for(PyObject *object, int64_t *ret)
{
    if (!object || object == Py_None)
        return 0;
    if (!PyUnicode_Check(object)) {
        if (dlxpy_timeout(object, ret) < 0)
            return -1;
        if (*ret == DLX_FOREVER)
            *ret = 0; /* of libdlx: without a limit */
        else if (*ret == 0)
            PyErr_SetString(
                PyExc_ValueError,
                "retain_for is more than 0 seconds: give \"latched\" for messages that do "
                "not stay when the publisher has gone, None for no limit");
        return PyErr_Occurred() ? -1 : 0;
    }
    if (PyUnicode_CompareWithASCIIString(object, "latched") == 0) {
        *ret = DLX_RETAIN_LATCHED;
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "retain_for is a number of seconds, None or \"latched\", not %R",
                 object);
    return -1;
}

PyDoc_STRVAR(
    publisher_doc,
    "publisher($self, /, topic, *, history=0, on_full=\"drop\", depth=16, retain=0, "
    "retain_for=None, "
    "timeout=None, max_held=0, max_held_bytes=0, require=0)\n--\n\n"
    "Announce a dlx.Publisher on a topic: segments of [A-Za-z0-9_.-], separated by '/'.\n\n"
    "history     newest messages that stay readable for subscriptions that ask for a history, to "
    "1024; 0: the\n"
    "            larger of 1 and `retain`\n"
    "on_full     \"drop\" a message that is `depth` behind the newest, or \"block\" until reliable "
    "subscribers\n"
    "            have taken it\n"
    "depth       how far a subscriber may be behind, in messages of any size, 1 to 4096\n"
    "retain      newest messages (at most `history`) that late subscribers and get() find, also "
    "when the\n"
    "            publisher has gone\n"
    "retain_for  seconds that they stay then, more than 0; None: without a limit; \"latched\": not "
    "at all\n"
    "timeout     seconds that publish() waits for subscribers, with on_full=\"block\" or "
    "`require`; None: no limit\n"
    "max_held    messages that one subscriber may hold at once, to 4096; 0: as many as it asks "
    "for\n"
    "max_held_bytes  bytes that it may hold at once; 0: any number\n"
    "require     subscribers that must be attached: publish() waits for them, and raises "
    "dlx.Timeout if they do not\n"
    "            come in time; 0: a message may reach nobody, which Report.subscribers says\n\n"
    "Raises dlx.InvalidError, dlx.AccessError, dlx.LimitError, dlx.NoMemory, dlx.DaemonError.");
static void unref_publisher(void *p)
{
    dlx_publisher_unref(p);
}

static PyObject *publisher(PyObject *self, PyObject *const *args, Py_ssize_t n_args,
                           PyObject *kwnames)
{
    static const char *const names[] = {"topic",          "history",    "on_full", "depth",
                                        "retain",         "retain_for", "timeout", "max_held",
                                        "max_held_bytes", "require"};
    static const struct dlxpy_params params = {"publisher", names, 10, 1, 1};
    struct dlx_publisher_args pub = {.size = sizeof pub};
    PyObject *value[10], *keep;
    const char *topic;
    int64_t timeout_ns = DLX_FOREVER;
    if (dlxpy_parse(&params, args, n_args, kwnames, value) < 0 ||
        dlxpy_uint32(value[1], "history", UINT32_MAX, &pub.history) < 0 ||
        parse_on_full(value[2], &pub.on_full) < 0 ||
        dlxpy_uint32(value[3], "depth", UINT32_MAX, &pub.depth) < 0 ||
        dlxpy_uint32(value[4], "retain", UINT32_MAX, &pub.retain) < 0 ||
        parse_retain_for(value[5], &pub.retain_for_ns) < 0 ||
        (value[6] && dlxpy_timeout(value[6], &timeout_ns) < 0) ||
        dlxpy_uint32(value[7], "max_held", UINT32_MAX, &pub.max_held) < 0 ||
        dlxpy_uint64(value[8], "max_held_bytes", &pub.max_held_bytes) < 0 ||
        dlxpy_uint32(value[9], "require", UINT32_MAX, &pub.min_subscribers) < 0 ||
        dlxpy_topic_of(value[0], &keep, &topic) < 0)
        return NULL;
    bool waits = pub.on_full == DLX_ON_FULL_BLOCK || pub.min_subscribers > 0;
    struct dlx_publisher *p = NULL;
    struct dlxpy_wait wait;
    struct dlx_client *c = dlxpy_connection_enter(self, &wait);
    PyObject *ret = NULL;
    if (c && dlxpy_connection_leave(self, &wait, dlx_publisher_new(c, topic, &pub, &p)) == 0)
        ret = dlxpy_publisher_new(p, topic, waits, timeout_ns);
    else if (p)
        dlxpy_wait_unref(unref_publisher, p);
    Py_XDECREF(keep);
    return ret;
}

/* ---- subscription -------------------------------------------------------------------------- */

/* None: from now on, whatever is retained. */
static int parse_history(PyObject *object, uint32_t *ret)
{
    if (object == Py_None) {
        *ret = DLX_HISTORY_NONE;
        return 0;
    }
    return dlxpy_uint32(object, "history", UINT32_MAX - 1, ret);
}

/* How many publishers a loop is for. `stay` and `publishers` may be NULL or None. */
static int parse_publishers(PyObject *stay, PyObject *publishers, const char *topic, uint32_t *ret)
{
    bool stays = strchr(topic, '*') != NULL;
    if (publishers && publishers != Py_None) {
        if (stay && stay != Py_None) {
            PyErr_SetString(PyExc_ValueError,
                            "stay and publishers exclude each other: a loop for a number of "
                            "publishers ends when they have left");
            return -1;
        }
        if (dlxpy_uint32(publishers, "publishers", DLX_PUBLISHERS_ANY - 1, ret) < 0)
            return -1;
        if (*ret == 0)
            PyErr_SetString(PyExc_ValueError, "publishers is 1 or more");
        return *ret == 0 ? -1 : 0;
    }
    if (stay && stay != Py_None && dlxpy_flag(stay, &stays) < 0)
        return -1;
    *ret = stays ? DLX_PUBLISHERS_ANY : 1;
    return 0;
}

/* Seconds, of which 0 is "never" and what has no end "always"; None for the default, which is 0 to libdlx. */
static int parse_spin(PyObject *object, int64_t *ret)
{
    if (!object || object == Py_None)
        return 0;
    if (!PyUnicode_Check(object)) {
        if (dlxpy_timeout(object, ret) < 0)
            return -1;
        if (*ret <= 0)
            *ret = *ret == 0 ? DLX_SPIN_NEVER : DLX_SPIN_ALWAYS;
        return 0;
    }
    bool never = PyUnicode_CompareWithASCIIString(object, "never") == 0;
    if (never || PyUnicode_CompareWithASCIIString(object, "always") == 0) {
        *ret = never ? DLX_SPIN_NEVER : DLX_SPIN_ALWAYS;
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "spin is a number of seconds, \"never\" or \"always\", not %R",
                 object);
    return -1;
}

PyDoc_STRVAR(
    subscribe_doc,
    "subscribe($self, /, topic, *, latest=False, history=0, reliable=False, max_held=16, "
    "timeout=None, "
    "stay=None,\n"
    "          publishers=None, spin=None, pin=None, private=False)\n--\n\n"
    "A dlx.Subscription of a topic, or of all that match a pattern, now and later: '*' stands for "
    "any characters\n"
    "of its segment (\"cam/*\"), a last segment of \"**\" for one segment or more. It is attached "
    "to every\n"
    "publisher that is there when this returns.\n\n"
    "latest    only ever the newest message; what is passed over is counted\n"
    "history   begin with up to this many that were published before; None: not even with what is "
    "retained\n"
    "reliable  the publisher (on_full=\"block\") waits for this subscription\n"
    "max_held  messages held at once at most, 1 to 4096\n"
    "timeout   seconds that take() and loops wait for a message (dlx.Timeout); None: no limit\n"
    "stay      True: loops and take() wait for the next publisher when the last one has left; "
    "False: loops end\n"
    "          there, and take() raises dlx.PublisherGone; None: True for a pattern, else False\n"
    "publishers  end when at least this many have left, instead of one: a loop over the results of "
    "N workers\n"
    "          that come and go when they like; not with `stay`\n"
    "spin      seconds of busy waiting at most before sleeping; \"never\" (or 0), \"always\"; "
    "None: adaptive\n"
    "pin       a GPU (\"cuda:0\") that copies by itself from what publishers have in memory of the "
    "CPU: keep a\n"
    "          tensor until a copy that was queued is done (docs/GPU.md); None: no GPU\n"
    "private   tensors may be written to, as those of msg.private(): what is written is seen by "
    "nobody else, not\n"
    "          even by another msg[key]. From 256 KiB on pages are copied when they are written "
    "to, a smaller\n"
    "          tensor at once; dlx.DeviceError for a tensor on a GPU\n\n"
    "Raises dlx.InvalidError (the topic; reliable, of a publisher that drops), dlx.AccessError, "
    "dlx.LimitError,\n"
    "dlx.DaemonError, dlx.DeviceError (pin: no such GPU), dlx.Timeout.");
static PyObject *subscribe(PyObject *self, PyObject *const *args, Py_ssize_t n_args,
                           PyObject *kwnames)
{
    static const char *const names[] = {"topic",    "latest",  "history", "reliable",
                                        "max_held", "timeout", "stay",    "publishers",
                                        "spin",     "pin",     "private"};
    static const struct dlxpy_params params = {"subscribe", names, 11, 1, 1};
    struct dlx_subscribe_args sub = {.size = sizeof sub};
    PyObject *value[11], *keep;
    const char *topic;
    int64_t timeout_ns = DLX_FOREVER;
    bool latest = false, is_private = false;
    if (dlxpy_parse(&params, args, n_args, kwnames, value) < 0 ||
        dlxpy_flag(value[1], &latest) < 0 || parse_history(value[2], &sub.history) < 0 ||
        dlxpy_flag(value[3], &sub.reliable) < 0 ||
        dlxpy_uint32(value[4], "max_held", UINT32_MAX, &sub.max_held) < 0 ||
        (value[5] && dlxpy_timeout(value[5], &timeout_ns) < 0) ||
        parse_spin(value[8], &sub.spin_ns) < 0 || dlxpy_gpu_device(value[9], "pin", &sub.pin) < 0 ||
        dlxpy_flag(value[10], &is_private) < 0 || dlxpy_topic_of(value[0], &keep, &topic) < 0)
        return NULL;
    if (parse_publishers(value[6], value[7], topic, &sub.n_publishers) < 0) {
        Py_XDECREF(keep);
        return NULL;
    }
    sub.mode = latest ? DLX_MODE_LATEST : DLX_MODE_ALL;
    struct dlx_subscription *s = NULL;
    struct dlxpy_wait wait;
    struct dlx_client *c = dlxpy_connection_enter(self, &wait);
    PyObject *ret = NULL;
    if (c && dlxpy_connection_leave(self, &wait, dlx_subscribe(c, topic, &sub, &s)) == 0)
        ret = dlxpy_subscription_new(s, topic, timeout_ns, is_private);
    else
        dlx_subscription_unref(s);
    Py_XDECREF(keep);
    return ret;
}

/* ---- retained ------------------------------------------------------------------------------ */

PyDoc_STRVAR(get_doc,
             "get($self, /, topic, timeout=0, *, stream=None)\n--\n\n"
             "The newest message of a topic, of all its publishers and of what is retained, whole "
             "or not at all. timeout:\n"
             "seconds to wait for the first one, None without a limit; 0, or left out: what is "
             "there now. stream: as take().\n"
             "Raises dlx.Timeout, and what subscribe() and take() raise.");

/* Who did not say whether to wait may have wanted to. */
static void say_how_to_wait(void)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject *code = value ? PyObject_GetAttrString(value, "code") : NULL;
    bool is_empty = code && PyLong_Check(code) && PyLong_AsLong(code) == DLX_E_EMPTY;
    PyObject *text = is_empty ? PyObject_Str(value) : NULL;
    const char *words = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    PyErr_Clear();
    Py_XDECREF(code);
    if (!words) {
        PyErr_Restore(type, value, trace);
    } else {
        (void)dlxpy_raise_text(
            DLX_E_EMPTY, "%s; get(topic, timeout=None), or with seconds, waits for one", words);
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
    }
    Py_XDECREF(text);
}

static PyObject *get(PyObject *self, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    static const char *const names[] = {"topic", "timeout", "stream"};
    static const struct dlxpy_params params = {"get", names, 3, 2, 1};
    struct dlxpy_stream stream;
    PyObject *value[3], *keep;
    int64_t timeout_ns = 0;
    const char *topic;
    if (dlxpy_parse(&params, args, n_args, kwnames, value) < 0 ||
        (value[1] && dlxpy_timeout(value[1], &timeout_ns) < 0) ||
        dlxpy_stream_parse(value[2], &stream) < 0 || dlxpy_topic_of(value[0], &keep, &topic) < 0)
        return NULL;
    struct dlx_message *m = NULL;
    struct dlxpy_wait wait;
    struct dlx_client *c = dlxpy_connection_enter(self, &wait);
    PyObject *ret = NULL;
    if (c && dlxpy_connection_leave(self, &wait, dlx_get(c, topic, timeout_ns, &m)) == 0) {
        ret = dlxpy_message_new(m, &stream, false);
    } else {
        dlx_message_unref(m);
        if (c && !value[1])
            say_how_to_wait();
    }
    Py_XDECREF(keep);
    return ret;
}

PyDoc_STRVAR(
    drop_retained_doc,
    "drop_retained($self, topic, /)\n--\n\n"
    "Drop what publishers that have gone retain on a topic. Who holds a message of it keeps it.\n"
    "Raises dlx.NotFound, dlx.AccessError, dlx.InvalidError, dlx.DaemonError.");
static PyObject *drop_retained(PyObject *self, PyObject *object)
{
    PyObject *keep;
    const char *topic;
    if (dlxpy_topic_of(object, &keep, &topic) < 0)
        return NULL;
    struct dlxpy_wait wait;
    struct dlx_client *c = dlxpy_connection_enter(self, &wait);
    int r = c ? dlxpy_connection_leave(self, &wait, dlx_retained_drop(c, topic)) : -1;
    Py_XDECREF(keep);
    if (r < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* ---- the rest ------------------------------------------------------------------------------ */

PyDoc_STRVAR(close_doc,
             "close($self, /)\n--\n\n"
             "Drop the connection. Publishers, subscriptions and messages made with it go on.");
#define FAST (METH_FASTCALL | METH_KEYWORDS)
static PyMethodDef methods[] = {
    {"__enter__", dlxpy_handle_enter_context, METH_NOARGS, NULL},
    {"__exit__", dlxpy_handle_close, METH_VARARGS, NULL},
    {"publisher", (PyCFunction)(void (*)(void))publisher, FAST, publisher_doc},
    {"subscribe", (PyCFunction)(void (*)(void))subscribe, FAST, subscribe_doc},
    {"get", (PyCFunction)(void (*)(void))get, FAST, get_doc},
    {"drop_retained", drop_retained, METH_O, drop_retained_doc},
    {"publishers", dlxpy_connection_publishers, METH_VARARGS, dlxpy_publishers_doc},
    {"links", dlxpy_connection_links, METH_O, dlxpy_links_doc},
    {"daemon", dlxpy_connection_daemon, METH_NOARGS, dlxpy_daemon_doc},
    {"close", dlxpy_handle_close, METH_NOARGS, close_doc},
    {0},
};

static PyGetSetDef getset[] = {
    {"closed", dlxpy_handle_is_closed, NULL, "Was it closed?", NULL},
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
    {"connect", (PyCFunction)(void (*)(void))connect_it, FAST, connect_doc},
    {0},
};

int dlxpy_add_connection(PyObject *module)
{
    dlxpy_connection_type = dlxpy_add_type(module, &spec, NULL);
    return dlxpy_connection_type ? PyModule_AddFunctions(module, functions) : -1;
}
