/* SPDX-License-Identifier: Apache-2.0 */
#include "common/error.h"
#include "daemon/memory/claims.h"
#include "daemon/objects/client.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/drain.h"
#include "daemon/objects/former.h"
#include "daemon/objects/group.h"
#include "daemon/objects/publisher.h"
#include "daemon/objects/registry.h"
#include "daemon/protocol/handler.h"
#include "daemon/memory/report.h"
#include <inttypes.h>
#include <stdio.h>

#define PUBLISHERS_MAX 16U
#define LINKS_MAX      32U
#define MODE_LATEST    1U

/* What clients of this minor version, and later ones, are told. */
enum {
    BEHIND_SINCE = 6,
    REFUSED_SINCE = 7,
    JOINING_SINCE = 7,
    FORMER_SINCE = 8,
    WORKERS_SINCE = 9,
    TIMES_SINCE = 10
};

/* ---- publishers ---------------------------------------------------------------------------- */

struct publisher_page {
    Dlx__Wire__PublisherEntry entries[PUBLISHERS_MAX];
    Dlx__Wire__PublisherEntry *pointers[PUBLISHERS_MAX];
    size_t n;
    uint32_t n_looks;
};

static void fill_publisher(Dlx__Wire__PublisherEntry *entry, const struct dlxd_publisher *publisher,
                           uint32_t minor, bool for_everybody)
{
    struct dlxd_control_report report;
    dlxd_report_control(publisher->control->fd, &report);
    dlx__wire__publisher_entry__init(entry);
    entry->publisher = dlxd_publisher_id(publisher);
    entry->topic = (char *)(uintptr_t)publisher->topic_name;
    entry->client_name = (char *)(uintptr_t)publisher->client_name;
    entry->pid = (uint32_t)publisher->pid;
    entry->uid = publisher->principal->uid;
    entry->n_subscribers = (uint32_t)dlxd_publisher_n_links(publisher);
    entry->depth = publisher->config.depth;
    entry->history = publisher->config.history;
    entry->on_full = publisher->config.on_full;
    entry->published = report.published;
    entry->published_bytes = report.published_bytes;
    entry->retain = publisher->config.retain;
    entry->retained = dlxd_publisher_has_ended(publisher);
    if (minor >= REFUSED_SINCE)
        entry->refused = report.refused;
    if (minor >= TIMES_SINCE) {
        entry->copied = report.copied;
        entry->copied_bytes = report.copied_bytes;
        entry->for_everybody = for_everybody;
        bool has_ended = dlxd_publisher_has_ended(publisher); /* in a wait, which goes on no more */
        entry->blocked_ns = has_ended ? report.waited_before_ns : report.waited_ns;
        entry->blocked_at_ns = has_ended ? 0 : report.waits_since;
    }
    if (publisher->gone) { /* its control block may be closed */
        entry->published = publisher->gone_head;
        entry->gone = publisher->gone;
    }
    entry->control_bytes = publisher->control->size;
    entry->n_arenas = (uint32_t)publisher->ready.n;
    for (size_t i = 0; i < publisher->ready.n; i++)
        entry->arena_bytes += publisher->ready.items[i]->size;
}

/* How many publishers of a topic, with their arenas, are looked at for one page. */
#define PUBLISHERS_AT_ONCE 256U
/* The topic of the cursor is done. */
#define NO_TOPIC UINT64_MAX

/* Adds the announced publishers of one topic with ids above `request->after`, which then tells how
 * far it came. */
static void list_add_topic(struct publisher_page *page, struct dlxd_client *client,
                           struct dlxd_topic *topic)
{
    struct dlxd_request *request = &client->request;
    struct dlxd_list *it = dlxd_publisher_next_of(&client->broker->registry, topic, request->after);
    bool for_everybody = dlxd_rules_let_everybody(client->broker->policy.borrow_rules,
                                                  DLXD_MAY_OBSERVE, topic->name);
    for (; it != &topic->publishers; it = it->next) {
        const struct dlxd_publisher *publisher =
            dlxd_container_of(it, struct dlxd_publisher, by_topic);
        if (page->n == PUBLISHERS_MAX || page->n_looks >= PUBLISHERS_AT_ONCE)
            return;
        request->after = dlxd_publisher_id(publisher);
        page->n_looks++;
        if (publisher->announced == 0)
            continue;
        page->n_looks += (uint32_t)publisher->ready.n / 16;
        fill_publisher(&page->entries[page->n], publisher, client->principal->minor, for_everybody);
        page->pointers[page->n] = &page->entries[page->n];
        page->n++;
    }
    request->after = NO_TOPIC;
}

