/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_RETAINED_H
#define DLXD_RETAINED_H

/*
 * What publishers leave behind. A publisher that has gone and retains messages stays in its topic, with its control
 * block and its arenas, which nobody writes any more: newcomers attach to it as to one that is there, get
 * its newest messages, and are told at once that it has gone. Its bytes stay charged to its user. It ends
 * when a successor of a user with the right to drop it has published as many messages as that retains, when
 * somebody with that right drops it, or when its time is over. While it lives, after a restart of
 * the daemon, only the same publisher, announced again, is its successor.
 */

#include <stdbool.h>
#include <stdint.h>

struct dlxd_broker;
struct dlxd_client;
struct dlxd_publisher;

/* May it leave anything that the daemon is to keep? Its memory counts as retained from the start,
 * so that there is room for it at its end, which nobody could be told of. */
bool dlxd_retained_is_possible(const struct dlxd_publisher *publisher);
/* Does it leave anything that the daemon is to keep? */
bool dlxd_retained_is_wanted(const struct dlxd_publisher *publisher);

/*
 * It is RETAINED now. With a pidfd (-1: none) it is DYING before, and nobody joins, until that
 * process is dead, since it may be writing; if it is not dead soon, the publisher vanishes.
 */
void dlxd_retained_add(struct dlxd_publisher *publisher, int pidfd_borrow_fd);

/*
 * It is back from the store. If the process of the pidfd (-1: none) is still alive, it may write,
 * and will announce the publisher again: until it is dead, or that has happened, the publisher is
 * SHOWN, or HIDDEN where its library does not look for locks (docs/decisions/0023). If it died
 * before it published anything, the publisher vanishes. Returns whether it is HIDDEN.
 *
 * Predecessors are restored before it, and vanish if it retains enough: a former daemon that was
 * killed may not have read its PublisherRetains, which a publisher sends to one daemon once.
 */
bool dlxd_retained_restore(struct dlxd_publisher *publisher, int take_pidfd, uint64_t expires_ns);

/* It vanishes: let go of what was kept for it. Harmless for others. */
void dlxd_retained_remove(struct dlxd_publisher *publisher);

/* The publisher is announced. If it is one that is SHOWN, once more, nobody new joins that. */
void dlxd_retained_resume(struct dlxd_publisher *successor);

/* The publisher may have published what it retains: if so, its predecessors vanish. */
void dlxd_retained_succeed(struct dlxd_publisher *successor);

/*
 * Drop a part of what is retained on a topic, and count it. Returns 0 when all is dropped; 1: there is more; DLX_E_NOT_FOUND,
 * DLX_E_ACCESS: nothing was dropped, in this part or before.
 */
int dlxd_retained_drop(const struct dlxd_client *client, const char *topic, uint32_t *n);

/* When dlxd_retained_expire() has something to do; UINT64_MAX: never. */
uint64_t dlxd_retained_next_ns(const struct dlxd_broker *broker);
void dlxd_retained_expire(struct dlxd_broker *broker, uint64_t now_ns);

/* All of it vanishes: the daemon ends. */
void dlxd_retained_clear(struct dlxd_broker *broker);

#endif
