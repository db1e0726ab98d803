/* SPDX-License-Identifier: Apache-2.0 */

/* The daemon's calls of the C library and the kernel, by the linker's --wrap: see the Makefile. */

#include "daemon/objects/client.h"
#include "daemon/objects/group.h"
#include "daemon/objects/publisher_state.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/link.h"
#include "daemon/objects/pending_join.h"
#include "daemon/objects/subscription.h"
#include "daemon/memory/proof.h"
#include "daemon/users/outbox.h"
#include "daemon/memory/membership.h"
#include "daemon/memory/report.h"
#include "tests/daemon/sim_daemon/sim.h"
#include <stdarg.h>
#include <sys/eventfd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

/* The function that the daemon calls instead of NAME(), which is then __real_NAME(). */
#define WRAP(type, name, params)                                                                   \
    type __real_##name params;                                                                     \
    type __wrap_##name params;                                                                     \
    type __wrap_##name params

/* Of the request that is being handled; of what is sent meanwhile. */
static struct dlx_proto_arena incoming, outgoing;

bool sim_refuse(void)
{
    if (!w.inside || w.crashed || w.calm || w.fault_one_in == 0 || !one_in(w.fault_one_in))
        return false;
    w.faults++;
    w.fired++;
    return true;
}

static bool no_memory(void)
{
    if (!sim_refuse())
        return false;
    sim_say("no memory");
    errno = ENOMEM;
    return true;
}

/* Memory is refused by the seed, or counted: unless it is in the place of `old`. */
#define WRAP_MEMORY(type, name, old, params, args)                                                 \
    WRAP(type, name, params)                                                                       \
    {                                                                                              \
        type made = no_memory() ? NULL : __real_##name args;                                       \
        w.live += made && !(old);                                                                  \
        return made;                                                                               \
    }

/* clang-format off */
WRAP_MEMORY(void *, malloc, NULL, (size_t size), (size))
WRAP_MEMORY(void *, calloc, NULL, (size_t n, size_t size), (n, size))
WRAP_MEMORY(void *, realloc, p, (void *p, size_t size), (p, size))
WRAP_MEMORY(void *, reallocarray, p, (void *p, size_t n, size_t size), (p, n, size))
WRAP_MEMORY(char *, strdup, NULL, (const char *text), (text))
WRAP_MEMORY(char *, strndup, NULL, (const char *text, size_t size), (text, size))
/* clang-format on */

WRAP(void, free, (void *p))
{
    w.live -= p != NULL;
    __real_free(p);
}

static int opened(int fd)
{
    if (fd < 0)
        return fd;
    MUST(fd < FDS, "descriptor %d", fd);
    w.open_fds++;
    w.fds[fd] = (struct fd_info){.peer = -1};
    return fd;
}

static bool too_many_files(void)
{
    if (!sim_refuse())
        return false;
    sim_say("no descriptor");
    errno = one_in(2) ? EMFILE : ENFILE;
    return true;
}

WRAP(int, close, (int fd))
{
    MUST(fd >= 0 && fd < FDS, "close(%d)", fd);
    struct fd_info info = w.fds[fd];
    int r = __real_close(fd);
    MUST(r == 0, "close(%d): %s", fd, strerror(errno));
    w.open_fds--;
    w.fds[fd] = (struct fd_info){.peer = -1};
    w.n_shut_down -= info.kind == FD_SHUT_DOWN;
    if (info.kind == FD_SUB)
        sub_end(info.of);
    return r;
}

/* The socket was not read: closed later. */
WRAP(int, shutdown, (int fd, int how))
{
    struct fd_info info = w.fds[fd];
    w.fds[fd].kind = FD_SHUT_DOWN;
    w.n_shut_down++;
    if (info.kind == FD_SUB)
        sub_end(info.of);
    return __real_shutdown(fd, how);
}

