/* SPDX-License-Identifier: Apache-2.0 */

/* The subscriptions, also those that no publisher serves, and what was refused. */

#include "common/topic.h"
#include "daemon/objects/client.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/refusal.h"
#include "daemon/protocol/handler.h"
#include <stdio.h>

/* So many entries fit into a packet, whatever their texts are. */
#define SUBSCRIPTIONS_MAX     12U
#define REFUSALS_MAX          8U
#define SUBSCRIPTIONS_AT_ONCE 256U
#define NO_TOPIC              UINT64_MAX

static bool may_see(const struct dlxd_client *client, const char *topic)
{
    return dlx__patterns_meet(client->request.topic, topic) &&
           dlxd_policy_may(&client->broker->policy, client->principal, DLXD_MAY_OBSERVE, topic);
}

static char *unconst(const char *text)
{
    return (char *)(uintptr_t)text;
}

/* ---- subscriptions ------------------------------------------------------------------------- */

struct subscription_page {
    Dlx__Wire__SubscriptionEntry entries[SUBSCRIPTIONS_MAX];
    Dlx__Wire__SubscriptionEntry *pointers[SUBSCRIPTIONS_MAX];
    char refusals[SUBSCRIPTIONS_MAX][DLX_ERROR_TEXT_SIZE];
    size_t n;
    uint32_t n_looks;
};

static void page_add(struct subscription_page *page, const struct dlxd_client *client,
                     struct dlxd_subscription *subscription)
{
    Dlx__Wire__SubscriptionEntry *entry = &page->entries[page->n];
    const struct dlxd_subscription_config *config = &subscription->config;
    const struct dlxd_refusal *refusal =
        dlxd_refusal_of(client->broker, dlxd_subscription_id(subscription));
    dlx__wire__subscription_entry__init(entry);
    entry->subscription = dlxd_subscription_id(subscription);
    entry->topic = subscription->topic_name;
    entry->client_name = subscription->client->name;
    entry->client = dlxd_client_id(subscription->client);
    entry->pid = (uint32_t)subscription->client->pid;
    entry->uid = subscription->client->principal->uid;
    entry->mode = config->mode;
    entry->reliable = config->reliable;
    entry->accepts_unreliable = config->accepts_unreliable;
    entry->group = subscription->config.group;
    entry->n_links = subscription->n_served;
    if (refusal) {
        (void)snprintf(page->refusals[page->n], sizeof page->refusals[page->n], "%s",
                       dlxd_refusal_text(client, refusal));
        entry->refusal = page->refusals[page->n];
    }
    page->pointers[page->n++] = entry;
}

static struct dlxd_subscription *listed(struct dlxd_list *by_topic)
{
    return dlxd_container_of(by_topic, struct dlxd_subscription, by_topic);
}

/* The node of the first subscription in a list after the one that was looked at last. */
static struct dlxd_list *next_listed(const struct dlxd_registry *registry, struct dlxd_list *list,
                                     const struct dlxd_topic *topic, uint64_t last)
{
    struct dlxd_idmap_node *node = dlxd_idmap_find(&registry->subscriptions, last);
    struct dlxd_subscription *subscription =
        node ? dlxd_container_of(node, struct dlxd_subscription, by_id) : NULL;
    struct dlxd_list *it =
        subscription && subscription->topic == topic ? subscription->by_topic.next : list->next;
    while (it != list && dlxd_subscription_id(listed(it)) <= last)
        it = it->next;
    return it;
}

/* Adds those of a topic, or of all patterns (NULL), with ids above `request->after`, which tells
 * how far it came. */
static void list_add(struct subscription_page *page, struct dlxd_client *client,
                     struct dlxd_topic *topic)
{
    struct dlxd_request *request = &client->request;
    struct dlxd_registry *registry = &client->broker->registry;
    struct dlxd_list *list = topic ? &topic->subscriptions : &registry->patterns;
    struct dlxd_list *it = next_listed(registry, list, topic, request->after);
    for (; it != list; it = it->next) {
        struct dlxd_subscription *subscription = listed(it);
        if (page->n == SUBSCRIPTIONS_MAX || page->n_looks++ >= SUBSCRIPTIONS_AT_ONCE)
            return;
        request->after = dlxd_subscription_id(subscription);
        bool is_open = subscription->state != DLXD_SUBSCRIPTION_OPENING &&
                       !dlxd_subscription_is_doomed(subscription);
        if (is_open && (!request->unserved || subscription->n_served == 0) &&
            (topic || may_see(client, subscription->topic_name)))
            page_add(page, client, subscription);
    }
    request->after = NO_TOPIC;
}

static void add_if_seen(struct subscription_page *page, struct dlxd_client *client,
                        struct dlxd_topic *topic)
{
    if (may_see(client, topic->name))
        list_add(page, client, topic);
    else
        client->request.after = NO_TOPIC;
}

