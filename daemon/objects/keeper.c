/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/keeper.h"
#include "daemon/objects/broker.h"
#include "daemon/objects/client.h"

void dlxd_keeper_update(struct dlxd_publisher *publisher)
{
    if (publisher->broker->keeper)
        publisher->broker->keeper->update(publisher);
}

void dlxd_keeper_forget(struct dlxd_publisher *publisher)
{
    if (publisher->broker->keeper)
        publisher->broker->keeper->forget(publisher);
}

void dlxd_keeper_forget_arena(const struct dlxd_publisher *publisher, struct dlxd_arena *arena)
{
    if (publisher->broker->keeper)
        publisher->broker->keeper->forget_arena(publisher, arena);
}

void dlxd_keeper_leave(struct dlxd_client *client)
{
    if (client->broker->keeper)
        client->broker->keeper->leave(client);
}
