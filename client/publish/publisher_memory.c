/* SPDX-License-Identifier: Apache-2.0 */
#include "client/publish/publisher_memory.h"
#include "client/base/device.h"
#include "client/control/call.h"
#include "client/gpu/gpu.h"
#include "client/publish/publisher_link.h"
#include "common/amount.h"
#include "common/memory.h"
#include <string.h>

/* So many bytes of blocks are taken between two looks for blocks that no subscriber needs any more:
 * reading cursors and hold words disturbs the readers, so small messages do it once in many. */
#define FREE_GROWTH (UINT64_C(32) << 10)

/* So long a daemon that gave no arena is not asked for one, if there is another way. */
#define CROWDED_NS UINT64_C(1000000000)

/* Tell the daemon, and unmap. What it cannot be told of now is charged, and stays. */
static bool drop_arena(struct dlx_publisher *p, uint64_t id, uint32_t arena, bool insists)
{
    if (dlx__call_arena_drop(p->client, id, arena, insists) == DLX_E_FULL)
        return false;
    dlx__heap_drop(p->heap, arena);
    return true;
}

/* Give back empty arenas of so many bytes together, at most n of them. Returns false if there
 * may be more. */
static bool drop_arenas(struct dlx_publisher *p, uint64_t bytes, uint32_t n)
{
    uint64_t size;
    for (; n > 0; n--) {
        uint32_t id = dlx__heap_find_empty(p->heap, bytes, &size);
        if (id == 0)
            return true;
        if (!drop_arena(p, p->id, id, false))
            break;
        bytes -= DLX_MIN(bytes, size);
    }
    return false;
}

bool dlx__publisher_drop_empty(struct dlx_publisher *p, bool insists)
{
    bool any = false;
    uint32_t arena;
    while ((arena = dlx__heap_find_any_empty(p->heap)) && drop_arena(p, p->id, arena, insists))
        any = true;
    return any;
}

static void drop_excess(struct dlx_publisher *p, uint64_t id, uint64_t bytes)
{
    uint32_t arena;
    uint64_t window = (uint64_t)DLX_TRIM_EVERY * p->args.depth;
    while ((arena = dlx__heap_find_excess(p->heap, bytes, dlx__writer_head(&p->core), window)) &&
           drop_arena(p, id, arena, false))
        ;
}

struct populating {
    struct dlx_publisher *p;
    struct dlx_wait wait;
    uint64_t size;
};

static int on_populated(void *data, uint64_t n_bytes, bool signalled)
{
    struct populating *populating = data;
    struct dlx_publisher *p = populating->p;
    if (populating->wait.ask_at == 0)
        (void)dlx__wait_part(&populating->wait, p->client, dlx__now_ns());
    int r = dlx__wait_ask(&populating->wait, p->client, &p->turn, signalled);
    return r < 0 ? dlx__fail(r, "interrupted when %s of %s were allocated", DLX_AMOUNT(n_bytes),
                             DLX_AMOUNT(populating->size))
                 : 0;
}

static int add_arena(struct dlx_publisher *p, const struct dlx_memory *memory, uint64_t id,
                     uint32_t arena, int take_fd, uint64_t bytes)
{
    struct populating populating = {.p = p, .wait = {.deadline = UINT64_MAX}, .size = bytes};
    void *map = NULL;
    int r = dlx__region_populate_in_steps(memory, take_fd, bytes, on_populated, &populating, &map);
    if (r == 0)
        r = dlx__call_arena_ready(p->client, id, arena, bytes);
    if (r == 0)
        r = dlx__heap_add(p->heap, arena, map, bytes);
    if (r < 0) {
        dlx__region_unmap(map, bytes);
        (void)dlx__call_arena_drop(p->client, id, arena, true);
    }
    return r;
}

/* `ret_taken_back`: the daemon, which has not changed, does not know the arena any more. */
static int grow_memory(struct dlx_publisher *p, const struct dlx_memory *memory, uint64_t id,
                       uint64_t size, bool *ret_taken_back)
{
    uint64_t bytes = dlx__heap_growth(p->heap, size);
    uint64_t epoch = atomic_load_explicit(&p->client->epoch, memory_order_acquire);
    uint32_t arena = 0;
    int fd;
    *ret_taken_back = false;
    if (bytes == UINT64_MAX)
        return dlx__fail(DLX_E_NO_MEMORY, "a tensor or a set may have at most %s",
                         DLX_AMOUNT(DLX_SHM_ARENA_MAX));
    if (dlx__heap_n_arenas(p->heap) >= DLX_SHM_ARENAS_MAX)
        return dlx__fail(DLX_E_LIMIT, "%u arenas, the most of a publisher", DLX_SHM_ARENAS_MAX);
    if (p->client->interrupt) /* it runs while this call waits for the daemon */
        dlx__turn_disown(&p->turn);
    int r = dlx__call_arena_new(p->client, id, bytes, &arena, &fd);
    if (r < 0)
        return r;
    /* Now that there will be one, and before it has memory. */
    drop_excess(p, id, bytes);
    r = add_arena(p, memory, id, arena, fd, bytes);
    if (r == 0 && dlx__heap_bytes(p->heap) > DLX_HEAP_SLACK)
        p->memory.next_trim =
            DLX_MIN(p->memory.next_trim, dlx__writer_head(&p->core) + p->args.depth);
    *ret_taken_back = r == DLX_E_NOT_FOUND &&
                      atomic_load_explicit(&p->client->epoch, memory_order_acquire) == epoch;
    return r;
}

