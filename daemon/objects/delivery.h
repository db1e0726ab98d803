/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_DELIVERY_H
#define DLXD_DELIVERY_H

/* Sends what the links of a subscription have decided: offers, arenas and notifications on its
 * subscription socket, and LinkAdded on the publisher's link socket. Stops when there is no more
 * credit or no more room. */

#include "daemon/objects/objects.h"

/* Sends the next packet. Returns false if nothing can be sent now. */
bool dlxd_delivery_step(struct dlxd_subscription *subscription);

/* The subscriber of an OFFERED link says that its page is ready: starts the proof on a worker. The
 * link becomes READY or fails. */
void dlxd_delivery_prove(struct dlxd_link *link);

/* Tells the publisher of a former spare link at once, whatever the subscriber has acknowledged. If
 * that fails for now, it is tried again as for any link. */
void dlxd_delivery_join(struct dlxd_link *link);

/* Sends LinkFailed at once for a link that could not be allocated. Returns 0, DLX_E_FULL,
 * DLX_E_DISCONNECTED, DLX_E_SYSTEM. */
int dlxd_delivery_tell_failed(const struct dlxd_subscription *subscription, uint64_t link, int code,
                              const char *text);

#endif