WRAP(int, socketpair, (int domain, int type, int protocol, int fds[2]))
{
    if (too_many_files())
        return -1;
    int r = __real_socketpair(domain, type, protocol, fds);
    if (r < 0)
        return r;
    opened(fds[0]);
    opened(fds[1]);
    w.fds[fds[0]].peer = fds[1];
    w.fds[fds[1]].peer = fds[0];
    if (w.inside && w.small_sockets && (type & SOCK_SEQPACKET) == SOCK_SEQPACKET) {
        int size = 1;
        (void)setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    }
    return 0;
}

WRAP(int, memfd_create, (const char *name, unsigned flags))
{
    if (too_many_files())
        return -1;
    return opened(__real_memfd_create(name, flags));
}

WRAP(int, timerfd_create, (int clock, int flags))
{
    if (too_many_files())
        return -1;
    return opened(__real_timerfd_create(clock, flags));
}

WRAP(int, open, (const char *path, int flags, ...))
{
    if (too_many_files())
        return -1;
    return opened(__real_open(path, flags));
}

WRAP(int, fcntl, (int fd, int op, ...))
{
    va_list ap;
    va_start(ap, op);
    long arg = va_arg(ap, long);
    va_end(ap);
    if (op != F_DUPFD_CLOEXEC)
        return __real_fcntl(fd, op, arg);
    if (too_many_files())
        return -1;
    struct fd_info info = w.fds[fd];
    int copy = opened(__real_fcntl(fd, op, arg));
    if (copy >= 0 && info.kind == FD_PIDFD)
        w.fds[copy] = info;
    return copy;
}

WRAP(int, pipe2, (int fds[2], int flags))
{
    if (too_many_files())
        return -1;
    int r = __real_pipe2(fds, flags);
    if (r == 0) {
        opened(fds[0]);
        opened(fds[1]);
    }
    return r;
}

WRAP(int, fallocate, (int fd, int mode, off_t offset, off_t size))
{
    if (sim_refuse()) {
        errno = ENOSPC;
        return -1;
    }
    return __real_fallocate(fd, mode, offset, size);
}

int sim_dup(int fd)
{
    struct fd_info info = w.fds[fd];
    int copy = opened(__real_fcntl(fd, F_DUPFD_CLOEXEC, 0));
    MUST(copy >= 0, "no descriptors left");
    if (info.kind == FD_PIDFD)
        w.fds[copy] = info;
    return copy;
}

