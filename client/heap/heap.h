/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_HEAP_H
#define DLX_CLIENT_HEAP_H

/*
 * A publisher's payload memory: arenas, and blocks inside them. A block is either LOCAL (a tensor
 * that the caller has from dlx_alloc()), or the payload of a message, or spare: given back, and
 * kept whole because the next message is probably of the same size. Blocks of local tensors come
 * back from any thread, over a lock-free stack; everything else is the publisher's thread's, and
 * needs no atomic operation.
 *
 * A block may also be LOCAL and in messages (published with `share`), in any number of them. Each
 * message then has a reference: a block without memory of its own. References are counted on the
 * publisher's thread, which publishes and frees messages and empties the stack, so the count is a
 * plain number. The block comes back with the last of its references and its local tensor.
 *
 * The heap outlives its publisher as long as a local tensor does.
 */

#include "client/base/args.h"
#include "client/base/fork.h"
#include "client/heap/block.h"

/* The kind of arenas that a heap has. */
struct dlx_heap_kind {
    DLDevice device; /* of tensors in it */
    uint64_t align;  /* of blocks, and of their sizes */
    uint64_t least;  /* bytes of an arena, */
    uint64_t unit;   /* which are a multiple of this */
    void *userdata;  /* the publisher's thread's */
    /* The end of an arena; on any thread, once the publisher has gone. `is_end`: it is the heap's,
     * too, and may wait. */
    void (*free_arena)(const struct dlx_heap_kind *kind, const struct dlx_arena *arena,
                       bool is_end);
    /* Memory of local tensors that were deleted is about to be used again. False: it may still be
     * in use, and this is asked again for it. NULL: nothing is to be done for that. */
    bool (*settle)(const struct dlx_heap_kind *kind);
};

/* Of shared memory. Returns 0; DLX_E_NO_MEMORY. `is_guarded`: it is in the debug mode. */
int dlx__heap_new(struct dlx_heap **ret, uint64_t generation, bool is_guarded);
/* Of another kind, which is copied. */
dlx_for_gpu int dlx__heap_new_of(struct dlx_heap **ret, uint64_t generation,
                                 const struct dlx_heap_kind *kind);
dlx_for_gpu const struct dlx_heap_kind *dlx__heap_kind(const struct dlx_heap *heap);

/* The publisher is gone, all its messages were freed: what is local stays, and the heap goes with
 * the last of it. NULL is fine. */
dlx_for_gpu void dlx__heap_close(struct dlx_heap *heap);

/*
 * A block of `size` bytes from the arenas that are there. Returns 0; DLX_E_FULL (none fits),
 * DLX_E_NO_MEMORY.
 */
dlx_for_gpu int dlx__heap_take(struct dlx_heap *heap, uint64_t size, struct dlx_block **ret);

/* Likewise, exactly as large as `like` is with its guard bytes: copies need no more memory
 * together than what they copy. */
int dlx__heap_take_like(struct dlx_heap *heap, const struct dlx_block *like,
                        struct dlx_block **ret);

/*
 * Likewise, but from the arena of `other`, which comes back when that does: a block elsewhere would
 * keep another arena from becoming empty. DLX_E_FULL if `other` is NULL or its arena has no room.
 */
int dlx__heap_take_beside(struct dlx_heap *heap, const struct dlx_block *other, uint64_t size,
                          struct dlx_block **ret);

/*
 * The first `size` bytes of a block that dlx__heap_take() gave and that was not exported: what is
 * left of it stays in `*whole`, NULL if nothing is. Returns 0; DLX_E_FULL (it has less),
 * DLX_E_NO_MEMORY.
 */
int dlx__heap_cut(struct dlx_heap *heap, struct dlx_block **whole, uint64_t size,
                  struct dlx_block **ret);

/*
 * With `anywhere`, from now on a block is taken wherever it fits: for blocks that come and go
 * together, in an arena made for all of them, and when no more arenas can be had. Without,
 * client/heap/arena.h chooses again. Returns what was so before.
 */
dlx_for_gpu bool dlx__heap_put_anywhere(struct dlx_heap *heap, bool anywhere);

/* Does a block of `size` bytes have an arena of its own? See client/heap/arena.h. */
bool dlx__heap_is_large(const struct dlx_heap *heap, uint64_t size);

/* What a block of `size` bytes takes. False: there is no such number. */
bool dlx__heap_round(const struct dlx_heap *heap, uint64_t size, uint64_t *ret);

/* The next block of the size that was taken last, which dlx__heap_export_again() would take. NULL:
 * none is left. */
static inline const struct dlx_block *dlx__heap_next(const struct dlx_heap *heap)
{
    return ((const struct dlx_heap_hints *)heap)->last->first;
}

/* The next block of this size, that of another block. NULL: none is left. */
const struct dlx_block *dlx__heap_next_of(struct dlx_heap *heap, uint64_t size);

