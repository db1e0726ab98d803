/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/sockets.h"
#include "common/error.h"
#include "daemon/base/log.h"
#include "daemon/base/watch.h"
#include "daemon/base/worker.h"
#include "daemon/objects/client.h"
#include "daemon/objects/connection.h"
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#define ACCEPT_BATCH 16

struct socket {
    struct dlxd_list node;
    struct dlxd_sockets *sockets;
    struct dlxd_listener listener;
    struct dlxd_watch *watch; /* NULL: nobody can connect, for the file was removed */
};

static struct socket *sockets_socket_of(struct dlxd_list *it)
{
    return dlxd_container_of(it, struct socket, node);
}

static int open_reserve(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* ---- connections --------------------------------------------------------------------------- */

/* Out of fds: accepts with the reserve fd, reports the error and closes at once, so that the loop
 * does not spin on a queue that it cannot empty. */
static void refuse_one(struct dlxd_sockets *sockets, const struct socket *socket)
{
    sockets->reserve_fd = dlx__close(sockets->reserve_fd);
    int fd = accept4(socket->listener.at.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0)
        dlxd_client_goodbye(fd, DLX_E_FD_LIMIT, "dlpackd has no file descriptor left");
    dlxd_workers_close_socket(sockets->broker->workers, NULL, fd);
    sockets->reserve_fd = open_reserve();
    if (!sockets->is_full)
        dlxd_log(DLXD_LOG_ERROR, "out of file descriptors: refusing connections");
    sockets->is_full = true;
}

/* Refused clients are kept until their Hello, too, but not too many of them. */
static void limit_refused(struct dlxd_broker *broker)
{
    if (broker->n_refused <= DLXD_REFUSED_MAX)
        return;
    dlx_for_each (it, &broker->greeting) {
        struct dlxd_client *client = dlxd_container_of(it, struct dlxd_client, greeting);
        if (client->refuse_code < 0 && !dlxd_client_is_doomed(client)) {
            dlxd_client_refuse(client);
            return;
        }
    }
}

static void on_connection(void *data, int events)
{
    const struct socket *socket = data;
    struct dlxd_sockets *sockets = socket->sockets;
    struct dlxd_broker *broker = sockets->broker;
    struct dlxd_client *client;
    (void)events;
    for (int i = 0; i < ACCEPT_BATCH; i++) {
        int fd = accept4(socket->listener.at.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE)
                refuse_one(sockets, socket);
            break; /* no connection, or one that is gone, or out of memory: the loop comes back */
        }
        sockets->is_full = false;
        int r = dlxd_client_new(&client, broker, fd, socket->listener.name);
        if (r < 0 && r != DLX_E_DISCONNECTED)
            dlxd_log(DLXD_LOG_ERROR, "refused a connection: %s", dlx__error_message());
        limit_refused(broker);
    }
}

/* ---- life ---------------------------------------------------------------------------------- */

void dlxd_sockets_init(struct dlxd_sockets *sockets, struct dlxd_broker *broker)
{
    *sockets = (struct dlxd_sockets){.broker = broker, .reserve_fd = open_reserve()};
    dlxd_list_init(&sockets->list);
}

void dlxd_sockets_deinit(struct dlxd_sockets *sockets)
{
    dlx_for_each (it, &sockets->list) {
        struct socket *socket = sockets_socket_of(it);
        dlxd_list_remove(it);
        dlxd_watch_free(socket->watch);
        dlxd_listener_deinit(&socket->listener);
        free(socket);
    }
    sockets->reserve_fd = dlx__close(sockets->reserve_fd);
}

static int watch(struct socket *socket)
{
    return dlxd_watch_new(&socket->watch, socket->sockets->broker->watches, socket->listener.at.fd,
                          DLXD_READABLE, on_connection, socket);
}

int dlxd_sockets_add(struct dlxd_sockets *sockets, const struct dlxd_listen *how)
{
    struct socket *socket = calloc(1, sizeof *socket);
    if (!socket) {
        dlx__close(how->take_fd);
        dlx__close(how->borrow_lock ? how->take_lock_fd : -1);
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a socket");
    }
    socket->sockets = sockets;
    int r = dlxd_listener_init(&socket->listener, how);
    if (r == 0)
        r = watch(socket);
    if (r < 0) {
        dlxd_listener_deinit(&socket->listener);
        free(socket);
        return r;
    }
    dlxd_list_push_back(&sockets->list, &socket->node);
    return 0;
}

