/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: the daemon's broker with hostile clients. The input is a program that sends packets
 * (well-formed ones with any values, or any bytes) on control and subscription sockets, writes the
 * regions that it is given, reads or does not read its sockets, hangs up, and lets time pass. The
 * harness is the clients' side: it knows the ids that it was told, and allocates the regions that
 * it was sent, unless the input says otherwise.
 *
 * Every request is answered once, in order; what the daemon sends decodes and comes with the fds
 * that belong to it; a region that it announces is sealed and whole; at the end nothing is charged,
 * open or mapped.
 */
#include "common/error.h"
#include "common/memory.h"
#include "daemon/objects/broker.h"
#include "daemon/objects/client.h"
#include "daemon/objects/publisher_state.h"
#include "daemon/protocol/dispatch.h"
#include "daemon/base/worker.h"
#include "tests/fuzz/harness_fuzz.h"
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <uv.h>

#define PEERS     3U
#define SOCKS_MAX 6U
#define MAPS_MAX  12U
#define QUEUE_MAX 8U
#define RAM_BYTES (UINT64_C(1) << 22)

#define BODY(name) DLX__WIRE__PACKET__BODY_##name

struct peer {
    uint64_t id; /* of the client; 0: not connected */
    int fd;
    uint32_t serial;
    uint32_t asked[QUEUE_MAX]; /* serials that are to be answered */
    uint32_t n_asked;
};

/* The peer's end of a subscription socket or a link socket. */
struct sock {
    int fd; /* -1: none */
    uint64_t subscription;
    uint32_t peer;
    uint32_t fds_read; /* packets with fds, for Ack */
};

struct state {
    struct dlx_fuzz f;
    struct peer peers[PEERS];
    struct sock socks[SOCKS_MAX];
    struct {
        void *at;
        uint64_t size;
    } maps[MAPS_MAX];
    uint32_t n_maps;
    struct dlx_fuzz_ids ids;
    bool lazy; /* regions are not allocated */
};

static uv_loop_t loop;
static struct dlxd_broker broker;
static struct dlx_packet rx;
static struct dlx_proto_arena arena;
static uint8_t bytes[DLX_PACKET_SIZE_MAX];

static struct dlxd_client *client_of(const struct peer *peer)
{
    dlx_for_each (it, &broker.clients) {
        struct dlxd_client *client = dlxd_container_of(it, struct dlxd_client, node);
        if (dlxd_client_id(client) == peer->id)
            return client;
    }
    return NULL;
}

/* ---- what the daemon sends ------------------------------------------------------------------- */

static void add_map(struct state *s, int take_fd, uint64_t size, bool is_new)
{
    void *map;
    if (s->lazy || s->n_maps == MAPS_MAX) {
        dlx__close(take_fd);
        return;
    }
    if (dlx__region_populate(broker.memory, take_fd, size, &map) < 0) {
        REQUIRE(!is_new); /* we said that it was ready, before we had it: it is sealed */
        return;
    }
    s->maps[s->n_maps].at = map;
    s->maps[s->n_maps++].size = size;
}

static void check_region(int take_fd, uint64_t size)
{
    const void *map;
    REQUIRE(dlx__region_attach(broker.memory, take_fd, size, &map) == 0);
    dlx__region_unmap(map, size);
}

static void add_sock(struct state *s, int take_fd, uint64_t subscription, uint32_t peer)
{
    uint32_t i = 0;
    while (i < SOCKS_MAX && s->socks[i].fd >= 0)
        i++;
    if (i == SOCKS_MAX)
        dlx__close(take_fd);
    else
        s->socks[i] = (struct sock){.fd = take_fd, .subscription = subscription, .peer = peer};
}

static const struct {
    Dlx__Wire__Packet__BodyCase body;
    size_t n_fds;
} with_fds[] = {
    {BODY(PUBLISHER_NEW_REPLY), 3}, {BODY(ARENA_NEW_REPLY), 1}, {BODY(SUBSCRIBE_REPLY), 1},
    {BODY(LINK_ADDED), 3},          {BODY(LINK_OFFER), 1},      {BODY(LINK_OPEN), 2},
    {BODY(ARENA_ADDED), 1},
};

