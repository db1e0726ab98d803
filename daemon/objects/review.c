/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/review.h"
#include "common/error.h"
#include "common/topic.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/offer.h"

/* The most objects that are checked in one step. */
#define CHECKS_AT_ONCE 64U

static int check(const struct dlxd_client *client, enum dlxd_verb verb, const char *topic)
{
    return dlxd_policy_check(&client->broker->policy, client->principal, verb, topic);
}

/* ---- publishers ---------------------------------------------------------------------------- */

static struct dlxd_publisher *publisher_of(struct dlxd_list *by_client)
{
    return dlxd_container_of(by_client, struct dlxd_publisher, by_client);
}

/* Returns the node of the first publisher after the one that was checked last. */
static struct dlxd_list *next_publisher(struct dlxd_client *client, uint64_t last)
{
    struct dlxd_idmap_node *node = dlxd_idmap_find(&client->broker->registry.publishers, last);
    struct dlxd_publisher *publisher =
        node ? dlxd_container_of(node, struct dlxd_publisher, by_id) : NULL;
    if (publisher && publisher->client == client)
        return publisher->by_client.next;
    struct dlxd_list *it = client->publishers.next;
    while (it != &client->publishers && dlxd_publisher_id(publisher_of(it)) <= last)
        it = it->next;
    return it;
}

static int review_publisher(struct dlxd_client *client)
{
    struct dlxd_review *review = &client->review;
    struct dlxd_list *it = next_publisher(client, review->object);
    if (it == &client->publishers) {
        *review = (struct dlxd_review){.state = DLXD_REVIEW_SUBSCRIPTIONS};
        return 0;
    }
    review->object = dlxd_publisher_id(publisher_of(it));
    return check(client, DLXD_MAY_PUBLISH, publisher_of(it)->topic_name);
}

/* ---- subscriptions and their links --------------------------------------------------------- */

static struct dlxd_subscription *subscription_of(struct dlxd_list *by_client)
{
    return dlxd_container_of(by_client, struct dlxd_subscription, by_client);
}

static struct dlxd_link *review_link_of(struct dlxd_list *by_subscription)
{
    return dlxd_container_of(by_subscription, struct dlxd_link, by_subscription);
}

/* The subscription that was checked last; NULL: it has ended, or there is none. */
static struct dlxd_subscription *find_subscription(const struct dlxd_client *client, uint64_t id)
{
    struct dlxd_idmap_node *node = dlxd_idmap_find(&client->broker->registry.subscriptions, id);
    struct dlxd_subscription *subscription =
        node ? dlxd_container_of(node, struct dlxd_subscription, by_id) : NULL;
    return subscription && subscription->client == client ? subscription : NULL;
}

/* Returns the first link after the one that was checked last; NULL: there is none. */
static const struct dlxd_link *review_next_link(struct dlxd_subscription *subscription,
                                                uint64_t last)
{
    struct dlxd_list *it = subscription->links.next;
    struct dlxd_idmap_node *node = dlxd_idmap_find(&subscription->broker->registry.links, last);
    struct dlxd_link *link = node ? dlxd_container_of(node, struct dlxd_link, by_id) : NULL;
    if (link && link->subscription == subscription)
        it = link->by_subscription.next;
    while (it != &subscription->links && dlxd_link_id(review_link_of(it)) <= last)
        it = it->next;
    return it == &subscription->links ? NULL : review_link_of(it);
}

static struct dlxd_list *next_subscription(struct dlxd_client *client,
                                           struct dlxd_subscription *last, uint64_t last_id)
{
    if (last)
        return last->by_client.next;
    struct dlxd_list *it = client->subscriptions.next;
    while (it != &client->subscriptions && dlxd_subscription_id(subscription_of(it)) <= last_id)
        it = it->next;
    return it;
}

static int review_link(const struct dlxd_client *client, const struct dlxd_link *link)
{
    if (!link->publisher)
        return 0;
    int r = check(client, DLXD_MAY_SUBSCRIBE, link->publisher->topic_name);
    return r < 0 ? r : dlxd_offer_fits(link->subscription, link->publisher);
}

/* The next link of the subscription, or else the next subscription. A pattern allows nothing by
 * itself. */
static int review_subscription(struct dlxd_client *client)
{
    struct dlxd_review *review = &client->review;
    struct dlxd_subscription *last = find_subscription(client, review->object);
    const struct dlxd_link *link = last ? review_next_link(last, review->link) : NULL;
    if (link) {
        review->link = dlxd_link_id(link);
        return review_link(client, link);
    }
    struct dlxd_list *it = next_subscription(client, last, review->object);
    if (it == &client->subscriptions) {
        review->state = DLXD_REVIEW_NONE;
        return 0;
    }
    const struct dlxd_subscription *subscription = subscription_of(it);
    review->object = dlxd_subscription_id(subscription);
    review->link = 0;
    return dlx__is_pattern(subscription->topic_name)
               ? 0
               : check(client, DLXD_MAY_SUBSCRIBE, subscription->topic_name);
}

/* ---- both ---------------------------------------------------------------------------------- */

void dlxd_review_step(struct dlxd_client *client)
{
    const struct dlxd_policy *policy = &client->broker->policy;
    struct dlxd_review *review = &client->review;
    bool begins = review->state == DLXD_REVIEW_PUBLISHERS && review->object == 0;
    int r = client->refuse_code == 0 && begins ? dlxd_policy_admit(policy, client->principal) : 0;
    if (client->refuse_code < 0)
        review->state = DLXD_REVIEW_NONE;
    for (uint32_t n = dlxd_policy_checks_at_once(policy, CHECKS_AT_ONCE);
         n > 0 && r == 0 && review->state != DLXD_REVIEW_NONE; n--)
        r = review->state == DLXD_REVIEW_PUBLISHERS ? review_publisher(client)
                                                    : review_subscription(client);
    if (r == 0)
        return;
    review->state = DLXD_REVIEW_NONE;
    dlxd_client_disconnect(client, r, "the rules have changed: %s", dlx__error_message());
}
