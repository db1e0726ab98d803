/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_RETAINED_H
#define DLXD_RETAINED_H

/*
 * What publishers leave behind. A publisher that is gone and retains messages stays in its topic
 * with its control block and its arenas, which nobody writes any more. New subscriptions join it
 * like any other, get its newest messages, and are told at once that it is gone. Its bytes stay
 * charged to its user. It ends when a successor whose user may drop it has published as many
 * messages as the successor retains, when somebody with that right drops it, or when its time is
 * over. After a restart of the daemon, while its process lives, only the same publisher, announced
 * again, is its successor.
 */

#include "daemon/objects/objects.h"

/* May it leave messages for the daemon to keep? Its memory counts as retained from the start, so
 * that there is room for it at its end, when nobody could be told of a lack. */
bool dlxd_retained_is_possible(const struct dlxd_publisher *publisher);
/* Does it leave messages for the daemon to keep? */
bool dlxd_retained_is_wanted(const struct dlxd_publisher *publisher);

/* Makes it RETAINED. With a pidfd (-1: none), it is first DYING, and no subscription joins, until
 * that process is dead, because the process may be writing. If it is not dead soon, the publisher
 * vanishes. */
void dlxd_retained_add(struct dlxd_publisher *publisher, int borrow_pidfd);

/*
 * Restores a publisher from the store. If the process of the pidfd (-1: none) is alive, it may
 * write and will announce the publisher again. Until it has done so or is dead, the publisher is
 * SHOWN, or HIDDEN if its library does not check for locks (docs/decisions/0023). If it died before
 * it published anything, the publisher vanishes. Returns true if it is HIDDEN.
 *
 * Predecessors are restored before it, and vanish if it retains enough: the former daemon may have
 * been killed before it read PublisherRetains, which a publisher sends only once to a daemon.
 */
bool dlxd_retained_restore(struct dlxd_publisher *publisher, int take_pidfd, uint64_t expires_ns);

/* The publisher vanishes: frees what was kept for it. Does nothing for other publishers. */
void dlxd_retained_remove(struct dlxd_publisher *publisher);

/* The publisher is announced. If it is a SHOWN publisher announced again, no new subscription joins
 * the latter. */
void dlxd_retained_resume(struct dlxd_publisher *successor);

/* The publisher may have published what it retains: if so, its predecessors vanish. Does the first
 * part, and the publisher's task the others: returns true if there are any. */
bool dlxd_retained_succeed(struct dlxd_publisher *successor);
/* Does another part. Returns true if there is more to do. */
bool dlxd_retained_succeed_step(struct dlxd_publisher *successor);

/* Drops a part of what is retained on a topic, and counts it. Returns 0 when all is dropped; 1 if
 * there is more; or, if no part was dropped, DLX_E_NOT_FOUND or DLX_E_ACCESS. */
int dlxd_retained_drop(const struct dlxd_client *client, const char *topic, uint32_t *n);

/* When dlxd_retained_expire() has something to do; UINT64_MAX: never. */
uint64_t dlxd_retained_next_ns(const struct dlxd_broker *broker);
/* Does a part. */
void dlxd_retained_expire(struct dlxd_broker *broker, uint64_t now_ns);

/* The daemon ends: everything vanishes. */
void dlxd_retained_clear(struct dlxd_broker *broker);

#endif
