/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_HEAP_H
#define DLX_CLIENT_HEAP_H

/*
 * A publisher's payload memory: arenas, and blocks inside them. A block is either LOCAL (a tensor that
 * the caller has from dlx_alloc()), or in a slot, or spare: given back, and kept whole because the next
 * message is probably of the same size. Blocks of local tensors come back from any thread, over a
 * lock-free stack; everything else is the publisher's thread's, and needs no atomic operation.
 *
 * A block may also be LOCAL and in slots (published with `share`), in any number of them. Each slot then has
 * a reference: a block without memory of its own. They are counted on the publisher's thread, which fills and
 * frees slots and empties the stack, so the count is a plain number. The block comes back with the last
 * of its references and its local tensor.
 *
 * The heap outlives its publisher as long as a local tensor does.
 */

#include "client/client.h"
#include "client/extents.h"
#include "common/shm.h"
#include <dlpack/dlpack.h>

struct dlx_heap;

/* Payload of a tensor or a manifest, and the managed tensor that dlx_alloc() hands out. */
struct dlx_block {
    DLManagedTensorVersioned tensor;
    struct dlx_heap *heap;
    struct dlx_arena *arena; /* NULL: a block of 0 bytes */
    struct dlx_block *next;  /* in a pool, in the stack of returned blocks, or in its slot */
    const void *ahead; /* `next` of one some way down the list of its set: a hint, maybe stale */
    uint64_t offset;   /* in the arena, a multiple of DLX_SHM_ALIGN; of pages if guarded */
    uint64_t size;     /* usable bytes */
    uint64_t payload_size; /* bytes of the tensor that was exported */
    DLDataType dtype;      /* likewise */
    int32_t ndim;          /* likewise; -1: none was, since it has this memory */
    uint64_t set;          /* number of the last one that it was seen in */
    bool is_local;         /* while there are references: the caller has its tensor */
    bool is_guarded;       /* its heap is in the debug mode: client/debug.h */
    bool is_protected;     /* it cannot be written now */
    uint32_t n_refs;       /* blocks that refer to it */
    struct dlx_block *of;  /* what it refers to; NULL: it is no reference */
    uint32_t dims_room;    /* dimensions that `dims` has room for */
    int64_t
        *dims; /* shape and strides of `tensor`, and the same again as they were made: inline_dims
                    * unless there are many */
    int64_t inline_dims[4 * DLX_SHM_NDIM_INLINE];
};

/* Returns 0; DLX_E_NO_MEMORY. It is in the debug mode if that is on now. */
int dlx__heap_new(struct dlx_heap **ret, uint64_t generation);

/* The publisher is gone, all its slots were given back: what is local stays, and the heap goes with the
 * last of it. NULL is fine. */
void dlx__heap_close(struct dlx_heap *heap);

/*
 * A block of `size` bytes from the arenas that are there. Returns 0; DLX_E_FULL (none fits),
 * DLX_E_NO_MEMORY.
 */
int dlx__heap_take(struct dlx_heap *heap, uint64_t size, struct dlx_block **ret);

/*
 * From now on a block is taken wherever it fits, or again where client/fit.h wants it: for blocks that come and go
 * together, in an arena made for all of them, and when no more arenas can be had. Returns what was so before.
 */
bool dlx__heap_put_anywhere(struct dlx_heap *heap, bool anywhere);

/* Does a block of `size` bytes have an arena of its own? See client/fit.h. */
bool dlx__heap_is_large(const struct dlx_heap *heap, uint64_t size);

/* What a block of `size` bytes takes. False: there is no such number. */
bool dlx__heap_round(const struct dlx_heap *heap, uint64_t size, uint64_t *ret);

/* Is there a block of exactly that size, given back? */
bool dlx__heap_has(struct dlx_heap *heap, uint64_t size);

/*
 * Are there blocks, given back, for all parts of a set? After dlx__heap_want_none(), dlx__heap_want() says so of one
 * part after the other; as long as it does, dlx__heap_take() will find them.
 */
void dlx__heap_want_none(struct dlx_heap *heap);
bool dlx__heap_want(struct dlx_heap *heap, uint64_t size);

/* Give a block that is not local back, or a reference, on the publisher's thread. NULL is fine. */
void dlx__heap_give(struct dlx_heap *heap, struct dlx_block *block);

/* Fetch blocks whose local tensors were deleted. Part of dlx__heap_take(). */
void dlx__heap_collect(struct dlx_heap *heap);

/* Bytes of a new arena that has room for `size` more; UINT64_MAX if there is no such number. */
uint64_t dlx__heap_growth(const struct dlx_heap *heap, uint64_t size);

/* Add an arena: mapped read-write and announced. Owns the map on success. Returns 0; DLX_E_NO_MEMORY. */
int dlx__heap_add(struct dlx_heap *heap, uint32_t id, void *map, uint64_t size);

