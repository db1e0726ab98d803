/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A publisher whose daemon ends, and later daemons that show its control block before it has
 * announced itself to them, under a seeded scheduler that stops each process at any access to a
 * shared word. The publisher knows nothing of these readers but that the block is locked
 * (dlx__writer_heed_locks()). It has memory for few messages, and goes on with any daemon, or with
 * none. Checked: what a reader holds is neither freed nor written to, in any block; the retained
 * messages come whole; everything is published, however few daemons there are; payloads and blocks
 * come back.
 */

#include "tests/harness/ring.h"
#include "tests/ring/harness_sim.h"

#define N_DAEMONS    4U
#define N_READERS    3U
#define N_ENTRIES    8U
#define WINDOW       4U
#define KEPT         2U
#define MAX_HELD     2U
#define MAX_MESSAGES 24U

/* The publisher's state with one daemon. */
struct daemon {
    struct dlx_shm_control *control;
    struct dlx_shm_membership *membership;
    uint64_t base;
    /* Payloads, by number; poisoned when they may be used again. */
    uint64_t cells[MAX_MESSAGES + 1];
    uint32_t n_used;
};

struct reader {
    struct world *world;
    struct dlx_shm_link *page;
    struct dlx_reader core;
    uint32_t block;        /* that it reads: of this daemon */
    dlx_atomic_u32 locks;  /* it */
    struct dlx_taken held; /* n is 0: nothing */
};

struct world {
    struct dlx_writer writer;
    struct daemon daemons[N_DAEMONS];
    struct reader readers[N_READERS];
    uint32_t n;      /* the present daemon */
    uint32_t at;     /* the publisher is in the block of this one */
    bool is_up;      /* the present daemon */
    uint32_t memory; /* payloads of one daemon's arenas */
    uint64_t last;
    uint64_t seed;
};

static bool env_has_unknown_readers(void *userdata)
{
    struct world *w = userdata;
    bool any = false;
    for (uint32_t i = 0; i < N_READERS; i++)
        any |= dlx_load32_acquire(&w->readers[i].locks) && w->readers[i].block == w->at;
    return any;
}

static struct daemon *daemon_of(struct world *w, const uint64_t *cell)
{
    uint32_t i = 0;
    while (cell < w->daemons[i].cells || cell > &w->daemons[i].cells[MAX_MESSAGES])
        i++;
    return &w->daemons[i];
}

/* Arenas of a former block are never written again. */
static void env_payload_freed(void *userdata, void *payload)
{
    struct world *w = userdata;
    uint64_t *cell = payload;
    struct daemon *d = daemon_of(w, cell);
    sim_check(w, *cell != UINT64_MAX, "freed twice");
    if (d == &w->daemons[w->at])
        *cell = UINT64_MAX;
    d->n_used--;
}

static const struct dlx_writer_env writer_env = {.pick_up = dlx_test_ignore,
                                                 .look_for_dead = dlx_test_ignore,
                                                 .payload_freed = env_payload_freed,
                                                 .has_unknown_readers = env_has_unknown_readers,
                                                 .block_gone = dlx_test_ignore_block};
static const struct dlx_reader_env reader_env = {.ring = dlx_test_ignore};

static void *new_cell(struct daemon *d, uint64_t n)
{
    d->cells[n] = n;
    d->n_used++;
    return &d->cells[n];
}

/* As client/publish/publisher_reconnect.c. Returns false if there is no daemon to go on with. */
static bool resume(struct world *w)
{
    struct dlx_writer_block *block;
    uint64_t words[DLX_SHM_ENTRY_WORDS];
    uint32_t to = w->n;
    if (!w->is_up || to == w->at)
        return false;
    struct daemon *d = &w->daemons[to];
    uint32_t n = (uint32_t)DLX_MIN(KEPT, w->writer.head + 1 - w->writer.oldest);
    sim_check(w, dlx__writer_block_new(&w->writer, d->control, N_ENTRIES, n, &block) == 0,
              "no memory");
    d->base = w->writer.head - n;
    for (uint64_t i = d->base + 1; i <= w->writer.head; i++) {
        (void)dlx__writer_payload(&w->writer, i, words);
        dlx__writer_copy_retained(block, i, words, new_cell(d, i));
    }
    sim_yield();
    dlx__writer_move(&w->writer, block);
    w->at = to;
    dlx__writer_set_membership(&w->writer, d->membership);
    dlx__writer_heed_locks(&w->writer);
    return true;
}

static bool has_memory(const struct world *w)
{
    return w->daemons[w->at].n_used < w->memory;
}

static void publisher_main(void *userdata)
{
    struct world *w = userdata;
    while (w->writer.head < w->last) {
        while (!has_memory(w) && dlx__writer_reclaim(&w->writer, false) > 0)
            ;
        if (!has_memory(w)) { /* a reader goes, or a daemon comes */
            if (!resume(w))
                sim_yield();
            continue;
        }
        sim_check(w, dlx__writer_make_room(&w->writer) == 0, "it drops its oldest messages");
        dlx_test_put(&w->writer, new_cell(&w->daemons[w->at], w->writer.head + 1));
        dlx__writer_announce(&w->writer);
        sim_check(w, dlx_test_blocks_are_right(&w->writer), "wrong entries");
        if (sim_random(8) == 0)
            (void)resume(w);
    }
    dlx__writer_close(&w->writer);
}

