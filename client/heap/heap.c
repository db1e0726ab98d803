/* SPDX-License-Identifier: Apache-2.0 */
#include "client/heap/heap.h"
#include "client/base/mapped.h"
#include "client/base/misuse.h"
#include "client/heap/arena.h"
#include "common/memory.h"
#include "ring/tensor.h"
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

/*
 * Blocks of a heap that were given back and keep their memory, by size: the next message is
 * probably of the same size. Two sizes for each hash: those of a state dict and its manifest are
 * not to drive each other out.
 */
#define CACHE_LOG2  5U
#define CACHE_SLOTS (2U << CACHE_LOG2)
struct payload_cache {
    struct dlx_cache_slot all[CACHE_SLOTS];
};

struct dlx_heap {
    struct dlx_heap_hints hints;
    uint64_t generation;
    struct dlx_heap_kind kind;
    bool is_guarded;
    bool anywhere; /* see dlx__heap_put_anywhere() */
    struct dlx_arena *arenas;
    struct dlx_arena *aside, *frozen;        /* see dlx__heap_set_aside() */
    struct dlx_mapped_source *borrow_source; /* see dlx__heap_note_in() */
    uint32_t n_arenas;
    uint64_t bytes;
    bool is_leaving;        /* arenas are */
    uint64_t leave_for;     /* bytes of new arenas that this is still worth */
    struct dlx_block *pool; /* block structs without memory */
    struct payload_cache cache;
    struct dlx_block *stuck; /* came back, but cannot be used yet */
    struct dlx_arena_policy_peak peak;

    /* Once the publisher has gone: local blocks that are left. */
    _Atomic uint64_t n_orphans;
    _Atomic uint64_t n_deleted_again;
};

/* ---- the debug mode ------------------------------------------------------------------------- */

#define GUARD_BYTE 0xd5

uint64_t dlx__debug_align(void)
{
    long page = sysconf(_SC_PAGESIZE);
    return page > (long)DLX_PAGE ? (uint64_t)page : DLX_PAGE;
}

bool dlx__debug_protect(struct dlx_block *blocks)
{
    bool all = true;
    for (; blocks; blocks = blocks->next) {
        struct dlx_block *block = blocks->of ? blocks->of : blocks;
        if (!block->is_protected && block->size > 0)
            block->is_protected = mprotect(dlx__block_data(block), block->size, PROT_READ) == 0;
        all &= block->is_protected || block->size == 0;
        dlx__debug_check(block);
    }
    return all;
}

bool dlx__debug_unprotect(struct dlx_block *block)
{
    if (mprotect(dlx__block_data(block), block->size, PROT_READ | PROT_WRITE) < 0)
        return false; /* vm.max_map_count: it is in the middle of what is protected */
    block->is_protected = false;
    return true;
}

static uint8_t *guard_of(const struct dlx_block *block, uint64_t *ret_size)
{
    bool is_exported = block->made.ndim >= 0 && block->size > block->payload_size;
    *ret_size = is_exported ? block->size - block->payload_size : 0;
    return is_exported ? (uint8_t *)dlx__block_data(block) + block->payload_size : NULL;
}

void dlx__debug_guard(struct dlx_block *block)
{
    uint64_t size;
    uint8_t *guard = guard_of(block, &size);
    if (guard)
        memset(guard, GUARD_BYTE, (size_t)size);
}

void dlx__debug_check(const struct dlx_block *block)
{
    uint64_t size;
    const uint8_t *guard = guard_of(block, &size);
    for (uint64_t i = 0; i < size; i++)
        if (guard[i] != GUARD_BYTE)
            dlx__misuse("a tensor of %" PRIu64 " bytes, from %p on, was written beyond its end, at "
                        "byte %" PRIu64,
                        block->payload_size, dlx__block_data(block), block->payload_size + i);
}

/* ---- blocks that keep their memory ---------------------------------------------------------- */

/* Where blocks of this size are, if there are any. */
static inline struct dlx_cache_slot *cache_slot(struct payload_cache *cache, uint64_t size)
{
    uint64_t hash = size / DLX_SHM_ALIGN * UINT64_C(0x9e3779b97f4a7c15) >> (64 - CACHE_LOG2);
    struct dlx_cache_slot *two = &cache->all[2 * hash];
    return &two[two[0].size != size];
}

