/* SPDX-License-Identifier: Apache-2.0 */

/* The arenas of a heap: how they come, are set aside, and go. */

#include "client/base/mapped.h"
#include "client/heap/heap_state.h"

void dlx__heap_free_arena(const struct dlx_heap *heap, struct dlx_arena *arena)
{
    heap->kind.free_arena(&heap->kind, arena);
    dlx__mapped_remove(arena->mapped);
    free(arena->extents);
    free(arena);
}

void dlx__heap_free_arenas(const struct dlx_heap *heap, struct dlx_arena *first)
{
    while (first) {
        struct dlx_arena *arena = first;
        first = arena->next;
        dlx__heap_free_arena(heap, arena);
    }
}

bool dlx__heap_has(const struct dlx_heap *heap, const void *data)
{
    for (const struct dlx_arena *arena = heap->arenas; arena; arena = arena->next)
        if ((uintptr_t)data - (uintptr_t)arena->map < arena->size)
            return true;
    return false;
}

void dlx__heap_stay(struct dlx_heap *heap)
{
    heap->is_leaving = false;
    for (struct dlx_arena *arena = heap->arenas; arena; arena = arena->next)
        arena->state = DLX_ARENA_USED;
}

bool dlx__heap_put_anywhere(struct dlx_heap *heap, bool anywhere)
{
    bool before = heap->anywhere;
    heap->anywhere = anywhere;
    return before;
}

bool dlx__heap_is_large(const struct dlx_heap *heap, uint64_t size)
{
    struct dlx_arena_policy fit = dlx__heap_fit(heap);
    uint64_t rounded;
    return dlx__heap_round(heap, size, &rounded) && dlx__arena_policy_is_large(&fit, rounded);
}

uint64_t dlx__heap_growth(const struct dlx_heap *heap, uint64_t size)
{
    struct dlx_arena_policy fit = dlx__heap_fit(heap);
    uint64_t rounded;
    if (!dlx__heap_round(heap, size, &rounded) || /* as it will be taken */
        !dlx__align_up(dlx__arena_policy_growth(&fit, rounded), DLX_MAX(heap->kind.align, DLX_PAGE),
                       &rounded) ||
        rounded > DLX_SHM_ARENA_MAX)
        return UINT64_MAX;
    return rounded;
}

struct dlx_mapped_source *dlx__heap_note_in(struct dlx_heap *heap, struct dlx_mapped_source *source)
{
    struct dlx_mapped_source *before = heap->borrow_source;
    heap->borrow_source = source;
    return before;
}

int dlx__heap_add_of(struct dlx_heap *heap, uint32_t id, void *map, uint64_t size, void *owner)
{
    struct dlx_arena *arena = calloc(1, sizeof *arena);
    if (!arena || !dlx__extents_reserve(arena, 8)) {
        free(arena);
        return dlx__fail(DLX_E_NO_MEMORY, "state of an arena");
    }
    int r = dlx__mapped_add(heap->borrow_source, id, map, size, &arena->mapped);
    if (r < 0) {
        free(arena->extents);
        free(arena);
        return r;
    }
    arena->id = id;
    arena->map = map;
    arena->owner = owner;
    arena->size = size;
    arena->free_bytes = size;
    arena->extents[0] = (struct dlx_extent){0, size};
    arena->n_extents = 1;
    struct dlx_arena **at = &heap->arenas;
    while (*at)
        at = &(*at)->next;
    *at = arena;
    heap->n_arenas++;
    heap->bytes += size;
    heap->leave_for -= DLX_MIN(heap->leave_for, size);
    return 0;
}

void dlx__heap_set_aside(struct dlx_heap *heap, struct dlx_heap_aside *ret)
{
    dlx__heap_collect(heap);
    (void)dlx__heap_empty_payload_cache(heap);
    heap->is_leaving = false;
    *ret = (struct dlx_heap_aside){heap->arenas, heap->n_arenas, heap->bytes};
    for (struct dlx_arena *arena = ret->arenas; arena; arena = arena->next)
        arena->state = DLX_ARENA_ASIDE;
    heap->arenas = NULL;
    heap->n_arenas = 0;
    heap->bytes = 0;
}

void dlx__heap_bring_back(struct dlx_heap *heap, struct dlx_heap_aside *aside)
{
    (void)dlx__heap_empty_payload_cache(heap);
    dlx__heap_free_arenas(heap, heap->arenas);
    heap->arenas = aside->arenas;
    heap->n_arenas = aside->n_arenas;
    heap->bytes = aside->bytes;
    for (struct dlx_arena *arena = heap->arenas; arena; arena = arena->next)
        arena->state = DLX_ARENA_USED;
    dlx__heap_retry_stuck(heap);
}

