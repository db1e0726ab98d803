/* SPDX-License-Identifier: Apache-2.0 */
#include "common/error.h"
#include "daemon/broker.h"
#include "daemon/client.h"
#include "daemon/handler.h"
#include "daemon/link.h"
#include "daemon/publisher.h"
#include "daemon/report.h"
#include "daemon/subscription.h"
#include <inttypes.h>
#include <string.h>

#define PUBLISHERS_MAX 16U
#define LINKS_MAX      32U

/* ---- publishers ---------------------------------------------------------------------------- */

struct publisher_page {
    Dlx__Wire__PublisherEntry entries[PUBLISHERS_MAX];
    Dlx__Wire__PublisherEntry *pointers[PUBLISHERS_MAX];
    size_t n;
    bool more;
};

static void fill_publisher(Dlx__Wire__PublisherEntry *entry, const struct dlxd_publisher *publisher)
{
    struct dlxd_control_report report;
    dlxd_report_control(publisher->control->fd, &report);
    dlx__wire__publisher_entry__init(entry);
    entry->publisher = dlxd_publisher_id(publisher);
    entry->topic = (char *)(uintptr_t)publisher->topic_name;
    entry->client_name = (char *)(uintptr_t)publisher->client_name;
    entry->pid = (uint32_t)publisher->pid;
    entry->uid = publisher->principal->uid;
    entry->n_subscribers = (uint32_t)publisher->n_links;
    entry->depth = publisher->config.depth;
    entry->history = publisher->config.history;
    entry->on_full = publisher->config.on_full;
    entry->published = report.published;
    entry->published_bytes = report.published_bytes;
    entry->retain = publisher->config.retain;
    entry->retained = publisher->state == DLXD_PUBLISHER_RETAINED;
    entry->control_bytes = publisher->control->size;
    entry->n_arenas = (uint32_t)publisher->ready.n;
    for (size_t i = 0; i < publisher->ready.n; i++)
        entry->arena_bytes += publisher->ready.items[i]->size;
}

/* The announced publishers of one topic that come after the id `after`. */
static void add_topic(struct publisher_page *page, const struct dlxd_topic *topic, uint64_t after)
{
    dlx_for_each (it, &topic->publishers) {
        const struct dlxd_publisher *publisher =
            dlxd_container_of(it, struct dlxd_publisher, by_topic);
        if (publisher->state == DLXD_PUBLISHER_NEW || publisher->hidden ||
            dlxd_publisher_id(publisher) <= after)
            continue;
        if (page->n == PUBLISHERS_MAX) {
            page->more = true;
            return;
        }
        fill_publisher(&page->entries[page->n], publisher);
        page->pointers[page->n] = &page->entries[page->n];
        page->n++;
    }
}

static void add_topics(struct publisher_page *page, const struct dlxd_client *client,
                       const Dlx__Wire__ListPublishers *request)
{
    const struct dlxd_registry *registry = &client->broker->registry;
    const char *pattern = *request->topic ? request->topic : "**";
    const struct dlxd_topic *topic;
    size_t at = 0;
    while (!page->more &&
           (topic = dlxd_registry_next_match(registry, pattern, request->after_topic, &at))) {
        bool same = strcmp(topic->name, request->after_topic) == 0;
        if (!dlxd_policy_may(&client->broker->policy, client->principal, DLXD_MAY_OBSERVE,
                             topic->name))
            continue;
        add_topic(page, topic, same ? request->after_publisher : 0);
    }
}

int dlxd_handle_list_publishers(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    struct publisher_page page = {.n = 0};
    Dlx__Wire__PublisherList body = DLX__WIRE__PUBLISHER_LIST__INIT;
    Dlx__Wire__Packet reply = DLX__WIRE__PACKET__INIT;
    add_topics(&page, client, packet->list_publishers);
    body.n_entries = page.n;
    body.entries = page.pointers;
    body.more = page.more;
    reply.serial = packet->serial;
    reply.body_case = DLX__WIRE__PACKET__BODY_PUBLISHER_LIST;
    reply.publisher_list = &body;
    dlxd_client_send(client, &reply);
    return 0;
}

/* ---- links --------------------------------------------------------------------------------- */

struct link_page {
    Dlx__Wire__LinkEntry entries[LINKS_MAX];
    Dlx__Wire__LinkEntry *pointers[LINKS_MAX];
    size_t n;
    bool more;
};

static void fill_link(Dlx__Wire__LinkEntry *entry, const struct dlxd_link *link)
{
    const struct dlxd_subscription *subscription = link->subscription;
    struct dlxd_link_report report;
    dlxd_report_link(link->page_fd, subscription->config.max_held, &report);
    dlx__wire__link_entry__init(entry);
    entry->link = dlxd_link_id(link);
    entry->publisher = dlxd_publisher_id(link->publisher);
    entry->client_name = subscription->client->name;
    entry->pid = (uint32_t)subscription->client->pid;
    entry->uid = subscription->client->principal->uid;
    entry->n_held = report.n_held;
    entry->max_held = subscription->config.max_held;
    entry->mode = subscription->config.mode;
    entry->reliable = subscription->config.reliable;
    entry->taken = report.taken;
    entry->skipped = report.skipped;
    entry->lost = report.lost;
}

static void add_links(struct link_page *page, const struct dlxd_publisher *publisher,
                      uint64_t after)
{
    dlx_for_each (it, &publisher->links) {
        const struct dlxd_link *link = dlxd_container_of(it, struct dlxd_link, by_publisher);
        if (link->state != DLXD_LINK_OPEN || dlxd_link_id(link) <= after)
            continue;
        if (page->n == LINKS_MAX) {
            page->more = true;
            return;
        }
        fill_link(&page->entries[page->n], link);
        page->pointers[page->n] = &page->entries[page->n];
        page->n++;
    }
}

int dlxd_handle_list_links(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    const Dlx__Wire__ListLinks *request = packet->list_links;
    struct link_page page = {.n = 0};
    struct dlxd_idmap_node *node =
        dlxd_idmap_find(&client->broker->registry.publishers, request->publisher);
    const struct dlxd_publisher *publisher =
        node ? dlxd_container_of(node, struct dlxd_publisher, by_id) : NULL;
    if (!publisher || !dlxd_policy_may(&client->broker->policy, client->principal, DLXD_MAY_OBSERVE,
                                       publisher->topic_name))
        return dlx__fail(DLX_E_NOT_FOUND, "there is no publisher %" PRIu64, request->publisher);
    add_links(&page, publisher, request->after_link);

    Dlx__Wire__LinkList body = DLX__WIRE__LINK_LIST__INIT;
    Dlx__Wire__Packet reply = DLX__WIRE__PACKET__INIT;
    body.n_entries = page.n;
    body.entries = page.pointers;
    body.more = page.more;
    reply.serial = packet->serial;
    reply.body_case = DLX__WIRE__PACKET__BODY_LINK_LIST;
    reply.link_list = &body;
    dlxd_client_send(client, &reply);
    return 0;
}
