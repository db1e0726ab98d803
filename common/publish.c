/* SPDX-License-Identifier: Apache-2.0 */
#include "common/publish.h"
#include "common/brief.h"
#include "common/error.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Passes over the hold words of which one also asks who has left: see asks_who_is_closed(). */
#define CLOSED_PASSES 16U
/* A slot's lines come from another processor's cache in the time of so many messages, if those follow each other at once. */
#define SLOTS_AHEAD 3U

/* The membership line is the daemon's; const is the page's protection, the word is atomic. */
static dlx_atomic_u64 *word(const dlx_atomic_u64 *w)
{
    return (dlx_atomic_u64 *)(uintptr_t)w;
}

/* ---- life ---------------------------------------------------------------------------------- */

void dlx__pub_block_free(struct dlx_pub_block *block)
{
    if (!block)
        return;
    free(block->slot_of);
    free(block->payloads);
    free(block->free);
    free(block->retired);
    free(block);
}

static int block_new(struct dlx_shm_control *control, uint32_t n_slots, uint32_t n_slots_all,
                     struct dlx_pub_block **ret)
{
    uint32_t ring_size = dlx_shm_ring_size(n_slots);
    struct dlx_pub_block *block = calloc(1, sizeof *block);
    if (block)
        *block = (struct dlx_pub_block){
            .control = control,
            .ring = dlx_shm_ring(control),
            .slots = dlx_shm_slots(control, n_slots),
            .n_slots = n_slots,
            .ring_mask = ring_size - 1,
            .last = UINT64_MAX,
            .slot_of = malloc(ring_size * sizeof *block->slot_of),
            .payloads = calloc(n_slots, sizeof(void *)),
            .free = malloc(n_slots * sizeof *block->free),
            .retired = malloc(n_slots_all * sizeof *block->retired),
        };
    if (!block || !block->slot_of || !block->payloads || !block->free || !block->retired) {
        dlx__pub_block_free(block);
        return dlx__fail(DLX_E_NO_MEMORY, "state of %u slots", n_slots);
    }
    for (uint32_t i = 0; i < n_slots; i++)
        block->free[i] = i;
    *ret = block;
    return 0;
}

/* The core works in this block. */
static void enter(struct dlx_pub *pub, struct dlx_pub_block *block)
{
    pub->block = block;
    pub->slots = block->slots;
    pub->n_slots = block->n_slots;
    pub->n_free = block->n_slots - block->n_carried;
    pub->free = block->free;
    pub->free_first = block->n_carried;
    pub->retired = block->retired;
}

int dlx__pub_init(struct dlx_pub *pub, struct dlx_shm_control *control, uint32_t n_slots,
                  uint32_t history, bool gating, const struct dlx_shm_membership *membership,
                  const struct dlx_pub_env *env, void *userdata)
{
    assert(history > 0 && n_slots > history && n_slots <= DLX_SHM_SLOTS_MAX);
    struct dlx_pub_block *block = NULL;
    *pub = (struct dlx_pub){
        .env = env,
        .userdata = userdata,
        .history = history,
        .gating = gating,
        .oldest = 1,
    };
    int r = block_new(control, n_slots, n_slots, &block);
    if (r < 0)
        return r;
    pub->oldest_block = block;
    enter(pub, block);
    dlx__pub_set_membership(pub, membership);
    return 0;
}

static void block_gone(struct dlx_pub *pub, struct dlx_pub_block *block)
{
    pub->env->block_gone(pub->userdata, block);
    dlx__pub_block_free(block);
}

void dlx__pub_deinit(struct dlx_pub *pub)
{
    for (uint32_t i = 0; i < pub->n_links; i++)
        pub->env->link_gone(pub->userdata, pub->links[i]);
    free(pub->links);
    for (struct dlx_pub_block *block = pub->oldest_block, *next; block; block = next) {
        next = block->next;
        for (uint32_t i = 0; i < block->n_slots; i++)
            if (block->payloads[i])
                pub->env->slot_freed(pub->userdata, block->payloads[i]);
        block_gone(pub, block);
    }
    *pub = (struct dlx_pub){0};
}

/* ---- links --------------------------------------------------------------------------------- */