/*
 * Are there blocks, given back, for all parts of a set? After dlx__heap_want_none(),
 * dlx__heap_want() says so of one part after the other; as long as it does, dlx__heap_take() will
 * find them.
 */
void dlx__heap_want_none(struct dlx_heap *heap);
bool dlx__heap_want(struct dlx_heap *heap, uint64_t size);

/* dlx__heap_give() of one that does not go where one was taken last. */
dlx_for_gpu void dlx__heap_give_elsewhere(struct dlx_heap *heap, struct dlx_block *block);

/* Give a block back that was never exported, and that is to be settled first. */
dlx_for_gpu void dlx__heap_give_unsettled(struct dlx_heap *heap, struct dlx_block *block);

/* Fetch blocks whose local tensors were deleted. Part of dlx__heap_take(). */
void dlx__heap_collect(struct dlx_heap *heap);

/* Bytes of a new arena that has room for `size` more; UINT64_MAX if there is no such number. */
dlx_for_gpu uint64_t dlx__heap_growth(const struct dlx_heap *heap, uint64_t size);

/* Set where arenas that are added from now on are noted (client/base/mapped.h; NULL: nowhere). The
 * caller keeps it until another one is set, or the heap's end. */
struct dlx_mapped_source;
void dlx__heap_note_in(struct dlx_heap *heap, struct dlx_mapped_source *borrow_source);

/* Add an arena: mapped read-write and announced. Owns the map on success. Returns 0;
 * DLX_E_NO_MEMORY. `owner` is for the kind's free_arena(). */
dlx_for_gpu int dlx__heap_add_of(struct dlx_heap *heap, uint32_t id, void *map, uint64_t size,
                                 void *owner);
static inline int dlx__heap_add(struct dlx_heap *heap, uint32_t id, void *map, uint64_t size)
{
    return dlx__heap_add_of(heap, id, map, size, NULL);
}

/* So many bytes that are not in use are never too much. */
#define DLX_HEAP_SLACK (UINT64_C(32) << 20)

/*
 * Now and then: blocks of the cache that no message needed since the last call go back to their
 * arenas. Returns how many bytes there are beyond what is in use and, unless `all`, some slack.
 */
dlx_for_gpu uint64_t dlx__heap_trim(struct dlx_heap *heap, bool all);
/* The number that dlx__heap_trim() returns. */
uint64_t dlx__heap_excess(const struct dlx_heap *heap, bool all);
/* The id of an empty arena, not the only one, where there are `excess` bytes too many: one of at
 * most so many bytes, or else the smallest. 0: there is none. */
dlx_for_gpu uint32_t dlx__heap_find_empty(const struct dlx_heap *heap, uint64_t excess,
                                          uint64_t *ret_size);
/*
 * If there is still too much memory, mark arenas that are almost empty LEAVING: blocks that come
 * back stay in them. Else, or once the stream needs much more memory, all are USED again.
 */
void dlx__heap_vacate(struct dlx_heap *heap);
/* Unmap this arena, which is empty. */
dlx_for_gpu void dlx__heap_drop(struct dlx_heap *heap, uint32_t id);

/*
 * An arena of `size` bytes is about to be added: if that makes more than what was used lately and
 * some slack, returns the id of an empty one, which is to go. 0: none is. `now` is the current
 * message number, `window` how many messages "lately" is.
 */
dlx_for_gpu uint32_t dlx__heap_find_excess(struct dlx_heap *heap, uint64_t size, uint64_t now,
                                           uint64_t window);
/* The id of an empty arena, now that no block is kept for the next message; 0: there is none. */
dlx_for_gpu uint32_t dlx__heap_find_any_empty(struct dlx_heap *heap);

/*
 * The daemon that knew the arenas has ended. Set aside, nothing is put into them, and the heap
 * begins anew, with another source for dlx__heap_note_in(). What follows is one of the other two.
 */
dlx_for_gpu void dlx__heap_set_aside(struct dlx_heap *heap,
                                     struct dlx_mapped_source *borrow_source);
/* As it was: what was added since is frozen instead. */
void dlx__heap_bring_back(struct dlx_heap *heap, struct dlx_mapped_source *borrow_source);
/* The arenas that were set aside are of no use any more: each goes with its last block. */
dlx_for_gpu void dlx__heap_freeze(struct dlx_heap *heap);
dlx_for_gpu uint64_t dlx__heap_bytes(const struct dlx_heap *heap);
/* Does the address lie in one of its arenas? */
bool dlx__heap_has(const struct dlx_heap *heap, const void *data);
/* Tensors that were deleted although they had been published. */
uint64_t dlx__heap_n_deleted_again(const struct dlx_heap *heap);
uint32_t dlx__heap_n_arenas(const struct dlx_heap *heap);

/*
 * Make the block a local tensor: its deleter gives it back. Fills dtype, shape and row-major
 * strides. `payload_size` is what dlx__tensor_size() says of them. Returns 0; DLX_E_NO_MEMORY.
 */
