/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_PUBLISHER_MOVE_H
#define DLX_CLIENT_PUBLISHER_MOVE_H

/* What a daemon makes for a publisher, and how the publisher goes on with another daemon: it moves
 * into a control block and arenas that this daemon made. client/control/connection.h has the
 * model. */

#include "client/control/call.h"
#include "client/control/connection.h"
#include "client/publish/publisher.h"

/*
 * Map what a daemon has made for the publisher, and note it for this epoch of the client. Takes the
 * descriptors of `made`. dlx__publisher_daemon_deinit() is for `ret`, also on failure, and
 * dlx__publisher_unmap_control() for the control block. Returns 0; DLX_E_PROTOCOL, DLX_E_NO_MEMORY,
 * DLX_E_SYSTEM.
 */
int dlx__publisher_daemon_init(const struct dlx_publisher *p, uint64_t epoch,
                               const struct dlx_new_publisher *made,
                               struct dlx_publisher_daemon *ret,
                               struct dlx_shm_control **ret_control);
void dlx__publisher_daemon_deinit(struct dlx_publisher_daemon *daemon);

/* The publisher has as many messages as it retains: those that predecessors left may go. */
void dlx__publisher_succeed(struct dlx_publisher *p);

/* Is the daemon there that the publisher is announced to? */
bool dlx__publisher_has_daemon(const struct dlx_publisher *p);

/*
 * If that daemon is not there, try to go on with another one. Not while a message is being made:
 * the publisher moves, and its arenas are of no use any more. After a publish its `n_put` messages,
 * the newest ones, are taken along, since subscribers that the publisher does not know before it
 * goes on may have been there when it was called.
 */
void dlx__publisher_check(struct dlx_publisher *p, uint64_t now_ns, enum dlx_hurry hurry,
                          uint32_t n_put);

/* Look when it is time, and at once when the daemon's word has gone. Part of every publish. */
static inline void dlx__publisher_look_after(struct dlx_publisher *p, uint64_t now_ns,
                                             uint32_t n_put)
{
    if (dlx_unlikely(now_ns >= p->watch.next_look_ns ||
                     (p->watch.had_daemon_tid && !dlx__writer_has_daemon(&p->core))))
        dlx__publisher_check(p, now_ns, DLX_HURRY_NOW_AND_THEN, n_put);
}

static inline void dlx__publisher_look(struct dlx_publisher *p, uint64_t now_ns)
{
    dlx__publisher_look_after(p, now_ns, 0);
}

#endif