int sim_eventfd(void)
{
    return opened(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

int sim_count_fds(void)
{
    int n = 0;
    for (int fd = 0; fd < FDS; fd++)
        n += __real_fcntl(fd, F_GETFD) >= 0;
    return n;
}

void sim_print_fds(void)
{
    for (int fd = 0; fd < FDS; fd++) {
        char name[64], file[128];
        (void)snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(name, file, sizeof file);
        if (n > 0)
            fprintf(stderr, "descriptor %d: %.*s, kind %d\n", fd, (int)n, file,
                    (int)w.fds[fd].kind);
    }
}

static const uid_t uids[USERS] = {500, 0, 1001};

WRAP(int, getsockopt, (int fd, int level, int name, void *value, socklen_t *size))
{
    if (w.fds[fd].kind != FD_CLIENT || level != SOL_SOCKET)
        return __real_getsockopt(fd, level, name, value, size);
    const struct proc *c = w.fds[fd].of;
    if (name == SO_PEERCRED) {
        struct ucred cred = {.pid = c->pid, .uid = uids[c->user], .gid = uids[c->user]};
        memcpy(value, &cred, sizeof cred);
        return 0;
    }
    if (name == SO_PEERPIDFD) {
        if (too_many_files())
            return -1;
        int pidfd = sim_dup(c->death);
        memcpy(value, &pidfd, sizeof pidfd);
        return 0;
    }
    return __real_getsockopt(fd, level, name, value, size);
}

WRAP(int, clock_gettime, (clockid_t clock, struct timespec *ts))
{
    (void)clock;
    ts->tv_sec = (time_t)(w.now / 1000000000);
    ts->tv_nsec = (long)(w.now % 1000000000);
    return 0;
}

bool is_dead(const struct proc *c)
{
    struct pollfd p = {.fd = c->death, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

static const Dlx__Wire__Packet *unpack(struct dlx_proto_arena *arena, const void *data, size_t size)
{
    const Dlx__Wire__Packet *packet;
    int r = dlx__proto_unpack(arena, data, size, &packet);
    MUST(r == 0, "a packet that does not decode: %s", dlx__error_message());
    return packet;
}

/* The kernel's least is room for six packets. */
bool sim_is_full(int fd)
{
    const struct fd_info *info = &w.fds[fd];
    const struct pub *p = info->of;
    return info->kind == FD_LINKS && w.small_sockets && p->n_unread >= 2;
}

static int refusal(int fd, const struct fd_info *info, bool with_fds)
{
    if (!w.inside || w.crashed)
        return 0;
    if (sim_is_full(fd) && ((const struct pub *)info->of)->link_sock >= 0)
        return EAGAIN;
    if (w.refuse_one_in && info->kind != FD_OTHER && one_in(w.refuse_one_in))
        return with_fds ? ETOOMANYREFS : EAGAIN;
    return sim_refuse() ? ENOMEM : 0;
}

void sim_note_stall(struct sub *s)
{
    struct pollfd p = {.fd = s->dsock, .events = POLLOUT};
    s->stalled = poll(&p, 1, 0) == 1 ? 1 : 2;
}

/* The daemon lacks something itself: nothing is due to this subscription for a while. */
WRAP(void, dlxd_lack_begin, (struct dlxd_subscription * subscription))
{
    struct sub *s = sub_by_id(dlxd_subscription_id(subscription));
    MUST(w.faults > 0, "nothing is lacking: %s", dlx__error_message());
    __real_dlxd_lack_begin(subscription);
    sim_note_stall(s);
    s->lack_until = subscription->lack_until_ns;
    MUST(s->lack_until > w.now && s->lack_until - w.now <= 1000000000, "it waits for too long");
    w.counts[18]++;
}

/* The daemon maps the page of a link, for which there may be no memory. (A request whose region
 * cannot be looked at fails, and its object is gone.) */
WRAP(int, dlx__region_prove, (const struct dlx_memory *memory, int borrow_fd, uint64_t size))
{
    return w.looks_at_page && sim_refuse()
               ? dlx__fail(DLX_E_NO_MEMORY, "no memory to look at a region")
               : __real_dlx__region_prove(memory, borrow_fd, size);
}

/* The look at a page may be begun long after LinkReady, while another request is handled. */
WRAP(int, dlxd_proof_begin,
     (struct dlxd_proof * *ret, struct dlxd_workers *workers, const struct dlx_memory *memory,
      const struct dlxd_user *whose, int take_fd, uint64_t size, dlxd_proof_fn *fn, void *owner))
{
    struct link *l = link_at(owner);
    struct proc *asker = w.asker;
    uint64_t link_ready = w.link_ready;
    if (!l)
        return __real_dlxd_proof_begin(ret, workers, memory, whose, take_fd, size, fn, owner);
    w.asker = NULL;
    w.link_ready = l->id;
    int r = __real_dlxd_proof_begin(ret, workers, memory, whose, take_fd, size, fn, owner);
    w.asker = asker;
    w.link_ready = link_ready;
    if (r == 0)
        l->state = LINK_PROVING;
    return r;
}

static void sent(const struct fd_info *info, const struct msghdr *msg, int error)
{
    int fds[DLX_PACKET_FDS_MAX];
    size_t n_fds = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c;
         c = CMSG_NXTHDR((struct msghdr *)(uintptr_t)msg, c)) {
        n_fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(fds, CMSG_DATA(c), n_fds * sizeof(int));
    }
    const Dlx__Wire__Packet *packet =
        unpack(&outgoing, msg->msg_iov->iov_base, msg->msg_iov->iov_len);
    /* Of a link that there was no memory for the subscriber hears while others are made. */
    if (packet->body_case != BODY(LINK_FAILED) ||
        dlxd_idmap_find(&w.broker.registry.links, packet->link_failed->link))
        request_shows();
    if (error == 0 && info->kind == FD_SUB)
        on_told(info->of, packet, fds, n_fds);
    else if (error == 0)
        on_added(info->of, packet, fds, n_fds);
    else if (info->kind == FD_SUB && error != EPIPE && error != ECONNRESET &&
             (packet->body_case != BODY(LINK_FAILED) || link_by_id(packet->link_failed->link)))
        on_not_told(info->of, packet, fds);
}

WRAP(ssize_t, sendmsg, (int fd, const struct msghdr *msg, int flags))
{
    struct fd_info info = w.fds[fd];
    if (!w.inside)
        return __real_sendmsg(fd, msg, flags);
    if (w.crashed) /* no client hears of it */
        return (ssize_t)msg->msg_iov->iov_len;
    int error = refusal(fd, &info, msg->msg_controllen > 0);
    ssize_t n = -1;
    w.n_sent++;
    errno = error;
    if (error)
        sim_say("not sent: %s", strerror(error));
    if (error == 0) {
        n = __real_sendmsg(fd, msg, flags);
        error = n < 0 ? errno : 0;
    }
    if (info.kind == FD_SUB || info.kind == FD_LINKS)
        sent(&info, msg, error);
    errno = error;
    return n;
}

/* As the newest kernels do: nothing has to be discarded beside the loop. */
WRAP(bool, dlx__packet_refuses_fds, (int sock))
{
    (void)sock;
    return true;
}

/* Nothing is sent when there is no memory for what is in flight. */
WRAP(int, dlxd_outbox_send,
     (struct dlxd_outbox * outbox, struct dlxd_user *user, const Dlx__Wire__Packet *packet,
      const int *fds, size_t n_fds, struct dlxd_flight **ret_flight))
{
    const struct fd_info info = w.fds[outbox->fd];
    uint64_t n_sent = w.n_sent;
    int r = __real_dlxd_outbox_send(outbox, user, packet, fds, n_fds, ret_flight);
    if (r < 0 && w.n_sent == n_sent && info.kind == FD_SUB)
        on_not_told(info.of, packet, fds);
    return r;
}

WRAP(void, dlxd_link_drop_landed, (struct dlxd_flight * flight))
{
    if (w.running)
        on_drop_landed(dlxd_link_id(flight->link), flight->arena->id);
    __real_dlxd_link_drop_landed(flight);
}

WRAP(ssize_t, recvmsg, (int fd, struct msghdr *msg, int flags))
{
    struct fd_info info = w.fds[fd];
    if (w.inside && w.refuse_one_in && one_in(w.refuse_one_in)) {
        errno = ENOBUFS;
        return -1;
    }
    ssize_t n = __real_recvmsg(fd, msg, flags);
    for (struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        int got[DLX_PACKET_FDS_MAX];
        size_t n_got = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(got, CMSG_DATA(c), n_got * sizeof(int));
        for (size_t i = 0; i < n_got; i++)
            opened(got[i]);
    }
    if (w.inside && n > 0 && (info.kind == FD_CLIENT || info.kind == FD_SUB)) {
        const Dlx__Wire__Packet *packet = unpack(&incoming, msg->msg_iov->iov_base, (size_t)n);
        if (info.kind == FD_CLIENT)
            on_request(info.of, packet);
        else
            on_notifications(info.of, packet);
    }
    return n;
}

WRAP(int, dlxd_pending_join_send,
     (struct dlxd_link * link, const Dlx__Wire__LinkAdded *body, const int *fds))
{
    int r = __real_dlxd_pending_join_send(link, body, fds);
    if (r < 0)
        on_not_added(body->link, r);
    else if (link->pending_join)
        on_waits(body->link, fds);
    return r;
}

WRAP(int, dlxd_group_admit, (struct dlxd_link * link))
{
    int r = __real_dlxd_group_admit(link);
    on_admit(dlxd_link_id(link), link->group, link->owner, r);
    return r;
}

WRAP(void, dlxd_group_leave, (struct dlxd_link * link))
{
    const struct dlxd_publisher *publisher = link->publisher;
    if (w.running && link->group)
        on_leave(dlxd_link_id(link), dlxd_publisher_id(publisher), link->group->number,
                 publisher->state == DLXD_PUBLISHER_RETAINED);
    __real_dlxd_group_leave(link);
}

WRAP(int, dlxd_group_make_page, (struct dlxd_group * group, bool beyond))
{
    int r = __real_dlxd_group_make_page(group, beyond);
    if (w.running)
        on_page(group, r, beyond);
    return r;
}

WRAP(void, dlxd_publisher_look_at_groups, (struct dlxd_publisher * publisher))
{
    uint64_t id = dlxd_publisher_id(publisher);
    __real_dlxd_publisher_look_at_groups(publisher);
    if (w.running)
        on_groups_looked(id);
}

ino_t sim_inode(int fd)
{
    struct stat st;
    MUST(fstat(fd, &st) == 0, "descriptor %d", fd);
    return st.st_ino;
}

WRAP(bool, dlxd_report_has_left, (int fd, uint32_t max_held))
{
    w.looked_at = sim_inode(fd);
    return __real_dlxd_report_has_left(fd, max_held);
}

WRAP(void, dlxd_membership_withdrawn, (const struct dlxd_membership_line *line))
{
    if (w.running)
        on_withdrawn();
    __real_dlxd_membership_withdrawn(line);
}

WRAP(void, dlxd_idmap_remove, (struct dlxd_idmap * map, struct dlxd_idmap_node *node))
{
    if (w.running && map == &w.broker.registry.drains)
        on_let_go(node->id);
    __real_dlxd_idmap_remove(map, node);
}

static struct proc *proc_of(const struct dlxd_client *client)
{
    return w.fds[client->fd].of;
}

WRAP(void, dlxd_client_send, (struct dlxd_client * client, const Dlx__Wire__Packet *packet))
{
    on_reply(proc_of(client), packet, NULL, 0);
    __real_dlxd_client_send(client, packet);
}

WRAP(int, dlxd_client_send_fds,
     (struct dlxd_client * client, const Dlx__Wire__Packet *packet, const int *fds, size_t n_fds))
{
    int r = __real_dlxd_client_send_fds(client, packet, fds, n_fds);
    if (r == 0)
        on_reply(proc_of(client), packet, fds, n_fds);
    else
        w.fds_refused = true;
    return r;
}

WRAP(void, dlxd_client_send_ok, (struct dlxd_client * client, uint32_t serial))
{
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    packet.serial = serial;
    packet.body_case = BODY(OK);
    on_reply(proc_of(client), &packet, NULL, 0);
    __real_dlxd_client_send_ok(client, serial);
}

WRAP(void, dlxd_client_send_error,
     (struct dlxd_client * client, uint32_t serial, int code, const char *text))
{
    Dlx__Wire__Error body = DLX__WIRE__ERROR__INIT;
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    body.code = code;
    body.text = (char *)(uintptr_t)text;
    packet.serial = serial;
    packet.body_case = BODY(ERROR);
    packet.error = &body;
    on_reply(proc_of(client), &packet, NULL, 0);
    __real_dlxd_client_send_error(client, serial, code, text);
}

/* A slice ends after any unit of a step. The model answers one request after the other, and does at
 * once what begins outside of steps, so the daemon interrupts neither. */
WRAP(bool, dlxd_slice_is_over, (const struct dlxd_users *users))
{
    return users->slice_end_ns > 0 && !w.asker && one_in(4);
}

/* The first part of it. */
WRAP(bool, dlxd_client_end_some, (struct dlxd_client * client))
{
    if (proc_of(client)->connected)
        client_gone(proc_of(client), client->dismissed);
    return __real_dlxd_client_end_some(client);
}
