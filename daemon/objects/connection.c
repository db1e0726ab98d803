/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/connection.h"
#include "common/error.h"
#include "common/proto.h"
#include "daemon/base/log.h"
#include "daemon/base/watch.h"
#include "daemon/memory/report.h"
#include "daemon/objects/store_hooks.h"
#include "daemon/users/outbox.h"
#include "daemon/users/principal.h"
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- sending ------------------------------------------------------------------------------- */

/* A packet that did not fit into the socket. */
struct tx_packet {
    struct dlxd_list node;
    size_t size;
    uint8_t data[];
};

bool dlxd_client_is_paused(const struct dlxd_client *client)
{
    return client->barrier || client->awaits_proof || client->gpu_call;
}

void dlxd_client_rewatch(struct dlxd_client *client)
{
    bool paused = dlxd_client_is_paused(client) || client->input == DLXD_INPUT_PAUSED;
    if (!dlxd_client_is_doomed(client))
        dlxd_watch_set(client->watch, (paused ? 0 : DLXD_READABLE) |
                                          (dlxd_list_empty(&client->tx) ? 0 : DLXD_WRITABLE));
}

void dlxd_client_flush(struct dlxd_client *client)
{
    while (!dlxd_list_empty(&client->tx)) {
        struct tx_packet *tx = dlxd_container_of(client->tx.next, struct tx_packet, node);
        int r = dlx__packet_send(client->fd, tx->data, tx->size, NULL, 0);
        if (r == DLX_E_FULL)
            return;
        dlxd_list_remove(&tx->node);
        client->n_tx--;
        client->tx_size -= tx->size;
        free(tx);
        if (r < 0) {
            dlxd_client_doom(client);
            return;
        }
    }
    dlxd_client_rewatch(client);
}

void dlxd_client_forget_replies(struct dlxd_client *client)
{
    dlx_for_each (it, &client->tx) {
        dlxd_list_remove(it);
        free(dlxd_container_of(it, struct tx_packet, node));
    }
}

static void client_enqueue(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    size_t size = dlx__wire__packet__get_packed_size(packet);
    if (client->n_tx >= DLXD_TX_PACKETS_MAX || size > DLXD_TX_BYTES_MAX - client->tx_size) {
        dlxd_client_disconnect(
            client, DLX_E_LIMIT, "%zu replies of %zu bytes were not read: at most %u and %u",
            client->n_tx, client->tx_size, DLXD_TX_PACKETS_MAX, DLXD_TX_BYTES_MAX);
        return;
    }
    struct tx_packet *tx = malloc(sizeof *tx + size);
    if (!tx) {
        dlxd_client_disconnect(client, DLX_E_NO_MEMORY, "out of memory for a reply");
        return;
    }
    tx->size = dlx__wire__packet__pack(packet, tx->data);
    dlxd_list_push_back(&client->tx, &tx->node);
    client->n_tx++;
    client->tx_size += tx->size;
    dlxd_client_rewatch(client);
}

void dlxd_client_send(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    if (dlxd_client_is_doomed(client))
        return;
    int r = DLX_E_FULL;
    if (dlxd_list_empty(&client->tx))
        r = dlx__proto_send(client->fd, packet, NULL, 0);
    if (r == DLX_E_FULL || r == DLX_E_NO_MEMORY)
        client_enqueue(client, packet);
    else if (r < 0)
        dlxd_client_doom(client);
}

int dlxd_client_send_fds(struct dlxd_client *client, const Dlx__Wire__Packet *packet,
                         const int *fds, size_t n_fds)
{
    int r = DLX_E_FULL;
    if (dlxd_list_empty(&client->tx))
        r = dlxd_outbox_send(client->outbox, client->user, packet, fds, n_fds, NULL);
    if (r == DLX_E_FULL)
        return dlx__fail(DLX_E_LIMIT,
                         "%s (pid %d) cannot be sent file descriptors: it does not read its "
                         "replies, or the daemon has too many on their way",
                         client->name, (int)client->pid);
    return r;
}

void dlxd_client_send_ok(struct dlxd_client *client, uint32_t serial)
{
    Dlx__Wire__Ok body = DLX__WIRE__OK__INIT;
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    packet.serial = serial;
    packet.body_case = DLX__WIRE__PACKET__BODY_OK;
    packet.ok = &body;
    dlxd_client_send(client, &packet);
}

void dlxd_client_send_error(struct dlxd_client *client, uint32_t serial, int code, const char *text)
{
    Dlx__Wire__Error body = DLX__WIRE__ERROR__INIT;
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    body.code = code;
    body.text = (char *)(uintptr_t)text;
    packet.serial = serial;
    packet.body_case = DLX__WIRE__PACKET__BODY_ERROR;
    packet.error = &body;
    dlxd_client_send(client, &packet);
}

/* ---- the end ------------------------------------------------------------------------------- */

