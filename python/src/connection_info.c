/* SPDX-License-Identifier: Apache-2.0 */

/* Requests that only ask the daemon: publishers, links, groups and claims, the daemon itself. */

#include "connection.h"
#include "errors.h"
#include <assert.h>

static PyObject *daemon_dict(const struct dlx_client *c, const struct dlx_daemon_info *i)
{
    static const char *const scopes[] = {"unknown", "here", "elsewhere"};
    static const char *const places[] = {"named", "user", "system", "tmp"};
    return Py_BuildValue(
        "{s:s,s:s,s:s,s:s,s:I,s:(II),s:I,s:I,s:I,s:I,s:K,s:K,s:K,s:s,s:K,s:s,s:N,s:K,s:K,s:K,s:K,s:"
        "K}",
        "version", i->version, "socket", i->socket, "place", places[dlx_client_daemon_place(c)],
        "refused_by", dlx_client_refused_by(c), "pid", i->pid, "protocol", i->protocol_major,
        i->protocol_minor, "n_clients", i->n_clients, "n_publishers", i->n_publishers, "n_links",
        i->n_links, "n_topics", i->n_topics, "shared_bytes", i->shared_bytes, "former_bytes",
        i->former_bytes, "uptime_ns", i->uptime_ns, "memory", i->memory, "longest_turn_ns",
        i->longest_turn_ns, "pid_scope", scopes[i->pid_scope], "lack", dlxpy_text(i->lack),
        "refused_access", i->refused_access, "refused_limit", i->refused_limit, "refused_qos",
        i->refused_qos, "refused_other", i->refused_other, "reclaimed", i->reclaimed);
}

static_assert(DLX_BEHIND_UNKNOWN == DLX_FIGURE_UNKNOWN && DLX_REFUSED_UNKNOWN == DLX_FIGURE_UNKNOWN,
              "one value says that a figure is unknown");

/* None: the daemon is too old to tell. */
static PyObject *figure(uint64_t n)
{
    return n == DLX_FIGURE_UNKNOWN ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(n);
}

static PyObject *publisher_dict(const struct dlx_publisher_info *i)
{
    return Py_BuildValue(
        "{s:s,s:N,s:K,s:K,s:K,s:K,s:K,s:I,s:I,s:I,s:I,s:I,s:I,s:s,s:I,s:O,s:N,s:N,s:N,s:N,s:N,s:O}",
        "topic", i->topic, "client_name", dlxpy_text(i->client_name), "publisher", i->publisher,
        "published", i->published, "published_bytes", i->published_bytes, "arena_bytes",
        i->arena_bytes, "control_bytes", i->control_bytes, "pid", i->pid, "uid", i->uid,
        "n_subscribers", i->n_subscribers, "n_arenas", i->n_arenas, "depth", i->depth, "history",
        i->history, "on_full", i->on_full == DLX_ON_FULL_BLOCK ? "block" : "drop", "retain",
        i->retain, "retained", i->retained ? Py_True : Py_False, "refused", figure(i->refused),
        "copied", figure(i->copied), "copied_bytes", figure(i->copied_bytes), "blocked_ns",
        figure(i->blocked_ns), "blocked_at_ns", figure(i->blocked_at_ns), "for_everybody",
        i->for_everybody ? Py_True : Py_False);
}

static PyObject *link_dict(const struct dlx_link_info *i)
{
    return Py_BuildValue(
        "{s:N,s:K,s:K,s:K,s:K,s:K,s:I,s:I,s:I,s:I,s:O,s:O,s:O,s:O,s:N,s:I,s:K,s:K}", "client_name",
        dlxpy_text(i->client_name), "link", i->link, "publisher", i->publisher, "taken", i->taken,
        "skipped", i->skipped, "lost", i->lost, "pid", i->pid, "uid", i->uid, "n_held", i->n_held,
        "max_held", i->max_held, "latest", i->mode == DLX_MODE_LATEST ? Py_True : Py_False,
        "reliable", i->reliable ? Py_True : Py_False, "blocks", i->blocks ? Py_True : Py_False,
        "joining", i->joining ? Py_True : Py_False, "behind", figure(i->behind), "group", i->group,
        "next_ns", i->next_ns, "held_ns", i->held_ns);
}

static PyObject *group_dict(const struct dlx_group_info *i)
{
    return Py_BuildValue(
        "{s:s,s:N,s:K,s:I,s:I,s:I,s:I,s:L,s:O,s:O,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:N,s:I,s:O}",
        "topic", i->topic, "name", dlxpy_text(i->name), "publisher", i->publisher, "group",
        i->group, "uid", i->uid, "n_workers", i->n_workers, "max_attempts", i->max_attempts,
        "lease_ns", (long long)i->lease_ns, "declared", i->declared ? Py_True : Py_False, "gone",
        i->gone ? Py_True : Py_False, "waiting", i->waiting, "in_flight", i->in_flight, "done",
        i->done, "redelivered", i->redelivered, "dead", i->dead, "lost", i->lost, "oldest",
        i->oldest, "oldest_ns", i->oldest_ns, "client_name", dlxpy_text(i->client_name), "pid",
        i->pid, "away", i->away ? Py_True : Py_False);
}

static PyObject *claim_dict(const struct dlx_claim_info *i)
{
    return Py_BuildValue("{s:N,s:K,s:K,s:K,s:I,s:I,s:I}", "client_name", dlxpy_text(i->client_name),
                         "seq", i->seq, "published_ns", i->published_ns, "link", i->link, "pid",
                         i->pid, "uid", i->uid, "attempt", i->attempt);
}

