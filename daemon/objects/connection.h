/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_CONNECTION_H
#define DLXD_CONNECTION_H

/* The connection of a client: its control socket with a bounded queue of replies, its end, and its
 * process, which may outlive it. The functions here change no other object, so any file of this
 * folder may call them: a client that ends is only marked, and its task ends what it owns
 * (client.h). */

#include "daemon/objects/objects.h"

struct Dlx__Wire__Packet;

#define DLXD_TX_PACKETS_MAX 64U
#define DLXD_TX_BYTES_MAX   (256U * 1024U)

/* ---- sending ------------------------------------------------------------------------------- */

/* Send on the control socket, after the queued packets. Without fds, sending cannot fail: a client
 * whose queue is full is disconnected. With fds, which the caller keeps, nothing is queued: returns
 * DLX_E_LIMIT if they cannot be sent now. */
void dlxd_client_send(struct dlxd_client *client, const struct Dlx__Wire__Packet *packet);
int dlxd_client_send_fds(struct dlxd_client *client, const struct Dlx__Wire__Packet *packet,
                         const int *borrow_fds, size_t n_fds);
void dlxd_client_send_ok(struct dlxd_client *client, uint32_t serial);
void dlxd_client_send_error(struct dlxd_client *client, uint32_t serial, int code,
                            const char *text);
/* Sends queued replies, as far as there is room. */
void dlxd_client_flush(struct dlxd_client *client);
/* Frees them. */
void dlxd_client_forget_replies(struct dlxd_client *client);

/* Does it wait for a reply, so that nothing is read from it? */
bool dlxd_client_is_paused(const struct dlxd_client *client);
/* Call it after a change of `barrier`, `awaits_proof` or `input`. */
void dlxd_client_rewatch(struct dlxd_client *client);

/* ---- the end ------------------------------------------------------------------------------- */

void dlxd_client_set_state(struct dlxd_client *client, enum dlxd_client_state state);
/* Has its process closed the control socket or died? Checks both, because the event may not have
 * arrived yet. */
bool dlxd_client_has_left(const struct dlxd_client *client);
/* Was it disconnected by a rule or for a violation? Not if the daemon stops or lacks something. */
bool dlxd_client_is_cut(const struct dlxd_client *client);
/* The client's task ends it; nothing is sent. */
void dlxd_client_doom(struct dlxd_client *client);
/* Tells a connection why it is about to be closed, if that fits into its socket. */
void dlxd_client_goodbye(int borrow_fd, int code, const char *text);
/* Like dlxd_client_doom(), with a Disconnect that gives the reason, if it fits into the socket. */
void dlxd_client_disconnect(struct dlxd_client *client, int code, const char *fmt, ...)
    dlx_printf(3, 4);
/* Disconnects a refused client (refuse_code) without waiting for its Hello. */
void dlxd_client_refuse(struct dlxd_client *client);

/* ---- the process --------------------------------------------------------------------------- */

/* The longest time between the hang-up of a process's sockets and its death. */
#define DLXD_DYING_NS UINT64_C(1000000000)

/* Has the process of this pidfd ended? */
bool dlxd_process_is_dead(int borrow_pidfd);
/* Is the subscriber of this link page gone: does it hold nothing and take nothing any more, or is
 * its process dead? */
bool dlxd_reader_has_left(int borrow_page_fd, uint32_t max_held, int borrow_pidfd);

/* Returns NULL if out of memory, with the thread's message set. Takes the fd on success. */
struct dlxd_holder *dlxd_holder_new(struct dlxd_client *client, int take_pidfd);
/* The connection has ended, and all its subscriptions. */
void dlxd_holder_disconnected(struct dlxd_holder *holder);
/* Something that it has was freed. Frees it if nothing is left and the connection has ended. */
void dlxd_holder_release(struct dlxd_holder *holder);
/* The name of its client. */
const char *dlxd_holder_name(const struct dlxd_holder *holder);

#endif
