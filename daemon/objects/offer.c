/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/offer.h"
#include "common/error.h"
#include "common/util.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/delivery.h"
#include "daemon/objects/group.h"
#include "daemon/objects/link.h"
#include "daemon/objects/publisher.h"
#include "daemon/objects/publisher_state.h"
#include "daemon/objects/registry.h"
#include "daemon/base/log.h"
#include "daemon/users/principal.h"
#include <stdio.h>
#include <string.h>

/* How many spare links are made at once, when the subscription or a publisher comes. */
#define SPARES_AT_ONCE 16U
/* So many spare links a subscription may get that asked for fewer. */
#define SPARES_GROWN_MAX 64U

int dlxd_offer_fits(const struct dlxd_subscription *subscription,
                    const struct dlxd_publisher *publisher)
{
    bool is_worker = dlxd_subscription_is_worker(subscription);
    bool is_reliable = subscription->config.reliable;
    /* A publisher that has left its client, or is GONE, drops no more messages. */
    bool drops = publisher->config.on_full == 0 && publisher->state < DLXD_PUBLISHER_DYING;
    bool may_wait = is_worker || publisher->state < DLXD_PUBLISHER_DYING;
    int r = 0;
    if (may_wait && (is_worker || (is_reliable && !drops)))
        r = dlxd_policy_check(&subscription->broker->policy, subscription->client->principal,
                              DLXD_MAY_BLOCK, publisher->topic_name);
    if (r == 0 && is_worker)
        r = dlxd_group_check(subscription, publisher);
    if (r < 0 || !is_reliable || !drops || subscription->config.accepts_unreliable)
        return r;
    return dlx__fail(DLX_E_QOS,
                     "subscriber %s (pid %d) asks for a reliable link to %s, publisher %s (pid %d) "
                     "drops its oldest messages: make it a publisher that blocks (on_full), or "
                     "subscribe without `reliable`, or with `accepts_unreliable`",
                     subscription->client->name, (int)subscription->client->pid,
                     publisher->topic_name, publisher->client_name, (int)publisher->pid);
}

/* Of a publisher that has left, workers get what their declared group has not done, and others what
 * is retained. */
static bool is_offered(const struct dlxd_subscription *subscription,
                       struct dlxd_publisher *publisher)
{
    if (!dlxd_publisher_leaves(publisher))
        return true;
    if (dlxd_subscription_is_worker(subscription))
        return dlxd_group_is_kept(publisher, subscription->config.group);
    return publisher->config.retain > 0 &&
           (publisher->state == DLXD_PUBLISHER_SHOWN || !publisher->config.latched);
}

/* May the subscriber know of this topic? */
static bool may_offer(const struct dlxd_subscription *subscription, const char *topic)
{
    return dlxd_policy_may(&subscription->broker->policy, subscription->client->principal,
                           DLXD_MAY_SUBSCRIBE, topic);
}

/* Can the subscription join a SHOWN publisher? Such a publisher waits for no cursor, and the
 * subscriber's library must know the state. */
static bool joins_shown(const struct dlxd_subscription *subscription)
{
    if (dlxd_subscription_is_worker(subscription))
        return false;
    return !subscription->config.reliable && subscription->client->principal->minor >= 2;
}

static uint64_t announced_to(const struct dlxd_publisher *publisher,
                             const struct dlxd_subscription *subscription)
{
    return joins_shown(subscription) ? publisher->announced : publisher->announced_late;
}

/* ---- a new subscription -------------------------------------------------------------------- */

static int offer_add(struct dlxd_offers *offers, const struct dlxd_publisher *publisher)
{
    if (offers->n_publishers == offers->n_publishers_max) {
        size_t n = offers->n_publishers_max ? offers->n_publishers_max * 2 : 16;
        uint64_t *ids = reallocarray(offers->publishers, n, sizeof *ids);
        if (!ids)
            return dlx__fail(DLX_E_NO_MEMORY, "out of memory for links to %s",
                             offers->subscription->topic_name);
        offers->publishers = ids;
        offers->n_publishers_max = n;
    }
    offers->publishers[offers->n_publishers++] = dlxd_publisher_id(publisher);
    return 0;
}

/* It is offered when its process makes a call: the subscriber is told whom it waits for. */
static void note_away(struct dlxd_offers *offers, const struct dlxd_publisher *publisher)
{
    if (offers->n_away++ > 0)
        return;
    offers->away_publisher = dlxd_publisher_id(publisher);
    offers->away_pid = publisher->pid;
    memcpy(offers->away_name, publisher->client_name, sizeof offers->away_name);
}

