/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Writer and readers of a ring under a seeded scheduler: one publisher, several subscribers of all
 * kinds that join, sleep, hold, leave and die at any access to a shared word, and the daemon's part
 * of a join. Checked: what is held never changes and is not freed, every message is taken or
 * counted, reliable subscribers lose nothing, no process sleeps or waits for ever, no more messages
 * are LIVE than `window`, every payload comes back, and what the daemon reports as missed never
 * counts a message that is taken, or one twice.
 */

#include "tests/harness/ring.h"
#include "tests/ring/harness_sim.h"

#define N_SUBSCRIBERS 3U
#define PAYLOAD_WORDS 3U
#define MAX_HELD      3U
#define MAX_WINDOW    4U
#define MAX_BATCH     6U
#define MAX_MESSAGES  48U

struct world;

struct subscriber {
    struct world *world;
    struct dlx_shm_link *page;
    struct dlx_writer_link link;
    struct dlx_reader reader;
    uint32_t index;
    int process;
    uint64_t bell;                   /* rung by the publisher */
    bool announced;                  /* the daemon queued its packet */
    bool raised;                     /* and raised `joins` */
    bool picked;                     /* the publisher has it */
    bool gone;                       /* link_gone() was called */
    bool started;                    /* it stored its first cursor */
    bool finished;                   /* it left */
    bool keeps;                      /* releases only when it must, or has nothing to do */
    bool delegates;                  /* what it releases, another thread releases */
    uint32_t returned[MAX_HELD * 2]; /* for that thread: a queue of hold words */
    uint64_t n_returned, n_released;
    uint64_t to_release; /* or has ended */
    bool latest, reliable, from_start;
    bool loses; /* some of what it takes cannot be read */
    uint32_t history, batch;
    bool holds[MAX_MESSAGES + 1]; /* by number */
    uint64_t start;               /* first cursor */
    uint64_t at_join;             /* head at the join: older messages may be missed by anybody */
    uint64_t n_missed;            /* of newer ones */
    uint64_t n_unread;            /* of these */
};

/* Memory of one message. */
struct cell {
    bool used;
    uint64_t words[PAYLOAD_WORDS];
};

struct world {
    struct dlx_shm_control *control;
    struct dlx_shm_membership *membership;
    struct dlx_writer writer;
    struct subscriber subs[N_SUBSCRIBERS];
    struct cell cells[MAX_MESSAGES + 1]; /* by number */
    uint32_t n_used;                     /* cells */
    uint32_t memory;                     /* cells that there may be */
    uint32_t window, kept, batch;
    bool gating;
    bool waits;                              /* asleep: subscribers ring it */
    uint64_t last;                           /* messages to publish */
    uint64_t bell;                           /* of the publisher: bell bytes and hang-ups */
    struct subscriber *queue[N_SUBSCRIBERS]; /* the link socket */
    uint32_t n_queued, n_picked, n_subs;
    bool joining;
    uint64_t progress; /* some subscriber did something */
    bool may_die;
    bool misses; /* packets are sometimes picked up late */
    bool roomy;  /* memory for everything that may be held: no publisher can be starved */
    uint64_t seed;
};

static struct subscriber *subscriber_of(struct dlx_writer_link *link)
{
    return (struct subscriber *)((char *)link - offsetof(struct subscriber, link));
}

static void env_pick_up(void *userdata)
{
    struct world *w = userdata;
    while (w->n_picked < w->n_queued) {
        struct subscriber *s = w->queue[w->n_picked];
        if (w->misses && sim_random(3))
            return; /* no memory for it, say: it counts as a link that holds everything */
        s->picked = true;
        w->bell += sim_killed(s->process); /* it has hung up already */
        sim_check(w, dlx__writer_link_add(&w->writer, &s->link) == 0, "no memory");
        w->n_picked++;
    }
}

static void env_ring(void *userdata, struct dlx_writer_link *link)
{
    (void)userdata;
    subscriber_of(link)->bell++;
}

