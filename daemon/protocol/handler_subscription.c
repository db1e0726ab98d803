/* SPDX-License-Identifier: Apache-2.0 */
#include "common/error.h"
#include "daemon/base/log.h"
#include "daemon/objects/client.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/delivery.h"
#include "daemon/objects/link.h"
#include "daemon/objects/offer.h"
#include "daemon/objects/refusal.h"
#include "daemon/objects/registry.h"
#include "daemon/objects/subscription.h"
#include "daemon/protocol/handler.h"
#include "daemon/users/principal.h"
#include <stdio.h>

/* The minor versions since which clients know groups of workers, `accepts_unreliable`, and
 * publishers that are away. */
#define GROUPS_SINCE     8U
#define UNRELIABLE_SINCE 9U
#define AWAY_SINCE       9U

/* Replies are for their caller, who subscribes before any other client knows the name. */
static int check_inbox(const struct dlxd_client *client, const char *inbox)
{
    struct dlxd_topic *topic = dlxd_registry_find(&client->broker->registry, inbox);
    if (topic)
        dlx_for_each (it, &topic->subscriptions)
            if (dlxd_container_of(it, struct dlxd_subscription, by_topic)->client != client)
                return dlx__fail(DLX_E_ACCESS, "this inbox belongs to another client");
    return 0;
}

/* A pattern is checked for each publisher when it is offered, and so is whether a subscription that
 * accepts links that are not reliable may have one that is. */
static int check_access(const struct dlxd_client *client, const Dlx__Wire__Subscribe *request)
{
    const struct dlxd_policy *policy = &client->broker->policy;
    if (dlx__is_pattern(request->topic))
        return 0;
    if (dlx__is_inbox(request->topic))
        return check_inbox(client, request->topic);
    int r = dlxd_policy_check(policy, client->principal, DLXD_MAY_SUBSCRIBE, request->topic);
    if (r == 0 && ((request->reliable && !request->accepts_unreliable) || *request->group))
        r = dlxd_policy_check(policy, client->principal, DLXD_MAY_BLOCK, request->topic);
    return r;
}

/* A take that has no limit of time would never say it. */
static void log_away(const struct dlxd_client *client, const struct dlxd_offers *offers)
{
    const struct dlxd_subscription *subscription = offers->subscription;
    if (offers->n_away == 0 || offers->n_publishers > 0)
        return;
    dlxd_log_client(dlxd_principal_number(client->principal), DLXD_LOG_NOTICE,
                    "%s: %s (pid %d) waits for %s (pid %d), which made no call since this daemon "
                    "was started",
                    subscription->topic_name, client->name, (int)client->pid, offers->away_name,
                    (int)offers->away_pid);
}

static void subscription_note_refusal(struct dlxd_client *client, const char *topic, int code)
{
    dlxd_refusal_note(client, DLXD_REFUSED_SUBSCRIPTION, topic, 0, code, dlx__error_message());
}

static int offer_some(struct dlxd_client *client)
{
    struct dlxd_request *request = &client->request;
    struct dlxd_subscription *subscription = request->offers.subscription;
    Dlx__Wire__SubscribeReply body = DLX__WIRE__SUBSCRIBE_REPLY__INIT;
    Dlx__Wire__Packet reply = DLX__WIRE__PACKET__INIT;
    int r = dlxd_offers_step(&request->offers);
    if (r > 0)
        return r;
    if (r == 0) {
        body.subscription = dlxd_subscription_id(subscription);
        body.n_offers = request->offers.n_links;
        if (client->principal->minor >= AWAY_SINCE) {
            body.n_away = request->offers.n_away;
            body.away_publisher = request->offers.away_publisher;
            body.away_pid = (uint32_t)request->offers.away_pid;
            body.away_name = request->offers.away_name;
        }
        reply.serial = request->serial;
        reply.body_case = DLX__WIRE__PACKET__BODY_SUBSCRIBE_REPLY;
        reply.subscribe_reply = &body;
        r = dlxd_client_send_fds(client, &reply, &request->fd, 1);
    }
    if (r < 0) {
        subscription_note_refusal(client, subscription->topic_name, r);
        dlxd_subscription_doom(subscription);
    } else {
        log_away(client, &request->offers);
        dlxd_subscription_open(subscription);
    }
    return r;
}

int dlxd_handle_subscribe(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    const Dlx__Wire__Subscribe *subscribe = packet->subscribe;
    struct dlxd_request *request = &client->request;
    struct dlxd_subscription_config config = {
        .mode = subscribe->mode,
        .history = subscribe->history,
        .max_held = subscribe->max_held,
        .n_spares = subscribe->n_spares,
        .reliable = subscribe->reliable,
        .accepts_unreliable = subscribe->accepts_unreliable,
        .lease_ns = subscribe->lease_ns,
        .max_attempts = subscribe->max_attempts,
    };
    (void)snprintf(config.group, sizeof config.group, "%s", subscribe->group);
    struct dlxd_subscription *subscription;
    if (*subscribe->group && dlxd_field_is_newer(client, "Subscribe with `group`", GROUPS_SINCE))
        return 0;
    if (subscribe->accepts_unreliable &&
        dlxd_field_is_newer(client, "Subscribe with `accepts_unreliable`", UNRELIABLE_SINCE))
        return 0;
    int r = check_access(client, subscribe);
    if (r == 0)
        r = dlxd_subscription_new(&subscription, client, subscribe->topic, &config, &request->fd);
    if (r < 0) {
        subscription_note_refusal(client, subscribe->topic, r);
        return r;
    }
    dlxd_offers_init(&request->offers, subscription);
    return dlxd_request_begin(client, packet->serial, offer_some);
}

static int close_some(struct dlxd_client *client)
{
    struct dlxd_request *request = &client->request;
    struct dlxd_idmap_node *node =
        dlxd_idmap_find(&client->broker->registry.subscriptions, request->object);
    if (node &&
        !dlxd_subscription_end_some(dlxd_container_of(node, struct dlxd_subscription, by_id)))
        return 1;
    if (request->serial != 0)
        dlxd_client_send_ok(client, request->serial);
    return 0;
}

int dlxd_handle_subscription_close(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    client->request.object = packet->subscription_close->subscription;
    if (!dlxd_subscription_find(client, client->request.object))
        return DLX_E_NOT_FOUND;
    return dlxd_request_begin(client, packet->serial, close_some);
}

/* Returns NULL if the subscription has no such link. That is no violation: the packet may have
 * crossed with the one that reported the end of the link. */
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
    link->reader = packet->link_ready->reader;
    dlxd_delivery_prove(link);
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
