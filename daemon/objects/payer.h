/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_PAYER_H
#define DLXD_PAYER_H

/*
 * Who is charged for memory that its owner has let go of, and that subscribers still have: not
 * the owner, whom they could make pay for ever, but one of their own users after the other, in
 * the order of the links. A user pays even beyond its limits.
 */

struct dlxd_arena;
struct dlxd_link;
struct dlxd_publisher;

/* The owner dropped it: the first link that knows it, and has yet to be told, pays. There is
 * one. */
void dlxd_payer_of_dropped(struct dlxd_publisher *publisher, struct dlxd_arena *arena);
/* This link was told, or ends; there is another one that was not. */
void dlxd_payer_was_told(struct dlxd_link *link, struct dlxd_arena *arena);
/* The owner has gone, or a link of one that has: the first link that is left pays for all of it. */
void dlxd_payer_of_gone(struct dlxd_publisher *publisher);

#endif
