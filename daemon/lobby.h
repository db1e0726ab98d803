/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_LOBBY_H
#define DLXD_LOBBY_H

/*
 * Newcomers of a publisher that makes no call. LinkAdded packets lie in its link socket; when that is full, in a lobby: two datagram
 * sockets ("trays") whose receiving ends lie in the link socket as well, so that the publisher finds who has joined whatever becomes
 * of the daemon. One of the trays is in use. When it is full, and some of those in it have left, the packets of the others are
 * sent to the other tray, and then this one is emptied, as the kernel does when a datagram socket is connected anew. A daemon that is killed at
 * any point of that leaves packets twice, and none is lost.
 *
 * The daemon never receives from a socket that a publisher has, too: the kernel locks the socket while it copies a packet to its
 * receiver, who may have memory there that is not there for as long as he likes (a file of a FUSE file system). Connecting takes no such lock.
 * docs/decisions/0012.
 */

#include "common/proto.h"

struct dlxd_lobby;
struct dlxd_publisher;
struct dlxd_user;

/* In the link socket, and in the lobby. */
#define DLXD_WAITING_MAX 128U

/* Room for so many LinkAdded packets that are not received yet. Returns 0, DLX_E_SYSTEM. */
int dlxd_lobby_set_room(int borrow_sock, uint32_t n_packets);

/*
 * Send LinkAdded to the publisher, who has a client, whichever way. While it waits in the lobby the link is charged to the user once more. The
 * fds (page, bell, pidfd) stay the caller's. Returns 0; DLX_E_PUBLISHER_NOT_RESPONDING, without a text (there is no room); what dlx__proto_send()
 * returns; DLX_E_LIMIT, DLX_E_NO_MEMORY, DLX_E_FD_LIMIT, DLX_E_SYSTEM.
 */
int dlxd_lobby_send_added(struct dlxd_publisher *publisher, struct dlxd_user *user,
                          const Dlx__Wire__LinkAdded *body, const int fds_borrow[3]);

/* One of its links has ended. Closes the lobby if the publisher has picked up all that is in it. */
void dlxd_lobby_left(struct dlxd_publisher *publisher);

/* Returns NULL; NULL is fine. */
struct dlxd_lobby *dlxd_lobby_free(struct dlxd_lobby *lobby);

#endif
