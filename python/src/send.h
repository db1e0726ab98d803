/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_SEND_H
#define DLXPY_SEND_H

/* What publish(), call() and reply() have in common. */

#include "args.h"
#include "handle.h"
#include "parcel.h"

/* A dlx.Publisher, a dlx.Caller, and the first member of a dlx.Service, which sends replies. */
struct dlxpy_publisher {
    struct dlxpy_handle handle;
    uint64_t number;    /* in this process, from 1; its tensors remember it */
    int64_t timeout_ns; /* of publish(), unless that says otherwise */
    bool waits;         /* on_full="block", groups or require */
    bool has_warned;    /* the warning that tensors were copied was given */
};

/* A new `number`. */
uint64_t dlxpy_publisher_number(void);

/* The stream that wrote the tensors. libdlx waits for it, so -1 (any) is refused. Returns 0, or -1
 * with an exception. */
int dlxpy_send_stream(PyObject *object, struct dlx_publish_args *args, struct dlxpy_stream *ret);

/* The metadata, borrowed. */
struct dlx_bytes dlxpy_send_meta(const struct dlxpy_parcel *parcel);

/* A dlx.CopyWarning, once for each publisher. Returns 0, or -1 with an exception. */
int dlxpy_send_warn(struct dlxpy_publisher *p, const char *format, ...);

/* libdlx does not know which objects were made of its tensors. Such tensors are copied: `strict`
 * refuses that, and otherwise the publisher warns once. Returns 0, or -1 with an exception. */
int dlxpy_send_check_copies(const struct dlxpy_parcel *parcel, struct dlxpy_publisher *p,
                            bool strict);

/* A request or a reply that is sent. The caller does not move it. */
struct dlxpy_sending {
    struct dlx_publish_args args;
    struct dlxpy_stream stream;
    struct dlxpy_parcel parcel;
    struct dlx_bytes meta;
    const struct dlx_item *items; /* parcel.n */
    struct dlx_item one;
};

/* `value`: tensors, meta, strict, share, stream, stage of publish(), NULL where nothing was given.
 * The handle of `p` was entered. Returns 0, or -1 with an exception: there is nothing to end. */
int dlxpy_send_begin(struct dlxpy_sending *s, struct dlxpy_publisher *p, PyObject *const value[6]);

/* Let go of everything. `sent`: libdlx has taken the tensors. */
void dlxpy_send_end(struct dlxpy_sending *s, bool sent);

#endif