/* Does the one that cache_take() would return lie in this arena? */
static inline bool cache_first(struct payload_cache *cache, uint64_t size,
                               const struct dlx_arena *arena)
{
    const struct dlx_cache_slot *slot = cache_slot(cache, size);
    return slot->first && slot->size == size && slot->first->arena == arena;
}

/* A block of this size; NULL: there is none. */
static inline struct dlx_block *cache_take(struct payload_cache *cache, uint64_t size,
                                           struct dlx_cache_slot **ret_slot)
{
    struct dlx_cache_slot *slot = cache_slot(cache, size);
    if (dlx_unlikely(!slot->first || slot->size != size))
        return NULL;
    *ret_slot = slot;
    return dlx__cache_slot_pop(slot);
}

static void pool_give(struct dlx_block **pool, struct dlx_block *block)
{
    block->arena = NULL;
    block->next = *pool;
    *pool = block;
}

/* The memory of a block that is in no queue goes back to its arena, and its struct into the
 * pool. */
static void cache_give_up_one(struct dlx_block *block, struct dlx_block **pool)
{
    dlx__extents_give(block->arena, block->offset, block->size);
    block->arena->n_blocks--;
    pool_give(pool, block);
}

static void cache_give_up(struct dlx_cache_slot *slot, uint64_t n, struct dlx_block **pool)
{
    for (; n > 0; n--)
        cache_give_up_one(dlx__cache_slot_pop(slot), pool);
    slot->n_least = slot->n;
}

/* May drive another size out: memory of those goes back to their arenas, and their structs into the
 * pool. */
static struct dlx_cache_slot *cache_make(struct payload_cache *cache, uint64_t size,
                                         struct dlx_block **pool)
{
    struct dlx_cache_slot *newer = cache_slot(cache, size), *older = newer - 1;
    cache_give_up(older, older->n, pool);
    *older = *newer;
    *newer = (struct dlx_cache_slot){.size = size};
    return newer;
}

static inline void cache_give(struct payload_cache *cache, struct dlx_block *block,
                              struct dlx_block **pool)
{
    struct dlx_cache_slot *slot = cache_slot(cache, block->size);
    if (dlx_unlikely(slot->size != block->size))
        slot = cache_make(cache, block->size, pool);
    dlx__cache_slot_push(slot, block);
}

/* All of them. Were there any? An arena that has no other blocks is whole again: to put thousands
 * of pieces together, one after the other, would take longer the more there are. */
static bool cache_give_up_all(struct payload_cache *cache, struct dlx_block **pool)
{
    bool any = false;
    for (uint32_t i = 0; i < CACHE_SLOTS; i++)
        for (const struct dlx_block *block = cache->all[i].first; block; block = block->next)
            block->arena->n_blocks--;
    for (uint32_t i = 0; i < CACHE_SLOTS; i++) {
        struct dlx_cache_slot *slot = &cache->all[i];
        any |= slot->n > 0;
        while (slot->n > 0) {
            struct dlx_block *block = dlx__cache_slot_pop(slot);
            if (block->arena->n_blocks == 0)
                dlx__extents_give_all(block->arena);
            else
                dlx__extents_give(block->arena, block->offset, block->size);
            pool_give(pool, block);
        }
    }
    return any;
}

/* Blocks that no message needed since the last call give their memory back. */
static void cache_trim(struct payload_cache *cache, struct dlx_block **pool)
{
    for (uint32_t i = 0; i < CACHE_SLOTS; i++)
        if (cache->all[i].n > 0) /* most slots are empty */
            cache_give_up(&cache->all[i], cache->all[i].n_least, pool);
}

static void cache_want_none(struct payload_cache *cache)
{
    for (uint32_t i = 0; i < CACHE_SLOTS; i++)
        cache->all[i].n_wanted = 0;
}

static bool cache_want(struct payload_cache *cache, uint64_t size)
{
    struct dlx_cache_slot *slot = cache_slot(cache, size);
    return slot->size == size && slot->n_wanted++ < slot->n;
}

/* ---- the heap -------------------------------------------------------------------------------- */

static struct dlx_arena_policy policy_of(const struct dlx_heap *heap)
{
    return (struct dlx_arena_policy){
        .arenas = heap->arenas,
        .n_arenas = heap->n_arenas,
        .bytes = heap->bytes,
        .least = heap->kind.least,
        .unit = heap->kind.unit,
        .anywhere = heap->anywhere,
    };
}

