/* SPDX-License-Identifier: Apache-2.0 */
#include "common/error.h"
#include "daemon/gpu/keeper.h"
#include "daemon/objects/client.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/publisher.h"
#include "daemon/protocol/handler.h"
#include "daemon/users/policy.h"
#include <inttypes.h>

/* The keeper has the other end, or will be sent it. */
static void on_socket(void *owner, int code, const char *text, int take_sock)
{
    struct dlxd_client *client = owner;
    dlx_cleanup(dlx__closep) int sock = take_sock;
    Dlx__Wire__GpuSocket body = DLX__WIRE__GPU_SOCKET__INIT;
    Dlx__Wire__Packet reply = DLX__WIRE__PACKET__INIT;
    uint32_t serial = client->request.serial;
    client->gpu_call = NULL;
    dlxd_request_end(client);
    reply.serial = serial;
    reply.body_case = DLX__WIRE__PACKET__BODY_GPU_SOCKET;
    reply.gpu_socket = &body;
    int r = code < 0 ? dlx__fail(code, "%s", text) : dlxd_client_send_fds(client, &reply, &sock, 1);
    dlxd_request_resume(client, serial, r);
}

/* The call may have been answered already. */
static int gpu_handler_await(struct dlxd_client *client)
{
    dlxd_client_rewatch(client);
    return 0;
}

int dlxd_handle_gpu_keep(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    struct dlxd_publisher *publisher = dlxd_publisher_find(client, packet->gpu_keep->publisher);
    if (!publisher)
        return DLX_E_NOT_FOUND;
    client->request.serial = packet->serial;
    int r = dlxd_gpu_call_own(&client->gpu_call, client->broker->gpu, client->user, &publisher->gpu,
                              dlxd_publisher_origin(publisher),
                              dlxd_principal_number(publisher->principal), on_socket, client);
    return r < 0 ? r : gpu_handler_await(client);
}

static struct dlxd_publisher *of_link(const struct dlxd_client *client, uint64_t id)
{
    struct dlxd_idmap_node *node = dlxd_idmap_find(&client->broker->registry.links, id);
    if (!node)
        return NULL;
    const struct dlxd_link *link = dlxd_container_of(node, struct dlxd_link, by_id);
    return link->subscription->client == client ? link->publisher : NULL;
}

/* Finds a publisher of this user: any user may claim that an origin is its own, and only a link
 * shows which one the reader knows. */
static struct dlxd_publisher *of_origin(const struct dlxd_client *client, uint64_t origin)
{
    struct dlxd_gpu_member *member =
        origin ? dlxd_gpu_keeper_find(client->broker->gpu, origin,
                                      dlxd_principal_number(client->principal))
               : NULL;
    return member ? dlxd_publisher_of_gpu(member) : NULL;
}

int dlxd_handle_gpu_get(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    const Dlx__Wire__GpuGet *request = packet->gpu_get;
    const struct dlxd_publisher *publisher = of_link(client, request->link);
    int r = 0;
    if (!publisher) {
        publisher = of_origin(client, request->origin);
        if (!publisher)
            return dlx__fail(DLX_E_NOT_FOUND,
                             "%s (pid %d) has no link %" PRIu64
                             ", and its publisher has left no GPU memory",
                             client->name, (int)client->pid, request->link);
        r = dlxd_policy_check(&client->broker->policy, client->principal, DLXD_MAY_SUBSCRIBE,
                              publisher->topic_name);
    }
    if (r == 0)
        r = dlxd_policy_check_gpu(&client->broker->policy, client->principal, publisher->principal,
                                  publisher->topic_name);
    if (r < 0)
        return r;
    client->request.serial = packet->serial;
    r = dlxd_gpu_call_get(
        &client->gpu_call, client->broker->gpu, client->user, dlxd_publisher_origin(publisher),
        dlxd_principal_number(publisher->principal), request->allocation, on_socket, client);
    return r < 0 ? r : gpu_handler_await(client);
}
