/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/payer.h"
#include "daemon/objects/drain.h"
#include "daemon/objects/link.h"
#include "daemon/users/outbox.h"
#include <assert.h>

/* Returns the first link that knows a dropped arena and has not been told of the drop. */
static struct dlxd_link *find_untold(struct dlxd_publisher *publisher, struct dlxd_list *from,
                                     const struct dlxd_arena *arena)
{
    for (struct dlxd_list *it = from; it != &publisher->links; it = it->next) {
        struct dlxd_link *link = dlxd_container_of(it, struct dlxd_link, by_publisher);
        if (link->drop_seq < arena->drop_seq && dlxd_link_knows(link, arena))
            return link;
    }
    return NULL;
}

static void payer_charge(struct dlxd_arena *arena)
{
    const struct dlxd_link *payer = arena->untold;
    if (!payer) {
        assert(!dlxd_list_empty(&arena->told));
        payer = dlxd_container_of(arena->told.next, struct dlxd_flight, of_arena)->link;
    }
    dlxd_charge_move(&arena->charge, payer->subscription->client->user);
}

static void charge_from(struct dlxd_publisher *publisher, struct dlxd_list *from,
                        struct dlxd_arena *arena)
{
    arena->untold = find_untold(publisher, from, arena);
    payer_charge(arena);
}

void dlxd_payer_of_dropped(struct dlxd_publisher *publisher, struct dlxd_arena *arena)
{
    charge_from(publisher, publisher->links.next, arena);
}

void dlxd_payer_may_change(struct dlxd_link *link, struct dlxd_arena *arena)
{
    if (arena->untold == link)
        charge_from(link->publisher, link->by_publisher.next, arena);
    else
        payer_charge(arena);
}

/* Of its links, and then of those that drain. NULL: there is none. */
static struct dlxd_user *first_user(const struct dlxd_publisher *publisher)
{
    if (!dlxd_list_empty(&publisher->links))
        return dlxd_container_of(publisher->links.next, struct dlxd_link, by_publisher)
            ->subscription->client->user;
    if (publisher->drains.n == 0)
        return NULL;
    return dlxd_drain_of_publisher(publisher->drains.list.next)->links_charge.user;
}

void dlxd_payer_of_gone(struct dlxd_publisher *publisher)
{
    struct dlxd_user *user = first_user(publisher);
    if (!user || user == publisher->object_charge.user)
        return;
    dlxd_charge_move(&publisher->object_charge, user);
    dlxd_charge_move(&publisher->control->charge, user);
    for (size_t i = 0; i < publisher->ready.n; i++)
        dlxd_charge_move(&publisher->ready.items[i]->charge, user);
}
