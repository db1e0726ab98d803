/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/observer.h"
#include "common/error.h"
#include "common/packet.h"
#include "daemon/base/watch.h"
#include "daemon/base/worker.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/publisher.h"
#include "daemon/objects/registry.h"
#include "daemon/users/outbox.h"
#include "daemon/users/principal.h"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* ---- changes ------------------------------------------------------------------------------- */

void dlxd_changes_init(struct dlxd_changes *changes)
{
    *changes = (struct dlxd_changes){.ring = NULL};
    dlxd_list_init(&changes->observers);
}

static struct dlxd_change *change_at(struct dlxd_changes *changes, uint64_t number)
{
    return &changes->ring[number % DLXD_CHANGES_MAX];
}

static void forget_first(struct dlxd_changes *changes)
{
    struct dlxd_change *change = change_at(changes, changes->first++);
    free(change->topic);
    change->topic = NULL;
}

/* Observers that have yet to be told of one are told all again. */
static void forget_changes(struct dlxd_changes *changes)
{
    while (changes->first < changes->n)
        forget_first(changes);
}

/* Without memory for the change, all changes are lost. */
static void add_change(struct dlxd_changes *changes, bool is_subscription, uint64_t id,
                       const char *topic)
{
    char *copy = strdup(topic);
    if (!copy) {
        forget_changes(changes);
        changes->first = ++changes->n;
        return;
    }
    if (changes->n - changes->first == DLXD_CHANGES_MAX)
        forget_first(changes);
    *change_at(changes, changes->n++) = (struct dlxd_change){is_subscription, id, copy};
}

static void changed(struct dlxd_broker *broker, bool is_subscription, uint64_t id,
                    const char *topic)
{
    struct dlxd_changes *changes = &broker->changes;
    if (dlxd_list_empty(&changes->observers) || dlx__is_inbox(topic))
        return;
    add_change(changes, is_subscription, id, topic);
    dlx_for_each (it, &changes->observers) {
        struct dlxd_observer *observer = dlxd_container_of(it, struct dlxd_observer, node);
        if (!observer->is_full)
            dlxd_task_start(&observer->task, observer->client->user);
    }
}

void dlxd_change_publisher(const struct dlxd_publisher *publisher)
{
    changed(publisher->broker, false, dlxd_publisher_id(publisher), publisher->topic_name);
}

void dlxd_change_subscription(const struct dlxd_subscription *subscription)
{
    changed(subscription->broker, true, dlxd_subscription_id(subscription),
            subscription->topic_name);
}

/* ---- a packet ------------------------------------------------------------------------------ */

/* So many entries of each kind, and bytes: one more entry fits a packet. */
#define ENTRIES_MAX 32U
#define BYTES_MAX   (DLX_PACKET_SIZE_MAX - 4096U)

struct observed_page {
    Dlx__Wire__Observed body;
    Dlx__Wire__ObservedPublisher publishers[ENTRIES_MAX];
    Dlx__Wire__ObservedPublisher *publisher_pointers[ENTRIES_MAX];
    char *groups[ENTRIES_MAX][DLX_SHM_GROUPS_MAX];
    Dlx__Wire__ObservedSubscription subscriptions[ENTRIES_MAX];
    Dlx__Wire__ObservedSubscription *subscription_pointers[ENTRIES_MAX];
    size_t size; /* of the entries, packed */
};

/* Names of topics, groups and clients are at most 255, 63 and 63 bytes. */
_Static_assert(4096U > 255 + 63 + DLX_SHM_GROUPS_MAX * (63 + 3) + 128, "an entry fits");

static void page_init(struct observed_page *page)
{
    dlx__wire__observed__init(&page->body);
    page->body.publishers = page->publisher_pointers;
    page->body.subscriptions = page->subscription_pointers;
    page->size = 0;
}

static bool observed_is_full(const struct observed_page *page)
{
    return page->body.n_publishers == ENTRIES_MAX || page->body.n_subscriptions == ENTRIES_MAX ||
           page->size > BYTES_MAX;
}

static bool observed_is_empty(const struct observed_page *page)
{
    return page->body.n_publishers == 0 && page->body.n_subscriptions == 0 &&
           !page->body.restarts && !page->body.complete;
}

