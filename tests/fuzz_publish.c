/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: a publisher with hostile subscribers. The input is a program that publishes, adds links, lets their processes die,
 * and writes any word of their pages, which is all that they can do. No message is freed that a living link holds, that is in the
 * history, or that a reliable link has to pass; "full" is said only when it is so; every slot is accounted for.
 */
#include "client/publisher.h"
#include "common/error.h"
#include "common/publish.h"
#include "tests/harness_fuzz.h"
#include <string.h>

#define LINKS_MAX  6U
#define HELD_MAX   5U
#define BLOCKS_MAX 4U

struct link {
    struct dlx_outlet outlet;
    struct dlx_shm_link *page; /* the same page, as its subscriber sees it; NULL: free */
    uint64_t passed;           /* the greatest cursor that it ever wrote */
    uint64_t rung;             /* the ticket that was rung last */
    uint32_t index;
    uint64_t since; /* older messages were retired before it came: it does not wait for them */
};

struct state {
    struct dlx_fuzz f;
    struct dlx_publisher p; /* only what client/outlet.c looks at: the core, topic and links */
    struct dlx_shm_membership membership;
    struct link links[LINKS_MAX];
    struct dlx_peer peer;
    uint32_t n_waiting; /* links that the daemon has queued */
    uint32_t n_blocks;
    uint64_t n_payloads;
};

/* What a slot carries: its number, to know it by when it comes back. */
struct payload {
    uint64_t n;
};

static uint64_t load(const dlx_atomic_u64 *word)
{
    return dlx_load64_relaxed((dlx_atomic_u64 *)(uintptr_t)word);
}

static bool is_held_by(const struct dlx_pub_link *link, uint64_t n)
{
    for (uint32_t i = 0; i < link->max_held; i++)
        if (load(&link->page->hold[i]) == n)
            return true;
    return false;
}

static struct link *link_of(struct state *s, const struct dlx_pub_link *core)
{
    for (uint32_t i = 0; i < LINKS_MAX; i++)
        if (&s->links[i].outlet.core == core)
            return &s->links[i];
    return NULL;
}

/* ---- environment of the core ----------------------------------------------------------------- */

static void add_link(struct state *s)
{
    struct dlx_fuzz *f = &s->f;
    uint32_t at = 0, how = dlx_fuzz_choose(f, 256);
    while (at < LINKS_MAX && s->links[at].page)
        at++;
    if (at == LINKS_MAX)
        return;
    struct link *link = &s->links[at];
    uint32_t max_held = 1 + how % HELD_MAX;
    /* Not a byte beyond its hold words. */
    struct dlx_shm_link *page =
        dlx_fuzz_map(sizeof(struct dlx_shm_link) + max_held * sizeof(uint64_t));
    *link = (struct link){.page = page, .since = s->p.core.oldest};
    link->index = dlx_fuzz_choose(f, 40);
    link->outlet.core = (struct dlx_pub_link){.page = page,
                                              .ticket = dlx_shm_ticket(page, link->index),
                                              .max_held = max_held,
                                              .reliable = how & 64};
    link->outlet.bell = -1;
    link->outlet.peer = &s->peer;
    link->outlet.reader = how >> 7;
    REQUIRE(dlx__pub_link_add(&s->p.core, &link->outlet.core) == 0);
    s->n_waiting--;
}

static void pick_up(void *userdata)
{
    struct state *s = userdata;
    while (s->n_waiting > 0) {
        uint32_t before = s->n_waiting;
        add_link(s);
        if (s->n_waiting == before)
            return; /* as without memory: it counts as one that holds everything */
    }
}

static void ring(void *userdata, struct dlx_pub_link *core)
{
    struct link *link = link_of(userdata, core);
    REQUIRE(link && load(core->ticket) != link->rung); /* once a value */
    link->rung = load(core->ticket);
}

static void look_for_dead(void *userdata)
{
    (void)userdata; /* they die in step() */
}

static void link_gone(void *userdata, struct dlx_pub_link *core)
{
    struct state *s = userdata;
    struct link *link = link_of(s, core);
    REQUIRE(link && link->page);
    dlx_fuzz_unmap(link->page, sizeof(struct dlx_shm_link) + core->max_held * sizeof(uint64_t));
    *link = (struct link){.page = NULL};
}

static void slot_freed(void *userdata, void *data)
{
    struct state *s = userdata;
    struct payload *payload = data;
    const struct dlx_pub *pub = &s->p.core;
    uint64_t n = payload->n;
    for (uint32_t i = 0; i < pub->n_links; i++) {
        const struct dlx_pub_link *core = pub->links[i];
        REQUIRE(core->dead || !is_held_by(core, n));
        struct link *link = link_of(s, core);
        REQUIRE(core->dead || !core->reliable || !pub->gating || n < link->since ||
                link->passed >= n);
    }
    REQUIRE(pub->head - n >= pub->history);
    s->n_payloads--;
    free(payload);
}

