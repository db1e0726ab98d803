/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/lobby.h"
#include "common/error.h"
#include "daemon/broker.h"
#include "daemon/client.h"
#include "daemon/publisher.h"
#include "daemon/report.h"
#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>

/* What Linux charges for a packet of LinkAdded's size; SO_SNDBUF counts half of it. */
#define PACKET_SIZE 768U

/* Looking who has left costs two or three calls for each of those, and a packet for each of the others: so it is done after so many have left, or after
 * so long (who has left may let go of what he holds later, and does not say so). */
#define LEFT_MIN 8U
#define CLEAR_NS UINT64_C(100000000)

struct waiting {
    Dlx__Wire__LinkAdded body;
    int fds[3]; /* page, bell, pidfd */
    struct dlxd_charge charge;
};

struct tray {
    int in;
    int out;                 /* the publisher has it, too */
    struct sockaddr_un name; /* of `in` */
    socklen_t name_size;
};

struct dlxd_lobby {
    struct tray trays[2];
    unsigned used; /* which of them; the other one is empty */
    bool broken;   /* a tray could not be emptied */
    uint32_t n_left;
    uint64_t next_clear_ns;
    struct waiting waiting[DLXD_WAITING_MAX];
    uint32_t n_waiting;
};

/* ---- trays --------------------------------------------------------------------------------- */

int dlxd_lobby_set_room(int sock, uint32_t n_packets)
{
    int size = (int)(n_packets * PACKET_SIZE / 2);
    if (setsockopt(sock, SOL_SOCKET, SO_SNDBUF, &size, sizeof size) < 0)
        return dlx__fail_errno("SO_SNDBUF of a link socket");
    return 0;
}

/* Has everything that was sent been received? */
static bool is_drained(int sock)
{
    int size;
    return ioctl(sock, SIOCOUTQ, &size) == 0 && size == 0;
}

static int connect_tray(struct tray *tray)
{
    return connect(tray->out, (const struct sockaddr *)&tray->name, tray->name_size);
}

static int tray_init(struct tray *tray)
{
    int pair[2];
    tray->name = (struct sockaddr_un){.sun_family = AF_UNIX};
    tray->name_size = sizeof tray->name;
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return dlx__fail_errno("tray of a lobby");
    tray->in = pair[0];
    tray->out = pair[1];
    dlx__packet_refuse_fds(tray->in);
    /* A name that the kernel chooses, by which `out` can be connected again. Strangers cannot send there: it is connected. */
    if (bind(tray->in, (const struct sockaddr *)&tray->name, sizeof(sa_family_t)) < 0 ||
        getsockname(tray->in, (struct sockaddr *)&tray->name, &tray->name_size) < 0)
        return dlx__fail_errno("name of a lobby's tray");
    return dlxd_lobby_set_room(tray->in, DLXD_WAITING_MAX);
}

/* The kernel throws away what a datagram socket has received when it is connected to another peer, or to none. */
static bool empty_tray(struct tray *tray)
{
    const struct sockaddr none = {.sa_family = AF_UNSPEC};
    int error;
    socklen_t size = sizeof error;
    bool empty = connect(tray->out, &none, sizeof none) == 0 && connect_tray(tray) == 0;
    /* The other side is told of it by an error, once. */
    return getsockopt(tray->in, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && empty &&
           is_drained(tray->in);
}

/* ---- who waits ----------------------------------------------------------------------------- */

static void waiting_deinit(struct waiting *w)
{
    for (size_t i = 0; i < DLX_ARRAY_SIZE(w->fds); i++)
        w->fds[i] = dlx__close(w->fds[i]);
    dlxd_charge_deinit(&w->charge);
}

static int waiting_init(struct waiting *w, struct dlxd_user *user, const Dlx__Wire__LinkAdded *body,
                        const int fds[3])
{
    *w = (struct waiting){.body = *body, .fds = {-1, -1, -1}};
    int r = dlxd_charge_init(&w->charge, user, DLXD_LINKS, 1);
    for (size_t i = 0; r == 0 && i < DLX_ARRAY_SIZE(w->fds); i++) {
        w->fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
        if (w->fds[i] < 0)
            r = dlx__fail_errno("descriptors of a link in a lobby");
    }
    if (r < 0)
        waiting_deinit(w);
    return r;
}

/* Does its publisher need to know of it no more? What its page says is its own word: a lie hurts whoever tells it. */
static bool has_ended(const struct dlxd_publisher *publisher, const struct waiting *w)
{
    struct pollfd p = {.fd = w->fds[2], .events = POLLIN};
    if (dlxd_idmap_find(&publisher->broker->registry.links, w->body.link))
        return false;
    return (poll(&p, 1, 0) == 1 && p.revents) || dlxd_report_is_over(w->fds[0], w->body.max_held);
}

static int send_waiting(const struct tray *tray, struct waiting *w)
{
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    packet.body_case = DLX__WIRE__PACKET__BODY_LINK_ADDED;
    packet.link_added = &w->body;
    return dlx__proto_send(tray->in, &packet, w->fds, DLX_ARRAY_SIZE(w->fds));
}

/* ---- opening and closing ------------------------------------------------------------------- */

struct dlxd_lobby *dlxd_lobby_free(struct dlxd_lobby *lobby)
{
    if (!lobby)
        return NULL;
    for (uint32_t i = 0; i < lobby->n_waiting; i++)
        waiting_deinit(&lobby->waiting[i]);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(lobby->trays); i++) {
        dlx__close(lobby->trays[i].in);
        dlx__close(lobby->trays[i].out);
    }
    free(lobby);
    return NULL;
}

