/* SPDX-License-Identifier: Apache-2.0 */
#include "ring/writer.h"
#include "ring/group.h"
#include "common/error.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* The most messages that one pass over the links retires: each retired entry costs the readers a
 * cache line. */
#define RETIRE_BATCH 32U

/* ---- life ---------------------------------------------------------------------------------- */

static int reserve_payloads(struct dlx_writer *w, uint32_t room)
{
    if (room <= w->payloads_room)
        return 0;
    room = DLX_MAX(room, 2 * w->payloads_room);
    struct dlx_writer_retired *retired = realloc(w->retired, room * sizeof *retired);
    if (!retired)
        return dlx__fail(DLX_E_NO_MEMORY, "table of %u messages", room);
    w->retired = retired;
    w->payloads_room = room;
    return 0;
}

static int block_new(struct dlx_shm_control *control, uint32_t n_entries,
                     struct dlx_writer_block **ret)
{
    assert(n_entries >= 4 && (n_entries & (n_entries - 1)) == 0);
    struct dlx_writer_block *block =
        calloc(1, sizeof *block + n_entries * sizeof block->payloads[0]);
    if (!block)
        return dlx__fail(DLX_E_NO_MEMORY, "state of %u messages", n_entries);
    block->control = control;
    block->mask = n_entries - 1;
    block->last = UINT64_MAX;
    *ret = block;
    return 0;
}

/* Computes how far messages may be put. No reliable link may be more than `window` behind, and the
 * entry of the message and the next entry, which is for END or MOVED, must be reusable. */
static inline void set_limit(struct dlx_writer *w)
{
    uint64_t free_to = w->reusable + w->block->mask - 1;
    w->limit = w->gating ? DLX_MIN(free_to, w->passed + w->window) : free_to;
}

int dlx__writer_init(struct dlx_writer *w, struct dlx_shm_control *control, uint32_t n_entries,
                     uint32_t window, uint32_t kept, bool gating,
                     const struct dlx_shm_membership *membership, const struct dlx_writer_env *env,
                     void *userdata)
{
    assert(kept > 0 && kept <= window && n_entries >= 2 * window);
    *w = (struct dlx_writer){
        .env = env,
        .userdata = userdata,
        .window = window,
        .kept = kept,
        .gating = gating,
        .oldest = 1,
        .reusable = 1,
    };
    int r = reserve_payloads(w, n_entries);
    if (r == 0)
        r = block_new(control, n_entries, &w->block);
    if (r < 0) {
        free(w->retired);
        *w = (struct dlx_writer){0};
        return r;
    }
    w->oldest_block = w->block;
    dlx_store64_relaxed(&control->oldest, 1);
    dlx__writer_set_membership(w, membership);
    set_limit(w);
    return 0;
}

static void free_payload(struct dlx_writer *w, void *payload)
{
    w->n_payloads--;
    w->env->payload_freed(w->userdata, payload);
}

/* Frees the oldest control block, whose messages are all retired. */
static void forget_oldest_block(struct dlx_writer *w)
{
    struct dlx_writer_block *block = w->oldest_block;
    w->oldest_block = block->next;
    w->env->block_gone(w->userdata, block);
    free(block);
}

void dlx__writer_deinit(struct dlx_writer *w)
{
    uint32_t n_links = w->n_links;
    w->n_links = 0; /* dlx__writer_note_freed() rings none of them */
    for (uint32_t i = 0; i < n_links; i++)
        w->env->link_gone(w->userdata, w->links[i]);
    free(w->links);
    dlx__writer_groups_deinit(w);
    for (uint32_t i = 0; i < w->n_retired; i++)
        free_payload(w, w->retired[i].payload);
    free(w->retired);
    while (w->oldest_block) {
        struct dlx_writer_block *block = w->oldest_block;
        for (uint64_t n = DLX_MAX(w->oldest, block->base + 1); n <= w->head && n <= block->last;
             n++)
            free_payload(w, block->payloads[n & block->mask]);
        forget_oldest_block(w);
    }
    *w = (struct dlx_writer){0};
}

