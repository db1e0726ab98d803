/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A publisher goes from daemon to daemon, a subscriber follows it from link to link (dlx__pub_carry(), dlx__take_follow()),
 * under a seeded scheduler that stops each at any access to a shared word. Some messages cannot be read (dlx__take_lose()).
 * The publisher closes in the time of any daemon, and may do so before its subscriber has come to that one.
 * Checked: the gap of each message tells all that were not taken before it, and each of these is counted once, those after the
 * last one that was taken, too; a reliable subscriber misses none but those.
 */

#include "common/bell.h"
#include "common/error.h"
#include "common/publish.h"
#include "common/take.h"
#include "tests/harness_sim.h"
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_DAEMONS 4U
#define N_SLOTS   6U
#define MAX_HELD  2U
#define HISTORY   2U

/* What one daemon made. */
struct daemon {
    struct dlx_take_block block; /* of the publisher */
    struct dlx_shm_membership *membership;
    struct dlx_shm_link *page;
    struct dlx_pub_link link;
    struct dlx_take take;
    uint8_t bell[DLX_BELL_END_SIZE]; /* what the publisher said over it */
    bool announced, queued, picked, started, ended;
};

struct world {
    struct dlx_pub pub;
    struct daemon daemons[N_DAEMONS];
    uint32_t n;      /* daemons there were */
    uint32_t n_last; /* it closes in the time of this one */
    bool waits;      /* before that, for the subscriber */
    bool left;       /* the daemon knows that it has closed: nobody joins any more */
    bool hung_up;
    bool reliable, loses;
    uint64_t n_lost; /* by us: what could not be read */
    uint64_t seed;
};

static int payload; /* nobody looks at them */

#define sim_check(world, cond, ...)                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "seed %llu: %s: ", (unsigned long long)(world)->seed, #cond);          \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fprintf(stderr, "\n");                                                                 \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* ---- environment --------------------------------------------------------------------------- */

static void env_pick_up(void *userdata)
{
    struct world *w = userdata;
    struct daemon *d = &w->daemons[w->n - 1];
    if (!d->queued || d->picked)
        return;
    d->picked = true;
    sim_check(w, dlx__pub_link_add(&w->pub, &d->link) == 0, "no memory");
}

static void env_ignore(void *userdata)
{
    (void)userdata;
}

static void env_ignore_link(void *userdata, struct dlx_pub_link *link)
{
    (void)userdata;
    (void)link;
}

static void env_ignore_payload(void *userdata, void *p)
{
    (void)userdata;
    (void)p;
}

/* The subscriber may still be in it. */
static void env_ignore_block(void *userdata, const struct dlx_pub_block *block)
{
    (void)userdata;
    (void)block;
}

static const struct dlx_pub_env pub_env = {.pick_up = env_pick_up,
                                           .ring = env_ignore_link,
                                           .look_for_dead = env_ignore,
                                           .link_gone = env_ignore_link,
                                           .slot_freed = env_ignore_payload,
                                           .block_gone = env_ignore_block};
static const struct dlx_take_env take_env = {.ring = env_ignore};

static void *pages(uint64_t size)
{
    void *memory = aligned_alloc(DLX_PAGE, (size + DLX_PAGE - 1) / DLX_PAGE * DLX_PAGE);
    ck_assert_ptr_nonnull(memory);
    memset(memory, 0, size);
    return memory;
}

/* ---- publisher ----------------------------------------------------------------------------- */

static void fill(struct dlx_shm_slot *slot, uint64_t n)
{
    slot->time_ns = n;
    slot->n_tensors = 1;
    slot->record = (struct dlx_shm_record){.dtype_bits = 8,
                                           .dtype_lanes = 1,
                                           .device_type = 1,
                                           .flags = DLX_SHM_RECORD_ROW_MAJOR,
                                           .size = 1};
}

static void publish(struct world *w)
{
    uint32_t slot;
    while (dlx__pub_slot(&w->pub, &slot) < 0)
        sim_yield();
    fill(&w->pub.slots[slot], w->pub.head + 1);
    dlx__pub_commit(&w->pub, slot, &payload);
}

