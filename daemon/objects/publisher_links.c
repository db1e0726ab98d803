/* SPDX-License-Identifier: Apache-2.0 */

/* A publisher's links: tells them what is new, in steps, and gives them their indices. */

#include "common/error.h"
#include "common/util.h"
#include "daemon/objects/delivery.h"
#include "daemon/objects/link.h"
#include "daemon/objects/offer.h"
#include "daemon/objects/publisher.h"
#include "daemon/objects/retained.h"

/* How many links are told in one step. */
#define TOLD_AT_ONCE 64U
/* How many links are checked, and how many packets are sent, in one step. */
#define SENT_AT_ONCE 16U

/* A link of a GONE publisher fails if its subscriber does not know the publisher yet. */
static void publisher_links_tell(struct dlxd_link *link)
{
    if (link->publisher->state != DLXD_PUBLISHER_GONE || link->state >= DLXD_LINK_ADDED) {
        dlxd_link_schedule(link);
        return;
    }
    dlxd_link_fail_gone(link);
    dlxd_link_condense(link);
}

static bool tell_some(struct dlxd_publisher *publisher)
{
    for (uint32_t n = TOLD_AT_ONCE; publisher->next_told != &publisher->links; n--) {
        if (n == 0)
            return true;
        struct dlxd_link *link =
            dlxd_container_of(publisher->next_told, struct dlxd_link, by_publisher);
        publisher->next_told = publisher->next_told->next;
        publisher_links_tell(link);
    }
    publisher->next_told = publisher->links.next;
    if (--publisher->passes > 0)
        return true;
    publisher->n_links--;
    dlxd_publisher_link_left(publisher);
    return false;
}

bool dlxd_publisher_step(struct dlxd_task *task)
{
    struct dlxd_publisher *publisher = dlxd_container_of(task, struct dlxd_publisher, task);
    bool is_gone = publisher->state == DLXD_PUBLISHER_GONE;
    if (publisher->offering.active && !is_gone)
        return dlxd_offering_step(publisher) || publisher->succeeds || publisher->passes > 0;
    if (publisher->succeeds && !is_gone)
        return dlxd_retained_succeed_step(publisher) || publisher->passes > 0;
    return publisher->passes > 0 && tell_some(publisher);
}

void dlxd_publisher_tell_links(struct dlxd_publisher *publisher)
{
    bool more = true;
    if (publisher->passes == 0) {
        publisher->n_links++;
        publisher->passes = 1;
        publisher->next_told = publisher->links.next;
        more = tell_some(publisher);
    } else {
        publisher->passes = 2;
    }
    if (more || publisher->offering.active)
        dlxd_task_start(&publisher->task, publisher->user);
}

void dlxd_publisher_reveal(struct dlxd_publisher *publisher)
{
    dlxd_offering_begin(publisher, false);
    dlxd_task_start(&publisher->task, publisher->user);
}

void dlxd_publisher_deliver_begin(struct dlxd_publisher *publisher)
{
    publisher->cursor = publisher->links.next;
}

bool dlxd_publisher_deliver_step(struct dlxd_publisher *publisher)
{
    uint32_t n = SENT_AT_ONCE;
    while (publisher->cursor != &publisher->links) {
        if (n == 0)
            return true;
        n--;
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
        while (publisher->cursor == here && (more = dlxd_delivery_step(subscription)) && n > 0)
            n--;
        if (publisher->cursor == here && !more)
            publisher->cursor = here->next;
    }
    return false;
}

void dlxd_publisher_link_leaves(struct dlxd_publisher *publisher, const struct dlxd_link *link)
{
    if (publisher->cursor == &link->by_publisher)
        publisher->cursor = link->by_publisher.next;
    if (publisher->next_told == &link->by_publisher)
        publisher->next_told = link->by_publisher.next;
}

/* ---- indices of links ------------------------------------------------------------------------ */

int dlxd_publisher_index_get(struct dlxd_publisher *publisher, uint32_t *ret)
{
    size_t i = 0;
    while (i < publisher->n_index_words && publisher->index_bits[i] == UINT64_MAX)
        i++;
    if (i == publisher->n_index_words) {
        size_t n = i ? i * 2 : 1;
        uint64_t *bits = reallocarray(publisher->index_bits, n, sizeof *bits);
        if (!bits)
            return dlx__fail(DLX_E_NO_MEMORY, "out of memory for link indices");
        for (size_t k = i; k < n; k++)
            bits[k] = 0;
        publisher->index_bits = bits;
        publisher->n_index_words = n;
    }
    unsigned bit = (unsigned)__builtin_ctzll(~publisher->index_bits[i]);
    publisher->index_bits[i] |= UINT64_C(1) << bit;
    *ret = (uint32_t)(i * 64 + bit);
    return 0;
}

void dlxd_publisher_index_put(struct dlxd_publisher *publisher, uint32_t index)
{
    publisher->index_bits[index / 64] &= ~(UINT64_C(1) << (index % 64));
}
