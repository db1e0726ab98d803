/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_SUBSCRIPTION_H
#define DLXPY_SUBSCRIPTION_H

/* dlx.Subscription. */

#include "args.h"
#include "handle.h"

struct dlxpy_subscription {
    struct dlxpy_handle handle;
    int64_t timeout_ns; /* of take() and of loops, unless take() says otherwise */
    bool stays;         /* loops go on when the last publisher has left */
    /* What a take had when a signal's handler ended it: the next one has it. */
    struct dlx_message *kept;
    int kept_code;
};

/* Takes `s` over, also when it fails. NULL with an exception. */
PyObject *dlxpy_subscription_new(struct dlx_subscription *s, const struct dlx_client *c,
                                 const char *topic, int64_t timeout_ns, bool stays);

#endif
