/* SPDX-License-Identifier: Apache-2.0 */
#include "client/debug.h"
#include "client/fit.h"
#include "client/spares.h"
#include "common/memory.h"
#include <inttypes.h>
#include <string.h>

struct dlx_heap {
    struct dlx_heap_hints hints;
    uint64_t generation;
    uint64_t align; /* of blocks, and of their sizes */
    bool is_guarded;
    bool anywhere; /* see dlx__heap_put_anywhere() */
    struct dlx_arena *arenas;
    struct dlx_arena *frozen; /* see dlx__heap_freeze() */
    uint32_t n_arenas;
    uint64_t bytes;
    bool is_leaving;        /* arenas are */
    uint64_t leave_for;     /* bytes of new arenas that this is still worth */
    struct dlx_block *pool; /* block structs without memory */
    struct dlx_spares spares;
    struct dlx_block *stuck; /* came back, but cannot be used yet */
    struct dlx_fit_peak peak;

    /* Once the publisher has gone: local blocks that are left. */
    _Atomic uint64_t n_orphans;
    _Atomic uint64_t n_deleted_again;
};

static struct dlx_block closed_stack;

int dlx__heap_new(struct dlx_heap **ret, uint64_t generation, bool is_guarded)
{
    struct dlx_heap *heap = calloc(1, sizeof *heap);
    if (!heap)
        return dlx__fail(DLX_E_NO_MEMORY, "state of a publisher's memory");
    heap->hints.last = &heap->spares.all[0];
    heap->generation = generation;
    heap->is_guarded = is_guarded;
    heap->align = heap->is_guarded ? dlx__debug_align() : DLX_SHM_ALIGN;
    *ret = heap;
    return 0;
}

static void free_block(struct dlx_block *block)
{
    if (block->dims != block->inline_dims)
        free(block->dims);
    free(block);
}

static void free_blocks(struct dlx_block *block)
{
    while (block) {
        struct dlx_block *next = block->next;
        free_block(block);
        block = next;
    }
}

static void free_arena(struct dlx_arena *arena)
{
    dlx__region_unmap(arena->map, arena->size);
    free(arena->extents);
    free(arena);
}

static void free_arenas(struct dlx_arena *first)
{
    while (first) {
        struct dlx_arena *arena = first;
        first = arena->next;
        free_arena(arena);
    }
}

static void heap_free(struct dlx_heap *heap)
{
    free_blocks(heap->pool);
    free_blocks(heap->stuck);
    for (uint32_t i = 0; i < DLX_N_SPARES; i++)
        free_blocks(heap->spares.all[i].first);
    free_arenas(heap->arenas);
    free_arenas(heap->frozen);
    free(heap);
}

void dlx__heap_close(struct dlx_heap *heap)
{
    if (!heap)
        return;
    for (;;) {
        dlx__heap_collect(heap);
        if (heap->hints.n_local == 0)
            break;
        struct dlx_block *empty = NULL;
        atomic_store_explicit(&heap->n_orphans, heap->hints.n_local, memory_order_relaxed);
        /* From here on the last of them frees the heap. */
        if (atomic_compare_exchange_strong_explicit(&heap->hints.returned, &empty, &closed_stack,
                                                    memory_order_acq_rel, memory_order_relaxed))
            return;
    }
    heap_free(heap);
}

/* ---- blocks -------------------------------------------------------------------------------- */

/* Blocks that keep their memory give it up: their structs go into the pool. Were there any? */
static bool give_up_all_spares(struct dlx_heap *heap)
{
    return dlx__spares_give_up(&heap->spares, &heap->pool);
}

static int new_block(struct dlx_heap *heap, struct dlx_block **ret)
{
    struct dlx_block *block = heap->pool;
    if (block) {
        heap->pool = block->next;
    } else {
        block = aligned_alloc(_Alignof(struct dlx_block), sizeof *block);
        if (!block)
            return dlx__fail(DLX_E_NO_MEMORY, "state of a tensor");
        block->dims = block->inline_dims;
        block->dims_room = DLX_SHM_NDIM_ENTRY;
        block->heap = heap;
        block->ahead = NULL;
        block->set = 0;
        block->is_guarded = heap->is_guarded;
        block->is_protected = false;
        block->n_refs = 0;
        block->of = NULL;
        atomic_init(&block->at_caller, false);
    }
    block->next = NULL;
    block->arena = NULL;
    block->offset = 0;
    block->size = 0;
    block->made = (DLTensor){.ndim = -1};
    block->has_words = false;
    *ret = block;
    return 0;
}

