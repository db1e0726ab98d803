/* SPDX-License-Identifier: Apache-2.0 */
#include "client/spares.h"

void dlx__spares_give_up_one(struct dlx_block *block, struct dlx_block **pool)
{
    dlx__extents_give(block->arena, block->offset, block->size);
    block->arena->n_blocks--;
    block->arena = NULL;
    block->next = *pool;
    *pool = block;
}

static void give_up(struct dlx_spare *spare, uint64_t n, struct dlx_block **pool)
{
    for (; n > 0; n--)
        dlx__spares_give_up_one(dlx__spare_pop(spare), pool);
    spare->n_least = spare->n;
}

/* The older of the two sizes goes. */
struct dlx_spare *dlx__spares_make(struct dlx_spares *spares, uint64_t size,
                                   struct dlx_block **pool)
{
    struct dlx_spare *newer = dlx__spares_of(spares, size), *older = newer - 1;
    give_up(older, older->n, pool);
    *older = *newer;
    *newer = (struct dlx_spare){.size = size};
    return newer;
}

bool dlx__spares_give_up(struct dlx_spares *spares, struct dlx_block **pool)
{
    bool any = false;
    for (uint32_t i = 0; i < DLX_N_SPARES; i++) {
        any |= spares->all[i].n > 0;
        give_up(&spares->all[i], spares->all[i].n, pool);
    }
    return any;
}

void dlx__spares_trim(struct dlx_spares *spares, struct dlx_block **pool, uint64_t least)
{
    for (uint32_t i = 0; i < DLX_N_SPARES; i++) {
        struct dlx_spare *spare = &spares->all[i];
        bool few = spare->size == 0 || spare->n_least < least / spare->size;
        give_up(spare, few ? 0 : spare->n_least, pool);
    }
}

void dlx__spares_want_none(struct dlx_spares *spares)
{
    for (uint32_t i = 0; i < DLX_N_SPARES; i++)
        spares->all[i].n_wanted = 0;
}

bool dlx__spares_want(struct dlx_spares *spares, uint64_t size)
{
    struct dlx_spare *spare = dlx__spares_of(spares, size);
    return spare->size == size && spare->n_wanted++ < spare->n;
}