static void env_look_for_dead(void *userdata)
{
    struct world *w = userdata;
    for (uint32_t i = 0; i < w->n_subs; i++)
        if (w->subs[i].picked && sim_killed(w->subs[i].process) && !w->subs[i].finished)
            w->subs[i].link.dead = true;
}

static void env_link_gone(void *userdata, struct dlx_writer_link *link)
{
    (void)userdata;
    subscriber_of(link)->gone = true;
}

static void env_payload_freed(void *userdata, void *payload)
{
    struct world *w = userdata;
    struct cell *cell = payload;
    uint64_t n = (uint64_t)(cell - w->cells);
    sim_check(w, cell->used, "message %ju is freed twice", n);
    for (uint32_t i = 0; i < w->n_subs; i++)
        sim_check(w, !w->subs[i].holds[n] || w->subs[i].link.dead,
                  "message %ju is freed, %u holds it", n, i);
    memset(cell->words, 0xdd, sizeof cell->words);
    cell->used = false;
    w->n_used--;
}

static const struct dlx_writer_env writer_env = {
    .pick_up = env_pick_up,
    .ring = env_ring,
    .look_for_dead = env_look_for_dead,
    .link_gone = env_link_gone,
    .payload_freed = env_payload_freed,
    .block_gone = dlx_test_ignore_block,
};

static void env_ring_publisher(void *userdata)
{
    ((struct subscriber *)userdata)->world->bell++;
}

static const struct dlx_reader_env reader_env = {.ring = env_ring_publisher};

static void announce(struct world *w)
{
    dlx__writer_announce(&w->writer);
    uint64_t n_live = w->writer.head + 1 - w->writer.oldest;
    sim_check(w, n_live <= w->window, "%ju messages are LIVE", n_live);
}

/* Memory for a payload, and room for the message? */
static bool is_ready(struct world *w)
{
    while (w->n_used >= w->memory && dlx__writer_reclaim(&w->writer, false) > 0)
        ;
    while (!w->gating && w->n_used >= w->memory && dlx__writer_reclaim(&w->writer, true) > 0)
        ;
    int r = dlx__writer_make_room(&w->writer);
    sim_check(w, r == 0 || (r == DLX_E_FULL && w->gating), "make_room: %d", r);
    return r == 0 && w->n_used < w->memory;
}

static void wait_for_room(struct world *w)
{
    if (dlx__writer_has_room(&w->writer) && w->n_used < w->memory)
        return;
    if (w->writer.announced < w->writer.head)
        announce(w);
    while (!is_ready(w)) {
        dlx__writer_set_blocked(&w->writer, true);
        uint64_t picked = w->writer.joins_picked;
        bool ready = is_ready(w);
        /* A link that was picked up late may have passed everything, and will not ring. */
        if (!ready && w->waits && picked == w->writer.joins_picked &&
            picked >= w->writer.joins_seen)
            sim_wait(&w->bell);
        else if (!ready)
            sim_yield();
        w->bell = 0;
        env_look_for_dead(w); /* as poll(2) tells it */
        dlx__writer_set_blocked(&w->writer, false);
        if (ready)
            break;
    }
}

/* Wait, asleep, until every subscriber that is there has passed everything: as in a dialogue. A
 * subscriber that sleeps through a message makes this a deadlock. */
static void wait_for_subscribers(struct world *w)
{
    for (uint32_t i = 0; i < w->n_subs; i++) {
        struct subscriber *s = &w->subs[i];
        while (s->started && !s->finished && !sim_killed(s->process) &&
               s->reader.cursor != w->writer.head) {
            sim_wait(&w->progress);
            w->progress = 0;
        }
    }
}

static void put(struct world *w)
{
    uint64_t n = w->writer.head + 1;
    struct cell *cell = &w->cells[n];
    cell->used = true;
    w->n_used++;
    for (uint32_t i = 0; i < PAYLOAD_WORDS; i++) {
        cell->words[i] = n;
        sim_yield();
    }
    dlx_test_put(&w->writer, cell);
}

