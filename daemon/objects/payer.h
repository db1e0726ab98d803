/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_PAYER_H
#define DLXD_PAYER_H

/*
 * Who is charged for memory that its owner has let go of, and that subscribers still have: not
 * the owner, whom they could make pay for ever, but one of their own users after the other. A user
 * pays even beyond its limits.
 *
 * An arena that its owner dropped is charged until each link that knew it has acknowledged that:
 * until its ArenaDropped has landed (outbox.h), or the link has ended. So a subscriber that does
 * not read pays for what it keeps. First pay links that were not told yet, in their order, and then
 * those that were told, the one told the longest ago first. The search for the next one only
 * goes forward.
 */

struct dlxd_arena;
struct dlxd_link;
struct dlxd_publisher;

/* The owner dropped it, and a link knows it. */
void dlxd_payer_of_dropped(struct dlxd_publisher *publisher, struct dlxd_arena *arena);
/* This link was told, has acknowledged it, or ends; not all have acknowledged it. */
void dlxd_payer_may_change(struct dlxd_link *link, struct dlxd_arena *arena);
/* The owner has gone, or a link of one that has: the first link that is left pays for all of it. */
void dlxd_payer_of_gone(struct dlxd_publisher *publisher);

#endif
