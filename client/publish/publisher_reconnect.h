/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_PUBLISHER_RECONNECT_H
#define DLX_CLIENT_PUBLISHER_RECONNECT_H

/* How a publisher goes on with another daemon: it moves into a control block and arenas that
 * this daemon made. client/control/connection.h has the model. */

#include "client/control/connection.h"
#include "client/control/wait.h"
#include "client/publish/publisher.h"

/* Is the daemon that the publisher knows still there? If not, try to go on with another one. Not
 * while a message is being made: it moves, and its arenas are of no use any more. */
void dlx__publisher_check(struct dlx_publisher *p, uint64_t now_ns);
/* The same after a publish: its `n` messages, the newest ones, are taken along. Subscribers that
 * the publisher does not know before it goes on may have been there when it was called. */
void dlx__publisher_check_after(struct dlx_publisher *p, uint64_t now_ns, uint32_t n);
static inline bool dlx__publisher_is_look_due(const struct dlx_publisher *p, uint64_t now_ns)
{
    return dlx_unlikely(now_ns >= p->watch.next_look_ns ||
                        (p->watch.had_daemon_tid && !dlx__writer_has_daemon(&p->core)));
}
/* Look when it is time, and at once when the daemon's word has gone. */
static inline void dlx__publisher_look(struct dlx_publisher *p, uint64_t now_ns)
{
    if (dlx__publisher_is_look_due(p, now_ns))
        dlx__publisher_check(p, now_ns);
}
/* Part of every publish. */
static inline void dlx__publisher_look_after(struct dlx_publisher *p, uint64_t now_ns, uint32_t n)
{
    if (dlx__publisher_is_look_due(p, now_ns))
        dlx__publisher_check_after(p, now_ns, n);
}

/* If that daemon is not there, wait for another one to go on with: reliable subscribers may not
 * have been sent all that they have yet to take. */
void dlx__publisher_await_daemon(struct dlx_publisher *p, struct dlx_wait *wait);

/*
 * A call of the publisher failed with this code. True: because its daemon has ended, and it is
 * known to another one now: try again. If there is none yet, waits for it for so long. False, and
 * the code may be another one: DLX_E_ACCESS, if a daemon does not take it any more;
 * DLX_E_INTERRUPTED.
 */
bool dlx__publisher_has_resumed(struct dlx_publisher *p, int *code, int64_t timeout_ns);

#endif