/* Adds those after `offers->publisher`, until the slice is over. Returns 0, or an error. */
static int offer_add_topic(struct dlxd_offers *offers, struct dlxd_topic *topic)
{
    const struct dlxd_subscription *subscription = offers->subscription;
    struct dlxd_registry *registry = &subscription->broker->registry;
    struct dlxd_list *it = may_offer(subscription, topic->name)
                               ? dlxd_publisher_next_of(registry, topic, offers->publisher)
                               : &topic->publishers;
    struct dlxd_list *first = it;
    int r = 0;
    for (; it != &topic->publishers && r == 0; it = it->next) {
        struct dlxd_publisher *publisher = dlxd_container_of(it, struct dlxd_publisher, by_topic);
        if (it != first && dlxd_slice_is_over(&subscription->broker->users))
            break;
        offers->publisher = dlxd_publisher_id(publisher);
        bool is_silent = publisher->announced == 0;
        if (is_silent || announced_to(publisher, subscription) > subscription->since ||
            !is_offered(subscription, publisher)) {
            if (dlxd_publisher_is_away(publisher))
                note_away(offers, publisher);
            continue;
        }
        r = dlxd_offer_fits(subscription, publisher);
        if (r == 0)
            r = offer_add(offers, publisher);
    }
    if (it == &topic->publishers)
        offers->publisher = 0;
    return r;
}

/* The topic whose publishers were looked at in part, or else the next one; NULL: there is none. */
static struct dlxd_topic *next_topic(struct dlxd_offers *offers)
{
    const struct dlxd_subscription *subscription = offers->subscription;
    struct dlxd_registry *registry = &subscription->broker->registry;
    struct dlxd_topic *topic =
        offers->publisher > 0 ? dlxd_registry_find(registry, offers->cursor.after) : NULL;
    if (topic)
        return topic;
    offers->publisher = 0;
    return dlxd_registry_next(registry, subscription->topic_name, &offers->cursor);
}

/* Returns 1 or an error. */
static int find_some(struct dlxd_offers *offers)
{
    const struct dlxd_subscription *subscription = offers->subscription;
    struct dlxd_registry *registry = &subscription->broker->registry;
    struct dlxd_topic *topic = subscription->topic;
    int r = topic ? offer_add_topic(offers, topic) : 0;
    while (r == 0 && !subscription->topic) {
        topic = next_topic(offers);
        if (!topic)
            break;
        if (dlx__pattern_matches(subscription->topic_name, topic->name))
            r = offer_add_topic(offers, topic);
        if (dlxd_slice_is_over(&subscription->broker->users))
            break;
    }
    if (r < 0)
        return r;
    offers->found_all = subscription->topic ? offers->publisher == 0 : !topic;
    if (offers->found_all) {
        offers->made_link = registry->last_link;
        registry->last_link += offers->n_publishers + subscription->config.n_spares;
        offers->last_link = registry->last_link;
    }
    return 1;
}

/* Makes a link, which fails if the two do not match. Returns 0, or DLX_E_NO_MEMORY without a
 * link. */
static int make_link(struct dlxd_subscription *subscription, struct dlxd_publisher *publisher,
                     uint64_t id, bool from_start)
{
    int r = dlxd_link_new(subscription, publisher, id, from_start);
    if (r < 0)
        return r;
    struct dlxd_link *link = dlxd_container_of(
        dlxd_idmap_find(&subscription->broker->registry.links, id), struct dlxd_link, by_id);
    r = dlxd_offer_fits(subscription, publisher);
    if (r == 0 && link->state != DLXD_LINK_FAILED)
        r = dlxd_group_join(link);
    if (r < 0)
        dlxd_link_fail(link, r, dlx__error_message());
    dlxd_link_condense(link);
    return 0;
}

/* Makes the link with the next reserved id. */
static int offer(struct dlxd_offers *offers, uint64_t id)
{
    struct dlxd_subscription *subscription = offers->subscription;
    struct dlxd_idmap_node *node = dlxd_idmap_find(&subscription->broker->registry.publishers, id);
    struct dlxd_publisher *publisher =
        node ? dlxd_container_of(node, struct dlxd_publisher, by_id) : NULL;
    /* It has gone in between, or there are new rules. */
    if (!publisher || !is_offered(subscription, publisher) ||
        (offers->is_to_review && !may_offer(subscription, publisher->topic_name)))
        return 0;
    int r = make_link(subscription, publisher, offers->made_link + 1, false);
    if (r < 0)
        return r;
    offers->made_link++;
    offers->n_links++;
    return 0;
}

/* Makes as many as configured, or as the user may have, but at most SPARES_AT_ONCE: after so many
 * there may be more to make. */
static uint32_t add_spares(struct dlxd_subscription *subscription, uint64_t *last_link)
{
    uint32_t n = 0;
    while (n < SPARES_AT_ONCE && subscription->n_spares < subscription->config.n_spares &&
           dlxd_link_new_spare(subscription, *last_link + 1) == 0) {
        ++*last_link;
        n++;
    }
    return n;
}

