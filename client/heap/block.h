/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_BLOCK_H
#define DLX_CLIENT_BLOCK_H

/* A block of a publisher's heap, which client/heap/heap.h speaks of, and a queue of such. */

#include "client/heap/arena.h"
#include "common/util.h"
#include "ring/entry.h"
#include <dlpack/dlpack.h>
#include <stdatomic.h>
#include <string.h>

struct dlx_heap;
struct dlx_block;

/* What a block without memory stands for: the tensors of a message that are on GPUs
 * (gpu/lib/share.c). */
struct dlx_block_guest {
    void (*came_back)(struct dlx_block *block);
    /* Wait until nothing of its message will be written any more. */
    void (*settle)(const struct dlx_block *block);
    /* Another block stands for it, too. */
    void (*again)(struct dlx_block_guest *guest, struct dlx_block *block);
};

/* Blocks of one size that were given back. */
struct dlx_cache_slot {
    uint64_t size;           /* of those in it, or of the last that were */
    struct dlx_block *first; /* a queue: structs are used again as late as possible */
    struct dlx_block *last;
    uint64_t n;
    uint64_t n_least;  /* since the last dlx__heap_trim() */
    uint64_t n_wanted; /* see dlx__heap_want() */
};

/* The first member of a heap. */
struct dlx_heap_hints {
    struct dlx_cache_slot *last; /* where a block was taken last; at first, any */
    /* Local blocks whose deleter was called; `closed_stack` once the publisher has gone. */
    struct dlx_block *_Atomic returned;
    struct dlx_block *unsettled; /* the same, fetched, but not to be used again yet */
    uint64_t n_local;            /* exported, neither published nor seen coming back */
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
    bool is_guarded;   /* its heap is in the debug mode: client/heap/heap.h */
    bool is_protected; /* it cannot be written now */
    bool has_words;    /* it was exported, and its tensor fits into a ring entry: `words` */
    bool is_counted;   /* `message_bytes` is set */
    bool is_plain;     /* has_words and memory, it is not guarded, and nothing refers to it */
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

/* The first block of a message says that the message has other bytes than this tensor. */
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

#endif