static void add_if_matches(struct publisher_page *page, struct dlxd_client *client,
                           struct dlxd_topic *topic)
{
    if (dlx__pattern_matches(client->request.topic, topic->name) &&
        dlxd_policy_may(&client->broker->policy, client->principal, DLXD_MAY_OBSERVE, topic->name))
        list_add_topic(page, client, topic);
    else
        client->request.after = NO_TOPIC;
}

static void send_page(struct dlxd_client *client, struct publisher_page *page, bool more)
{
    Dlx__Wire__PublisherList body = DLX__WIRE__PUBLISHER_LIST__INIT;
    Dlx__Wire__Packet reply = DLX__WIRE__PACKET__INIT;
    body.n_entries = page->n;
    body.entries = page->pointers;
    body.more = more;
    reply.serial = client->request.serial;
    reply.body_case = DLX__WIRE__PACKET__BODY_PUBLISHER_LIST;
    reply.publisher_list = &body;
    dlxd_client_send(client, &reply);
}

/* Sends an incomplete page after a step, so that no page is kept between steps. */
static int list_some(struct dlxd_client *client)
{
    struct dlxd_request *request = &client->request;
    const struct dlxd_registry *registry = &client->broker->registry;
    struct publisher_page page = {.n = 0};
    struct dlxd_topic *topic = NULL;
    if (request->after != NO_TOPIC && (topic = dlxd_registry_find(registry, request->cursor.after)))
        add_if_matches(&page, client, topic);
    else
        request->after = NO_TOPIC;
    while (request->after == NO_TOPIC) {
        topic = dlxd_registry_next(registry, request->topic, &request->cursor);
        if (!topic)
            break;
        request->after = 0;
        add_if_matches(&page, client, topic);
        if (dlxd_slice_is_over(&client->broker->users))
            break;
    }
    if (page.n == 0 && topic)
        return 1;
    send_page(client, &page, topic);
    return 0;
}

static struct dlxd_publisher *gone_of(struct dlxd_list *node)
{
    return dlxd_container_of(node, struct dlxd_publisher, by_topic);
}

/* Its last link may have ended since it was listed. */
static struct dlxd_list *next_gone(struct dlxd_registry *registry, uint64_t publisher,
                                   uint64_t number)
{
    struct dlxd_idmap_node *node = dlxd_idmap_find(&registry->gone_publishers, publisher);
    if (node)
        return dlxd_container_of(node, struct dlxd_publisher, by_id)->by_topic.next;
    struct dlxd_list *next = registry->gone.next;
    while (next != &registry->gone && gone_of(next)->gone <= number)
        next = next->next;
    return next;
}

static struct dlxd_former *former_of(struct dlxd_list *node)
{
    return dlxd_container_of(node, struct dlxd_former, node);
}

/* Likewise of what clients keep of former daemons, which is in the same order. */
static struct dlxd_list *next_former(struct dlxd_registry *registry, uint64_t publisher,
                                     uint64_t number)
{
    struct dlxd_idmap_node *node = dlxd_idmap_find(&registry->former_ids, publisher);
    if (node)
        return dlxd_container_of(node, struct dlxd_former, by_id)->node.next;
    struct dlxd_list *next = registry->formers.next;
    while (next != &registry->formers && former_of(next)->gone <= number)
        next = next->next;
    return next;
}

static void fill_former(Dlx__Wire__PublisherEntry *entry, const struct dlxd_former *former)
{
    dlx__wire__publisher_entry__init(entry);
    entry->publisher = former->by_id.id;
    entry->topic = (char *)(uintptr_t)former->topic;
    entry->former = former->publisher;
    entry->gone = former->gone;
    entry->n_arenas = former->n_arenas;
    entry->arena_bytes = former->arena_bytes;
    entry->control_bytes = former->other_bytes;
    dlx_for_each (it, &former->sources) {
        const struct dlxd_former_source *source =
            dlxd_container_of(it, struct dlxd_former_source, node);
        entry->n_subscribers += !source->is_publisher;
        if (!source->is_publisher)
            continue;
        const struct dlxd_holder *holder = dlxd_former_holder(source->page);
        entry->client_name = (char *)(uintptr_t)dlxd_holder_name(holder);
        entry->pid = (uint32_t)holder->pid;
        entry->uid = dlxd_former_uid(source->page);
    }
}

