/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The publish, take and reclaim cores under a seeded scheduler: one publisher, several subscribers of all
 * kinds that join, sleep, hold, leave and die at any access to a shared word, and the daemon's part of
 * a join. Checked: what is held never changes, nothing is lost silently or twice, reliable subscribers
 * lose nothing, nobody sleeps for ever, every slot comes back.
 */

#include "common/error.h"
#include "common/publish.h"
#include "common/take.h"
#include "tests/harness_sim.h"
#include <check.h>
#include <dlpack/dlpack.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_SUBSCRIBERS 3
#define PAYLOAD_WORDS 3
#define MAX_SLOTS     (2 + 1 + N_SUBSCRIBERS * MAX_HELD)
#define MAX_HELD      3
#define MAX_BLOCKS    4
#define MAX_CELLS     (MAX_BLOCKS * MAX_SLOTS)

struct world;

struct subscriber {
    struct world *world;
    struct dlx_shm_link *page;
    struct dlx_pub_link link;
    struct dlx_take take;
    uint32_t index;
    int process;
    uint64_t bell;                   /* rung by the publisher */
    bool announced;                  /* the daemon queued its packet */
    bool raised;                     /* and raised the epoch */
    bool picked;                     /* the publisher has it */
    bool gone;                       /* link_gone() was called */
    bool started;                    /* stored its first cursor */
    bool finished;                   /* took everything */
    bool keeps;                      /* releases only when it must, or has nothing to do */
    bool delegates;                  /* what it releases, another thread releases */
    uint32_t returned[MAX_HELD * 2]; /* for that thread: a queue of hold words */
    uint64_t n_returned, n_released;
    uint64_t to_release; /* or has ended */
    bool latest, reliable;
    uint32_t history;
    uint32_t block;    /* where it is */
    uint64_t start;    /* first cursor */
    uint64_t at_join;  /* head at the join: older messages may be missed by anybody */
    uint64_t n_missed; /* of newer ones */
};

/* Memory of one message. */
struct cell {
    bool used;
    uint64_t words[PAYLOAD_WORDS];
};

struct world {
    struct dlx_take_block blocks[MAX_BLOCKS]; /* as the daemon announces them */
    uint32_t n_blocks;                        /* announced */
    uint32_t n_blocks_gone;
    bool moves;
    struct dlx_shm_membership *membership;
    struct dlx_pub pub;
    struct subscriber subs[N_SUBSCRIBERS];
    struct cell cells[MAX_CELLS];
    uint32_t n_slots, history;
    bool gating;
    uint64_t last;                           /* messages to publish */
    uint64_t pub_bell;                       /* bell bytes and hang-ups */
    struct subscriber *queue[N_SUBSCRIBERS]; /* the link socket */
    uint32_t n_queued, n_picked;
    bool joining;
    uint64_t progress; /* some subscriber did something */
    uint32_t n_subs;
    bool may_die;
    bool misses; /* packets are sometimes picked up late */
    bool roomy;  /* slots >= history + 1 + all hold words: nobody can be starved */
    uint64_t seed;
};

#define sim_check(world, cond, ...)                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "seed %llu: %s: ", (unsigned long long)(world)->seed, #cond);          \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fprintf(stderr, "\n");                                                                 \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* ---- environment of the publisher ---------------------------------------------------------- */

static void env_pick_up(void *userdata)
{
    struct world *w = userdata;
    while (w->n_picked < w->n_queued) {
        struct subscriber *s = w->queue[w->n_picked];
        if (w->misses && sim_random(3))
            return; /* no memory for it, say: it counts as a link that holds everything */
        s->picked = true;
        sim_check(w, dlx__pub_link_add(&w->pub, &s->link) == 0, "no memory");
        w->n_picked++;
    }
}

static void env_ring(void *userdata, struct dlx_pub_link *link)
{
    (void)userdata;
    struct subscriber *s = (struct subscriber *)((char *)link - offsetof(struct subscriber, link));
    s->bell++;
}

static void env_look_for_dead(void *userdata)
{
    struct world *w = userdata;
    for (int i = 0; i < N_SUBSCRIBERS; i++)
        if (w->subs[i].picked && sim_killed(w->subs[i].process) && !w->subs[i].finished)
            w->subs[i].link.dead = true;
}

