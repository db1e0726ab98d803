/* SPDX-License-Identifier: Apache-2.0 */

/* The connections, and their end by an operator. Root and the daemon's own user have a right to all
 * of them, others to those of their own user. */

#include "common/error.h"
#include "daemon/base/log.h"
#include "daemon/objects/client.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/publisher.h"
#include "daemon/protocol/handler.h"
#include <inttypes.h>

#define CLIENTS_MAX 16U
/* How many publishers, with their arenas, are counted in one step. */
#define PUBLISHERS_AT_ONCE 256U
/* Clients of earlier minor versions do not know the code, and connect again. */
#define KICKED_SINCE 10U

static bool may_handle(const struct dlxd_client *client, const struct dlxd_client *other)
{
    return other->state == DLXD_CLIENT_OPEN &&
           (other->user == client->user ||
            dlxd_policy_is_superuser(&client->broker->policy, client->principal));
}

/* ---- the list ------------------------------------------------------------------------------ */

struct client_page {
    Dlx__Wire__ClientEntry entries[CLIENTS_MAX];
    Dlx__Wire__ClientEntry *pointers[CLIENTS_MAX];
    size_t n;
    uint32_t n_looks;
};

/* Counts publishers of the client and their memory, from the one after `request->object` on, unless
 * another one, which has ended since, was counted. Returns false if some are left for another step.
 */
static bool count_publishers(struct dlxd_request *request, struct client_page *page,
                             struct dlxd_client *client)
{
    if (request->counted != dlxd_client_id(client)) {
        request->counted = dlxd_client_id(client);
        request->object = request->sum = 0;
        request->n = 0;
    }
    struct dlxd_list *it = dlxd_client_next_publisher(client, request->object);
    for (; it != &client->publishers; it = it->next) {
        const struct dlxd_publisher *publisher =
            dlxd_container_of(it, struct dlxd_publisher, by_client);
        if (page->n_looks >= PUBLISHERS_AT_ONCE)
            return false;
        page->n_looks += 1 + (uint32_t)(publisher->ready.n + publisher->unready.n) / 16;
        request->object = dlxd_publisher_id(publisher);
        request->n++;
        request->sum += publisher->control->size;
        for (size_t i = 0; i < publisher->ready.n; i++)
            request->sum += publisher->ready.items[i]->size;
        for (size_t i = 0; i < publisher->unready.n; i++)
            request->sum += publisher->unready.items[i]->size;
    }
    return true;
}

static void fill_client(Dlx__Wire__ClientEntry *entry, const struct dlxd_request *request,
                        struct dlxd_client *client)
{
    dlx__wire__client_entry__init(entry);
    entry->client = dlxd_client_id(client);
    entry->client_name = client->name;
    entry->pid = (uint32_t)client->pid;
    entry->uid = client->principal->uid;
    entry->socket = client->principal->socket;
    entry->n_publishers = request->n;
    entry->n_subscriptions = (uint32_t)client->n_subscriptions;
    entry->n_links = (uint32_t)client->n_links;
    entry->shared_bytes = request->sum;
    entry->minor = client->principal->minor;
    entry->own = &client->request == request;
}

/* Adds clients after `request->after`, which tells how far it came. Returns false at the end. */
static bool add_clients(struct client_page *page, struct dlxd_client *client)
{
    struct dlxd_request *request = &client->request;
    struct dlxd_client *it = dlxd_client_next(client->broker, request->after);
    for (; it; it = dlxd_client_next(client->broker, request->after)) {
        if (may_handle(client, it)) {
            if (page->n == CLIENTS_MAX || !count_publishers(request, page, it))
                return true;
            page->pointers[page->n] = &page->entries[page->n];
            fill_client(&page->entries[page->n++], request, it);
        }
        request->after = dlxd_client_id(it);
        if (dlxd_slice_is_over(&client->broker->users))
            return true;
    }
    return false;
}

