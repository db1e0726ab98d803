/* SPDX-License-Identifier: Apache-2.0 */
#include "keeper/router.h"
#include "common/error.h"
#include "keeper/readers.h"
#include "keeper/table.h"
#include "keeper/wire.h"
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* How late the keeper notices that its socket file was removed. */
#define LOOK_NS UINT64_C(500000000)

struct router {
    int epoll;
    int listener;
    int daemon;   /* -1: none */
    bool is_late; /* there was none for `grace_ns` */
    uint64_t daemon_left_ns;
    uint64_t look_ns; /* when it looks for its files again */
    struct dlxk_source on_listener;
    struct dlxk_source on_daemon;
    const struct dlxk_router_options *options;
    struct dlxk_table table;
    struct dlxk_readers readers;
    struct dlx_packet packet;
};

static uint64_t grace_ns(const struct router *router)
{
    return router->options->grace_ns ? router->options->grace_ns : DLXK_GRACE_NS;
}

/* ---- holders --------------------------------------------------------------------------------- */

static void end_holder(struct router *router, struct dlxk_entry *entry)
{
    dlxk_readers_holder_ends(&router->readers, entry);
    dlxk_table_end(&router->table, entry);
}

static void end_orphans(struct router *router)
{
    dlx_for_each (it, &router->table.live) {
        struct dlxk_entry *entry = dlxd_container_of(it, struct dlxk_entry, node);
        if (entry->is_orphan && !entry->is_wanted)
            end_holder(router, entry);
    }
}

/* Called for a holder whose publisher has closed its end: does nobody need it any more? */
static bool router_is_over(const struct router *router, const struct dlxk_entry *entry)
{
    if (entry->is_wanted)
        return false;
    return entry->is_forgotten ||
           (router->daemon >= 0 ? router->table.is_claimed : router->is_late);
}

static void on_holder(struct router *router, struct dlxk_entry *entry)
{
    struct dlx_keeper_packet packet;
    int r = dlx__packet_recv(entry->control, &router->packet);
    if (r == DLX_E_EMPTY)
        return;
    if (r == 0)
        r = dlx__keeper_decode(&router->packet, &packet);
    if (r == 0 && packet.kind == DLX_KEEPER_OWNER_GONE) {
        entry->is_orphan = true;
        if (router_is_over(router, entry))
            end_holder(router, entry);
    } else {
        end_holder(router, entry); /* the holder has died or violated the protocol */
    }
}

/* ---- what the daemon says -------------------------------------------------------------------- */

static void own(struct router *router, const struct dlx_keeper_packet *packet, int take_sock)
{
    struct dlxk_entry *entry =
        dlxk_table_find(&router->table, packet->origin, dlx__keeper_user(packet));
    if (entry)
        end_holder(router, entry);
    int r = dlxk_table_start(&router->table, packet->origin, dlx__keeper_user(packet), take_sock,
                             &router->options->holder);
    (void)dlx__keeper_send_code(router->daemon, DLX_KEEPER_OWNED, packet->serial, r,
                                r < 0 ? dlx__error_message() : "");
}

static void claim(struct router *router, const struct dlx_keeper_packet *packet)
{
    for (size_t i = 0; i < dlx__keeper_n_claims(packet); i++) {
        uint64_t origin;
        uint64_t user;
        dlx__keeper_claim(packet, i, &origin, &user);
        struct dlxk_entry *entry = dlxk_table_find(&router->table, origin, user);
        if (entry)
            entry->is_wanted = true;
        if (entry)
            entry->is_forgotten = false;
    }
}

/* A publisher that is still connected may announce itself again, so what it has put stays. */
static void forget(struct router *router, const struct dlx_keeper_packet *packet)
{
    struct dlxk_entry *entry =
        dlxk_table_find(&router->table, packet->origin, dlx__keeper_user(packet));
    if (!entry)
        return;
    entry->is_wanted = false;
    entry->is_forgotten = true;
    if (entry->is_orphan)
        end_holder(router, entry);
}

static int handle_daemon(struct router *router, const struct dlx_keeper_packet *packet)
{
    switch (packet->kind) {
    case DLX_KEEPER_OWN:
        own(router, packet, dlx__packet_steal_fd(&router->packet, 0));
        return 0;
    case DLX_KEEPER_GET:
        dlxk_readers_add(&router->readers,
                         dlxk_table_find(&router->table, packet->origin, dlx__keeper_user(packet)),
                         packet, dlx__packet_steal_fd(&router->packet, 0));
        return 0;
    case DLX_KEEPER_FORGET:
        forget(router, packet);
        return 0;
    case DLX_KEEPER_CLAIM:
        claim(router, packet);
        return 0;
    case DLX_KEEPER_CLAIMED:
        router->table.is_claimed = true;
        dlxk_readers_allow(&router->readers, packet->code);
        end_orphans(router);
        return 0;
    default:
        return DLX_E_PROTOCOL;
    }
}

static void lose_daemon(struct router *router)
{
    router->daemon = dlxk_unwatch(router->epoll, router->daemon);
    router->daemon_left_ns = dlx__now_ns();
    router->is_late = false;
    router->table.is_claimed = false;
    dlx_for_each (it, &router->table.live)
        dlxd_container_of(it, struct dlxk_entry, node)->is_wanted = false;
}

