/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_OBSERVER_H
#define DLXD_OBSERVER_H

/*
 * An observer is told which publishers and subscriptions match its pattern, and which come and go,
 * without a link to any: docs/decisions/0048-observers.md.
 *
 * A change is the id of an object about which something has changed, and its topic. The daemon
 * keeps the last DLXD_CHANGES_MAX changes, while there is an observer. Each observer reads them at
 * its own pace, and is told the state that the object has by then. So no packet is kept for an
 * observer that does not read its socket. One that has fallen behind the oldest change is told all
 * that is there, as at the beginning.
 *
 * An observer is told what its user may observe (DLXD_MAY_OBSERVE) at the time of telling. A
 * pattern of a subscription counts as if it were the name of a topic. Inboxes are never told.
 */

#include "daemon/objects/objects.h"

#define DLXD_CHANGES_MAX 4096U

/* Which kinds of objects it is told of: bits of Observe. */
#define DLXD_OBSERVES_PUBLISHERS    1U
#define DLXD_OBSERVES_SUBSCRIPTIONS 2U

/* Returns 0, DLX_E_LIMIT, DLX_E_NO_MEMORY, DLX_E_FD_LIMIT, DLX_E_SYSTEM. The caller owns `ret_fd`,
 * the client's end. */
int dlxd_observer_new(struct dlxd_observer **ret, struct dlxd_client *client, const char *topic,
                      uint32_t kinds, int *ret_fd);
/* Accepts NULL. */
void dlxd_observer_free(struct dlxd_observer *observer);
/* Tells all again: the rules have changed. */
void dlxd_observer_restart(struct dlxd_observer *observer);

void dlxd_changes_init(struct dlxd_changes *changes);
/* Something that observers are told has changed, or the object is about to go. */
void dlxd_change_publisher(const struct dlxd_publisher *publisher);
void dlxd_change_subscription(const struct dlxd_subscription *subscription);

#endif
