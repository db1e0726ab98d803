/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A publisher goes from daemon to daemon, a subscriber follows it from link to link
 * (dlx__writer_copy_retained(), dlx__reader_follow()), under a seeded scheduler that stops each at
 * any access to a shared word. Some messages cannot be read (dlx__reader_lose()). The publisher
 * closes in the time of any daemon, and may do so before its subscriber has come to that one.
 * Checked: what is held never changes, in the old block and in the new one; the gap of each message
 * tells all that were not taken before it, and each of these is counted once, those after the last
 * one that was taken, too; a reliable subscriber misses none but those; payloads and blocks come
 * back.
 */

#include "common/bell.h"
#include "tests/harness/ring.h"
#include "tests/ring/harness_sim.h"

#define N_DAEMONS    4U
#define N_ENTRIES    8U
#define WINDOW       4U
#define KEPT         2U
#define MAX_HELD     3U
#define MAX_BATCH    3U
#define MAX_MESSAGES (N_DAEMONS * 8U)

/* The objects of one daemon. */
struct daemon {
    struct dlx_shm_control *control; /* of the publisher */
    uint64_t base;
    struct dlx_shm_membership *membership;
    struct dlx_shm_link *page;
    struct dlx_writer_link link;
    struct dlx_reader reader;
    uint64_t cells[MAX_MESSAGES + 1]; /* payloads, by number; poisoned when freed */
    uint8_t bell[DLX_BELL_END_SIZE];  /* what the publisher said over it */
    bool announced, queued, picked, started, ended;
};

struct world {
    struct dlx_writer writer;
    struct daemon daemons[N_DAEMONS];
    uint32_t n;      /* daemons there were */
    uint32_t n_last; /* it closes in the time of this one */
    uint32_t n_used, n_blocks;
    bool waits; /* before that, for the subscriber */
    bool left;  /* the daemon knows that it has closed: no subscriber joins any more */
    bool hung_up;
    bool reliable, loses;
    uint64_t n_lost; /* by us: what could not be read */
    uint64_t seed;
};

static void env_pick_up(void *userdata)
{
    struct world *w = userdata;
    struct daemon *d = &w->daemons[w->n - 1];
    if (!d->queued || d->picked)
        return;
    d->picked = true;
    sim_check(w, dlx__writer_link_add(&w->writer, &d->link) == 0, "no memory");
}

static void env_payload_freed(void *userdata, void *payload)
{
    struct world *w = userdata;
    uint64_t *cell = payload;
    sim_check(w, *cell != UINT64_MAX, "freed twice");
    *cell = UINT64_MAX;
    w->n_used--;
}

/* The subscriber may still be in it. */
static void env_block_gone(void *userdata, const struct dlx_writer_block *block)
{
    (void)block;
    ((struct world *)userdata)->n_blocks--;
}

static const struct dlx_writer_env writer_env = {.pick_up = env_pick_up,
                                                 .ring = dlx_test_ignore_link,
                                                 .look_for_dead = dlx_test_ignore,
                                                 .link_gone = dlx_test_ignore_link,
                                                 .payload_freed = env_payload_freed,
                                                 .block_gone = env_block_gone};
static const struct dlx_reader_env reader_env = {.ring = dlx_test_ignore};

static void *new_cell(struct world *w, struct daemon *d, uint64_t n)
{
    d->cells[n] = n;
    w->n_used++;
    return &d->cells[n];
}

static void publish(struct world *w)
{
    struct dlx_writer *writer = &w->writer;
    for (uint32_t i = 1 + sim_random(MAX_BATCH); i > 0; i--) {
        if (!dlx__writer_has_room(writer))
            dlx__writer_announce(writer);
        while (!dlx__writer_has_room(writer) && dlx__writer_make_room(writer) < 0)
            sim_yield();
        dlx_test_put(writer, new_cell(w, &w->daemons[w->n - 1], writer->head + 1));
    }
    dlx__writer_announce(writer);
    if (sim_random(3) == 0)
        (void)dlx__writer_reclaim(writer, sim_random(3) == 0);
    sim_check(w, dlx_test_blocks_are_right(writer), "wrong entries");
}

