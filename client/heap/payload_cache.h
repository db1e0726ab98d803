/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_PAYLOAD_CACHE_H
#define DLX_CLIENT_PAYLOAD_CACHE_H

/*
 * Blocks of a heap that were given back and keep their memory, by size: the next message is
 * probably of the same size. Two sizes for each hash: those of a state dict and its manifest are
 * not to drive each other out.
 */

#include "client/heap/block.h"

#define DLX_PAYLOAD_CACHE_LOG2  5U
#define DLX_PAYLOAD_CACHE_SLOTS (2U << DLX_PAYLOAD_CACHE_LOG2)

struct dlx_payload_cache {
    struct dlx_cache_slot all[DLX_PAYLOAD_CACHE_SLOTS];
};

/* Where blocks of this size are, if there are any. */
static inline struct dlx_cache_slot *dlx__payload_cache_slot(struct dlx_payload_cache *cache,
                                                             uint64_t size)
{
    uint64_t hash =
        size / DLX_SHM_ALIGN * UINT64_C(0x9e3779b97f4a7c15) >> (64 - DLX_PAYLOAD_CACHE_LOG2);
    struct dlx_cache_slot *two = &cache->all[2 * hash];
    return &two[two[0].size != size];
}

static inline bool dlx__payload_cache_have(struct dlx_payload_cache *cache, uint64_t size)
{
    const struct dlx_cache_slot *slot = dlx__payload_cache_slot(cache, size);
    return slot->first && slot->size == size;
}

/* Does the one that dlx__payload_cache_take() would return lie in this arena? */
static inline bool dlx__payload_cache_first(struct dlx_payload_cache *cache, uint64_t size,
                                            const struct dlx_arena *arena)
{
    const struct dlx_cache_slot *slot = dlx__payload_cache_slot(cache, size);
    return slot->first && slot->size == size && slot->first->arena == arena;
}

/* One of this size; NULL: there is none. */
static inline struct dlx_block *dlx__payload_cache_take(struct dlx_payload_cache *cache,
                                                        uint64_t size,
                                                        struct dlx_cache_slot **ret_slot)
{
    struct dlx_cache_slot *slot = dlx__payload_cache_slot(cache, size);
    if (dlx_unlikely(!slot->first || slot->size != size))
        return NULL;
    *ret_slot = slot;
    return dlx__cache_slot_pop(slot);
}

/* May drive another size out: memory of those goes back to their arenas, and their structs into the
 * pool. */
struct dlx_cache_slot *dlx__payload_cache_make(struct dlx_payload_cache *cache, uint64_t size,
                                               struct dlx_block **pool);
static inline void dlx__payload_cache_give(struct dlx_payload_cache *cache, struct dlx_block *block,
                                           struct dlx_block **pool)
{
    struct dlx_cache_slot *slot = dlx__payload_cache_slot(cache, block->size);
    if (dlx_unlikely(slot->size != block->size))
        slot = dlx__payload_cache_make(cache, block->size, pool);
    dlx__cache_slot_push(slot, block);
}

/* The memory of a block that is in no queue goes back to its arena, and its struct into the
 * pool. */
void dlx__payload_cache_give_up_one(struct dlx_block *block, struct dlx_block **pool);

/* Those that nobody took since the last call go likewise, unless they have fewer than `least` bytes
 * together. */
void dlx__payload_cache_trim(struct dlx_payload_cache *cache, struct dlx_block **pool,
                             uint64_t least);

/* All of them. Were there any? */
bool dlx__payload_cache_give_up(struct dlx_payload_cache *cache, struct dlx_block **pool);

/* See dlx__heap_want(). */
void dlx__payload_cache_want_none(struct dlx_payload_cache *cache);
bool dlx__payload_cache_want(struct dlx_payload_cache *cache, uint64_t size);

#endif
