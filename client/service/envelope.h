/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_ENVELOPE_H
#define DLX_CLIENT_ENVELOPE_H

/*
 * What a request or a reply has before the metadata of the program: the layout is part of the
 * protocol (docs/PROTOCOL.md, "Calls").
 *
 *     caller                                            worker
 *     subscribes to its inbox, "@" and its token
 *     publishes a request on the service's topic -----> takes it from the group "service"
 *                                                       publishes on the inbox, at first
 *     takes it, if the call is in its slot <----------- publishes the reply there, says "done"
 */

#include "common/topic.h"
#include <dlx/dlx.h>
#include <stdatomic.h>

#define DLX_ENVELOPE_SIZE  64U
#define DLX_ENVELOPE_MAGIC UINT32_C(0x43584c44) /* "DLXC" */

enum dlx_envelope_kind {
    DLX_ENVELOPE_REQUEST = 1,
    DLX_ENVELOPE_REPLY = 2,
};

#define DLX_TOKEN_SIZE 16U

struct dlx_envelope {
    uint32_t magic;
    uint16_t kind; /* enum dlx_envelope_kind */
    uint8_t idempotent;
    /* The caller may set it while the request is not done: it has given up. */
    uint8_t cancelled;
    uint64_t call; /* number of the call, and its slot at the caller: a reply has those of its */
    uint32_t slot; /* request */
    /* Of a request: most calls of the caller in flight. */
    uint32_t max_in_flight;
    uint64_t deadline_ns; /* of a request, CLOCK_MONOTONIC; UINT64_MAX: none */
    /* Of a reply: 0, DLX_E_CALL_FAILED or DLX_E_WORKER_GONE. Then the metadata is the text. */
    int32_t code;
    int32_t worker_code;           /* what dlx_reply_error() was given */
    uint8_t token[DLX_TOKEN_SIZE]; /* of a request: names the inbox */
    /* Of a request: how many workers could not be linked to the inbox so far. */
    uint32_t n_unheard;
    uint32_t reserved; /* 0 */
};
/* The name of the inbox with this token. */
void dlx__inbox_name(const uint8_t token[static DLX_TOKEN_SIZE],
                     char ret[static DLX_INBOX_SIZE + 1]);

/* Publishes a request or a reply. Of `user_args`, which may be NULL, what is about tensors counts.
 * Returns as dlx_publish_set(). */
int dlx__envelope_publish(struct dlx_publisher *p, const struct dlx_envelope *envelope,
                          const struct dlx_item *items, uint32_t n_items,
                          const struct dlx_bytes *meta, const struct dlx_publish_args *user_args);

/* Opens a message that was just taken, once: dlx_message_meta() then tells what the program gave.
 * NULL: it is none of this kind. `ret_cancelled` receives where the caller says that it has given
 * up. Both live as long as the message. */
typedef const _Atomic uint8_t dlx_atomic_flag;
const struct dlx_envelope *dlx__envelope_open(struct dlx_message *m, enum dlx_envelope_kind kind,
                                              dlx_atomic_flag **ret_cancelled);

#endif
