/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: a reader of a hostile publisher. The input is a program that writes a control block,
 * honestly or any word of it, and takes, loses and releases messages, one or several at a time.
 * Every call comes back; numbers go up; every message is taken or counted; a hold word stands for
 * each message that is held.
 */
#include "common/error.h"
#include "tests/fuzz/harness_fuzz.h"
#include "tests/harness/ring.h"

#define HELD_MAX 4U

struct state {
    struct dlx_fuzz f;
    struct dlx_shm_control *control;
    struct dlx_shm_link *page;
    struct dlx_reader r;
    uint32_t n_entries, max_held;
    struct dlx_taken held[HELD_MAX];
    uint32_t n_held;
    uint64_t head; /* of the honest part of the publisher */
    uint64_t start, last, last_cursor;
    uint64_t n_rung;
};

static void ring(void *userdata)
{
    ((struct state *)userdata)->n_rung++;
}

static const struct dlx_reader_env env = {.ring = ring};

static struct dlx_shm_entry *entry_of(const struct state *s, uint64_t n)
{
    return &s->control->entries[n & (s->n_entries - 1)];
}

static void publish(struct state *s)
{
    uint64_t words[DLX_SHM_ENTRY_WORDS], n = ++s->head;
    words[0] = n;
    dlx_test_fill(words, n);
    for (uint32_t i = 0; i < DLX_SHM_ENTRY_WORDS; i++)
        dlx_store64_relaxed(&entry_of(s, n)->words[i], words[i]);
    dlx_store64_relaxed(&entry_of(s, n)->gen, n);
    if (dlx_fuzz_choose(&s->f, 4)) /* or it is in the middle of a batch */
        dlx_store64_relaxed(&s->control->head, n);
}

/* A mark at one of the entries: GONE, END or MOVED. */
static void mark(struct state *s)
{
    static const uint64_t marks[] = {DLX_SHM_GONE, DLX_SHM_END, DLX_SHM_MOVED,
                                     DLX_SHM_GONE | DLX_SHM_END};
    uint64_t n = s->head + 1 - dlx_fuzz_choose(&s->f, 8);
    uint64_t marked = n | marks[dlx_fuzz_choose(&s->f, DLX_ARRAY_SIZE(marks))];
    dlx_store64_relaxed(&entry_of(s, n)->gen, marked);
    if (dlx_fuzz_choose(&s->f, 2))
        dlx_store64_relaxed(&s->control->oldest, n + 1);
}

/* Any word of the control block. */
static void scribble(struct state *s)
{
    struct dlx_fuzz *f = &s->f;
    uint32_t what = dlx_fuzz_choose(f, 8);
    uint64_t value = dlx_fuzz_number(f);
    if (what < 6 && value < 0x80) /* near what is there */
        value += s->head - 0x40;
    if (what < 2)
        dlx_store64_relaxed(&s->control->head, value);
    else if (what < 4)
        dlx_store64_relaxed(&s->control->oldest, value);
    else if (what < 6)
        dlx_store64_relaxed(&entry_of(s, dlx_fuzz_choose(f, 256))->gen, value);
    else if (what == 6)
        dlx_store32_relaxed(&s->control->blocked, (uint32_t)value);
    else
        memcpy((uint8_t *)s->control +
                   dlx_fuzz_bytes(f, 2) * 8 % dlx_shm_control_size(s->n_entries),
               &value, sizeof value);
}

static uint64_t load_hold(const struct state *s, uint32_t hold)
{
    return dlx_load64_relaxed(&s->page->hold[hold]);
}

static void take(struct state *s)
{
    struct dlx_taken taken[HELD_MAX + 1];
    struct dlx_reader *r = &s->r;
    uint32_t n = 1 + dlx_fuzz_choose(&s->f, HELD_MAX + 1);
    int got = dlx__reader_take(r, taken, n);
    if (got < 0) {
        REQUIRE(got == DLX_E_EMPTY || got == DLX_E_NOT_FOUND || got == DLX_E_TOO_MANY_HELD ||
                got == DLX_E_PUBLISHER_GONE || got == DLX_E_BAD_PEER);
        REQUIRE(got != DLX_E_TOO_MANY_HELD || s->n_held == s->max_held);
        REQUIRE(got != DLX_E_BAD_PEER || *dlx__error_message());
        return;
    }
    REQUIRE(got > 0 && got <= (int)n && s->n_held + (uint32_t)got <= s->max_held);
    REQUIRE(!r->latest || got == 1);
    for (int i = 0; i < got; i++) {
        REQUIRE(taken[i].n > s->last && taken[i].n == s->last + taken[i].gap + 1);
        REQUIRE(load_hold(s, taken[i].hold) == taken[i].n);
        s->last = taken[i].n;
    }
    uint32_t n_read = (uint32_t)got - dlx_fuzz_choose(&s->f, 8) / 6 * (uint32_t)got;
    for (uint32_t i = 0; i < n_read; i++) {
        s->held[s->n_held++] = taken[i];
        dlx__reader_count(r, 1);
    }
    if (n_read == 0) {
        dlx__reader_lose(r, taken, (uint32_t)got);
        s->last = taken[0].n - taken[0].gap - 1;
    }
}