static bool may_list(const struct dlxd_client *client, const char *topic)
{
    return dlx__pattern_matches(client->request.topic, topic) &&
           dlxd_policy_may(&client->broker->policy, client->principal, DLXD_MAY_OBSERVE, topic);
}

/* The next of both kinds: what went first. */
static bool list_next_gone(struct dlxd_client *client, struct publisher_page *page)
{
    struct dlxd_request *request = &client->request;
    struct dlxd_registry *registry = &client->broker->registry;
    struct dlxd_list *gone = next_gone(registry, request->object, request->after);
    struct dlxd_list *former = next_former(registry, request->object, request->after);
    bool has_gone = gone != &registry->gone;
    bool has_former = client->principal->minor >= FORMER_SINCE && former != &registry->formers;
    if (has_former && (!has_gone || former_of(former)->gone < gone_of(gone)->gone)) {
        request->object = former_of(former)->by_id.id;
        request->after = former_of(former)->gone;
        if (may_list(client, former_of(former)->topic)) {
            fill_former(&page->entries[page->n], former_of(former));
            page->pointers[page->n] = &page->entries[page->n];
            page->n++;
        }
    } else if (has_gone) {
        request->object = dlxd_publisher_id(gone_of(gone));
        request->after = gone_of(gone)->gone;
        if (may_list(client, gone_of(gone)->topic_name)) {
            fill_publisher(&page->entries[page->n], gone_of(gone), client->principal->minor, false);
            page->pointers[page->n] = &page->entries[page->n];
            page->n++;
        }
    }
    return has_gone || has_former;
}

/* So many are looked at in one step: they fit a page. */
static int list_some_gone(struct dlxd_client *client)
{
    struct publisher_page page = {.n = 0};
    bool more = true;
    for (uint32_t n = PUBLISHERS_MAX; n > 0 && more; n--)
        more = list_next_gone(client, &page);
    if (page.n == 0 && more)
        return 1;
    send_page(client, &page, more);
    return 0;
}

int dlxd_handle_list_publishers(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    const Dlx__Wire__ListPublishers *list = packet->list_publishers;
    struct dlxd_request *request = &client->request;
    (void)snprintf(request->topic, sizeof request->topic, "%s", *list->topic ? list->topic : "**");
    if (list->gone && dlxd_field_is_newer(client, "ListPublishers with `gone`", JOINING_SINCE))
        return 0;
    if (list->gone) {
        dlxd_former_look_all(client->broker); /* what they have let go is not listed */
        request->object = list->after_publisher;
        request->after = list->after_gone;
        return dlxd_request_begin(client, packet->serial, list_some_gone);
    }
    (void)snprintf(request->cursor.after, sizeof request->cursor.after, "%s", list->after_topic);
    request->after = *list->after_topic ? list->after_publisher : NO_TOPIC;
    return dlxd_request_begin(client, packet->serial, list_some);
}

/* ---- links --------------------------------------------------------------------------------- */

/* The most weight of links whose pages are read in one step (drain.h), and the most links that are
 * looked at. */
#define WEIGHT_AT_ONCE 64U
#define LINKS_AT_ONCE  1024U

struct link_page {
    Dlx__Wire__LinkEntry entries[LINKS_MAX];
    Dlx__Wire__LinkEntry *pointers[LINKS_MAX];
    size_t n;
    uint32_t weight;
    uint32_t n_looks;
    const struct dlxd_group *group; /* that was looked at last */
    uint64_t waiting;               /* messages of it */
};

/* What waits for any worker of the group: each of them can take it. */
static uint64_t group_waiting(struct link_page *page, const struct dlxd_group *group)
{
    struct dlxd_claims_report report;
    if (page->group != group) {
        (void)dlxd_group_report(group, &report);
        page->weight += group->publisher->config.n_entries / 256;
        page->group = group;
        page->waiting = report.waiting;
    }
    return page->waiting;
}

/* When a message of the link was published; 0: unknown. The file of the control block of a
 * publisher that is gone may be closed. */
