/* SPDX-License-Identifier: Apache-2.0 */
#include "client/heap/extents.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

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
