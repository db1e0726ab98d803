/* SPDX-License-Identifier: Apache-2.0 */

/* Mode LATEST with several publishers of a topic: only the newest message of all of them counts. */

#include "client/subscribe/subscription.h"
#include <string.h>

/* Times of messages are taken by the processor's counter: so far they may be ahead. */
#define AHEAD_NS UINT64_C(1000000)

/* Is there a newer message of this topic, by another publisher? One that claims to be from the
 * future hides no other message. */
static bool is_newer_elsewhere(const struct dlx_subscription *s,
                               const struct dlx_subscriber_link *link, uint64_t ns)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < s->n_active; i++) {
        const struct dlx_subscriber_link *other = s->active[i];
        if (other == link || strcmp(other->topic, link->topic) != 0)
            continue;
        uint64_t others = dlx__subscriber_link_newest_ns(other);
        if (others <= ns)
            continue;
        most = most ? most : dlx__now_ns() + AHEAD_NS;
        if (others <= most)
            return true;
    }
    return false;
}

bool dlx__subscription_is_newest(struct dlx_subscription *s, struct dlx_subscriber_link *link)
{
    if (s->n_active == 1 && !s->looks.is_owed && !dlx__subscription_joins(s))
        return true;
    uint64_t ns = dlx__subscriber_link_newest_ns(link);
    if (ns == 0)
        return true;
    bool has_ended = link->to_come != DLX_TO_COME_MESSAGES || dlx__reader_is_closed(&link->core);
    link->stuck = has_ended && dlx__subscription_may_get_newer(s);
    return !link->stuck && !is_newer_elsewhere(s, link, ns);
}

void dlx__subscription_pass_older(struct dlx_subscription *s,
                                  const struct dlx_subscriber_link *link, uint64_t ns)
{
    for (uint32_t i = 0; i < s->n_active; i++) {
        struct dlx_subscriber_link *other = s->active[i];
        if (other == link || strcmp(other->topic, link->topic) != 0)
            continue;
        uint64_t others = dlx__subscriber_link_newest_ns(other);
        if (others > 0 && others < ns)
            dlx__subscriber_link_pass(other);
    }
}