void dlx__heap_freeze(struct dlx_heap *heap, struct dlx_heap_aside *aside)
{
    while (aside->arenas) {
        struct dlx_arena *arena = aside->arenas;
        aside->arenas = arena->next;
        if (arena->n_blocks == 0) {
            dlx__heap_free_arena(heap, arena);
            continue;
        }
        arena->id = 0;
        arena->state = DLX_ARENA_FROZEN;
        arena->next = heap->frozen;
        heap->frozen = arena;
    }
    dlx__heap_retry_stuck(heap);
}

static uint32_t drop(struct dlx_heap *heap, struct dlx_arena **at)
{
    struct dlx_arena *arena = *at;
    uint32_t id = arena->id;
    *at = arena->next;
    heap->n_arenas--;
    heap->bytes -= arena->size;
    dlx__heap_free_arena(heap, arena);
    return id;
}

/* Fewer bytes than this are kept for the next message, whatever it is. */
#define TRIM_LEAST (UINT64_C(1) << 20)
/* More empty memory than this share of what is in use, and so many bytes, are too much. */
#define SLACK_SHARE 4U
#define SLACK_BYTES (UINT64_C(32) << 20)

uint64_t dlx__heap_trim(struct dlx_heap *heap, bool all)
{
    dlx__payload_cache_trim(&heap->cache, &heap->pool, all ? 0 : TRIM_LEAST);
    return dlx__heap_excess(heap, all);
}

uint64_t dlx__heap_excess(const struct dlx_heap *heap, bool all)
{
    uint64_t used = 0;
    for (const struct dlx_arena *arena = heap->arenas; arena; arena = arena->next)
        used += arena->size - arena->free_bytes;
    uint64_t most = all ? used : used + used / SLACK_SHARE + SLACK_BYTES;
    return heap->bytes - DLX_MIN(heap->bytes, most);
}

uint32_t dlx__heap_drop_excess(struct dlx_heap *heap, uint64_t size, uint64_t now, uint64_t window)
{
    struct dlx_arena_policy fit = dlx__heap_fit(heap);
    if (!dlx__arena_policy_is_excess(&fit, size, &heap->peak, now, window))
        return 0;
    return dlx__heap_drop_empty(heap);
}

uint32_t dlx__heap_drop_empty(struct dlx_heap *heap)
{
    (void)dlx__heap_empty_payload_cache(heap);
    for (struct dlx_arena **at = &heap->arenas; *at; at = &(*at)->next)
        if ((*at)->n_blocks == 0)
            return drop(heap, at);
    return 0;
}

uint32_t dlx__heap_find_empty(const struct dlx_heap *heap, uint64_t excess, uint64_t *ret_size)
{
    const struct dlx_arena *least = NULL;
    for (const struct dlx_arena *arena = heap->arenas; arena && excess > 0; arena = arena->next)
        if (arena->n_blocks == 0 && (!least || arena->size < least->size)) {
            least = arena;
            if (arena->size <= excess)
                break;
        }
    if (!least || heap->n_arenas <= 1)
        return 0;
    *ret_size = least->size;
    return least->id;
}

/* An arena leaves if at most this share of it is used, for at most that share of what is free in
 * new arenas. */
#define LEAVE_USED 4U
#define LEAVE_NEW  2U

void dlx__heap_vacate(struct dlx_heap *heap)
{
    bool excess = dlx__heap_excess(heap, false) > 0;
    if (heap->is_leaving == excess)
        return;
    dlx__heap_stay(heap);
    heap->leave_for = 0;
    for (struct dlx_arena *arena = heap->arenas; arena && excess; arena = arena->next)
        if (arena->size - arena->free_bytes <= arena->size / LEAVE_USED) {
            arena->state = DLX_ARENA_LEAVING;
            heap->is_leaving = true;
            heap->leave_for += arena->free_bytes / LEAVE_NEW;
        }
    if (heap->is_leaving)
        (void)dlx__heap_empty_payload_cache(heap);
}

void dlx__heap_drop(struct dlx_heap *heap, uint32_t id)
{
    struct dlx_arena **at = &heap->arenas;
    while ((*at)->id != id)
        at = &(*at)->next;
    (void)drop(heap, at);
}

uint64_t dlx__heap_n_deleted_again(const struct dlx_heap *heap)
{
    return atomic_load_explicit(&heap->n_deleted_again, memory_order_relaxed);
}

uint64_t dlx__heap_bytes(const struct dlx_heap *heap)
{
    return heap->bytes;
}

uint32_t dlx__heap_n_arenas(const struct dlx_heap *heap)
{
    return heap->n_arenas;
}