/* ---- links --------------------------------------------------------------------------------- */

/* Called when a reliable link, or one of unknown mode, has joined: it may have passed nothing. */
static void forget_passed(struct dlx_writer *w)
{
    w->passed = DLX_MIN(w->passed, w->oldest - 1);
    set_limit(w);
}

int dlx__writer_link_add(struct dlx_writer *w, struct dlx_writer_link *link)
{
    void *links = dlx__writer_grow(w->links, w->n_links, &w->links_room);
    if (!links)
        return DLX_E_NO_MEMORY;
    w->links = links;
    int r = link->group_number > 0 ? dlx__writer_group_join(w, link) : 0;
    if (r < 0)
        return r;
    w->links[w->n_links++] = link;
    w->joins_picked++;
    forget_passed(w);
    return 0;
}

static void remove_link(struct dlx_writer *w, uint32_t i)
{
    struct dlx_writer_link *link = w->links[i];
    w->links[i] = w->links[--w->n_links];
    if (link->group)
        dlx__writer_group_leave(w, link);
    w->env->link_gone(w->userdata, link);
}

/* The number of holds that the subscriber claims to use. A false number hurts only the subscriber.
 */
uint32_t dlx__writer_link_n_used(const struct dlx_writer_link *link)
{
    return (uint32_t)DLX_MIN(dlx_load64_acquire(dlx__writer_word(&link->page->n_used)),
                             link->max_held);
}

uint32_t dlx__writer_link_n_held(const struct dlx_writer_link *link)
{
    uint32_t held = 0, n = dlx__writer_link_n_used(link);
    for (uint32_t i = 0; i < n; i++)
        held +=
            /* acquire: as in holds_any() */
            dlx_load64_acquire(dlx__writer_word(&link->page->hold[i])) != 0;
    return held;
}