/* The daemon takes memory back that does not grow for a while. A process that was stopped finds
 * that once. */
int dlx__publisher_grow(struct dlx_publisher *p, const struct dlx_memory *memory, uint64_t id,
                        uint64_t size)
{
    bool taken_back;
    int r = grow_memory(p, memory, id, size, &taken_back);
    if (taken_back)
        r = grow_memory(p, memory, id, size, &taken_back);
    return taken_back ? dlx__fail_prefix(DLX_E_TIMEOUT, "dlpackd took the memory back twice, since "
                                                        "this process was stopped or is too slow")
                      : r;
}

/* Memory that no message needs any more goes back, a part with each of the next messages: all of it
 * after `depth`. */
static void __attribute__((noinline)) trim(struct dlx_publisher *p)
{
    bool much = dlx__heap_bytes(p->heap) > DLX_HEAP_SLACK, goes_on = p->memory.trim_step > 0;
    uint64_t head = dlx__writer_head(&p->core), depth = p->args.depth;
    if (!goes_on) {
        /* Else memory that no message needs counts as used. */
        while (much && dlx__publisher_reclaim_some(p, false) > 0)
            ;
        p->memory.trim_step = dlx__heap_n_arenas(p->heap) / p->args.depth + 1;
    }
    bool all = head >= p->memory.next_trim_of_all;
    uint64_t bytes = goes_on ? dlx__heap_excess(p->heap, all) : dlx__heap_trim(p->heap, all);
    if (!drop_arenas(p, bytes, p->memory.trim_step)) {
        p->memory.next_trim = head + 1;
        return;
    }
    dlx__heap_vacate(p->heap);
    if (all)
        p->memory.next_trim_of_all = head + DLX_TRIM_EVERY * depth;
    p->memory.next_trim = much ? head + depth : p->memory.next_trim_of_all;
    p->memory.trim_step = 0;
}

int dlx__publisher_reclaim(struct dlx_publisher *p, struct dlx_heap *heap, uint64_t size, bool drop,
                           struct dlx_block **ret)
{
    bool looked = false, cut = false;
    for (;;) {
        uint32_t n = dlx__publisher_reclaim_some(p, drop);
        int r = dlx__heap_take(heap, size, ret);
        if (r != DLX_E_FULL)
            return r;
        if (n > 0)
            continue;
        if (cut || dlx__writer_n_retired(&p->core) == 0)
            return DLX_E_FULL;
        /* Before more memory is taken: free what dead subscribers hold, and cut links that hold
         * more than they may. */
        if (!looked)
            dlx__writer_look_for_dead(&p->core);
        else if (!dlx__publisher_link_cut(p))
            return DLX_E_FULL;
        cut = looked;
        looked = true;
    }
}

void dlx__publisher_look_ahead(struct dlx_publisher *p)
{
    (void)dlx__publisher_reclaim_some(p, false);
}

void dlx__publisher_give_list(struct dlx_publisher *p, struct dlx_block *block)
{
    while (block) {
        struct dlx_block *next = block->next;
        dlx__heap_give(p->heap, block);
        block = next;
    }
}

/* No memory, or no daemon: the stream goes on with what there is, if that is enough. */
static int take_what_is_there(struct dlx_publisher *p, uint64_t size, bool reclaim,
                              struct dlx_block **ret)
{
    bool before = dlx__heap_put_anywhere(p->heap, true);
    int r = dlx__heap_take(p->heap, size, ret);
    if (r == DLX_E_FULL && reclaim)
        r = dlx__publisher_reclaim(p, p->heap, size, true, ret);
    (void)dlx__heap_put_anywhere(p->heap, before);
    return r;
}

static int grow_memory_and_take(struct dlx_publisher *p, uint64_t size, struct dlx_block **ret)
{
    /* A new daemon knows of no publisher that has yet to announce itself, and may be slow to say
     * so. */
    int r = atomic_load_explicit(&p->client->epoch, memory_order_acquire) != p->epoch
                ? dlx__fail(DLX_E_DISCONNECTED, "the publisher predates the dlpackd restart")
                : dlx__publisher_grow(p, p->daemon.memory, p->id, size);
    if (r == 0)
        r = dlx__heap_take(p->heap, size, ret);
    /* With an arena more, or others less, it may have become a large block. There is room for
     * it. */
    return r == DLX_E_FULL ? take_what_is_there(p, size, false, ret) : r;
}

