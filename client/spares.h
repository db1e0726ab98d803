/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_SPARES_H
#define DLX_CLIENT_SPARES_H

/*
 * Blocks of a heap that were given back and keep their memory, by size: the next message is probably of the same
 * size. Two sizes for each hash: those of a state dict and its manifest are not to drive each other out.
 */

#include "client/heap.h"

#define DLX_SPARES_LOG2 5U
#define DLX_N_SPARES    (2U << DLX_SPARES_LOG2)

struct dlx_spares {
    struct dlx_spare all[DLX_N_SPARES];
};

/* Where blocks of this size are, if there are any. */
static inline struct dlx_spare *dlx__spares_of(struct dlx_spares *spares, uint64_t size)
{
    uint64_t hash = size / DLX_SHM_ALIGN * UINT64_C(0x9e3779b97f4a7c15) >> (64 - DLX_SPARES_LOG2);
    struct dlx_spare *two = &spares->all[2 * hash];
    return &two[two[0].size != size];
}

static inline bool dlx__spares_have(struct dlx_spares *spares, uint64_t size)
{
    const struct dlx_spare *spare = dlx__spares_of(spares, size);
    return spare->first && spare->size == size;
}

/* Does the one that dlx__spares_take() would return lie in this arena? */
static inline bool dlx__spares_first(struct dlx_spares *spares, uint64_t size,
                                     const struct dlx_arena *arena)
{
    const struct dlx_spare *spare = dlx__spares_of(spares, size);
    return spare->first && spare->size == size && spare->first->arena == arena;
}

/* One of this size; NULL: there is none. */
static inline struct dlx_block *dlx__spares_take(struct dlx_spares *spares, uint64_t size,
                                                 struct dlx_spare **ret_spare)
{
    struct dlx_spare *spare = dlx__spares_of(spares, size);
    if (dlx_unlikely(!spare->first || spare->size != size))
        return NULL;
    *ret_spare = spare;
    return dlx__spare_pop(spare);
}

/* May drive another size out: memory of those goes back to their arenas, and their structs into the pool. */
struct dlx_spare *dlx__spares_make(struct dlx_spares *spares, uint64_t size,
                                   struct dlx_block **pool);
static inline void dlx__spares_give(struct dlx_spares *spares, struct dlx_block *block,
                                    struct dlx_block **pool)
{
    struct dlx_spare *spare = dlx__spares_of(spares, block->size);
    if (dlx_unlikely(spare->size != block->size))
        spare = dlx__spares_make(spares, block->size, pool);
    dlx__spare_push(spare, block);
}

/* The memory of a block that is in no queue goes back to its arena, and its struct into the pool. */
void dlx__spares_give_up_one(struct dlx_block *block, struct dlx_block **pool);

/* Those that nobody took since the last call go likewise, unless they have fewer than `least` bytes together. */
void dlx__spares_trim(struct dlx_spares *spares, struct dlx_block **pool, uint64_t least);

/* All of them. Were there any? */
bool dlx__spares_give_up(struct dlx_spares *spares, struct dlx_block **pool);

/* See dlx__heap_want(). */
void dlx__spares_want_none(struct dlx_spares *spares);
bool dlx__spares_want(struct dlx_spares *spares, uint64_t size);

#endif
