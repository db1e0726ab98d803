/* SPDX-License-Identifier: Apache-2.0 */
#include "client/subscribe/resume_positions.h"
#include "common/util.h"

void dlx__resume_positions_deinit(struct dlx_resume_positions *positions)
{
    free(positions->entries);
    *positions = (struct dlx_resume_positions){.n = 0};
}

static uint32_t n_there(const struct dlx_resume_positions *positions)
{
    return (uint32_t)DLX_MIN(positions->n, DLX_RESUME_POSITIONS_MAX);
}

/* NULL: it is not remembered. */
static struct dlx_resume_position *passed_entry(const struct dlx_resume_positions *positions,
                                                uint64_t origin)
{
    for (uint32_t i = 0; i < n_there(positions); i++)
        if (positions->entries[i].origin == origin)
            return &positions->entries[i];
    return NULL;
}

void dlx__resume_positions_add(struct dlx_resume_positions *positions, uint64_t origin,
                               uint64_t seq, uint64_t untold)
{
    if (!positions->entries)
        positions->entries = calloc(DLX_RESUME_POSITIONS_MAX, sizeof *positions->entries);
    if (!positions->entries)
        return;
    struct dlx_resume_position *entry = passed_entry(positions, origin);
    if (!entry) {
        entry = &positions->entries[positions->n++ % DLX_RESUME_POSITIONS_MAX];
        *entry = (struct dlx_resume_position){.origin = origin};
    }
    if (seq >= entry->seq) {
        entry->seq = seq;
        entry->untold = untold;
    }
}

void dlx__resume_positions_count(struct dlx_resume_positions *positions, uint64_t origin,
                                 const struct dlx_resume_counts *counts)
{
    struct dlx_resume_position *entry = passed_entry(positions, origin);
    if (!entry)
        return;
    entry->counts.taken += counts->taken;
    entry->counts.taken_bytes += counts->taken_bytes;
    entry->counts.skipped += counts->skipped;
    entry->counts.lost += counts->lost;
}

struct dlx_resume_counts dlx__resume_positions_take_counts(struct dlx_resume_positions *positions,
                                                           uint64_t origin)
{
    struct dlx_resume_counts counts = {0};
    struct dlx_resume_position *entry = passed_entry(positions, origin);
    if (entry) {
        counts = entry->counts;
        entry->counts = (struct dlx_resume_counts){0};
    }
    return counts;
}

struct dlx_resume_position dlx__resume_positions_find(const struct dlx_resume_positions *positions,
                                                      uint64_t origin)
{
    const struct dlx_resume_position *entry = passed_entry(positions, origin);
    return entry ? *entry : (struct dlx_resume_position){0};
}