/* The link socket is full: this packet is one more. */
static int send_open(const struct dlxd_publisher *publisher, const struct dlxd_lobby *lobby)
{
    Dlx__Wire__LobbyOpen body = DLX__WIRE__LOBBY_OPEN__INIT;
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    const int fds[] = {lobby->trays[0].out, lobby->trays[1].out};
    packet.body_case = DLX__WIRE__PACKET__BODY_LOBBY_OPEN;
    packet.lobby_open = &body;
    int r = dlxd_lobby_set_room(publisher->link_sock, DLXD_WAITING_MAX + 1);
    if (r < 0)
        return r;
    r = dlx__proto_send(publisher->link_sock, &packet, fds, DLX_ARRAY_SIZE(fds));
    (void)dlxd_lobby_set_room(publisher->link_sock, DLXD_WAITING_MAX);
    return r;
}

static int lobby_open(struct dlxd_publisher *publisher)
{
    /* Without its word the publisher would not know when this daemon has died in the middle. */
    if (publisher->client->minor < DLX_PROTO_MINOR_LOBBY ||
        !dlxd_membership_is_vouched(&publisher->line))
        return DLX_E_PUBLISHER_NOT_RESPONDING;
    struct dlxd_lobby *lobby = calloc(1, sizeof *lobby);
    if (!lobby)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a lobby");
    for (size_t i = 0; i < DLX_ARRAY_SIZE(lobby->trays); i++)
        lobby->trays[i].in = lobby->trays[i].out = -1;
    int r = 0;
    for (size_t i = 0; r == 0 && i < DLX_ARRAY_SIZE(lobby->trays); i++)
        r = tray_init(&lobby->trays[i]);
    if (r == 0)
        r = send_open(publisher, lobby);
    if (r < 0) {
        dlxd_lobby_free(lobby);
        return r;
    }
    publisher->lobby = lobby;
    return 0;
}

/* It makes calls again: the link socket will do. */
static void close_if_drained(struct dlxd_publisher *publisher)
{
    Dlx__Wire__LobbyClosed body = DLX__WIRE__LOBBY_CLOSED__INIT;
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    const struct dlxd_lobby *lobby = publisher->lobby;
    if (!lobby || !is_drained(publisher->link_sock) || !is_drained(lobby->trays[0].in) ||
        !is_drained(lobby->trays[1].in))
        return;
    body.joins = dlxd_membership_joins(&publisher->line);
    packet.body_case = DLX__WIRE__PACKET__BODY_LOBBY_CLOSED;
    packet.lobby_closed = &body;
    if (dlx__proto_send(publisher->link_sock, &packet, NULL, 0) == 0)
        publisher->lobby = dlxd_lobby_free(publisher->lobby);
}

void dlxd_lobby_left(struct dlxd_publisher *publisher)
{
    if (!publisher->lobby)
        return;
    publisher->lobby->n_left++;
    close_if_drained(publisher);
}

/* ---- clearing ------------------------------------------------------------------------------ */

