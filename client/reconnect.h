/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_RECONNECT_H
#define DLX_CLIENT_RECONNECT_H

/*
 * The daemon may end and another one may take its place. Streams go on meanwhile. The library has no thread of its
 * own: publishers and subscriptions look in their calls, connect again, and announce themselves to the new one.
 *
 * A publisher goes on in a control block and arenas that the new daemon made (it moves), and stays on the links that it
 * has. A subscription gets a new link to it, which begins where the publisher moved, and takes from it when it
 * has taken everything from the old one. So nothing is lost, and a publisher that waits for its readers goes on
 * waiting for them: the new link's cursor is there before the old link is left.
 *
 * A stream waits 100 ms at most for what a new daemon has to answer. If the daemon does not answer,
 * no stream of the client asks it again before a pause is over, which is as long at first and then
 * doubles, up to 1.6 s. Calls whose callers wait for the daemon ask at any time, and an answer to
 * any of them ends the pause.
 */

#include "client/publisher.h"
#include "client/subscription.h"

/* How often to look whether the daemon is there, and, once it is known to be gone, whether another one is. */
#define DLX_LOOK_NS      UINT64_C(1000000000)
#define DLX_RECONNECT_NS UINT64_C(20000000)

/* For calls that need a daemon and no object of an earlier one: if the connection is lost, try to make a new one.
 * Returns 0, also where there is none; DLX_E_INTERRUPTED. */
int dlx__client_ensure(struct dlx_client *c);

/* Is the daemon that the publisher knows still there? If not, try to go on with another one. Not while a message is being
 * made: it moves, and its arenas are of no use any more. */
void dlx__publisher_check(struct dlx_publisher *p, uint64_t now_ns);
/* Part of every publish: look when it is time, and at once when the daemon's word has gone. */
static inline void dlx__publisher_look(struct dlx_publisher *p, uint64_t now_ns)
{
    if (dlx_unlikely(now_ns >= p->next_look_ns ||
                     (p->had_daemon_tid && !dlx__writer_has_daemon(&p->core))))
        dlx__publisher_check(p, now_ns);
}

/* If that daemon is not there, wait for another one to go on with: reliable subscribers may not
 * have been sent all that they have yet to take. */
void dlx__publisher_await_daemon(struct dlx_publisher *p, struct dlx_wait *wait);

/*
 * A call of the publisher failed with this code. True: because its daemon has ended, and it is known to
 * another one now: try again. If there is none yet, waits for it for so long. False, and the code may
 * be another one: DLX_E_ACCESS, if a daemon does not take it any more; DLX_E_INTERRUPTED.
 */
bool dlx__publisher_has_resumed(struct dlx_publisher *p, int *code, int64_t timeout_ns);

/* The subscription's daemon is gone: try to subscribe with another one. */
void dlx__subscription_reconnect(struct dlx_subscription *s);

#endif
