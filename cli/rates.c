/* SPDX-License-Identifier: Apache-2.0 */

/* A struct rate for each topic of a pattern. */

#include "cli/rates.h"
#include <dlx/error.h>
#include <stdlib.h>
#include <string.h>

struct rates {
    struct rates_entry *entries; /* by topic */
    size_t n, n_allocated;
    size_t window;
};

int rates_new(struct rates **ret, size_t window)
{
    struct rates *r = calloc(1, sizeof *r);
    if (!r)
        return DLX_E_NO_MEMORY;
    r->window = window;
    *ret = r;
    return 0;
}

static void entry_deinit(struct rates_entry *e)
{
    free((void *)(uintptr_t)e->topic); /* const only for readers */
    rate_free(e->rate);
}

struct rates *rates_free(struct rates *r)
{
    if (!r)
        return NULL;
    for (size_t i = 0; i < r->n; i++)
        entry_deinit(&r->entries[i]);
    free(r->entries);
    free(r);
    return NULL;
}

/* Where the topic is, or where it belongs. */
static size_t find(const struct rates *r, const char *topic)
{
    size_t low = 0, high = r->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(r->entries[middle].topic, topic) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct rates_entry *rates_of(struct rates *r, const char *topic)
{
    size_t i = find(r, topic);
    if (i < r->n && strcmp(r->entries[i].topic, topic) == 0)
        return &r->entries[i];
    if (r->n == r->n_allocated) {
        size_t n = r->n_allocated ? r->n_allocated * 2 : 16;
        struct rates_entry *entries = reallocarray(r->entries, n, sizeof *entries);
        if (!entries)
            return NULL;
        r->entries = entries;
        r->n_allocated = n;
    }
    struct rates_entry e = {.topic = strdup(topic)};
    if (!e.topic || rate_new(&e.rate, r->window) < 0) {
        entry_deinit(&e);
        return NULL;
    }
    memmove(&r->entries[i + 1], &r->entries[i], (r->n - i) * sizeof *r->entries);
    r->entries[i] = e;
    r->n++;
    return &r->entries[i];
}

size_t rates_count(const struct rates *r)
{
    return r->n;
}

const struct rates_entry *rates_at(const struct rates *r, size_t i)
{
    return &r->entries[i];
}
