/* SPDX-License-Identifier: Apache-2.0 */
#include "common/error.h"
#include "daemon/objects/client.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/group.h"
#include "daemon/objects/offer.h"
#include "daemon/objects/publisher.h"
#include "daemon/objects/publisher_state.h"
#include "daemon/objects/refusal.h"
#include "daemon/protocol/handler.h"
#include "daemon/persist/store.h"
#include <stdio.h>

/* The minor version since which clients know groups of workers. */
#define GROUPS_SINCE 8U

/* Returns `code`. */
static int publisher_note_refusal(struct dlxd_client *client, enum dlxd_refused what,
                                  const char *topic, int code)
{
    dlxd_refusal_note(client, what, topic, 0, code, dlx__error_message());
    return code;
}

int dlxd_handle_publisher_new(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    const Dlx__Wire__PublisherNew *request = packet->publisher_new;
    const struct dlxd_publisher_config config = {
        .history = request->history,
        .depth = request->depth,
        .n_entries = request->n_entries,
        .on_full = request->on_full,
        .retain = request->retain,
        .latched = request->latched,
        .retain_for_ns = request->retain_for_ns,
        .resumes = request->resumes,
        .after_seq = request->after_seq,
        .max_held = request->max_held,
        .max_held_bytes = request->max_held_bytes,
        .n_groups = (uint32_t)request->n_groups,
    };
    struct dlxd_publisher_fds fds;
    struct dlxd_publisher *publisher;
    if (request->n_groups > 0 &&
        dlxd_field_is_newer(client, "PublisherNew with `groups`", GROUPS_SINCE))
        return 0;
    int r = dlxd_policy_check(&client->broker->policy, client->principal, DLXD_MAY_PUBLISH,
                              request->topic);
    if (r == 0)
        r = dlxd_publisher_new(&publisher, client, request->topic, &config, &fds);
    if (r < 0)
        return publisher_note_refusal(client, DLXD_REFUSED_PUBLISHER, request->topic, r);
    dlx_cleanup(dlx__closep) int control_fd = fds.control_fd;
    dlx_cleanup(dlx__closep) int membership_fd = fds.membership_fd;
    dlx_cleanup(dlx__closep) int link_sock = fds.link_sock;

    Dlx__Wire__PublisherNewReply body = DLX__WIRE__PUBLISHER_NEW_REPLY__INIT;
    Dlx__Wire__Packet reply = DLX__WIRE__PACKET__INIT;
    const int reply_fds[] = {control_fd, membership_fd, link_sock};
    body.publisher = dlxd_publisher_id(publisher);
    body.control_size = publisher->control->size;
    body.membership_size = dlxd_membership_size();
    body.membership_line = publisher->line.index;
    reply.serial = packet->serial;
    reply.body_case = DLX__WIRE__PACKET__BODY_PUBLISHER_NEW_REPLY;
    reply.publisher_new_reply = &body;
    r = dlxd_groups_declare(publisher, request->groups);
    if (r == 0)
        r = dlxd_client_send_fds(client, &reply, reply_fds, DLX_ARRAY_SIZE(reply_fds));
    if (r < 0)
        (void)dlxd_publisher_end(publisher);
    return r;
}

/* ---- regions that are ready ----------------------------------------------------------------- */

static struct dlxd_publisher *publisher_handler_find(struct dlxd_client *client)
{
    return dlxd_publisher_find(client, client->request.object);
}

/* Packets for subscribers with room and credit are in their sockets before the reply. */
static int deliver_some(struct dlxd_client *client)
{
    struct dlxd_publisher *publisher = publisher_handler_find(client);
    if (!publisher)
        return DLX_E_NOT_FOUND;
    if (dlxd_publisher_deliver_step(publisher))
        return 1;
    dlxd_client_send_ok(client, client->request.serial);
    return 0;
}

/* Its links are in its link socket before the reply, and so are the packets that tell
 * subscribers. */
