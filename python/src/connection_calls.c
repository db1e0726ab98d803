/* SPDX-License-Identifier: Apache-2.0 */

/* Connection.caller(), serve() and observe(): for dlx/_connection.py, which gives every argument
 * by position. */

#include "call.h"
#include "connection.h"
#include "observer.h"

static void unref_caller(void *k)
{
    dlx_caller_unref(k);
}

static void unref_service(void *s)
{
    dlx_service_unref(s);
}

const char dlxpy_connection_caller_doc[] = "_caller($self, topic, max_in_flight, spin=..., /)\n"
                                           "--\n"
                                           "\n";
PyObject *dlxpy_connection_caller(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    struct dlx_caller_args k_args = {.size = sizeof k_args};
    PyObject *keep, *ret = NULL;
    const char *topic;
    if (dlxpy_connection_check_number("_caller", n_args, 2, 3) < 0 ||
        dlxpy_uint32(args[1], "max_in_flight", DLX_IN_FLIGHT_MAX, &k_args.max_in_flight) < 0 ||
        (n_args > 2 && dlxpy_connection_parse_spin(args[2], &k_args.spin_ns) < 0) ||
        dlxpy_topic_of(args[0], &keep, &topic) < 0)
        return NULL;
    struct dlx_caller *k = NULL;
    struct dlxpy_wait wait;
    struct dlx_client *c = dlxpy_connection_enter(self, &wait);
    if (c && dlxpy_connection_leave(self, &wait, dlx_caller_new(c, topic, &k_args, &k)) == 0)
        ret = dlxpy_caller_new(k, topic);
    else if (k)
        dlxpy_wait_unref(unref_caller, k);
    Py_XDECREF(keep);
    return ret;
}

const char dlxpy_connection_serve_doc[] = "_serve($self, topic, max_held, timeout, spin=..., /)\n"
                                          "--\n"
                                          "\n";
PyObject *dlxpy_connection_serve(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    struct dlx_service_args s_args = {.size = sizeof s_args};
    PyObject *keep, *ret = NULL;
    const char *topic;
    int64_t timeout_ns;
    if (dlxpy_connection_check_number("_serve", n_args, 3, 4) < 0 ||
        dlxpy_uint32(args[1], "max_held", UINT32_MAX, &s_args.max_held) < 0 ||
        dlxpy_timeout(args[2], &timeout_ns) < 0 ||
        (n_args > 3 && dlxpy_connection_parse_spin(args[3], &s_args.spin_ns) < 0) ||
        dlxpy_topic_of(args[0], &keep, &topic) < 0)
        return NULL;
    struct dlx_service *s = NULL;
    struct dlxpy_wait wait;
    struct dlx_client *c = dlxpy_connection_enter(self, &wait);
    if (c && dlxpy_connection_leave(self, &wait, dlx_service_new(c, topic, &s_args, &s)) == 0)
        ret = dlxpy_service_new(s, topic, timeout_ns);
    else if (s)
        dlxpy_wait_unref(unref_service, s);
    Py_XDECREF(keep);
    return ret;
}

static void unref_observer(void *o)
{
    dlx_observer_unref(o);
}

const char dlxpy_connection_observe_doc[] = "_observe($self, topic, kinds, /)\n"
                                            "--\n"
                                            "\n";
PyObject *dlxpy_connection_observe(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    struct dlx_observer_args o_args = {.size = sizeof o_args};
    PyObject *keep, *ret = NULL;
    const char *topic;
    if (dlxpy_connection_check_number("_observe", n_args, 2, 2) < 0 ||
        dlxpy_uint32(args[1], "kinds", UINT32_MAX, &o_args.kinds) < 0 ||
        dlxpy_topic_of(args[0], &keep, &topic) < 0)
        return NULL;
    struct dlx_observer *o = NULL;
    struct dlxpy_wait wait;
    struct dlx_client *c = dlxpy_connection_enter(self, &wait);
    if (c && dlxpy_connection_leave(self, &wait, dlx_observer_new(c, topic, &o_args, &o)) == 0)
        ret = dlxpy_observer_new(o, topic);
    else if (o)
        dlxpy_wait_unref(unref_observer, o);
    Py_XDECREF(keep);
    return ret;
}