static bool is_of_worker(const Dlx__Wire__Packet *packet)
{
    return packet->body_case == BODY(LINK_OPEN) && packet->link_open->owner > 0;
}

static void check_n_fds(const Dlx__Wire__Packet *packet)
{
    size_t expected = is_of_worker(packet) ? 3 : 0; /* the claims page twice, and a bell */
    for (size_t i = 0; i < DLX_ARRAY_SIZE(with_fds); i++)
        if (with_fds[i].body == packet->body_case)
            expected += with_fds[i].n_fds;
    REQUIRE(rx.n_fds == expected);
}

static int fd(size_t i)
{
    return dlx__packet_steal_fd(&rx, i);
}

static void on_reply(struct state *s, uint32_t peer, const Dlx__Wire__Packet *packet)
{
    switch (packet->body_case) {
    case BODY(PUBLISHER_NEW_REPLY):
        dlx_fuzz_ids_add(&s->ids, packet->publisher_new_reply->publisher);
        add_map(s, fd(0), packet->publisher_new_reply->control_size, true);
        add_sock(s, fd(2), 0, peer);
        break;
    case BODY(ARENA_NEW_REPLY):
        add_map(s, fd(0), packet->arena_new_reply->arena_size, true);
        break;
    case BODY(SUBSCRIBE_REPLY):
        dlx_fuzz_ids_add(&s->ids, packet->subscribe_reply->subscription);
        add_sock(s, fd(0), packet->subscribe_reply->subscription, peer);
        break;
    case BODY(PUBLISHER_LIST):
        REQUIRE(packet->publisher_list->n_entries <= 16);
        break;
    case BODY(LINK_LIST):
        REQUIRE(packet->link_list->n_entries <= 32);
        break;
    case BODY(GROUP_LIST):
        REQUIRE(packet->group_list->n_entries <= 16);
        break;
    case BODY(CLAIM_LIST):
        REQUIRE(packet->claim_list->n_entries <= 32);
        break;
    case BODY(ERROR):
        REQUIRE(packet->error->code < 0 && *packet->error->text);
        break;
    default:
        break;
    }
}

/* Of a control socket: everything. */
static void read_replies(struct state *s, uint32_t k)
{
    struct peer *peer = &s->peers[k];
    const Dlx__Wire__Packet *packet;
    while (peer->fd >= 0 && dlx__packet_recv_fds(peer->fd, &rx) == 0) {
        REQUIRE(dlx__proto_unpack(&arena, rx.data, rx.size, &packet) == 0);
        check_n_fds(packet);
        if (packet->body_case == BODY(DISCONNECT)) {
            REQUIRE(packet->serial == 0 && packet->disconnect->code < 0);
            peer->n_asked = 0;
        } else {
            REQUIRE(peer->n_asked > 0 && peer->asked[0] == packet->serial);
            memmove(peer->asked, peer->asked + 1, --peer->n_asked * sizeof *peer->asked);
            on_reply(s, k, packet);
        }
        dlx__packet_deinit(&rx);
    }
}

/* A worker writes what it likes. */
static void write_claims(struct state *s, int take_fd, uint64_t size)
{
    const uint8_t *piece;
    size_t n = dlx_fuzz_piece(&s->f, 64, &piece);
    off_t at = (off_t)(dlx_fuzz_number(&s->f) % size);
    REQUIRE(pwrite(take_fd, piece, DLX_MIN(n, size - (uint64_t)at), at) >= 0);
    dlx__close(take_fd);
}