/* A publisher came, and no spare link is free for the next one: as many may come again. */
static void grow_spares(struct dlxd_subscription *subscription)
{
    uint32_t *n = &subscription->config.n_spares;
    if (subscription->offers) /* whose links have their numbers */
        return;
    if (dlxd_list_empty(&subscription->spares) && *n < SPARES_GROWN_MAX)
        *n = DLX_MIN(2 * *n, SPARES_GROWN_MAX);
}

/* Returns unused reserved ids, unless later ids were given out. */
static void give_ids_back(const struct dlxd_offers *offers)
{
    struct dlxd_registry *registry = &offers->subscription->broker->registry;
    if (registry->last_link == offers->last_link)
        registry->last_link = offers->made_link;
}

void dlxd_offers_init(struct dlxd_offers *offers, struct dlxd_subscription *subscription)
{
    *offers = (struct dlxd_offers){.subscription = subscription};
    subscription->offers = offers;
}

int dlxd_offers_step(struct dlxd_offers *offers)
{
    int r = 0;
    if (!offers->found_all) {
        r = find_some(offers);
        if (r < 0 || !offers->found_all)
            return r;
        r = 0;
    }
    while (r == 0 && offers->n_offered < offers->n_publishers) {
        r = offer(offers, offers->publishers[offers->n_offered++]);
        if (r == 0 && dlxd_slice_is_over(&offers->subscription->broker->users))
            return 1;
    }
    uint32_t n = r == 0 ? add_spares(offers->subscription, &offers->made_link) : 0;
    offers->n_links += n;
    if (n == SPARES_AT_ONCE)
        return 1;
    give_ids_back(offers);
    offers->subscription->last_offer = offers->made_link;
    return r;
}

void dlxd_offers_deinit(struct dlxd_offers *offers)
{
    if (offers->subscription)
        offers->subscription->offers = NULL;
    free(offers->publishers);
    *offers = (struct dlxd_offers){.subscription = NULL};
}

/* ---- a new publisher ------------------------------------------------------------------------ */

/* There is no memory to remember the failure. The subscriber is told now, or loses its connection,
 * so that it does not wait for a publisher that it will not get. */
static void fail_without_link(struct dlxd_subscription *subscription, int code)
{
    char text[DLX_ERROR_TEXT_SIZE];
    uint64_t id = ++subscription->broker->registry.last_link;
    (void)snprintf(text, sizeof text, "%s", dlx__error_message());
    dlxd_log_client(dlxd_principal_number(subscription->client->principal), DLXD_LOG_ERROR, "%s",
                    text);
    bool in_turn = subscription->state != DLXD_SUBSCRIPTION_OPENING &&
                   (subscription->begun || dlxd_list_empty(&subscription->links));
    if (!in_turn || dlxd_delivery_tell_failed(subscription, id, code, text) < 0)
        dlxd_client_disconnect(subscription->client, code, "%s", text);
}

/* Gives a spare link whose page is prepared to a publisher that has just become ready. */
static bool assign_spare(struct dlxd_subscription *subscription, struct dlxd_publisher *publisher)
{
    if (dlxd_list_empty(&subscription->spares) || dlxd_offer_fits(subscription, publisher) < 0)
        return false;
    struct dlxd_link *link =
        dlxd_container_of(subscription->spares.next, struct dlxd_link, by_publisher);
    if (dlxd_link_assign(link, publisher) < 0)
        return false;
    if (dlxd_group_join(link) < 0) {
        dlxd_link_fail(link, DLX_E_NO_MEMORY, dlx__error_message());
        dlxd_link_condense(link);
    }
    return true;
}

static void offer_to(struct dlxd_subscription *subscription, struct dlxd_publisher *publisher)
{
    struct dlxd_registry *registry = &subscription->broker->registry;
    struct dlxd_offers *offers = subscription->offers;
    bool from_start = publisher->offering.from_start;
    int r = 0;
    if (offers && !offers->found_all) {
        /* A link made now would precede the links that the reply to Subscribe counts. */
        r = offer_add(offers, publisher);
    } else if (!from_start || !assign_spare(subscription, publisher)) {
        r = make_link(subscription, publisher, registry->last_link + 1, from_start);
        registry->last_link += r == 0;
    }
    if (r < 0)
        fail_without_link(subscription, r);
    if (from_start)
        grow_spares(subscription);
    if (r == 0 && !offers) /* a Subscribe in progress makes them itself */
        (void)add_spares(subscription, &registry->last_link);
}