/* No block fits. Not part of what follows: its registers are not saved for each message. */
static int __attribute__((noinline))
find_room(struct dlx_publisher *p, uint64_t size, struct dlx_block **ret)
{
    int r;
    uint64_t after;
    bool free_growth =
        !__builtin_add_overflow(dlx__heap_bytes(p->heap), size, &after) && after <= FREE_GROWTH;
    if (!free_growth) {
        p->memory.room_size = size;
        r = dlx__publisher_reclaim(p, p->heap, size, false, ret);
        if (r != DLX_E_FULL)
            return r;
    }
    p->memory.room_size = 0;
    if (p->memory.crowded_until > 0 && dlx__now_ns() < p->memory.crowded_until) {
        r = take_what_is_there(p, size, false, ret);
        if (r != DLX_E_FULL)
            return r;
    }
    int grown = grow_memory_and_take(p, size, ret);
    if (grown == DLX_E_INTERRUPTED)
        return dlx__fail_prefix(grown, "topic %s: no memory for %s", p->topic, DLX_AMOUNT(size));
    p->memory.crowded_until = grown < 0 ? dlx__now_ns() + CROWDED_NS : 0;
    if (grown == 0)
        return 0;
    char why[DLX_ERROR_TEXT_SIZE];
    memcpy(why, dlx__error_message(), sizeof why);
    r = take_what_is_there(p, size, true, ret);
    if (r != DLX_E_FULL)
        return r;
    bool is_possible = dlx__heap_growth(p->heap, size) != UINT64_MAX;
    if ((grown == DLX_E_NO_MEMORY || grown == DLX_E_LIMIT || grown == DLX_E_FD_LIMIT) &&
        is_possible && dlx__publisher_drop_empty(p, false)) {
        grown = grow_memory_and_take(p, size, ret);
        if (grown == 0)
            return 0;
        memcpy(why, dlx__error_message(), sizeof why);
    }
    return dlx__fail(grown, "topic %s: no memory for %s: %s", p->topic, DLX_AMOUNT(size), why);
}

int dlx__publisher_block(struct dlx_publisher *p, uint64_t size, struct dlx_block **ret)
{
    if (dlx_unlikely(dlx__writer_head(&p->core) >= p->memory.next_trim))
        trim(p);
    int r = dlx__heap_take(p->heap, size, ret);
    return dlx_likely(r != DLX_E_FULL) ? r : find_room(p, size, ret);
}

int dlx__publisher_heap(struct dlx_publisher *p, DLDevice device, struct dlx_heap **ret)
{
    if (!dlx__device_is_cpu(device)) {
        int r = dlx__gpu_load_for(device);
        return r < 0 ? r : dlx__gpu_publisher()->heap(p, device, ret);
    }
    if (device.device_id != 0)
        return dlx__fail(DLX_E_DEVICE, "there is no CPU device %d, only 0", device.device_id);
    *ret = p->heap;
    return 0;
}

int dlx__publisher_block_of(struct dlx_publisher *p, struct dlx_heap *heap, uint64_t size,
                            struct dlx_block **ret)
{
    return heap == p->heap ? dlx__publisher_block(p, size, ret)
                           : dlx__gpu_publisher()->block(p, heap, size, ret);
}

int dlx__publisher_block_beside(struct dlx_publisher *p, const struct dlx_block *other,
                                uint64_t size, struct dlx_block **ret)
{
    int r = dlx__heap_take_beside(p->heap, other, size, ret);
    if (r == DLX_E_FULL && dlx__heap_is_large(p->heap, size))
        r = take_what_is_there(p, size, false, ret);
    return r == DLX_E_FULL ? dlx__publisher_block(p, size, ret) : r;
}

/* ---- what is taken along to another daemon ------------------------------------------------ */

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

/* The same blocks in the same order. */
static int copy_blocks(struct dlx_publisher *p, const struct dlx_block *from,
                       struct dlx_block **ret)
{
    struct dlx_block **at = ret;
    *ret = NULL;
    for (; from; from = from->next) {
        const struct dlx_block *source = memory_of(from);
        int r = dlx__heap_take_like(p->heap, source, at);
        if (r < 0) {
            *at = NULL;
            dlx__publisher_give_list(p, *ret);
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
    uint32_t n = (uint32_t)(dlx__writer_head(&p->core) - dlx__writer_block_base(block));
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

/* A block as large as this one, for which the daemon is asked for an arena if need be. */
static int take_or_grow(struct dlx_publisher *p, const struct dlx_block *like,
                        struct dlx_block **ret)
{
    int r = dlx__heap_take_like(p->heap, like, ret);
    if (r != DLX_E_FULL)
        return r;
    r = dlx__publisher_grow(p, p->daemon.memory, p->id, like->size);
    return r == 0 ? dlx__heap_take_like(p->heap, like, ret) : r;
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
            r = take_or_grow(p, memory_of(like), &block);
            if (r == 0) {
                block->next = taken;
                taken = block;
            }
        }
    dlx__publisher_give_list(p, taken);
}