/* Blocks that keep their memory give it up: their structs go into the pool. Were there any? */
static bool empty_payload_cache(struct dlx_heap *heap)
{
    return cache_give_up_all(&heap->cache, &heap->pool);
}

static void heap_free_arena(const struct dlx_heap *heap, struct dlx_arena *arena, bool is_end)
{
    heap->kind.free_arena(&heap->kind, arena, is_end);
    dlx__mapped_remove(arena->mapped);
    free(arena->extents);
    free(arena);
}

static void heap_free_arenas(const struct dlx_heap *heap, struct dlx_arena *first)
{
    while (first) {
        struct dlx_arena *arena = first;
        first = arena->next;
        heap_free_arena(heap, arena, true);
    }
}

static struct dlx_block closed_stack;
/* The heap of structs whose tensor the caller has given back in debug mode. */
static struct dlx_heap released = {.generation = DLX_RELEASED};

static void heap_unmap_arena(const struct dlx_heap_kind *kind, const struct dlx_arena *arena,
                             bool is_end)
{
    (void)kind;
    (void)is_end;
    dlx__region_unmap(arena->map, arena->size);
}

int dlx__heap_new(struct dlx_heap **ret, uint64_t generation, bool is_guarded)
{
    uint64_t align = is_guarded ? dlx__debug_align() : DLX_SHM_ALIGN;
    uint64_t unit = DLX_MAX(align, DLX_PAGE);
    const struct dlx_heap_kind kind = {
        .device = {kDLCPU, 0},
        .align = align,
        /* In the debug mode an arena has room for as many small blocks as without, so a stream
         * needs no more arenas. */
        .least = DLX_ARENA_SIZE_MIN / DLX_SHM_ALIGN * align,
        .unit = unit,
        .free_arena = heap_unmap_arena,
    };
    int r = dlx__heap_new_of(ret, generation, &kind);
    if (r == 0)
        (*ret)->is_guarded = is_guarded;
    return r;
}

int dlx__heap_new_of(struct dlx_heap **ret, uint64_t generation, const struct dlx_heap_kind *kind)
{
    struct dlx_heap *heap = calloc(1, sizeof *heap);
    if (!heap)
        return dlx__fail(DLX_E_NO_MEMORY, "state of a publisher's memory");
    heap->hints.last = &heap->cache.all[0];
    heap->generation = generation;
    heap->kind = *kind;
    *ret = heap;
    return 0;
}

const struct dlx_heap_kind *dlx__heap_kind(const struct dlx_heap *heap)
{
    return &heap->kind;
}

static void free_block(struct dlx_block *block)
{
    if (block->dims != block->inline_dims)
        free(block->dims);
    free(block);
}

static void quarantine_block(struct dlx_block *block)
{
    if (block->dims != block->inline_dims)
        free(block->dims);
    block->dims = block->inline_dims;
    block->arena = NULL;
    block->tensor.dl_tensor = (DLTensor){0};
    dlx__quarantine(block);
}

static void free_blocks(struct dlx_block *block)
{
    while (block) {
        struct dlx_block *next = block->next;
        free_block(block);
        block = next;
    }
}

static void heap_free(struct dlx_heap *heap)
{
    free_blocks(heap->pool);
    free_blocks(heap->stuck);
    for (uint32_t i = 0; i < CACHE_SLOTS; i++)
        free_blocks(heap->cache.all[i].first);
    heap_free_arenas(heap, heap->arenas);
    heap_free_arenas(heap, heap->frozen);
    free(heap);
}