static void on_notifications(struct state *s, struct sock *sock, const Dlx__Wire__Packet *packet)
{
    REQUIRE(packet->serial == 0);
    sock->fds_read += rx.n_fds > 0;
    switch (packet->body_case) {
    case BODY(LINK_OFFER):
        dlx_fuzz_ids_add(&s->ids, packet->link_offer->link);
        add_map(s, fd(0), packet->link_offer->page_size, false);
        break;
    case BODY(LINK_OPEN):
        check_region(fd(0), packet->link_open->control_size);
        if (is_of_worker(packet))
            write_claims(s, fd(2), packet->link_open->claims_size);
        break;
    case BODY(ARENA_ADDED):
        check_region(fd(0), packet->arena_added->arena_size);
        break;
    case BODY(LINK_ADDED):
        check_region(fd(0), packet->link_added->page_size);
        break;
    case BODY(LINK_FAILED):
        REQUIRE(packet->link_failed->code < 0);
        break;
    case BODY(LINK_CUT):
        REQUIRE(packet->link_cut->code < 0);
        break;
    case BODY(SPARE_SEALED):
        REQUIRE(packet->spare_sealed->link != 0 && rx.n_fds == 0);
        break;
    default:
        REQUIRE(packet->body_case == BODY(ARENA_DROPPED) ||
                packet->body_case == BODY(PUBLISHER_GONE));
        break;
    }
}

static void read_notifications(struct state *s, struct sock *sock)
{
    const Dlx__Wire__Packet *packet;
    while (sock->fd >= 0 && dlx__packet_recv_fds(sock->fd, &rx) == 0) {
        REQUIRE(dlx__proto_unpack(&arena, rx.data, rx.size, &packet) == 0);
        check_n_fds(packet);
        on_notifications(s, sock, packet);
        dlx__packet_deinit(&rx);
    }
}

/* ---- what the clients send ------------------------------------------------------------------- */

static void connect_peer(struct state *s, uint32_t k, bool greeted)
{
    struct dlxd_client *client;
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
    REQUIRE(dlxd_client_new(&client, &broker, pair[0], DLXD_SOCKET_MAIN) == 0);
    s->peers[k] = (struct peer){.id = dlxd_client_id(client), .fd = pair[1]};
    if (greeted) {
        client->principal->minor = DLX_PROTO_MINOR;
        dlxd_client_greet(client, "fuzz", 8);
    }
}

/* The daemon has let go of it, or it goes: its process closes everything. */
static void forget_peer(struct state *s, uint32_t k)
{
    for (uint32_t i = 0; i < SOCKS_MAX; i++)
        if (s->socks[i].peer == k)
            s->socks[i].fd = dlx__close(s->socks[i].fd);
    s->peers[k].fd = dlx__close(s->peers[k].fd);
    s->peers[k].id = 0;
}

/* After everything that was handed to the broker. */
static void settle(struct state *s)
{
    dlxd_broker_settle(&broker);
    while (dlxd_workers_n_jobs(broker.workers) > 0) {
        (void)uv_run(&loop, UV_RUN_ONCE);
        dlxd_broker_settle(&broker);
    }
    for (uint32_t k = 0; k < PEERS; k++) {
        if (s->peers[k].id == 0)
            continue;
        read_replies(s, k);
        if (!client_of(&s->peers[k]))
            forget_peer(s, k);
        else
            REQUIRE(s->peers[k].n_asked == 0);
    }
    dlxd_broker_settle(&broker);
}

static void run_loop(void)
{
    for (int i = 0; i < 2; i++)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
}

static void ask(struct state *s, uint32_t k, const uint8_t *data, size_t size, bool by_socket)
{
    const Dlx__Wire__Packet *packet;
    struct peer *peer = &s->peers[k];
    struct dlxd_client *client = client_of(peer);
    if (!client)
        return;
    if (dlx__proto_unpack(&arena, data, size, &packet) == 0 && packet->serial != 0)
        peer->asked[peer->n_asked++] = packet->serial;
    if (by_socket) {
        uint32_t how = dlx_fuzz_choose(&s->f, 8);
        int with = 2; /* clients send no fds */
        if (dlx__packet_send(peer->fd, data, size, &with, how == 7) < 0)
            peer->n_asked = 0;
        run_loop();
    } else {
        dlxd_dispatch_client_bytes(client, data, size);
    }
    settle(s);
}

