/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_IDMAP_H
#define DLXD_IDMAP_H

/* Objects by id. The daemon counts the ids, so no client can aim at one bucket. Nodes are members
 * of the objects: inserting allocates nothing and cannot fail. The table grows and shrinks with its
 * content: nodes move to the next table a few at a time. */

#include "common/util.h"

struct dlxd_idmap_node {
    uint64_t id;
    struct dlxd_idmap_node *next;
};

struct dlxd_idmap {
    struct dlxd_idmap_node **buckets;
    size_t n_buckets; /* 0 or a power of two */
    size_t n;
    struct dlxd_idmap_node *first;   /* the only bucket until one could be allocated */
    struct dlxd_idmap_node **former; /* the table before this one; NULL: nothing has to be moved */
    size_t n_former;
    size_t n_moved; /* its first buckets, which are empty */
};

void dlxd_idmap_init(struct dlxd_idmap *map);
/* The map must be empty. */
void dlxd_idmap_deinit(struct dlxd_idmap *map);

void dlxd_idmap_add(struct dlxd_idmap *map, struct dlxd_idmap_node *node, uint64_t id);
/* Ignores a node that is not in the map. */
void dlxd_idmap_remove(struct dlxd_idmap *map, struct dlxd_idmap_node *node);
struct dlxd_idmap_node *dlxd_idmap_find(const struct dlxd_idmap *map, uint64_t id);

#endif