static bool is_picking(const struct dlxd_publisher *publisher)
{
    for (size_t i = 0; i < publisher->ready.n; i++) {
        const struct dlxd_arena *arena = publisher->ready.items[i];
        if (arena->n_slots > 0 && dlxd_report_is_picking(arena->fd))
            return true;
    }
    return false;
}

/* Send those who stay, who are the first `n_stay`, to the other tray, and empty this one. On failure nothing has changed. */
static int change_trays(struct dlxd_lobby *lobby, uint32_t n_stay)
{
    struct tray *from = &lobby->trays[lobby->used], *to = &lobby->trays[!lobby->used];
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < n_stay; i++)
        r = send_waiting(to, &lobby->waiting[i]);
    if (r < 0) {
        lobby->broken = !empty_tray(to);
        return r;
    }
    lobby->broken = !empty_tray(from);
    lobby->used = !lobby->used;
    return 0;
}

/* Those who have ended come last. Returns how many stay. */
static uint32_t sort_out(const struct dlxd_publisher *publisher, struct dlxd_lobby *lobby)
{
    uint32_t n_stay = 0;
    for (uint32_t i = 0; i < lobby->n_waiting; i++) {
        struct waiting w = lobby->waiting[i];
        if (has_ended(publisher, &w))
            continue;
        lobby->waiting[i] = lobby->waiting[n_stay];
        lobby->waiting[n_stay++] = w;
    }
    return n_stay;
}

/* Take out who has ended. */
static int clear(struct dlxd_publisher *publisher)
{
    struct dlxd_lobby *lobby = publisher->lobby;
    uint64_t now = dlx__now_ns();
    if (lobby->broken || (lobby->n_left < LEFT_MIN && now < lobby->next_clear_ns))
        return DLX_E_PUBLISHER_NOT_RESPONDING;
    lobby->n_left = 0;
    lobby->next_clear_ns = now + CLEAR_NS;
    uint32_t n_stay = sort_out(publisher, lobby);
    if (n_stay == lobby->n_waiting)
        return DLX_E_PUBLISHER_NOT_RESPONDING;
    int r = DLX_E_PUBLISHER_NOT_RESPONDING;
    dlxd_membership_set_clearing(&publisher->line, true);
    if (!is_picking(publisher))
        r = change_trays(lobby, n_stay);
    dlxd_membership_set_clearing(&publisher->line, false);
    while (r == 0 && lobby->n_waiting > n_stay)
        waiting_deinit(&lobby->waiting[--lobby->n_waiting]);
    return r;
}

/* ---- sending ------------------------------------------------------------------------------- */

/* DLX_E_EMPTY: there is no room. */
static int add(struct dlxd_publisher *publisher, struct dlxd_user *user,
               const Dlx__Wire__LinkAdded *body, const int fds[3])
{
    struct dlxd_lobby *lobby = publisher->lobby;
    if (lobby->n_waiting == DLXD_WAITING_MAX)
        return DLX_E_EMPTY;
    struct waiting *w = &lobby->waiting[lobby->n_waiting];
    int r = waiting_init(w, user, body, fds);
    if (r < 0)
        return r;
    r = send_waiting(&lobby->trays[lobby->used], w);
    if (r == DLX_E_FULL && errno == EAGAIN)
        r = DLX_E_EMPTY;
    if (r < 0)
        waiting_deinit(w);
    else
        lobby->n_waiting++;
    return r;
}

int dlxd_lobby_send_added(struct dlxd_publisher *publisher, struct dlxd_user *user,
                          const Dlx__Wire__LinkAdded *body, const int fds[3])
{
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    int r = 0;
    close_if_drained(publisher);
    if (!publisher->lobby) {
        packet.body_case = DLX__WIRE__PACKET__BODY_LINK_ADDED;
        packet.link_added = (Dlx__Wire__LinkAdded *)(uintptr_t)body;
        r = dlx__proto_send(publisher->link_sock, &packet, fds, 3);
        /* Else the kernel was short of memory, or our user has too many descriptors on their way: not the publisher's fault. */
        if (r != DLX_E_FULL || errno != EAGAIN)
            return r;
        r = lobby_open(publisher);
    }
    if (r == 0)
        r = add(publisher, user, body, fds);
    if (r == DLX_E_EMPTY) {
        r = clear(publisher);
        if (r == 0)
            r = add(publisher, user, body, fds);
    }
    return r == DLX_E_EMPTY ? DLX_E_PUBLISHER_NOT_RESPONDING : r;
}
