/* SPDX-License-Identifier: Apache-2.0 */
#include "common/error.h"
#include "daemon/broker.h"
#include "daemon/client.h"
#include "daemon/handler.h"
#include "daemon/link.h"
#include "daemon/subscription.h"

/* To a pattern: of each publisher, when it is offered. */
static int check_access(const struct dlxd_client *client, const Dlx__Wire__Subscribe *request)
{
    const struct dlxd_policy *policy = &client->broker->policy;
    if (dlx__is_pattern(request->topic))
        return 0;
    int r = dlxd_policy_check(policy, client->principal, DLXD_MAY_SUBSCRIBE, request->topic);
    if (r == 0 && request->reliable)
        r = dlxd_policy_check(policy, client->principal, DLXD_MAY_BLOCK, request->topic);
    return r;
}

int dlxd_handle_subscribe(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    const Dlx__Wire__Subscribe *request = packet->subscribe;
    const struct dlxd_subscription_config config = {
        .mode = request->mode,
        .history = request->history,
        .max_held = request->max_held,
        .n_spares = request->n_spares,
        .reliable = request->reliable,
    };
    Dlx__Wire__SubscribeReply body = DLX__WIRE__SUBSCRIBE_REPLY__INIT;
    Dlx__Wire__Packet reply = DLX__WIRE__PACKET__INIT;
    dlx_cleanup(dlx__closep) int fd = -1;
    struct dlxd_subscription *subscription;
    int r = check_access(client, request);
    if (r == 0)
        r = dlxd_subscription_new(&subscription, client, request->topic, &config, &fd);
    if (r < 0)
        return r;
    r = dlxd_subscription_offer_all(subscription, &body.n_offers);
    if (r == 0) {
        body.subscription = dlxd_subscription_id(subscription);
        reply.serial = packet->serial;
        reply.body_case = DLX__WIRE__PACKET__BODY_SUBSCRIBE_REPLY;
        reply.subscribe_reply = &body;
        r = dlxd_client_send_fds(client, &reply, &fd, 1);
    }
    if (r < 0)
        dlxd_subscription_free(subscription);
    return r;
}

int dlxd_handle_subscription_close(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    struct dlxd_subscription *subscription =
        dlxd_subscription_find(client, packet->subscription_close->subscription);
    if (!subscription)
        return DLX_E_NOT_FOUND;
    dlxd_subscription_free(subscription);
    return dlxd_reply_ok(client, packet);
}

/* NULL when the subscription has no such link. That is no violation: the packet may have crossed with
 * the news that the link ended. */
static struct dlxd_link *find_link(struct dlxd_subscription *subscription, uint64_t id)
{
    struct dlxd_idmap_node *node = dlxd_idmap_find(&subscription->broker->registry.links, id);
    if (!node)
        return NULL;
    struct dlxd_link *link = dlxd_container_of(node, struct dlxd_link, by_id);
    return link->subscription == subscription ? link : NULL;
}

int dlxd_handle_link_ready(struct dlxd_subscription *subscription, const Dlx__Wire__Packet *packet)
{
    struct dlxd_link *link = find_link(subscription, packet->link_ready->link);
    if (!link || link->state == DLXD_LINK_FAILED)
        return 0;
    if (link->state != DLXD_LINK_OFFERED)
        return dlx__fail(DLX_E_PROTOCOL, "LinkReady for a link that does not wait for it");
    link->state = DLXD_LINK_READY;
    link->reader = packet->link_ready->reader;
    dlxd_link_schedule(link);
    return 0;
}

int dlxd_handle_ack(struct dlxd_subscription *subscription, const Dlx__Wire__Packet *packet)
{
    return dlxd_subscription_ack(subscription, packet->ack->n);
}

int dlxd_handle_link_close(struct dlxd_subscription *subscription, const Dlx__Wire__Packet *packet)
{
    dlxd_link_end(find_link(subscription, packet->link_close->link));
    return 0;
}
