/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/idmap.h"
#include <assert.h>

#define N_BUCKETS_MIN 64U
/* The buckets of the former table that are moved with each change: so many that the table has been
 * moved before it has to grow or shrink again. */
#define MOVED_AT_ONCE 16U

void dlxd_idmap_init(struct dlxd_idmap *map)
{
    *map = (struct dlxd_idmap){.n = 0};
}

void dlxd_idmap_deinit(struct dlxd_idmap *map)
{
    assert(map->n == 0);
    free(map->buckets);
    free(map->former);
    dlxd_idmap_init(map);
}

static struct dlxd_idmap_node **bucket(const struct dlxd_idmap *map, uint64_t id)
{
    size_t former = map->n_former ? id & (map->n_former - 1) : 0;
    if (map->n_former && former >= map->n_moved)
        return &map->former[former];
    if (map->n_buckets == 0)
        return (struct dlxd_idmap_node **)(uintptr_t)&map->first;
    return &map->buckets[id & (map->n_buckets - 1)];
}

static void move_chain(struct dlxd_idmap *map, struct dlxd_idmap_node *node)
{
    while (node) {
        struct dlxd_idmap_node *next = node->next, **b = bucket(map, node->id);
        node->next = *b;
        *b = node;
        node = next;
    }
}

/* A large table takes milliseconds to move, so it is moved in parts. */
static void move_some(struct dlxd_idmap *map)
{
    for (uint32_t n = MOVED_AT_ONCE; n > 0 && map->n_moved < map->n_former; n--) {
        struct dlxd_idmap_node *chain = map->former[map->n_moved++];
        move_chain(map, chain);
    }
    if (map->n_former == 0 || map->n_moved < map->n_former)
        return;
    free(map->former);
    map->former = NULL;
    map->n_former = map->n_moved = 0;
}

/* If memory is short, the table keeps its size and at worst the chains get longer. */
static void resize(struct dlxd_idmap *map, size_t n)
{
    struct dlxd_idmap_node **buckets =
        map->n_former ? NULL : calloc(n, sizeof *buckets); /* one move at a time */
    struct dlxd_idmap_node *first = map->first;
    if (!buckets)
        return;
    map->former = map->buckets;
    map->n_former = map->n_buckets;
    map->buckets = buckets;
    map->n_buckets = n;
    map->first = NULL;
    move_chain(map, first);
}

void dlxd_idmap_add(struct dlxd_idmap *map, struct dlxd_idmap_node *node, uint64_t id)
{
    if (map->n >= map->n_buckets)
        resize(map, map->n_buckets ? map->n_buckets * 2 : N_BUCKETS_MIN);
    move_some(map);
    struct dlxd_idmap_node **b = bucket(map, id);
    node->id = id;
    node->next = *b;
    *b = node;
    map->n++;
}

void dlxd_idmap_remove(struct dlxd_idmap *map, struct dlxd_idmap_node *node)
{
    for (struct dlxd_idmap_node **b = bucket(map, node->id); *b; b = &(*b)->next) {
        if (*b == node) {
            *b = node->next;
            map->n--;
            if (map->n_buckets > N_BUCKETS_MIN && map->n < map->n_buckets / 8)
                resize(map, map->n_buckets / 2);
            move_some(map);
            return;
        }
    }
}

struct dlxd_idmap_node *dlxd_idmap_find(const struct dlxd_idmap *map, uint64_t id)
{
    for (struct dlxd_idmap_node *node = *bucket(map, id); node; node = node->next)
        if (node->id == id)
            return node;
    return NULL;
}
