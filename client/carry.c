/* SPDX-License-Identifier: Apache-2.0 */
#include "client/carry.h"
#include "client/debug.h"
#include <string.h>

uint32_t dlx__carry_count(const struct dlx_publisher *p)
{
    uint64_t n = DLX_MIN(dlx__pub_n_live(&p->core), p->core.head - p->base);
    return (uint32_t)DLX_MIN(n, p->retain);
}

/* The block that has the memory: a reference has none. */
static const struct dlx_block *memory_of(const struct dlx_block *block)
{
    return block->of ? block->of : block;
}

static const struct dlx_block *payload_of(const struct dlx_publisher *p, uint64_t seq,
                                          const struct dlx_shm_slot **ret_slot)
{
    uint32_t slot;
    const struct dlx_pub_block *block = dlx__pub_find(&p->core, seq, &slot);
    *ret_slot = &block->slots[slot];
    return block->payloads[slot];
}

/* Bytes of the arena that they need, all of them. UINT64_MAX: there is no such number. */
static uint64_t total_size(const struct dlx_publisher *p, uint32_t n)
{
    const struct dlx_shm_slot *slot;
    uint64_t total = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct dlx_block *block = payload_of(p, p->core.head - i, &slot);
        for (; block; block = block->next)
            if (__builtin_add_overflow(total, memory_of(block)->size, &total))
                return UINT64_MAX;
    }
    return total;
}

static void give_all(struct dlx_publisher *p, struct dlx_block *block)
{
    while (block) {
        struct dlx_block *next = block->next;
        dlx__heap_give(p->heap, block);
        block = next;
    }
}

/* The same blocks in the same order. */
static int copy_blocks(struct dlx_publisher *p, const struct dlx_block *from,
                       struct dlx_block **ret)
{
    struct dlx_block **at = ret;
    *ret = NULL;
    for (; from; from = from->next) {
        const struct dlx_block *source = memory_of(from);
        int r = dlx__heap_take(p->heap, source->size, at);
        if (r < 0) {
            *at = NULL;
            give_all(p, *ret);
            *ret = NULL;
            return r;
        }
        if (source->size > 0)
            memcpy(dlx__block_data(*at), dlx__block_data(source), source->size);
        at = &(*at)->next;
    }
    return 0;
}

/* A message's blocks and their copies, in the same order. */
struct copied {
    const struct dlx_block *from_first, *from;
    const struct dlx_block *to_first, *to;
};

static bool has(const struct dlx_block *block, uint32_t arena, uint64_t offset)
{
    const struct dlx_block *source = memory_of(block);
    return dlx__block_arena_id(source) == arena && offset >= source->offset &&
           offset - source->offset < source->size;
}

/* What lay at `offset` of `arena` is in the copy that is returned. Records name blocks in their order: the search goes on where
 * the last one ended. NULL: it has no memory. */
static const struct dlx_block *relocate(struct copied *copied, uint32_t *arena, uint64_t *offset)
{
    if (*arena == 0)
        return NULL;
    const struct dlx_block *began = copied->from;
    while (!has(copied->from, *arena, *offset)) {
        copied->from = copied->from->next;
        copied->to = copied->to->next;
        if (!copied->from) {
            copied->from = copied->from_first;
            copied->to = copied->to_first;
        }
        if (copied->from == began)
            return NULL; /* not of an honest publisher, which is ourselves */
    }
    *offset = copied->to->offset + (*offset - memory_of(copied->from)->offset);
    *arena = dlx__block_arena_id(copied->to);
    return copied->to;
}

static void relocate_slot(struct copied *copied, struct dlx_shm_slot *slot)
{
    if (!(slot->flags & DLX_SHM_SLOT_MANIFEST)) {
        (void)relocate(copied, &slot->record.arena, &slot->record.offset);
        return;
    }
    const struct dlx_block *manifest =
        relocate(copied, &slot->manifest_arena, &slot->manifest_offset);
    if (!manifest)
        return;
    uint8_t *data = dlx__block_data(manifest);
    struct dlx_shm_manifest_entry *entries =
        (void *)(data + (slot->manifest_offset - manifest->offset) +
                 sizeof(struct dlx_shm_manifest));
    for (uint32_t i = 0; i < slot->n_tensors; i++)
        (void)relocate(copied, &entries[i].record.arena, &entries[i].record.offset);
}

static int copy_message(struct dlx_publisher *p, uint64_t seq, struct dlx_shm_slot *to,
                        void **ret_payload)
{
    const struct dlx_shm_slot *slot;
    const struct dlx_block *blocks = payload_of(p, seq, &slot);
    struct dlx_block *copies;
    int r = copy_blocks(p, blocks, &copies);
    if (r < 0)
        return r;
    memcpy((char *)to + sizeof to->gen, (const char *)slot + sizeof slot->gen,
           sizeof *slot - sizeof slot->gen);
    struct copied copied = {blocks, blocks, copies, copies};
    relocate_slot(&copied, to);
    if (copies->is_guarded)
        p->stats.unprotected += !dlx__debug_protect(copies);
    *ret_payload = copies;
    return 0;
}

static int copy_messages(struct dlx_publisher *p, struct dlx_pub_block *block, uint32_t n)
{
    void **payloads = calloc(n, sizeof *payloads);
    int r = payloads ? 0 : dlx__fail(DLX_E_NO_MEMORY, "table of %u messages", n);
    for (uint32_t i = 0; r == 0 && i < n; i++)
        r = copy_message(p, p->core.head - n + 1 + i, &block->slots[i], &payloads[i]);
    if (r == 0)
        dlx__pub_carry(&p->core, block, n, payloads);
    for (uint32_t i = 0; r < 0 && payloads && i < n; i++)
        give_all(p, payloads[i]);
    free(payloads);
    return r;
}

int dlx__carry(struct dlx_publisher *p, const struct dlx_memory *memory, uint64_t id,
               struct dlx_pub_block *block, uint32_t n)
{
    uint64_t size = total_size(p, n);
    int r = size > 0 ? dlx__publisher_grow(p, memory, id, size) : 0;
    if (r < 0)
        return r;
    bool before =
        dlx__heap_put_anywhere(p->heap, true); /* that is the arena that was made for all of it */
    r = copy_messages(p, block, n);
    (void)dlx__heap_put_anywhere(p->heap, before);
    return r;
}

void dlx__carry_undo(struct dlx_publisher *p, struct dlx_pub_block *block)
{
    for (uint32_t i = 0; i < block->n_carried; i++)
        give_all(p, block->payloads[i]);
    block->n_carried = 0;
}
