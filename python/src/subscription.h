/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_SUBSCRIPTION_H
#define DLXPY_SUBSCRIPTION_H

/* dlx.Subscription. */

#include "args.h"
#include "state.h"

struct dlxpy_subscription {
    PyObject_HEAD struct dlx_subscription *s;
    struct dlxpy_guard guard;
    int64_t timeout_ns; /* of take() and of loops, unless take() says otherwise */
    bool stays;         /* loops go on when the last publisher has left */
    PyObject *topic;    /* str */
    char what[DLX_TOPIC_MAX + 32];
};

/* Takes `s` over, also when it fails. NULL with an exception. */
PyObject *dlxpy_subscription_new(struct dlx_subscription *s, const char *topic, int64_t timeout_ns,
                                 bool stays);

#endif
