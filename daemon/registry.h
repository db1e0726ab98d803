/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_REGISTRY_H
#define DLXD_REGISTRY_H

/*
 * What is there: topics by name, with their publishers and subscriptions, and every object by id.
 * No I/O here.
 */

#include "daemon/idmap.h"
#include "daemon/list.h"

/* Exists while it has a publisher or a subscription. */
struct dlxd_topic {
    struct dlxd_list publishers;    /* in the order of their ids, those that are not ready too */
    struct dlxd_list subscriptions; /* likewise */
    char name[];
};

struct dlxd_registry {
    struct dlxd_topic **topics; /* sorted by strcmp(): found by bisection, listed page by page */
    size_t n_topics;
    size_t n_topics_max;       /* room in `topics` */
    struct dlxd_list patterns; /* subscriptions to patterns: in no topic */
    struct dlxd_idmap publishers;
    struct dlxd_idmap subscriptions;
    struct dlxd_idmap links;
    size_t n_spares; /* of them */
    /* Ids are never used again until the machine restarts, by this daemon or another one. */
    uint64_t last_publisher;
    uint64_t last_subscription;
    uint64_t last_link;
};

void dlxd_registry_init(struct dlxd_registry *registry);
/* Everything is gone. */
void dlxd_registry_deinit(struct dlxd_registry *registry);

/* The place of the first topic whose name is not less than `name`; n_topics when there is none. */
size_t dlxd_registry_lower_bound(const struct dlxd_registry *registry, const char *name);
/* NULL when there is none of that name. */
struct dlxd_topic *dlxd_registry_find(const struct dlxd_registry *registry, const char *name);
/* Find it or make it. Returns 0, DLX_E_NO_MEMORY. */
int dlxd_registry_get(struct dlxd_registry *registry, const char *name, struct dlxd_topic **ret);
/*
 * The topics that match a pattern, in order: `*at` is 0 at first, and NULL is the end. Topics may neither come nor go
 * meanwhile. With `from`, those before that name are left out.
 */
struct dlxd_topic *dlxd_registry_next_match(const struct dlxd_registry *registry,
                                            const char *pattern, const char *from, size_t *at);
/* Free it when nobody is left. NULL is fine. */
void dlxd_registry_put(struct dlxd_registry *registry, struct dlxd_topic *topic);

#endif