static int ready_some(struct dlxd_client *client)
{
    struct dlxd_publisher *publisher = publisher_handler_find(client);
    if (!publisher)
        return DLX_E_NOT_FOUND;
    if (publisher->offering.active) {
        (void)dlxd_offering_step(publisher);
        dlxd_publisher_deliver_begin(publisher);
        return publisher->offering.active ? 1 : ready_some(client);
    }
    if (dlxd_publisher_deliver_step(publisher))
        return 1;
    int r = dlxd_publisher_check_awaited(publisher);
    publisher->is_awaited = r < 0;
    if (r == 0)
        dlxd_client_send_ok(client, client->request.serial);
    return r;
}

/* Nothing is read from the client before the reply, so its next request finds the region ready or
 * gone. */
static int await_proof(struct dlxd_client *client, const Dlx__Wire__Packet *packet, int r)
{
    if (r < 0)
        return r;
    client->request.serial = packet->serial;
    client->awaits_proof = true;
    dlxd_client_rewatch(client);
    return 0;
}

/* The proof of the region has ended: the request continues or fails. */
static void publisher_handler_go_on(struct dlxd_client *client, int r,
                                    int (*step)(struct dlxd_client *client))
{
    uint32_t serial = client->request.serial;
    client->awaits_proof = false;
    if (r < 0)
        dlxd_request_end(client);
    else
        r = dlxd_request_begin(client, serial, step);
    dlxd_request_resume(client, serial, r);
}

static void on_publisher_proved(void *owner, int code, const char *text, int take_fd)
{
    struct dlxd_publisher *publisher = owner;
    struct dlxd_client *client = publisher->client;
    /* Frees the publisher on failure. */
    int r = dlxd_publisher_ready(publisher, code, text, take_fd);
    if (r == 0)
        dlxd_publisher_deliver_begin(publisher);
    publisher_handler_go_on(client, r, ready_some);
}

int dlxd_handle_publisher_ready(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    client->request.object = packet->publisher_ready->publisher;
    struct dlxd_publisher *publisher = publisher_handler_find(client);
    if (!publisher)
        return DLX_E_NOT_FOUND;
    if (!publisher->is_awaited)
        return await_proof(client, packet, dlxd_publisher_prove(publisher, on_publisher_proved));
    dlxd_publisher_deliver_begin(publisher);
    return dlxd_request_begin(client, packet->serial, ready_some);
}

/* Subscribers are told before the reply: when the publisher uses the arena, ArenaAdded is in the
 * socket of every subscriber with room and credit. */
static void on_arena_proved(void *owner, int code, const char *text, int take_fd)
{
    struct dlxd_publisher *publisher = owner;
    int r = dlxd_publisher_arena_ready(publisher, code, text, take_fd);
    if (r == 0)
        dlxd_publisher_deliver_begin(publisher);
    publisher_handler_go_on(publisher->client, r, deliver_some);
}

int dlxd_handle_arena_ready(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    client->request.object = packet->arena_ready->publisher;
    struct dlxd_publisher *publisher = publisher_handler_find(client);
    if (!publisher)
        return DLX_E_NOT_FOUND;
    return await_proof(
        client, packet,
        dlxd_publisher_arena_prove(publisher, packet->arena_ready->arena, on_arena_proved));
}

/* ---- the rest ------------------------------------------------------------------------------- */

int dlxd_handle_publisher_close(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    struct dlxd_publisher *publisher =
        dlxd_publisher_find(client, packet->publisher_close->publisher);
    if (!publisher)
        return DLX_E_NOT_FOUND;
    bool stays = dlxd_publisher_end(publisher); /* otherwise it may be freed by now */
    if (stays && packet->serial != 0 && dlxd_store_answer_later(publisher, client, packet->serial))
        return 0;
    return dlxd_reply_ok(client, packet);
}

