/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/protocol/dispatch.h"
#include "common/error.h"
#include "common/proto.h"
#include "daemon/objects/client.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/delivery.h"
#include "daemon/objects/offer.h"
#include "daemon/objects/subscription.h"
#include "daemon/protocol/handler.h"
#include "daemon/users/outbox.h"
#include "daemon/protocol/validate.h"
#include <string.h>

/* Handles a request on the control socket. Returns 0 if the reply, if any, was sent; 1 if it
 * continues (client.h); or a code for an Error. */
typedef int request_fn(struct dlxd_client *client, const Dlx__Wire__Packet *packet);
/* Handles a notification on a subscription socket. Returns 0, or DLX_E_PROTOCOL. */
typedef int notification_fn(struct dlxd_subscription *subscription,
                            const Dlx__Wire__Packet *packet);

struct request {
    Dlx__Wire__Packet__BodyCase body;
    dlxd_validate_fn *validate; /* NULL: every value is valid */
    request_fn *handle;
    uint32_t since; /* minor version */
};

#define BODY(name) DLX__WIRE__PACKET__BODY_##name

static const struct request requests[] = {
    {BODY(HELLO), dlxd_validate_hello, dlxd_handle_hello, 0},
    {BODY(PUBLISHER_NEW), dlxd_validate_publisher_new, dlxd_handle_publisher_new, 0},
    {BODY(PUBLISHER_READY), NULL, dlxd_handle_publisher_ready, 0},
    {BODY(PUBLISHER_CLOSE), NULL, dlxd_handle_publisher_close, 0},
    {BODY(PUBLISHER_RETAINS), NULL, dlxd_handle_publisher_retains, 0},
    {BODY(RETAINED_DROP), dlxd_validate_retained_drop, dlxd_handle_retained_drop, 0},
    {BODY(ARENA_NEW), dlxd_validate_arena_new, dlxd_handle_arena_new, 0},
    {BODY(ARENA_READY), NULL, dlxd_handle_arena_ready, 0},
    {BODY(ARENA_DROP), NULL, dlxd_handle_arena_drop, 0},
    {BODY(SUBSCRIBE), dlxd_validate_subscribe, dlxd_handle_subscribe, 0},
    {BODY(SUBSCRIPTION_CLOSE), NULL, dlxd_handle_subscription_close, 0},
    {BODY(LIST_PUBLISHERS), dlxd_validate_list_publishers, dlxd_handle_list_publishers, 0},
    {BODY(LIST_LINKS), NULL, dlxd_handle_list_links, 0},
    {BODY(DAEMON_INFO), NULL, dlxd_handle_daemon_info, 0},
    {BODY(GPU_KEEP), NULL, dlxd_handle_gpu_keep, 3},
    {BODY(GPU_ALLOCATE), dlxd_validate_gpu_allocate, dlxd_handle_gpu_allocate, 8},
    {BODY(GPU_FREE), NULL, dlxd_handle_gpu_free, 8},
    {BODY(GPU_SERVE), NULL, dlxd_handle_gpu_serve, 8},
    {BODY(GPU_GET), dlxd_validate_gpu_get, dlxd_handle_gpu_get, 3},
    {BODY(LIST_QUOTAS), NULL, dlxd_handle_list_quotas, 5},
    {BODY(LIST_GROUPS), dlxd_validate_list_groups, dlxd_handle_list_groups, 8},
    {BODY(LIST_CLAIMS), NULL, dlxd_handle_list_claims, 8},
    {BODY(GROUPS_DROP), dlxd_validate_groups_drop, dlxd_handle_groups_drop, 8},
    {BODY(OBSERVE), dlxd_validate_observe, dlxd_handle_observe, 9},
    {BODY(LIST_SUBSCRIPTIONS), dlxd_validate_list_subscriptions, dlxd_handle_list_subscriptions,
     10},
    {BODY(LIST_REFUSALS), dlxd_validate_list_refusals, dlxd_handle_list_refusals, 10},
    {BODY(LIST_CLIENTS), NULL, dlxd_handle_list_clients, 10},
    {BODY(KICK), dlxd_validate_kick, dlxd_handle_kick, 10},
    {BODY(FORMER_NEW), dlxd_validate_former_new, dlxd_handle_former_new, 8},
    {BODY(FORMER_READY), NULL, dlxd_handle_former_ready, 8},
};

