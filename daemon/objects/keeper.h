/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_KEEPER_H
#define DLXD_KEEPER_H

/*
 * What publishers and clients tell whoever keeps regions for the next daemon. store.h is above
 * them, and puts its functions into broker->keeper. Without a store nothing is kept, and nothing
 * happens here.
 */

struct dlxd_arena;
struct dlxd_client;
struct dlxd_publisher;

struct dlxd_keeper {
    void (*update)(struct dlxd_publisher *publisher);
    void (*forget)(struct dlxd_publisher *publisher);
    void (*forget_arena)(const struct dlxd_publisher *publisher, struct dlxd_arena *arena);
    void (*leave)(struct dlxd_client *client);
};

/* The publisher has a new region, or became something else. */
void dlxd_keeper_update(struct dlxd_publisher *publisher);
/* Nothing of it is kept any more. */
void dlxd_keeper_forget(struct dlxd_publisher *publisher);
void dlxd_keeper_forget_arena(const struct dlxd_publisher *publisher, struct dlxd_arena *arena);
/* The client goes; nothing is answered. */
void dlxd_keeper_leave(struct dlxd_client *client);

#endif
