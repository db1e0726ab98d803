/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_OFFER_H
#define DLXD_OFFER_H

/* Which publisher serves which subscription: makes the links, whichever side comes first. The later
 * side pays for the work, which is done in steps. `last_announcement` in registry.h describes how
 * each pair meets exactly once. */

#include "daemon/objects/objects.h"

/* May this publisher serve this subscription? Returns 0; DLX_E_QOS naming both, DLX_E_ACCESS. */
int dlxd_offer_fits(const struct dlxd_subscription *subscription,
                    const struct dlxd_publisher *publisher);

/* ---- a new subscription and the existing publishers ------------------------------------------ */

/* Starts for an OPENING subscription, which must not end before dlxd_offers_deinit(). */
void dlxd_offers_init(struct dlxd_offers *offers, struct dlxd_subscription *subscription);
/* Finds the publishers, makes a link to each, then makes spare links. If a publisher does not
 * match, it fails before any link is made. Returns 0 when done; 1 if there is more to do;
 * DLX_E_QOS, DLX_E_ACCESS, DLX_E_NO_MEMORY. */
int dlxd_offers_step(struct dlxd_offers *offers);
void dlxd_offers_deinit(struct dlxd_offers *offers);

/* ---- a new publisher and the existing subscriptions ------------------------------------------ */

/* Offers the publisher to some subscriptions. A subscription that does not match gets LinkFailed. A
 * new publisher takes a spare link of each subscription that has one. Returns true if there is more
 * to do. */
bool dlxd_offering_step(struct dlxd_publisher *publisher);

/* ---- a publisher's task, and its replies --------------------------------------------------- */

/* A step of its task. */
bool dlxd_publisher_step(struct dlxd_task *task);
/* Returns 0; or DLX_E_FULL, naming an earlier subscription for whose link the publisher must
 * wait. */
int dlxd_publisher_check_awaited(const struct dlxd_publisher *publisher);

/* Schedules what open links are to be told, and sends it, as far as there is room and credit, from
 * the first link on in steps, for a reply that must follow these packets.
 * dlxd_publisher_deliver_step() returns true if there is more to do. */
void dlxd_publisher_deliver_begin(struct dlxd_publisher *publisher);
bool dlxd_publisher_deliver_step(struct dlxd_publisher *publisher);

#endif
