/* SPDX-License-Identifier: Apache-2.0 */
#include "common/take.h"
#include "common/brief.h"
#include "common/error.h"
#include "common/tensor.h"
#include <assert.h>
#include <inttypes.h>
#include <string.h>

/* How many messages that were gone a take passes over, beyond the size of the ring, when a publisher is as fast
 * as we are. */
#define MISSES_MORE 1024U
/* A slot's lines come from another processor's cache in the time of so many takes, if those follow each other at once. */
#define SLOTS_AHEAD 3U

/* The publisher's words: const is the page's protection, they change all the same. */
static dlx_atomic_u64 *word64(const dlx_atomic_u64 *w)
{
    return (dlx_atomic_u64 *)(uintptr_t)w;
}

static dlx_atomic_u32 *word32(const dlx_atomic_u32 *w)
{
    return (dlx_atomic_u32 *)(uintptr_t)w;
}

/* Where we are. Written by the thread that takes. */
static const struct dlx_shm_control *block(const struct dlx_take *take)
{
    return atomic_load_explicit(&take->control, memory_order_relaxed);
}

static void enter(struct dlx_take *take, const struct dlx_shm_control *control, uint32_t n_slots)
{
    take->ring = dlx_shm_ring(control);
    take->slots = dlx_shm_slots(control, n_slots);
    take->n_slots = n_slots;
    take->ring_mask = dlx_shm_ring_size(n_slots) - 1;
    atomic_store_explicit(&take->control, control, memory_order_relaxed);
    take->word = 0;
}

void dlx__take_init(struct dlx_take *take, const struct dlx_shm_control *control, uint32_t n_slots,
                    struct dlx_shm_link *page, uint32_t link_index, uint32_t max_held, bool latest,
                    bool reliable, const struct dlx_take_env *env, void *userdata)
{
    assert(n_slots > 0 && n_slots <= DLX_SHM_SLOTS_MAX && max_held > 0 && !(latest && reliable));
    *take = (struct dlx_take){
        .page = page,
        .ticket = dlx_shm_ticket(page, link_index),
        .env = env,
        .userdata = userdata,
        .max_held = max_held,
        .latest = latest,
        .reliable = reliable,
    };
    enter(take, control, n_slots);
}

/* After every store that may unblock the publisher. */
static void ring_if_blocked(struct dlx_take *take)
{
    /* Partner: dlx__pub_set_blocked(), then reclaim. A publisher waits for slots of its newest block; whoever has a
     * message of that has seen the taker enter it. */
    if (dlx_unlikely(dlx_load32_sc(word32(&block(take)->blocked))))
        take->env->ring(take->userdata);
}

static void set_cursor(struct dlx_take *take, uint64_t n)
{
    take->cursor = n;
    if (take->reliable) {
        /* Partner: passed_by_all(). The hold word was stored before. */
        dlx_store64_sc(&take->page->cursor, n);
        ring_if_blocked(take);
    } else {
        dlx_store64_relaxed(&take->page->cursor, n); /* for reports only */
    }
}

static uint64_t newest_in(const struct dlx_shm_control *control)
{
    return dlx_load64_sc(word64(&control->head)) & ~DLX_SHM_MOVED;
}

bool dlx__take_block_is_empty(const struct dlx_take_block *block)
{
    return newest_in(block->control) == block->base;
}

bool dlx__take_block_is_dead(const struct dlx_take_block *block)
{
    return dlx_load64_sc(word64(&block->control->head)) == (block->base | DLX_SHM_MOVED);
}

uint32_t dlx__take_choose(const struct dlx_take_block *blocks, uint32_t n_blocks, uint32_t history,
                          bool from_start, uint64_t *ret_cursor)
{
    uint32_t first = n_blocks; /* of those that are not dead, if there is one */
    uint64_t head = 0;
    for (uint32_t i = n_blocks; i-- > 0;) {
        if (first < n_blocks && dlx__take_block_is_dead(&blocks[i]))
            continue;
        if (first == n_blocks || !dlx__take_block_is_dead(&blocks[i]))
            first = i;
        uint64_t newest = newest_in(blocks[i].control);
        head = DLX_MAX(head, newest);
    }
    uint64_t cursor = from_start ? 0 : head - DLX_MIN(head, (uint64_t)history);
    uint32_t chosen = first;
    for (uint32_t i = first + 1; i < n_blocks; i++)
        if (blocks[i].base <= cursor && !dlx__take_block_is_dead(&blocks[i]))
            chosen = i;
    *ret_cursor = DLX_MAX(cursor, blocks[chosen].base);
    return chosen;
}

