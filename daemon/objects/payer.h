/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_PAYER_H
#define DLXD_PAYER_H

/*
 * Who is charged for memory that its owner has released and that subscribers still have. The owner
 * is not charged, because subscribers could make it pay forever; their own users are, one after the
 * other, even beyond their limits.
 *
 * A dropped arena stays charged until each link that knew it has acknowledged the drop: until its
 * ArenaDropped has landed (outbox.h) or the link has ended. So a subscriber that does not read pays
 * for what it keeps. Links that were not told yet pay first, in their order, then those that were
 * told, the least recently told first. The search for the next payer only moves forward.
 */

#include "daemon/objects/objects.h"

/* The owner dropped the arena, and a link knows it. */
void dlxd_payer_of_dropped(struct dlxd_publisher *publisher, struct dlxd_arena *arena);
/* This link was told, has acknowledged the drop, or ends; others have not acknowledged it. */
void dlxd_payer_may_change(struct dlxd_link *link, struct dlxd_arena *arena);
/* The owner is gone, or a link of a GONE owner has ended: the first remaining link, or else the
 * first draining one, pays for everything. */
void dlxd_payer_of_gone(struct dlxd_publisher *publisher);

#endif