static int succeed_some(struct dlxd_client *client)
{
    struct dlxd_publisher *publisher = dlxd_publisher_find(client, client->request.object);
    if (publisher && publisher->succeeds)
        return dlxd_retained_succeed_step(publisher) ? 1 : succeed_some(client);
    if (client->request.serial != 0)
        dlxd_client_send_ok(client, client->request.serial);
    return 0;
}

int dlxd_handle_publisher_retains(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    struct dlxd_publisher *publisher =
        dlxd_publisher_find(client, packet->publisher_retains->publisher);
    if (!publisher)
        return DLX_E_NOT_FOUND;
    if (!dlxd_retained_succeed(publisher))
        return dlxd_reply_ok(client, packet);
    client->request.object = packet->publisher_retains->publisher;
    return dlxd_request_begin(client, packet->serial, succeed_some);
}

static int answer_drop(struct dlxd_client *client, int r)
{
    const struct dlxd_request *request = &client->request;
    Dlx__Wire__RetainedDropReply body = DLX__WIRE__RETAINED_DROP_REPLY__INIT;
    Dlx__Wire__Packet reply = DLX__WIRE__PACKET__INIT;
    if (r != 0)
        return r;
    body.n_dropped = request->n;
    reply.serial = request->serial;
    reply.body_case = DLX__WIRE__PACKET__BODY_RETAINED_DROP_REPLY;
    reply.retained_drop_reply = &body;
    dlxd_client_send(client, &reply);
    return 0;
}

static int drop_some(struct dlxd_client *client)
{
    return answer_drop(client,
                       dlxd_retained_drop(client, client->request.topic, &client->request.n));
}

static int drop_some_queues(struct dlxd_client *client)
{
    return answer_drop(client, dlxd_queues_drop(client, client->request.topic, &client->request.n));
}

static int begin_drop(struct dlxd_client *client, uint32_t serial, const char *topic,
                      int (*step)(struct dlxd_client *client))
{
    (void)snprintf(client->request.topic, sizeof client->request.topic, "%s", topic);
    return dlxd_request_begin(client, serial, step);
}

int dlxd_handle_retained_drop(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    return begin_drop(client, packet->serial, packet->retained_drop->topic, drop_some);
}

int dlxd_handle_groups_drop(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    return begin_drop(client, packet->serial, packet->groups_drop->topic, drop_some_queues);
}

int dlxd_handle_arena_new(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    struct dlxd_publisher *publisher = dlxd_publisher_find(client, packet->arena_new->publisher);
    struct dlxd_arena *arena;
    int fd;
    if (!publisher)
        return DLX_E_NOT_FOUND;
    const Dlx__Wire__ArenaNew *request = packet->arena_new;
    int r = dlxd_publisher_arena_new(publisher, request->arena_size, &arena, &fd);
    if (r < 0)
        return publisher_note_refusal(client, DLXD_REFUSED_MEMORY, publisher->topic_name, r);
    dlx_cleanup(dlx__closep) int writer = fd;
    Dlx__Wire__ArenaNewReply body = DLX__WIRE__ARENA_NEW_REPLY__INIT;
    Dlx__Wire__Packet reply = DLX__WIRE__PACKET__INIT;
    body.arena = arena->id;
    body.arena_size = arena->size;
    body.publisher = request->publisher;
    reply.serial = packet->serial;
    reply.body_case = DLX__WIRE__PACKET__BODY_ARENA_NEW_REPLY;
    reply.arena_new_reply = &body;
    r = dlxd_client_send_fds(client, &reply, &writer, 1);
    if (r < 0)
        (void)dlxd_publisher_arena_drop(publisher, arena->id);
    return r;
}

int dlxd_handle_arena_drop(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    struct dlxd_publisher *publisher = dlxd_publisher_find(client, packet->arena_drop->publisher);
    if (!publisher)
        return DLX_E_NOT_FOUND;
    int r = dlxd_publisher_arena_drop(publisher, packet->arena_drop->arena);
    return r < 0 ? r : dlxd_reply_ok(client, packet);
}