/*
 * An arena that has been empty since before `since` (a message number), not the only one: unmap it and
 * return its id. 0 if there is none. `now` is the current message number.
 */
uint32_t dlx__heap_drop_idle(struct dlx_heap *heap, uint64_t now, uint64_t since);

/*
 * An arena of `size` bytes is about to be added: if that makes more than what was used lately and some slack, unmap an
 * empty one and return its id. 0: nothing is to go. `now` is the current message number, `window` how many messages
 * "lately" is.
 */
uint32_t dlx__heap_drop_excess(struct dlx_heap *heap, uint64_t size, uint64_t now, uint64_t window);
/* Unmap an empty arena and return its id; 0 if there is none. */
uint32_t dlx__heap_drop_empty(struct dlx_heap *heap);

/*
 * The daemon that knew the arenas has ended. Set aside, they are as they were, but nothing is put into them, and blocks in them that are
 * given back wait; the heap begins anew. What follows is one of the other two.
 */
struct dlx_heap_aside {
    struct dlx_arena *arenas;
    uint32_t n_arenas;
    uint64_t bytes;
};
void dlx__heap_set_aside(struct dlx_heap *heap, struct dlx_heap_aside *ret);
/* As it was: what was added since goes. No block is in that. */
void dlx__heap_bring_back(struct dlx_heap *heap, struct dlx_heap_aside *aside);
/* They are of no use any more: each goes with its last block. The number of a block's arena is 0 then. */
void dlx__heap_freeze(struct dlx_heap *heap, struct dlx_heap_aside *aside);

uint64_t dlx__heap_bytes(const struct dlx_heap *heap);
uint32_t dlx__heap_n_arenas(const struct dlx_heap *heap);

/* 0: a block of 0 bytes, or frozen. */
static inline uint32_t dlx__block_arena_id(const struct dlx_block *block)
{
    return block->arena ? block->arena->id : 0;
}

/* No newcomer will be told of its memory. */
static inline bool dlx__block_is_frozen(const struct dlx_block *block)
{
    return block->arena && dlx__block_arena_id(block) == 0;
}

/* NULL for a block of 0 bytes. */
static inline void *dlx__block_data(const struct dlx_block *block)
{
    return block->arena ? block->arena->map + block->offset : NULL;
}

/*
 * Make the block a local tensor: its deleter gives it back. Fills dtype, shape and row-major strides.
 * `payload_size` is what dlx__tensor_size() says of them. Returns 0; DLX_E_NO_MEMORY.
 */
int dlx__block_export(struct dlx_block *block, DLDataType dtype, int32_t ndim, const int64_t *shape,
                      uint64_t payload_size);

/*
 * Take and export in one: the block that would be taken, if it was last exported with this very dtype and shape. NULL: not so, or
 * there are not 1 to DLX_SHM_NDIM_MAX dimensions; nothing was done.
 */
struct dlx_block *dlx__heap_export_again(struct dlx_heap *heap, DLDataType dtype, int32_t ndim,
                                         const int64_t *shape);

static inline bool dlx__dtype_is(DLDataType a, DLDataType b)
{
    uint32_t x, y;
    memcpy(&x, &a, sizeof x); /* it has no padding */
    memcpy(&y, &b, sizeof y);
    return x == y;
}

/* Is the local tensor as it was exported, so that its payload has the size known then, row-major? */
static inline bool dlx__block_is_unchanged(const struct dlx_block *block, bool padded)
{
    const DLTensor *t = &block->tensor.dl_tensor;
    uint32_t n = (uint32_t)block->ndim;
    if (padded || t->data != dlx__block_data(block) || t->byte_offset != 0 ||
        t->ndim != block->ndim || t->shape != block->dims || t->strides != block->dims + n ||
        !dlx__dtype_is(t->dtype, block->dtype) || t->device.device_type != kDLCPU ||
        t->device.device_id != 0)
        return false;
    int64_t differs = 0;
    for (uint32_t i = 0; i < 2 * n; i++)
        differs |= block->dims[i] ^ block->dims[2 * n + i];
    return differs == 0;
}

/* The block of a tensor that dlx__block_export() of this heap made, else NULL, as for what a caller made from a copy of it. */
struct dlx_block *dlx__block_of(const struct dlx_heap *heap,
                                const DLManagedTensorVersioned *tensor);

/* The local tensor was published and does not stay local: its deleter will not be called. */
void dlx__block_published(struct dlx_block *block);
/* So were those of n blocks that nothing refers to. */
void dlx__heap_published(struct dlx_heap *heap, uint32_t n);

/* A reference to a block whose tensor is local, for a slot: to be given back. Returns 0; DLX_E_NO_MEMORY. */
int dlx__block_share(struct dlx_block *block, struct dlx_block **ret);

#endif
