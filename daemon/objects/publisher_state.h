/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_PUBLISHER_STATE_H
#define DLXD_PUBLISHER_STATE_H

/* What happens to a publisher (enum dlxd_publisher_state): its regions become ready, it is
 * announced, ends, is retained and replaced; and its links are told. */

#include "daemon/memory/proof.h"
#include "daemon/objects/objects.h"

/* ---- regions ------------------------------------------------------------------------------- */

/* Starts to check whether its control block is ready; `fn` is called with the publisher as the
 * owner. Returns 0; or, without a change, DLX_E_IN_USE (it was ready already), DLX_E_NO_MEMORY,
 * DLX_E_SYSTEM. */
int dlxd_publisher_prove(struct dlxd_publisher *publisher, dlxd_proof_fn *fn);
/* The result of the check. Returns 0; on failure returns `code`, and the publisher has ended. */
int dlxd_publisher_ready(struct dlxd_publisher *publisher, int code, const char *text, int take_fd);
/* Likewise starts to check an arena. Returns 0; or, without a change, DLX_E_NOT_FOUND,
 * DLX_E_NO_MEMORY, DLX_E_SYSTEM. */
int dlxd_publisher_arena_prove(struct dlxd_publisher *publisher, uint32_t id, dlxd_proof_fn *fn);
/* The result; links are told by dlxd_publisher_deliver_step(), or dlxd_publisher_tell_links().
 * Returns 0; DLX_E_NO_MEMORY, without a
 * change; or, if the check failed, `code`, and the arena is freed. */
int dlxd_publisher_arena_ready(struct dlxd_publisher *publisher, int code, const char *text,
                               int take_fd);
/* Returns 0; or, without a change, DLX_E_NOT_FOUND or DLX_E_NO_MEMORY. */
int dlxd_publisher_arena_drop(struct dlxd_publisher *publisher, uint32_t id);

/* ---- links --------------------------------------------------------------------------------- */

/* Its links have something new to be told. */
void dlxd_publisher_tell_links(struct dlxd_publisher *publisher);
/* Tells some of them: a step of its task. Returns true if there is more to do. */
bool dlxd_publisher_tell_step(struct dlxd_publisher *publisher);
/* From now on it is announced, and its task offers it: offer.h. */
void dlxd_publisher_announce(struct dlxd_publisher *publisher, bool from_start);

/* ---- the end ------------------------------------------------------------------------------- */

/* The publisher closed. Returns true if it leaves messages and is RETAINED; otherwise it is GONE
 * and freed with its last link. Accepts NULL. */
bool dlxd_publisher_end(struct dlxd_publisher *publisher);
/* The same, but its process, which seems to be dead, may write until the pidfd reports its
 * death. */
void dlxd_publisher_die(struct dlxd_publisher *publisher, int borrow_pidfd);
/* Makes it GONE; it is freed with its last link. */
void dlxd_publisher_vanish(struct dlxd_publisher *publisher);

/* ---- what it retains ----------------------------------------------------------------------- */

/*
 * What publishers leave behind. A publisher that is gone and retains messages stays in its topic
 * with its control block and its arenas, which nobody writes any more. New subscriptions join it
 * like any other, get its newest messages, and are told at once that it is gone. Its bytes stay
 * charged to its user. It ends when a successor whose user may drop it has published as many
 * messages as the successor retains, when somebody with that right drops it, or when its time is
 * over. After a restart of the daemon, while its process lives, only the same publisher, announced
 * again, is its successor.
 *
 * In the same way, unless it is latched, what its declared groups have not done outlives it, for
 * their workers alone. It ends when all is done, when it is dropped, or when its time is over;
 * another publisher does not replace it, except the same one that is announced again and brings it
 * along. Both may be left by one publisher: config.retain and config.n_groups are 0 for what is not
 * there any more.
 */

/*
 * Restores a publisher from the store. If the process of the pidfd (-1: none) is alive, it may
 * write and will announce the publisher again. Until it has done so or is dead, the publisher is
 * SHOWN, or HIDDEN if its library does not check for locks (docs/decisions/0023). If it died before
 * it published anything, the publisher vanishes. One that has closed its control block, whether or
 * not a daemon was told, counts as dead. Returns true if it is HIDDEN.
 *
 * Predecessors are restored before it, and vanish if it retains enough: the former daemon may have
 * been killed before it read PublisherRetains, which a publisher sends only once to a daemon.
 */
bool dlxd_retained_restore(struct dlxd_publisher *publisher, int take_pidfd, uint64_t expires_ns);

/* The publisher may have published what it retains: if so, its predecessors vanish. Does the first
 * part, and the publisher's task the others: returns true if there are any. */
bool dlxd_retained_succeed(struct dlxd_publisher *successor);
/* Does another part. Returns true if there is more to do. */
bool dlxd_retained_succeed_step(struct dlxd_publisher *successor);

/* Drops a part of what is retained on a topic, and counts it. Returns 0 when all is dropped; 1 if
 * there is more; or, if no part was dropped, DLX_E_NOT_FOUND or DLX_E_ACCESS. */
int dlxd_retained_drop(const struct dlxd_client *client, const char *topic, uint32_t *n);
/* The same of what declared groups have not done. */
int dlxd_queues_drop(const struct dlxd_client *client, const char *topic, uint32_t *n);
/* A worker of a declared group has left: lets go of what is kept if all is done. For the task; the
 * publisher may be freed. */
void dlxd_publisher_look_at_groups(struct dlxd_publisher *publisher);

/* Looks at what may have changed without a packet: a publisher of a former daemon has closed, or
 * workers have done what a publisher left and do not leave, or are known to a former daemon
 * alone. */
void dlxd_retained_look_all(struct dlxd_broker *broker);

/* When dlxd_retained_expire() has something to do; UINT64_MAX: never. */
uint64_t dlxd_retained_next_ns(const struct dlxd_broker *broker);
/* Ends the first of those whose time is over. */
void dlxd_retained_expire(struct dlxd_broker *broker, uint64_t now_ns);

/* The daemon ends: everything vanishes. */
void dlxd_retained_clear(struct dlxd_broker *broker);

#endif