static void env_link_gone(void *userdata, struct dlx_pub_link *link)
{
    (void)userdata;
    struct subscriber *s = (struct subscriber *)((char *)link - offsetof(struct subscriber, link));
    s->gone = true;
}

static void env_slot_freed(void *userdata, void *payload)
{
    struct cell *cell = payload;
    (void)userdata;
    memset(cell->words, 0xdd, sizeof cell->words);
    cell->used = false;
}

static void env_block_gone(void *userdata, const struct dlx_pub_block *block)
{
    struct world *w = userdata;
    uint32_t i = 0;
    while (i < w->n_blocks && w->blocks[i].control != block->control)
        i++;
    sim_check(w, i < w->n_blocks, "a block that was never announced");
    w->n_blocks_gone++;
}

static const struct dlx_pub_env pub_env = {
    .pick_up = env_pick_up,
    .ring = env_ring,
    .look_for_dead = env_look_for_dead,
    .link_gone = env_link_gone,
    .slot_freed = env_slot_freed,
    .block_gone = env_block_gone,
};

static void env_ring_publisher(void *userdata)
{
    ((struct subscriber *)userdata)->world->pub_bell++;
}

static const struct dlx_take_env take_env = {.ring = env_ring_publisher};

/* ---- processes ----------------------------------------------------------------------------- */

static uint32_t wait_for_slot(struct world *w)
{
    uint32_t slot;
    while (dlx__pub_slot(&w->pub, &slot) < 0) {
        if (!w->gating) {
            sim_yield();
            continue;
        }
        dlx__pub_set_blocked(&w->pub, true);
        bool ready = dlx__pub_slot(&w->pub, &slot) == 0;
        if (!ready && w->pub.joins_picked == w->pub.joins_seen)
            sim_wait(&w->pub_bell);
        w->pub_bell = 0;
        dlx__pub_set_blocked(&w->pub, false);
        if (ready)
            break;
    }
    return slot;
}

/* Wait, asleep, until every subscriber that is there has passed everything: as in a dialogue. Who sleeps
 * through a message makes this a deadlock. */
static void wait_for_subscribers(struct world *w)
{
    for (uint32_t i = 0; i < w->n_subs; i++) {
        struct subscriber *s = &w->subs[i];
        while (s->started && !s->finished && !sim_killed(s->process) &&
               s->take.cursor != w->pub.head) {
            sim_wait(&w->progress);
            w->progress = 0;
        }
    }
}

static void *pages(uint64_t size)
{
    void *p = aligned_alloc(DLX_PAGE, (size_t)size);
    ck_assert_ptr_nonnull(p);
    return memset(p, 0, (size_t)size);
}

/* Make a block, have the daemon announce it, go on in it. */
static void move(struct world *w)
{
    uint32_t n_slots = w->roomy ? MAX_SLOTS : w->history + 2 + sim_random(3);
    struct dlx_shm_control *control = pages(dlx_shm_control_size(n_slots));
    struct dlx_pub_block *block;
    sim_check(w, dlx__pub_block_new(&w->pub, control, n_slots, &block) == 0, "no memory");
    sim_yield();
    w->blocks[w->n_blocks++] =
        (struct dlx_take_block){.control = control, .n_slots = n_slots, .base = w->pub.head};
    sim_yield();
    dlx__pub_move(&w->pub, block);
}

static struct cell *new_cell(struct world *w)
{
    for (int i = 0; i < MAX_CELLS; i++)
        if (!w->cells[i].used) {
            w->cells[i].used = true;
            return &w->cells[i];
        }
    sim_check(w, false, "memory did not come back");
    return NULL;
}