void dlxd_client_set_state(struct dlxd_client *client, enum dlxd_client_state state)
{
    struct dlxd_broker *broker = client->broker;
    if (client->user) {
        client->user->n_greeting -= client->state == DLXD_CLIENT_GREETING;
        client->user->n_greeting += state == DLXD_CLIENT_GREETING;
    }
    broker->n_greeting -= client->state == DLXD_CLIENT_GREETING;
    broker->n_refused -= client->state == DLXD_CLIENT_REFUSED;
    broker->n_clients -= client->state == DLXD_CLIENT_OPEN;
    broker->n_greeting += state == DLXD_CLIENT_GREETING;
    broker->n_refused += state == DLXD_CLIENT_REFUSED;
    broker->n_clients += state == DLXD_CLIENT_OPEN;
    client->state = state;
}

bool dlxd_client_has_left(const struct dlxd_client *client)
{
    return dlx__packet_hung_up(client->fd) || dlxd_process_is_dead(client->pidfd);
}

bool dlxd_client_is_cut(const struct dlxd_client *client)
{
    switch (client->dismissed) {
    case 0:
    case DLX_E_DISCONNECTED: /* dlpackd is stopping */
    case DLX_E_NO_MEMORY:
    case DLX_E_FD_LIMIT:
    case DLX_E_SYSTEM:
        return false;
    default:
        return true;
    }
}

void dlxd_client_doom(struct dlxd_client *client)
{
    if (dlxd_client_is_doomed(client))
        return;
    dlxd_store_hooks_leave(client);
    dlxd_list_remove(&client->greeting);
    dlxd_client_set_state(client, DLXD_CLIENT_ENDING);
    if (client->watch)
        dlxd_watch_set(client->watch, 0);
    if (client->pid_watch)
        dlxd_watch_set(client->pid_watch, 0);
    if (client->user)
        dlxd_task_start(&client->task, client->user);
}

void dlxd_client_goodbye(int fd, int code, const char *text)
{
    Dlx__Wire__Disconnect body = DLX__WIRE__DISCONNECT__INIT;
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    body.code = code;
    body.text = (char *)(uintptr_t)text;
    packet.body_case = DLX__WIRE__PACKET__BODY_DISCONNECT;
    packet.disconnect = &body;
    (void)dlx__proto_send(fd, &packet, NULL, 0);
}

void dlxd_client_disconnect(struct dlxd_client *client, int code, const char *fmt, ...)
{
    char text[DLX_ERROR_TEXT_SIZE];
    va_list ap;
    if (dlxd_client_is_doomed(client))
        return;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    dlxd_log_client(dlxd_principal_number(client->principal), DLXD_LOG_NOTICE,
                    "disconnecting %s (pid %d, uid %u): %s: %s", client->name, (int)client->pid,
                    (unsigned)client->principal->uid, dlx__error_name(code), text);
    client->dismissed = code;
    dlxd_client_flush(client);
    if (dlxd_list_empty(&client->tx))
        dlxd_client_goodbye(client->fd, code, text);
    dlxd_client_doom(client);
}

void dlxd_client_refuse(struct dlxd_client *client)
{
    dlxd_client_disconnect(client, client->refuse_code, "%s",
                           client->refuse_text ? client->refuse_text
                                               : dlx__error_text(client->refuse_code));
}

/* ---- the process --------------------------------------------------------------------------- */

bool dlxd_process_is_dead(int pidfd)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

bool dlxd_reader_has_left(int page_fd, uint32_t max_held, int pidfd)
{
    return dlxd_report_has_left(page_fd, max_held) || dlxd_process_is_dead(pidfd);
}

struct dlxd_holder *dlxd_holder_new(struct dlxd_client *client, int take_pidfd)
{
    struct dlxd_holder *holder = calloc(1, sizeof *holder);
    if (!holder) {
        (void)dlx__fail(DLX_E_NO_MEMORY, "out of memory for a client");
        return NULL;
    }
    holder->client = client;
    holder->pid = client->pid;
    holder->pidfd = take_pidfd;
    dlxd_drains_init(&holder->drains);
    return holder;
}

void dlxd_holder_release(struct dlxd_holder *holder)
{
    if (holder->client || holder->drains.n > 0 || holder->former || holder->former_asked)
        return;
    dlx__close(holder->pidfd);
    dlxd_charge_deinit(&holder->pidfd_charge);
    free(holder);
}

void dlxd_holder_disconnected(struct dlxd_holder *holder)
{
    if (holder->drains.n > 0 || holder->former)
        dlxd_charge_restore(&holder->pidfd_charge, holder->client->user, DLXD_DESCRIPTORS, 1);
    memcpy(holder->name, holder->client->name, sizeof holder->name);
    holder->client = NULL;
    dlxd_holder_release(holder);
}

const char *dlxd_holder_name(const struct dlxd_holder *holder)
{
    return holder->client ? holder->client->name : holder->name;
}