static void block_gone(void *userdata, const struct dlx_pub_block *block)
{
    struct state *s = userdata;
    s->n_blocks--;
    dlx_fuzz_unmap(block->control, dlx_shm_control_size(block->n_slots));
}

static const struct dlx_pub_env env = {
    .pick_up = pick_up,
    .ring = ring,
    .look_for_dead = look_for_dead,
    .link_gone = link_gone,
    .slot_freed = slot_freed,
    .block_gone = block_gone,
};

/* At the end everything goes, held or not. */
static void slot_freed_at_end(void *userdata, void *data)
{
    ((struct state *)userdata)->n_payloads--;
    free(data);
}

static const struct dlx_pub_env end_env = {
    .link_gone = link_gone,
    .slot_freed = slot_freed_at_end,
    .block_gone = block_gone,
};

/* ---- checks ---------------------------------------------------------------------------------- */

static bool is_held(const struct dlx_pub *pub, uint64_t n)
{
    for (uint32_t i = 0; i < pub->n_links; i++)
        if (!pub->links[i]->dead && is_held_by(pub->links[i], n))
            return true;
    return false;
}

/* May no slot be had, whatever the publisher tries? */
static bool is_full(const struct dlx_pub *pub)
{
    if (pub->joins_picked < pub->joins_seen)
        return true;
    for (uint32_t i = 0; i < pub->n_retired; i++)
        if (pub->retired[i].block == pub->block && !is_held(pub, pub->retired[i].n))
            return false;
    for (uint64_t n = pub->oldest; n <= pub->head && pub->head - n >= pub->history; n++) {
        bool passed = true;
        for (uint32_t i = 0; pub->gating && i < pub->n_links; i++) {
            const struct dlx_pub_link *link = pub->links[i];
            passed &= !link->reliable || link->dead || load(&link->page->cursor) >= n;
        }
        if (!passed)
            break; /* they are retired in order */
        if (!is_held(pub, n))
            return false;
    }
    return true;
}