static void new_daemon(struct world *w)
{
    struct daemon *d = &w->daemons[w->n];
    d->control = dlx_test_control(N_ENTRIES);
    d->membership = dlx_test_pages(DLX_PAGE);
    d->page = dlx_test_link(&d->link, 0, MAX_HELD, w->reliable, false);
}

/* As client/publish/publisher_reconnect.c: subscribers are told before the publisher goes there. */
static void resume(struct world *w)
{
    struct daemon *d = &w->daemons[w->n];
    struct dlx_writer_block *block;
    uint64_t words[DLX_SHM_ENTRY_WORDS];
    w->daemons[w->n - 1].ended = true;
    dlx__writer_read_membership(&w->writer);
    env_pick_up(w); /* what it said last */
    uint64_t head = w->writer.head, n = sim_random((uint32_t)(head + 2 - w->writer.oldest));
    sim_check(w, dlx__writer_block_new(&w->writer, d->control, N_ENTRIES, (uint32_t)n, &block) == 0,
              "no memory");
    for (uint64_t i = head - n + 1; i <= head; i++) {
        const uint64_t *from = dlx__writer_payload(&w->writer, i, words);
        sim_check(w, *from == i && dlx_test_is_of(words, i), "message %ju is not to be had", i);
        dlx__writer_copy_retained(block, i, words, new_cell(w, d, i));
    }
    d->base = head - n;
    d->announced = true;
    w->n_blocks++;
    sim_yield();
    w->n++;
    dlx__writer_move(&w->writer, block);
    dlx__writer_set_membership(&w->writer, d->membership);
    sim_check(w, dlx_test_blocks_are_right(&w->writer), "wrong entries");
}

/* As dlx_publisher_unref(). */
static void leave(struct world *w)
{
    dlx__writer_close(&w->writer);
    for (uint32_t i = 0; i < w->n; i++) {
        if (w->daemons[i].picked)
            dlx__bell_pack(w->writer.head + 1, w->daemons[i].bell);
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
            dlx__writer_read_membership(&w->writer);
        }
        for (uint32_t i = sim_random(3); i > 0; i--)
            publish(w);
        if (w->n == w->n_last)
            break;
        resume(w);
    }
    while (w->waits && !w->daemons[w->n - 1].started)
        sim_yield();
    leave(w);
}

/* The newest daemon to which the publisher has announced itself. */
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
    if (d->ended)
        return false;
    d->queued = true; /* LinkAdded */
    sim_yield();
    if (!d->ended) {
        atomic_fetch_add(&d->membership->joins, 1);
        sim_yield();
    }
    if (d->ended) {
        dlx_store64_sc(&d->page->cursor,
                       DLX_SHM_CURSOR_CLOSED); /* as dlx__subscriber_link_close() */
        return false;
    }
    sim_yield();
    dlx__reader_init(&d->reader, d->control, N_ENTRIES, d->base, d->page, 0, MAX_HELD, false,
                     w->reliable, false, &reader_env, NULL);
    dlx__reader_start(&d->reader, DLX_READER_ALL);
    d->started = true;
    return true;
}

/* A taken message, until it is released. */
struct held {
    struct dlx_reader *reader;
    struct dlx_taken taken;
};

static void check_held(const struct world *w, const struct dlx_taken *t)
{
    sim_check(w, dlx_test_is_of(t->words, t->n), "message %ju has words of %ju", t->n,
              t->words[1] / 8);
    bool found = false;
    for (uint32_t i = 0; i < N_DAEMONS; i++)
        found |= w->daemons[i].cells[t->n] == t->n;
    sim_check(w, found, "message %ju is freed", t->n);
}

static void drop_held(const struct world *w, struct held *held)
{
    if (held->reader) {
        check_held(w, &held->taken);
        dlx__reader_release(held->reader, held->taken.hold);
    }
    held->reader = NULL;
}

