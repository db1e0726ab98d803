/* SPDX-License-Identifier: Apache-2.0 */

/* The clients: what they say, and what they do with what they are sent. */

#include "common/memory.h"
#include "ring/layout.h"
#include "daemon/objects/client.h"
#include "tests/daemon/sim_daemon/sim.h"

static struct dlx_packet rx;
static struct dlx_proto_arena arena;

void peer_start(struct proc *c)
{
    static int last_pid = 1000;
    dlx__close(c->death);
    dlx__close(c->sock);
    *c = (struct proc){.alive = true,
                       .user = (int)rnd(USERS),
                       .pid = ++last_pid,
                       .death = sim_eventfd(),
                       .sock = -1};
    (void)snprintf(c->name, sizeof c->name, "p%d", number_of(c));
    w.fds[c->death].kind = FD_PIDFD;
    w.fds[c->death].of = c;
}

void peer_connect(struct proc *c)
{
    struct dlxd_client *client;
    static uint32_t last_connection;
    int pair[2];
    MUST(!c->connected && c->alive, "connected already");
    c->sock = dlx__close(c->sock);
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0,
         "no sockets");
    c->connection = ++last_connection;
    c->sock = pair[1];
    c->dsock = pair[0];
    c->hung_up = c->must_go = c->dismissed = c->greeted = false;
    c->serial = c->answered = c->unread = c->n_links = c->max_links = c->minor = 0;
    w.fds[pair[0]].kind = FD_CLIENT;
    w.fds[pair[0]].of = c;
    c->refused = used(c->user, DLXD_CONNECTIONS) >= w.max[DLXD_CONNECTIONS];
    w.inside = true;
    w.faults = 0;
    int r = dlxd_client_new(&client, &w.broker, pair[0], DLXD_SOCKET_MAIN);
    w.inside = false;
    MUST(r == 0 || (w.faults > 0 && r != DLX_E_DISCONNECTED), "%s", dlx__error_message());
    c->connected = r == 0;
}

/* Everything that it has, but its memory. */
static void close_all(struct proc *c)
{
    c->hung_up = true;
    c->sock = dlx__close(c->sock);
    each_sub (s)
        if (s->proc == c)
            peer_close_sub(s);
    each_pub (p)
        if (p->proc == c)
            p->link_sock = dlx__close(p->link_sock);
}

void peer_hang_up(struct proc *c)
{
    if (one_in(2)) {
        close_all(c);
    } else {
        c->hung_up = true;
        c->sock = dlx__close(c->sock);
    }
}

/* In no order that is certain: a child may have the sockets yet, or they are closed before the
 * process is dead. */
void peer_die(struct proc *c)
{
    uint64_t one = 1;
    c->alive = false;
    if (one_in(2))
        claimers_leave(c);
    if (!one_in(3))
        close_all(c);
    for (uint32_t i = rnd(3); i > 0 && c->hung_up; i--)
        (void)edge_pump();
    claimers_leave(c);
    MUST(write(c->death, &one, sizeof one) == (ssize_t)sizeof one, "eventfd");
}

void peer_close_sub(struct sub *s)
{
    s->gone_sock = true;
    s->sock = dlx__close(s->sock);
    each_link (l)
        if (l->sub == s)
            l->page_fd = dlx__close(l->page_fd);
}

void peer_forget_pub(struct pub *p)
{
    p->link_sock = dlx__close(p->link_sock);
    dlx__region_unmap(p->page, DLX_PAGE);
    p->page = NULL;
    p->line = NULL;
    for (int i = 0; i < p->n_r; i++) {
        dlx__region_unmap(p->r[i].map, p->r[i].size);
        p->r[i].map = NULL;
        p->r[i].fd = dlx__close(p->r[i].fd);
    }
}

static bool say(int sock, Dlx__Wire__Packet__BodyCase body, void *message, uint32_t serial)
{
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    packet.serial = serial;
    packet.body_case = body;
    packet.ok = message;
    return dlx__proto_send(sock, &packet, NULL, 0) == 0;
}

void peer_send(struct proc *c, Dlx__Wire__Packet__BodyCase body, void *message, uint32_t serial)
{
    if (body == BODY(ARENA_NEW))
        c->asked[serial % DLX_ARRAY_SIZE(c->asked)] = ((Dlx__Wire__ArenaNew *)message)->publisher;
    if (c->sock >= 0)
        (void)say(c->sock, body, message, serial);
}

void peer_tell(struct sub *s, Dlx__Wire__Packet__BodyCase body, void *message)
{
    if (s->sock >= 0)
        (void)say(s->sock, body, message, 0);
}

void peer_ack(struct sub *s, uint32_t n)
{
    Dlx__Wire__Ack body = DLX__WIRE__ACK__INIT;
    body.n = n;
    peer_tell(s, BODY(ACK), &body);
}

/* The second call makes the file's own what the first one adds. */
static void make_ready(int fd, uint64_t size)
{
    for (int i = 0; i < 2; i++)
        MUST(fallocate(fd, 0, 0, (off_t)size) == 0, "memory");
    MUST(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0, "seals: %m");
}

