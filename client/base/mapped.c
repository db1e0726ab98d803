/* SPDX-License-Identifier: Apache-2.0 */
#include "client/base/mapped.h"
#include "client/base/fork.h"
#include "common/error.h"
#include "common/memory.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct dlx_mapped {
    pthread_mutex_t lock;
    uint64_t generation;
    size_t n_refs; /* its sources, and the client */
    struct dlx_mapped_source *sources;
    struct dlx_mapped_page page;
};

struct dlx_mapped *dlx__mapped_new(uint64_t generation)
{
    struct dlx_mapped *mapped = calloc(1, sizeof *mapped);
    if (!mapped)
        return NULL;
    pthread_mutex_init(&mapped->lock, NULL);
    mapped->generation = generation;
    mapped->n_refs = 1;
    return mapped;
}

/* Drops `n` references, unlocks, and frees `mapped` with the last one. */
static void unlock_and_put(struct dlx_mapped *mapped, size_t n)
{
    bool is_last = (mapped->n_refs -= n) == 0;
    pthread_mutex_unlock(&mapped->lock);
    if (!is_last)
        return;
    dlx__region_unmap(mapped->page.map, mapped->page.size);
    pthread_mutex_destroy(&mapped->lock);
    free(mapped);
}

struct dlx_mapped *dlx__mapped_unref(struct dlx_mapped *mapped)
{
    if (mapped) {
        pthread_mutex_lock(&mapped->lock);
        unlock_and_put(mapped, 1);
    }
    return NULL;
}

int dlx__mapped_source_new(struct dlx_mapped_source **ret, struct dlx_mapped *mapped,
                           uint64_t epoch, uint64_t publisher, const char *topic, bool is_publisher)
{
    size_t size = strlen(topic) + 1;
    struct dlx_mapped_source *source = calloc(1, sizeof *source + size);
    if (!source)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a list of memory of %s", topic);
    source->mapped = mapped;
    source->n_refs = 1;
    source->epoch = epoch;
    source->publisher = publisher;
    source->is_publisher = is_publisher;
    memcpy(source->topic, topic, size);
    pthread_mutex_lock(&mapped->lock);
    source->next = mapped->sources;
    source->at = &mapped->sources;
    if (source->next)
        source->next->at = &source->next;
    mapped->sources = source;
    mapped->n_refs++;
    pthread_mutex_unlock(&mapped->lock);
    *ret = source;
    return 0;
}

/* Unlocks. */
static void put_source(struct dlx_mapped_source *source)
{
    struct dlx_mapped *mapped = source->mapped;
    bool is_last = --source->n_refs == 0;
    if (is_last) {
        *source->at = source->next;
        if (source->next)
            source->next->at = source->at;
        free(source);
    }
    unlock_and_put(mapped, is_last);
}

struct dlx_mapped_source *dlx__mapped_source_unref(struct dlx_mapped_source *source)
{
    if (source) {
        pthread_mutex_lock(&source->mapped->lock);
        source->n_out = NULL;
        put_source(source);
    }
    return NULL;
}

int dlx__mapped_add(struct dlx_mapped_source *source, uint64_t number, const void *map,
                    uint64_t size, struct dlx_mapped_region **ret)
{
    *ret = NULL;
    if (!source)
        return 0;
    struct dlx_mapped_region *region = calloc(1, sizeof *region);
    if (!region)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a list of memory of %s",
                         source->topic);
    *region =
        (struct dlx_mapped_region){.source = source, .number = number, .map = map, .size = size};
    pthread_mutex_lock(&source->mapped->lock);
    region->next = source->regions;
    region->at = &source->regions;
    if (region->next)
        region->next->at = &region->next;
    source->regions = region;
    source->n_refs++;
    pthread_mutex_unlock(&source->mapped->lock);
    *ret = region;
    return 0;
}

void dlx__mapped_remove(struct dlx_mapped_region *region)
{
    if (!region)
        return;
    struct dlx_mapped_source *source = region->source;
    struct dlx_mapped *mapped = source->mapped;
    pthread_mutex_lock(&mapped->lock);
    /* A forked child has no mapping of the page. Several regions may share the last word. */
    if (region->word && !dlx__forked(mapped->generation)) {
        atomic_fetch_sub_explicit(region->word, region->size, memory_order_relaxed);
        if (--mapped->page.n_regions == 0) {
            dlx__region_unmap(mapped->page.map, mapped->page.size);
            mapped->page = (struct dlx_mapped_page){NULL, 0, 0};
        }
    }
    *region->at = region->next;
    if (region->next)
        region->next->at = region->at;
    free(region);
    put_source(source);
}

static struct dlx_mapped_region *find_control(const struct dlx_mapped *mapped, const void *map)
{
    for (struct dlx_mapped_source *source = mapped->sources; source; source = source->next)
        for (struct dlx_mapped_region *region = source->regions; region; region = region->next)
            if (region->map == map && region->number == 0)
                return region;
    return NULL;
}

void dlx__mapped_remove_control(struct dlx_mapped *mapped, const void *map)
{
    pthread_mutex_lock(&mapped->lock);
    struct dlx_mapped_region *region = find_control(mapped, map);
    pthread_mutex_unlock(&mapped->lock);
    dlx__mapped_remove(region); /* whose owner is the caller */
}

void dlx__mapped_source_left(struct dlx_mapped_source *source, uint64_t subscription,
                             const _Atomic uint64_t *n_out)
{
    if (!source)
        return;
    pthread_mutex_lock(&source->mapped->lock);
    source->subscription = subscription;
    source->n_out = n_out;
    pthread_mutex_unlock(&source->mapped->lock);
}

uint64_t dlx__mapped_n_out(struct dlx_mapped *mapped, uint64_t subscription)
{
    uint64_t n = 0;
    pthread_mutex_lock(&mapped->lock);
    for (const struct dlx_mapped_source *source = mapped->sources; source; source = source->next)
        if (source->n_out && source->subscription == subscription)
            n += atomic_load_explicit(source->n_out, memory_order_relaxed);
    pthread_mutex_unlock(&mapped->lock);
    return n;
}

struct dlx_mapped_source *dlx__mapped_lock(struct dlx_mapped *mapped)
{
    pthread_mutex_lock(&mapped->lock);
    return mapped->sources;
}

void dlx__mapped_unlock(struct dlx_mapped *mapped)
{
    pthread_mutex_unlock(&mapped->lock);
}

struct dlx_mapped_page dlx__mapped_set_page(struct dlx_mapped *mapped,
                                            struct dlx_mapped_page take_page)
{
    struct dlx_mapped_page before = mapped->page;
    mapped->page = take_page;
    return before;
}
