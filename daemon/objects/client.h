/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_CLIENT_H
#define DLXD_CLIENT_H

/* A client: a connection with its identity, its control socket and bounded queue of replies, and
 * the objects that it owns. It ends when its process dies (pidfd), when its socket hangs up, or
 * when the daemon disconnects it with a reason. */

#include "daemon/objects/objects.h"

#define DLXD_HELLO_NS UINT64_C(2000000000)
/* The limit for each user: above it, the client that has waited longest without Hello is
 * disconnected. */
#define DLXD_GREETING_MAX 256U
/* How many refused clients are kept until their Hello, to reply with the reason. */
#define DLXD_REFUSED_MAX 32U

/* Can this system report the death of a client? Returns 0, or DLX_E_KERNEL with the reason. */
int dlxd_client_supported(void);

/*
 * Makes a client for a connection that the listening socket with this name accepted. Takes the fd,
 * also on failure, after reporting the failure to the peer. Also makes refused clients, to reply to
 * their Hello with the reason. Returns 0; DLX_E_DISCONNECTED (already dead), DLX_E_NO_MEMORY,
 * DLX_E_FD_LIMIT, DLX_E_SYSTEM.
 */
int dlxd_client_new(struct dlxd_client **ret, struct dlxd_broker *broker, int take_fd,
                    const char *socket);
/* Ends a part of what an ENDING client owns. Returns false when nothing is left. */
bool dlxd_client_end_some(struct dlxd_client *client);
/* Frees the client and everything it owns at once. Accepts NULL. */
void dlxd_client_free(struct dlxd_client *client);

/* Handles Hello. */
void dlxd_client_greet(struct dlxd_client *client, const char *name, uint32_t max_links);
/* The rules have changed: the client's task checks whether they still allow what it has
 * (review.h). */
void dlxd_client_review(struct dlxd_client *client);

#endif