static void retry_stuck(struct dlx_heap *heap)
{
    struct dlx_block *block = heap->stuck;
    heap->stuck = NULL;
    while (block) {
        struct dlx_block *next = block->next;
        dlx__heap_give(heap, block);
        block = next;
    }
}

/* ---- take and give ------------------------------------------------------------------------- */

bool dlx__heap_round(const struct dlx_heap *heap, uint64_t size, uint64_t *ret)
{
    return dlx__align_up(size, heap->align, ret);
}

static struct dlx_fit fit_of(const struct dlx_heap *heap)
{
    return (struct dlx_fit){
        .arenas = heap->arenas,
        .n_arenas = heap->n_arenas,
        .bytes = heap->bytes,
        /* In the debug mode small blocks are larger, but not fewer: what a stream does without more memory it does
         * there, too. */
        .least = DLX_FIT_ARENA_MIN / DLX_SHM_ALIGN * heap->align,
        .anywhere = heap->anywhere,
    };
}

/* From extent i of the arena; NULL: a block of 0 bytes. */
static int carve_from(struct dlx_heap *heap, struct dlx_arena *arena, uint32_t i, uint64_t size,
                      struct dlx_block **ret)
{
    struct dlx_fit fit = fit_of(heap);
    /* n blocks leave at most n + 1 extents between them: with room for those, giving a block
     * back never needs memory. */
    if (arena && !dlx__extents_reserve(arena, arena->n_blocks + 2))
        return dlx__fail(DLX_E_NO_MEMORY, "state of an arena");
    int r = new_block(heap, ret);
    if (r < 0 || !arena)
        return r;
    struct dlx_extent *extent = &arena->extents[i];
    (*ret)->arena = arena;
    (*ret)->offset = extent->offset;
    (*ret)->size = size;
    extent->offset += size;
    extent->size -= size;
    if (extent->size == 0)
        dlx__extents_remove(arena, i);
    arena->free_bytes -= size;
    if (arena->n_blocks++ == 0)
        arena->has_large = dlx__fit_is_large(&fit, size);
    return 0;
}

/* Arenas that were to leave are used again. */
static void stay(struct dlx_heap *heap)
{
    heap->is_leaving = false;
    for (struct dlx_arena *arena = heap->arenas; arena; arena = arena->next)
        arena->state = DLX_ARENA_USED;
}

static int carve(struct dlx_heap *heap, uint64_t size, struct dlx_block **ret)
{
    uint32_t i = 0;
    struct dlx_arena *arena = NULL;
    struct dlx_fit fit = fit_of(heap);
    if (size > 0) {
        arena = dlx__fit_find(&fit, size, &i);
        if (!arena) {
            retry_stuck(heap);
            if (give_up_all_spares(heap))
                arena = dlx__fit_find(&fit, size, &i);
        }
        if (!arena && heap->is_leaving && dlx__heap_growth(heap, size) > heap->leave_for) {
            stay(heap);
            arena = dlx__fit_find(&fit, size, &i);
        }
        if (!arena)
            return DLX_E_FULL;
    }
    return carve_from(heap, arena, i, size, ret);
}

int dlx__heap_take(struct dlx_heap *heap, uint64_t size, struct dlx_block **ret)
{
    uint64_t rounded;
    dlx__heap_collect(heap);
    if (!dlx__heap_round(heap, size, &rounded))
        return DLX_E_FULL;
    struct dlx_block *block = dlx__spares_take(&heap->spares, rounded, &heap->hints.last);
    if (dlx_unlikely(!block))
        return carve(heap, rounded, ret);
    block->next = NULL;
    *ret = block;
    return 0;
}

int dlx__heap_take_beside(struct dlx_heap *heap, const struct dlx_block *other, uint64_t size,
                          struct dlx_block **ret)
{
    struct dlx_arena *arena = other ? other->arena : NULL;
    struct dlx_spare *of_those; /* tensors are what is taken next: the hint stays */
    uint64_t rounded;
    if (!arena || arena->state != DLX_ARENA_USED || !dlx__heap_round(heap, size, &rounded) ||
        rounded == 0)
        return DLX_E_FULL;
    if (dlx__spares_first(&heap->spares, rounded, arena)) {
        *ret = dlx__spares_take(&heap->spares, rounded, &of_those);
        (*ret)->next = NULL;
        return 0;
    }
    for (uint32_t i = 0; i < arena->n_extents; i++)
        if (arena->extents[i].size >= rounded)
            return carve_from(heap, arena, i, rounded, ret);
    return DLX_E_FULL;
}