/* Of an offer: ready, with a page that is allocated or not; or no, thanks. */
void peer_answer(struct link *l)
{
    struct sub *s = l->sub;
    if (!l->seen_offer || l->answered || s->sock < 0)
        return;
    l->answered = true;
    if (one_in(12)) {
        Dlx__Wire__LinkClose body = DLX__WIRE__LINK_CLOSE__INIT;
        body.link = l->id;
        peer_tell(s, BODY(LINK_CLOSE), &body);
    } else {
        Dlx__Wire__LinkReady body = DLX__WIRE__LINK_READY__INIT;
        body.link = l->id;
        body.reader = s->id * 3;
        l->filled = !one_in(20);
        l->closed = l->filled && one_in(3);
        const uint64_t closed = DLX_SHM_CURSOR_CLOSED;
        if (l->closed) /* it says so early */
            MUST(pwrite(l->page_fd, &closed, 8, offsetof(struct dlx_shm_link, cursor)) == 8,
                 "page");
        if (l->filled)
            make_ready(l->page_fd, dlx_shm_link_size(s->max_held));
        peer_tell(s, BODY(LINK_READY), &body);
    }
    l->page_fd = dlx__close(l->page_fd);
}

void peer_fill(struct region *r)
{
    if (r->gone) /* not made ready in time */
        r->fd = dlx__close(r->fd);
    if (r->fd < 0)
        return;
    if (r->id == 0) {
        void *map = mmap(NULL, r->size, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, 0);
        MUST(map != MAP_FAILED, "mmap: %m");
        r->map = map;
        ((struct dlx_shm_control *)map)->heeds_locks = one_in(2);
    }
    make_ready(r->fd, r->size);
    r->fd = dlx__close(r->fd);
    r->filled = true;
}

void peer_close_block(struct pub *p)
{
    struct dlx_shm_control *control = (void *)p->r[0].map;
    uint64_t n = p->r[0].map[0] + 1;
    p->closed = true;
    dlx_store64_release(&control->entries[n % p->n_entries].gen, n | DLX_SHM_END);
}

static const Dlx__Wire__Packet *receive(int sock, int *ret_code)
{
    const Dlx__Wire__Packet *packet = NULL;
    *ret_code = dlx__packet_recv_fds(sock, &rx);
    if (*ret_code == 0)
        MUST(dlx__proto_unpack(&arena, rx.data, rx.size, &packet) == 0, "%s", dlx__error_message());
    return packet;
}

static void got_publisher(const Dlx__Wire__PublisherNewReply *body)
{
    struct pub *p = pub_by_id(body->publisher);
    void *map;
    if (!p || !p->proc || p->page)
        return;
    p->r[0].fd = dlx__packet_steal_fd(&rx, 0);
    p->link_sock = dlx__packet_steal_fd(&rx, 2);
    int page = dlx__packet_steal_fd(&rx, 1);
    map = mmap(NULL, DLX_PAGE, PROT_READ, MAP_SHARED, page, 0);
    MUST(map != MAP_FAILED, "mmap: %m");
    close(page);
    p->page = map;
    p->line = (uint64_t *)map + p->line_no * DLX_CACHELINE / sizeof(uint64_t);
}

static void got_arena(const struct proc *c, uint32_t serial, const Dlx__Wire__ArenaNewReply *body)
{
    struct pub *p = pub_by_id(c->asked[serial % DLX_ARRAY_SIZE(c->asked)]);
    for (int i = 0; p && p->proc && i < p->n_r; i++)
        if (p->r[i].id == body->arena && !p->r[i].gone)
            p->r[i].fd = dlx__packet_steal_fd(&rx, 0);
}

static void got_reply(struct proc *c, const Dlx__Wire__Packet *packet)
{
    struct sub *s;
    if (packet->body_case == BODY(DISCONNECT)) {
        MUST(strlen(packet->disconnect->text) > 5, "disconnected without a reason");
        return;
    }
    MUST(packet->serial > c->answered, "answer %u after %u", packet->serial, c->answered);
    c->answered = packet->serial;
    c->unread -= c->unread > 0;
    if (packet->body_case == BODY(PUBLISHER_NEW_REPLY)) {
        got_publisher(packet->publisher_new_reply);
    } else if (packet->body_case == BODY(ARENA_NEW_REPLY)) {
        got_arena(c, packet->serial, packet->arena_new_reply);
    } else if (packet->body_case == BODY(SUBSCRIBE_REPLY)) {
        s = sub_by_id(packet->subscribe_reply->subscription);
        if (s && !s->gone_sock)
            s->sock = dlx__packet_steal_fd(&rx, 0);
    }
}

void peer_read_replies(struct proc *c)
{
    while (c->sock >= 0) {
        int r;
        const Dlx__Wire__Packet *packet = receive(c->sock, &r);
        if (r == DLX_E_EMPTY)
            return;
        if (r < 0) {
            c->sock = dlx__close(c->sock);
            return;
        }
        got_reply(c, packet);
        dlx__packet_deinit(&rx);
    }
}

bool peer_read_notifications(struct sub *s)
{
    int r;
    if (s->sock < 0)
        return false;
    const Dlx__Wire__Packet *packet = receive(s->sock, &r);
    if (r < 0)
        return false;
    s->read += rx.n_fds > 0;
    s->all_read++;
    if (packet->body_case == BODY(LINK_OFFER)) {
        struct link *l = link_by_id(packet->link_offer->link);
        if (l) {
            MUST(l->sub == s, "somebody else's offer");
            l->seen_offer = true;
            l->page_fd = dlx__packet_steal_fd(&rx, 0);
        }
    }
    struct link *l =
        packet->body_case == BODY(LINK_OPEN) ? link_by_id(packet->link_open->link) : NULL;
    if (l && l->group)
        claimer_add(l, rx.fds[2]);
    dlx__packet_deinit(&rx);
    return true;
}

void peer_read_links(struct pub *p)
{
    int r = 0;
    p->n_unread = 0;
    while (p->link_sock >= 0 && r == 0) {
        (void)receive(p->link_sock, &r);
        dlx__packet_deinit(&rx);
    }
}