void dlx__take_start(struct dlx_take *take, uint64_t cursor)
{
    take->cursor = take->last = cursor;
    dlx_store64_sc(&take->page->cursor, take->cursor);
    dlx_store32_sc(&take->page->started, 1);
    ring_if_blocked(take);
}

static void count_skipped(struct dlx_take *take, uint64_t n)
{
    take->skipped += n;
    dlx_store64_relaxed(&take->page->skipped, take->skipped);
}

static void count_lost(struct dlx_take *take, uint64_t n)
{
    take->lost += n;
    dlx_store64_relaxed(&take->page->lost, take->lost);
}

/* They are gone. Who only wants the newest has lost nothing: a newer one is there. */
static void count_missed(struct dlx_take *take, uint64_t n)
{
    if (take->latest)
        count_skipped(take, n);
    else
        count_lost(take, n);
}

/* What is in this block and was passed elsewhere. */
static void skip_passed(struct dlx_take *take)
{
    uint64_t newest = newest_in(block(take)); /* once: the next look may see a newer one */
    uint64_t n = DLX_MIN(take->passed, newest);
    if (n <= take->cursor)
        return;
    take->last = DLX_MAX(take->last, n);
    set_cursor(take, n);
}

int dlx__take_move(struct dlx_take *take, const struct dlx_shm_control *control, uint32_t n_slots,
                   uint64_t base)
{
    if (base < take->cursor || base >= DLX_SHM_MOVED)
        return dlx__fail(DLX_E_BAD_PEER,
                         "a control block begins after message %" PRIu64 ", %" PRIu64 " was passed",
                         base, take->cursor);
    if (base > take->cursor) {
        count_missed(take, base - DLX_MIN(DLX_MAX(take->cursor, take->passed), base));
        set_cursor(take, base);
    }
    take->stays = false;
    enter(take, control, n_slots);
    skip_passed(take);
    return 0;
}

void dlx__take_follow(struct dlx_take *take, uint64_t cursor, uint64_t untold)
{
    if (take->last <= cursor) {
        take->passed = cursor;
        skip_passed(take);
    } else {
        count_missed(take, take->last - cursor);
        take->last = cursor; /* the first message tells the gap */
    }
    take->untold = untold;
}

void dlx__take_miss(struct dlx_take *take, uint64_t n)
{
    count_missed(take, n);
}

void dlx__take_lose(struct dlx_take *take, const struct dlx_taken *taken)
{
    dlx__take_release(take, taken->hold);
    take->last = taken->n - taken->gap - 1; /* the next one tells the gap */
    dlx_store64_relaxed(&take->page->taken, --take->taken);
    count_lost(take, 1);
}

bool dlx__take_stay(struct dlx_take *take)
{
    take->stays = true;
    return newest_in(block(take)) != take->cursor;
}

/* ---- hold words ---------------------------------------------------------------------------- */

static bool find_hold(struct dlx_take *take, uint32_t *ret)
{
    /* Whoever has one message at a time uses one line, so a publisher that looks at all of them finds the others in
     * its cache. */
    if (dlx_likely(dlx_load64_acquire(&take->page->hold[0]) == 0)) {
        *ret = 0;
        return true;
    }
    for (uint32_t i = 0; i < take->max_held; i++) {
        uint32_t at = take->next_hold;
        take->next_hold = at + 1 == take->max_held ? 0 : at + 1;
        /* Acquire: whoever released it is done with the payload, and with the word. */
        if (dlx_load64_acquire(&take->page->hold[at]) == 0) {
            *ret = at;
            return true;
        }
    }
    return false;
}

void dlx__take_release(struct dlx_take *take, uint32_t hold)
{
    assert(hold < take->max_held);
    /* Partner: free_unheld() loads it, and then lets the payload be written again. */
    if (take->never_rings) {
        dlx_store64_release(&take->page->hold[hold], 0);
        return;
    }
    dlx_store64_sc(&take->page->hold[hold], 0);
    ring_if_blocked(take);
}