static void release(struct state *s)
{
    if (s->n_held == 0)
        return;
    uint32_t i = dlx_fuzz_choose(&s->f, s->n_held);
    dlx__reader_release(&s->r, s->held[i].hold);
    s->held[i] = s->held[--s->n_held];
}

/* The invariants after every step. */
static void check(struct state *s)
{
    const struct dlx_reader *r = &s->r;
    REQUIRE(dlx__reader_n_held(r) == s->n_held && r->n_used <= s->max_held);
    REQUIRE(dlx_load64_relaxed(&s->page->n_used) == r->n_used);
    for (uint32_t i = 0; i < s->n_held; i++)
        REQUIRE(load_hold(s, s->held[i].hold) == s->held[i].n && s->held[i].n != 0);
    REQUIRE(r->cursor >= s->last_cursor && r->cursor < DLX_SHM_END);
    REQUIRE(dlx_load64_relaxed(&s->page->cursor) <= r->cursor);
    REQUIRE(r->taken + r->skipped + r->lost == r->cursor - s->start);
    REQUIRE(s->last + dlx__reader_untold(r) == r->cursor);
    s->last_cursor = r->cursor;
}

static void begin(struct state *s)
{
    struct dlx_fuzz *f = &s->f;
    uint32_t mode = dlx_fuzz_choose(f, 3), history = dlx_fuzz_choose(f, 8);
    uint64_t base = dlx_fuzz_number(f) % DLX_SHM_MOVED;
    s->n_entries = 4U << dlx_fuzz_choose(f, 3);
    s->max_held = 1 + dlx_fuzz_choose(f, HELD_MAX);
    s->control = dlx_fuzz_map(dlx_shm_control_size(s->n_entries));
    s->page = dlx_fuzz_map(sizeof *s->page + s->max_held * sizeof(uint64_t));
    s->head = base;
    dlx_store64_relaxed(&s->control->head, base);
    for (uint32_t i = dlx_fuzz_choose(f, 4); i > 0; i--) {
        publish(s);
        if (dlx_fuzz_choose(f, 8) == 7)
            scribble(s);
    }
    dlx__reader_init(&s->r, s->control, s->n_entries, base, s->page, dlx_fuzz_choose(f, 64),
                     s->max_held, mode == 1, mode == 2, dlx_fuzz_choose(f, 2), &env, s);
    dlx__reader_start(&s->r, dlx_fuzz_choose(f, 2) ? DLX_READER_ALL : history);
    s->start = s->last = s->last_cursor = s->r.cursor;
    REQUIRE(s->start >= base);
}

static void look(struct state *s)
{
    (void)dlx__reader_is_closed(&s->r);
    REQUIRE(dlx__reader_arm(&s->r) != dlx__reader_pending(&s->r));
}

static void (*const steps[])(struct state *) = {
    publish, publish, publish, mark, scribble, scribble, take, take, take, release, look, look};

void dlx_fuzz_one(struct dlx_fuzz *f)
{
    struct state s = {.f = *f};
    begin(&s);
    while (s.f.left > 0) {
        steps[dlx_fuzz_choose(&s.f, DLX_ARRAY_SIZE(steps))](&s);
        check(&s);
    }
    dlx__reader_close(&s.r);
    REQUIRE(dlx_load64_relaxed(&s.page->cursor) == DLX_SHM_CURSOR_CLOSED);
    while (s.n_held > 0)
        release(&s);
    REQUIRE(dlx__reader_n_held(&s.r) == 0);
    dlx_fuzz_unmap(s.control, dlx_shm_control_size(s.n_entries));
    dlx_fuzz_unmap(s.page, sizeof *s.page + s.max_held * sizeof(uint64_t));
}
