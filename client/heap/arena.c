/* SPDX-License-Identifier: Apache-2.0 */
#include "client/heap/arena.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- free pieces ----------------------------------------------------------------------------- */

bool dlx__extents_reserve(struct dlx_arena *arena, uint32_t n)
{
    if (n <= arena->extents_room)
        return true;
    uint32_t room = DLX_MAX(n, arena->extents_room * 2);
    struct dlx_extent *extents = realloc(arena->extents, room * sizeof *extents);
    if (!extents)
        return false;
    arena->extents = extents;
    arena->extents_room = room;
    return true;
}

void dlx__extents_remove(struct dlx_arena *arena, uint32_t i)
{
    arena->n_extents--;
    memmove(&arena->extents[i], &arena->extents[i + 1],
            (arena->n_extents - i) * sizeof *arena->extents);
}

void dlx__extents_give(struct dlx_arena *arena, uint64_t offset, uint64_t size)
{
    uint32_t low = 0, high = arena->n_extents;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (arena->extents[middle].offset < offset)
            low = middle + 1;
        else
            high = middle;
    }
    struct dlx_extent *after = low < arena->n_extents ? &arena->extents[low] : NULL;
    struct dlx_extent *before = low > 0 ? &arena->extents[low - 1] : NULL;
    bool joins_after = after && offset + size == after->offset;
    bool joins_before = before && before->offset + before->size == offset;
    arena->free_bytes += size;
    if (joins_before && joins_after) {
        before->size += size + after->size;
        dlx__extents_remove(arena, low);
    } else if (joins_before) {
        before->size += size;
    } else if (joins_after) {
        after->offset = offset;
        after->size += size;
    } else {
        assert(arena->n_extents < arena->extents_room); /* reserved when the block was taken */
        memmove(&arena->extents[low + 1], &arena->extents[low],
                (arena->n_extents - low) * sizeof *arena->extents);
        arena->extents[low] = (struct dlx_extent){offset, size};
        arena->n_extents++;
    }
}

void dlx__extents_give_all(struct dlx_arena *arena)
{
    arena->extents[0] = (struct dlx_extent){0, arena->size};
    arena->n_extents = 1;
    arena->free_bytes = arena->size;
}

/* ---- which arena ----------------------------------------------------------------------------- */

/* Arenas of small blocks: twice as much as there is while that is little, then a quarter more. */
#define DOUBLING_MAX (UINT64_C(512) << 10)
#define GROWTH_SHARE 4U
#define GROWTH_MAX   (UINT64_C(64) << 20)

/* A block is large from LARGE_MIN on, and from a LARGE_SHARE of the heap on: there are few of
 * them then, and a call to the daemon, a descriptor there and a mapping in each reader are
 * little beside one. */
#define LARGE_SHARE 512U
#define LARGE_MIN   (UINT64_C(1) << 20)
/* With so many arenas no block is: each of them costs the daemon a descriptor, and every reader a
 * mapping and a packet. */
#define LARGE_ARENAS_MAX 256U

/* A large block may leave so much of its arena unused. */
#define WASTE_SHARE 4U

/* So much may be there besides what was needed lately, for what comes next. */
#define SLACK_SHARE 32U
#define SLACK_MIN   (UINT64_C(32) << 20)

static uint64_t large_from(const struct dlx_arena_policy *policy)
{
    return policy->n_arenas >= LARGE_ARENAS_MAX ? UINT64_MAX
                                                : DLX_MAX(LARGE_MIN, policy->bytes / LARGE_SHARE);
}

bool dlx__arena_policy_is_large(const struct dlx_arena_policy *policy, uint64_t size)
{
    return !policy->anywhere && size >= large_from(policy);
}

static uint64_t step_for_small(const struct dlx_arena_policy *policy)
{
    uint64_t bytes = 0;
    for (const struct dlx_arena *arena = policy->arenas; arena; arena = arena->next)
        if (arena->n_blocks == 0 || !arena->has_large)
            bytes += arena->size;
    return bytes < DOUBLING_MAX ? bytes : DLX_MIN(bytes / GROWTH_SHARE, GROWTH_MAX);
}

uint64_t dlx__arena_policy_growth(const struct dlx_arena_policy *policy, uint64_t size)
{
    uint64_t step = dlx__arena_policy_is_large(policy, size) ? 0 : step_for_small(policy);
    return DLX_MAX(DLX_MAX(size, step), policy->least);
}

/* `most`: of an empty arena that small blocks may begin to share. A new one would leave less than
 * `unit` bytes unused, too. */
static bool suits(const struct dlx_arena *arena, uint64_t size, bool large, uint64_t unit,
                  uint64_t most)
{
    if (arena->n_blocks > 0)
        return !large && !arena->has_large;
    uint64_t unused = arena->size - size;
    return unused <= size / WASTE_SHARE || unused < unit || (!large && arena->size <= most);
}

/* The smallest piece that fits: what is left over is small, or stays large. */
struct dlx_arena *dlx__arena_policy_find(const struct dlx_arena_policy *policy, uint64_t size,
                                         uint32_t *ret_extent)
{
    struct dlx_arena *best = NULL;
    uint64_t best_size = UINT64_MAX;
    bool large = dlx__arena_policy_is_large(policy, size);
    /* Small blocks may also begin in an empty arena of the size that an arena for small blocks
     * gets. */
    uint64_t shared = DLX_MAX(DLX_MAX(large_from(policy), step_for_small(policy)), policy->least);
    uint64_t most = large ? 0 : shared;
    for (struct dlx_arena *arena = policy->arenas; arena; arena = arena->next) {
        if (arena->free_bytes < size ||
            (!policy->anywhere &&
             (arena->state == DLX_ARENA_LEAVING || !suits(arena, size, large, policy->unit, most))))
            continue;
        for (uint32_t i = 0; i < arena->n_extents; i++) {
            uint64_t have = arena->extents[i].size;
            if (have >= size && have < best_size) {
                best = arena;
                best_size = have;
                *ret_extent = i;
                if (have == size)
                    return best;
            }
        }
    }
    return best;
}

bool dlx__arena_policy_is_excess(const struct dlx_arena_policy *policy, uint64_t size,
                                 struct dlx_arena_policy_peak *peak, uint64_t now, uint64_t window)
{
    uint64_t needed = size;
    for (const struct dlx_arena *arena = policy->arenas; arena; arena = arena->next)
        needed += arena->size - arena->free_bytes;
    if (now - peak->since >= window) {
        bool just_before = now - peak->since < 2 * window;
        peak->bytes_before = just_before ? peak->bytes : 0;
        peak->bytes = 0;
        peak->since = now;
    }
    peak->bytes = DLX_MAX(peak->bytes, needed);
    uint64_t most = DLX_MAX(peak->bytes, peak->bytes_before);
    return policy->bytes + size > most + DLX_MAX(most / SLACK_SHARE, SLACK_MIN);
}
