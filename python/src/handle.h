/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_HANDLE_H
#define DLXPY_HANDLE_H

/*
 * The common part of Connection, Publisher, Subscription, Caller, Service and Observer: a handle of
 * libdlx that several threads use at once (a connection) or one thread. A handle that is closed
 * while another thread is inside stays until that thread has left. The GIL guards it.
 */

#include "state.h"
#include <stdbool.h>

#define DLXPY_QUEUE_NS 1000000000

struct dlxpy_handle_kind {
    PyTypeObject *const *type;
    size_t size;      /* of the object */
    const char *what; /* "the publisher", for messages */
    bool shared;      /* any number of threads may be inside */
    bool queues;      /* a thread waits up to DLXPY_QUEUE_NS for the one that is inside */
    void (*unref)(void *of_libdlx);
    /* Wake tasks that wait for the handle outside of libdlx. NULL: there are none. */
    void (*closing)(PyObject *self);
};

/* The first member of each. */
struct dlxpy_handle {
    PyObject_HEAD union {
        void *any; /* NULL: dropped */
        struct dlx_client *client;
        struct dlx_publisher *publisher;
        struct dlx_subscription *subscription;
        struct dlx_caller *caller;
        struct dlx_service *service;
        struct dlx_observer *observer;
    } of;
    const struct dlxpy_handle_kind *kind;
    int n_users;
    unsigned long user; /* the thread that entered last */
    bool closed;
    PyObject *topic;               /* str; NULL: no topic */
    char what[DLX_TOPIC_MAX + 32]; /* "the publisher of cam/front" */
};

/* Takes `of_libdlx` over, also when it fails; the memory after the handle is zero. `topic` may be
 * NULL. NULL with an exception. */
struct dlxpy_handle *dlxpy_handle_new(const struct dlxpy_handle_kind *kind, void *of_libdlx,
                                      const char *topic);

/* `closing` of handles that asyncio waits for: its tasks look again. */
void dlxpy_handle_wake_tasks(PyObject *self);

/* Enter, for a call: 0, or -1 with dlx.Closed or dlx.InUse. */
int dlxpy_handle_enter(struct dlxpy_handle *h);
void dlxpy_handle_leave(struct dlxpy_handle *h);

/* While a call waits: has a signal's handler, or another thread that closed the handle, ended the
 * wait? 0, or -1 with an exception. `h` may be NULL. */
int dlxpy_handle_go_on(const struct dlxpy_handle *h);

/* A list of dlx.Event. `next` is dlx_publisher_next_event(), or the like. */
PyObject *dlxpy_handle_events(struct dlxpy_handle *h,
                              int (*next)(void *of_libdlx, struct dlx_event *ret));

/* For the tables of the types. */
void dlxpy_handle_dealloc(PyObject *self);
PyObject *dlxpy_handle_close(PyObject *self, PyObject *unused);
PyObject *dlxpy_handle_enter_context(PyObject *self, PyObject *unused);
PyObject *dlxpy_handle_is_closed(PyObject *self, void *closure);
PyObject *dlxpy_handle_topic(PyObject *self, void *closure);
PyObject *dlxpy_handle_repr(PyObject *self);

#endif