int dlx__pub_link_add(struct dlx_pub *pub, struct dlx_pub_link *link)
{
    if (pub->n_links == pub->links_room) {
        uint32_t room = pub->links_room ? pub->links_room * 2 : 4;
        struct dlx_pub_link **links = realloc(pub->links, room * sizeof(struct dlx_pub_link *));
        if (!links)
            return dlx__fail(DLX_E_NO_MEMORY, "table of %u links", room);
        pub->links = links;
        pub->links_room = room;
    }
    pub->links[pub->n_links++] = link;
    pub->joins_picked++;
    return 0;
}

static void remove_link(struct dlx_pub *pub, uint32_t i)
{
    struct dlx_pub_link *link = pub->links[i];
    pub->links[i] = pub->links[--pub->n_links];
    pub->env->link_gone(pub->userdata, link);
}

bool dlx__pub_link_holds(const struct dlx_pub_link *link, uint64_t n)
{
    dlx_atomic_u64 *hold = (dlx_atomic_u64 *)(uintptr_t)link->page->hold;
    for (uint32_t i = 0; i < link->max_held; i++)
        if (dlx_load64_relaxed(&hold[i]) == n)
            return true;
    return false;
}

static void ring_sleepers(struct dlx_pub *pub)
{
    for (uint32_t i = 0; i < pub->n_links; i++) {
        struct dlx_pub_link *link = pub->links[i];
        /* Partner: a subscriber raises its ticket, then loads head (and state). */
        uint64_t ticket = dlx_load64_sc(link->ticket);
        if (dlx_unlikely(ticket != link->rung)) {
            link->rung = ticket;
            pub->env->ring(pub->userdata, link);
        }
    }
}

static void mark_held(struct dlx_pub *pub, uint64_t n)
{
    uint32_t low = 0, high = pub->n_retired;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (pub->retired[middle].n < n)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < pub->n_retired && pub->retired[low].n == n; low++)
        pub->retired[low].held = true;
}

/* Does the link hold anything? Retired messages that it holds are marked. */
static bool holds_any(struct dlx_pub *pub, const struct dlx_pub_link *link)
{
    bool holds = false;
    for (uint32_t k = 0; k < link->max_held; k++) {
        /* Partner: a taker stores its hold word, then loads gen. */
        uint64_t n = dlx_load64_sc(word(&link->page->hold[k]));
        if (n) {
            holds = true;
            mark_held(pub, n);
        }
    }
    return holds;
}

bool dlx__pub_link_is_closed(const struct dlx_pub_link *link)
{
    return dlx_load64_sc(word(&link->page->cursor)) == DLX_SHM_CURSOR_CLOSED;
}

void dlx__pub_read_membership(struct dlx_pub *pub)
{
    /* Partner: the daemon raises `joins` after it queued the link's packet, before the joiner may
     * load `head`. So whoever loads our head from now on is seen here. It lowers `joins` only for who
     * was never picked up and holds nothing: an equal number hides nobody. */
    uint64_t joins = dlx_load64_sc(word(&pub->membership->joins));
    if (dlx_unlikely(joins != pub->joins_seen)) {
        pub->joins_seen = joins;
        pub->env->pick_up(pub->userdata);
    } else if (dlx_unlikely(pub->joins_picked < pub->joins_seen)) {
        /* A packet is still missing: look again, and wake who slept through what was published since. */
        pub->env->pick_up(pub->userdata);
        ring_sleepers(pub);
    }
    uint64_t leaves = dlx_load64_relaxed(word(&pub->membership->leaves));
    if (dlx_unlikely(leaves != pub->leaves_seen)) {
        pub->leaves_seen = leaves;
        pub->leaving = true;
        pub->env->look_for_dead(pub->userdata);
        for (uint32_t i = pub->n_links; i-- > 0;)
            if (pub->links[i]->dead ||
                (dlx__pub_link_is_closed(pub->links[i]) && !holds_any(pub, pub->links[i])))
                remove_link(pub, i);
    }
}

void dlx__pub_set_membership(struct dlx_pub *pub, const struct dlx_shm_membership *membership)
{
    pub->membership = membership;
    pub->joins_seen = pub->joins_picked =
        dlx_load64_relaxed(word(&membership->joins)) & ~DLX_SHM_JOINS_MASK;
    pub->leaves_seen = 0;
}

/* ---- reclaim ------------------------------------------------------------------------------- */

/* An old block whose slots are all free holds nothing for anybody. */
static void forget_block(struct dlx_pub *pub, struct dlx_pub_block *block)
{
    struct dlx_pub_block **at = &pub->oldest_block;
    while (*at != block)
        at = &(*at)->next;
    *at = block->next;
    block_gone(pub, block);
}

