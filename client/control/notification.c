/* SPDX-License-Identifier: Apache-2.0 */
#include "client/control/notification.h"
#include "client/control/call.h"
#include "client/control/call_wire.h"
#include <stdio.h>

void dlx__notification_deinit(struct dlx_notification *notification)
{
    if (!notification)
        return;
    for (size_t i = 0; i < notification->n_fds; i++)
        dlx__close(notification->fds[i]);
    notification->n_fds = 0;
}

/* The number of fds of each kind. */
static const size_t n_fds_of[] = {
    [DLX_NOTIFICATION_LINK_ADDED] = 3,    [DLX_NOTIFICATION_LINK_OFFER] = 1,
    [DLX_NOTIFICATION_LINK_OPEN] = 2,     [DLX_NOTIFICATION_ARENA_ADDED] = 1,
    [DLX_NOTIFICATION_ARENA_DROPPED] = 0, [DLX_NOTIFICATION_PUBLISHER_GONE] = 0,
    [DLX_NOTIFICATION_LINK_FAILED] = 0,   [DLX_NOTIFICATION_SPARE_SEALED] = 0,
    [DLX_NOTIFICATION_LINK_CUT] = 0,
};
/* What the link of a worker has more: the claims page twice, and the bell of the group. */
#define N_FDS_OF_CLAIMS 3U

static size_t n_fds_for(const struct dlx_notification *notification)
{
    bool of_worker = notification->kind == DLX_NOTIFICATION_LINK_OPEN && notification->owner != 0;
    return n_fds_of[notification->kind] + (of_worker ? N_FDS_OF_CLAIMS : 0);
}

static int translate(const Dlx__Wire__Packet *p, struct dlx_notification *notification)
{
    switch (p->body_case) {
    case DLX__WIRE__PACKET__BODY_LINK_ADDED:
        notification->kind = DLX_NOTIFICATION_LINK_ADDED;
        notification->link = p->link_added->link;
        notification->client = p->link_added->client;
        notification->pid = p->link_added->pid;
        notification->link_index = p->link_added->link_index;
        notification->size = p->link_added->page_size;
        notification->max_held = p->link_added->max_held;
        notification->reliable = p->link_added->reliable;
        notification->reader = p->link_added->reader;
        notification->latest = p->link_added->latest;
        notification->early = p->link_added->early;
        notification->group = p->link_added->group;
        (void)snprintf(notification->text, sizeof notification->text, "%s",
                       p->link_added->group_name);
        return 0;
    case DLX__WIRE__PACKET__BODY_LINK_CUT:
        notification->kind = DLX_NOTIFICATION_LINK_CUT;
        notification->link = p->link_cut->link;
        notification->code = p->link_cut->code < 0 ? p->link_cut->code : DLX_E_PROTOCOL;
        return 0;
    case DLX__WIRE__PACKET__BODY_LINK_OFFER:
        notification->kind = DLX_NOTIFICATION_LINK_OFFER;
        notification->link = p->link_offer->link;
        notification->publisher = p->link_offer->publisher;
        notification->link_index = p->link_offer->link_index;
        notification->size = p->link_offer->page_size;
        notification->max_held = p->link_offer->max_held;
        notification->resumes = p->link_offer->resumes;
        notification->former = p->link_offer->former;
        (void)snprintf(notification->text, sizeof notification->text, "%s", p->link_offer->topic);
        return 0;
    case DLX__WIRE__PACKET__BODY_LINK_OPEN:
        notification->kind = DLX_NOTIFICATION_LINK_OPEN;
        notification->link = p->link_open->link;
        notification->publisher = p->link_open->publisher;
        notification->size = p->link_open->control_size;
        notification->n_entries = p->link_open->n_entries;
        notification->history = p->link_open->history;
        notification->retain = p->link_open->retain;
        notification->max_held = p->link_open->max_held;
        notification->max_held_bytes = p->link_open->max_held_bytes;
        notification->base = p->link_open->after_seq;
        notification->on_full = dlx__call_on_full(p->link_open->on_full);
        notification->from_start = p->link_open->from_start;
        notification->n_arenas = p->link_open->n_arenas;
        notification->pid = p->link_open->pid;
        notification->link_index = p->link_open->link_index;
        notification->resumes = p->link_open->resumes;
        notification->same_user = p->link_open->same_user;
        notification->depth = p->link_open->depth;
        notification->retain_for_ns =
            dlx__call_retain_for(p->link_open->latched, p->link_open->retain_for_ns);
        notification->owner = p->link_open->owner;
        notification->claims_size = p->link_open->claims_size;
        notification->declared_group = p->link_open->declared_group;
        (void)snprintf(notification->text, sizeof notification->text, "%s", p->link_open->topic);
        return 0;
    case DLX__WIRE__PACKET__BODY_SPARE_SEALED:
        notification->kind = DLX_NOTIFICATION_SPARE_SEALED;
        notification->link = p->spare_sealed->link;
        return 0;
    case DLX__WIRE__PACKET__BODY_ARENA_ADDED:
        notification->kind = DLX_NOTIFICATION_ARENA_ADDED;
        notification->link = p->arena_added->link;
        notification->arena = p->arena_added->arena;
        notification->size = p->arena_added->arena_size;
        return 0;
    case DLX__WIRE__PACKET__BODY_ARENA_DROPPED:
        notification->kind = DLX_NOTIFICATION_ARENA_DROPPED;
        notification->link = p->arena_dropped->link;
        notification->arena = p->arena_dropped->arena;
        return 0;
    case DLX__WIRE__PACKET__BODY_PUBLISHER_GONE:
        notification->kind = DLX_NOTIFICATION_PUBLISHER_GONE;
        notification->link = p->publisher_gone->link;
        return 0;
    case DLX__WIRE__PACKET__BODY_LINK_FAILED:
        notification->kind = DLX_NOTIFICATION_LINK_FAILED;
        notification->link = p->link_failed->link;
        notification->code = p->link_failed->code < 0 ? p->link_failed->code : DLX_E_PROTOCOL;
        notification->resumes = p->link_failed->origin;
        notification->base = p->link_failed->last_seq;
        notification->missed = p->link_failed->missed;
        notification->publisher = p->link_failed->publisher;
        notification->pid = p->link_failed->pid;
        (void)snprintf(notification->topic, sizeof notification->topic, "%s",
                       p->link_failed->topic);
        (void)snprintf(notification->text, sizeof notification->text, "%s", p->link_failed->text);
        return 0;
    default:
        return dlx__fail(DLX_E_PROTOCOL, "unexpected %s from dlpackd", dlx__proto_name(p));
    }
}

