/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_SUBSCRIPTION_H
#define DLXD_SUBSCRIPTION_H

/* A subscription: its socket, its links, and the credit for packets with fds. */

#include "daemon/objects/objects.h"

/* The most packets with fds in flight on one subscription socket, not counting LinkOpen of former
 * spare links. */
#define DLXD_CREDIT 4U
/* Of a reliable one, or a worker of a group: its publishers copy the messages that it was not sent
 * when the daemon ends. */
#define DLXD_CREDIT_RELIABLE 16U

/* Returns 0, DLX_E_LIMIT, DLX_E_NO_MEMORY, DLX_E_FD_LIMIT, DLX_E_SYSTEM. The caller owns `ret_fd`,
 * the subscriber's end. */
int dlxd_subscription_new(struct dlxd_subscription **ret, struct dlxd_client *client,
                          const char *topic, const struct dlxd_subscription_config *config,
                          int *ret_fd);
/* Ends all its links and frees it. Accepts NULL. */
void dlxd_subscription_free(struct dlxd_subscription *subscription);
/* Does a step of it. Returns true when the subscription is freed. */
bool dlxd_subscription_end_some(struct dlxd_subscription *subscription);
/* Its task ends it. */
void dlxd_subscription_doom(struct dlxd_subscription *subscription);

/* Returns the client's subscription with this id; or NULL, with the text of DLX_E_NOT_FOUND set. */
struct dlxd_subscription *dlxd_subscription_find(struct dlxd_client *client, uint64_t id);

/* How many packets with fds may be sent now. */
uint32_t dlxd_subscription_credit(const struct dlxd_subscription *subscription);
/* The subscriber has acknowledged `n` packets. Returns 0, or DLX_E_PROTOCOL if that is more than
 * were sent. */
int dlxd_subscription_ack(struct dlxd_subscription *subscription, uint32_t n);
/* Its Subscribe is answered. */
void dlxd_subscription_open(struct dlxd_subscription *subscription);

/* Call it after a change of its state or `input`. */
void dlxd_subscription_rewatch(struct dlxd_subscription *subscription);

/*
 * What dlpackd itself lacks to make links: descriptors, memory, a thread. That passes, so it ends
 * no link. The subscription is stuck and tries again, at first after 20 ms, at last every second.
 * The log tells when the first subscription waits and when the last one goes on; DaemonInfoReply
 * has the text meanwhile.
 */

/* A step failed for the lack of which the thread's error message tells. */
void dlxd_lack_begin(struct dlxd_subscription *subscription);
/* A step succeeded that needs what was lacking, or none is left to do. */
void dlxd_lack_end(struct dlxd_subscription *subscription);

#endif
