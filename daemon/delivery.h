/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_DELIVERY_H
#define DLXD_DELIVERY_H

/*
 * Sends what the links of a subscription decided: offers, arenas and news on its subscription socket,
 * LinkAdded on the publisher's link socket. Stops when there is no more credit or no more room.
 */

struct dlxd_subscription;

void dlxd_delivery_run(struct dlxd_subscription *subscription);

#endif