static const struct {
    Dlx__Wire__Packet__BodyCase body;
    notification_fn *handle;
} notifications[] = {
    {BODY(LINK_READY), dlxd_handle_link_ready},
    {BODY(ACK), dlxd_handle_ack},
    {BODY(LINK_CLOSE), dlxd_handle_link_close},
};

static struct dlx_proto_arena
    arena; /* the daemon has one thread and handles one packet at a time */
static struct dlx_packet incoming;

static const struct request *find_request(Dlx__Wire__Packet__BodyCase body)
{
    for (size_t i = 0; i < DLX_ARRAY_SIZE(requests); i++)
        if (requests[i].body == body)
            return &requests[i];
    return NULL;
}

/* With serial 0, these get no reply, whatever the result. */
static bool may_be_silent(Dlx__Wire__Packet__BodyCase body)
{
    return body == BODY(ARENA_DROP) || body == BODY(PUBLISHER_CLOSE) ||
           body == BODY(PUBLISHER_RETAINS) || body == BODY(GPU_FREE) ||
           body == BODY(SUBSCRIPTION_CLOSE);
}

static void refuse(struct dlxd_client *client, uint32_t serial)
{
    dlxd_client_send_error(client, serial, client->refuse_code,
                           client->refuse_text ? client->refuse_text
                                               : dlx__error_text(client->refuse_code));
    dlxd_client_doom(client);
}

static void continue_request(struct dlxd_client *client)
{
    uint32_t serial = client->request.serial;
    dlx__error_clear();
    int r = dlxd_request_continue(client);
    if (r < 0)
        dlxd_request_fail(client, serial, r);
}

static void handle_request(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    const struct request *request = find_request(packet->body_case);
    const char *name = dlx__proto_name(packet);
    bool is_hello = packet->body_case == BODY(HELLO);

    if (!request) {
        dlxd_client_disconnect(client, DLX_E_PROTOCOL, "%s is not a request", name);
        return;
    }
    if (packet->serial == 0 && !may_be_silent(packet->body_case)) {
        dlxd_client_disconnect(client, DLX_E_PROTOCOL, "%s with serial 0", name);
        return;
    }
    if (client->refuse_code < 0) {
        refuse(client, packet->serial);
        return;
    }
    if (is_hello == (client->state == DLXD_CLIENT_OPEN)) {
        dlxd_client_disconnect(client, DLX_E_PROTOCOL, is_hello ? "a second %s" : "%s before Hello",
                               name);
        return;
    }
    if (!is_hello && request->since > client->principal->minor) {
        dlxd_client_disconnect(
            client, DLX_E_PROTOCOL, "%s is of protocol %u.%u, and this connection speaks %u.%u",
            name, DLX_PROTO_MAJOR, request->since, DLX_PROTO_MAJOR, client->principal->minor);
        return;
    }
    dlx__error_clear();
    int r = request->validate ? request->validate(packet) : 0;
    if (r == 0)
        r = request->handle(client, packet);
    if (r < 0)
        dlxd_request_fail(client, packet->serial, r);
    if (r < 0 && is_hello)
        dlxd_client_doom(client);
    if (r > 0)
        dlxd_task_start(&client->task, client->user);
}

void dlxd_dispatch_client_bytes(struct dlxd_client *client, const uint8_t *data, size_t size)
{
    const Dlx__Wire__Packet *packet;
    int r = dlx__proto_unpack(&arena, data, size, &packet);
    if (r < 0)
        dlxd_client_disconnect(client, r, "%s", dlx__error_message());
    else
        handle_request(client, packet);
}

/* Turns the result of dlx__packet_recv() into the reason of a disconnect; "" if the peer has left.
 * An empty packet looks like the end of the connection, but its sender is still there. */
static const char *receive_failure(int fd, int *code)
{
    if (*code != DLX_E_DISCONNECTED)
        return dlx__error_message();
    if (dlx__packet_hung_up(fd))
        return "";
    *code = DLX_E_PROTOCOL;
    return "empty packet";
}

