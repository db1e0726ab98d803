/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_DELIVERY_H
#define DLXD_DELIVERY_H

/*
 * Sends what the links of a subscription decided: offers, arenas and news on its subscription socket,
 * LinkAdded on the publisher's link socket. Stops when there is no more credit or no more room.
 */

#include <stdbool.h>
#include <stdint.h>

struct dlxd_link;
struct dlxd_subscription;

/* The next packet. False: nothing can be sent now. */
bool dlxd_delivery_step(struct dlxd_subscription *subscription);

/* An OFFERED link's subscriber says that its page is ready: look, on a worker. It becomes READY, or
 * fails. */
void dlxd_delivery_prove(struct dlxd_link *link);

/* At once, tell the publisher of a link that was a spare, however much the subscriber has acknowledged. If that fails for now, it
 * is tried again as for any link. */
void dlxd_delivery_join(struct dlxd_link *link);

/* At once, LinkFailed of a link that there was no memory for. Returns 0, DLX_E_FULL, DLX_E_DISCONNECTED, DLX_E_SYSTEM. */
int dlxd_delivery_tell_failed(const struct dlxd_subscription *subscription, uint64_t link, int code,
                              const char *text);

#endif