static void publisher_main(void *userdata)
{
    struct world *w = userdata;
    while (w->writer.head < w->last) {
        for (uint32_t i = sim_random(w->batch) + 1; i > 0 && w->writer.head < w->last; i--) {
            wait_for_room(w);
            put(w);
        }
        announce(w);
        sim_check(w, dlx_test_blocks_are_right(&w->writer), "wrong entries");
        if (sim_random(8) == 0)
            dlx__writer_reclaim(&w->writer, sim_random(3) == 0);
        if (!w->misses && sim_random(4) == 0)
            wait_for_subscribers(w);
    }
    w->misses = false;
    dlx__writer_close(&w->writer);
}

struct held {
    struct dlx_taken taken;
    bool used;
};

static void check_held(struct subscriber *s, const struct dlx_taken *t)
{
    const struct world *w = s->world;
    sim_check(w, dlx_test_is_of(t->words, t->n), "message %ju has words of %ju", t->n,
              t->words[1] / 8);
    for (uint32_t i = 0; i < PAYLOAD_WORDS; i++)
        sim_check(w, w->cells[t->n].words[i] == t->n, "message %ju: payload is %jx", t->n,
                  w->cells[t->n].words[i]);
}

static void drop_held(struct subscriber *s, struct held *h)
{
    if (!h->used)
        return;
    check_held(s, &h->taken);
    h->used = false;
    s->holds[h->taken.n] = false;
    if (s->delegates) {
        s->returned[s->n_returned++ % DLX_ARRAY_SIZE(s->returned)] = h->taken.hold;
        s->to_release++;
    } else {
        dlx__reader_release(&s->reader, h->taken.hold);
    }
}

static void releaser_main(void *userdata)
{
    struct subscriber *s = userdata;
    for (;;) {
        sim_wait(&s->to_release);
        s->to_release = 0;
        for (; s->n_released < s->n_returned; s->n_released++)
            dlx__reader_release(&s->reader,
                                s->returned[s->n_released % DLX_ARRAY_SIZE(s->returned)]);
        if (s->finished || sim_killed(s->process))
            return;
    }
}

static void raise_joins(struct subscriber *s)
{
    s->raised = true;
    s->world->joining = false;
    s->at_join = s->world->writer.head;
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
    uint64_t newest = s->at_join > 0 ? s->at_join - 1 : 0; /* at_join itself may be half there */
    dlx__reader_init(&s->reader, w->control, w->writer.block->mask + 1, 0, s->page, s->index,
                     s->link.max_held, s->latest, s->reliable, w->waits, &reader_env, s);
    dlx__reader_start(&s->reader, s->from_start ? DLX_READER_ALL : s->history);
    s->start = s->reader.cursor;
    s->started = true;
    sim_check(w, s->start <= w->writer.head, "start at %ju", s->start);
    sim_check(w, s->from_start ? s->start == 0 : s->start + s->history >= newest,
              "start at %ju, newest was %ju", s->start, newest);
}

/* The messages came in one call. The last ones, which cannot be read, are lost. */
static void receive(struct subscriber *s, const struct dlx_taken *taken, uint32_t n,
                    struct held *held)
{
    struct world *w = s->world;
    uint32_t n_read = s->loses && sim_random(4) == 0 ? sim_random(n) : n;
    for (uint32_t i = 0; i < n_read; i++) {
        const struct dlx_taken *t = &taken[i];
        uint32_t at = 0;
        check_held(s, t);
        while (at < MAX_HELD && held[at].used)
            at++;
        sim_check(w, at < s->link.max_held, "more is held than allowed");
        held[at] = (struct held){.taken = *t, .used = true};
        s->holds[t->n] = true;
        dlx__reader_count(&s->reader, 1);
    }
    if (n_read < n) {
        for (uint32_t i = n_read; i < n; i++)
            s->n_unread += taken[i].n > s->at_join;
        dlx__reader_lose(&s->reader, &taken[n_read], n - n_read);
    }
}

