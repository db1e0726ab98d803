/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: a writer with hostile subscribers. The input is a program that publishes, adds links,
 * lets their processes die, goes on in other control blocks, and writes any word of the links'
 * pages, which is all that subscribers can do. No message is freed that a living link holds, that
 * is kept, or that a reliable link has to pass; FULL is said only when it is so; every payload is
 * accounted for.
 */
#include "common/error.h"
#include "tests/fuzz/harness_fuzz.h"
#include "tests/harness/ring.h"

#define LINKS_MAX  6U
#define HELD_MAX   5U
#define BLOCKS_MAX 4U

struct link {
    struct dlx_writer_link core;
    struct dlx_shm_link *page; /* the same page, as its subscriber sees it; NULL: free */
    uint64_t passed;           /* the greatest cursor that it ever wrote */
    uint64_t since;            /* older messages were there when it joined: they may be passed */
    uint32_t index;
};

struct state {
    struct dlx_fuzz f;
    struct dlx_writer w;
    struct dlx_shm_membership membership;
    struct link links[LINKS_MAX];
    uint32_t n_waiting; /* links that the daemon has queued */
    uint64_t joined_at; /* head, when it queued the last one */
    uint32_t n_blocks;
    uint64_t n_payloads;
    bool ends; /* everything goes, held or not */
};

static uint64_t load(const dlx_atomic_u64 *word)
{
    return dlx_load64_relaxed((dlx_atomic_u64 *)(uintptr_t)word);
}

/* By its own word: it may also use fewer hold words than it has. */
static bool is_held_by(const struct dlx_writer_link *link, uint64_t n)
{
    uint64_t n_used = DLX_MIN(load(&link->page->n_used), (uint64_t)link->max_held);
    for (uint64_t i = 0; i < n_used; i++)
        if (load(&link->page->hold[i]) == n)
            return true;
    return false;
}

static struct link *link_of(struct state *s, const struct dlx_writer_link *core)
{
    struct link *link = (struct link *)(uintptr_t)core;
    REQUIRE(link >= s->links && link < s->links + LINKS_MAX && link->page);
    return link;
}

static size_t page_size(const struct dlx_writer_link *core)
{
    return sizeof(struct dlx_shm_link) + core->max_held * sizeof(uint64_t);
}

static void add_link(struct state *s, struct link *link)
{
    uint32_t how = dlx_fuzz_choose(&s->f, 256);
    *link = (struct link){.since = s->joined_at + 1, .index = dlx_fuzz_choose(&s->f, 40)};
    link->core = (struct dlx_writer_link){
        .max_held = 1 + how % HELD_MAX, .reliable = how & 64, .is_passed_over = (how & 192) == 128};
    link->page = dlx_fuzz_map(page_size(&link->core)); /* not a byte beyond its hold words */
    link->core.page = link->page;
    link->core.ticket = dlx_shm_ticket(link->page, link->index);
    REQUIRE(dlx__writer_link_add(&s->w, &link->core) == 0);
    s->n_waiting--;
}

static void pick_up(void *userdata)
{
    struct state *s = userdata;
    for (uint32_t i = 0; i < LINKS_MAX && s->n_waiting > 0; i++)
        if (!s->links[i].page)
            add_link(s, &s->links[i]); /* the others: as without memory */
}

static void ring(void *userdata, struct dlx_writer_link *core)
{
    (void)link_of(userdata, core);
}

static void look_for_dead(void *userdata)
{
    (void)userdata; /* they die in step() */
}

static void link_gone(void *userdata, struct dlx_writer_link *core)
{
    struct link *link = link_of(userdata, core);
    dlx_fuzz_unmap(link->page, page_size(core));
    *link = (struct link){.page = NULL};
}

static void payload_freed(void *userdata, void *data)
{
    struct state *s = userdata;
    uint64_t n = *(uint64_t *)data;
    for (uint32_t i = 0; i < s->w.n_links && !s->ends; i++) {
        const struct dlx_writer_link *core = s->w.links[i];
        const struct link *link = link_of(s, core);
        REQUIRE(core->dead || !is_held_by(core, n));
        REQUIRE(core->dead || !core->reliable || !s->w.gating || n < link->since ||
                link->passed >= n);
    }
    REQUIRE(s->ends || s->w.head - n >= s->w.kept);
    s->n_payloads--;
    free(data);
}