static void publisher_main(void *userdata)
{
    struct world *w = userdata;
    while (w->pub.head < w->last) {
        if (w->moves && w->n_blocks < MAX_BLOCKS && sim_random(6) == 0)
            move(w);
        uint32_t slot = wait_for_slot(w);
        uint64_t n = w->pub.head + 1;
        struct dlx_shm_slot *s = &w->pub.slots[slot];
        struct cell *cell = new_cell(w);
        for (int i = 0; i < PAYLOAD_WORDS; i++) {
            cell->words[i] = n;
            sim_yield();
        }
        s->n_tensors = 1;
        s->flags = 0;
        s->time_ns = n;
        s->record = (struct dlx_shm_record){.ndim = 1,
                                            .arena = (uint32_t)(cell - w->cells),
                                            .size = n,
                                            .dtype_code = kDLUInt,
                                            .dtype_bits = 8,
                                            .dtype_lanes = 1,
                                            .device_type = kDLCPU,
                                            .offset = n};
        if (sim_random(4)) /* it fits into the brief */
            s->record.flags = DLX_SHM_RECORD_ROW_MAJOR;
        sim_yield();
        s->shape[0] = (int64_t)n;
        sim_check(w, dlx__pub_commit(&w->pub, slot, cell) == n, "number");
        if (sim_random(8) == 0)
            dlx__pub_reclaim(&w->pub, sim_random(3));
        if (!w->misses && sim_random(4) == 0)
            wait_for_subscribers(w);
    }
    w->misses = false;
    dlx__pub_close(&w->pub);
}

struct held {
    struct dlx_taken taken;
    bool used;
};

static void check_held(struct subscriber *s, const struct dlx_taken *t)
{
    struct world *w = s->world;
    sim_check(w,
              t->record.size == t->n && t->shape[0] == (int64_t)t->n && t->time_ns == t->n &&
                  t->record.offset == t->n,
              "message %llu has the record of %llu", (unsigned long long)t->n,
              (unsigned long long)t->record.size);
    for (int i = 0; i < PAYLOAD_WORDS; i++)
        sim_check(w, w->cells[t->record.arena].words[i] == t->n, "message %llu: payload is %llx",
                  (unsigned long long)t->n, (unsigned long long)w->cells[t->record.arena].words[i]);
}

static void drop_held(struct subscriber *s, struct held *h)
{
    check_held(s, &h->taken);
    h->used = false;
    if (s->delegates) {
        s->returned[s->n_returned++ % DLX_ARRAY_SIZE(s->returned)] = h->taken.hold;
        s->to_release++;
    } else {
        dlx__take_release(&s->take, h->taken.hold);
    }
}

static void releaser_main(void *userdata)
{
    struct subscriber *s = userdata;
    for (;;) {
        sim_wait(&s->to_release);
        s->to_release = 0;
        while (s->n_released < s->n_returned) {
            dlx__take_release(&s->take, s->returned[s->n_released % DLX_ARRAY_SIZE(s->returned)]);
            s->n_released++;
        }
        if (s->finished || sim_killed(s->process))
            return;
    }
}

static void raise_joins(struct subscriber *s)
{
    s->raised = true;
    s->world->joining = false;
    s->at_join = s->world->pub.head;
    atomic_fetch_add(&s->world->membership->joins, 1);
}

/* The daemon's part of a join and the subscriber's, in the order of docs/PROTOCOL.md. */
static void join(struct subscriber *s)
{
    struct world *w = s->world;
    while (w->joining) /* the daemon does one join after the other */
        sim_yield();
    w->joining = true;
    w->queue[w->n_queued++] = s; /* LinkAdded */
    s->announced = true;
    sim_yield();
    raise_joins(s);
    sim_yield();
    uint32_t i = dlx__take_choose(w->blocks, w->n_blocks, s->history, false, &s->start);
    dlx__take_init(&s->take, w->blocks[i].control, w->blocks[i].n_slots, s->page, s->index,
                   s->link.max_held, s->latest, s->reliable, &take_env, s);
    s->block = i;
    dlx__take_start(&s->take, s->start);
    s->started = true;
}

