/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_CALL_WIRE_H
#define DLX_CLIENT_CALL_WIRE_H

/* The common part of call.c, call_list.c, call_group.c, call_observe.c, call_operate.c and
 * notification.c, the only files that see the wire's structs. */

#include "client/control/client.h"
#include "common/proto.h"
#include <stdio.h>

struct dlx_call {
    struct dlx_packet packet;
    struct dlx_proto_arena arena;
};

/*
 * Send a request and wait for its reply, which must be `expected` with `n_fds` fds. The caller
 * holds c->lock; `ret` and c->call->packet are valid until it lets go.
 */
int dlx__call_round_trip(struct dlx_client *c, Dlx__Wire__Packet *request,
                         Dlx__Wire__Packet__BodyCase expected, size_t n_fds,
                         const Dlx__Wire__Packet **ret);
/* The same with a time of its own. */
int dlx__call_round_trip_within(struct dlx_client *c, int64_t timeout_ns,
                                Dlx__Wire__Packet *request, Dlx__Wire__Packet__BodyCase expected,
                                size_t n_fds, const Dlx__Wire__Packet **ret);

/* The same, but takes the lock itself. On success the caller holds it, and releases it. */
int dlx__call_ask(struct dlx_client *c, int64_t timeout_ns, Dlx__Wire__Packet *request,
                  Dlx__Wire__Packet__BodyCase expected, size_t n_fds,
                  const Dlx__Wire__Packet **ret);

/* The same, within c->timeout_ns and without fds, of a daemon that must know `what`: see
 * dlx__call_check_minor(). */
int dlx__call_ask_since(struct dlx_client *c, uint32_t since, const char *what,
                        Dlx__Wire__Packet *request, Dlx__Wire__Packet__BodyCase expected,
                        const Dlx__Wire__Packet **ret);

/* c->lock, within c->timeout_ns. Returns 0; DLX_E_TIMEOUT, DLX_E_INTERRUPTED. */
int dlx__call_lock(struct dlx_client *c);
int dlx__call_lock_within(struct dlx_client *c, int64_t timeout_ns);

/* Does the daemon speak this minor version? Returns 0; DLX_E_VERSION: "... speaks protocol 2.6;
 * `what` needs 2.8: update dlpackd". The caller has the lock. */
int dlx__call_check_minor(const struct dlx_client *c, uint32_t since, const char *what);

/* `on_full` as the wire has it, as an enum dlx_on_full. */
static inline uint32_t dlx__call_on_full(uint32_t wire)
{
    return wire == 0 ? DLX_ON_FULL_DROP : DLX_ON_FULL_BLOCK;
}

/* `retain_for_ns` of struct dlx_publisher_args. */
static inline int64_t dlx__call_retain_for(bool latched, uint64_t wire_ns)
{
    return latched ? DLX_RETAIN_LATCHED : (int64_t)DLX_MIN(wire_ns, (uint64_t)INT64_MAX);
}

/* A text of the wire, which may be NULL, cut to `size` bytes with its end. */
static inline void dlx__call_copy_text(char *dst, size_t size, const char *src)
{
    (void)snprintf(dst, size, "%s", src ? src : "");
}

/* How each call that lists begins: checks its arguments (`topic` may be NULL, or a pattern), and
 * connects if there is no connection. Returns 0 or an error. */
int dlx__call_begin_list(struct dlx_client *c, const char *call, const void *fn, const char *topic);

/* Entries of one reply of a list; room for them, which the caller frees (NULL: no memory, which is
 * the thread's error); and the check that a reply has no more. */
#define DLX_CALL_PAGE_MAX 64U
void *dlx__call_new_page(size_t entry_size);
int dlx__call_check_list(const struct dlx_client *c, size_t n, bool more);

#endif
