/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/review.h"
#include "common/error.h"
#include "common/topic.h"
#include "daemon/objects/broker.h"
#include "daemon/objects/client.h"
#include "daemon/objects/link.h"
#include "daemon/objects/offer.h"
#include "daemon/objects/publisher.h"
#include "daemon/objects/subscription.h"

static int review_link(const struct dlxd_client *client, const struct dlxd_link *link)
{
    if (!link->publisher)
        return 0;
    int r = dlxd_policy_check(&client->broker->policy, client->principal, DLXD_MAY_SUBSCRIBE,
                              link->publisher->topic_name);
    return r < 0 ? r : dlxd_offer_fits(link->subscription, link->publisher);
}

static int review_subscription(const struct dlxd_client *client,
                               const struct dlxd_subscription *subscription)
{
    int r = dlx__is_pattern(subscription->topic_name)
                ? 0
                : dlxd_policy_check(&client->broker->policy, client->principal, DLXD_MAY_SUBSCRIBE,
                                    subscription->topic_name);
    for (const struct dlxd_list *it = subscription->links.next;
         it != &subscription->links && r == 0; it = it->next)
        r = review_link(client, dlxd_container_of(it, struct dlxd_link, by_subscription));
    return r;
}

void dlxd_review(struct dlxd_client *client)
{
    const struct dlxd_policy *policy = &client->broker->policy;
    client->is_to_review = false;
    if (client->refuse_code < 0)
        return;
    int r = dlxd_policy_admit(policy, client->principal);
    for (const struct dlxd_list *it = client->publishers.next; it != &client->publishers && r == 0;
         it = it->next)
        r = dlxd_policy_check(policy, client->principal, DLXD_MAY_PUBLISH,
                              dlxd_container_of(it, struct dlxd_publisher, by_client)->topic_name);
    for (const struct dlxd_list *it = client->subscriptions.next;
         it != &client->subscriptions && r == 0; it = it->next)
        r = review_subscription(client, dlxd_container_of(it, struct dlxd_subscription, by_client));
    if (r < 0)
        dlxd_client_disconnect(client, r, "the rules have changed: %s", dlx__error_message());
}
