/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/store_hooks.h"

void dlxd_store_hooks_update(struct dlxd_publisher *publisher)
{
    if (publisher->broker->store_hooks)
        publisher->broker->store_hooks->update(publisher);
}

void dlxd_store_hooks_forget(struct dlxd_publisher *publisher)
{
    if (publisher->broker->store_hooks)
        publisher->broker->store_hooks->forget(publisher);
}

void dlxd_store_hooks_forget_arena(const struct dlxd_publisher *publisher, struct dlxd_arena *arena)
{
    if (publisher->broker->store_hooks)
        publisher->broker->store_hooks->forget_arena(publisher, arena);
}

void dlxd_store_hooks_forget_group(struct dlxd_group *group)
{
    const struct dlxd_broker *broker = group->publisher->broker;
    if (broker->store_hooks)
        broker->store_hooks->forget_group(group);
}

void dlxd_store_hooks_leave(struct dlxd_client *client)
{
    if (client->broker->store_hooks)
        client->broker->store_hooks->leave(client);
}
