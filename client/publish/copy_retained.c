/* SPDX-License-Identifier: Apache-2.0 */
#include "client/publish/copy_retained.h"
#include "client/heap/debug.h"
#include <string.h>

uint32_t dlx__copy_retained_count(struct dlx_publisher *p, uint32_t n_put)
{
    uint64_t n_live = dlx__writer_n_live(&p->core);
    uint64_t n_retained = DLX_MIN(dlx__writer_head(&p->core) - p->daemon.base, p->retain);
    uint64_t n_behind = dlx__writer_head(&p->core) - dlx__writer_passed(&p->core);
    return (uint32_t)DLX_MIN(n_live, DLX_MAX(DLX_MAX(n_retained, n_behind), n_put));
}

/* The block that has the memory: a reference has none. */
static const struct dlx_block *memory_of(const struct dlx_block *block)
{
    return block->of ? block->of : block;
}

/* Bytes of the arena that they need, all of them. UINT64_MAX: there is no such number. */
static uint64_t total_size(const struct dlx_publisher *p, uint32_t n)
{
    uint64_t words[DLX_SHM_ENTRY_WORDS], total = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct dlx_block *block =
            dlx__writer_payload(&p->core, dlx__writer_head(&p->core) - i, words);
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
        if (from->is_gpu)
            from->guest->again(from->guest, *at);
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

/* What lay at `offset` of `arena` is in the copy that is returned. Records name blocks in their
 * order: the search goes on where the last one ended. NULL: it has no memory. */
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

static void relocate_words(struct copied *copied, uint64_t *words)
{
    uint32_t arena = dlx__entry_arena(words);
    uint64_t offset = dlx__entry_offset(words);
    const struct dlx_block *block = relocate(copied, &arena, &offset);
    dlx__entry_set_place(words, arena, offset);
    if (!block || !dlx__entry_is_manifest(words))
        return;
    uint8_t *data = dlx__block_data(block);
    struct dlx_shm_manifest *manifest = (void *)(data + (offset - block->offset));
    struct dlx_shm_manifest_entry *entries = (void *)(manifest + 1);
    for (uint32_t i = 0; i < manifest->n_tensors; i++)
        (void)relocate(copied, &entries[i].record.arena, &entries[i].record.offset);
}

static int copy_message(struct dlx_publisher *p, uint64_t seq, struct dlx_writer_block *to)
{
    uint64_t words[DLX_SHM_ENTRY_WORDS];
    const struct dlx_block *blocks = dlx__writer_payload(&p->core, seq, words);
    struct dlx_block *copies;
    for (const struct dlx_block *block = blocks; block; block = block->next)
        if (block->is_gpu)
            block->guest->settle(block);
    int r = copy_blocks(p, blocks, &copies);
    if (r < 0)
        return r;
    struct copied copied = {blocks, blocks, copies, copies};
    relocate_words(&copied, words);
    if (copies->is_guarded)
        p->stats.unprotected += !dlx__debug_protect(copies);
    dlx__block_count_message(copies, dlx__block_message_bytes(blocks));
    dlx__writer_copy_retained(to, seq, words, copies);
    return 0;
}

int dlx__copy_retained(struct dlx_publisher *p, const struct dlx_memory *memory, uint64_t id,
                       struct dlx_writer_block *block)
{
    uint32_t n = dlx__writer_block_n_copied(block);
    uint64_t size = total_size(p, n);
    int r = size > 0 ? dlx__publisher_grow(p, memory, id, size) : 0;
    if (r < 0)
        return r;
    bool before =
        dlx__heap_put_anywhere(p->heap, true); /* that is the arena that was made for all of it */
    for (uint32_t i = 0; r == 0 && i < n; i++)
        r = copy_message(p, dlx__writer_head(&p->core) - n + 1 + i, block);
    (void)dlx__heap_put_anywhere(p->heap, before);
    return r;
}

void dlx__copy_retained_undo(struct dlx_publisher *p, struct dlx_writer_block *block)
{
    for (uint32_t i = 0; i < dlx__writer_block_n_copied(block); i++)
        give_all(p, dlx__writer_block_copied(block, i));
    dlx__writer_block_forget_copied(block);
}

/* A block of this size, for which the daemon is asked for an arena if need be. */
static int take_or_grow(struct dlx_publisher *p, uint64_t size, struct dlx_block **ret)
{
    int r = dlx__heap_take(p->heap, size, ret);
    if (r == DLX_E_FULL)
        r = dlx__publisher_grow(p, p->daemon.memory, p->id, size);
    else
        return r;
    return r == 0 ? dlx__heap_take(p->heap, size, ret) : r;
}

void dlx__copy_retained_grow(struct dlx_publisher *p)
{
    uint64_t words[DLX_SHM_ENTRY_WORDS];
    struct dlx_block *taken = NULL, *block;
    int r = 0;
    if (dlx__writer_n_live(&p->core) == 0)
        return;
    for (uint32_t i = 0; r == 0 && i < p->args.history + 1; i++)
        for (const struct dlx_block *like =
                 dlx__writer_payload(&p->core, dlx__writer_head(&p->core), words);
             r == 0 && like; like = like->next) {
            r = take_or_grow(p, memory_of(like)->size, &block);
            if (r == 0) {
                block->next = taken;
                taken = block;
            }
        }
    give_all(p, taken);
}
