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
#include "client/heap/extents.h"
#include "ring/entry.h"
#include <dlpack/dlpack.h>
#include <stdatomic.h>

struct dlx_heap;
struct dlx_block;

/*
 * What a block without memory stands for: the tensors of a message that are on GPUs
 * (client/publish/gpu_share.h). It hears of the block that comes back.
 */
struct dlx_block_guest {
    void (*came_back)(struct dlx_block *block);
};

/* Blocks of one size that were given back: client/heap/payload_cache.h. */
struct dlx_cache_slot {
    uint64_t size;           /* of those in it, or of the last that were */
    struct dlx_block *first; /* a queue: structs are used again as late as possible */
    struct dlx_block *last;
    uint64_t n;
    uint64_t n_least;  /* since the last dlx__payload_cache_trim() */
    uint64_t n_wanted; /* see dlx__payload_cache_want() */
};

/* The first member of a heap. */
struct dlx_heap_hints {
    struct dlx_cache_slot *last; /* where a block was taken last; at first, any */
    /* Local blocks whose deleter was called; `closed_stack` once the publisher has gone. */
    struct dlx_block *_Atomic returned;
    uint64_t n_local; /* exported, neither published nor seen coming back */
};

/* Payload of a tensor or a manifest, and the managed tensor that dlx_alloc() hands out. */
struct dlx_block {
    _Alignas(DLX_CACHELINE) DLManagedTensorVersioned tensor;
    DLTensor made;         /* as it was exported; ndim -1: it was not, since it has this memory */
    uint64_t payload_size; /* bytes of the tensor that was exported */
    /* The caller has its tensor: not yet published nor deleted. Cleared by the deleter, on any
     * thread. */
    atomic_bool at_caller;
    bool is_dirty;     /* `tensor`, or the shape that it points to, may not be as it was exported */
    bool is_local;     /* while there are references: the caller has its tensor */
    bool is_guarded;   /* its heap is in the debug mode: client/heap/debug.h */
    bool is_protected; /* it cannot be written now */
    bool has_words;    /* it was exported, and its tensor fits into a ring entry: `words` */
    bool is_counted;   /* `message_bytes` is set */
    bool is_plain;     /* has_words, it is not guarded, and nothing refers to it */
    uint32_t n_refs;   /* blocks that refer to it */
    uint16_t dims_room; /* dimensions that `dims` has room for */
    bool is_gpu;        /* it has no memory, and stands for tensors on GPUs: `guest` */
    /* The words of its ring entry: prepared once, when it is exported. */
    uint64_t words[DLX_SHM_ENTRY_WORDS];
    struct dlx_heap *heap;
    struct dlx_arena *arena; /* NULL: a block of 0 bytes */
    struct dlx_block *next;  /* in a pool, in the stack of returned blocks, or of its message */
    union {
        const void
            *ahead; /* `next` of one some way down the list of its set: a hint, maybe stale */
        struct dlx_block_guest *guest;
    };
    uint64_t offset;        /* in the arena, a multiple of DLX_SHM_ALIGN; of pages if guarded */
    uint64_t size;          /* usable bytes */
    uint64_t set;           /* number of the last one that it was seen in */
    struct dlx_block *of;   /* what it refers to; NULL: it is no reference */
    uint64_t message_bytes; /* see dlx__block_message_bytes() */
    /* Shape and strides of `tensor`, and the same again as they were made: inline_dims unless there
     * are many. */
    int64_t *dims;
    int64_t inline_dims[4 * DLX_SHM_NDIM_ENTRY];
};

/* A message with one dimension uses only the first lines of its block. */
#define DLX_BLOCK_LINES 5U
_Static_assert(offsetof(struct dlx_block, inline_dims) + 4 * sizeof(int64_t) <=
                   DLX_BLOCK_LINES * DLX_CACHELINE,
               "shape and strides of one dimension, twice");

/* What its arenas are. */
struct dlx_heap_kind {
    DLDevice device; /* of tensors in it */
    uint64_t align;  /* of blocks, and of their sizes */
    uint64_t least;  /* bytes of an arena */
    /* The end of an arena; on any thread, once the publisher has gone. */
    void (*free_arena)(const struct dlx_heap_kind *kind, const struct dlx_arena *arena);
    /* Memory of local tensors that were deleted is about to be used again. NULL: nothing is to be
     * done for that. */
    void (*settle)(const struct dlx_heap_kind *kind);
};

/* Of shared memory. Returns 0; DLX_E_NO_MEMORY. `is_guarded`: it is in the debug mode. */
int dlx__heap_new(struct dlx_heap **ret, uint64_t generation, bool is_guarded);
/* Of another kind, which is copied. */
int dlx__heap_new_of(struct dlx_heap **ret, uint64_t generation, const struct dlx_heap_kind *kind);
const struct dlx_heap_kind *dlx__heap_kind(const struct dlx_heap *heap);