static void new_daemon(struct world *w)
{
    struct daemon *d = &w->daemons[w->n];
    d->membership = pages(DLX_PAGE);
    d->page = pages(dlx_shm_link_size(MAX_HELD));
    d->link = (struct dlx_pub_link){.page = d->page,
                                    .ticket = dlx_shm_ticket(d->page, 0),
                                    .max_held = MAX_HELD,
                                    .reliable = w->reliable};
    d->block = (struct dlx_take_block){.control = pages(dlx_shm_control_size(N_SLOTS)),
                                       .n_slots = N_SLOTS};
}

/* As client/revive.c: subscribers are told before the publisher goes there. */
static void resume(struct world *w)
{
    struct daemon *d = &w->daemons[w->n];
    struct dlx_shm_control *control = (struct dlx_shm_control *)(uintptr_t)d->block.control;
    struct dlx_pub_block *block;
    void *payloads[HISTORY] = {&payload, &payload};
    w->daemons[w->n - 1].ended = true;
    dlx__pub_read_membership(&w->pub);
    env_pick_up(w); /* what it said last */
    uint32_t live = dlx__pub_n_live(&w->pub);
    uint32_t n = sim_random((live < HISTORY ? live : HISTORY) + 1);
    sim_check(w, dlx__pub_block_new(&w->pub, control, N_SLOTS, &block) == 0, "no memory");
    for (uint32_t i = 0; i < n; i++)
        fill(&block->slots[i], w->pub.head - n + 1 + i);
    dlx__pub_carry(&w->pub, block, n, payloads);
    d->block.base = block->base;
    d->announced = true;
    sim_yield();
    w->n++;
    dlx__pub_move(&w->pub, block);
    dlx__pub_set_membership(&w->pub, d->membership);
}

/* As dlx_publisher_unref(). */
static void leave(struct world *w)
{
    dlx__pub_close(&w->pub);
    for (uint32_t i = 0; i < w->n; i++) {
        if (w->daemons[i].picked)
            dlx__bell_pack(w->pub.head + 1, w->daemons[i].bell);
        sim_yield();
    }
    w->left = true;
    sim_yield();
    w->hung_up = true;
}

static void publisher_main(void *userdata)
{
    struct world *w = userdata;
    for (;;) {
        const struct daemon *d = &w->daemons[w->n - 1];
        /* The first link is there when the stream begins; a reliable subscriber is waited for. */
        while ((w->n == 1 || w->reliable) && !(d->picked && d->started)) {
            sim_yield();
            dlx__pub_read_membership(&w->pub);
        }
        for (uint32_t i = sim_random(6); i > 0; i--)
            publish(w);
        if (w->n == w->n_last)
            break;
        resume(w);
    }
    while (w->waits && !w->daemons[w->n - 1].started)
        sim_yield();
    leave(w);
}

/* ---- subscriber ---------------------------------------------------------------------------- */

/* That announced the publisher. */
static uint32_t newest_daemon(const struct world *w)
{
    uint32_t i = N_DAEMONS - 1;
    while (!w->daemons[i].announced)
        i--;
    return i;
}

/* Returns false if the daemon ended before it had sent LinkOpen. */
static bool join(struct world *w, uint32_t i)
{
    struct daemon *d = &w->daemons[i];
    uint64_t cursor;
    if (d->ended)
        return false;
    d->queued = true; /* LinkAdded */
    sim_yield();
    if (!d->ended) {
        atomic_fetch_add(&d->membership->joins, 1);
        sim_yield();
    }
    if (d->ended) {
        dlx_store64_sc(&d->page->cursor, DLX_SHM_CURSOR_CLOSED); /* as dlx__inlet_close() */
        return false;
    }
    sim_yield();
    (void)dlx__take_choose(&d->block, 1, 0, true, &cursor);
    dlx__take_init(&d->take, d->block.control, N_SLOTS, d->page, 0, MAX_HELD, false, w->reliable,
                   &take_env, NULL);
    dlx__take_start(&d->take, cursor);
    d->started = true;
    return true;
}