uint32_t dlx__take_n_held(struct dlx_take *take)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < take->max_held; i++)
        n += dlx_load64_relaxed(&take->page->hold[i]) != 0;
    return n;
}

/* ---- take ---------------------------------------------------------------------------------- */

bool dlx__take_is_closed(const struct dlx_take *take)
{
    return dlx_load32_sc(word32(&block(take)->state)) == DLX_SHM_STATE_CLOSED;
}

static int nothing_there(struct dlx_take *take)
{
    /* Closed is stored after the last head: look at head again before believing it. */
    if (dlx_unlikely(dlx__take_is_closed(take)) &&
        dlx_load64_sc(word64(&block(take)->head)) == take->cursor)
        return DLX_E_PUBLISHER_GONE;
    return DLX_E_EMPTY;
}

/* Does this slot hold message n? The hold word must be stored before. */
static bool slot_has(struct dlx_take *take, uint32_t slot, uint64_t n)
{
    /* Partner: retire() stores gen = 0, then loads hold words. */
    return slot < take->n_slots && dlx_load64_sc(word64(&take->slots[slot].gen)) == n;
}

/* The slot of message n. The ring is the truth; for the newest message there is a shorter way, which
 * may be stale. An index out of range names no slot, so it is the same as a message that is gone. */
static bool find_slot(struct dlx_take *take, uint64_t n, bool newest, uint32_t *ret)
{
    uint32_t slot;
    if (newest) {
        slot = (uint32_t)dlx_load64_relaxed(word64(&block(take)->brief[0]));
        if (dlx_likely(slot_has(take, slot, n))) {
            *ret = slot;
            return true;
        }
    }
    slot = dlx_load32_relaxed(word32(&take->ring[n & take->ring_mask]));
    *ret = slot;
    return slot_has(take, slot, n);
}

/* What the message taken before was like, in a slot. */
static bool has_same_form(const struct dlx_taken *taken, const struct dlx_shm_record *record,
                          const int64_t *shape)
{
    const struct dlx_shm_record *before = &taken->record;
    if (taken->form == 0 || record->dtype_code != before->dtype_code ||
        record->dtype_bits != before->dtype_bits || record->dtype_lanes != before->dtype_lanes ||
        record->device_type != before->device_type || record->device_id != before->device_id ||
        record->ndim != before->ndim || record->flags != before->flags ||
        record->size != before->size)
        return false;
    int64_t differs = 0;
    for (uint32_t i = 0; i < record->ndim; i++)
        differs |= shape[i] ^ taken->shape[i];
    return differs == 0;
}

/* Row-major. */
static void set_form(struct dlx_take *take, struct dlx_taken *taken)
{
    dlx__tensor_row_major((int32_t)taken->record.ndim, taken->shape, taken->strides);
    taken->form = ++take->n_forms;
}

static int copy_slot(struct dlx_take *take, uint32_t index, struct dlx_taken *ret)
{
    struct dlx_shm_record record;
    int64_t shape[DLX_SHM_NDIM_INLINE];
    const struct dlx_shm_slot *slot = &take->slots[index];
    ret->time_ns = slot->time_ns;
    ret->n_tensors = slot->n_tensors;
    ret->flags = slot->flags;
    /* Once each: from here on only the private copy is looked at. */
    __asm__ volatile("" ::: "memory");
    if (ret->n_tensors == 0 || ret->n_tensors > DLX_SHM_TENSORS_MAX)
        return dlx__fail(DLX_E_BAD_PEER, "message %" PRIu64 " claims %u tensors", ret->n,
                         ret->n_tensors);
    if (ret->flags & ~DLX_SHM_SLOT_FLAGS_ALL)
        return dlx__fail(DLX_E_BAD_PEER, "message %" PRIu64 " has unknown flags %#x", ret->n,
                         ret->flags);
    if (ret->flags & DLX_SHM_SLOT_MANIFEST) {
        ret->manifest_offset = slot->manifest_offset;
        ret->manifest_size = slot->manifest_size;
        ret->manifest_arena = slot->manifest_arena;
        __asm__ volatile("" ::: "memory");
        return 0;
    }
    memcpy(&record, &slot->record, sizeof record);
    __asm__ volatile("" ::: "memory");
    if (ret->n_tensors != 1 || record.ndim > DLX_SHM_NDIM_INLINE)
        return dlx__fail(DLX_E_BAD_PEER,
                         "message %" PRIu64 " claims %u tensors of %u dimensions in its slot",
                         ret->n, ret->n_tensors, record.ndim);
    for (uint32_t i = 0; i < record.ndim; i++)
        shape[i] = slot->shape[i];
    __asm__ volatile("" ::: "memory");
    if (dlx_likely(has_same_form(ret, &record, shape))) {
        ret->record.arena = record.arena;
        ret->record.offset = record.offset;
        return 0;
    }
    ret->record = record;
    ret->form = 0;
    ret->brief[1] = 0;
    memcpy(ret->shape, shape, record.ndim * sizeof *shape);
    if (record.flags & DLX_SHM_RECORD_ROW_MAJOR) {
        set_form(take, ret);
        return 0;
    }
    for (uint32_t i = 0; i < record.ndim; i++)
        ret->strides[i] = slot->strides[i];
    __asm__ volatile("" ::: "memory");
    return 0;
}

