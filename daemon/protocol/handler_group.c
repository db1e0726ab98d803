/* SPDX-License-Identifier: Apache-2.0 */
#include "common/error.h"
#include "common/memory.h"
#include "daemon/memory/claims.h"
#include "daemon/objects/client.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/drain.h"
#include "daemon/objects/group.h"
#include "daemon/objects/publisher.h"
#include "daemon/objects/registry.h"
#include "daemon/protocol/handler.h"
#include <inttypes.h>
#include <stdio.h>

#define GROUPS_MAX 16U
#define CLAIMS_MAX 32U
/* The most weight of groups whose pages are read for one page of the list, and the most publishers
 * that are looked at. */
#define WEIGHT_AT_ONCE     32U
#define PUBLISHERS_AT_ONCE 256U
/* The minor version since which clients know groups whose publisher is away. */
#define AWAY_SINCE 9U
/* The topic of the cursor is done. */
#define NO_TOPIC UINT64_MAX

/* ---- groups -------------------------------------------------------------------------------- */

struct group_page {
    Dlx__Wire__GroupEntry entries[GROUPS_MAX];
    Dlx__Wire__GroupEntry *pointers[GROUPS_MAX];
    size_t n;
    uint32_t minor; /* of the client */
    uint32_t weight;
    uint32_t n_looks;
};

static void fill_group(Dlx__Wire__GroupEntry *entry, const struct dlxd_group *group, uint32_t minor)
{
    const struct dlxd_publisher *publisher = group->publisher;
    struct dlxd_claims_report report;
    (void)dlxd_group_report(group, &report);
    dlx__wire__group_entry__init(entry);
    entry->publisher = dlxd_publisher_id(publisher);
    entry->group = group->number;
    entry->topic = (char *)(uintptr_t)publisher->topic_name;
    entry->name = (char *)(uintptr_t)group->name;
    entry->uid = group->whose->uid;
    entry->declared = group->is_declared;
    entry->gone = !dlxd_publisher_is_former(publisher) && dlxd_publisher_has_ended(publisher);
    if (minor >= AWAY_SINCE) {
        entry->client_name = (char *)(uintptr_t)publisher->client_name;
        entry->pid = (uint32_t)publisher->pid;
        entry->away = dlxd_publisher_is_former(publisher);
    }
    entry->n_workers = group->n_links;
    entry->waiting = report.waiting;
    entry->in_flight = report.in_flight;
    entry->done = report.done;
    entry->redelivered = report.redelivered;
    entry->dead = report.dead;
    entry->lost = report.lost;
    entry->oldest = report.oldest;
    if (report.oldest > 0)
        entry->oldest_ns = dlxd_claims_published_ns(publisher->control->fd,
                                                    publisher->config.n_entries, report.oldest);
    if (group->n_links > 0) {
        entry->lease_ns = group->lease_ns;
        entry->max_attempts = group->max_attempts;
    }
}

/* Adds groups of the publisher with numbers above `request->after`. Returns false if there is no
 * room for more. */
static bool add_groups(struct group_page *page, struct dlxd_request *request,
                       struct dlxd_publisher *publisher)
{
    dlx_for_each (it, &publisher->groups) {
        const struct dlxd_group *group = dlxd_container_of(it, struct dlxd_group, node);
        if (group->number <= request->after)
            continue;
        if (page->n == GROUPS_MAX || page->weight >= WEIGHT_AT_ONCE)
            return false;
        page->weight += 1 + publisher->config.n_entries / 256;
        fill_group(&page->entries[page->n], group, page->minor);
        page->pointers[page->n] = &page->entries[page->n];
        page->n++;
        request->after = group->number;
    }
    return true;
}

/* The first publisher of the topic whose groups may be left: `request->object`, or a later one. */
static struct dlxd_list *group_first_of(struct dlxd_client *client, struct dlxd_topic *topic)
{
    const struct dlxd_registry *registry = &client->broker->registry;
    uint64_t id = client->request.object;
    struct dlxd_list *next = dlxd_publisher_next_of(registry, topic, id > 0 ? id - 1 : 0);
    if (next == &topic->publishers ||
        dlxd_publisher_id(dlxd_container_of(next, struct dlxd_publisher, by_topic)) != id)
        client->request.after = 0;
    return next;
}

/* `request->object` and `request->after` tell how far it came. */
static void group_add_topic(struct group_page *page, struct dlxd_client *client,
                            struct dlxd_topic *topic)
{
    struct dlxd_request *request = &client->request;
    struct dlxd_list *it = group_first_of(client, topic);
    for (; it != &topic->publishers; it = it->next) {
        struct dlxd_publisher *publisher = dlxd_container_of(it, struct dlxd_publisher, by_topic);
        if (page->n_looks++ >= PUBLISHERS_AT_ONCE)
            return;
        request->object = dlxd_publisher_id(publisher);
        bool is_listed = publisher->announced > 0 || dlxd_publisher_is_former(publisher);
        if (is_listed && !add_groups(page, request, publisher))
            return;
        request->object++;
        request->after = 0;
    }
    request->object = NO_TOPIC;
}

static void group_add_if_matches(struct group_page *page, struct dlxd_client *client,
                                 struct dlxd_topic *topic)
{
    if (dlx__pattern_matches(client->request.topic, topic->name) &&
        dlxd_policy_may(&client->broker->policy, client->principal, DLXD_MAY_OBSERVE, topic->name))
        group_add_topic(page, client, topic);
    else
        client->request.object = NO_TOPIC;
}

