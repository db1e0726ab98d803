/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_PUBLISHER_WAIT_H
#define DLX_CLIENT_PUBLISHER_WAIT_H

/*
 * What a publisher waits for: room for a message, subscribers, a daemon to go on with. It waits in
 * one loop, in which it may move to another daemon (publisher_move.h). What a call has prepared
 * for a message is of no use then: the call gets DLX__AGAIN, and prepares it again.
 *
 *     do
 *         r = attempt(p, &wait);
 *     while ((r = dlx__publisher_go_on(p, r, &wait)) == DLX__AGAIN);
 */

#include "client/control/call.h"
#include "client/publish/publisher.h"

/* The publisher has moved: make the attempt again. No code of dlx.h. */
#define DLX__AGAIN INT32_MIN

/* dlx__publish_room() when there is none, or when there is more to do first (enum dlx_detour).
 * Everything was announced. */
int dlx__publish_room_slowly(struct dlx_publisher *p, struct dlx_wait *wait);

static inline bool dlx__publish_has_room(const struct dlx_publisher *p)
{
    return dlx_likely(dlx__writer_has_room(&p->core) && p->detours == 0);
}

/*
 * Room for a message, waiting for it if the publisher blocks, unless the deadline is 0. Returns 0;
 * DLX__AGAIN: there is room, with another daemon; DLX_E_FULL, DLX_E_TIMEOUT, DLX_E_INTERRUPTED,
 * DLX_E_NO_MEMORY, DLX_E_ACCESS.
 */
static inline int dlx__publish_room(struct dlx_publisher *p, struct dlx_wait *wait)
{
    return dlx__publish_has_room(p) ? 0 : dlx__publish_room_slowly(p, wait);
}

/*
 * The attempt returned `r`. Returns DLX__AGAIN if it is DLX__AGAIN, or if the attempt failed
 * because the publisher's daemon has ended, and there is another one now, for which this waits.
 * Else returns `r`, or why the publisher cannot go on: DLX_E_ACCESS (a daemon does not take it any
 * more), DLX_E_INTERRUPTED, DLX_E_NO_MEMORY, DLX_E_SYSTEM.
 */
int dlx__publisher_go_on(struct dlx_publisher *p, int r, struct dlx_wait *wait);

/* Waits until the first group that it has declared has a worker. A call on the publisher has begun.
 * Returns as dlx_publisher_wait(). */
int dlx__publisher_wait_for_worker(struct dlx_publisher *p, int64_t timeout_ns);

/* Before the publisher leaves: wait so long for subscribers that have yet to come to the new
 * daemon, where the newest messages are. */
void dlx__publisher_drain(struct dlx_publisher *p, int64_t timeout_ns);

#endif