static void on_daemon(struct router *router)
{
    struct dlx_keeper_packet packet;
    int r = dlx__packet_recv_fds(router->daemon, &router->packet);
    if (r == DLX_E_EMPTY)
        return;
    if (r == DLX_E_FD_LIMIT) { /* the daemon sees no answer, or its client the end */
        (void)dlx__packet_drop(router->daemon);
        return;
    }
    if (r == 0)
        r = dlx__keeper_decode(&router->packet, &packet);
    if (r == 0)
        r = handle_daemon(router, &packet);
    dlx__packet_deinit(&router->packet);
    if (r < 0)
        lose_daemon(router);
}

/* ---- who comes ------------------------------------------------------------------------------- */

static bool may_be_daemon(int sock)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    return getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
           (peer.uid == geteuid() || peer.uid == 0);
}

static bool router_watch(struct router *router, int fd, struct dlxk_source *source)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = source};
    return epoll_ctl(router->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* The newest connection is the daemon: its predecessor has ended or is about to. */
static void on_connection(struct router *router)
{
    dlx_cleanup(dlx__closep) int sock =
        accept4(router->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (sock < 0 || !may_be_daemon(sock))
        return;
    if (router->daemon >= 0)
        lose_daemon(router);
    if (router_watch(router, sock, &router->on_daemon))
        router->daemon = dlx__steal_fd(&sock);
}

/* ---- files that were removed ----------------------------------------------------------------- */

/* As by a program that cleans /tmp: a daemon that starts later would not find the keeper, and what
 * it holds. Without a daemon, a folder that was removed is left to the next one, which makes it. */
static void look_at_place(struct router *router, uint64_t now)
{
    struct dlx_listen *place = router->options->place;
    bool is_taken;
    if (!place || now < router->look_ns)
        return;
    router->look_ns = now + LOOK_NS;
    if (dlx__listen_is_at_path(place)) {
        (void)dlx__listen_restore_lock(place);
        return;
    }
    if (router->daemon < 0 && access(place->folder, F_OK) < 0)
        return;
    int r = dlx__listen_restore(place, &is_taken); /* closes the socket, which ends its watch */
    router->listener = place->fd;
    if (r == 0)
        (void)router_watch(router, router->listener, &router->on_listener);
}

/* ---- life ------------------------------------------------------------------------------------ */

static bool is_idle(const struct router *router)
{
    struct pollfd queue = {.fd = router->listener, .events = POLLIN};
    return router->daemon < 0 && router->is_late && router->table.n == 0 && poll(&queue, 1, 0) == 0;
}

static void on_time(struct router *router, uint64_t now)
{
    if (router->daemon < 0 && !router->is_late &&
        now - router->daemon_left_ns >= grace_ns(router)) {
        router->is_late = true;
        end_orphans(router);
    }
    dlxk_readers_look(&router->readers, now);
    look_at_place(router, now);
}

static void handle(struct router *router, const struct dlxk_source *source)
{
    struct dlxk_entry *entry;
    switch (source->kind) {
    case DLXK_ON_LISTENER:
        on_connection(router);
        return;
    case DLXK_ON_DAEMON:
        on_daemon(router);
        return;
    case DLXK_ON_HOLDER:
        on_holder(router, source->owner);
        return;
    case DLXK_ON_DEATHS:
        while ((entry = dlxk_table_next_dead(&router->table))) {
            dlxk_readers_holder_ends(&router->readers, entry);
            dlxk_table_free(&router->table, entry);
        }
        return;
    case DLXK_ON_READER:
        dlxk_readers_moved(&router->readers, source->owner);
        return;
    }
}

static int wait_ms(const struct router *router, uint64_t now)
{
    uint64_t until = dlxk_readers_next_ns(&router->readers, now);
    if (router->daemon < 0 && !router->is_late)
        until = DLX_MIN(until, router->daemon_left_ns + grace_ns(router));
    if (router->options->place)
        until = DLX_MIN(until, router->look_ns);
    return dlx__deadline_ms(until, now);
}

/* Handles one event at a time, so that none refers to something that another one has freed. */
static void run(struct router *router)
{
    struct epoll_event event;
    while (!is_idle(router)) {
        int n = epoll_wait(router->epoll, &event, 1, wait_ms(router, dlx__now_ns()));
        if (n == 1)
            handle(router, event.data.ptr);
        on_time(router, dlx__now_ns());
    }
}

int dlxk_router_run(int listener, const struct dlxk_router_options *options)
{
    struct router *router = calloc(1, sizeof *router);
    if (!router)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory");
    router->epoll = epoll_create1(EPOLL_CLOEXEC);
    router->listener = listener;
    router->daemon = -1;
    router->daemon_left_ns = dlx__now_ns();
    router->options = options;
    router->on_listener = (struct dlxk_source){DLXK_ON_LISTENER, router};
    router->on_daemon = (struct dlxk_source){DLXK_ON_DAEMON, router};
    int r = router->epoll >= 0 && router_watch(router, listener, &router->on_listener)
                ? 0
                : dlx__fail_errno("epoll");
    dlxk_readers_init(&router->readers, router->epoll);
    int failed =
        dlxk_table_init(&router->table, router->epoll,
                        options->n_holders_max ? options->n_holders_max : DLXK_HOLDERS_MAX);
    if (r == 0)
        r = failed;
    if (r == 0)
        run(router);
    dlx__close(router->daemon);
    dlxk_readers_deinit(&router->readers);
    dlxk_table_deinit(&router->table);
    dlx__close(router->epoll);
    free(router);
    return r;
}
