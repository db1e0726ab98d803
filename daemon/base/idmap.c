/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/idmap.h"
#include <assert.h>

#define N_BUCKETS_MIN 64U

void dlxd_idmap_init(struct dlxd_idmap *map)
{
    *map = (struct dlxd_idmap){.n = 0};
}

void dlxd_idmap_deinit(struct dlxd_idmap *map)
{
    assert(map->n == 0);
    free(map->buckets);
    dlxd_idmap_init(map);
}

static struct dlxd_idmap_node **bucket(const struct dlxd_idmap *map, uint64_t id)
{
    if (map->n_buckets == 0)
        return (struct dlxd_idmap_node **)(uintptr_t)&map->first;
    return &map->buckets[id & (map->n_buckets - 1)];
}

/* If memory is short, the table keeps its size and at worst the chains get longer. */
static void resize(struct dlxd_idmap *map, size_t n)
{
    struct dlxd_idmap old = *map;
    struct dlxd_idmap_node **buckets = calloc(n, sizeof *buckets);
    if (!buckets)
        return;
    map->buckets = buckets;
    map->n_buckets = n;
    map->first = NULL;
    for (size_t i = 0; i < DLX_MAX(old.n_buckets, 1U); i++) {
        struct dlxd_idmap_node *node = old.n_buckets ? old.buckets[i] : old.first;
        while (node) {
            struct dlxd_idmap_node *next = node->next;
            struct dlxd_idmap_node **b = bucket(map, node->id);
            node->next = *b;
            *b = node;
            node = next;
        }
    }
    free(old.buckets);
}

void dlxd_idmap_add(struct dlxd_idmap *map, struct dlxd_idmap_node *node, uint64_t id)
{
    if (map->n >= map->n_buckets)
        resize(map, map->n_buckets ? map->n_buckets * 2 : N_BUCKETS_MIN);
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