static void push_free(struct dlx_pub *pub, uint32_t slot)
{
    uint32_t at = pub->free_first + pub->n_free;
    pub->free[at >= pub->n_slots ? at - pub->n_slots : at] = slot;
    pub->n_free++;
}

static void free_slot(struct dlx_pub *pub, struct dlx_pub_block *block, uint32_t slot)
{
    void *payload = block->payloads[slot];
    block->payloads[slot] = NULL;
    if (payload)
        pub->env->slot_freed(pub->userdata, payload);
    if (dlx_likely(block == pub->block))
        push_free(pub, slot);
    else if (--block->n_used == 0)
        forget_block(pub, block);
}

/* The block of LIVE message n. */
static struct dlx_pub_block *block_of(const struct dlx_pub *pub, uint64_t n)
{
    struct dlx_pub_block *block = pub->oldest_block;
    while (n > block->last)
        block = block->next;
    return block;
}

/* The newest message that every reliable link has passed. */
static uint64_t passed_by_all(struct dlx_pub *pub)
{
    uint64_t passed = UINT64_MAX;
    if (!pub->gating)
        return passed;
    if (pub->joins_picked < pub->joins_seen)
        return 0; /* a link that we could not pick up: it may have passed nothing */
    for (uint32_t i = 0; i < pub->n_links; i++) {
        struct dlx_pub_link *link = pub->links[i];
        if (!link->reliable || link->dead)
            continue;
        /* CLOSED is the greatest number: it has passed everything. A cursor ahead of head is a lie
         * that hurts only the link itself. */
        uint64_t cursor = dlx_load64_sc(word(&link->page->cursor));
        passed = DLX_MIN(passed, cursor);
    }
    return passed;
}

/* The newest message that may be retired, given what reliable links have passed. */
static uint64_t retirable_to(const struct dlx_pub *pub, uint64_t passed)
{
    uint64_t beyond_history = pub->head > pub->history ? pub->head - pub->history : 0;
    return DLX_MIN(beyond_history, passed);
}

static void retire(struct dlx_pub *pub, uint64_t to, uint32_t max_retire)
{
    /* Readers had these lines last: ask for all of them at once, as each store below waits for its own. */
    for (uint64_t n = pub->oldest; n <= to && n - pub->oldest < max_retire; n++) {
        const struct dlx_pub_block *block = block_of(pub, n);
        dlx__prefetch_write(&block->slots[block->slot_of[n & block->ring_mask]]);
    }
    while (pub->oldest <= to && max_retire-- > 0) {
        uint64_t n = pub->oldest++;
        struct dlx_pub_block *block = block_of(pub, n);
        for (; block && n > block->base;
             block = block->next) { /* in more than one if it was carried */
            uint32_t slot = block->slot_of[n & block->ring_mask];
            /* Partner: a taker stores its hold word, then loads gen. Either it sees 0 here and lets go,
             * or free_unheld() below sees its hold word. */
            dlx_store64_sc(&block->slots[slot].gen, 0);
            pub->retired[pub->n_retired++] =
                (struct dlx_pub_retired){.n = n, .block = block, .slot = slot};
        }
    }
}

/*
 * Is it time to ask who is closed? A cursor is on a line of its own, which its subscriber writes with each message. The
 * daemon says when a link leaves; a daemon that has ended does not.
 */
static bool asks_who_is_closed(struct dlx_pub *pub)
{
    if (!pub->leaving && ++pub->passes_closed < CLOSED_PASSES)
        return false;
    pub->leaving = false;
    pub->passes_closed = 0;
    return true;
}

static void remove_dead(struct dlx_pub *pub)
{
    for (uint32_t i = pub->n_links; i-- > 0;)
        if (pub->links[i]->dead)
            remove_link(pub, i);
}