/* The publisher is gone, all its messages were freed: what is local stays, and the heap goes with
 * the last of it. NULL is fine. */
void dlx__heap_close(struct dlx_heap *heap);

/*
 * A block of `size` bytes from the arenas that are there. Returns 0; DLX_E_FULL (none fits),
 * DLX_E_NO_MEMORY.
 */
int dlx__heap_take(struct dlx_heap *heap, uint64_t size, struct dlx_block **ret);

/*
 * Likewise, but from the arena of `other`, which comes back when that does: a block elsewhere would
 * keep another arena from becoming empty. NULL: there is none.
 */
int dlx__heap_take_beside(struct dlx_heap *heap, const struct dlx_block *other, uint64_t size,
                          struct dlx_block **ret);

/*
 * From now on a block is taken wherever it fits, or again where client/heap/arena_policy.h wants
 * it: for blocks that come and go together, in an arena made for all of them, and when no more
 * arenas can be had. Returns what was so before.
 */
bool dlx__heap_put_anywhere(struct dlx_heap *heap, bool anywhere);

/* Does a block of `size` bytes have an arena of its own? See client/heap/arena_policy.h. */
bool dlx__heap_is_large(const struct dlx_heap *heap, uint64_t size);

/* What a block of `size` bytes takes. False: there is no such number. */
bool dlx__heap_round(const struct dlx_heap *heap, uint64_t size, uint64_t *ret);

/* The next block of the size that was taken last, which dlx__heap_export_again() would take. NULL:
 * none is left. */
static inline const struct dlx_block *dlx__heap_next(const struct dlx_heap *heap)
{
    return ((const struct dlx_heap_hints *)heap)->last->first;
}

/*
 * Are there blocks, given back, for all parts of a set? After dlx__heap_want_none(),
 * dlx__heap_want() says so of one part after the other; as long as it does, dlx__heap_take() will
 * find them.
 */
void dlx__heap_want_none(struct dlx_heap *heap);
bool dlx__heap_want(struct dlx_heap *heap, uint64_t size);

/* dlx__heap_give() of one that does not go where one was taken last. */
void dlx__heap_give_elsewhere(struct dlx_heap *heap, struct dlx_block *block);

/* Fetch blocks whose local tensors were deleted. Part of dlx__heap_take(). */
void dlx__heap_collect(struct dlx_heap *heap);

/* Bytes of a new arena that has room for `size` more; UINT64_MAX if there is no such number. */
uint64_t dlx__heap_growth(const struct dlx_heap *heap, uint64_t size);

/* Whose arenas are added from now on: they are noted there (client/base/mapped.h). The caller keeps
 * it until the next call, or the heap's end. Returns what was so before. */
struct dlx_mapped_source;
struct dlx_mapped_source *dlx__heap_note_in(struct dlx_heap *heap,
                                            struct dlx_mapped_source *borrow_source);

/* Add an arena: mapped read-write and announced. Owns the map on success. Returns 0;
 * DLX_E_NO_MEMORY. `owner` is for the kind's free_arena(). */
int dlx__heap_add_of(struct dlx_heap *heap, uint32_t id, void *map, uint64_t size, void *owner);
static inline int dlx__heap_add(struct dlx_heap *heap, uint32_t id, void *map, uint64_t size)
{
    return dlx__heap_add_of(heap, id, map, size, NULL);
}

/*
 * Now and then: blocks of the cache that no message needed since the last call go back to their
 * arenas, unless they are few bytes and not `all`. Returns how many bytes there are beyond what is
 * in use and, unless `all`, some slack.
 */
uint64_t dlx__heap_trim(struct dlx_heap *heap, bool all);
/* That number alone. */
uint64_t dlx__heap_excess(const struct dlx_heap *heap, bool all);
/* The id of an empty arena, not the only one, where there are `excess` bytes too many: one of at
 * most so many bytes, or else the smallest. 0: there is none. */
uint32_t dlx__heap_find_empty(const struct dlx_heap *heap, uint64_t excess, uint64_t *ret_size);
/*
 * Is there still too much? Then arenas that are almost empty become empty when their blocks come
 * back, unless the stream needs much more memory before that. If not, they are used again.
 */
void dlx__heap_vacate(struct dlx_heap *heap);
/* Unmap this arena, which is empty. */
void dlx__heap_drop(struct dlx_heap *heap, uint32_t id);

/*
 * An arena of `size` bytes is about to be added: if that makes more than what was used lately and
 * some slack, unmap an empty one and return its id. 0: nothing is to go. `now` is the current
 * message number, `window` how many messages "lately" is.
 */
uint32_t dlx__heap_drop_excess(struct dlx_heap *heap, uint64_t size, uint64_t now, uint64_t window);
/* Unmap an empty arena and return its id; 0 if there is none. */
uint32_t dlx__heap_drop_empty(struct dlx_heap *heap);