/* Adds an item, which it takes over, to a list. Returns 0, or -1 with an exception. */
static int append(PyObject *list, PyObject *item)
{
    int r = item ? PyList_Append(list, item) : -1;
    Py_XDECREF(item);
    return r;
}

/* libdlx calls these without the GIL. */
static int add_publisher(const struct dlx_publisher_info *info, void *list)
{
    PyGILState_STATE state = PyGILState_Ensure();
    int r = append(list, publisher_dict(info));
    PyGILState_Release(state);
    return r;
}

static int add_link(const struct dlx_link_info *info, void *list)
{
    PyGILState_STATE state = PyGILState_Ensure();
    int r = append(list, link_dict(info));
    PyGILState_Release(state);
    return r;
}

static int add_group(const struct dlx_group_info *info, void *list)
{
    PyGILState_STATE state = PyGILState_Ensure();
    int r = append(list, group_dict(info));
    PyGILState_Release(state);
    return r;
}

static int add_claim(const struct dlx_claim_info *info, void *list)
{
    PyGILState_STATE state = PyGILState_Ensure();
    int r = append(list, claim_dict(info));
    PyGILState_Release(state);
    return r;
}

const char dlxpy_publishers_doc[] =
    "publishers($self, topic=None, /)\n"
    "--\n"
    "\n"
    "Lists the publishers of a topic, of a pattern, or all, with departed ones whose\n"
    "messages are retained; not those of topics that the daemon's rules do not let this\n"
    "user observe, which c.daemon()['n_publishers'] counts. Returns a list of dicts with\n"
    "the members of struct dlx_publisher_info.";
PyObject *dlxpy_connection_publishers(PyObject *self, PyObject *args)
{
    const char *topic = NULL;
    struct dlxpy_wait wait;
    if (!PyArg_ParseTuple(args, "|z:publishers", &topic))
        return NULL;
    PyObject *ret = PyList_New(0);
    struct dlx_client *c = ret ? dlxpy_connection_enter(self, &wait) : NULL;
    if (!c ||
        dlxpy_connection_leave(self, &wait, dlx_list_publishers(c, topic, add_publisher, ret)) < 0)
        Py_CLEAR(ret);
    return ret;
}

const char dlxpy_links_doc[] =
    "links($self, publisher, /)\n"
    "--\n"
    "\n"
    "Lists the subscribers that are attached to the publisher with that id. Returns a\n"
    "list of dicts with the members of struct dlx_link_info. Raises dlx.NotFound.";
PyObject *dlxpy_connection_links(PyObject *self, PyObject *publisher)
{
    PyObject *number = PyNumber_Index(publisher); /* also a number of NumPy */
    uint64_t id = number ? PyLong_AsUnsignedLongLong(number) : 0;
    struct dlxpy_wait wait;
    Py_XDECREF(number);
    PyObject *ret = PyErr_Occurred() ? NULL : PyList_New(0);
    struct dlx_client *c = ret ? dlxpy_connection_enter(self, &wait) : NULL;
    if (!c || dlxpy_connection_leave(self, &wait, dlx_list_links(c, id, add_link, ret)) < 0)
        Py_CLEAR(ret);
    return ret;
}

const char dlxpy_groups_doc[] =
    "groups($self, topic=None, /)\n"
    "--\n"
    "\n"
    "Lists the groups of workers of the publishers of a topic, of a pattern, or all, and\n"
    "how much of the work is done. Returns a list of dicts with the members of struct\n"
    "dlx_group_info.";
PyObject *dlxpy_connection_groups(PyObject *self, PyObject *args)
{
    const char *topic = NULL;
    struct dlxpy_wait wait;
    if (!PyArg_ParseTuple(args, "|z:groups", &topic))
        return NULL;
    PyObject *ret = PyList_New(0);
    struct dlx_client *c = ret ? dlxpy_connection_enter(self, &wait) : NULL;
    if (!c || dlxpy_connection_leave(self, &wait, dlx_list_groups(c, topic, add_group, ret)) < 0)
        Py_CLEAR(ret);
    return ret;
}

const char dlxpy_claims_doc[] =
    "claims($self, publisher, group, /)\n"
    "--\n"
    "\n"
    "Lists the messages that workers have of a group: `publisher` and `group` are numbers,\n"
    "as in groups(). Returns a list of dicts with the members of struct dlx_claim_info.\n"
    "Raises dlx.NotFound.";
PyObject *dlxpy_connection_claims(PyObject *self, PyObject *args)
{
    unsigned long long publisher;
    unsigned int group;
    struct dlxpy_wait wait;
    if (!PyArg_ParseTuple(args, "KI:claims", &publisher, &group))
        return NULL;
    PyObject *ret = PyList_New(0);
    struct dlx_client *c = ret ? dlxpy_connection_enter(self, &wait) : NULL;
    if (!c || dlxpy_connection_leave(self, &wait,
                                     dlx_list_claims(c, publisher, group, add_claim, ret)) < 0)
        Py_CLEAR(ret);
    return ret;
}

const char dlxpy_daemon_doc[] =
    "daemon($self, /)\n"
    "--\n"
    "\n"
    "Returns what the daemon says of itself: a dict with the members of struct\n"
    "dlx_daemon_info.";
PyObject *dlxpy_connection_daemon(PyObject *self, PyObject *unused)
{
    struct dlx_daemon_info info = {.size = sizeof info};
    struct dlxpy_wait wait;
    (void)unused;
    struct dlx_client *c = dlxpy_connection_enter(self, &wait);
    if (!c)
        return NULL;
    int r = dlxpy_wait_end(&wait, dlx_client_get_daemon_info(c, &info));
    PyObject *ret = r == 0 ? daemon_dict(c, &info) : NULL;
    dlxpy_handle_leave((struct dlxpy_handle *)self);
    return ret;
}