/* Mark what live links hold, let closed links that hold nothing go, and free the rest. */
static uint32_t free_unheld(struct dlx_pub *pub)
{
    if (pub->joins_picked < pub->joins_seen) {
        remove_dead(pub);
        return 0; /* somebody whose page we do not see may hold anything */
    }

    for (uint32_t i = 0; i < pub->n_retired; i++)
        pub->retired[i].held = false;
    bool asks = asks_who_is_closed(pub);
    for (uint32_t i = pub->n_links; i-- > 0;) {
        struct dlx_pub_link *link = pub->links[i];
        if (link->dead) {
            remove_link(pub, i);
            continue;
        }
        /* Before its hold words: it takes no more then. */
        bool closed = asks && dlx__pub_link_is_closed(link);
        if (holds_any(pub, link))
            pub->leaving |= closed;
        else if (closed)
            remove_link(pub, i);
    }

    uint32_t kept = 0, freed = 0;
    for (uint32_t i = 0; i < pub->n_retired; i++) {
        struct dlx_pub_retired retired = pub->retired[i];
        if (retired.held) {
            pub->retired[kept++] = retired;
            continue;
        }
        free_slot(pub, retired.block, retired.slot);
        freed++;
    }
    pub->n_retired = kept;
    if (dlx_unlikely(kept > pub->n_slots / 2))
        pub->pressure += DLX_PUB_PRESSURE;
    return freed;
}

uint32_t dlx__pub_retirable(struct dlx_pub *pub)
{
    uint64_t to = retirable_to(pub, passed_by_all(pub));
    return to >= pub->oldest ? (uint32_t)(to - pub->oldest + 1) : 0;
}

uint32_t dlx__pub_reclaim(struct dlx_pub *pub, uint32_t max_retire)
{
    dlx__pub_read_membership(pub);
    /* Cursors before retiring: a link that has passed a message holds it by a hold word, if at all,
     * and that is looked at after. The other order loses messages (tests/model, ASWRITTEN). */
    retire(pub, retirable_to(pub, passed_by_all(pub)), max_retire);
    dlx__pub_read_membership(pub);
    return free_unheld(pub);
}

/* A part at a time, the oldest first: what is retired is lost to whoever is a little behind, and one pass
 * over the hold words is dear for a single slot. */
static uint32_t reclaim_batch(struct dlx_pub *pub)
{
    pub->pressure++;
    return DLX_MAX(pub->n_slots / 4, 1U);
}

int dlx__pub_slot(struct dlx_pub *pub, uint32_t *ret_slot)
{
    if (dlx_unlikely(pub->n_free == 0)) {
        bool looked = false;
        for (;;) {
            uint32_t freed = dlx__pub_reclaim(pub, reclaim_batch(pub));
            if (pub->n_free > 0)
                break;
            if (freed > 0 || dlx__pub_retirable(pub) > 0) /* of an old block */
                continue;
            if (looked)
                return DLX_E_FULL;
            pub->env->look_for_dead(pub->userdata);
            looked = true;
        }
    }
    *ret_slot = pub->free[pub->free_first];
    return 0;
}

void dlx__pub_set_blocked(struct dlx_pub *pub, bool blocked)
{
    /* Partner: who clears a hold word or moves a cursor loads `blocked` after. Either it sees this
     * store and rings, or the reclaim that follows sees its room. */
    dlx_store32_sc(&pub->block->control->blocked, blocked);
}

/* ---- moving -------------------------------------------------------------------------------- */

static void store_brief(struct dlx_pub_block *block, uint32_t slot, uint64_t n)
{
    struct dlx_brief brief = dlx__brief_pack(&block->slots[slot], slot, n);
    /* Release: whoever sees one of these also sees word 0, so it knows that they are being written. */
#pragma GCC unroll 7
    for (uint32_t i = 0; i < DLX_SHM_BRIEF_WORDS; i++)
        dlx_store64_release(&block->control->brief[i], brief.words[i]);
}

int dlx__pub_block_new(const struct dlx_pub *pub, struct dlx_shm_control *control, uint32_t n_slots,
                       struct dlx_pub_block **ret)
{
    uint32_t n_slots_all = n_slots;
    for (const struct dlx_pub_block *block = pub->oldest_block; block; block = block->next)
        n_slots_all += block->n_slots;
    /* Nobody sees it yet. Whoever starts in it has passed what was before. */
    dlx_store64_relaxed(&control->head, pub->head);
    int r = block_new(control, n_slots, n_slots_all, ret);
    if (r == 0)
        (*ret)->base = pub->head;
    return r;
}

uint32_t dlx__pub_n_live(const struct dlx_pub *pub)
{
    return (uint32_t)(pub->head + 1 - pub->oldest);
}

