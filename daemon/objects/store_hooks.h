/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_STORE_HOOKS_H
#define DLXD_STORE_HOOKS_H

/* The interface by which publishers and clients tell the store which regions to keep for the next
 * daemon. store.h is in a higher layer and sets broker->store_hooks. Without a store these
 * functions do nothing. */

#include "daemon/objects/objects.h"

struct dlxd_store_hooks {
    void (*update)(struct dlxd_publisher *publisher);
    void (*forget)(struct dlxd_publisher *publisher);
    void (*forget_arena)(const struct dlxd_publisher *publisher, struct dlxd_arena *arena);
    void (*forget_group)(struct dlxd_group *group);
    void (*leave)(struct dlxd_client *client);
};

/* The publisher has a new region or a new state. */
void dlxd_store_hooks_update(struct dlxd_publisher *publisher);
/* Nothing of the publisher is kept any more. */
void dlxd_store_hooks_forget(struct dlxd_publisher *publisher);
void dlxd_store_hooks_forget_arena(const struct dlxd_publisher *publisher,
                                   struct dlxd_arena *arena);
/* Nothing of a declared group is kept any more, though its publisher may be. */
void dlxd_store_hooks_forget_group(struct dlxd_group *group);
/* The client goes; its calls get no reply. */
void dlxd_store_hooks_leave(struct dlxd_client *client);

#endif
