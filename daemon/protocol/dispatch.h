/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_DISPATCH_H
#define DLXD_DISPATCH_H

/* From a readable socket to a handler: receives, unpacks, finds the handler in a table, validates
 * and handles. A request that fails gets an Error; a violation of the protocol disconnects the
 * client. */
#include "common/util.h"

struct dlxd_client;
struct dlxd_steps;
struct dlxd_subscription;
struct Dlx__Wire__Packet;

/* For dlxd_broker_init(): what the tasks of the broker's objects do. */
extern const struct dlxd_steps dlxd_dispatch;

/* Handle the bytes of one packet without fds: for tests and fuzzing. */
void dlxd_dispatch_client_bytes(struct dlxd_client *client, const uint8_t *data, size_t size);
void dlxd_dispatch_subscription_bytes(struct dlxd_subscription *subscription, const uint8_t *data,
                                      size_t size);

#endif