static int take(struct subscriber *s, struct dlx_taken *ret)
{
    uint32_t n = 1 + sim_random(s->batch);
    uint64_t next = s->reader.cursor + 1;
    struct dlx_taken_plain plain;
    struct dlx_entry_form form = {.is_none = 0};
    *ret = (struct dlx_taken){.n = next};
    dlx_test_fill(ret->words, next);
    memcpy(form.words, &ret->words[2], sizeof form.words);
    if (n > 1 || sim_random(2) || !dlx__reader_take_plain(&s->reader, &form, &plain))
        return dlx__reader_take(&s->reader, ret, n);
    ret->n = plain.n;
    ret->gap = plain.gap;
    ret->words[0] = plain.monotonic_ns;
    dlx__entry_set_place(ret->words, plain.arena, plain.offset);
    return 1;
}

static void subscriber_main(void *userdata)
{
    struct subscriber *s = userdata;
    struct world *w = s->world;
    struct held held[MAX_HELD] = {0};
    uint64_t last, leave_after;
    sim_pause(0, 60);
    join(s);
    leave_after = sim_random(3) == 0 ? sim_random((uint32_t)w->last) : UINT64_MAX;
    last = s->start;
    while (s->reader.taken < leave_after) {
        struct dlx_taken taken[MAX_HELD];
        uint64_t head = w->control->head;
        int r = take(s, taken);
        w->progress++;
        if (r == DLX_E_TOO_MANY_HELD) {
            sim_check(w, dlx__reader_n_held(&s->reader) == s->link.max_held || s->delegates,
                      "too many held");
            drop_held(s, &held[sim_random(MAX_HELD)]);
            sim_yield();
            continue;
        }
        if (r == DLX_E_PUBLISHER_GONE)
            break;
        if (r == DLX_E_EMPTY) {
            /* A subscriber that sleeps while it holds may starve the publisher, unless there is
             * memory for all. */
            for (uint32_t i = 0; i < MAX_HELD && !w->roomy; i++)
                drop_held(s, &held[i]);
            if (dlx__reader_arm(&s->reader)) {
                sim_wait(&s->bell);
                s->bell = 0;
            }
            continue;
        }
        sim_check(w, r > 0, "take: %d %s", r, dlx__error_message());
        sim_check(w, !s->latest || (r == 1 && taken[0].n >= head), "%ju is not the newest",
                  taken[0].n);
        for (int i = 0; i < r; i++) {
            const struct dlx_taken *t = &taken[i];
            sim_check(w, t->n > last && t->n == last + t->gap + 1, "%ju after %ju, gap %ju", t->n,
                      last, t->gap);
            for (uint64_t n = last + 1; n < t->n; n++)
                s->n_missed += n > s->at_join;
            last = t->n;
        }
        uint64_t before = taken[0].n - taken[0].gap - 1, n_before = s->reader.taken;
        receive(s, taken, (uint32_t)r, held);
        uint64_t n_read = s->reader.taken - n_before;
        last = n_read > 0 ? taken[n_read - 1].n : before;
        for (uint64_t n = before + 1; n_read == 0 && n < taken[0].n; n++)
            s->n_missed -= n > s->at_join; /* the next gap tells them again */
        while (!s->keeps && sim_random(3))
            drop_held(s, &held[sim_random(MAX_HELD)]);
    }
    const struct dlx_reader *r = &s->reader;
    sim_check(w, r->cursor == s->start + r->taken + r->lost + r->skipped,
              "cursor %ju, start %ju, taken %ju, lost %ju, skipped %ju", r->cursor, s->start,
              r->taken, r->lost, r->skipped);
    sim_check(w, last + dlx__reader_untold(r) == r->cursor, "%ju untold after %ju",
              dlx__reader_untold(r), last);
    sim_check(w, leave_after <= r->taken || r->cursor == w->last, "the end came at %ju", r->cursor);
    sim_check(w, leave_after <= r->taken || last == w->last || s->start == w->last || s->loses,
              "%ju was the last one", last);
    sim_check(w, !s->reliable || s->n_missed <= s->n_unread, "reliable, missed %ju", s->n_missed);
    sim_check(w, s->latest || r->skipped == 0, "skipped");
    /* Leave while holding, then let go. */
    dlx__reader_miss_gone(&s->reader);
    dlx__reader_close(&s->reader);
    for (uint32_t i = 0; i < MAX_HELD; i++)
        drop_held(s, &held[i]);
    s->finished = true;
    s->to_release++;
    w->progress++;
    /* The daemon sees it leave. */
    atomic_fetch_add(&w->membership->leaves, 1);
    w->bell++;
}

