/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_DISPATCH_H
#define DLXD_DISPATCH_H

/* From a readable socket to a handler: receives, unpacks, finds the handler in a table, validates
 * and handles. A request that fails gets an Error; a violation of the protocol disconnects the
 * client. */
#include "common/util.h"

struct dlxd_client;
struct dlxd_readers;
struct dlxd_subscription;
struct Dlx__Wire__Packet;

/* For dlxd_broker_init(): the first two functions below. */
extern const struct dlxd_readers dlxd_dispatch;

/* Runs one step of a client's task: handles a packet of its control socket, if there is one, or
 * ends a part of what an ending client owns. Returns false if nothing is left to do; an ending
 * client is then freed. */
bool dlxd_dispatch_client(struct dlxd_client *client);
/* Handles a packet of a subscription's socket, if there is one. */
void dlxd_dispatch_subscription(struct dlxd_subscription *subscription);
/* A waiting request was answered (0), continues (1), or failed with this code. The client is read
 * from again. */
void dlxd_dispatch_resume(struct dlxd_client *client, uint32_t serial, int r);

/* Handle the bytes of one packet without fds: for tests and fuzzing. */
void dlxd_dispatch_client_bytes(struct dlxd_client *client, const uint8_t *data, size_t size);
void dlxd_dispatch_subscription_bytes(struct dlxd_subscription *subscription, const uint8_t *data,
                                      size_t size);

#endif