/* Handles a packet of its control socket, if there is one, or ends a part of what an ending client
 * owns, which is freed at the end. */
static bool step_client(struct dlxd_task *task)
{
    struct dlxd_client *client = dlxd_container_of(task, struct dlxd_client, task);
    if (dlxd_client_is_doomed(client)) {
        if (dlxd_client_end_some(client))
            return true;
        dlxd_client_free(client);
        return false;
    }
    if (client->review.state != DLXD_REVIEW_NONE) {
        dlxd_review_step(client);
        return true;
    }
    if (client->request.step) {
        continue_request(client);
        return true;
    }
    if (dlxd_client_is_paused(client))
        return false;
    uint64_t now = dlx__now_ns();
    /* Hello is counted but does not wait: a client that does not say it soon is disconnected. */
    if (client->state == DLXD_CLIENT_OPEN && dlxd_user_next_request_ns(client->user, now) > now) {
        dlxd_task_defer(&client->task, client->user);
        return false;
    }
    int r = dlx__packet_recv(client->fd, &incoming);
    if (r == DLX_E_EMPTY) {
        client->input = DLXD_INPUT_NONE;
        dlxd_client_rewatch(client);
        return false;
    }
    if (r == 0) {
        dlxd_user_count_request(client->user, now);
        dlxd_dispatch_client_bytes(client, incoming.data, incoming.size);
        return true;
    }
    const char *why = receive_failure(client->fd, &r);
    if (*why)
        dlxd_client_disconnect(client, r, "%s", why);
    else
        dlxd_client_doom(client);
    return true;
}

static int handle_notification(struct dlxd_subscription *subscription,
                               const Dlx__Wire__Packet *packet)
{
    if (packet->serial != 0)
        return dlx__fail(DLX_E_PROTOCOL, "%s with serial %u", dlx__proto_name(packet),
                         packet->serial);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(notifications); i++)
        if (notifications[i].body == packet->body_case)
            return notifications[i].handle(subscription, packet);
    return dlx__fail(DLX_E_PROTOCOL, "%s is not for a subscription socket",
                     dlx__proto_name(packet));
}

void dlxd_dispatch_subscription_bytes(struct dlxd_subscription *subscription, const uint8_t *data,
                                      size_t size)
{
    const Dlx__Wire__Packet *packet;
    int r = dlx__proto_unpack(&arena, data, size, &packet);
    if (r == 0)
        r = handle_notification(subscription, packet);
    if (r < 0) {
        dlxd_client_disconnect(subscription->client, r, "subscription to %s: %s",
                               subscription->topic_name, dlx__error_message());
        dlxd_subscription_doom(subscription);
    }
}

/* Reads and handles a packet, if there is one. */
static void read_subscription(struct dlxd_subscription *subscription)
{
    int r = dlx__packet_recv(subscription->sock->fd, &incoming);
    if (r == 0) {
        dlxd_dispatch_subscription_bytes(subscription, incoming.data, incoming.size);
        return;
    }
    if (r == DLX_E_EMPTY) {
        subscription->input = DLXD_INPUT_NONE;
        dlxd_subscription_rewatch(subscription);
        return;
    }
    const char *why = receive_failure(subscription->sock->fd, &r);
    if (*why)
        dlxd_client_disconnect(subscription->client, r, "subscription to %s: %s",
                               subscription->topic_name, why);
    dlxd_subscription_doom(subscription);
}

static bool step_subscription(struct dlxd_task *task)
{
    struct dlxd_subscription *subscription =
        dlxd_container_of(task, struct dlxd_subscription, task);
    if (dlxd_subscription_is_doomed(subscription))
        return !dlxd_subscription_end_some(subscription);
    bool more = dlxd_delivery_step(subscription);
    if (subscription->input != DLXD_INPUT_NONE && !dlxd_subscription_is_doomed(subscription))
        read_subscription(subscription);
    return more || subscription->input != DLXD_INPUT_NONE ||
           dlxd_subscription_is_doomed(subscription);
}

const struct dlxd_steps dlxd_dispatch = {
    .client = step_client,
    .subscription = step_subscription,
    .publisher = dlxd_publisher_step,
};