static Dlx__Wire__ObservedPublisher *add_publisher(struct observed_page *page)
{
    Dlx__Wire__ObservedPublisher *entry = &page->publishers[page->body.n_publishers];
    page->publisher_pointers[page->body.n_publishers] = entry;
    dlx__wire__observed_publisher__init(entry);
    entry->groups = page->groups[page->body.n_publishers++];
    return entry;
}

static void page_add_publisher(struct observed_page *page, const struct dlxd_publisher *publisher,
                               const struct dlxd_observer *observer)
{
    const struct dlxd_publisher_config *config = &publisher->config;
    Dlx__Wire__ObservedPublisher *entry = add_publisher(page);
    entry->publisher = dlxd_publisher_id(publisher);
    entry->topic = (char *)(uintptr_t)publisher->topic_name;
    entry->client_name = (char *)(uintptr_t)publisher->client_name;
    entry->pid = (uint32_t)publisher->pid;
    entry->uid = publisher->principal->uid;
    entry->own = publisher->client == observer->client;
    entry->on_full = config->on_full;
    entry->depth = config->depth;
    entry->history = config->history;
    entry->retain = config->retain;
    entry->latched = config->latched;
    entry->retain_for_ns = config->retain_for_ns;
    entry->retained = dlxd_publisher_has_ended(publisher);
    dlx_for_each (it, &publisher->groups) {
        struct dlxd_group *group = dlxd_container_of(it, struct dlxd_group, node);
        if (group->is_declared && entry->n_groups < DLX_SHM_GROUPS_MAX)
            entry->groups[entry->n_groups++] = group->name;
    }
    page->size += dlx__wire__observed_publisher__get_packed_size(entry) + 4;
}

static void page_add_gone_publisher(struct observed_page *page, uint64_t id)
{
    Dlx__Wire__ObservedPublisher *entry = add_publisher(page);
    entry->publisher = id;
    entry->gone = true;
    page->size += dlx__wire__observed_publisher__get_packed_size(entry) + 4;
}

static Dlx__Wire__ObservedSubscription *add_subscription(struct observed_page *page, uint64_t id)
{
    Dlx__Wire__ObservedSubscription *entry = &page->subscriptions[page->body.n_subscriptions];
    page->subscription_pointers[page->body.n_subscriptions++] = entry;
    dlx__wire__observed_subscription__init(entry);
    entry->subscription = id;
    return entry;
}

static void page_add_subscription(struct observed_page *page,
                                  struct dlxd_subscription *subscription,
                                  const struct dlxd_observer *observer)
{
    Dlx__Wire__ObservedSubscription *entry =
        add_subscription(page, dlxd_subscription_id(subscription));
    entry->topic = subscription->topic_name;
    entry->client_name = subscription->client->name;
    entry->pid = (uint32_t)subscription->client->pid;
    entry->uid = subscription->client->principal->uid;
    entry->own = subscription->client == observer->client;
    entry->mode = subscription->config.mode;
    entry->reliable = subscription->config.reliable;
    entry->accepts_unreliable = subscription->config.accepts_unreliable;
    entry->group = subscription->config.group;
    page->size += dlx__wire__observed_subscription__get_packed_size(entry) + 4;
}

static void page_add_gone_subscription(struct observed_page *page, uint64_t id)
{
    Dlx__Wire__ObservedSubscription *entry = add_subscription(page, id);
    entry->gone = true;
    page->size += dlx__wire__observed_subscription__get_packed_size(entry) + 4;
}

/* ---- what it is told ----------------------------------------------------------------------- */

static bool is_told_of(const struct dlxd_observer *observer, const char *topic)
{
    return dlx__patterns_meet(observer->topic_name, topic) &&
           dlxd_policy_may(&observer->broker->policy, observer->client->principal, DLXD_MAY_OBSERVE,
                           topic);
}

static bool is_open(const struct dlxd_subscription *subscription)
{
    return subscription->state != DLXD_SUBSCRIPTION_OPENING &&
           !dlxd_subscription_is_doomed(subscription);
}

/* Is it time for others? Each step does something nevertheless. */
static bool is_late(const struct dlxd_observer *observer)
{
    return dlxd_slice_is_over(&observer->broker->users);
}