static uint64_t link_published_ns(const struct dlxd_link *link, uint64_t n)
{
    const struct dlxd_publisher *publisher = link->publisher;
    int fd = publisher->gone ? -1 : publisher->control->fd;
    return fd < 0 ? 0 : dlxd_report_published_ns(fd, publisher->config.n_entries, n);
}

/* When the oldest message that the subscriber holds was published. What the ring has passed is at
 * least as old as all that is there; what was seen once is remembered. */
static uint64_t note_held(const struct dlxd_link *link, uint64_t n, uint64_t head)
{
    const struct dlxd_publisher *publisher = link->publisher;
    struct dlxd_drain *drain = link->drain;
    if (n == drain->held)
        return drain->held_ns;
    drain->held = n;
    drain->held_ns = link_published_ns(link, n);
    if (n > 0 && drain->held_ns == 0 && !publisher->gone)
        drain->held_ns =
            dlxd_report_first_ns(publisher->control->fd, publisher->config.n_entries, head);
    return drain->held_ns;
}

/* How far the subscriber is behind, and whether its publisher waits for it, by the same words as
 * dlx__writer_make_room(). */
static void fill_behind(Dlx__Wire__LinkEntry *entry, struct link_page *page,
                        const struct dlxd_link *link, const struct dlxd_control_report *control,
                        const struct dlxd_link_report *report, uint32_t minor)
{
    const struct dlxd_publisher_config *publisher = &link->publisher->config;
    bool waits = control->waits && !dlxd_publisher_has_ended(link->publisher);
    uint64_t window = DLX_MAX(publisher->depth, publisher->history);
    if (link->group) { /* the publisher waits for the group, and this worker has something of it */
        entry->behind = group_waiting(page, link->group);
        entry->blocks = waits && report->n_held > 0 && report->undone >= window;
        return;
    }
    if (report->started || link->from_start)
        entry->behind = report->behind;
    if (minor >= TIMES_SINCE && entry->behind > 0)
        entry->next_ns = link_published_ns(link, report->next);
    entry->blocks = waits && dlxd_link_is_reliable(link) && report->behind >= window;
}

static void fill_report(Dlx__Wire__LinkEntry *entry, const struct dlxd_link_report *report)
{
    entry->n_held = report->n_held;
    entry->taken = report->taken;
    entry->skipped = report->skipped;
    entry->lost = report->lost;
}

static void fill_link(Dlx__Wire__LinkEntry *entry, struct link_page *page,
                      const struct dlxd_link *link, const struct dlxd_control_report *control,
                      uint32_t minor)
{
    const struct dlxd_subscription *subscription = link->subscription;
    const struct dlxd_publisher_config *publisher = &link->publisher->config;
    const struct dlxd_link_terms terms = {
        .max_held = subscription->config.max_held,
        .is_latest = subscription->config.mode == MODE_LATEST,
        .is_worker = link->group,
        .after_seq = link->from_start ? publisher->after_seq : 0,
        /* The subscriber may take what a reconnected publisher copied by an older link. */
        .is_first = link->from_start && publisher->resumes == 0,
    };
    struct dlxd_link_report report;
    dlxd_report_link(link->drain->page_fd, &terms, control, &report);
    dlx__wire__link_entry__init(entry);
    entry->link = dlxd_link_id(link);
    entry->publisher = dlxd_publisher_id(link->publisher);
    entry->client_name = subscription->client->name;
    entry->pid = (uint32_t)subscription->client->pid;
    entry->uid = subscription->client->principal->uid;
    entry->max_held = subscription->config.max_held;
    entry->mode = subscription->config.mode;
    entry->reliable = dlxd_link_is_reliable(link);
    entry->joining = link->state != DLXD_LINK_OPEN;
    fill_report(entry, &report);
    if (minor >= BEHIND_SINCE)
        fill_behind(entry, page, link, control, &report, minor);
    if (minor >= TIMES_SINCE)
        entry->held_ns = note_held(link, report.oldest_held, control->head);
    if (minor >= WORKERS_SINCE && link->group)
        entry->group = link->group->number;
}