static int notification_get(int sock, int (*receive)(int sock, struct dlx_packet *packet),
                            struct dlx_notification *ret)
{
    /* Notifications are rare: buffers of their own cost less than a lock. */
    struct dlx_call *call = malloc(sizeof *call);
    const Dlx__Wire__Packet *packet;
    if (!call)
        return dlx__fail(DLX_E_NO_MEMORY, "buffers of %zu bytes", sizeof *call);
    call->packet.n_fds = 0;
    int r = receive(sock, &call->packet);
    if (r == 0)
        r = dlx__proto_unpack(&call->arena, call->packet.data, call->packet.size, &packet);
    if (r == 0)
        r = translate(packet, ret);
    if (r == 0 && call->packet.n_fds != n_fds_for(ret))
        r = dlx__fail(DLX_E_PROTOCOL, "%s from dlpackd with %zu fds", dlx__proto_name(packet),
                      call->packet.n_fds);
    if (r == 0) {
        ret->n_fds = call->packet.n_fds;
        for (size_t i = 0; i < ret->n_fds; i++)
            ret->fds[i] = dlx__packet_steal_fd(&call->packet, i);
    }
    dlx__call_free(call);
    return r;
}

int dlx__notification_read(int sock, struct dlx_notification *ret)
{
    return notification_get(sock, dlx__packet_recv_fds, ret);
}

int dlx__notification_look(int sock, struct dlx_notification *ret)
{
    return notification_get(sock, dlx__packet_look_fds, ret);
}

bool dlx__notification_done(int sock)
{
    return dlx__packet_drop(sock);
}

int dlx__notification_link_ready(int sock, uint64_t link, uint64_t reader)
{
    Dlx__Wire__LinkReady body = DLX__WIRE__LINK_READY__INIT;
    Dlx__Wire__Packet packet = DLX_PACKET(LINK_READY, link_ready, &body);
    body.link = link;
    body.reader = reader;
    return dlx__proto_send(sock, &packet, NULL, 0);
}

int dlx__notification_link_close(int sock, uint64_t link)
{
    Dlx__Wire__LinkClose body = DLX__WIRE__LINK_CLOSE__INIT;
    Dlx__Wire__Packet packet = DLX_PACKET(LINK_CLOSE, link_close, &body);
    body.link = link;
    return dlx__proto_send(sock, &packet, NULL, 0);
}

int dlx__notification_ack(int sock, uint32_t n)
{
    Dlx__Wire__Ack body = DLX__WIRE__ACK__INIT;
    Dlx__Wire__Packet packet = DLX_PACKET(ACK, ack, &body);
    body.n = n;
    return dlx__proto_send(sock, &packet, NULL, 0);
}