static void subscriber_main(void *userdata)
{
    struct world *w = userdata;
    struct held held[2] = {{.reader = NULL}}; /* fewer than it may hold, in each link */
    uint32_t joined[N_DAEMONS] = {0}, n_joined = 1, at = 0;
    uint64_t last = 0, n_taken = 0, n_missed = 0, n_rest = 0;
    sim_check(w, join(w, 0), "nobody ends it before");
    for (;;) {
        struct dlx_reader *reader = &w->daemons[joined[at]].reader;
        struct dlx_taken taken;
        uint32_t newest = newest_daemon(w); /* those before it have ended */
        if (newest > joined[n_joined - 1] && !w->left && sim_random(8) == 0 && join(w, newest))
            joined[n_joined++] = newest;
        int r = dlx__reader_take(reader, &taken, 1);
        if (r == DLX_E_PUBLISHER_GONE)
            break;
        if (r == DLX_E_NOT_FOUND && at + 1 < n_joined) { /* as dlx__subscription_detach() */
            dlx__reader_close(reader);
            n_missed += reader->lost;
            dlx__reader_follow(&w->daemons[joined[++at]].reader, reader->cursor,
                               dlx__reader_untold(reader));
            continue;
        }
        if (r == DLX_E_NOT_FOUND && w->hung_up) { /* likewise, and there is no other link */
            const struct daemon *d = &w->daemons[joined[at]];
            uint64_t end = dlx__bell_hear(0, d->bell, sizeof d->bell);
            n_rest = end - 1 - reader->cursor;
            dlx__reader_miss(reader, n_rest);
            break;
        }
        if (r == DLX_E_NOT_FOUND || r == DLX_E_EMPTY) {
            sim_yield();
            continue;
        }
        sim_check(w, r == 1, "take: %d %s", r, dlx__error_message());
        if (w->loses && sim_random(4) == 0) { /* its arena was never announced */
            dlx__reader_lose(reader, &taken, 1);
            w->n_lost++;
            continue;
        }
        sim_check(w, taken.n == last + taken.gap + 1, "%ju after %ju, gap %ju", taken.n, last,
                  taken.gap);
        check_held(w, &taken);
        last = taken.n;
        n_taken++;
        struct held *h = &held[sim_random(DLX_ARRAY_SIZE(held))];
        drop_held(w, h);
        *h = (struct held){.reader = reader, .taken = taken};
    }
    for (uint32_t i = 0; i < DLX_ARRAY_SIZE(held); i++)
        drop_held(w, &held[i]);
    const struct dlx_reader *reader = &w->daemons[joined[at]].reader;
    n_missed += reader->lost;
    sim_check(w, last + dlx__reader_untold(reader) + n_rest == w->writer.head,
              "%ju, %ju, %ju of %ju", last, dlx__reader_untold(reader), n_rest, w->writer.head);
    sim_check(w, n_taken + n_missed == w->writer.head, "%ju taken and %ju lost of %ju", n_taken,
              n_missed, w->writer.head);
    sim_check(w, !w->reliable || n_missed == w->n_lost, "reliable, %ju lost", n_missed);
}

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
    w.n_blocks = 1;
    ck_assert_int_eq(dlx__writer_init(&w.writer, w.daemons[0].control, N_ENTRIES, WINDOW, KEPT,
                                      w.reliable, w.daemons[0].membership, &writer_env, &w),
                     0);
    sim_spawn(sim, publisher_main, &w);
    sim_spawn(sim, subscriber_main, &w);
    sim_check(&w, sim_run(sim), "deadlock");
    /* All have left. */
    for (uint32_t i = 0; i < N_DAEMONS; i++)
        w.daemons[i].link.dead = true;
    dlx_test_reclaim_all(&w.writer);
    sim_check(&w,
              w.writer.head + 1 - w.writer.oldest == DLX_MIN(w.writer.head, KEPT) &&
                  w.writer.n_retired == 0 && w.n_used == w.writer.n_payloads,
              "%u payloads, %u retired", w.n_used, w.writer.n_retired);
    dlx__writer_deinit(&w.writer);
    sim_check(&w, w.n_used == 0 && w.n_blocks == 0, "%u payloads and %u blocks stay", w.n_used,
              w.n_blocks);
    for (uint32_t i = 0; i < N_DAEMONS; i++) {
        free(w.daemons[i].control);
        free(w.daemons[i].membership);
        free(w.daemons[i].page);
    }
    sim_free(sim);
}

int main(void)
{
    return dlx_test_sim_run(run_seed, 3000);
}
