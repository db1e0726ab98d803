/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXK_ROUTER_H
#define DLXK_ROUTER_H

/*
 * The router: the process that the daemon talks to. It has a table of holders, by the origin and the
 * uid of their publishers, and hands each reader's socket to the holder that is asked for. It never
 * receives a descriptor of a publisher, so none can make it wait: what it receives are sockets which
 * the daemon made, and on which no client can send when the router has them.
 *
 * How long a holder stays:
 *
 *     publisher connected   daemon                          the holder
 *     yes                   any                             stays, also after FORGET
 *     no                    has it (OWN, CLAIM)             stays until FORGET
 *     no                    has it not, after CLAIMED       ends
 *     no                    none for `grace_ns`             ends
 *
 * The router ends when it has no holder and had no daemon for as long.
 *
 * A reader counts from GET until its socket is empty and closed at one end, whatever happened to its
 * holder: until then it may have DLXK_AHEAD descriptors on their way. So many may count at a time,
 * and one user may have three times what is left (daemon/users/share.h); others wait in order.
 */

#include "keeper/holder.h"

/* Holders at a time, those that are ending included. A user may have three times what is left. */
#define DLXK_HOLDERS_MAX 1024U
/* Readers that are served at a time; fewer where the daemon allows fewer descriptors. */
#define DLXK_READERS_MAX 256U
/* Enough for a third user beside two that take what they may. */
#define DLXK_READERS_LEAST 32U
/* Readers that wait, of all users and with those that are served. */
#define DLXK_WAITING_MAX 1024U
#define DLXK_GRACE_NS    UINT64_C(60000000000)

struct dlxk_router_options {
    uint64_t grace_ns;      /* 0: DLXK_GRACE_NS */
    uint32_t n_holders_max; /* 0: DLXK_HOLDERS_MAX */
    struct dlxk_holder_options holder;
};

/* Serve until there is nothing to do any more. The listener stays the caller's. 0, or why not. */
int dlxk_router_run(int listener_borrow_fd, const struct dlxk_router_options *options);

#endif
