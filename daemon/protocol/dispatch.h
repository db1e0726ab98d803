/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_DISPATCH_H
#define DLXD_DISPATCH_H

/*
 * From a readable socket to a handler: receive, unpack, look up the body in a table, validate, handle.
 * A request that fails gets an Error; a violation of the protocol disconnects the client.
 */

#include "common/util.h"

struct dlxd_client;
struct dlxd_readers;
struct dlxd_subscription;
struct Dlx__Wire__Packet;

/* For dlxd_broker_init(): the first two of these. */
extern const struct dlxd_readers dlxd_dispatch;

/* A step of a client's task: a packet of its control socket, if there is one; of one that ends, a part of what it owns.
 * False: nothing is left to do, and one that ends is freed. */
bool dlxd_dispatch_client(struct dlxd_client *client);
/* A packet of a subscription's socket, if there is one. */
void dlxd_dispatch_subscription(struct dlxd_subscription *subscription);
/* A request that waited was answered (0), goes on (1), or failed with this code, and its client
 * is read from again. */
void dlxd_dispatch_resume(struct dlxd_client *client, uint32_t serial, int r);

/* One packet's bytes, without fds: for tests and fuzzing. */
void dlxd_dispatch_client_bytes(struct dlxd_client *client, const uint8_t *data, size_t size);
void dlxd_dispatch_subscription_bytes(struct dlxd_subscription *subscription, const uint8_t *data,
                                      size_t size);

#endif