#define N_REPORTS 60

static struct dlx_shm_misses load_misses(struct dlx_shm_link *page)
{
    struct dlx_shm_misses m;
    m.cursor = dlx_load64_acquire(&page->cursor);
    m.skipped = dlx_load64_acquire(&page->skipped);
    m.lost = dlx_load64_acquire(&page->lost);
    m.passing = dlx_load64_acquire(&page->passing);
    m.missed = dlx_load64_acquire(&page->missed);
    return m;
}

struct report {
    uint64_t missed; /* what the daemon would report, as dlxd_report_link() does */
    uint64_t n_held; /* messages that the publisher has dropped and that count as taken: held */
};

/* Nothing is reported before the subscriber has started. */
static struct report report_missed(struct subscriber *s)
{
    uint64_t head = dlx_load64_acquire(&s->world->control->head);
    uint64_t oldest = dlx_load64_acquire(&s->world->control->oldest), hold[MAX_HELD];
    for (uint32_t i = 0; i < s->link.max_held; i++)
        hold[i] = dlx_load64_acquire(&s->page->hold[i]);
    bool started = dlx_load32_acquire(&s->page->started);
    struct dlx_shm_misses misses = load_misses(s->page), before;
    do {
        before = misses;
        misses = load_misses(s->page);
    } while (!dlx_shm_misses_agree(&before, &misses));
    uint64_t counted = dlx_shm_misses_counted(&misses);
    uint64_t gone = dlx_shm_progress(counted, oldest, head).gone;
    struct report report = {.missed = dlx_shm_misses_n(&misses, s->latest)};
    for (uint32_t i = 0; started && i < s->link.max_held; i++)
        report.n_held += hold[i] > counted && hold[i] - counted <= gone;
    report.missed += started ? gone - report.n_held : 0;
    return report;
}

/* A report never counts a message that is taken after all, or one twice: the next one would be
 * less. The count may be less only while the subscriber holds a message for which it was too late,
 * which it finds out next, and once it has left, since it does not count later drops. */
static void reporter_main(void *userdata)
{
    struct subscriber *s = userdata;
    uint64_t most = 0;
    for (int i = 0; i < N_REPORTS && !sim_killed(s->process); i++) {
        struct report report = report_missed(s);
        if (s->page->cursor == DLX_SHM_CURSOR_CLOSED)
            return;
        sim_check(s->world, report.missed + report.n_held >= most,
                  "%ju were reported as missed, then %ju, and %ju are held", most, report.missed,
                  report.n_held);
        most = DLX_MAX(most, report.missed);
        sim_pause(0, 20);
    }
}

/* Kills a subscriber at any step; the daemon and the publisher's poll see it. */
static void reaper_main(void *userdata)
{
    struct world *w = userdata;
    sim_pause(0, 600);
    struct subscriber *s = &w->subs[sim_random(w->n_subs)];
    if (s->finished || sim_killed(s->process))
        return;
    sim_kill(s->process);
    s->to_release++;
    w->progress++;
    sim_yield();
    if (s->announced && !s->raised)
        raise_joins(s); /* it died between its packet and `joins`: the daemon goes on */
    atomic_fetch_add(&w->membership->leaves, 1);
    w->bell++;
}

static uint32_t digit(uint64_t *x, uint32_t base)
{
    uint32_t d = (uint32_t)(*x % base);
    *x /= base;
    return d;
}