void dlx__heap_close(struct dlx_heap *heap)
{
    if (!heap)
        return;
    heap->kind.settle = NULL; /* nothing is used again */
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
        block->is_gpu = false;
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

static void stay(struct dlx_heap *heap)
{
    heap->is_leaving = false;
    for (struct dlx_arena *arena = heap->arenas; arena; arena = arena->next)
        arena->state = DLX_ARENA_USED;
}

/* ---- take and give ------------------------------------------------------------------------- */

bool dlx__heap_round(const struct dlx_heap *heap, uint64_t size, uint64_t *ret)
{
    uint64_t guard = heap->is_guarded && size > 0 ? DLX_DEBUG_GUARD : 0;
    return !__builtin_add_overflow(size, guard, &size) &&
           dlx__align_up(size, heap->kind.align, ret);
}

/* From extent i of the arena; NULL: a block of 0 bytes. */
static int carve_from(struct dlx_heap *heap, struct dlx_arena *arena, uint32_t i, uint64_t size,
                      struct dlx_block **ret)
{
    struct dlx_arena_policy fit = policy_of(heap);
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
        arena->has_large = dlx__arena_policy_is_large(&fit, size);
    return 0;
}

static int carve(struct dlx_heap *heap, uint64_t size, struct dlx_block **ret)
{
    uint32_t i = 0;
    struct dlx_arena *arena = NULL;
    struct dlx_arena_policy fit = policy_of(heap);
    if (size > 0) {
        arena = dlx__arena_policy_find(&fit, size, &i);
        if (!arena) {
            retry_stuck(heap);
            if (empty_payload_cache(heap))
                arena = dlx__arena_policy_find(&fit, size, &i);
        }
        if (!arena && heap->is_leaving && dlx__heap_growth(heap, size) > heap->leave_for) {
            stay(heap);
            arena = dlx__arena_policy_find(&fit, size, &i);
        }
        if (!arena)
            return DLX_E_FULL;
    }
    return carve_from(heap, arena, i, size, ret);
}

static inline int take_rounded(struct dlx_heap *heap, uint64_t rounded, struct dlx_block **ret)
{
    struct dlx_block *block = cache_take(&heap->cache, rounded, &heap->hints.last);
    if (dlx_unlikely(!block))
        return carve(heap, rounded, ret);
    block->next = NULL;
    *ret = block;
    return 0;
}

int dlx__heap_take(struct dlx_heap *heap, uint64_t size, struct dlx_block **ret)
{
    uint64_t rounded;
    dlx__heap_collect(heap);
    return dlx__heap_round(heap, size, &rounded) ? take_rounded(heap, rounded, ret) : DLX_E_FULL;
}

int dlx__heap_take_like(struct dlx_heap *heap, const struct dlx_block *like, struct dlx_block **ret)
{
    dlx__heap_collect(heap);
    return take_rounded(heap, like->size, ret);
}

const struct dlx_block *dlx__heap_next_of(struct dlx_heap *heap, uint64_t size)
{
    const struct dlx_cache_slot *slot = cache_slot(&heap->cache, size);
    return slot->size == size ? slot->first : NULL;
}

int dlx__heap_take_beside(struct dlx_heap *heap, const struct dlx_block *other, uint64_t size,
                          struct dlx_block **ret)
{
    struct dlx_arena *arena = other ? other->arena : NULL;
    struct dlx_cache_slot *of_those; /* tensors are what is taken next: the hint stays */
    uint64_t rounded;
    if (!arena || arena->state != DLX_ARENA_USED || !dlx__heap_round(heap, size, &rounded) ||
        rounded == 0)
        return DLX_E_FULL;
    if (cache_first(&heap->cache, rounded, arena)) {
        *ret = cache_take(&heap->cache, rounded, &of_those);
        (*ret)->next = NULL;
        return 0;
    }
    for (uint32_t i = 0; i < arena->n_extents; i++)
        if (arena->extents[i].size >= rounded)
            return carve_from(heap, arena, i, rounded, ret);
    return DLX_E_FULL;
}

int dlx__heap_cut(struct dlx_heap *heap, struct dlx_block **whole, uint64_t size,
                  struct dlx_block **ret)
{
    struct dlx_block *rest = *whole, *part;
    uint64_t rounded;
    if (size == 0)
        return take_rounded(heap, 0, ret);
    if (!rest || !dlx__heap_round(heap, size, &rounded) || rounded > rest->size)
        return DLX_E_FULL;
    if (rounded == rest->size) {
        *ret = dlx_steal(*whole);
        return 0;
    }
    if (!dlx__extents_reserve(rest->arena, rest->arena->n_blocks + 2))
        return dlx__fail(DLX_E_NO_MEMORY, "state of an arena");
    int r = new_block(heap, &part);
    if (r < 0)
        return r;
    part->arena = rest->arena;
    part->offset = rest->offset;
    part->size = rounded;
    rest->arena->n_blocks++;
    rest->offset += rounded;
    rest->size -= rounded;
    rest->made.ndim = -1; /* it has other memory than it was exported with */
    rest->has_words = false;
    *ret = part;
    return 0;
}

void dlx__heap_want_none(struct dlx_heap *heap)
{
    dlx__heap_collect(heap);
    cache_want_none(&heap->cache);
}

bool dlx__heap_want(struct dlx_heap *heap, uint64_t size)
{
    uint64_t rounded;
    return dlx__heap_round(heap, size, &rounded) && cache_want(&heap->cache, rounded);
}

/*
 * In debug mode a caller gets no struct that a caller had before: that one stays as released, and
 * the block goes on in the one that is returned.
 */
static struct dlx_block *renew(struct dlx_heap *heap, struct dlx_block *block)
{
    struct dlx_block *fresh;
    if (block->made.ndim < 0 || new_block(heap, &fresh) < 0)
        return block;
    fresh->arena = block->arena;
    fresh->offset = block->offset;
    fresh->size = block->size;
    fresh->is_protected = block->is_protected;
    block->heap = &released;
    quarantine_block(block);
    return fresh;
}

/* Its memory stays in its arena. The last block of a frozen arena takes that along. */
static void leave_arena(struct dlx_heap *heap, struct dlx_block *block)
{
    struct dlx_arena *arena = block->arena, **at = &heap->frozen;
    cache_give_up_one(block, &heap->pool);
    if (arena->state != DLX_ARENA_FROZEN || arena->n_blocks > 0)
        return;
    while (*at != arena)
        at = &(*at)->next;
    *at = arena->next;
    heap_free_arena(heap, arena, false);
}

/* The struct of a block without memory. Returns the block whose last reference it was, if that is
 * to be given back now. */
static struct dlx_block *give_struct(struct dlx_heap *heap, struct dlx_block *block)
{
    struct dlx_block *of = block->of;
    if (block->is_gpu)
        block->guest->came_back(block);
    block->of = NULL;
    block->next = heap->pool;
    heap->pool = block;
    return of && --of->n_refs == 0 && !of->is_local ? of : NULL;
}

/* A block that has no memory of its own, or is protected, or whose arena is of no use now. */
static void __attribute__((noinline)) give_slowly(struct dlx_heap *heap, struct dlx_block *block)
{
    while (block && !block->arena)
        block = give_struct(heap, block);
    if (!block)
        return;
    if (block->arena->state == DLX_ARENA_FROZEN)
        block->is_protected = false;
    if (dlx_unlikely(block->is_protected && !dlx__debug_unprotect(block))) {
        block->next = heap->stuck;
        heap->stuck = block;
        return;
    }
    if (heap->is_guarded)
        block = renew(heap, block);
    if (block->arena->state == DLX_ARENA_USED)
        cache_give(&heap->cache, block, &heap->pool);
    else
        leave_arena(heap, block);
}

void dlx__heap_give_elsewhere(struct dlx_heap *heap, struct dlx_block *block)
{
    if (block && dlx__block_is_reusable(block))
        cache_give(&heap->cache, block, &heap->pool);
    else
        give_slowly(heap, block);
}

static void __attribute__((noinline)) collect(struct dlx_heap *heap)
{
    if (!heap->hints.unsettled)
        heap->hints.unsettled =
            atomic_exchange_explicit(&heap->hints.returned, NULL, memory_order_acquire);
    if (heap->kind.settle && !heap->kind.settle(&heap->kind))
        return;
    struct dlx_block *block = heap->hints.unsettled;
    heap->hints.unsettled = NULL;
    while (block) {
        struct dlx_block *next = block->next;
        heap->hints.n_local--;
        block->is_dirty = true;
        if (dlx_unlikely(block->n_refs > 0))
            block->is_local = false; /* the last message gives it back */
        else
            dlx__heap_give(heap, heap->is_guarded ? renew(heap, block) : block);
        block = next;
    }
}

void dlx__heap_collect(struct dlx_heap *heap)
{
    if (dlx_unlikely(atomic_load_explicit(&heap->hints.returned, memory_order_relaxed) ||
                     heap->hints.unsettled))
        collect(heap);
}

void dlx__heap_give_unsettled(struct dlx_heap *heap, struct dlx_block *block)
{
    heap->hints.n_local++;
    block->next = atomic_load_explicit(&heap->hints.returned, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&heap->hints.returned, &block->next, block,
                                                  memory_order_release, memory_order_relaxed))
        ;
}