static const Dlx__Wire__Packet__BodyCase requests[] = {
    BODY(PUBLISHER_NEW),
    BODY(PUBLISHER_READY),
    BODY(SUBSCRIBE),
    BODY(ARENA_NEW),
    BODY(ARENA_READY),
    BODY(ARENA_DROP),
    BODY(PUBLISHER_CLOSE),
    BODY(LIST_LINKS),
    BODY(LIST_PUBLISHERS),
    BODY(PUBLISHER_RETAINS),
    BODY(RETAINED_DROP),
    BODY(SUBSCRIPTION_CLOSE),
    BODY(DAEMON_INFO),
    BODY(HELLO),
    BODY(LINK_READY),
    BODY(PUBLISHER_LIST),
    BODY(LIST_GROUPS),
    BODY(LIST_CLAIMS),
    BODY(GROUPS_DROP),
    BODY(LIST_SUBSCRIPTIONS),
    BODY(LIST_REFUSALS),
    BODY(LIST_CLIENTS),
    BODY(KICK),
};

static void request_with(struct state *s, bool has_serial)
{
    struct dlx_fuzz *f = &s->f;
    uint32_t k = dlx_fuzz_choose(f, 16);
    bool by_socket = k >= 12;
    uint32_t peer = k == 15 ? 0 : 1 + k % 2;
    uint32_t serial = has_serial ? ++s->peers[peer].serial : 0;
    uint32_t body = dlx_fuzz_choose(f, DLX_ARRAY_SIZE(requests));
    size_t size = dlx_fuzz_packet(f, requests[body], serial, &s->ids, bytes);
    if (size > 0)
        ask(s, peer, bytes, size, by_socket);
}

static void request(struct state *s)
{
    request_with(s, true);
}

static void request_without_serial(struct state *s)
{
    request_with(s, false);
}

static struct dlxd_subscription *subscription_of(const struct state *s, const struct sock *sock)
{
    const struct dlxd_client *client = client_of(&s->peers[sock->peer]);
    if (!client || sock->fd < 0)
        return NULL;
    dlx_for_each (it, &client->subscriptions) {
        struct dlxd_subscription *sub = dlxd_container_of(it, struct dlxd_subscription, by_client);
        if (dlxd_subscription_id(sub) == sock->subscription)
            return sub;
    }
    return NULL;
}

static void tell(struct state *s, const struct sock *sock, const uint8_t *data, size_t size)
{
    struct dlxd_subscription *subscription = subscription_of(s, sock);
    if (!subscription)
        return;
    if (dlx_fuzz_choose(&s->f, 4) == 3) {
        (void)!send(sock->fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL); /* may be empty */
        run_loop();
    } else {
        dlxd_dispatch_subscription_bytes(subscription, data, size);
    }
    settle(s);
}

/* An honest Ack, or any answer with any values. */
static void answer(struct state *s, const struct sock *sock)
{
    static const Dlx__Wire__Packet__BodyCase answers[] = {BODY(LINK_READY), BODY(LINK_READY),
                                                          BODY(ACK), BODY(LINK_CLOSE)};
    Dlx__Wire__Ack body = DLX__WIRE__ACK__INIT;
    Dlx__Wire__Packet ack = DLX__WIRE__PACKET__INIT;
    uint32_t what = dlx_fuzz_choose(&s->f, 6);
    if (what < DLX_ARRAY_SIZE(answers)) {
        size_t size = dlx_fuzz_packet(&s->f, answers[what], 0, &s->ids, bytes);
        tell(s, sock, bytes, size);
        return;
    }
    body.n = sock->fds_read;
    ack.body_case = BODY(ACK);
    ack.ack = &body;
    tell(s, sock, bytes, dlx__wire__packet__pack(&ack, bytes));
}

static void scribble(struct state *s)
{
    struct dlx_fuzz *f = &s->f;
    uint32_t k = dlx_fuzz_choose(f, MAPS_MAX);
    uint64_t at = dlx_fuzz_bytes(f, 2) * 8, value = dlx_fuzz_number(f);
    if (k < s->n_maps)
        memcpy((uint8_t *)s->maps[s->n_maps - 1 - k].at + at % s->maps[s->n_maps - 1 - k].size,
               &value, sizeof value);
}

/* ---- a run ----------------------------------------------------------------------------------- */