/* A link that has ended, and whose subscriber holds messages. */
static void fill_drain(Dlx__Wire__LinkEntry *entry, const struct dlxd_drain *drain, uint32_t minor)
{
    const struct dlxd_link_terms terms = {.max_held = drain->max_held,
                                          .is_latest = drain->mode == MODE_LATEST,
                                          .is_worker = drain->group > 0};
    const struct dlxd_control_report nothing = {.head = 0};
    struct dlxd_link_report report;
    dlxd_report_link(drain->page_fd, &terms, &nothing, &report);
    dlx__wire__link_entry__init(entry);
    entry->link = drain->link;
    entry->publisher = dlxd_publisher_id(drain->publisher);
    entry->client_name = (char *)(uintptr_t)dlxd_holder_name(drain->holder);
    entry->pid = (uint32_t)drain->holder->pid;
    entry->uid = drain->links_charge.user->uid;
    entry->max_held = drain->max_held;
    entry->mode = drain->mode;
    entry->reliable = drain->reliable;
    if (minor >= TIMES_SINCE && report.oldest_held == drain->held)
        entry->held_ns = drain->held_ns;
    fill_report(entry, &report);
}

static bool page_is_full(const struct link_page *page)
{
    return page->n == LINKS_MAX || page->weight >= WEIGHT_AT_ONCE || page->n_looks >= LINKS_AT_ONCE;
}

static Dlx__Wire__LinkEntry *next_entry(struct link_page *page)
{
    page->pointers[page->n] = &page->entries[page->n];
    return page->pointers[page->n++];
}

static struct dlxd_link *listed_link(struct dlxd_list *by_publisher)
{
    return dlxd_container_of(by_publisher, struct dlxd_link, by_publisher);
}

/* Returns the first link after the one that was looked at last. If that one has ended, begins anew,
 * and what was told is passed over. */
static struct dlxd_list *list_next_link(const struct dlxd_client *client,
                                        struct dlxd_publisher *publisher)
{
    struct dlxd_idmap_node *node =
        dlxd_idmap_find(&client->broker->registry.links, client->request.seen_link);
    struct dlxd_link *link = node ? dlxd_container_of(node, struct dlxd_link, by_id) : NULL;
    return link && link->publisher == publisher ? link->by_publisher.next : publisher->links.next;
}

/* Likewise for those that drain. */
static struct dlxd_list *list_next_drain(const struct dlxd_client *client,
                                         struct dlxd_publisher *publisher)
{
    struct dlxd_drain *drain = dlxd_drain_find(client->broker, client->request.seen_drain);
    return drain && drain->publisher == publisher ? drain->of_publisher.node.next
                                                  : publisher->drains.list.next;
}

static void add_link(struct link_page *page, const struct dlxd_link *link,
                     const struct dlxd_control_report *control, uint32_t minor)
{
    if (link->state != DLXD_LINK_OPEN && minor < JOINING_SINCE)
        return;
    page->weight += dlxd_drain_weight(link->subscription->config.max_held);
    fill_link(next_entry(page), page, link, control, minor);
}

/* It may hold nothing any more, and the next scan is yet to end it. */
static void add_drain(struct link_page *page, const struct dlxd_drain *drain, uint32_t minor)
{
    if (minor < JOINING_SINCE)
        return;
    page->weight += dlxd_drain_weight(drain->max_held);
    if (dlxd_drain_holds(drain))
        fill_drain(next_entry(page), drain, minor);
}

/* Adds links and those that drain, which both are in the order of ids. Returns false at the end. */
static bool add_links(struct link_page *page, struct dlxd_client *client,
                      struct dlxd_publisher *publisher)
{
    struct dlxd_request *request = &client->request;
    struct dlxd_list *link = list_next_link(client, publisher),
                     *drain = list_next_drain(client, publisher);
    const uint32_t minor = client->principal->minor;
    struct dlxd_control_report control = {.head = 0};
    if (!publisher->gone)
        dlxd_report_control(publisher->control->fd, &control);
    else
        control = (struct dlxd_control_report){.head = publisher->gone_head,
                                               .oldest = publisher->gone_oldest};
    while (link != &publisher->links || drain != &publisher->drains.list) {
        uint64_t link_id = link == &publisher->links ? UINT64_MAX : dlxd_link_id(listed_link(link));
        uint64_t drain_id =
            drain == &publisher->drains.list ? UINT64_MAX : dlxd_drain_of_publisher(drain)->link;
        if (page_is_full(page))
            return true;
        page->n_looks++;
        if (link_id < drain_id) {
            if (link_id > request->after)
                add_link(page, listed_link(link), &control, minor);
            request->seen_link = link_id;
            link = link->next;
        } else {
            if (drain_id > request->after)
                add_drain(page, dlxd_drain_of_publisher(drain), minor);
            request->seen_drain = drain_id;
            drain = drain->next;
        }
    }
    return false;
}