/* Which message is next, given head > cursor; what is passed over is counted. */
static uint64_t choose(struct dlx_take *take, uint64_t head)
{
    uint64_t n = take->cursor + 1;
    if (take->latest && head > n) {
        count_skipped(take, head - n);
        n = head;
    } else if (head - n > take->ring_mask) {
        /* Older ring entries are overwritten. A reliable link never sees that from an honest publisher, which
         * has fewer slots than that to fill before we pass them; a liar must not have us count to 2^62. */
        uint64_t first = head - take->ring_mask;
        count_lost(take, first - n);
        n = first;
    }
    return n;
}

/* Copy the brief. What it is a brief of is known after the hold word was stored. Says whether it is
 * worth asking. */
static bool copy_brief(struct dlx_take *take, uint64_t n, struct dlx_brief *ret)
{
#pragma GCC unroll 7
    for (uint32_t i = 0; i < DLX_SHM_BRIEF_WORDS; i++)
        ret->words[i] = dlx_load64_acquire(word64(&block(take)->brief[i]));
    if (dlx_likely(dlx__brief_is_of(ret, n)))
        return true;
    /* Fetch the slot's lines while the hold word is stored, not after. */
    uint32_t slot = (uint32_t)ret->words[0];
    if (slot < take->n_slots) {
        __builtin_prefetch(&take->slots[slot]);
        __builtin_prefetch(take->slots[slot].shape);
    }
    return false;
}

/*
 * Is the brief that was copied still that of the newest message n? The hold word must be stored before.
 *
 * If head is still n, then n was not retired: that happens only after head was stored again, as the history
 * is at least 1, and is followed by a look at the hold words. If word 0 still names n, then nobody had begun
 * to write the next brief while this one was copied. A publisher that moves to another block marks head before
 * it retires anything more.
 */
static bool brief_holds(struct dlx_take *take, uint64_t n, const struct dlx_brief *brief)
{
    return dlx_load64_sc(word64(&block(take)->head)) == n &&
           dlx_load64_acquire(word64(&block(take)->brief[0])) == brief->words[0];
}

static int read_brief(struct dlx_take *take, const struct dlx_brief *brief, struct dlx_taken *ret)
{
    const uint64_t *words = brief->words;
    ret->time_ns = words[1];
    ret->n_tensors = 1;
    ret->flags = 0;
    if (dlx_likely(((words[3] ^ ret->brief[0]) >> 32 | (words[4] ^ ret->brief[1]) |
                    (words[5] ^ ret->brief[2]) | (words[6] ^ ret->brief[3])) == 0)) {
        ret->record.arena = (uint32_t)words[3];
        ret->record.offset = words[2];
        return 0;
    }
    ret->form = 0;
    ret->brief[1] = 0;
    if (!dlx__brief_unpack(brief, &ret->record, ret->shape) ||
        !(ret->record.flags & DLX_SHM_RECORD_ROW_MAJOR))
        return dlx__fail(DLX_E_BAD_PEER,
                         "message %" PRIu64 " claims %u dimensions and flags %#x in its brief",
                         ret->n, ret->record.ndim, ret->record.flags);
    DLDataType dtype = {ret->record.dtype_code, ret->record.dtype_bits, ret->record.dtype_lanes};
    int r = dlx__tensor_size(dtype, ret->record.flags & DLX_SHM_RECORD_PADDED,
                             (int32_t)ret->record.ndim, ret->shape, &ret->record.size);
    if (r < 0)
        return dlx__fail_prefix(DLX_E_BAD_PEER, "message %" PRIu64, ret->n);
    memcpy(ret->brief, words + 3, sizeof ret->brief);
    set_form(take, ret);
    return 0;
}