/* The seed's low digits choose the configuration. Returns the number of entries. */
static uint32_t configure(struct world *w)
{
    uint64_t x = w->seed;
    uint32_t n_entries = 4;
    w->gating = digit(&x, 2);
    w->window = 1 + digit(&x, MAX_WINDOW);
    w->kept = 1 + digit(&x, w->window);
    while (n_entries < 2 * w->window)
        n_entries *= 2;
    n_entries <<= digit(&x, 2);
    w->batch = 1 + (digit(&x, 2) ? digit(&x, MAX_BATCH) : 0);
    w->roomy = digit(&x, 4) == 3;
    w->may_die = digit(&x, 2);
    w->misses = digit(&x, 4) == 0;
    w->n_subs = 1 + digit(&x, N_SUBSCRIBERS);
    w->last = 5 + digit(&x, MAX_MESSAGES - 4);
    w->memory = w->kept + 1 + digit(&x, 4);
    w->waits = w->gating || digit(&x, 2);
    return n_entries;
}

static void run_seed(uint64_t seed)
{
    struct world w = {.seed = seed};
    struct sim *sim = sim_new(seed);
    uint32_t n_entries = configure(&w);
    w.control = dlx_test_control(n_entries);
    w.membership = dlx_test_pages(DLX_PAGE);
    ck_assert_int_eq(dlx__writer_init(&w.writer, w.control, n_entries, w.window, w.kept, w.gating,
                                      w.membership, &writer_env, &w),
                     0);
    sim_spawn(sim, publisher_main, &w);
    for (uint32_t i = 0; i < w.n_subs; i++) {
        struct subscriber *s = &w.subs[i];
        uint32_t max_held = 1 + (uint32_t)((seed >> (i + 3)) % MAX_HELD);
        s->world = &w;
        s->index = i;
        s->latest = (seed >> i) % 3 == 0;
        s->reliable = w.gating && !s->latest && (seed >> (i + 1)) % 4 != 0;
        s->history = (uint32_t)((seed >> (i + 2)) % 5);
        s->from_start = !s->latest && (seed >> (i + 6)) % 5 == 0;
        s->keeps = (seed >> (i + 4)) % 3 == 0;
        s->loses = (seed >> (i + 7)) % 4 == 0;
        s->batch = 1 + (uint32_t)((seed >> (i + 8)) % max_held);
        s->delegates = (seed >> (i + 5)) % 2;
        s->page = dlx_test_link(&s->link, i, max_held, s->reliable, s->latest);
        s->process = sim_spawn(sim, subscriber_main, s);
        if (s->delegates)
            sim_spawn(sim, releaser_main, s);
        w.memory += w.roomy ? max_held : 0;
        if (i == seed / 3 % w.n_subs)
            sim_spawn(sim, reporter_main, s);
    }
    if (w.may_die)
        sim_spawn(sim, reaper_main, &w);
    sim_check(&w, sim_run(sim), "deadlock");

    /* Everybody left or died: all links go, and all but what is kept comes back. */
    w.misses = false;
    dlx__writer_read_membership(&w.writer);
    for (uint32_t i = 0; i < w.n_subs; i++)
        w.subs[i].link.dead = w.subs[i].picked && !w.subs[i].finished;
    sim_check(&w, w.writer.head == w.last, "published %ju", w.writer.head);
    dlx_test_reclaim_all(&w.writer);
    for (uint32_t i = 0; i < w.n_subs; i++)
        sim_check(&w, !w.subs[i].picked || w.subs[i].gone, "link %u stays", i);
    sim_check(&w, w.n_used == w.kept && w.writer.n_payloads == w.kept && w.writer.n_retired == 0,
              "%u payloads are in use", w.n_used);
    dlx__writer_deinit(&w.writer);
    sim_check(&w, w.n_used == 0, "%u payloads did not come back", w.n_used);
    for (uint32_t i = 0; i < w.n_subs; i++)
        free(w.subs[i].page);
    free(w.control);
    free(w.membership);
    sim_free(sim);
}

int main(void)
{
    return dlx_test_sim_run(run_seed, 6000);
}
