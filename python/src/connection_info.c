/* SPDX-License-Identifier: Apache-2.0 */

/* What the daemon knows: publishers, links, itself. */

#include "call.h"
#include "connection.h"
#include <stdlib.h>
#include <string.h>

/* Entries are collected apart from Python, and made into objects after that. */
static int add(struct dlxpy_entries *entries, const void *entry)
{
    if (entries->n == entries->room) {
        size_t room = entries->room ? 2 * entries->room : 16;
        char *data = reallocarray(entries->data, room, entries->item);
        if (!data)
            return DLX_E_NO_MEMORY;
        entries->data = data;
        entries->room = room;
    }
    memcpy(entries->data + entries->n++ * entries->item, entry, entries->item);
    return 0;
}

static int add_publisher(const struct dlx_publisher_info *info, void *entries)
{
    return add(entries, info);
}

static int add_link(const struct dlx_link_info *info, void *entries)
{
    return add(entries, info);
}

static PyObject *daemon_dict(const struct dlx_client *c, const struct dlx_daemon_info *i)
{
    static const char *const scopes[] = {"unknown", "here", "elsewhere"};
    static const char *const places[] = {"named", "user", "system", "tmp"};
    return Py_BuildValue("{s:s,s:s,s:s,s:s,s:I,s:(II),s:I,s:I,s:I,s:I,s:K,s:K,s:s,s:K,s:s}",
                         "version", i->version, "socket", i->socket, "place",
                         places[dlx_client_place(c)], "passed_over", dlx_client_passed_over(c),
                         "pid", i->pid, "protocol", i->protocol_major, i->protocol_minor,
                         "n_clients", i->n_clients, "n_publishers", i->n_publishers, "n_links",
                         i->n_links, "n_topics", i->n_topics, "shared_bytes", i->shared_bytes,
                         "uptime_ns", i->uptime_ns, "memory", i->memory, "longest_turn_ns",
                         i->longest_turn_ns, "pid_scope", scopes[i->pid_scope]);
}

static int make_publishers(struct dlxpy_call *call)
{
    call->entries.item = sizeof(struct dlx_publisher_info);
    return dlx_list_publishers(call->client->c, call->topic, add_publisher, &call->entries);
}

static int make_links(struct dlxpy_call *call)
{
    call->entries.item = sizeof(struct dlx_link_info);
    return dlx_list_links(call->client->c, call->id, add_link, &call->entries);
}

static int make_daemon(struct dlxpy_call *call)
{
    return dlx_client_get_daemon_info(call->client->c, &call->daemon);
}

static PyObject *publisher_dict(const void *entry)
{
    const struct dlx_publisher_info *i = entry;
    return Py_BuildValue("{s:s,s:s,s:K,s:K,s:K,s:K,s:K,s:I,s:I,s:I,s:I,s:I,s:I,s:s,s:I,s:O}",
                         "topic", i->topic, "client_name", i->client_name, "publisher",
                         i->publisher, "published", i->published, "published_bytes",
                         i->published_bytes, "arena_bytes", i->arena_bytes, "control_bytes",
                         i->control_bytes, "pid", i->pid, "uid", i->uid, "n_subscribers",
                         i->n_subscribers, "n_arenas", i->n_arenas, "depth", i->depth, "history",
                         i->history, "on_full", i->on_full == DLX_ON_FULL_BLOCK ? "block" : "drop",
                         "retain", i->retain, "retained", i->retained ? Py_True : Py_False);
}

static PyObject *link_dict(const void *entry)
{
    const struct dlx_link_info *i = entry;
    PyObject *behind = i->behind == DLX_BEHIND_UNKNOWN ? Py_NewRef(Py_None)
                                                       : PyLong_FromUnsignedLongLong(i->behind);
    return Py_BuildValue("{s:s,s:K,s:K,s:K,s:K,s:K,s:I,s:I,s:I,s:I,s:O,s:O,s:O,s:O,s:N}",
                         "client_name", i->client_name, "link", i->link, "publisher", i->publisher,
                         "taken", i->taken, "skipped", i->skipped, "lost", i->lost, "pid", i->pid,
                         "uid", i->uid, "n_held", i->n_held, "max_held", i->max_held, "latest",
                         i->mode == DLX_MODE_LATEST ? Py_True : Py_False, "reliable",
                         i->reliable ? Py_True : Py_False, "blocks", i->blocks ? Py_True : Py_False,
                         "joining", i->joining ? Py_True : Py_False, "behind", behind);
}

static PyObject *list_of(const struct dlxpy_entries *entries, PyObject *(*dict)(const void *))
{
    PyObject *ret = PyList_New((Py_ssize_t)entries->n);
    for (size_t i = 0; ret && i < entries->n; i++) {
        PyObject *item = dict(entries->data + i * entries->item);
        if (item)
            (void)PyList_SetItem(ret, (Py_ssize_t)i, item);
        else
            Py_CLEAR(ret);
    }
    return ret;
}

const char dlxpy_publishers_doc[] = "publishers($self, topic=None, /)\n--\n\n"
                                    "Publishers, and what is retained of those that have gone, of "
                                    "a topic, a pattern, or all: a list of dicts, as\n"
                                    "struct dlx_publisher_info.";
PyObject *dlxpy_connection_publishers(PyObject *self, PyObject *args)
{
    struct dlxpy_handle *c = (struct dlxpy_handle *)self;
    const char *topic = NULL;
    if (!PyArg_ParseTuple(args, "|z:publishers", &topic))
        return NULL;
    struct dlxpy_call *call = dlxpy_call_new(c, topic, make_publishers);
    PyObject *ret =
        call && dlxpy_call_do(call, c) == 0 ? list_of(&call->entries, publisher_dict) : NULL;
    dlxpy_call_end(call, c);
    return ret;
}

const char dlxpy_links_doc[] = "links($self, publisher, /)\n--\n\n"
                               "Who is attached to the publisher of that id: a list of dicts, as "
                               "struct dlx_link_info. Raises dlx.NotFound.";
PyObject *dlxpy_connection_links(PyObject *self, PyObject *publisher)
{
    struct dlxpy_handle *c = (struct dlxpy_handle *)self;
    uint64_t id = PyLong_AsUnsignedLongLong(publisher);
    struct dlxpy_call *call = PyErr_Occurred() ? NULL : dlxpy_call_new(c, NULL, make_links);
    if (call)
        call->id = id;
    PyObject *ret = call && dlxpy_call_do(call, c) == 0 ? list_of(&call->entries, link_dict) : NULL;
    dlxpy_call_end(call, c);
    return ret;
}

const char dlxpy_daemon_doc[] =
    "daemon($self, /)\n--\n\nThe daemon about itself: a dict, as struct dlx_daemon_info.";
PyObject *dlxpy_connection_daemon(PyObject *self, PyObject *unused)
{
    struct dlxpy_handle *c = (struct dlxpy_handle *)self;
    (void)unused;
    struct dlxpy_call *call = dlxpy_call_new(c, NULL, make_daemon);
    PyObject *ret =
        call && dlxpy_call_do(call, c) == 0 ? daemon_dict(call->client->c, &call->daemon) : NULL;
    dlxpy_call_end(call, c);
    return ret;
}
