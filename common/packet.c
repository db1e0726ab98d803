/* SPDX-License-Identifier: Apache-2.0 */
#include "common/packet.h"
#include "common/error.h"
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* Linux 6.16 */
#endif

union dlx_packet_control {
    struct cmsghdr align;
    /* Room for the largest SCM_RIGHTS. No other control data is enabled with setsockopt(), so
     * nothing else can arrive beside it. */
    char buffer[CMSG_SPACE(sizeof(int) * DLX_PACKET_FDS_MAX)];
};

void dlx__packet_deinit(struct dlx_packet *packet)
{
    if (!packet)
        return;
    for (size_t i = 0; i < packet->n_fds; i++)
        packet->fds[i] = dlx__close(packet->fds[i]);
    packet->n_fds = 0;
    packet->size = 0;
}

int dlx__packet_steal_fd(struct dlx_packet *packet, size_t i)
{
    return i < packet->n_fds ? dlx__steal_fd(&packet->fds[i]) : -1;
}

void dlx__packet_refuse_fds(int sock)
{
    const int no = 0;
    (void)setsockopt(sock, SOL_SOCKET, SO_PASSRIGHTS, &no, sizeof no);
}

bool dlx__packet_refuses_fds(int sock)
{
    int passes = 1;
    socklen_t size = sizeof passes;
    return getsockopt(sock, SOL_SOCKET, SO_PASSRIGHTS, &passes, &size) == 0 && !passes;
}

/* Collects every fd of every control message, so that each one is closed on any error below. */
static bool collect_fds(struct msghdr *msg, struct dlx_packet *packet)
{
    bool foreign = false;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) {
            foreign = true;
            continue;
        }
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        assert(packet->n_fds + n <= DLX_PACKET_FDS_MAX); /* the control buffer holds no more */
        memcpy(packet->fds + packet->n_fds, CMSG_DATA(c), n * sizeof(int));
        packet->n_fds += n;
    }
    return !foreign;
}

/* Peeks: the packet and its descriptors stay in the socket. */
static int packet_look(int sock, bool takes_fds, struct dlx_packet *packet)
{
    union dlx_packet_control control;
    struct iovec iov = {.iov_base = packet->data, .iov_len = sizeof packet->data};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    /* With control data, MSG_PEEK returns copies of the descriptors. The kernel offers those that
     * did not fit again at the next call. */
    const int flags = MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_PEEK;
    ssize_t n;
    bool reset = false;

    packet->size = 0;
    packet->n_fds = 0;
    for (;;) {
        msg.msg_control = takes_fds ? &control : NULL;
        msg.msg_controllen = takes_fds ? sizeof control : 0;
        msg.msg_flags = 0;
        n = recvmsg(sock, &msg, flags);
        if (n >= 0)
            break;
        if (errno == EINTR)
            continue;
        if (errno == ECONNRESET && !reset) {
            /* The peer closed with unread data of ours. The kernel reports that once, before the
             * packets that the peer sent, which can still be read. */
            reset = true;
            continue;
        }
        /* If memory is short, the kernel keeps the packet, and the caller polls again. */
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOMEM || errno == ENOBUFS)
            return reset ? DLX_E_DISCONNECTED : DLX_E_EMPTY;
        if (errno == ECONNRESET)
            return DLX_E_DISCONNECTED;
        return dlx__fail_errno("recvmsg");
    }

    bool clean = collect_fds(&msg, packet);
    if (n == 0 && packet->n_fds == 0 && !(msg.msg_flags & (MSG_CTRUNC | MSG_TRUNC)))
        /* End of file and an empty packet look the same on SEQPACKET. Our programs never send empty
         * packets. */
        return DLX_E_DISCONNECTED;

    int r = 0;
    if ((msg.msg_flags & MSG_CTRUNC) && !takes_fds)
        r = dlx__fail(DLX_E_PROTOCOL, "packet with file descriptors: clients send none");
    else if (msg.msg_flags & MSG_CTRUNC)
        r = dlx__fail(
            DLX_E_FD_LIMIT,
            "too many open files: %s has no room for the file descriptors of a packet: raise its "
            "limit (ulimit -n, LimitNOFILE=); or a security module refused them",
            program_invocation_short_name);
    else if ((msg.msg_flags & MSG_TRUNC) || (size_t)n > DLX_PACKET_SIZE_MAX)
        r = dlx__fail(DLX_E_PROTOCOL, "packet of more than %u bytes", DLX_PACKET_SIZE_MAX);
    else if (n == 0)
        r = dlx__fail(DLX_E_PROTOCOL, "empty packet with %zu file descriptors", packet->n_fds);
    else if (!clean)
        r = dlx__fail(DLX_E_PROTOCOL, "control data that was not asked for");
    if (r < 0)
        dlx__packet_deinit(packet);
    if (r < 0 && r != DLX_E_FD_LIMIT)
        return r;
    packet->size = (size_t)n;
    return r;
}

bool dlx__packet_drop(int sock)
{
    ssize_t n;
    do
        n = recv(sock, NULL, 0, MSG_DONTWAIT);
    while (n < 0 &&
           (errno == EINTR || errno == ECONNRESET)); /* the latter comes once: see packet_look() */
    return n == 0;
}

bool dlx__packet_hung_up(int sock)
{
    struct pollfd p = {.fd = sock, .events = POLLRDHUP};
    int n;
    do
        n = poll(&p, 1, 0);
    while (n < 0 && (errno == EINTR || errno == ENOMEM || errno == EAGAIN));
    return n == 1 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

int dlx__packet_recv(int sock, struct dlx_packet *packet)
{
    int r = packet_look(sock, false, packet);
    if (r == 0 && !dlx__packet_drop(sock)) {
        dlx__packet_deinit(packet); /* the packet is still there for the next call */
        return DLX_E_EMPTY;
    }
    return r;
}

int dlx__packet_look_fds(int sock, struct dlx_packet *packet)
{
    return packet_look(sock, true, packet);
}

int dlx__packet_recv_fds(int sock, struct dlx_packet *packet)
{
    int r = packet_look(sock, true, packet);
    if ((r == 0 || r == DLX_E_PROTOCOL) && !dlx__packet_drop(sock)) {
        dlx__packet_deinit(packet); /* the packet is still there for the next call */
        return DLX_E_EMPTY;
    }
    return r;
}

int dlx__packet_send(int sock, const void *data, size_t size, const int *fds, size_t n_fds)
{
    union dlx_packet_control control;
    struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = size};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    assert(size > 0 && size <= DLX_PACKET_SIZE_MAX && n_fds <= DLX_PACKET_FDS_MAX);
    if (n_fds > 0) {
        memset(&control, 0, sizeof control);
        msg.msg_control = &control;
        msg.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
    }
    for (;;) {
        ssize_t n = sendmsg(sock, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n >= 0) /* SEQPACKET: all or nothing */
            return 0;
        if (errno == EINTR)
            continue;
        switch (errno) {
        case EAGAIN:
        case ENOBUFS:
        case ETOOMANYREFS:
            return DLX_E_FULL;
        default:
            return dlx__fail_errno("sendmsg");
        }
    }
}