/* ---- local tensors ------------------------------------------------------------------------- */

/* Any thread, also after the publisher has gone; never in a forked child. */
void dlx__block_delete(DLManagedTensorVersioned *tensor)
{
    struct dlx_block *block = tensor->manager_ctx;
    struct dlx_heap *heap = block->heap;
    if (dlx__forked(heap->generation)) {
        dlx__check_released(heap->generation, "the deleter of a tensor of dlx_alloc()");
        return; /* the memory is the parent's */
    }
    if (dlx_unlikely(block->is_guarded))
        dlx__debug_check(block);
    if (dlx_unlikely(!atomic_exchange_explicit(&block->at_caller, false, memory_order_relaxed))) {
        if (block->is_guarded)
            dlx__misuse("the deleter of a tensor of dlx_alloc(): it was published or deleted "
                        "before, and is not the caller's any more");
        /* Its message has it: the caller was not to call this, and nobody may be hurt by that. */
        atomic_fetch_add_explicit(&heap->n_deleted_again, 1, memory_order_relaxed);
        return;
    }
    struct dlx_block *top = atomic_load_explicit(&heap->hints.returned, memory_order_acquire);
    do {
        if (dlx_unlikely(top == &closed_stack)) {
            if (block->is_guarded) {
                block->heap = &released;
                quarantine_block(block);
            } else {
                free_block(block);
            }
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

void dlx__block_restore(struct dlx_block *block)
{
    memcpy(block->dims, block->dims + 2 * block->made.ndim,
           2 * (size_t)block->made.ndim * sizeof *block->dims);
    block->tensor = (DLManagedTensorVersioned){.version = {DLPACK_MAJOR_VERSION, 0},
                                               .manager_ctx = block,
                                               .deleter = dlx__block_delete,
                                               .dl_tensor = block->made};
    block->is_plain = block->has_words && block->arena && !block->is_guarded;
    block->is_counted = false;
    block->is_dirty = false;
}

int dlx__block_export(struct dlx_block *block, DLDataType dtype, int32_t ndim, const int64_t *shape,
                      uint64_t payload_size)
{
    uint32_t n = (uint32_t)ndim;
    if (n > block->dims_room) {
        int64_t *dims = malloc(4 * (size_t)n * sizeof *dims);
        if (!dims)
            return dlx__fail(DLX_E_NO_MEMORY, "shape of %d dimensions", ndim);
        if (block->dims != block->inline_dims)
            free(block->dims);
        block->dims = dims;
        block->dims_room = (uint16_t)n;
    }
    for (uint32_t i = 0; i < n; i++)
        block->dims[2 * n + i] = shape[i];
    dlx__tensor_row_major(ndim, block->dims + 2 * n, block->dims + 3 * n);
    block->made = (DLTensor){.data = dlx__block_data(block),
                             .device = dlx__heap_kind(block->heap)->device,
                             .ndim = ndim,
                             .dtype = dtype,
                             .shape = block->dims,
                             .strides = block->dims + ndim};
    block->payload_size = payload_size;
    block->has_words = dlx__entry_pack_tensor(block->words, dlx__block_arena_id(block),
                                              block->offset, dtype, false, ndim, shape);
    block->is_dirty = true;
    if (block->is_guarded)
        dlx__debug_guard(block);
    dlx__block_hand_out(block);
    return 0;
}

/* ---- arenas ---------------------------------------------------------------------------------- */

bool dlx__heap_has(const struct dlx_heap *heap, const void *data)
{
    for (const struct dlx_arena *arena = heap->arenas; arena; arena = arena->next)
        if ((uintptr_t)data - (uintptr_t)arena->map < arena->size)
            return true;
    return false;
}

bool dlx__heap_put_anywhere(struct dlx_heap *heap, bool anywhere)
{
    bool before = heap->anywhere;
    heap->anywhere = anywhere;
    return before;
}

bool dlx__heap_is_large(const struct dlx_heap *heap, uint64_t size)
{
    struct dlx_arena_policy fit = policy_of(heap);
    uint64_t rounded;
    return dlx__heap_round(heap, size, &rounded) && dlx__arena_policy_is_large(&fit, rounded);
}

uint64_t dlx__heap_growth(const struct dlx_heap *heap, uint64_t size)
{
    struct dlx_arena_policy fit = policy_of(heap);
    uint64_t rounded;
    if (!dlx__heap_round(heap, size, &rounded) || /* as it will be taken */
        !dlx__align_up(dlx__arena_policy_growth(&fit, rounded), heap->kind.unit, &rounded) ||
        rounded > DLX_SHM_ARENA_MAX)
        return UINT64_MAX;
    return rounded;
}

void dlx__heap_note_in(struct dlx_heap *heap, struct dlx_mapped_source *source)
{
    heap->borrow_source = source;
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
    dlx__extents_give_all(arena);
    struct dlx_arena **at = &heap->arenas;
    while (*at)
        at = &(*at)->next;
    *at = arena;
    heap->n_arenas++;
    heap->bytes += size;
    heap->leave_for -= DLX_MIN(heap->leave_for, size);
    return 0;
}

void dlx__heap_set_aside(struct dlx_heap *heap, struct dlx_mapped_source *source)
{
    heap->borrow_source = source;
    dlx__heap_collect(heap);
    (void)empty_payload_cache(heap);
    heap->is_leaving = false;
    heap->aside = heap->arenas;
    for (struct dlx_arena *arena = heap->aside; arena; arena = arena->next)
        arena->state = DLX_ARENA_LEAVING;
    heap->arenas = NULL;
    heap->n_arenas = 0;
    heap->bytes = 0;
}

void dlx__heap_bring_back(struct dlx_heap *heap, struct dlx_mapped_source *source)
{
    struct dlx_arena *added = heap->arenas;
    heap->borrow_source = source;
    (void)empty_payload_cache(heap);
    heap->arenas = heap->aside;
    heap->aside = added;
    heap->n_arenas = 0;
    heap->bytes = 0;
    for (const struct dlx_arena *arena = heap->arenas; arena; arena = arena->next) {
        heap->n_arenas++;
        heap->bytes += arena->size;
    }
    stay(heap);
    dlx__heap_freeze(heap);
}

void dlx__heap_freeze(struct dlx_heap *heap)
{
    while (heap->aside) {
        struct dlx_arena *arena = heap->aside;
        heap->aside = arena->next;
        if (arena->n_blocks == 0) {
            heap_free_arena(heap, arena, false);
            continue;
        }
        arena->id = 0;
        arena->state = DLX_ARENA_FROZEN;
        arena->next = heap->frozen;
        heap->frozen = arena;
    }
    retry_stuck(heap);
}

/* More empty memory than this share of what is in use, and DLX_HEAP_SLACK, is too much. */
#define SLACK_SHARE 4U

uint64_t dlx__heap_trim(struct dlx_heap *heap, bool all)
{
    cache_trim(&heap->cache, &heap->pool);
    return dlx__heap_excess(heap, all);
}

uint64_t dlx__heap_excess(const struct dlx_heap *heap, bool all)
{
    uint64_t used = 0;
    for (const struct dlx_arena *arena = heap->arenas; arena; arena = arena->next)
        used += arena->size - arena->free_bytes;
    uint64_t most = all ? used : used + used / SLACK_SHARE + DLX_HEAP_SLACK;
    return heap->bytes - DLX_MIN(heap->bytes, most);
}

uint32_t dlx__heap_find_excess(struct dlx_heap *heap, uint64_t size, uint64_t now, uint64_t window)
{
    struct dlx_arena_policy fit = policy_of(heap);
    if (!dlx__arena_policy_is_excess(&fit, size, &heap->peak, now, window))
        return 0;
    return dlx__heap_find_any_empty(heap);
}

uint32_t dlx__heap_find_any_empty(struct dlx_heap *heap)
{
    dlx__heap_collect(heap);
    (void)empty_payload_cache(heap);
    for (const struct dlx_arena *arena = heap->arenas; arena; arena = arena->next)
        if (arena->n_blocks == 0)
            return arena->id;
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

/* Arenas leave that are used by 1/LEAVE_USED at most, until new arenas have 1/LEAVE_NEW of their
 * free bytes. */
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
        (void)empty_payload_cache(heap);
}

void dlx__heap_drop(struct dlx_heap *heap, uint32_t id)
{
    struct dlx_arena **at = &heap->arenas;
    while ((*at)->id != id)
        at = &(*at)->next;
    struct dlx_arena *arena = *at;
    *at = arena->next;
    heap->n_arenas--;
    heap->bytes -= arena->size;
    heap_free_arena(heap, arena, false);
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
