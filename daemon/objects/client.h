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

/* The first client after the one with this id, in their order; NULL: there is none. */
struct dlxd_client *dlxd_client_next(struct dlxd_broker *broker, uint64_t last);
/* The node of the first publisher of the client after the one with this id. */
struct dlxd_list *dlxd_client_next_publisher(struct dlxd_client *client, uint64_t last);

/* Handles Hello. */
void dlxd_client_greet(struct dlxd_client *client, const char *name, uint32_t max_links);

/* ---- requests ------------------------------------------------------------------------------ */

/* A request that may take several steps, because its work depends on what other clients have
 * registered. Until it is answered, nothing else is read from its client, so that requests stay in
 * order. */
void dlxd_request_init(struct dlxd_request *request);
/* Does the first part. The fields that `step` needs must be set. Returns what `step` returned. */
int dlxd_request_begin(struct dlxd_client *client, uint32_t serial,
                       int (*step)(struct dlxd_client *client));
/* Does another part. */
int dlxd_request_continue(struct dlxd_client *client);
/* Ends the request, which was answered or whose client has gone. Does nothing if there is none. */
void dlxd_request_end(struct dlxd_client *client);
/* Sends an Error with the thread's message, unless the request wants no reply (serial 0). */
void dlxd_request_fail(struct dlxd_client *client, uint32_t serial, int code);
/* A request that waited was answered (0), continues (1), or failed with this code. The client is
 * read from again. */
void dlxd_request_resume(struct dlxd_client *client, uint32_t serial, int r);

/* ---- the review of what it has ------------------------------------------------------------- */

/*
 * The review after a change of the rules: a client with a publisher, subscription or link that is
 * not allowed any more is disconnected, which ends all of them. Its library then asks again for
 * what it may still have.
 *
 *   NONE --dlxd_client_review()--> PUBLISHERS --all checked--> SUBSCRIPTIONS --all checked--> NONE
 *                                      ^                             |
 *                                      +----dlxd_client_review()-----+
 *
 * A client is reviewed in steps of its own task, and nothing is read from it before the end. What
 * it gets between two steps was checked by the new rules when it came. Objects are checked in the
 * order of their ids, so an object that ends between two steps makes the review miss none.
 */

/* The rules have changed: the client's task checks whether they still allow what it has. */
void dlxd_client_review(struct dlxd_client *client);
/* Does a step of it. */
void dlxd_review_step(struct dlxd_client *client);

#endif