/* Sends an incomplete page after a step, so that no page is kept between steps. */
static int list_some_groups(struct dlxd_client *client)
{
    struct dlxd_request *request = &client->request;
    const struct dlxd_registry *registry = &client->broker->registry;
    Dlx__Wire__GroupList body = DLX__WIRE__GROUP_LIST__INIT;
    Dlx__Wire__Packet reply = DLX__WIRE__PACKET__INIT;
    struct group_page page = {.minor = client->principal->minor};
    struct dlxd_topic *topic = NULL;
    if (request->object != NO_TOPIC &&
        (topic = dlxd_registry_find(registry, request->cursor.after)))
        group_add_if_matches(&page, client, topic);
    else
        request->object = NO_TOPIC;
    while (request->object == NO_TOPIC) {
        topic = dlxd_registry_next(registry, request->topic, &request->cursor);
        if (!topic)
            break;
        request->object = request->after = 0;
        group_add_if_matches(&page, client, topic);
        if (dlxd_slice_is_over(&client->broker->users))
            break;
    }
    if (page.n == 0 && topic)
        return 1;
    body.n_entries = page.n;
    body.entries = page.pointers;
    body.more = topic != NULL;
    reply.serial = request->serial;
    reply.body_case = DLX__WIRE__PACKET__BODY_GROUP_LIST;
    reply.group_list = &body;
    dlxd_client_send(client, &reply);
    return 0;
}

int dlxd_handle_list_groups(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    const Dlx__Wire__ListGroups *list = packet->list_groups;
    struct dlxd_request *request = &client->request;
    (void)snprintf(request->topic, sizeof request->topic, "%s", *list->topic ? list->topic : "**");
    (void)snprintf(request->cursor.after, sizeof request->cursor.after, "%s", list->after_topic);
    request->object = *list->after_topic ? list->after_publisher : NO_TOPIC;
    request->after = list->after_group;
    return dlxd_request_begin(client, packet->serial, list_some_groups);
}

/* ---- claims -------------------------------------------------------------------------------- */

static const struct dlxd_group *handler_group_find(const struct dlxd_client *client,
                                                   uint64_t publisher, uint32_t number)
{
    struct dlxd_idmap_node *node = dlxd_idmap_find(&client->broker->registry.publishers, publisher);
    struct dlxd_publisher *found =
        node ? dlxd_container_of(node, struct dlxd_publisher, by_id) : NULL;
    const struct dlxd_group *group = found ? dlxd_group_numbered(found, number) : NULL;
    if (group && dlxd_policy_may(&client->broker->policy, client->principal, DLXD_MAY_OBSERVE,
                                 found->topic_name))
        return group;
    (void)dlx__fail(DLX_E_NOT_FOUND, "there is no group %u of a publisher %" PRIu64, number,
                    publisher);
    return NULL;
}

/* Names the worker in its claims. */
static void name_worker(const struct dlxd_claim *claims, Dlx__Wire__ClaimEntry *entries, uint32_t n,
                        const struct dlxd_drain *worker, const struct dlxd_holder *holder)
{
    for (uint32_t i = 0; i < n; i++) {
        if (claims[i].owner == 0 || claims[i].owner != worker->owner)
            continue;
        entries[i].link = worker->link;
        entries[i].client_name = (char *)(uintptr_t)dlxd_holder_name(holder);
        entries[i].pid = (uint32_t)holder->pid;
        entries[i].uid = worker->links_charge.user->uid;
    }
}

/* Names the worker of each claim, as far as it lives: its subscription may be closed. */
static void name_workers(const struct dlxd_group *group, const struct dlxd_claim *claims,
                         Dlx__Wire__ClaimEntry *entries, uint32_t n)
{
    dlx_for_each (it, &group->publisher->links) {
        const struct dlxd_link *link = dlxd_container_of(it, struct dlxd_link, by_publisher);
        if (link->group == group)
            name_worker(claims, entries, n, link->drain, link->subscription->client->holder);
    }
    dlx_for_each (it, &group->publisher->drains.list) {
        const struct dlxd_drain *drain = dlxd_drain_of_publisher(it);
        if (drain->group == group->number && dlx__region_is_owned(group->page_fd, drain->owner))
            name_worker(claims, entries, n, drain, drain->holder);
    }
}

int dlxd_handle_list_claims(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    const Dlx__Wire__ListClaims *list = packet->list_claims;
    Dlx__Wire__ClaimList body = DLX__WIRE__CLAIM_LIST__INIT;
    Dlx__Wire__Packet reply = DLX__WIRE__PACKET__INIT;
    Dlx__Wire__ClaimEntry entries[CLAIMS_MAX], *pointers[CLAIMS_MAX];
    struct dlxd_claim claims[CLAIMS_MAX];
    bool more;
    const struct dlxd_group *group = handler_group_find(client, list->publisher, list->group);
    if (!group)
        return DLX_E_NOT_FOUND;
    const struct dlxd_publisher *publisher = group->publisher;
    uint32_t n = dlxd_group_list_claims(group, list->after_seq, claims, CLAIMS_MAX, &more);
    for (uint32_t i = 0; i < n; i++) {
        pointers[i] = &entries[i];
        dlx__wire__claim_entry__init(&entries[i]);
        entries[i].seq = claims[i].seq;
        entries[i].attempt = claims[i].attempt;
        entries[i].published_ns = dlxd_claims_published_ns(
            publisher->control->fd, publisher->config.n_entries, claims[i].seq);
    }
    name_workers(group, claims, entries, n);
    body.n_entries = n;
    body.entries = pointers;
    body.more = more;
    reply.serial = packet->serial;
    reply.body_case = DLX__WIRE__PACKET__BODY_CLAIM_LIST;
    reply.claim_list = &body;
    dlxd_client_send(client, &reply);
    return 0;
}