/* Who lags knows what comes: ask for the lines of a slot that will be looked at some takes from now. */
static void prefetch_ahead(struct dlx_take *take, uint64_t n, uint64_t head)
{
    if (head - n < SLOTS_AHEAD)
        return;
    uint32_t slot = dlx_load32_relaxed(word32(&take->ring[(n + SLOTS_AHEAD) & take->ring_mask]));
    if (slot < take->n_slots) {
        __builtin_prefetch(&take->slots[slot]);
        __builtin_prefetch(take->slots[slot].shape);
    }
}

int dlx__take_next(struct dlx_take *take, struct dlx_taken *ret)
{
    /* More than there can be behind an honest head; one that runs away from us does not keep us here. */
    for (uint32_t misses = 0; misses <= take->ring_mask + MISSES_MORE; misses++) {
        /* What was seen before is looked at no more: it only says which messages there are. */
        bool looks = take->latest || !dlx__take_knows(take);
        if (looks)
            take->word = dlx_load64_acquire(word64(&block(take)->head));
        uint64_t word = take->word;
        uint64_t head = word & ~DLX_SHM_MOVED;
        if (head == take->cursor)
            return word == head ? nothing_there(take) : DLX_E_NOT_FOUND;
        if (dlx_unlikely(word != head && take->latest && !take->stays))
            return DLX_E_NOT_FOUND; /* there may be a newer one in the next block */
        if (dlx_unlikely(head < take->cursor))
            return dlx__fail(DLX_E_BAD_PEER, "head went from %" PRIu64 " to %" PRIu64, take->cursor,
                             head);
        uint32_t hold, slot;
        struct dlx_brief brief;
        if (dlx_unlikely(!find_hold(take, &hold)))
            return dlx__fail(DLX_E_TOO_MANY_HELD,
                             "%u messages are held, the limit of this subscription (max_held): "
                             "release some first",
                             take->max_held);
        uint64_t n = choose(take, head);
        bool has_brief = looks && n == word && copy_brief(take, n, &brief);

        dlx_store64_sc(&take->page->hold[hold], n);
        has_brief = has_brief && brief_holds(take, n, &brief);
        if (dlx_unlikely(!has_brief && !find_slot(take, n, looks && n == head, &slot))) {
            dlx__take_release(take, hold); /* rings: the publisher may wait for this very word */
            count_missed(take, 1);
            set_cursor(take, n);
            take->word = 0; /* more may be gone: see how far it is */
            continue;
        }
        ret->n = n;
        ret->hold = hold;
        ret->gap = take->untold + n - take->last - 1;
        int r = has_brief ? read_brief(take, &brief, ret) : copy_slot(take, slot, ret);
        set_cursor(take, n);
        if (dlx_unlikely(r < 0)) {
            dlx__take_release(take, hold);
            return r;
        }
        take->last = n;
        take->untold = 0;
        take->taken++;
        dlx_store64_relaxed(&take->page->taken, take->taken);
        prefetch_ahead(take, n, head);
        return 0;
    }
    return DLX_E_EMPTY;
}

/* ---- sleep and leave ----------------------------------------------------------------------- */

bool dlx__take_arm(struct dlx_take *take)
{
    /* Partner: ring_sleepers(), after head or state was stored. */
    dlx_store64_sc(take->ticket, ++take->sleep_ticket);
    return dlx_load64_sc(word64(&block(take)->head)) == take->cursor && !dlx__take_is_closed(take);
}

void dlx__take_close(struct dlx_take *take)
{
    dlx_store64_sc(&take->page->cursor, DLX_SHM_CURSOR_CLOSED);
    ring_if_blocked(take);
}
