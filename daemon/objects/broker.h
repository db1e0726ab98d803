/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_BROKER_H
#define DLXD_BROKER_H

/*
 * The state of the daemon without the listening sockets, which server.h has.
 *
 * All work is done by tasks (work.h). No handler frees a client or a subscription: its own task
 * does so, when no pointer to it is on the stack.
 */

#include "daemon/objects/objects.h"

struct uv_loop_s;

/* The quotas are parts of `ram_bytes`. Deinitialize the broker even if this fails. */
int dlxd_broker_init(struct dlxd_broker *broker, struct uv_loop_s *loop,
                     const struct dlx_memory *memory, const struct dlxd_steps *steps,
                     uint64_t ram_bytes);
/* All clients and the store must be gone; the loop must run once more. */
void dlxd_broker_deinit(struct dlxd_broker *broker);

/* Works until nothing is left to do. */
void dlxd_broker_settle(struct dlxd_broker *broker);
/* May the daemon end? True if it has no client and keeps nothing for later ones. */
bool dlxd_broker_is_idle(const struct dlxd_broker *broker);
/* Lets stuck subscriptions and slow publishers try again. */
void dlxd_broker_unstick(struct dlxd_broker *broker);

/* ---- reserved memory that is not used: arena.h --------------------------------------------- */

/* How often reservations are checked, and how long one may go without growing: the kernel slows a
 * process that exceeds memory.high down by up to 2 s a call. */
#define DLXD_RECLAIM_MS       1000U
#define DLXD_RECLAIM_AFTER_NS UINT64_C(10000000000)

/* Checks the least recently checked reservations and returns some of those that do not grow, as if
 * the writer had dropped the arena or closed the publisher that is not ready. Returns true if there
 * may be more of them, for a later turn of the loop. */
bool dlxd_reclaim(struct dlxd_broker *broker, uint64_t now_ns);

#endif