static void subscriber_main(void *userdata)
{
    struct subscriber *s = userdata;
    struct world *w = s->world;
    struct held held[MAX_HELD] = {0};
    uint64_t last = 0;
    for (uint32_t i = sim_random(40); i > 0; i--)
        sim_yield();
    join(s);
    uint64_t leave_after = sim_random(3) == 0 ? sim_random((uint32_t)w->last) : UINT64_MAX;
    last = s->start;
    for (;;) {
        struct dlx_taken t = {0};
        int r = dlx__take_next(&s->take, &t);
        w->progress++;
        if (r == DLX_E_TOO_MANY_HELD) {
            uint32_t i = sim_random(MAX_HELD);
            if (held[i].used)
                drop_held(s, &held[i]);
            sim_yield();
            continue;
        }
        if (r == DLX_E_PUBLISHER_GONE)
            break;
        if (r == DLX_E_NOT_FOUND) {
            const struct dlx_take_block *next = &w->blocks[s->block + 1];
            bool known = s->block + 1 < w->n_blocks;
            if (s->latest && (!known || dlx__take_block_is_empty(next)) && dlx__take_stay(&s->take))
                continue;
            s->block++;
            sim_check(w, known && (s->latest || next->base == s->take.cursor),
                      "moved on from %llu without an announced block",
                      (unsigned long long)s->take.cursor);
            sim_check(w, dlx__take_move(&s->take, next->control, next->n_slots, next->base) == 0,
                      "%s", dlx__error_message());
            continue;
        }
        if (r == DLX_E_EMPTY) {
            /* Who sleeps while it holds may starve the publisher, unless there are slots for all. */
            for (int i = 0; i < MAX_HELD; i++)
                if (held[i].used && !w->roomy)
                    drop_held(s, &held[i]);
            if (dlx__take_arm(&s->take)) {
                sim_wait(&s->bell);
                s->bell = 0;
            }
            continue;
        }
        sim_check(w, r == 0, "take: %d %s", r, dlx__error_message());
        sim_check(w, t.n > last && t.n == last + t.gap + 1, "%llu after %llu, gap %llu",
                  (unsigned long long)t.n, (unsigned long long)last, (unsigned long long)t.gap);
        for (uint64_t n = last + 1; n < t.n; n++)
            s->n_missed += n > s->at_join;
        last = t.n;
        check_held(s, &t);
        int free_at = -1;
        for (int i = 0; i < (int)s->take.max_held; i++)
            if (!held[i].used)
                free_at = i;
        sim_check(w, free_at >= 0, "more held than allowed");
        held[free_at] = (struct held){.taken = t, .used = true};
        while (!s->keeps && sim_random(3)) {
            int i = (int)sim_random(MAX_HELD);
            if (held[i].used)
                drop_held(s, &held[i]);
        }
        if (s->take.taken >= leave_after)
            break;
    }
    uint64_t passed = s->take.taken + s->take.lost + s->take.skipped;
    sim_check(w, s->take.cursor == s->start + passed, "cursor %llu, start %llu, passed %llu",
              (unsigned long long)s->take.cursor, (unsigned long long)s->start,
              (unsigned long long)passed);
    sim_check(w, !s->reliable || s->n_missed == 0, "reliable, missed %llu",
              (unsigned long long)s->n_missed);
    sim_check(w, s->latest || s->take.skipped == 0, "skipped");
    /* Leave while holding, then let go. */
    dlx__take_close(&s->take);
    for (int i = 0; i < MAX_HELD; i++)
        if (held[i].used)
            drop_held(s, &held[i]);
    s->finished = true;
    s->to_release++;
    w->progress++;
    /* The daemon sees it leave. */
    atomic_fetch_add(&w->membership->leaves, 1);
    w->pub_bell++;
}

/* Kills a subscriber at any step; the daemon and the publisher's poll see it. */
static void reaper_main(void *userdata)
{
    struct world *w = userdata;
    for (uint32_t i = sim_random(600); i > 0; i--)
        sim_yield();
    struct subscriber *s = &w->subs[sim_random(w->n_subs)];
    if (s->finished || sim_killed(s->process))
        return;
    sim_kill(s->process);
    s->to_release++;
    w->progress++;
    sim_yield();
    if (s->announced && !s->raised)
        raise_joins(s); /* it died between its packet and the epoch: the daemon goes on */
    atomic_fetch_add(&w->membership->leaves, 1);
    w->pub_bell++;
}

/* ---- one run ------------------------------------------------------------------------------- */