static void block_gone(void *userdata, const struct dlx_writer_block *block)
{
    struct state *s = userdata;
    s->n_blocks--;
    dlx_fuzz_unmap(block->control, dlx_shm_control_size(block->mask + 1));
}

static const struct dlx_writer_env env = {
    .pick_up = pick_up,
    .ring = ring,
    .look_for_dead = look_for_dead,
    .link_gone = link_gone,
    .payload_freed = payload_freed,
    .block_gone = block_gone,
};

/* Is there a reliable link that has not passed what is `window` behind, or may there be one? */
static bool is_full(const struct dlx_writer *w)
{
    bool waits = w->joins_picked < w->joins_seen;
    for (uint32_t i = 0; i < w->n_links; i++) {
        const struct dlx_writer_link *link = w->links[i];
        waits |= link->reliable && !link->is_passed_over && !link->dead &&
                 load(&link->page->cursor) + w->window <= w->head;
    }
    return w->gating && waits;
}

static void check(const struct state *s)
{
    const struct dlx_writer *w = &s->w;
    uint32_t n_blocks = 0;
    uint64_t n_live = 0;
    for (const struct dlx_writer_block *b = w->oldest_block; b; b = b->next, n_blocks++) {
        uint64_t first = DLX_MAX(b->base + 1, w->oldest), last = DLX_MIN(b->last, w->head);
        n_live += last + 1 > first ? last + 1 - first : 0;
    }
    REQUIRE(n_blocks == s->n_blocks && w->oldest <= w->head + 1);
    REQUIRE(w->n_payloads == n_live + w->n_retired && w->n_payloads == s->n_payloads);
    REQUIRE(w->n_payloads <= w->payloads_room && w->limit <= w->oldest + w->block->mask - 1);
    for (uint32_t i = 0; i < w->n_retired; i++)
        REQUIRE(w->retired[i].n < w->oldest && (i == 0 || w->retired[i - 1].n <= w->retired[i].n));
    REQUIRE(dlx_test_blocks_are_right(w));
    REQUIRE(load(&w->block->control->head) == w->announced || w->announced == w->block->base);
}

static uint64_t *new_payload(struct state *s, uint64_t n)
{
    uint64_t *payload = malloc(sizeof *payload);
    REQUIRE(payload);
    *payload = n;
    s->n_payloads++;
    return payload;
}

static void announce(struct state *s)
{
    bool waits = s->w.head > s->w.limit; /* a subscriber joined in the middle of a batch, or lied */
    dlx__writer_announce(&s->w);
    REQUIRE(waits || s->w.head + 1 - s->w.oldest <= s->w.window);
    for (uint32_t i = 0; i < s->w.n_links; i++) /* each sleeping reader was rung */
        REQUIRE(s->w.links[i]->rung == load(s->w.links[i]->ticket));
}

static void put(struct state *s)
{
    if (!dlx__writer_has_room(&s->w)) {
        announce(s);
        int r = dlx__writer_make_room(&s->w);
        REQUIRE(r == 0 ? dlx__writer_has_room(&s->w) : r == DLX_E_FULL && is_full(&s->w));
        if (r < 0)
            return;
    }
    dlx_test_put(&s->w, new_payload(s, s->w.head + 1));
}

static void scribble(struct state *s)
{
    struct dlx_fuzz *f = &s->f;
    struct link *link = &s->links[dlx_fuzz_choose(f, LINKS_MAX)];
    uint32_t what = dlx_fuzz_choose(f, 16), k = dlx_fuzz_choose(f, HELD_MAX);
    uint64_t value = dlx_fuzz_number(f);
    if (!link->page)
        return;
    uint32_t max_held = link->core.max_held;
    if (what < 10 && value < 0x40) /* near what is there */
        value = s->w.head - DLX_MIN(s->w.head, value);
    if (what < 4)
        dlx_store64_relaxed(&link->page->hold[k % max_held], what == 0 ? 0 : value);
    else if (what < 6)
        dlx_store64_relaxed(&link->page->n_used, what == 4 ? k : value);
    else if (what < 10)
        dlx_store64_relaxed(&link->page->cursor, value);
    else if (what == 10)
        dlx_store64_relaxed(&link->page->cursor, DLX_SHM_CURSOR_CLOSED);
    else if (what < 14)
        dlx_store64_relaxed(dlx_shm_ticket(link->page, link->index), value);
    else
        memcpy((uint8_t *)link->page + value % (page_size(&link->core) - 8) / 8 * 8, &value, 8);
    link->passed = DLX_MAX(link->passed, load(&link->page->cursor));
}