/* ---- all of them --------------------------------------------------------------------------- */

const char *dlxd_sockets_main_path(const struct dlxd_sockets *sockets)
{
    return sockets_socket_of(sockets->list.next)->listener.at.path;
}

int dlxd_sockets_share(const struct dlxd_sockets *sockets)
{
    int r = 0;
    dlx_for_each (it, &sockets->list)
        r = r == 0 ? dlxd_listener_share(&sockets_socket_of(it)->listener) : r;
    return r;
}

/* ---- files that were removed --------------------------------------------------------------- */

bool dlxd_sockets_are_ours(const struct dlxd_sockets *sockets)
{
    bool any = false;
    dlx_for_each (it, &sockets->list)
        any = any || dlxd_listener_is_ours(&sockets_socket_of(it)->listener);
    return any;
}

bool dlxd_sockets_are_lost(const struct dlxd_sockets *sockets)
{
    bool any = false;
    dlx_for_each (it, &sockets->list) {
        const struct dlxd_listener *listener = &sockets_socket_of(it)->listener;
        any = any || !dlxd_listener_is_ours(listener) || dlx__listen_is_at_path(&listener->at);
    }
    return !any;
}

/* Returns whether another daemon has the path. Connections that wait in the old socket are closed,
 * and their libraries connect to the new one. */
static bool restore(struct socket *socket)
{
    struct dlxd_listener *listener = &socket->listener;
    const bool is_first_try = socket->watch != NULL;
    bool is_taken = false;
    socket->watch = dlxd_watch_free(socket->watch);
    int r = dlx__listen_restore(&listener->at, &is_taken);
    if (r == 0)
        r = watch(socket);
    if (r == 0)
        dlxd_log(DLXD_LOG_WARNING, "%s was removed: listening there again", listener->at.path);
    else if (is_first_try)
        dlxd_log(DLXD_LOG_ERROR, "%s was removed, and nobody can connect there: %s",
                 listener->at.path, dlx__error_message());
    return is_taken;
}

enum dlxd_sockets_state dlxd_sockets_look(struct dlxd_sockets *sockets)
{
    bool any = false;
    dlx_for_each (it, &sockets->list) {
        struct socket *socket = sockets_socket_of(it);
        if (dlxd_listener_is_ours(&socket->listener)) {
            if (socket->watch && dlx__listen_is_at_path(&socket->listener.at))
                dlxd_listener_restore_lock(&socket->listener);
            else if (restore(socket) && it == sockets->list.next)
                return DLXD_SOCKETS_TAKEN;
        }
        any = any || socket->watch;
    }
    return any ? DLXD_SOCKETS_LISTENING : DLXD_SOCKETS_REMOVED;
}

int dlxd_sockets_hand_over(const struct dlxd_sockets *sockets, struct dlxd_handover *handover)
{
    int r = 0;
    dlx_for_each (it, &sockets->list) {
        const struct socket *socket = sockets_socket_of(it);
        if (r == 0 && !socket->watch)
            r = dlx__fail(DLX_E_SYSTEM, "%s was removed, and nobody can connect there",
                          socket->listener.at.path);
        else if (r == 0)
            r = dlxd_listener_hand_over(&socket->listener, handover);
    }
    return r;
}

void dlxd_sockets_log(const struct dlxd_sockets *sockets)
{
    dlx_for_each (it, &sockets->list)
        dlxd_log(DLXD_LOG_NOTICE, "listening on %s", sockets_socket_of(it)->listener.at.path);
}

void dlxd_sockets_restore_reserve(struct dlxd_sockets *sockets)
{
    if (sockets->reserve_fd < 0) /* there was no fd for it when it was needed */
        sockets->reserve_fd = open_reserve();
}

bool dlxd_sockets_somebody_waits(const struct dlxd_sockets *sockets)
{
    dlx_for_each (it, &sockets->list) {
        struct pollfd queue = {.fd = sockets_socket_of(it)->listener.at.fd, .events = POLLIN};
        if (poll(&queue, 1, 0) != 0)
            return true;
    }
    return false;
}
