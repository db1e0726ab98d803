/* SPDX-License-Identifier: Apache-2.0 */
#include "client/heap/payload_cache.h"

void dlx__payload_cache_give_up_one(struct dlx_block *block, struct dlx_block **pool)
{
    dlx__extents_give(block->arena, block->offset, block->size);
    block->arena->n_blocks--;
    block->arena = NULL;
    block->next = *pool;
    *pool = block;
}

static void give_up(struct dlx_cache_slot *slot, uint64_t n, struct dlx_block **pool)
{
    for (; n > 0; n--)
        dlx__payload_cache_give_up_one(dlx__cache_slot_pop(slot), pool);
    slot->n_least = slot->n;
}

/* The older of the two sizes goes. */
struct dlx_cache_slot *dlx__payload_cache_make(struct dlx_payload_cache *cache, uint64_t size,
                                               struct dlx_block **pool)
{
    struct dlx_cache_slot *newer = dlx__payload_cache_slot(cache, size), *older = newer - 1;
    give_up(older, older->n, pool);
    *older = *newer;
    *newer = (struct dlx_cache_slot){.size = size};
    return newer;
}

bool dlx__payload_cache_give_up(struct dlx_payload_cache *cache, struct dlx_block **pool)
{
    bool any = false;
    for (uint32_t i = 0; i < DLX_PAYLOAD_CACHE_SLOTS; i++) {
        any |= cache->all[i].n > 0;
        give_up(&cache->all[i], cache->all[i].n, pool);
    }
    return any;
}

void dlx__payload_cache_trim(struct dlx_payload_cache *cache, struct dlx_block **pool,
                             uint64_t least)
{
    for (uint32_t i = 0; i < DLX_PAYLOAD_CACHE_SLOTS; i++) {
        struct dlx_cache_slot *slot = &cache->all[i];
        bool few = slot->size == 0 || slot->n_least < least / slot->size;
        give_up(slot, few ? 0 : slot->n_least, pool);
    }
}

void dlx__payload_cache_want_none(struct dlx_payload_cache *cache)
{
    for (uint32_t i = 0; i < DLX_PAYLOAD_CACHE_SLOTS; i++)
        cache->all[i].n_wanted = 0;
}

bool dlx__payload_cache_want(struct dlx_payload_cache *cache, uint64_t size)
{
    struct dlx_cache_slot *slot = dlx__payload_cache_slot(cache, size);
    return slot->size == size && slot->n_wanted++ < slot->n;
}