/* Subscriptions of a list after the one that was told last. Returns true at the end of the list. */
static bool tell_subscriptions(struct dlxd_observer *observer, struct observed_page *page,
                               struct dlxd_list *list, bool are_patterns)
{
    struct dlxd_registry *registry = &observer->broker->registry;
    struct dlxd_observed_position *at = &observer->at;
    struct dlxd_idmap_node *node = dlxd_idmap_find(&registry->subscriptions, at->last);
    struct dlxd_subscription *last =
        node ? dlxd_container_of(node, struct dlxd_subscription, by_id) : NULL;
    bool is_in_list =
        last && (are_patterns ? !last->topic : last->topic && &last->topic->subscriptions == list);
    bool did_step = false;
    for (struct dlxd_list *it = is_in_list ? last->by_topic.next : list->next; it != list;
         it = it->next) {
        struct dlxd_subscription *subscription =
            dlxd_container_of(it, struct dlxd_subscription, by_topic);
        if (dlxd_subscription_id(subscription) <= at->last) /* told: the last one has gone */
            continue;
        if (observed_is_full(page) || (did_step && is_late(observer)))
            return false;
        did_step = true;
        at->last = dlxd_subscription_id(subscription);
        if (is_open(subscription) &&
            (!are_patterns || is_told_of(observer, subscription->topic_name)))
            page_add_subscription(page, subscription, observer);
    }
    return true;
}

/* Likewise of publishers of a topic. */
static bool tell_publishers(struct dlxd_observer *observer, struct observed_page *page,
                            struct dlxd_topic *topic)
{
    struct dlxd_observed_position *at = &observer->at;
    struct dlxd_list *it = dlxd_publisher_next_of(&observer->broker->registry, topic, at->last);
    for (struct dlxd_list *first = it; it != &topic->publishers; it = it->next) {
        const struct dlxd_publisher *publisher =
            dlxd_container_of(it, struct dlxd_publisher, by_topic);
        if (observed_is_full(page) || (it != first && is_late(observer)))
            return false;
        at->last = dlxd_publisher_id(publisher);
        if (publisher->announced > 0)
            page_add_publisher(page, publisher, observer);
    }
    return true;
}

/* Returns true if the topic was told completely. */
static bool tell_topic(struct dlxd_observer *observer, struct observed_page *page,
                       struct dlxd_topic *topic)
{
    struct dlxd_observed_position *at = &observer->at;
    if (!is_told_of(observer, topic->name))
        return true;
    if (!at->in_subscriptions) {
        if (observer->publishers && !tell_publishers(observer, page, topic))
            return false;
        at->in_subscriptions = true;
        at->last = 0;
    }
    return !observer->subscriptions ||
           tell_subscriptions(observer, page, &topic->subscriptions, false);
}

static void tell_topics(struct dlxd_observer *observer, struct observed_page *page)
{
    const struct dlxd_registry *registry = &observer->broker->registry;
    struct dlxd_observed_position *at = &observer->at;
    do {
        struct dlxd_topic *topic =
            at->in_topic ? dlxd_registry_find(registry, at->cursor.after) : NULL;
        if (!topic) {
            topic = dlxd_registry_next(registry, observer->topic_name, &at->cursor);
            at->in_topic = topic;
            at->in_subscriptions = false;
            at->last = 0;
        }
        if (!topic) {
            at->state = observer->subscriptions ? DLXD_OBSERVER_PATTERNS : DLXD_OBSERVER_CHANGES;
            page->body.complete = !observer->subscriptions;
            return;
        }
        at->in_topic = !tell_topic(observer, page, topic);
    } while (!at->in_topic && !is_late(observer));
}

static void tell_patterns(struct dlxd_observer *observer, struct observed_page *page)
{
    if (!tell_subscriptions(observer, page, &observer->broker->registry.patterns, true))
        return;
    observer->at.state = DLXD_OBSERVER_CHANGES;
    page->body.complete = true;
}

