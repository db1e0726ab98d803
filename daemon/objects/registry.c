/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/registry.h"
#include "common/error.h"
#include "common/topic.h"
#include "common/util.h"
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

void dlxd_registry_init(struct dlxd_registry *registry)
{
    /* The next daemon gives out other ids: it starts later, and no daemon gives out one each
     * microsecond. */
    uint64_t first = dlx__now_ns() / 1000;
    *registry = (struct dlxd_registry){
        .first_id = first, .last_publisher = first, .last_subscription = first, .last_link = first};
    dlxd_list_init(&registry->patterns);
    dlxd_list_init(&registry->gone);
    dlxd_idmap_init(&registry->publishers);
    dlxd_idmap_init(&registry->gone_publishers);
    dlxd_list_init(&registry->formers);
    dlxd_idmap_init(&registry->former_ids);
    dlxd_idmap_init(&registry->former_keys);
    if (getrandom(&registry->former_secret, sizeof registry->former_secret, GRND_NONBLOCK) < 0)
        registry->former_secret = first; /* early after boot */
    dlxd_idmap_init(&registry->clients);
    dlxd_idmap_init(&registry->subscriptions);
    dlxd_idmap_init(&registry->links);
    dlxd_idmap_init(&registry->drains);
}

void dlxd_registry_deinit(struct dlxd_registry *registry)
{
    assert(registry->n_topics == 0);
    dlxd_idmap_deinit(&registry->publishers);
    dlxd_idmap_deinit(&registry->gone_publishers);
    dlxd_idmap_deinit(&registry->former_ids);
    dlxd_idmap_deinit(&registry->former_keys);
    dlxd_idmap_deinit(&registry->clients);
    dlxd_idmap_deinit(&registry->subscriptions);
    dlxd_idmap_deinit(&registry->links);
    dlxd_idmap_deinit(&registry->drains);
    free(registry->topics);
    registry->topics = NULL;
}

size_t dlxd_registry_lower_bound(const struct dlxd_registry *registry, const char *name)
{
    size_t low = 0;
    size_t high = registry->n_topics;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(registry->topics[middle]->name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct dlxd_topic *dlxd_registry_find(const struct dlxd_registry *registry, const char *name)
{
    size_t i = dlxd_registry_lower_bound(registry, name);
    if (i == registry->n_topics || strcmp(registry->topics[i]->name, name) != 0)
        return NULL;
    return registry->topics[i];
}

struct dlxd_topic *dlxd_registry_next(const struct dlxd_registry *registry, const char *pattern,
                                      struct dlxd_topic_cursor *cursor)
{
    char first[DLX_TOPIC_SIZE_MAX + 1];
    size_t size = dlx__pattern_prefix(pattern);
    memcpy(first, pattern, size);
    first[size] = '\0';
    bool begins = strcmp(cursor->after, first) < 0;
    size_t at = dlxd_registry_lower_bound(registry, begins ? first : cursor->after);
    if (!begins && at < registry->n_topics &&
        strcmp(registry->topics[at]->name, cursor->after) == 0)
        at++;
    if (at == registry->n_topics)
        return NULL;
    struct dlxd_topic *topic = registry->topics[at];
    /* A name without a star matches only the topic of exactly that name. */
    if (strncmp(topic->name, pattern, size + (pattern[size] == '\0')) != 0)
        return NULL;
    (void)snprintf(cursor->after, sizeof cursor->after, "%s", topic->name);
    return topic;
}

static int reserve_one(struct dlxd_registry *registry)
{
    if (registry->n_topics < registry->n_topics_max)
        return 0;
    size_t n = registry->n_topics_max ? registry->n_topics_max * 2 : 16;
    struct dlxd_topic **topics = reallocarray(registry->topics, n, sizeof(*topics));
    if (!topics)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for %zu topics", n);
    registry->topics = topics;
    registry->n_topics_max = n;
    return 0;
}

int dlxd_registry_get(struct dlxd_registry *registry, const char *name, struct dlxd_topic **ret)
{
    size_t i = dlxd_registry_lower_bound(registry, name);
    if (i < registry->n_topics && strcmp(registry->topics[i]->name, name) == 0) {
        *ret = registry->topics[i];
        return 0;
    }
    int r = reserve_one(registry);
    if (r < 0)
        return r;
    size_t size = strlen(name) + 1;
    struct dlxd_topic *topic = malloc(sizeof *topic + size);
    if (!topic)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for topic %s", name);
    memcpy(topic->name, name, size);
    dlxd_list_init(&topic->publishers);
    dlxd_list_init(&topic->subscriptions);
    memmove(registry->topics + i + 1, registry->topics + i,
            (registry->n_topics - i) * sizeof(struct dlxd_topic *));
    registry->topics[i] = topic;
    registry->n_topics++;
    *ret = topic;
    return 0;
}

void dlxd_registry_put(struct dlxd_registry *registry, struct dlxd_topic *topic)
{
    if (!topic || !dlxd_list_empty(&topic->publishers) || !dlxd_list_empty(&topic->subscriptions))
        return;
    size_t i = dlxd_registry_lower_bound(registry, topic->name);
    assert(i < registry->n_topics && registry->topics[i] == topic);
    registry->n_topics--;
    memmove(registry->topics + i, registry->topics + i + 1,
            (registry->n_topics - i) * sizeof(struct dlxd_topic *));
    free(topic);
    size_t n = registry->n_topics_max / 2;
    struct dlxd_topic **topics = n > 16 && registry->n_topics < n / 2
                                     ? reallocarray(registry->topics, n, sizeof(*topics))
                                     : NULL;
    if (topics) {
        registry->topics = topics;
        registry->n_topics_max = n;
    }
}