struct dlx_pub_block *dlx__pub_find(const struct dlx_pub *pub, uint64_t n, uint32_t *ret_slot)
{
    assert(n >= pub->oldest && n <= pub->head);
    struct dlx_pub_block *block = block_of(pub, n);
    while (block->next && n > block->next->base)
        block = block->next;
    *ret_slot = block->slot_of[n & block->ring_mask];
    return block;
}

void dlx__pub_carry(const struct dlx_pub *pub, struct dlx_pub_block *block, uint32_t n,
                    void *const *payloads)
{
    assert(n <= dlx__pub_n_live(pub) && n < block->n_slots && block->n_carried == 0);
    block->base = pub->head - n;
    block->n_carried = n;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t seq = block->base + 1 + i;
        uint32_t at = (uint32_t)seq & block->ring_mask;
        block->slot_of[at] = i;
        block->payloads[i] = payloads[i];
        dlx_store64_relaxed(&block->slots[i].gen, seq);
        dlx_store32_relaxed(&block->ring[at], i);
    }
    if (n > 0)
        store_brief(block, n - 1, pub->head);
}

void dlx__pub_abandon(struct dlx_pub_block *block)
{
    if (block->n_carried > 0)
        dlx_store32_sc(&block->control->state, DLX_SHM_STATE_CLOSED);
    else
        dlx_store64_sc(&block->control->head, block->base | DLX_SHM_MOVED);
}

void dlx__pub_move(struct dlx_pub *pub, struct dlx_pub_block *block)
{
    struct dlx_pub_block *old = pub->block;
    assert(old->n_slots >= pub->n_free);
    memcpy(block->retired, pub->retired, pub->n_retired * sizeof *block->retired);
    assert(block->base + block->n_carried == pub->head);
    old->last = pub->head;
    old->n_used = old->n_slots - pub->n_free;
    old->next = block;
    /* set_blocked() comes here no more, but a newcomer that wants the history may start here, and dlx_publisher_wait()
     * waits for it: from now on everybody here rings. */
    dlx_store32_sc(&old->control->blocked, 1);
    enter(pub, block);
    /* Partner: whoever holds the newest message by its brief loads head after its hold word was stored, and sees that
     * head does not vouch for it any more. Who sleeps is rung with the next message: it raised its ticket and saw
     * the head from before. */
    dlx_store64_sc(&old->control->head, pub->head | DLX_SHM_MOVED);
    if (old->n_used == 0)
        forget_block(pub, old);
}

/* ---- publish ------------------------------------------------------------------------------- */

uint64_t dlx__pub_commit(struct dlx_pub *pub, uint32_t slot, void *payload)
{
    struct dlx_pub_block *block = pub->block;
    assert(pub->n_free > 0 && pub->free[pub->free_first] == slot);
    pub->free_first = pub->free_first + 1 == pub->n_slots ? 0 : pub->free_first + 1;
    pub->n_free--;

    uint64_t n = ++pub->head;
    uint32_t at = (uint32_t)n & block->ring_mask;
    block->slot_of[at] = slot;
    block->payloads[slot] = payload;
    /* Release: the records are there for whoever reads n in gen. The slot was free, so no taker's
     * hold depends on this store's place in the total order. */
    dlx_store64_release(&pub->slots[slot].gen, n);
    dlx_store32_relaxed(&block->ring[at], slot);
    store_brief(block, slot, n);
    dlx_store64_sc(&block->control->head, n); /* publishes gen, the ring entry and the brief */

    dlx__pub_read_membership(pub);
    ring_sleepers(pub);

    /* While the message is on its way: room for the next one, and a slot's lines, which a reader had last. */
    if (pub->n_free == 0)
        dlx__pub_reclaim(pub, reclaim_batch(pub));
    if (pub->n_free > 0) {
        uint32_t i = pub->free_first + DLX_MIN(SLOTS_AHEAD, pub->n_free - 1);
        struct dlx_shm_slot *ahead =
            &pub->slots[pub->free[i >= pub->n_slots ? i - pub->n_slots : i]];
        dlx__prefetch_write(ahead);
        dlx__prefetch_write(ahead->shape);
    }
    return n;
}

void dlx__pub_close(struct dlx_pub *pub)
{
    dlx_store32_sc(&pub->block->control->state, DLX_SHM_STATE_CLOSED);
    dlx__pub_read_membership(pub); /* who joined since the last message may be asleep by now */
    ring_sleepers(pub);
}