static void daemons_main(void *userdata)
{
    struct world *w = userdata;
    for (;;) {
        sim_pause(0, 300);
        /* The kernel does this before anybody hears that the daemon has ended. */
        dlx_store32_sc(&w->daemons[w->n].membership->daemon_tid, 0);
        w->is_up = false;
        if (w->n + 1 == N_DAEMONS)
            return;
        if (sim_random(3) == 0)
            sim_pause(0, 300);
        w->n++;
        w->is_up = true;
    }
}

/* The present daemon shows the publisher's block. False: there is none, or it does not. */
static bool join(struct reader *r)
{
    struct world *w = r->world;
    uint32_t at = w->at;
    if (!w->is_up || at == w->n)
        return false;
    struct daemon *d = &w->daemons[at];
    if (dlx_load32_acquire(&d->control->heeds_locks) == 0)
        return false;
    r->block = at;
    dlx_store32_sc(&r->locks, 1);
    memset(r->page, 0, dlx_shm_link_size(MAX_HELD));
    sim_yield();
    dlx__reader_init(&r->core, d->control, N_ENTRIES, d->base, r->page, 0, MAX_HELD, false, false,
                     false, &reader_env, r);
    dlx__reader_start(&r->core, WINDOW);
    return true;
}

static void check_held(const struct reader *r)
{
    const struct world *w = r->world;
    uint64_t n = r->held.n;
    sim_check(w, dlx_test_is_of(r->held.words, n), "message %ju has other words", n);
    sim_check(w, w->daemons[r->block].cells[n] == n, "message %ju was written to", n);
}

static void let_go(struct reader *r)
{
    if (r->held.n == 0)
        return;
    check_held(r);
    dlx__reader_release(&r->core, r->held.hold);
    r->held.n = 0;
}

static void read_some(struct reader *r)
{
    struct dlx_taken taken;
    for (uint32_t i = 1 + sim_random(60); i > 0; i--) {
        int got = dlx__reader_take(&r->core, &taken, 1);
        if (got == DLX_E_PUBLISHER_GONE)
            break;
        if (got == DLX_E_EMPTY || got == DLX_E_NOT_FOUND) {
            sim_yield();
            continue;
        }
        sim_check(r->world, got == 1, "take: %d %s", got, dlx__error_message());
        let_go(r);
        r->held = taken;
        check_held(r);
    }
    sim_pause(0, 40);
    let_go(r);
}

static void reader_main(void *userdata)
{
    struct reader *r = userdata;
    const struct world *w = r->world;
    while (w->is_up || w->n + 1 < N_DAEMONS) {
        if (join(r)) {
            read_some(r);
            dlx_store32_sc(&r->locks, 0); /* unmapped */
        }
        sim_pause(1, 20);
    }
}

static void run_seed(uint64_t seed)
{
    struct world w = {.seed = seed, .is_up = true};
    struct sim *sim = sim_new(seed);
    w.memory = KEPT + 1 + (uint32_t)(seed % 2);
    w.last = 1 + seed / 2 % MAX_MESSAGES;
    for (uint32_t i = 0; i < N_DAEMONS; i++) {
        w.daemons[i].control = dlx_test_control(N_ENTRIES);
        w.daemons[i].membership = dlx_test_pages(DLX_PAGE);
        w.daemons[i].membership->daemon_tid = 1;
    }
    ck_assert_int_eq(dlx__writer_init(&w.writer, w.daemons[0].control, N_ENTRIES, WINDOW, KEPT,
                                      false, w.daemons[0].membership, &writer_env, &w),
                     0);
    dlx__writer_heed_locks(&w.writer);
    sim_check(&w, w.daemons[0].control->heeds_locks == 1, "its daemon is there");
    sim_spawn(sim, publisher_main, &w);
    sim_spawn(sim, daemons_main, &w);
    for (uint32_t i = 0; i < N_READERS; i++) {
        w.readers[i].world = &w;
        w.readers[i].page = dlx_test_pages(dlx_shm_link_size(MAX_HELD));
        sim_spawn(sim, reader_main, &w.readers[i]);
    }
    sim_check(&w, sim_run(sim), "deadlock");
    sim_check(&w, w.writer.head == w.last, "published %ju", w.writer.head);
    dlx_test_reclaim_all(&w.writer);
    sim_check(&w, w.writer.n_retired == 0, "%u messages are withheld", w.writer.n_retired);
    dlx__writer_deinit(&w.writer);
    for (uint32_t i = 0; i < N_DAEMONS; i++) {
        sim_check(&w, w.daemons[i].n_used == 0, "%u payloads stay", w.daemons[i].n_used);
        free(w.daemons[i].control);
        free(w.daemons[i].membership);
    }
    for (uint32_t i = 0; i < N_READERS; i++)
        free(w.readers[i].page);
    sim_free(sim);
}

int main(void)
{
    return dlx_test_sim_run(run_seed, 3000);
}