/* Returns the index of the first retired message whose number is at least n. */
static uint32_t find_retired(const struct dlx_writer *w, uint64_t n)
{
    uint32_t low = 0, high = w->n_retired;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (w->retired[middle].n < n)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void mark_held(struct dlx_writer *w, uint64_t n)
{
    uint32_t low = find_retired(w, n);
    for (; low < w->n_retired && w->retired[low].n == n; low++)
        w->retired[low].held = true;
}

/* Does the link hold anything? Marks the retired messages that it holds. */
static bool holds_any(struct dlx_writer *w, const struct dlx_writer_link *link)
{
    bool holds = false;
    uint32_t n_words = dlx__writer_link_n_used(link);
    for (uint32_t i = 0; i < n_words; i++) {
        /* Acquire: the thread that released it has finished reading. Partner: a reader stores its
         * hold, then loads gen. */
        uint64_t n = dlx_load64_acquire(dlx__writer_word(&link->page->hold[i]));
        if (n) {
            holds = true;
            mark_held(w, n);
        }
    }
    return holds;
}

static uint64_t message_bytes(const struct dlx_writer *w, uint64_t n)
{
    uint64_t words[DLX_SHM_ENTRY_WORDS];
    if (n >= w->oldest && n <= w->head)
        return w->env->payload_bytes(w->userdata, dlx__writer_payload(w, n, words));
    uint32_t i = find_retired(w, n);
    if (i < w->n_retired && w->retired[i].n == n)
        return w->env->payload_bytes(w->userdata, w->retired[i].payload);
    return 0;
}

uint64_t dlx__writer_link_lag(const struct dlx_writer *w, const struct dlx_writer_link *link)
{
    uint64_t cursor = dlx_load64_relaxed(dlx__writer_word(&link->page->cursor));
    cursor = DLX_MAX(cursor, link->base);
    /* A peer wrote it: it may be closed, or lie. */
    uint64_t lag = cursor < w->head ? w->head - cursor : 0;
    return link->reliable && !link->left && lag >= w->window ? lag : 0;
}

uint64_t dlx__writer_link_bytes(const struct dlx_writer *w, const struct dlx_writer_link *link)
{
    uint32_t n_words = dlx__writer_link_n_used(link);
    uint64_t newest = 0, newest_bytes = 0, sum = 0;
    uint64_t *seen = calloc(n_words + 1, sizeof *seen);
    if (!seen)
        return 0;
    for (uint32_t i = 0; i < n_words; i++) /* acquire: orders these loads before the second pass */
        seen[i] = dlx_load64_acquire(dlx__writer_word(&link->page->hold[i]));
    for (uint32_t i = 0; i < n_words; i++) {
        /* A reader takes no message twice, so a hold that is unchanged was held all the time
         * between the two passes. */
        uint64_t n = dlx_load64_acquire(dlx__writer_word(&link->page->hold[i]));
        if (n == 0 || n != seen[i])
            continue;
        uint64_t bytes = message_bytes(w, n);
        if (n > newest) {
            sum += newest_bytes;
            newest = n;
            newest_bytes = bytes;
        } else {
            sum += bytes;
        }
    }
    free(seen);
    return sum;
}

bool dlx__writer_link_holds(const struct dlx_writer_link *link, uint64_t n)
{
    uint32_t n_words = dlx__writer_link_n_used(link), i = 0;
    while (i < n_words && dlx_load64_relaxed(dlx__writer_word(&link->page->hold[i])) != n)
        i++;
    return i < n_words;
}

uint64_t dlx__writer_published_ns(const struct dlx_writer *w, uint64_t n)
{
    uint64_t words[DLX_SHM_ENTRY_WORDS];
    if (n < w->oldest || n > w->head)
        return 0;
    (void)dlx__writer_payload(w, n, words);
    return words[0];
}

void dlx__writer_joins_changed(struct dlx_writer *w, uint64_t joins)
{
    bool missed = dlx__writer_misses_link(w); /* a packet was missing before: look again */
    if (joins != w->joins_seen) {
        w->joins_seen = joins;
        forget_passed(w);
    }
    w->env->pick_up(w->userdata);
    if (missed) { /* wake readers that slept through what was published since */
        dlx_fence();
        dlx__writer_ring_all(w);
    }
}

void dlx__writer_look_for_dead(struct dlx_writer *w)
{
    w->env->look_for_dead(w->userdata);
    for (uint32_t i = w->n_links; i-- > 0;)
        if (w->links[i]->dead ||
            (dlx__writer_link_is_closed(w->links[i]) &&
             dlx__writer_link_n_held(w->links[i]) == 0)) /* free_unheld() sets the marks itself */
            remove_link(w, i);
    dlx__writer_open_carried(w, false);
}

void dlx__writer_leaves_changed(struct dlx_writer *w, uint64_t leaves)
{
    w->leaves_seen = leaves;
    dlx__writer_look_for_dead(w);
}

void dlx__writer_set_membership(struct dlx_writer *w, const struct dlx_shm_membership *membership)
{
    w->membership = membership;
    w->joins_seen = w->joins_picked =
        dlx_load64_relaxed(dlx__writer_word(&membership->joins)) & ~DLX_SHM_JOINS_MASK;
    w->leaves_seen = 0;
    w->heeds_locks = false;
}

void dlx__writer_heed_locks(struct dlx_writer *w)
{
    w->heeds_locks = dlx__writer_has_daemon(w);
    dlx_store32_release(&w->block->control->heeds_locks, w->heeds_locks);
}

/* ---- retire -------------------------------------------------------------------------------- */

/* Handles messages that may be in several control blocks, and frees control blocks without LIVE
 * messages. */
void dlx__writer_retire_in_blocks(struct dlx_writer *w, uint64_t to)
{
    for (; w->oldest <= to; w->oldest++)
        for (struct dlx_writer_block *block = w->oldest_block; block; block = block->next)
            /* A message that was copied is in more than one control block. */
            if (w->oldest > block->base && w->oldest <= block->last)
                dlx__writer_retire_in(w, block, w->oldest);
    for (struct dlx_writer_block *block = w->oldest_block; block; block = block->next)
        dlx_store64_release(&block->control->oldest, w->oldest);
    while (w->oldest > w->oldest_block->last)
        forget_oldest_block(w);
}

/* Updates what every reliable link has passed. Returns what every link has passed that wants more
 * than the newest message. */
static uint64_t look_at_cursors(struct dlx_writer *w)
{
    uint64_t reliable = UINT64_MAX, all = UINT64_MAX;
    if (dlx__writer_misses_link(w)) {
        forget_passed(w);
        return 0;
    }
    for (uint32_t i = 0; i < w->n_links; i++) {
        const struct dlx_writer_link *link = w->links[i];
        if (link->dead || link->left || link->is_passed_over)
            continue;
        /* CLOSED is the greatest number, so a closed link has passed everything. A false cursor
         * ahead of head hurts only its own link. */
        uint64_t cursor = dlx__writer_cursor_of(link);
        all = DLX_MIN(all, cursor);
        if (link->reliable)
            reliable = DLX_MIN(reliable, cursor);
    }
    if (dlx_unlikely(w->n_groups > 0)) {
        uint64_t done = dlx__writer_look_at_groups(w);
        all = DLX_MIN(all, done);
        reliable = DLX_MIN(reliable, done);
    }
    /* A link that joined before the later messages were put may not be known yet. */
    w->passed = DLX_MIN(reliable, w->announced);
    set_limit(w);
    return all;
}

uint64_t dlx__writer_passed(struct dlx_writer *w)
{
    (void)look_at_cursors(w);
    return w->passed;
}

uint64_t dlx__writer_queued_bytes(struct dlx_writer *w)
{
    uint64_t sum = 0, words[DLX_SHM_ENTRY_WORDS];
    for (uint64_t n = DLX_MAX(dlx__writer_passed(w) + 1, w->oldest); n <= w->head; n++)
        sum += w->env->payload_bytes(w->userdata, dlx__writer_payload(w, n, words));
    return sum;
}

/* Called after a fence. Partner: the kernel clears the daemon's thread id, and then a later daemon
 * locks the control block for each reader that it shows it to. If the writer sees the id or no
 * lock, later readers see every GONE that it has stored. */
static bool has_unknown_readers(const struct dlx_writer *w)
{
    return dlx_unlikely(w->heeds_locks && !dlx__writer_has_daemon(w)) &&
           w->env->has_unknown_readers(w->userdata);
}

/* Marks what live links hold, removes closed links that hold nothing, and frees the other retired
 * messages. */
static uint32_t free_unheld(struct dlx_writer *w)
{
    for (uint32_t i = 0; i < w->n_kept; i++) /* later ones were never marked */
        w->retired[i].held = false;
    for (uint32_t i = w->n_links; i-- > 0;) {
        struct dlx_writer_link *link = w->links[i];
        /* Loaded before the holds: a closed link takes no more messages. */
        bool closed = link->dead || dlx__writer_link_is_closed(link);
        if (link->dead || (!holds_any(w, link) && closed))
            remove_link(w, i);
    }
    uint32_t kept = 0, n = w->n_retired;
    for (uint32_t i = 0; i < n; i++) {
        if (dlx_unlikely(w->retired[i].held))
            w->retired[kept++] = w->retired[i];
        else
            w->env->payload_freed(w->userdata, w->retired[i].payload);
    }
    w->n_retired = w->n_kept = kept;
    w->n_payloads -= n - kept;
    return n - kept;
}

static void remove_dead(struct dlx_writer *w)
{
    for (uint32_t i = w->n_links; i-- > 0;)
        if (w->links[i]->dead)
            remove_link(w, i);
}

uint32_t dlx__writer_reclaim(struct dlx_writer *w, bool drop)
{
    /* Within a batch, a link may have joined without seeing the newest messages, and may want those
     * that this call retires. */
    if (dlx_unlikely(w->announced != w->head))
        dlx_fence(); /* gen, then `joins`; otherwise dlx__writer_announce() has had this fence */
    dlx__writer_read_membership(w);
    /* Cursors are read before messages are retired. A link that has passed a message can hold it
     * only by a hold, and holds are read later. The other order loses messages (tests/model,
     * CURSORFIRST). */
    uint64_t first = w->oldest, all = look_at_cursors(w);
    uint64_t to = w->announced > w->kept ? w->announced - w->kept : 0;
    if (w->gating)
        to = DLX_MIN(to, w->passed);
    to = drop ? DLX_MIN(to, w->oldest) : DLX_MIN(to, all);
    to = DLX_MIN(to, w->oldest + RETIRE_BATCH - 1);
    for (uint64_t n = w->oldest; n <= to; n++)
        dlx__prefetch_write(dlx__writer_entry(w->oldest_block, n));
    dlx__writer_retire(w, to);
    dlx_fence(); /* GONE, then `joins` and holds */
    w->reusable = w->oldest;
    set_limit(w);
    dlx__writer_read_membership(w);
    /* A subscriber whose link page is unknown may hold anything. */
    if (dlx__writer_misses_link(w) || has_unknown_readers(w)) {
        remove_dead(w);
        return (uint32_t)(w->oldest - first);
    }
    return free_unheld(w) + (uint32_t)(w->oldest - first);
}

void dlx__writer_set_blocked(struct dlx_writer *w, bool blocked)
{
    if (blocked)
        w->blocked = DLX_MAX(w->blocked + 1, DLX_SHM_BLOCKED_ALWAYS + 1);
    dlx_store32_relaxed(&w->block->control->blocked, blocked ? w->blocked : 0);
    /* partner: a reader clears a hold or moves its cursor, has a fence, then loads `blocked` */
    dlx_fence();
}

void dlx__writer_note_freed(struct dlx_writer *w, uint64_t id)
{
    struct dlx_shm_control *control = w->block->control;
    uint64_t n = dlx_load64_relaxed(&control->n_freed);
    /* Partner: dlx__reader_freed() reads the ids, then n_freed again. Who has seen this id instead
     * of the one that was there sees n_freed as it is now. */
    dlx_fence();
    dlx_store64_relaxed(&control->freed[n % DLX_SHM_FREED], id);
    dlx_store64_release(&control->n_freed, n + 1);
    dlx_fence();
    dlx__writer_ring_all(w);
}

/* ---- publish ------------------------------------------------------------------------------- */

int dlx__writer_make_room(struct dlx_writer *w)
{
    assert(w->announced == w->head);
    if (w->n_payloads >= w->payloads_room) {
        int r = reserve_payloads(w, w->n_payloads + 1);
        if (r < 0)
            return r;
    }
    set_limit(w); /* entries may have become reusable since the last call */
    if (w->head < w->limit)
        return 0;
    dlx__writer_read_membership(w);
    remove_dead(w);
    (void)look_at_cursors(w);
    if (w->head < w->limit)
        return 0;
    dlx__writer_retire(w, dlx__writer_behind_window(w));
    dlx_fence();
    w->reusable = w->oldest;
    set_limit(w);
    return w->head < w->limit ? 0 : DLX_E_FULL;
}

/* Marks the end of this control block and wakes all sleeping readers. There is always room for the
 * mark. */
static void mark_final(struct dlx_writer *w, uint64_t mark)
{
    assert(w->announced == w->head);
    dlx_store64_release(&dlx__writer_entry(w->block, w->head + 1)->gen, (w->head + 1) | mark);
    dlx_fence();
    /* a reader that joined since the last message may be asleep by now */
    dlx__writer_read_membership(w);
    dlx__writer_ring_all(w);
}

void dlx__writer_close(struct dlx_writer *w)
{
    dlx__writer_open_carried(w, true); /* nobody would do it later: some may be done twice */
    mark_final(w, DLX_SHM_END);
}

/* ---- another control block ------------------------------------------------------------------ */

int dlx__writer_block_new(struct dlx_writer *w, struct dlx_shm_control *control, uint32_t n_entries,
                          uint32_t n, struct dlx_writer_block **ret)
{
    assert(n <= w->head + 1 - w->oldest && n < n_entries);
    int r = reserve_payloads(w, w->n_payloads + n + 1);
    if (r == 0)
        r = block_new(control, n_entries, ret);
    if (r < 0)
        return r;
    (*ret)->base = w->head - n;
    /* No reader sees the control block yet. A reader that starts in it has passed all earlier
     * messages. */
    dlx_store64_relaxed(&control->head, w->head);
    dlx_store64_relaxed(&control->oldest, (*ret)->base + 1);
    dlx_store64_relaxed(&control->moved_at, n > 0 ? w->head : 0);
    (*ret)->moved_at = n > 0 ? w->head : 0;
    return 0;
}

void dlx__writer_copy_retained(struct dlx_writer_block *block, uint64_t n, const uint64_t *words,
                               void *payload)
{
    struct dlx_shm_entry *entry = dlx__writer_entry(block, n);
    assert(n > block->base && n <= dlx_load64_relaxed(&block->control->head));
    for (uint32_t i = 0; i < DLX_SHM_ENTRY_WORDS; i++)
        dlx_store64_relaxed(&entry->words[i], words[i]);
    block->payloads[n & block->mask] = payload;
    dlx_store64_release(&entry->gen, n);
}

void dlx__writer_block_free(struct dlx_writer *w, struct dlx_writer_block *block)
{
    for (uint32_t i = 0; block && i <= block->mask; i++)
        if (block->payloads[i])
            w->env->payload_freed(w->userdata, block->payloads[i]);
    free(block);
}

void dlx__writer_move(struct dlx_writer *w, struct dlx_writer_block *block)
{
    struct dlx_writer_block *old = w->block;
    assert(dlx_load64_relaxed(&block->control->head) == w->head && w->announced == w->head);
    /* No copied message was retired meanwhile, or it would stay LIVE in the new control block. */
    assert(w->oldest <= block->base + 1);
    /* `blocked` is not updated here any more, but a subscriber may still take from this control
     * block, and the publisher waits for a reliable one. So from now on every reader of it
     * rings. */
    dlx_store32_relaxed(&old->control->blocked, DLX_SHM_BLOCKED_ALWAYS);
    mark_final(w, DLX_SHM_MOVED);
    old->last = w->head;
    old->next = block;
    w->block = block;
    dlx__writer_groups_moved(w);
    w->n_payloads += (uint32_t)(w->head - block->base);
    while (w->oldest > w->oldest_block->last) /* it has no LIVE message */
        forget_oldest_block(w);
    set_limit(w);
}

void *dlx__writer_payload(const struct dlx_writer *w, uint64_t n,
                          uint64_t ret_words[DLX_SHM_ENTRY_WORDS])
{
    assert(n >= w->oldest && n <= w->head);
    const struct dlx_writer_block *block = w->oldest_block;
    while (n > block->last || (block->next && n > block->next->base))
        block = block->next;
    for (uint32_t i = 0; i < DLX_SHM_ENTRY_WORDS; i++)
        ret_words[i] = dlx_load64_relaxed(&dlx__writer_entry(block, n)->words[i]);
    return block->payloads[n & block->mask];
}