static void ask_bytes(struct state *s)
{
    const uint8_t *piece;
    uint32_t k = dlx_fuzz_choose(&s->f, PEERS);
    size_t size = dlx_fuzz_piece(&s->f, DLX_PACKET_SIZE_MAX, &piece);
    ask(s, k, piece, size, false);
}

static void tell_bytes(struct state *s)
{
    const uint8_t *piece;
    uint32_t k = dlx_fuzz_choose(&s->f, SOCKS_MAX);
    size_t size = dlx_fuzz_piece(&s->f, DLX_PACKET_SIZE_MAX, &piece);
    tell(s, &s->socks[k], piece, size);
}

static void connect_again(struct state *s)
{
    uint32_t k = dlx_fuzz_choose(&s->f, PEERS);
    if (s->peers[k].id == 0)
        connect_peer(s, k, k > 0);
}

/* A client does, or one of its sockets. */
static void hang_up(struct state *s)
{
    uint32_t k = dlx_fuzz_choose(&s->f, PEERS + SOCKS_MAX);
    if (k < PEERS)
        forget_peer(s, k);
    else
        s->socks[k - PEERS].fd = dlx__close(s->socks[k - PEERS].fd);
    run_loop();
    settle(s);
}

static void let_time_pass(struct state *s)
{
    dlxd_retained_expire(&broker, dlx_fuzz_number(&s->f) / 2); /* no clock reaches UINT64_MAX */
    dlxd_broker_unstick(&broker);
    settle(s);
}

static void read_some(struct state *s)
{
    read_notifications(s, &s->socks[dlx_fuzz_choose(&s->f, SOCKS_MAX)]);
}

static void answer_some(struct state *s)
{
    answer(s, &s->socks[dlx_fuzz_choose(&s->f, SOCKS_MAX)]);
}

static void set_lazy(struct state *s)
{
    s->lazy = dlx_fuzz_choose(&s->f, 8) == 7;
}

static void (*const steps[])(struct state *) = {
    ask_bytes,     tell_bytes,  connect_again, hang_up,
    let_time_pass, scribble,    scribble,      read_some,
    read_some,     answer_some, answer_some,   set_lazy,
    request,       request,     request,       request_without_serial,
};

static void end(struct state *s)
{
    for (uint32_t i = 0; i < SOCKS_MAX; i++)
        if (s->socks[i].fd >= 0)
            read_notifications(s, &s->socks[i]);
    dlx_for_each (it, &broker.clients)
        dlxd_client_free(dlxd_container_of(it, struct dlxd_client, node));
    dlxd_broker_settle(&broker);
    dlxd_retained_clear(&broker);
    REQUIRE(broker.users.all_bytes == 0 && broker.n_clients == 0 && broker.n_greeting == 0 &&
            broker.n_refused == 0);
    dlxd_broker_deinit(&broker);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    for (uint32_t k = 0; k < PEERS; k++)
        forget_peer(s, k);
    for (uint32_t i = 0; i < SOCKS_MAX; i++)
        dlx__close(s->socks[i].fd);
    for (uint32_t i = 0; i < s->n_maps; i++)
        dlx__region_unmap(s->maps[i].at, s->maps[i].size);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    (void)signal(SIGPIPE, SIG_IGN);
    REQUIRE(uv_loop_init(&loop) == 0);
    (void)uv_run(&loop, UV_RUN_NOWAIT); /* it opens what it needs now */
    return 0;
}

void dlx_fuzz_one(struct dlx_fuzz *f)
{
    struct state s = {.f = *f};
    for (uint32_t k = 0; k < PEERS; k++)
        s.peers[k].fd = -1;
    for (uint32_t i = 0; i < SOCKS_MAX; i++)
        s.socks[i].fd = -1;
    REQUIRE(dlxd_broker_init(&broker, &loop, &dlx__memory_memfd, &dlxd_dispatch, RAM_BYTES) == 0);
    for (uint32_t k = 0; k < PEERS; k++)
        connect_peer(&s, k, k > 0);
    dlxd_broker_settle(&broker);
    while (s.f.left > 0)
        steps[dlx_fuzz_choose(&s.f, DLX_ARRAY_SIZE(steps))](&s);
    end(&s);
}