static void check(const struct state *s)
{
    const struct dlx_pub *pub = &s->p.core;
    uint64_t n_slots = 0, n_live = pub->head + 1 - pub->oldest, n_used = 0;
    uint32_t n_blocks = 0;
    for (const struct dlx_pub_block *block = pub->oldest_block; block; block = block->next) {
        n_blocks++;
        n_slots += block->n_slots;
        n_used += block == pub->block ? pub->n_slots - pub->n_free : block->n_used;
        REQUIRE(block == pub->block || block->n_used > 0);
    }
    REQUIRE(n_blocks == s->n_blocks && pub->oldest <= pub->head + 1);
    REQUIRE(n_used == n_live + pub->n_retired && n_used == s->n_payloads && n_used <= n_slots);
    for (uint32_t i = 1; i < pub->n_retired; i++)
        REQUIRE(pub->retired[i - 1].n < pub->retired[i].n);
    for (uint32_t i = 0; i < pub->n_retired; i++)
        REQUIRE(pub->retired[i].n < pub->oldest);
    uint64_t head = dlx_load64_relaxed(&pub->block->control->head);
    REQUIRE(head == pub->head && pub->head >= n_live);
    for (uint32_t i = 0; i < pub->n_links; i++)
        REQUIRE(link_of((struct state *)(uintptr_t)s, pub->links[i])->page);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void publish(struct state *s)
{
    struct dlx_pub *pub = &s->p.core;
    uint32_t slot;
    int r = dlx__pub_slot(pub, &slot);
    if (r < 0) {
        REQUIRE(r == DLX_E_FULL && is_full(pub));
        REQUIRE(dlx__outlet_blame(&s->p, r) == r && *dlx__error_message());
        return;
    }
    REQUIRE(slot < pub->n_slots && dlx_load64_relaxed(&pub->slots[slot].gen) == 0);
    struct payload *payload = malloc(sizeof *payload);
    REQUIRE(payload);
    payload->n = pub->head + 1;
    s->n_payloads++;
    pub->slots[slot].n_tensors = 1;
    uint64_t n = dlx__pub_commit(pub, slot, payload);
    REQUIRE(n == pub->head);
    for (uint32_t i = 0; i < pub->n_links; i++) { /* whoever slept was rung */
        const struct link *link = link_of(s, pub->links[i]);
        REQUIRE(link->rung == load(pub->links[i]->ticket));
    }
}

static void scribble(struct state *s)
{
    struct dlx_fuzz *f = &s->f;
    struct link *link = &s->links[dlx_fuzz_choose(f, LINKS_MAX)];
    uint32_t what = dlx_fuzz_choose(f, 16), k = dlx_fuzz_choose(f, HELD_MAX);
    uint64_t value = dlx_fuzz_number(f);
    if (!link->page)
        return;
    uint32_t max_held = link->outlet.core.max_held;
    if (what < 10 && value < 0x40) /* near what is there */
        value = s->p.core.head - DLX_MIN(s->p.core.head, value);
    if (what < 6)
        dlx_store64_relaxed(&link->page->hold[k % max_held], what == 0 ? 0 : value);
    else if (what < 10)
        dlx_store64_relaxed(&link->page->cursor, value);
    else if (what == 10)
        dlx_store64_relaxed(&link->page->cursor, DLX_SHM_CURSOR_CLOSED);
    else if (what == 11)
        dlx_store32_relaxed(&link->page->started, (uint32_t)value);
    else if (what < 14)
        dlx_store64_relaxed(dlx_shm_ticket(link->page, link->index), value);
    else
        memcpy((uint8_t *)link->page +
                   value % (sizeof *link->page + (max_held - 1) * sizeof(uint64_t)) / 8 * 8,
               &value, sizeof value);
    link->passed = DLX_MAX(link->passed, load(&link->page->cursor));
}

static void move(struct state *s)
{
    struct dlx_pub *pub = &s->p.core;
    uint32_t n_slots = pub->history + 1 + dlx_fuzz_choose(&s->f, 16);
    struct dlx_pub_block *block;
    if (s->n_blocks == BLOCKS_MAX)
        return;
    struct dlx_shm_control *control = dlx_fuzz_map(dlx_shm_control_size(n_slots));
    REQUIRE(dlx__pub_block_new(pub, control, n_slots, &block) == 0);
    if (dlx_fuzz_choose(&s->f, 8) == 7) { /* it could not be announced */
        dlx__pub_abandon(block);
        dlx__pub_block_free(block);
        dlx_fuzz_unmap(control, dlx_shm_control_size(n_slots));
        return;
    }
    s->n_blocks++;
    dlx__pub_move(pub, block);
}

static void step(struct state *s)
{
    struct dlx_fuzz *f = &s->f;
    struct dlx_pub *pub = &s->p.core;
    uint32_t what = dlx_fuzz_choose(f, 16);
    uint32_t n;
    switch (what) {
    case 0:
    case 1:
    case 2:
    case 3:
        publish(s);
        break;
    case 4:
    case 5:
    case 6:
    case 7:
    case 8:
        scribble(s);
        break;
    case 9: /* somebody subscribes; the packet comes before the number, or never */
        s->n_waiting += dlx_fuzz_choose(f, 8) != 7;
        dlx_store64_relaxed(&s->membership.joins, dlx_load64_relaxed(&s->membership.joins) + 1);
        break;
    case 10: /* a process dies */
        n = dlx_fuzz_choose(f, LINKS_MAX);
        s->links[n].outlet.core.dead = s->links[n].page != NULL;
        dlx_store64_relaxed(&s->membership.leaves, dlx_load64_relaxed(&s->membership.leaves) + 1);
        break;
    case 11:
        (void)dlx__pub_reclaim(pub, dlx_fuzz_choose(f, 8));
        break;
    case 12:
        move(s);
        break;
    case 13:
        dlx__pub_set_blocked(pub, dlx_fuzz_choose(f, 2));
        dlx__pub_read_membership(pub);
        break;
    case 14:
        dlx__outlet_set_foreign(&s->p);
        REQUIRE(dlx__outlet_n_started(&s->p) == 0);
        break;
    default:
        n = dlx__pub_retirable(pub);
        REQUIRE(n <= pub->head);
        for (uint32_t i = 0; i < pub->n_links; i++)
            REQUIRE(dlx__pub_link_holds(pub->links[i], pub->head) ==
                    is_held_by(pub->links[i], pub->head));
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct state s = {.f = {data, size}};
    size_t n_maps = dlx_fuzz_n_maps();
    uint32_t history = 1 + dlx_fuzz_choose(&s.f, 4);
    uint32_t n_slots = history + 1 + dlx_fuzz_choose(&s.f, 8);
    bool gating = dlx_fuzz_choose(&s.f, 2);
    memcpy(s.p.topic, "t", 2);
    s.n_blocks = 1;
    REQUIRE(dlx__pub_init(&s.p.core, dlx_fuzz_map(dlx_shm_control_size(n_slots)), n_slots, history,
                          gating, &s.membership, &env, &s) == 0);
    while (s.f.left > 0) {
        step(&s);
        check(&s);
    }
    dlx__pub_close(&s.p.core);
    s.p.core.env = &end_env;
    dlx__pub_deinit(&s.p.core);
    REQUIRE(s.n_payloads == 0 && s.n_blocks == 0 && dlx_fuzz_n_maps() == n_maps);
    return 0;
}