/* What was counted of a client that is not on the page is counted again for the next page. */
static int list_some_clients(struct dlxd_client *client)
{
    struct client_page page = {.n = 0};
    Dlx__Wire__ClientList body = DLX__WIRE__CLIENT_LIST__INIT;
    Dlx__Wire__Packet reply = DLX__WIRE__PACKET__INIT;
    body.more = add_clients(&page, client);
    if (body.more && page.n == 0)
        return 1;
    body.n_entries = page.n;
    body.entries = page.pointers;
    reply.serial = client->request.serial;
    reply.body_case = DLX__WIRE__PACKET__BODY_CLIENT_LIST;
    reply.client_list = &body;
    dlxd_client_send(client, &reply);
    return 0;
}

int dlxd_handle_list_clients(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    client->request.after = packet->list_clients->after_client;
    return dlxd_request_begin(client, packet->serial, list_some_clients);
}

/* ---- the end of a connection --------------------------------------------------------------- */

static void kick(struct dlxd_client *client, struct dlxd_client *victim)
{
    struct dlxd_request *request = &client->request;
    bool is_older = victim->principal->minor < KICKED_SINCE;
    /* What an administrator does is told in any case; dlxd_client_disconnect() tells it of all. */
    if (dlxd_policy_is_superuser(&client->broker->policy, client->principal))
        dlxd_log(DLXD_LOG_NOTICE, "%s (pid %d, uid %u) kicks %s (pid %d, uid %u)", client->name,
                 (int)client->pid, (unsigned)client->principal->uid, victim->name, (int)victim->pid,
                 (unsigned)victim->principal->uid);
    dlxd_client_disconnect(victim, is_older ? DLX_E_ACCESS : DLX_E_KICKED,
                           "kicked by %s (pid %d, uid %u)", client->name, (int)client->pid,
                           (unsigned)client->principal->uid);
    request->n++;
    request->n_older += is_older;
}

/* Returns 0 once the reply is sent; or DLX_E_NOT_FOUND. */
static int answer_kick(struct dlxd_client *client)
{
    const struct dlxd_request *request = &client->request;
    Dlx__Wire__KickReply body = DLX__WIRE__KICK_REPLY__INIT;
    Dlx__Wire__Packet reply = DLX__WIRE__PACKET__INIT;
    if (request->n == 0)
        return dlx__fail(DLX_E_NOT_FOUND,
                         "no program of process %" PRIu64 " is connected, or it is another "
                         "user's: `dlxctl clients` lists those that you may kick",
                         request->object);
    body.n_kicked = request->n;
    body.n_older = request->n_older;
    reply.serial = request->serial;
    reply.body_case = DLX__WIRE__PACKET__BODY_KICK_REPLY;
    reply.kick_reply = &body;
    dlxd_client_send(client, &reply);
    return 0;
}

/* Kicks clients of the process `request->object` after `request->after`. */
static int kick_some(struct dlxd_client *client)
{
    struct dlxd_request *request = &client->request;
    struct dlxd_client *it = dlxd_client_next(client->broker, request->after);
    for (; it; it = dlxd_client_next(client->broker, request->after)) {
        request->after = dlxd_client_id(it);
        if (it != client && (uint64_t)it->pid == request->object && may_handle(client, it))
            kick(client, it);
        if (dlxd_slice_is_over(&client->broker->users))
            return 1;
    }
    return answer_kick(client);
}

static int kick_one(struct dlxd_client *client)
{
    struct dlxd_idmap_node *node =
        dlxd_idmap_find(&client->broker->registry.clients, client->request.object);
    struct dlxd_client *victim = node ? dlxd_container_of(node, struct dlxd_client, by_id) : NULL;
    if (victim == client)
        return dlx__fail(DLX_E_INVALID, "client %" PRIu64 " is the connection that asks for it",
                         client->request.object);
    if (!victim || !may_handle(client, victim))
        return dlx__fail(DLX_E_NOT_FOUND,
                         "there is no client %" PRIu64 ", or it is another user's: `dlxctl "
                         "clients` lists those that you may kick",
                         client->request.object);
    kick(client, victim);
    return answer_kick(client);
}

int dlxd_handle_kick(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    const Dlx__Wire__Kick *body = packet->kick;
    client->request.object = body->client ? body->client : body->pid;
    return dlxd_request_begin(client, packet->serial, body->client ? kick_one : kick_some);
}
