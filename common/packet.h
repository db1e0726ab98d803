/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_PACKET_H
#define DLX_COMMON_PACKET_H

/* Packets with file descriptors over Unix SOCK_SEQPACKET. This module has the only recvmsg() and
 * the only sendmsg() of the project, so that the special cases of passed fds are handled once. */

#include "common/util.h"

#define DLX_PACKET_SIZE_MAX 16384U
/* The most fds that the kernel allows in one message (SCM_MAX_FD). */
#define DLX_PACKET_FDS_MAX 253U

/* A received packet. It owns `fds` until the caller steals them. */
struct dlx_packet {
    size_t size;
    size_t n_fds;
    int fds[DLX_PACKET_FDS_MAX];
    /* + 1: a longer packet shows as MSG_TRUNC, or as too long. */
    uint8_t data[DLX_PACKET_SIZE_MAX + 1];
};

/* Closes the fds that were not stolen. The packet can be reused. Accepts NULL. */
dlx_for_gpu void dlx__packet_deinit(struct dlx_packet *packet);

/* Takes fd `i` out of the packet; the caller owns it. Returns -1 if there is none or it was taken
 * before. */
int dlx__packet_steal_fd(struct dlx_packet *packet, size_t i);

/*
 * Makes the kernel refuse descriptors that anybody sends to this socket, or to connections that
 * this listening socket will accept (SO_PASSRIGHTS, Linux 6.16; without effect before). Closing
 * such descriptors, or a socket with some in its queue, can take as long as their sender likes:
 * sockets with SO_LINGER, files of FUSE.
 */
void dlx__packet_refuse_fds(int borrow_sock);
/* Does the kernel refuse them? If not, the queue of the socket may contain some. */
bool dlx__packet_refuses_fds(int borrow_sock);

/*
 * Receives one packet, without waiting, from a peer that may not send descriptors. Returns 0;
 * DLX_E_EMPTY (no packet), DLX_E_DISCONNECTED (the peer is gone and everything it sent was read),
 * DLX_E_PROTOCOL (empty, longer than DLX_PACKET_SIZE_MAX, or with descriptors), DLX_E_SYSTEM. On
 * every error `packet` is empty. A packet that violates the protocol stays in the socket with its
 * descriptors: they never enter this process, and the kernel releases them when the socket is
 * closed, which the caller does on a thread that may block. Costs one extra call, which peeks at
 * the packet.
 */
int dlx__packet_recv(int borrow_sock, struct dlx_packet *packet);

/*
 * Receives one packet with its descriptors, like dlx__packet_recv(), with these differences.
 * DLX_E_PROTOCOL also covers foreign control data; every error closes all descriptors.
 * DLX_E_FD_LIMIT (MSG_CTRUNC: RLIMIT_NOFILE leaves no room, or a security module refused them)
 * loses nothing: the packet stays in the socket, to be received again or dropped, and `data` and
 * `size` show its content. No other thread may receive from the socket meanwhile.
 */
dlx_for_gpu int dlx__packet_recv_fds(int borrow_sock, struct dlx_packet *packet);
/* The same, but the packet stays in the socket on success, too: the caller drops it when it is done
 * with it, or receives it again, with other descriptors. */
int dlx__packet_look_fds(int borrow_sock, struct dlx_packet *packet);
/* Discards the next packet. Returns false if it is still there. */
bool dlx__packet_drop(int borrow_sock);

/* Has the peer closed its end? Packets that it sent before may still be unread. */
dlx_for_gpu bool dlx__packet_hung_up(int borrow_sock);

/* Sends one packet without waiting; the caller keeps `fds`. Returns 0; DLX_E_FULL (errno EAGAIN:
 * the receiver does not read; ETOOMANYREFS: our user has too many fds in flight; ENOBUFS: no
 * memory; try again later), DLX_E_DISCONNECTED, DLX_E_NO_MEMORY, DLX_E_SYSTEM. */
dlx_for_gpu int dlx__packet_send(int borrow_sock, const void *data, size_t size,
                                 const int *borrow_fds, size_t n_fds);

#endif