void dlx__heap_want_none(struct dlx_heap *heap)
{
    dlx__heap_collect(heap);
    dlx__spares_want_none(&heap->spares);
}

bool dlx__heap_want(struct dlx_heap *heap, uint64_t size)
{
    uint64_t rounded;
    return dlx__heap_round(heap, size, &rounded) && dlx__spares_want(&heap->spares, rounded);
}

/* The last block of a frozen arena takes it along. */
static void leave_frozen(struct dlx_heap *heap, struct dlx_block *block)
{
    struct dlx_arena *arena = block->arena;
    block->arena = NULL;
    if (--arena->n_blocks > 0)
        return;
    struct dlx_arena **at = &heap->frozen;
    while (*at != arena)
        at = &(*at)->next;
    *at = arena->next;
    free_arena(arena);
}

/* The struct of a block without memory. Returns the block whose last reference it was, if that is to be given
 * back now. */
static struct dlx_block *give_struct(struct dlx_heap *heap, struct dlx_block *block)
{
    struct dlx_block *of = block->of;
    block->of = NULL;
    block->next = heap->pool;
    heap->pool = block;
    return of && --of->n_refs == 0 && !of->is_local ? of : NULL;
}

/* One that has no memory of its own, or is protected, or whose arena is of no use now. */
static void __attribute__((noinline)) give_slowly(struct dlx_heap *heap, struct dlx_block *block)
{
    while (block && !block->arena)
        block = give_struct(heap, block);
    if (!block)
        return;
    if (dlx_unlikely(block->arena->state == DLX_ARENA_FROZEN)) {
        block->is_protected = false;
        leave_frozen(heap, block);
        (void)give_struct(heap, block);
        return;
    }
    if (dlx_unlikely(block->arena->state == DLX_ARENA_ASIDE ||
                     (block->is_protected && !dlx__debug_unprotect(block)))) {
        block->next = heap->stuck;
        heap->stuck = block;
        return;
    }
    if (block->arena->state == DLX_ARENA_LEAVING)
        dlx__spares_give_up_one(block, &heap->pool);
    else
        dlx__spares_give(&heap->spares, block, &heap->pool);
}

void dlx__heap_give_elsewhere(struct dlx_heap *heap, struct dlx_block *block)
{
    if (block && dlx__block_is_reusable(block))
        dlx__spares_give(&heap->spares, block, &heap->pool);
    else
        give_slowly(heap, block);
}

static void __attribute__((noinline)) collect(struct dlx_heap *heap)
{
    struct dlx_block *block =
        atomic_exchange_explicit(&heap->hints.returned, NULL, memory_order_acquire);
    while (block) {
        struct dlx_block *next = block->next;
        heap->hints.n_local--;
        block->is_dirty = true;
        if (dlx_unlikely(block->n_refs > 0))
            block->is_local = false; /* the last message gives it back */
        else
            dlx__heap_give(heap, block);
        block = next;
    }
}

void dlx__heap_collect(struct dlx_heap *heap)
{
    if (dlx_unlikely(atomic_load_explicit(&heap->hints.returned, memory_order_relaxed)))
        collect(heap);
}

/* ---- local tensors ------------------------------------------------------------------------- */

/* Any thread, also after the publisher has gone; never in a forked child. */
void dlx__block_delete(DLManagedTensorVersioned *tensor)
{
    struct dlx_block *block = tensor->manager_ctx;
    struct dlx_heap *heap = block->heap;
    if (dlx__forked(heap->generation))
        return; /* the memory is the parent's */
    if (dlx_unlikely(!atomic_exchange_explicit(&block->at_caller, false, memory_order_relaxed))) {
        /* Its message has it: the caller was not to call this, and nobody may be hurt by that. */
        atomic_fetch_add_explicit(&heap->n_deleted_again, 1, memory_order_relaxed);
        return;
    }
    struct dlx_block *top = atomic_load_explicit(&heap->hints.returned, memory_order_acquire);
    do {
        if (dlx_unlikely(top == &closed_stack)) {
            free_block(block);
            if (atomic_fetch_sub_explicit(&heap->n_orphans, 1, memory_order_acq_rel) == 1)
                heap_free(heap);
            return;
        }
        block->next = top;
    } while (!atomic_compare_exchange_weak_explicit(&heap->hints.returned, &top, block,
                                                    memory_order_release, memory_order_acquire));
}