static void subscriber_main(void *userdata)
{
    struct world *w = userdata;
    uint32_t joined[N_DAEMONS] = {0}, n_joined = 1, at = 0;
    uint64_t last = 0, n_taken = 0, n_missed = 0, n_rest = 0;
    sim_check(w, join(w, 0), "nobody ends it before");
    for (;;) {
        struct dlx_take *take = &w->daemons[joined[at]].take;
        struct dlx_taken taken = {0};
        uint32_t newest = newest_daemon(w); /* those before it have ended */
        if (newest > joined[n_joined - 1] && !w->left && sim_random(8) == 0 && join(w, newest))
            joined[n_joined++] = newest;
        int r = dlx__take_next(take, &taken);
        if (r == DLX_E_PUBLISHER_GONE)
            break;
        if (r == DLX_E_NOT_FOUND && at + 1 < n_joined) { /* as dlx__subscription_detach() */
            dlx__take_close(take);
            n_missed += take->lost;
            dlx__take_follow(&w->daemons[joined[++at]].take, take->cursor, dlx__take_untold(take));
            continue;
        }
        if (r == DLX_E_NOT_FOUND && w->hung_up) { /* likewise, and there is no other link */
            const struct daemon *d = &w->daemons[joined[at]];
            uint64_t end = dlx__bell_hear(0, d->bell, sizeof d->bell);
            n_rest = end - 1 - take->cursor;
            dlx__take_miss(take, n_rest);
            break;
        }
        if (r == DLX_E_NOT_FOUND || r == DLX_E_EMPTY) {
            sim_yield();
            continue;
        }
        sim_check(w, r == 0, "take: %d %s", r, dlx__error_message());
        if (w->loses && sim_random(4) == 0) { /* its arena was never announced */
            dlx__take_lose(take, &taken);
            w->n_lost++;
            continue;
        }
        sim_check(w, taken.n == last + taken.gap + 1 && taken.time_ns == taken.n,
                  "%llu (%llu) after %llu, gap %llu", (unsigned long long)taken.n,
                  (unsigned long long)taken.time_ns, (unsigned long long)last,
                  (unsigned long long)taken.gap);
        last = taken.n;
        n_taken++;
        dlx__take_release(take, taken.hold);
    }
    const struct dlx_take *take = &w->daemons[joined[at]].take;
    n_missed += take->lost;
    sim_check(w, last + dlx__take_untold(take) + n_rest == w->pub.head, "%llu, %llu, %llu of %llu",
              (unsigned long long)last, (unsigned long long)dlx__take_untold(take),
              (unsigned long long)n_rest, (unsigned long long)w->pub.head);
    sim_check(w, n_taken + n_missed == w->pub.head, "%llu taken and %llu lost of %llu",
              (unsigned long long)n_taken, (unsigned long long)n_missed,
              (unsigned long long)w->pub.head);
    sim_check(w, !w->reliable || n_missed == w->n_lost, "reliable, %llu lost",
              (unsigned long long)n_missed);
}

/* ---- one run ------------------------------------------------------------------------------- */

static void run_seed(uint64_t seed)
{
    struct world w = {.seed = seed, .reliable = seed % 2, .loses = seed / 2 % 4 == 0};
    w.n_last = 1 + (uint32_t)(seed / 8 % N_DAEMONS);
    w.waits = seed / 8 / N_DAEMONS % 2;
    struct sim *sim = sim_new(seed);
    for (; w.n < N_DAEMONS; w.n++)
        new_daemon(&w);
    w.n = 1;
    w.daemons[0].announced = true;
    struct dlx_shm_control *first = (struct dlx_shm_control *)(uintptr_t)w.daemons[0].block.control;
    ck_assert_int_eq(dlx__pub_init(&w.pub, first, N_SLOTS, HISTORY, w.reliable,
                                   w.daemons[0].membership, &pub_env, &w),
                     0);
    sim_spawn(sim, publisher_main, &w);
    sim_spawn(sim, subscriber_main, &w);
    sim_check(&w, sim_run(sim), "deadlock");
    dlx__pub_deinit(&w.pub);
    for (uint32_t i = 0; i < N_DAEMONS; i++) {
        free((void *)(uintptr_t)w.daemons[i].block.control);
        free(w.daemons[i].membership);
        free(w.daemons[i].page);
    }
    sim_free(sim);
}

int main(void)
{
    return dlx_test_sim_run("sim_follow", run_seed, 3000);
}
