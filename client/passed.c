/* SPDX-License-Identifier: Apache-2.0 */
#include "client/passed.h"
#include "common/util.h"

void dlx__passed_deinit(struct dlx_passed *passed)
{
    free(passed->entries);
    *passed = (struct dlx_passed){.n = 0};
}

static uint32_t n_there(const struct dlx_passed *passed)
{
    return (uint32_t)DLX_MIN(passed->n, DLX_PASSED_MAX);
}

/* NULL: it is not remembered. */
static struct dlx_passed_entry *passed_entry(const struct dlx_passed *passed, uint64_t origin)
{
    for (uint32_t i = 0; i < n_there(passed); i++)
        if (passed->entries[i].origin == origin)
            return &passed->entries[i];
    return NULL;
}

void dlx__passed_add(struct dlx_passed *passed, uint64_t origin, uint64_t seq, uint64_t untold)
{
    if (!passed->entries)
        passed->entries = calloc(DLX_PASSED_MAX, sizeof *passed->entries);
    if (!passed->entries)
        return;
    struct dlx_passed_entry *entry = passed_entry(passed, origin);
    if (!entry) {
        entry = &passed->entries[passed->n++ % DLX_PASSED_MAX];
        *entry = (struct dlx_passed_entry){.origin = origin};
    }
    if (seq >= entry->seq) {
        entry->seq = seq;
        entry->untold = untold;
    }
}

void dlx__passed_count(struct dlx_passed *passed, uint64_t origin,
                       const struct dlx_passed_counts *counts)
{
    struct dlx_passed_entry *entry = passed_entry(passed, origin);
    if (!entry)
        return;
    entry->counts.taken += counts->taken;
    entry->counts.taken_bytes += counts->taken_bytes;
    entry->counts.skipped += counts->skipped;
    entry->counts.lost += counts->lost;
}

struct dlx_passed_counts dlx__passed_take_counts(struct dlx_passed *passed, uint64_t origin)
{
    struct dlx_passed_counts counts = {0};
    struct dlx_passed_entry *entry = passed_entry(passed, origin);
    if (entry) {
        counts = entry->counts;
        entry->counts = (struct dlx_passed_counts){0};
    }
    return counts;
}

struct dlx_passed_entry dlx__passed_find(const struct dlx_passed *passed, uint64_t origin)
{
    const struct dlx_passed_entry *entry = passed_entry(passed, origin);
    return entry ? *entry : (struct dlx_passed_entry){0};
}
