/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXK_ROUTER_H
#define DLXK_ROUTER_H

/*
 * The router: the process that the daemon talks to. It has a table of holders, by the origin and
 * user of their publishers, and passes each reader's socket to the right holder. It never receives
 * a descriptor of a publisher, so no publisher can block it: it receives only sockets that the
 * daemon made, on which no client can send once the router has them.
 *
 * How long a holder stays:
 *
 *     publisher connected   daemon                          the holder
 *     yes                   any                             stays, also after FORGET
 *     no                    has it (OWN, CLAIM)             stays until FORGET
 *     no                    does not have it (CLAIMED)      ends
 *     no                    none for `grace_ns`             ends
 *
 * The router ends when it has had no holder and no daemon for that long.
 *
 * A reader counts from GET until its socket is empty and closed at one end, whatever happens to its
 * holder, because it may have DLXK_AHEAD descriptors in flight until then. The number of readers is
 * limited, and one user may have three times what is left (daemon/users/share.h); others wait in
 * order.
 */

#include "common/listen.h"
#include "keeper/holder.h"

/* The most holders, including those that are ending. A user may have three times what is left. */
#define DLXK_HOLDERS_MAX 1024U
/* The most readers that are served at a time; fewer if the daemon allows fewer descriptors. */
#define DLXK_READERS_MAX 256U
/* Enough for a third user beside two that take their full shares. */
#define DLXK_READERS_LEAST 32U
/* The most readers of all users, waiting and served. */
#define DLXK_WAITING_MAX 1024U
#define DLXK_GRACE_NS    UINT64_C(60000000000)

struct dlxk_router_options {
    uint64_t grace_ns;      /* 0: DLXK_GRACE_NS */
    uint32_t n_holders_max; /* 0: DLXK_HOLDERS_MAX */
    struct dlxk_holder_options holder;
    struct dlx_listen
        *place; /* where it listens, if the files there are its own; NULL: they are not */
};

/* Runs the router until it has nothing to do any more. If files of `place` are removed, it makes
 * them again, and has another listener, which the caller keeps with the place. Returns 0 or an
 * error. */
int dlxk_router_run(int borrow_listener, const struct dlxk_router_options *options);

#endif
