/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_PACKET_H
#define DLX_COMMON_PACKET_H

/*
 * Packets with file descriptors over Unix SOCK_SEQPACKET. Here is the only recvmsg() and the only
 * sendmsg() of the project: what the kernel may do with fds is handled once.
 */

#include "common/util.h"

#define DLX_PACKET_SIZE_MAX 16384U
/* What the kernel lets one message carry (SCM_MAX_FD). */
#define DLX_PACKET_FDS_MAX 253U

/* A received packet. It owns `fds` until they are stolen. */
struct dlx_packet {
    size_t size;
    size_t n_fds;
    int fds[DLX_PACKET_FDS_MAX];
    uint8_t
        data[DLX_PACKET_SIZE_MAX + 1]; /* + 1: a longer packet shows as MSG_TRUNC or as too long */
};

/* Close what was not stolen. The packet can be used again. NULL is fine. */
void dlx__packet_deinit(struct dlx_packet *packet);

/* Take fd `i` out: the caller owns it. -1 when there is none or it was taken before. */
int dlx__packet_steal_fd(struct dlx_packet *packet, size_t i);

/*
 * From now on the kernel refuses descriptors that somebody sends to this end (SO_PASSRIGHTS, Linux 6.16; nothing happens
 * before), and to connections that a listener will accept. To close them, or a socket that has them in its queue, may take as
 * long as their maker likes: sockets that linger, files of a FUSE file system.
 */
void dlx__packet_refuse_fds(int sock_borrow_fd);
/* Does it? Otherwise there may be some in its queue. */
bool dlx__packet_refuses_fds(int sock_borrow_fd);

/*
 * Receive one packet, of somebody who may send no descriptors, without waiting. Returns 0;
 * DLX_E_EMPTY (nothing there), DLX_E_DISCONNECTED (the peer is gone and everything it sent was
 * read), DLX_E_PROTOCOL (empty, longer than DLX_PACKET_SIZE_MAX, or with descriptors),
 * DLX_E_SYSTEM. On every error `packet` is empty. What violates the protocol stays in the socket,
 * and descriptors with it: they never become ours, and the kernel lets go of them when the socket
 * is closed, which is for the caller to do where nobody waits. Costs one more call, a look at the
 * packet first.
 */
int dlx__packet_recv(int sock_borrow_fd, struct dlx_packet *packet);

/*
 * Receive one packet with its descriptors: as above, and DLX_E_PROTOCOL also for foreign control data; on every error all
 * descriptors are closed. DLX_E_FD_LIMIT (MSG_CTRUNC: no room for them within RLIMIT_NOFILE, or a security module) loses
 * nothing: the packet stays where it is, to be received again or dropped, and `data` and `size` tell what it is. Costs one
 * more call; nobody else may receive from the socket meanwhile.
 */
int dlx__packet_recv_fds(int sock_borrow_fd, struct dlx_packet *packet);
/* Receive one packet, which is there, for nobody. False: it is still there. */
bool dlx__packet_drop(int sock_borrow_fd);

/* Has the peer closed its end? What it sent before that may still be there. */
bool dlx__packet_hung_up(int sock_borrow_fd);

/*
 * Send one packet without waiting; `fds` stay the caller's. Returns 0; DLX_E_FULL (errno EAGAIN: the receiver
 * does not read; ETOOMANYREFS: our user has too many fds on their way; ENOBUFS: no memory; try later),
 * DLX_E_DISCONNECTED, DLX_E_NO_MEMORY, DLX_E_SYSTEM.
 */
int dlx__packet_send(int sock_borrow_fd, const void *data, size_t size, const int *fds_borrow,
                     size_t n_fds);

#endif