/* Returns the first subscription after the last one that was handled. */
static struct dlxd_list *find_next(const struct dlxd_offering *offering, struct dlxd_list *list)
{
    struct dlxd_list *it = list->next;
    while (it != list && dlxd_subscription_id(dlxd_container_of(it, struct dlxd_subscription,
                                                                by_topic)) <= offering->last)
        it = it->next;
    return it;
}

/* The next subscription; or, after those to its topic, those to patterns follow. */
static void offer_to_next(struct dlxd_publisher *publisher, struct dlxd_offering *offering)
{
    struct dlxd_registry *registry = &publisher->broker->registry;
    struct dlxd_list *list =
        offering->in_patterns ? &registry->patterns : &publisher->topic->subscriptions;
    if (offering->n_left != registry->n_left)
        offering->next = find_next(offering, list);
    offering->n_left = registry->n_left;
    if (offering->next == list) {
        offering->active = !offering->in_patterns;
        offering->in_patterns = true;
        offering->last = 0;
        offering->next = registry->patterns.next;
        return;
    }
    struct dlxd_subscription *subscription =
        dlxd_container_of(offering->next, struct dlxd_subscription, by_topic);
    offering->last = dlxd_subscription_id(subscription);
    offering->next = offering->next->next;
    bool suits = !offering->in_patterns ||
                 (dlx__pattern_matches(subscription->topic_name, publisher->topic_name) &&
                  may_offer(subscription, publisher->topic_name));
    if (suits && subscription->since < announced_to(publisher, subscription) &&
        !dlxd_subscription_is_doomed(subscription) && is_offered(subscription, publisher))
        offer_to(subscription, publisher);
}

bool dlxd_offering_step(struct dlxd_publisher *publisher)
{
    while (publisher->offering.active) {
        offer_to_next(publisher, &publisher->offering);
        if (dlxd_slice_is_over(&publisher->broker->users))
            break;
    }
    return publisher->offering.active;
}

/* ---- a publisher's task, and its replies --------------------------------------------------- */

bool dlxd_publisher_step(struct dlxd_task *task)
{
    struct dlxd_publisher *publisher = dlxd_container_of(task, struct dlxd_publisher, task);
    bool is_gone = publisher->state == DLXD_PUBLISHER_GONE;
    bool has_more = publisher->looks_at_groups || publisher->passes > 0;
    if (publisher->offering.active && !is_gone)
        return dlxd_offering_step(publisher) || publisher->succeeds || has_more;
    if (publisher->succeeds && !is_gone)
        return dlxd_retained_succeed_step(publisher) || has_more;
    if (publisher->looks_at_groups && !is_gone) {
        bool more = publisher->passes > 0;
        dlxd_publisher_look_at_groups(publisher); /* which may free it */
        return more;
    }
    return publisher->passes > 0 && dlxd_publisher_tell_step(publisher);
}

int dlxd_publisher_check_awaited(const struct dlxd_publisher *publisher)
{
    dlx_for_each (it, &publisher->links) {
        const struct dlxd_link *link = dlxd_container_of(it, struct dlxd_link, by_publisher);
        const struct dlxd_subscription *subscription = link->subscription;
        if (dlxd_link_is_awaited(link))
            return dlx__fail(
                DLX_E_FULL,
                "the %s of %s (pid %d) to %s is not ready for another publisher: it has made no "
                "call since the last ones came; let it take, or subscribe for more publishers "
                "(n_publishers, publishers=)",
                link->group ? "subscription in a group" : "reliable subscription",
                subscription->client->name, (int)subscription->client->pid,
                subscription->topic_name);
    }
    return 0;
}

void dlxd_publisher_deliver_begin(struct dlxd_publisher *publisher)
{
    publisher->cursor = publisher->links.next;
}

bool dlxd_publisher_deliver_step(struct dlxd_publisher *publisher)
{
    const struct dlxd_users *users = &publisher->broker->users;
    while (publisher->cursor != &publisher->links) {
        struct dlxd_list *here = publisher->cursor;
        struct dlxd_link *link = dlxd_container_of(here, struct dlxd_link, by_publisher);
        struct dlxd_subscription *subscription = link->subscription;
        bool more = true;
        if (link->state == DLXD_LINK_OPEN) /* there may be a new arena */
            dlxd_link_schedule(link);
        /* A former spare link: its publisher does not wait for the subscriber's credit. */
        if (link->made == DLXD_MADE_EARLY)
            dlxd_delivery_join(link);
        /* The link may end here; then the cursor moves on. */
        while (publisher->cursor == here && (more = dlxd_delivery_step(subscription)) &&
               !dlxd_slice_is_over(users))
            ;
        if (publisher->cursor == here && !more)
            publisher->cursor = here->next;
        if (dlxd_slice_is_over(users))
            break;
    }
    return publisher->cursor != &publisher->links;
}
