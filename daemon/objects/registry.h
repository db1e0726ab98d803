/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_REGISTRY_H
#define DLXD_REGISTRY_H

/*
 * What is there: topics by name, with their publishers and subscriptions, and every object by id.
 * No I/O here.
 */

#include "daemon/base/idmap.h"
#include "daemon/base/list.h"
#include "common/topic.h"

/* Exists while it has a publisher or a subscription. */
struct dlxd_topic {
    struct dlxd_list publishers;    /* in the order of their ids, those that are not ready too */
    struct dlxd_list subscriptions; /* likewise */
    char name[];
};

struct dlxd_registry {
    struct dlxd_topic **topics; /* sorted by strcmp(): found by bisection, listed page by page */
    size_t n_topics;
    size_t n_topics_max;          /* room in `topics` */
    struct dlxd_list patterns;    /* subscriptions to patterns: in no topic */
    struct dlxd_idmap publishers; /* that are not GONE */
    struct dlxd_idmap gone_publishers;
    struct dlxd_list gone; /* the same, in the order in which they went */
    uint64_t last_gone;
    struct dlxd_idmap subscriptions;
    struct dlxd_idmap links;
    size_t n_spares; /* of them */
    /* Ids are never used again until the machine restarts, by this daemon or another one. */
    uint64_t last_publisher;
    uint64_t last_subscription;
    uint64_t last_link;
    /*
     * Announcements of publishers are counted. A subscription is offered those before it by its own request, and those after
     * it by theirs: so each pair meets once, however many steps either takes.
     */
    uint64_t last_announcement;
    uint64_t n_left; /* subscriptions that have ended */
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
/* Where somebody is who looks at one topic after the other. Topics may come and go meanwhile. All zero: at the start. */
struct dlxd_topic_cursor {
    char after[DLX_TOPIC_SIZE_MAX + 1];
};
/* The next topic that begins as the pattern does, and so may match it. NULL is the end. */
struct dlxd_topic *dlxd_registry_next(const struct dlxd_registry *registry, const char *pattern,
                                      struct dlxd_topic_cursor *cursor);
/* Free it when nobody is left. NULL is fine. */
void dlxd_registry_put(struct dlxd_registry *registry, struct dlxd_topic *topic);

#endif
