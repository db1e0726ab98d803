/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_REGISTRY_H
#define DLXD_REGISTRY_H

/* All objects: topics by name, with their publishers and subscriptions, and every object by id. No
 * I/O here. */

#include "daemon/base/idmap.h"
#include "daemon/base/list.h"
#include "common/topic.h"

/* Exists while it has a publisher or a subscription. */
struct dlxd_topic {
    struct dlxd_list publishers;    /* by id, including publishers that are not ready */
    struct dlxd_list subscriptions; /* by id */
    char name[];
};

struct dlxd_registry {
    struct dlxd_topic **topics; /* sorted by strcmp(), for bisection and for lists in pages */
    size_t n_topics;
    size_t n_topics_max;          /* capacity of `topics` */
    struct dlxd_list patterns;    /* subscriptions to patterns: in no topic */
    struct dlxd_idmap publishers; /* those that are not GONE */
    struct dlxd_idmap gone_publishers;
    struct dlxd_list gone; /* the same, in the order in which they went */
    uint64_t last_gone;
    struct dlxd_list formers;     /* what clients keep of former daemons, likewise: former.h */
    struct dlxd_idmap former_ids; /* by id */
    struct dlxd_idmap former_keys;
    uint64_t former_secret; /* clients must not be able to aim at one bucket */
    size_t n_former_pages;
    uint64_t last_former_source;
    struct dlxd_idmap clients;
    struct dlxd_idmap subscriptions;
    struct dlxd_idmap links;
    struct dlxd_idmap drains; /* links that have ended, and whose subscribers hold messages */
    size_t n_spares;          /* spare links */
    /* Neither this daemon nor a later one reuses an id before the machine restarts. */
    uint64_t first_id; /* ids of this daemon's are above it */
    uint64_t last_publisher;
    uint64_t last_subscription;
    uint64_t last_link;
    /* Announcements of publishers are counted. A subscription finds earlier publishers by its own
     * request, and is found by later ones. So each pair meets exactly once, however many steps
     * either side takes. */
    uint64_t last_announcement;
    uint64_t n_left; /* subscriptions that have ended */
};

void dlxd_registry_init(struct dlxd_registry *registry);
/* Every object must be gone. */
void dlxd_registry_deinit(struct dlxd_registry *registry);

/* The index of the first topic whose name is not less than `name`; n_topics if there is none. */
size_t dlxd_registry_lower_bound(const struct dlxd_registry *registry, const char *name);
/* Returns NULL if there is none with that name. */
struct dlxd_topic *dlxd_registry_find(const struct dlxd_registry *registry, const char *name);
/* Finds or makes the topic. Returns 0, DLX_E_NO_MEMORY. */
int dlxd_registry_get(struct dlxd_registry *registry, const char *name, struct dlxd_topic **ret);
/* A position in an iteration over topics, which may come and go in between. All zero: the start. */
struct dlxd_topic_cursor {
    char after[DLX_TOPIC_SIZE_MAX + 1];
};
/* Returns the next topic that starts with the prefix of the pattern, so that it may match. NULL:
 * the end. */
struct dlxd_topic *dlxd_registry_next(const struct dlxd_registry *registry, const char *pattern,
                                      struct dlxd_topic_cursor *cursor);
/* Frees the topic if it has no publisher and no subscription. Accepts NULL. */
void dlxd_registry_put(struct dlxd_registry *registry, struct dlxd_topic *topic);

#endif