static void run_seed(uint64_t seed)
{
    struct world w = {.seed = seed};
    struct sim *sim = sim_new(seed);
    /* The seed's low digits choose the configuration. */
    uint64_t x = seed;
    w.gating = x % 2;
    x /= 2;
    w.history = 1 + (uint32_t)(x % 2);
    x /= 2;
    w.roomy = x % 4 == 3;
    w.n_slots = w.roomy ? MAX_SLOTS : w.history + 2 + (uint32_t)(x % 4);
    x /= 4;
    w.may_die = x % 2;
    x /= 2;
    w.misses = x % 4 == 0;
    x /= 4;
    w.n_subs = 1 + (uint32_t)(x % N_SUBSCRIBERS);
    x /= N_SUBSCRIBERS;
    w.last = 5 + x % 30;
    x /= 30;
    w.moves = x % 2;

    struct dlx_shm_control *control = pages(dlx_shm_control_size(w.n_slots));
    w.blocks[w.n_blocks++] = (struct dlx_take_block){.control = control, .n_slots = w.n_slots};
    w.membership = pages(DLX_PAGE);
    ck_assert_int_eq(
        dlx__pub_init(&w.pub, control, w.n_slots, w.history, w.gating, w.membership, &pub_env, &w),
        0);
    sim_spawn(sim, publisher_main, &w);
    for (uint32_t i = 0; i < w.n_subs; i++) {
        struct subscriber *s = &w.subs[i];
        uint32_t max_held = 1 + (uint32_t)((seed >> (i + 3)) % MAX_HELD);
        s->world = &w;
        s->index = i;
        s->latest = (seed >> i) % 3 == 0;
        s->reliable = w.gating && !s->latest && (seed >> (i + 1)) % 4 != 0;
        s->history = (uint32_t)((seed >> (i + 2)) % 3);
        s->keeps = (seed >> (i + 4)) % 3 == 0;
        s->page = pages(dlx_shm_link_size(max_held));
        s->link = (struct dlx_pub_link){.page = s->page,
                                        .ticket = dlx_shm_ticket(s->page, i),
                                        .max_held = max_held,
                                        .reliable = s->reliable};
        s->process = sim_spawn(sim, subscriber_main, s);
        s->delegates = (seed >> (i + 5)) % 2;
        if (s->delegates)
            sim_spawn(sim, releaser_main, s);
    }
    if (w.may_die)
        sim_spawn(sim, reaper_main, &w);
    sim_check(&w, sim_run(sim), "deadlock");

    w.misses = false;
    /* Everybody left or died: all links go, and all but the history comes back. */
    for (int i = 0; i < N_SUBSCRIBERS; i++)
        w.subs[i].link.dead = w.subs[i].picked && !w.subs[i].finished;
    sim_check(&w, w.pub.head == w.last, "published %llu", (unsigned long long)w.pub.head);
    dlx__pub_reclaim(&w.pub, UINT32_MAX);
    dlx__pub_reclaim(&w.pub, UINT32_MAX);
    for (uint32_t i = 0; i < w.n_subs; i++)
        sim_check(&w, !w.subs[i].picked || w.subs[i].gone, "link %u stays", i);
    uint32_t n_live = 0, n_used = 0;
    for (int i = 0; i < MAX_CELLS; i++)
        n_live += w.cells[i].used;
    for (const struct dlx_pub_block *b = w.pub.oldest_block; b; b = b->next)
        n_used += b->next ? b->n_used : b->n_slots - w.pub.n_free;
    sim_check(&w, n_live == w.history && n_used == w.history && w.pub.n_retired == 0,
              "%u cells, %u slots used", n_live, n_used);
    dlx__pub_deinit(&w.pub);
    sim_check(&w, w.n_blocks_gone == w.n_blocks, "%u of %u blocks gone", w.n_blocks_gone,
              w.n_blocks);
    for (int i = 0; i < MAX_CELLS; i++)
        sim_check(&w, !w.cells[i].used, "payload %d did not come back", i);
    for (int i = 0; i < N_SUBSCRIBERS; i++)
        free(w.subs[i].page);
    for (uint32_t i = 0; i < w.n_blocks; i++)
        free((void *)(uintptr_t)w.blocks[i].control);
    free(w.membership);
    sim_free(sim);
}

int main(void)
{
    return dlx_test_sim_run("sim_ring", run_seed, 6000);
}