/* Adds the clients that keep something of a former daemon's publisher. Returns false at the end. */
static bool add_sources(struct link_page *page, const struct dlxd_former *former, uint64_t after)
{
    dlx_for_each (it, &former->sources) {
        const struct dlxd_former_source *source =
            dlxd_container_of(it, struct dlxd_former_source, node);
        const struct dlxd_holder *holder = dlxd_former_holder(source->page);
        if (source->id <= after)
            continue;
        if (page->n == LINKS_MAX)
            return true;
        Dlx__Wire__LinkEntry *entry = next_entry(page);
        dlx__wire__link_entry__init(entry);
        entry->link = source->id;
        entry->publisher = former->by_id.id;
        entry->client_name = (char *)(uintptr_t)dlxd_holder_name(holder);
        entry->pid = (uint32_t)holder->pid;
        entry->uid = dlxd_former_uid(source->page);
        entry->former_bytes = source->bytes;
        entry->is_publisher = source->is_publisher;
    }
    return false;
}

static bool may_observe(const struct dlxd_client *client, const char *topic)
{
    return dlxd_policy_may(&client->broker->policy, client->principal, DLXD_MAY_OBSERVE, topic);
}

/* Adds a part of what is asked for. Returns 1 if there is more, 0 at the end; or DLX_E_NOT_FOUND if
 * there is no such publisher for this client. */
static int add_links_of(struct link_page *page, struct dlxd_client *client)
{
    const struct dlxd_registry *registry = &client->broker->registry;
    const uint64_t id = client->request.object;
    const uint32_t minor = client->principal->minor;
    struct dlxd_idmap_node *node = dlxd_idmap_find(&registry->publishers, id);
    if (!node && minor >= JOINING_SINCE)
        node = dlxd_idmap_find(&registry->gone_publishers, id);
    struct dlxd_publisher *publisher =
        node ? dlxd_container_of(node, struct dlxd_publisher, by_id) : NULL;
    if (publisher && may_observe(client, publisher->topic_name))
        return add_links(page, client, publisher);
    node = !publisher && minor >= FORMER_SINCE ? dlxd_idmap_find(&registry->former_ids, id) : NULL;
    const struct dlxd_former *former =
        node ? dlxd_container_of(node, struct dlxd_former, by_id) : NULL;
    if (former && may_observe(client, former->topic))
        return add_sources(page, former, client->request.after);
    return dlx__fail(DLX_E_NOT_FOUND, "there is no publisher %" PRIu64, id);
}

static char *refusal_of(const struct dlxd_client *client)
{
    struct dlxd_idmap_node *node =
        dlxd_idmap_find(&client->broker->registry.publishers, client->request.object);
    const char *refusal =
        node ? dlxd_container_of(node, struct dlxd_publisher, by_id)->refusal : NULL;
    return (char *)(uintptr_t)(refusal ? refusal : "");
}

/* Sends an incomplete page after a step, as list_some() does. */
static int list_some_links(struct dlxd_client *client)
{
    struct link_page page = {.n = 0};
    Dlx__Wire__LinkList body = DLX__WIRE__LINK_LIST__INIT;
    Dlx__Wire__Packet reply = DLX__WIRE__PACKET__INIT;
    int r = add_links_of(&page, client);
    if (r < 0 || (r > 0 && page.n == 0))
        return r;
    body.more = r > 0;
    body.n_entries = page.n;
    body.entries = page.pointers;
    if (client->principal->minor >= WORKERS_SINCE)
        body.refusal = refusal_of(client);
    reply.serial = client->request.serial;
    reply.body_case = DLX__WIRE__PACKET__BODY_LINK_LIST;
    reply.link_list = &body;
    dlxd_client_send(client, &reply);
    return 0;
}

int dlxd_handle_list_links(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    const Dlx__Wire__ListLinks *list = packet->list_links;
    struct dlxd_request *request = &client->request;
    request->object = list->publisher;
    request->after = request->seen_link = request->seen_drain = list->after_link;
    return dlxd_request_begin(client, packet->serial, list_some_links);
}
