/* SPDX-License-Identifier: Apache-2.0 */
#include "common/error.h"
#include "common/pid_namespace.h"
#include "common/memory.h"
#include "daemon/objects/client.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/drain.h"
#include "daemon/objects/former.h"
#include "daemon/users/outbox.h"
#include "daemon/protocol/handler.h"
#include <sys/socket.h>
#include <sys/un.h>

static char version[] = DLX_VERSION_STRING;

bool dlxd_field_is_newer(struct dlxd_client *client, const char *what, uint32_t since)
{
    if (client->principal->minor >= since)
        return false;
    dlxd_client_disconnect(client, DLX_E_PROTOCOL,
                           "%s is of protocol %u.%u, and this connection speaks %u.%u", what,
                           DLX_PROTO_MAJOR, since, DLX_PROTO_MAJOR, client->principal->minor);
    return true;
}

int dlxd_reply_ok(struct dlxd_client *client, const Dlx__Wire__Packet *request)
{
    if (request->serial != 0)
        dlxd_client_send_ok(client, request->serial);
    return 0;
}

int dlxd_handle_hello(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    const Dlx__Wire__Hello *hello = packet->hello;
    Dlx__Wire__HelloReply body = DLX__WIRE__HELLO_REPLY__INIT;
    Dlx__Wire__Packet reply = DLX__WIRE__PACKET__INIT;
    dlxd_client_greet(client, hello->name, hello->max_links);
    body.major = DLX_PROTO_MAJOR;
    body.minor = hello->minor > DLX_PROTO_MINOR ? DLX_PROTO_MINOR : hello->minor;
    client->principal->minor = body.minor;
    body.client = dlxd_client_id(client);
    body.version = version;
    body.memory = client->broker->memory->tag;
    reply.serial = packet->serial;
    reply.body_case = DLX__WIRE__PACKET__BODY_HELLO_REPLY;
    reply.hello_reply = &body;
    dlxd_client_send(client, &reply);
    return 0;
}

/* The path of the socket on which the client connected. */
static const char *socket_path(const struct dlxd_client *client, struct sockaddr_un *address)
{
    socklen_t size = sizeof *address - 1; /* a path may fill it without a terminating 0 */
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    bool has_path = getsockname(client->fd, (struct sockaddr *)address, &size) == 0 &&
                    address->sun_path[0] != '\0';
    return has_path ? address->sun_path : client->broker->socket_path;
}

int dlxd_handle_daemon_info(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    struct dlxd_broker *broker = client->broker;
    Dlx__Wire__DaemonInfoReply body = DLX__WIRE__DAEMON_INFO_REPLY__INIT;
    Dlx__Wire__Packet reply = DLX__WIRE__PACKET__INIT;
    struct sockaddr_un address;
    dlxd_drains_look_all(broker);
    dlxd_former_look_all(broker);
    dlxd_flights_look_all(&broker->users);
    uint64_t former_bytes = dlxd_users_former_bytes(&broker->users);
    body.version = version;
    body.socket = (char *)(uintptr_t)socket_path(client, &address);
    body.pid = (uint32_t)getpid();
    body.major = DLX_PROTO_MAJOR;
    body.minor = DLX_PROTO_MINOR;
    body.n_clients = (uint32_t)broker->n_clients;
    body.n_publishers = (uint32_t)broker->registry.publishers.n;
    body.n_links = (uint32_t)(broker->registry.links.n - broker->registry.n_spares +
                              dlxd_drains_n_all(broker));
    body.n_topics = (uint32_t)broker->registry.n_topics;
    body.shared_bytes = broker->users.all_bytes + former_bytes;
    body.uptime_ns = dlx__now_ns() - broker->start_ns;
    if (client->principal->minor >= 8)
        body.former_bytes = former_bytes;
    if (client->principal->minor >= 1)
        body.longest_turn_ns = broker->longest_turn_ns;
    if (client->principal->minor >= 4)
        body.pid_namespace = dlx__pid_namespace();
    if (client->principal->minor >= 8)
        body.lack = broker->lack.text;
    if (client->principal->minor >= 10) {
        body.refused_access = broker->refusals.n_access;
        body.refused_limit = broker->refusals.n_limit;
        body.refused_qos = broker->refusals.n_qos;
        body.refused_other = broker->refusals.n_other;
        body.reclaimed = broker->n_reclaimed;
    }
    reply.serial = packet->serial;
    reply.body_case = DLX__WIRE__PACKET__BODY_DAEMON_INFO_REPLY;
    reply.daemon_info_reply = &body;
    dlxd_client_send(client, &reply);
    return 0;
}