/*
 * The daemon that knew the arenas has ended. Set aside, they are as they were, but nothing is put
 * into them, and blocks in them that are given back wait; the heap begins anew. What follows is one
 * of the other two.
 */
struct dlx_heap_aside {
    struct dlx_arena *arenas;
    uint32_t n_arenas;
    uint64_t bytes;
};
void dlx__heap_set_aside(struct dlx_heap *heap, struct dlx_heap_aside *ret);
/* As it was: what was added since goes. No block is in that. */
void dlx__heap_bring_back(struct dlx_heap *heap, struct dlx_heap_aside *aside);
/* They are of no use any more: each goes with its last block. The number of a block's arena is 0
 * then. */
void dlx__heap_freeze(struct dlx_heap *heap, struct dlx_heap_aside *aside);

uint64_t dlx__heap_bytes(const struct dlx_heap *heap);
/* Does the address lie in one of its arenas? */
bool dlx__heap_has(const struct dlx_heap *heap, const void *data);
/* Tensors that were deleted although they had been published. */
uint64_t dlx__heap_n_deleted_again(const struct dlx_heap *heap);
uint32_t dlx__heap_n_arenas(const struct dlx_heap *heap);

/* 0: a block of 0 bytes, or frozen. */
static inline uint32_t dlx__block_arena_id(const struct dlx_block *block)
{
    return block->arena ? block->arena->id : 0;
}

/* No newcomer will be told of its memory. */
static inline bool dlx__block_is_frozen(const struct dlx_block *block)
{
    return block->arena && block->arena->state == DLX_ARENA_FROZEN;
}

/* Bytes of the tensors of the message whose first block this is. As a rule that is a tensor as it
 * was exported, so the path of every message sets nothing. */
static inline uint64_t dlx__block_message_bytes(const struct dlx_block *block)
{
    return block->is_counted ? block->message_bytes : block->payload_size;
}

/* It is the first block of a message that has other bytes than its own tensor. */
static inline void dlx__block_count_message(struct dlx_block *block, uint64_t bytes)
{
    block->message_bytes = bytes;
    block->is_counted = true;
    block->is_dirty = true; /* the next tensor in it is not counted */
}

/* NULL for a block of 0 bytes. */
static inline void *dlx__block_data(const struct dlx_block *block)
{
    return block->arena ? block->arena->map + block->offset : NULL;
}

/*
 * Make the block a local tensor: its deleter gives it back. Fills dtype, shape and row-major
 * strides. `payload_size` is what dlx__tensor_size() says of them. Returns 0; DLX_E_NO_MEMORY.
 */
int dlx__block_export(struct dlx_block *block, DLDataType dtype, int32_t ndim, const int64_t *shape,
                      uint64_t payload_size);

static inline bool dlx__dtype_is(DLDataType a, DLDataType b)
{
    uint32_t x, y;
    memcpy(&x, &a, sizeof x); /* it has no padding */
    memcpy(&y, &b, sizeof y);
    return x == y;
}

/* Is the local tensor as it was exported, so that its payload has the size known then,
 * row-major? */
static inline bool dlx__block_is_unchanged(const struct dlx_block *block)
{
    _Static_assert(sizeof block->made == 48 && sizeof(int64_t) == 8, "pairs of words");
    const char *x = (const char *)&block->tensor.dl_tensor, *y = (const char *)&block->made;
    dlx_pair differs = (dlx__pair(x) ^ dlx__pair(y)) | (dlx__pair(x + 16) ^ dlx__pair(y + 16)) |
                       (dlx__pair(x + 32) ^ dlx__pair(y + 32));
    if (dlx_unlikely(!dlx__pair_is_zero(differs) || block->tensor.flags != 0))
        return false;
    const int64_t *dims = block->dims, *end = dims + 2 * block->made.ndim, *made = end;
    for (; dims < end; dims += 2, made += 2)
        differs |= dlx__pair(dims) ^ dlx__pair(made);
    return dlx__pair_is_zero(differs);
}

/* The deleter of local tensors. */
void dlx__block_delete(DLManagedTensorVersioned *tensor);

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

/* Take the one that came first of those in there. */
static inline struct dlx_block *dlx__cache_slot_pop(struct dlx_cache_slot *slot)
{
    struct dlx_block *block = slot->first;
    slot->first = block->next;
    slot->n--;
    if (slot->n < slot->n_least)
        slot->n_least = slot->n;
    return block;
}

/* Put it behind those in there. */
static inline void dlx__cache_slot_push(struct dlx_cache_slot *slot, struct dlx_block *block)
{
    block->next = NULL;
    if (dlx_likely(slot->first))
        slot->last->next = block;
    else
        slot->first = block;
    slot->last = block;
    slot->n++;
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
int dlx__block_share(struct dlx_block *block, struct dlx_block **ret);

#endif