/* Adds those to topics. Returns false at the end. */
static bool add_of_topics(struct subscription_page *page, struct dlxd_client *client)
{
    struct dlxd_request *request = &client->request;
    const struct dlxd_registry *registry = &client->broker->registry;
    struct dlxd_topic *topic = NULL;
    if (request->after != NO_TOPIC && (topic = dlxd_registry_find(registry, request->cursor.after)))
        add_if_seen(page, client, topic);
    else
        request->after = NO_TOPIC;
    while (request->after == NO_TOPIC) {
        topic = dlxd_registry_next(registry, request->topic, &request->cursor);
        if (!topic)
            return false;
        request->after = 0;
        add_if_seen(page, client, topic);
        if (dlxd_slice_is_over(&client->broker->users))
            break;
    }
    return true;
}

static bool add_subscriptions(struct subscription_page *page, struct dlxd_client *client)
{
    struct dlxd_request *request = &client->request;
    if (!request->in_patterns) {
        if (add_of_topics(page, client))
            return true;
        request->in_patterns = true;
        request->after = 0;
    }
    list_add(page, client, NULL);
    return request->after != NO_TOPIC;
}

static int list_some_subscriptions(struct dlxd_client *client)
{
    static struct subscription_page page; /* the daemon has one thread */
    Dlx__Wire__SubscriptionList body = DLX__WIRE__SUBSCRIPTION_LIST__INIT;
    Dlx__Wire__Packet reply = DLX__WIRE__PACKET__INIT;
    page.n = page.n_looks = 0;
    body.more = add_subscriptions(&page, client);
    if (body.more && page.n == 0)
        return 1;
    body.n_entries = page.n;
    body.entries = page.pointers;
    reply.serial = client->request.serial;
    reply.body_case = DLX__WIRE__PACKET__BODY_SUBSCRIPTION_LIST;
    reply.subscription_list = &body;
    dlxd_client_send(client, &reply);
    return 0;
}

static void set_topic(struct dlxd_request *request, const char *topic)
{
    (void)snprintf(request->topic, sizeof request->topic, "%s", *topic ? topic : "**");
}

int dlxd_handle_list_subscriptions(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    const Dlx__Wire__ListSubscriptions *list = packet->list_subscriptions;
    struct dlxd_request *request = &client->request;
    set_topic(request, list->topic);
    request->unserved = list->unserved;
    request->in_patterns = dlx__is_pattern(list->after_topic);
    if (!request->in_patterns)
        (void)snprintf(request->cursor.after, sizeof request->cursor.after, "%s",
                       list->after_topic);
    request->after = *list->after_topic ? list->after_subscription : NO_TOPIC;
    return dlxd_request_begin(client, packet->serial, list_some_subscriptions);
}

/* ---- refusals ------------------------------------------------------------------------------ */

struct refusal_page {
    Dlx__Wire__RefusalEntry entries[REFUSALS_MAX];
    Dlx__Wire__RefusalEntry *pointers[REFUSALS_MAX];
    char texts[REFUSALS_MAX][DLX_ERROR_TEXT_SIZE];
    size_t n;
};

static const char *const refused_names[] = {
    [DLXD_REFUSED_PUBLISHER] = "publish",
    [DLXD_REFUSED_SUBSCRIPTION] = "subscribe",
    [DLXD_REFUSED_LINK] = "link",
    [DLXD_REFUSED_MEMORY] = "memory",
};

static void add_refusal(struct refusal_page *page, const struct dlxd_client *client,
                        const struct dlxd_refusal *refusal)
{
    Dlx__Wire__RefusalEntry *entry = &page->entries[page->n];
    char *text = page->texts[page->n];
    dlx__wire__refusal_entry__init(entry);
    (void)snprintf(text, DLX_ERROR_TEXT_SIZE, "%s", dlxd_refusal_text(client, refusal));
    entry->number = refusal->number;
    entry->topic = unconst(refusal->topic);
    entry->what = unconst(refused_names[refusal->what]);
    entry->client_name = unconst(refusal->client_name);
    entry->pid = (uint32_t)refusal->pid;
    entry->uid = refusal->principal->uid;
    entry->code = refusal->code;
    entry->text = text;
    if (dlxd_policy_is_superuser(&client->broker->policy, client->principal))
        entry->rule = unconst(refusal->rule);
    entry->at_ns = refusal->at_ns;
    entry->n = refusal->n;
    entry->subscription = refusal->subscription;
    page->pointers[page->n++] = entry;
}

/* One step: the daemon keeps at most DLXD_REFUSALS_MAX. */
int dlxd_handle_list_refusals(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    static struct refusal_page page;
    Dlx__Wire__RefusalList body = DLX__WIRE__REFUSAL_LIST__INIT;
    Dlx__Wire__Packet reply = DLX__WIRE__PACKET__INIT;
    page.n = 0;
    set_topic(&client->request, packet->list_refusals->topic);
    dlx_for_each (it, &client->broker->refusals.list) {
        const struct dlxd_refusal *refusal = dlxd_container_of(it, struct dlxd_refusal, node);
        if (refusal->number <= packet->list_refusals->after || !may_see(client, refusal->topic))
            continue;
        body.more = page.n == REFUSALS_MAX;
        if (body.more)
            break;
        add_refusal(&page, client, refusal);
    }
    dlxd_request_end(client);
    body.n_entries = page.n;
    body.entries = page.pointers;
    reply.serial = packet->serial;
    reply.body_case = DLX__WIRE__PACKET__BODY_REFUSAL_LIST;
    reply.refusal_list = &body;
    dlxd_client_send(client, &reply);
    return 0;
}