int dlx__block_share(struct dlx_block *block, struct dlx_block **ret)
{
    int r = new_block(block->heap, ret);
    if (r < 0)
        return r;
    (*ret)->of = block;
    block->n_refs++;
    block->is_plain = false;
    block->is_dirty = true;
    block->is_local = true;
    return 0;
}

/* ---- arenas -------------------------------------------------------------------------------- */

bool dlx__heap_put_anywhere(struct dlx_heap *heap, bool anywhere)
{
    bool before = heap->anywhere;
    heap->anywhere = anywhere;
    return before;
}

bool dlx__heap_is_large(const struct dlx_heap *heap, uint64_t size)
{
    struct dlx_fit fit = fit_of(heap);
    uint64_t rounded;
    return dlx__heap_round(heap, size, &rounded) && dlx__fit_is_large(&fit, rounded);
}

uint64_t dlx__heap_growth(const struct dlx_heap *heap, uint64_t size)
{
    struct dlx_fit fit = fit_of(heap);
    uint64_t rounded;
    if (!dlx__heap_round(heap, size, &rounded) || /* as it will be taken */
        !dlx__align_up(dlx__fit_growth(&fit, rounded), DLX_MAX(heap->align, DLX_PAGE), &rounded) ||
        rounded > DLX_SHM_ARENA_MAX)
        return UINT64_MAX;
    return rounded;
}

int dlx__heap_add(struct dlx_heap *heap, uint32_t id, void *map, uint64_t size)
{
    struct dlx_arena *arena = calloc(1, sizeof *arena);
    if (!arena || !dlx__extents_reserve(arena, 8)) {
        free(arena);
        return dlx__fail(DLX_E_NO_MEMORY, "state of an arena");
    }
    arena->id = id;
    arena->map = map;
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
    (void)give_up_all_spares(heap);
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
    (void)give_up_all_spares(heap);
    free_arenas(heap->arenas);
    heap->arenas = aside->arenas;
    heap->n_arenas = aside->n_arenas;
    heap->bytes = aside->bytes;
    for (struct dlx_arena *arena = heap->arenas; arena; arena = arena->next)
        arena->state = DLX_ARENA_USED;
    retry_stuck(heap);
}

void dlx__heap_freeze(struct dlx_heap *heap, struct dlx_heap_aside *aside)
{
    while (aside->arenas) {
        struct dlx_arena *arena = aside->arenas;
        aside->arenas = arena->next;
        if (arena->n_blocks == 0) {
            free_arena(arena);
            continue;
        }
        arena->id = 0;
        arena->state = DLX_ARENA_FROZEN;
        arena->next = heap->frozen;
        heap->frozen = arena;
    }
    retry_stuck(heap);
}

static uint32_t drop(struct dlx_heap *heap, struct dlx_arena **at)
{
    struct dlx_arena *arena = *at;
    uint32_t id = arena->id;
    *at = arena->next;
    heap->n_arenas--;
    heap->bytes -= arena->size;
    free_arena(arena);
    return id;
}

/* Fewer bytes than this are kept for the next message, whatever it is. */
#define TRIM_LEAST (UINT64_C(1) << 20)
/* More empty memory than this share of what is in use, and so many bytes, are too much. */
#define SLACK_SHARE 4U
#define SLACK_BYTES (UINT64_C(32) << 20)

uint64_t dlx__heap_trim(struct dlx_heap *heap, bool all)
{
    dlx__spares_trim(&heap->spares, &heap->pool, all ? 0 : TRIM_LEAST);
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
    struct dlx_fit fit = fit_of(heap);
    if (!dlx__fit_is_excess(&fit, size, &heap->peak, now, window))
        return 0;
    return dlx__heap_drop_empty(heap);
}

uint32_t dlx__heap_drop_empty(struct dlx_heap *heap)
{
    (void)give_up_all_spares(heap);
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

/* An arena leaves if at most this share of it is used, for at most that share of what is free in new arenas. */
#define LEAVE_USED 4U
#define LEAVE_NEW  2U

void dlx__heap_vacate(struct dlx_heap *heap)
{
    bool excess = dlx__heap_excess(heap, false) > 0;
    if (heap->is_leaving == excess)
        return;
    stay(heap);
    heap->leave_for = 0;
    for (struct dlx_arena *arena = heap->arenas; arena && excess; arena = arena->next)
        if (arena->size - arena->free_bytes <= arena->size / LEAVE_USED) {
            arena->state = DLX_ARENA_LEAVING;
            heap->is_leaving = true;
            heap->leave_for += arena->free_bytes / LEAVE_NEW;
        }
    if (heap->is_leaving)
        (void)give_up_all_spares(heap);
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