int dlx__block_export(struct dlx_block *block, DLDataType dtype, int32_t ndim, const int64_t *shape,
                      uint64_t payload_size);

/* The deleter of local tensors. */
dlx_for_gpu void dlx__block_delete(DLManagedTensorVersioned *tensor);

/* The block of a tensor that dlx__block_export() of this heap made, else NULL, as for what a caller
 * made from a copy of it. */
static inline struct dlx_block *dlx__block_of(const struct dlx_heap *heap,
                                              const DLManagedTensorVersioned *tensor)
{
    if (dlx_unlikely(tensor->deleter != dlx__block_delete))
        return NULL;
    struct dlx_block *block = tensor->manager_ctx;
    return dlx_likely(block->heap == heap && &block->tensor == tensor) ? block : NULL;
}

/* The local tensor was published and does not stay local: its deleter will not be called, and does
 * nothing. */
static inline void dlx__block_published(struct dlx_block *block)
{
    atomic_store_explicit(&block->at_caller, false, memory_order_relaxed);
    block->is_local = false;
    ((struct dlx_heap_hints *)block->heap)->n_local--;
}
/* The tensor as it was exported, for the caller. */
void dlx__block_restore(struct dlx_block *block);

/* The caller gets its tensor. */
static inline void dlx__block_hand_out(struct dlx_block *block)
{
    if (dlx_unlikely(block->is_dirty))
        dlx__block_restore(block);
    atomic_store_explicit(&block->at_caller, true, memory_order_relaxed);
    ((struct dlx_heap_hints *)block->heap)->n_local++;
}

/*
 * Take and export in one: the block that would be taken, if it was last exported with this very
 * dtype and shape. NULL: not so, or there are not 1 to DLX_SHM_NDIM_MAX dimensions; nothing was
 * done.
 */
static inline struct dlx_block *dlx__heap_export_again(struct dlx_heap *heap, DLDataType dtype,
                                                       int32_t ndim, const int64_t *shape)
{
    const struct dlx_heap_hints *hints = (const struct dlx_heap_hints *)heap;
    if (dlx_unlikely(atomic_load_explicit(&hints->returned, memory_order_relaxed)))
        dlx__heap_collect(heap);
    struct dlx_cache_slot *slot = hints->last;
    struct dlx_block *block = slot->first;
    if (dlx_unlikely(!block || block->made.ndim != ndim || ndim <= 0 || !shape ||
                     !dlx__dtype_is(block->made.dtype, dtype)))
        return NULL;
    const int64_t *made = block->dims + 2 * ndim;
    int64_t differs = 0;
    for (int32_t i = 0; i < ndim; i++)
        differs |= shape[i] ^ made[i];
    if (dlx_unlikely(differs != 0))
        return NULL;
    (void)dlx__cache_slot_pop(slot);
    block->next = NULL;
    dlx__block_hand_out(block);
    return block;
}

/* Can its memory be used again at once? */
static inline bool dlx__block_is_reusable(const struct dlx_block *block)
{
    return block->arena && block->arena->state == DLX_ARENA_USED && !block->is_protected;
}

/* Give a block that is not local back, or a reference, on the publisher's thread. NULL is fine. */
static inline void dlx__heap_give(struct dlx_heap *heap, struct dlx_block *block)
{
    struct dlx_cache_slot *last = ((struct dlx_heap_hints *)heap)->last;
    if (dlx_likely(block && last->size == block->size && dlx__block_is_reusable(block)))
        dlx__cache_slot_push(last, block);
    else
        dlx__heap_give_elsewhere(heap, block);
}

/* A reference to a block whose tensor is local, for a message: to be given back. Returns 0;
 * DLX_E_NO_MEMORY. */
dlx_for_gpu int dlx__block_share(struct dlx_block *block, struct dlx_block **ret);

/* ---- the debug mode ------------------------------------------------------------------------- */

/*
 * The debug mode: what was published is write-protected in the publisher's own mapping until its
 * memory comes back. A heap is in it or not for as long as it lives; in it, each block has whole
 * pages of its own, whose last bytes no tensor has. They are filled when a tensor is exported, and
 * have to be as they were when it is published or deleted.
 */

/* At least so many bytes behind each tensor. */
#define DLX_DEBUG_GUARD 64U

/* What a block is aligned to then, and a multiple of: the pages of the kernel. */
uint64_t dlx__debug_align(void);

/* Fill the bytes behind an exported tensor. */
void dlx__debug_guard(struct dlx_block *block);

/* Abort if they were written to. */
void dlx__debug_check(const struct dlx_block *block);

/* Write-protect a list of blocks, by `next`, or what they refer to. False: the kernel has refused
 * some of it. */
bool dlx__debug_protect(struct dlx_block *blocks);

/* The same for one block that comes back. False: the kernel has refused, so it cannot be used. */
bool dlx__debug_unprotect(struct dlx_block *block);

#endif
