/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_CLIENT_H
#define DLXD_CLIENT_H

/* A client: a connection with its identity, its control socket and bounded queue of replies, and
 * the objects that it owns. It ends when its process dies (pidfd), when its socket hangs up, or
 * when the daemon disconnects it with a reason. */

#include "daemon/objects/objects.h"

struct dlx_packet;
struct Dlx__Wire__Packet;

#define DLXD_TX_PACKETS_MAX 64U
#define DLXD_TX_BYTES_MAX   (256U * 1024U)
/* The longest time between the hang-up of a process's sockets and its death. */
#define DLXD_DYING_NS UINT64_C(1000000000)
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
/* Has its process closed the control socket or died? Checks both, because the event may not have
 * arrived yet. */
bool dlxd_client_has_left(const struct dlxd_client *client);
/* Was it disconnected by a rule or for a violation? Not if the daemon stops or lacks something. */
bool dlxd_client_is_cut(const struct dlxd_client *client);
/* The rules have changed: the client's task checks whether they still allow what it has
 * (review.h). */
void dlxd_client_review(struct dlxd_client *client);
/* The client's task ends it; nothing is sent. */
void dlxd_client_doom(struct dlxd_client *client);
/* Tells a connection why it is about to be closed, if that fits into its socket. */
void dlxd_client_goodbye(int borrow_fd, int code, const char *text);
/* Like dlxd_client_doom(), with a Disconnect that gives the reason, if it fits into the socket. */
void dlxd_client_disconnect(struct dlxd_client *client, int code, const char *fmt, ...)
    dlx_printf(3, 4);
/* Disconnects a refused client (refuse_code) without waiting for its Hello. */
void dlxd_client_refuse(struct dlxd_client *client);

/* Send on the control socket, after the queued packets. Without fds, sending cannot fail: a client
 * whose queue is full is disconnected. With fds, which the caller keeps, nothing is queued: returns
 * DLX_E_LIMIT if they cannot be sent now. */
void dlxd_client_send(struct dlxd_client *client, const struct Dlx__Wire__Packet *packet);
int dlxd_client_send_fds(struct dlxd_client *client, const struct Dlx__Wire__Packet *packet,
                         const int *borrow_fds, size_t n_fds);
void dlxd_client_send_ok(struct dlxd_client *client, uint32_t serial);
void dlxd_client_send_error(struct dlxd_client *client, uint32_t serial, int code,
                            const char *text);
/* Does it wait for a reply, so that nothing is read from it? */
bool dlxd_client_is_paused(const struct dlxd_client *client);
/* Call it after a change of `barrier`, `awaits_proof` or `input`. */
void dlxd_client_rewatch(struct dlxd_client *client);

#endif