/* The object may have changed again, or be gone: what is true now is told. */
static void tell_change(const struct dlxd_observer *observer, struct observed_page *page,
                        const struct dlxd_change *change)
{
    struct dlxd_registry *registry = &observer->broker->registry;
    bool suits = change->is_subscription ? observer->subscriptions : observer->publishers;
    if (!suits || !is_told_of(observer, change->topic))
        return;
    struct dlxd_idmap_node *node = dlxd_idmap_find(
        change->is_subscription ? &registry->subscriptions : &registry->publishers, change->id);
    if (change->is_subscription) {
        struct dlxd_subscription *subscription =
            node ? dlxd_container_of(node, struct dlxd_subscription, by_id) : NULL;
        if (subscription && is_open(subscription))
            page_add_subscription(page, subscription, observer);
        else
            page_add_gone_subscription(page, change->id);
    } else {
        const struct dlxd_publisher *publisher =
            node ? dlxd_container_of(node, struct dlxd_publisher, by_id) : NULL;
        if (publisher && publisher->announced > 0)
            page_add_publisher(page, publisher, observer);
        else
            page_add_gone_publisher(page, change->id);
    }
}

static void tell_changes(struct dlxd_observer *observer, struct observed_page *page)
{
    struct dlxd_changes *changes = &observer->broker->changes;
    struct dlxd_observed_position *at = &observer->at;
    while (at->next < changes->n && !observed_is_full(page)) {
        tell_change(observer, page, change_at(changes, at->next++));
        if (is_late(observer))
            break;
    }
}

/* ---- sending ------------------------------------------------------------------------------- */

static void observer_start(struct dlxd_observer *observer)
{
    dlxd_task_start(&observer->task, observer->client->user);
}

static void restart(struct dlxd_observer *observer)
{
    observer->at = (struct dlxd_observed_position){.state = DLXD_OBSERVER_TOPICS,
                                                   .next = observer->broker->changes.n};
}

static void observer_doom(struct dlxd_observer *observer)
{
    observer->at.state = DLXD_OBSERVER_ENDING;
    dlxd_watch_set(observer->watch, 0);
    observer_start(observer);
}

/* Its socket takes no more. If that is not because it is full, the kernel has no memory, and
 * nothing tells when it has some: the observer ends, and its client observes again. */
static void observer_wait_for_room(struct dlxd_observer *observer)
{
    struct pollfd p = {.fd = observer->sock->fd, .events = POLLOUT};
    if (poll(&p, 1, 0) == 1) {
        observer_doom(observer);
        return;
    }
    observer->is_full = true;
    dlxd_watch_set(observer->watch, DLXD_READABLE | DLXD_WRITABLE);
}

static void fill_observed(struct dlxd_observer *observer, struct observed_page *page)
{
    struct dlxd_observed_position *at = &observer->at;
    if (at->next < observer->broker->changes.first)
        restart(observer);
    page->body.restarts = !at->begun;
    at->begun = true;
    if (at->state == DLXD_OBSERVER_TOPICS)
        tell_topics(observer, page);
    else if (at->state == DLXD_OBSERVER_PATTERNS)
        tell_patterns(observer, page);
    else
        tell_changes(observer, page);
}

/* Sends one packet, unless there is nothing to tell. */
static bool observer_step(struct dlxd_task *task)
{
    static struct observed_page page; /* the daemon has one thread */
    struct dlxd_observer *observer = dlxd_container_of(task, struct dlxd_observer, task);
    if (observer->at.state == DLXD_OBSERVER_ENDING) {
        dlxd_observer_free(observer);
        return false;
    }
    if (observer->is_full)
        return false;
    const struct dlxd_observed_position before = observer->at;
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    page_init(&page);
    fill_observed(observer, &page);
    packet.body_case = DLX__WIRE__PACKET__BODY_OBSERVED;
    packet.observed = &page.body;
    int r = observed_is_empty(&page) ? 0 : dlx__proto_send(observer->sock->fd, &packet, NULL, 0);
    if (r == DLX_E_FULL) {
        observer->at = before;
        observer_wait_for_room(observer);
    } else if (r < 0) {
        observer_doom(observer);
    }
    return observer->at.state == DLXD_OBSERVER_ENDING ||
           (!observer->is_full && (observer->at.state != DLXD_OBSERVER_CHANGES ||
                                   observer->at.next < observer->broker->changes.n));
}

