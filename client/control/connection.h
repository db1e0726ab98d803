/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_CONNECTION_H
#define DLX_CLIENT_CONNECTION_H

/*
 * The daemon may end and another one may take its place. Streams go on meanwhile. The library has
 * no thread of its own: publishers and subscriptions look in their calls, connect again, and
 * announce themselves to the new one.
 *
 * A publisher goes on in a control block and arenas that the new daemon made (it moves), and stays
 * on the links that it has. A subscription gets a new link to it, which begins where the publisher
 * moved, and takes from the new link once it has taken everything from the old one. So nothing is
 * lost, and a publisher that waits for its readers goes on waiting for them: the new link has its
 * cursor before the subscription leaves the old link.
 *
 * A stream waits 100 ms at most for what a new daemon has to answer. If the daemon does not
 * answer, no stream of the client asks it again before a pause is over, which is as long at first
 * and then doubles, up to 1.6 s. Calls whose callers wait for the daemon ask at any time, and an
 * answer to any of them ends the pause.
 */

#include "client/control/client.h"
#include "common/packet.h"

/* How often to look whether the daemon is there, and, once it is known to be gone, whether
 * another one is. */
#define DLX_LOOK_NS      UINT64_C(1000000000)
#define DLX_RECONNECT_NS UINT64_C(20000000)

enum dlx_hurry {
    DLX_HURRY_NOW_AND_THEN, /* beside a stream, which goes on: never before c->next_try_ns */
    DLX_HURRY_WAITING,      /* the caller waits for the daemon in any case */
    DLX_HURRY_AT_ONCE,      /* the same, for as long as for any call */
};

/* Is there no socket, or has its other end closed it? */
static inline bool dlx__socket_is_lost(int borrow_fd)
{
    return borrow_fd < 0 || dlx__packet_hung_up(borrow_fd);
}

/* The connection of this epoch seems to be lost: make a new one, unless that was done. Returns 0:
 * c->epoch is another one now; DLX_E_IN_USE: the connection is not lost; DLX_E_KICKED: it never is
 * made again; else: not yet. A stream does not wait for another thread that waits for the
 * daemon. */
int dlx__client_reconnect(struct dlx_client *c, uint64_t epoch, enum dlx_hurry hurry);

/* Why did the daemon disconnect this client last? Returns the code, and the daemon's text; 0 if no
 * daemon did, the daemon only stopped, or another thread is in a call. */
int dlx__client_goodbye(struct dlx_client *c, char ret_text[static DLX_ERROR_TEXT_SIZE]);

/*
 * A daemon that is not told of memory that was made on earlier connections, and that this process
 * still maps (client/base/mapped.h), charges no user for it: messages that are held, and what a
 * publisher keeps of the last daemon. Each new connection begins with telling it. An object that
 * has come to the new daemon calls this, since its memory of the last one changes no more, or it
 * has read the last of the old daemon's notifications: tells again if something was not told.
 */
void dlx__client_tell_former(struct dlx_client *c);

/* For calls that need a daemon and no object of an earlier one: if the connection is lost, try to
 * make a new one. Returns 0, also without a daemon; DLX_E_INTERRUPTED, DLX_E_FORKED. */
int dlx__client_ensure(struct dlx_client *c);

#endif
