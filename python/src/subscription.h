/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_SUBSCRIPTION_H
#define DLXPY_SUBSCRIPTION_H

/* dlx.Subscription. */

#include "args.h"
#include "handle.h"
#include "message.h"

/* The messages that one call of libdlx took. */
struct dlxpy_taken {
    struct dlx_message **many; /* room for `room`; NULL: for `one` */
    struct dlx_message *one;
    uint32_t room;
    uint32_t n_given; /* the first ones belong to their dlx.Message already */
    uint32_t n;
};

struct dlxpy_subscription {
    struct dlxpy_handle handle;
    int64_t timeout_ns; /* of take() and of loops, unless take() says otherwise */
    enum dlxpy_memory memory;
    bool ended; /* its publishers have left: every further take and loop says so */
    bool hints; /* no message came yet, and no wait has warned of a topic without one */
    /* Messages of a take that a signal's handler ended, for the next takes. */
    struct dlxpy_taken kept;
    int kept_code;
    char reason[512]; /* of libdlx: why its publishers have left; or of `kept_code` */
};

/* Takes `s` over, also when it fails. `hints`: a long wait says that nobody publishes the topic.
 * NULL with an exception. */
PyObject *dlxpy_subscription_new(struct dlx_subscription *s, const char *topic, int64_t timeout_ns,
                                 enum dlxpy_memory memory, bool hints);

#endif