/* The client sends nothing here: it has hung up, or violates the protocol. */
static void observer_on_events(void *data, int events)
{
    struct dlxd_observer *observer = data;
    if (observer->at.state == DLXD_OBSERVER_ENDING)
        return;
    if (events & DLXD_READABLE) {
        if (!dlx__packet_hung_up(observer->sock->fd))
            dlxd_client_disconnect(observer->client, DLX_E_PROTOCOL,
                                   "a packet on the socket of an observer of %s",
                                   observer->topic_name);
        observer_doom(observer);
        return;
    }
    observer->is_full = false;
    dlxd_watch_set(observer->watch, DLXD_READABLE);
    observer_start(observer);
}

/* ---- its life ------------------------------------------------------------------------------ */

void dlxd_observer_free(struct dlxd_observer *observer)
{
    if (!observer)
        return;
    struct dlxd_changes *changes = &observer->broker->changes;
    dlxd_list_remove(&observer->node);
    dlxd_list_remove(&observer->by_client);
    if (dlxd_list_empty(&changes->observers)) {
        forget_changes(changes);
        free(changes->ring);
        changes->ring = NULL;
    }
    dlxd_task_stop(&observer->task);
    dlxd_watch_free(observer->watch);
    dlxd_charge_deinit(&observer->object_charge);
    dlxd_charge_deinit(&observer->pattern_charge);
    dlxd_outbox_close(observer->sock, observer->client->user);
    free(observer);
}

void dlxd_observer_restart(struct dlxd_observer *observer)
{
    if (observer->at.state == DLXD_OBSERVER_ENDING)
        return;
    restart(observer);
    if (!observer->is_full)
        observer_start(observer);
}

static int observer_set_up(struct dlxd_observer *observer, int *ret_fd)
{
    struct dlxd_broker *broker = observer->broker;
    struct dlxd_user *user = observer->client->user;
    int pair[2];
    int r = dlxd_charge_init(&observer->object_charge, user, DLXD_OBJECTS, 1);
    if (r == 0)
        r = dlxd_charge_init(&observer->pattern_charge, user, DLXD_PATTERNS, 1);
    if (r == 0 && !broker->changes.ring) {
        broker->changes.ring = calloc(DLXD_CHANGES_MAX, sizeof *broker->changes.ring);
        if (!broker->changes.ring)
            r = dlx__fail(DLX_E_NO_MEMORY, "out of memory for what observers are told");
    }
    if (r == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        r = dlx__fail_errno("socket of an observer");
    if (r < 0)
        return r;
    dlx_cleanup(dlx__closep) int ours = pair[0], theirs = pair[1];
    dlx__packet_refuse_fds(ours);
    observer->sock = dlxd_outbox_new(broker->workers, ours);
    if (!observer->sock)
        return DLX_E_NO_MEMORY;
    r = dlxd_watch_new(&observer->watch, broker->watches, dlx__steal_fd(&ours), DLXD_READABLE,
                       observer_on_events, observer);
    if (r == 0)
        *ret_fd = dlx__steal_fd(&theirs);
    return r;
}

int dlxd_observer_new(struct dlxd_observer **ret, struct dlxd_client *client, const char *topic,
                      uint32_t kinds, int *ret_fd)
{
    struct dlxd_observer *observer = calloc(1, sizeof *observer);
    if (!observer)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for an observer of %s", topic);
    observer->broker = client->broker;
    observer->client = client;
    observer->publishers = kinds & DLXD_OBSERVES_PUBLISHERS;
    observer->subscriptions = kinds & DLXD_OBSERVES_SUBSCRIPTIONS;
    (void)snprintf(observer->topic_name, sizeof observer->topic_name, "%s", topic);
    dlxd_task_init(&observer->task, observer_step);
    dlxd_list_init(&observer->node);
    dlxd_list_init(&observer->by_client);
    int r = observer_set_up(observer, ret_fd);
    if (r < 0) {
        dlxd_observer_free(observer);
        return r;
    }
    dlxd_list_push_back(&client->broker->changes.observers, &observer->node);
    dlxd_list_push_back(&client->observers, &observer->by_client);
    restart(observer);
    observer_start(observer);
    *ret = observer;
    return 0;
}