static void move(struct state *s)
{
    struct dlx_writer *w = &s->w;
    uint32_t n_entries = w->block->mask + 1;
    uint64_t words[DLX_SHM_ENTRY_WORDS];
    struct dlx_writer_block *block;
    if (s->n_blocks == BLOCKS_MAX)
        return;
    announce(s);
    struct dlx_shm_control *control = dlx_fuzz_map(dlx_shm_control_size(n_entries));
    uint32_t n = dlx_fuzz_choose(&s->f, (uint32_t)(w->head + 2 - w->oldest));
    REQUIRE(dlx__writer_block_new(w, control, n_entries, n, &block) == 0);
    if (dlx_fuzz_choose(&s->f, 8) == 7) { /* it could not be announced */
        dlx__writer_block_free(w, block);
        dlx_fuzz_unmap(control, dlx_shm_control_size(n_entries));
        return;
    }
    for (uint64_t i = w->head - n + 1; i <= w->head; i++) {
        REQUIRE(*(uint64_t *)dlx__writer_payload(w, i, words) == i && dlx_test_is_of(words, i));
        dlx__writer_copy_retained(block, i, words, new_payload(s, i));
    }
    s->n_blocks++;
    dlx__writer_move(w, block);
}

static void put_and_announce(struct state *s)
{
    put(s);
    announce(s);
}

/* A subscriber joins; the packet comes before the number, or never. */
static void join(struct state *s)
{
    s->n_waiting += dlx_fuzz_choose(&s->f, 8) != 7;
    s->joined_at = s->w.head;
    dlx_store64_relaxed(&s->membership.joins, dlx_load64_relaxed(&s->membership.joins) + 1);
}

static void die(struct state *s)
{
    struct link *link = &s->links[dlx_fuzz_choose(&s->f, LINKS_MAX)];
    link->core.dead = link->page != NULL;
    dlx_store64_relaxed(&s->membership.leaves, dlx_load64_relaxed(&s->membership.leaves) + 1);
}

static void reclaim(struct state *s)
{
    (void)dlx__writer_reclaim(&s->w, false);
}

static void reclaim_all(struct state *s)
{
    (void)dlx__writer_reclaim(&s->w, true);
}

static void set_blocked(struct state *s)
{
    dlx__writer_set_blocked(&s->w, dlx_fuzz_choose(&s->f, 2));
    dlx__writer_read_membership(&s->w);
}

static void look(struct state *s)
{
    for (uint32_t i = 0; i < s->w.n_links; i++) {
        (void)dlx__writer_link_is_closed(s->w.links[i]);
        REQUIRE(dlx__writer_link_n_held(s->w.links[i]) <= s->w.links[i]->max_held);
    }
}

static void (*const steps[])(struct state *) = {
    put,
    put,
    put_and_announce,
    put_and_announce,
    put_and_announce,
    scribble,
    scribble,
    scribble,
    scribble,
    join,
    die,
    reclaim,
    reclaim_all,
    move,
    set_blocked,
    look,
};

void dlx_fuzz_one(struct dlx_fuzz *f)
{
    struct state s = {.f = *f};
    uint32_t window = 1 + dlx_fuzz_choose(&s.f, 8), kept = 1 + dlx_fuzz_choose(&s.f, window);
    uint32_t n_entries = 4;
    bool gating = dlx_fuzz_choose(&s.f, 2);
    while (n_entries < 2 * window)
        n_entries *= 2;
    s.n_blocks = 1;
    REQUIRE(dlx__writer_init(&s.w, dlx_fuzz_map(dlx_shm_control_size(n_entries)), n_entries, window,
                             kept, gating, &s.membership, &env, &s) == 0);
    while (s.f.left > 0) {
        steps[dlx_fuzz_choose(&s.f, DLX_ARRAY_SIZE(steps))](&s);
        check(&s);
    }
    announce(&s);
    dlx__writer_close(&s.w);
    s.ends = true;
    dlx__writer_deinit(&s.w);
    REQUIRE(s.n_payloads == 0 && s.n_blocks == 0);
}
