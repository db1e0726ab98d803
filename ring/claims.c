/* SPDX-License-Identifier: Apache-2.0 */
#include "ring/claims.h"
#include "common/error.h"
#include <stdlib.h>

/* ---- cells --------------------------------------------------------------------------------- */

static uint64_t lap_of(const struct dlx_claims *c, uint64_t n)
{
    return ((n >> c->shift) + 1) & ((UINT64_C(1) << 40) - 1);
}

static dlx_atomic_u64 *cell_of(const struct dlx_claims *c, uint64_t n)
{
    return &c->page->cells[n & c->reader->mask];
}

static struct dlx_shm_cell look_at(const struct dlx_claims *c, uint64_t n)
{
    return dlx_shm_cell_unpack(dlx_load64_acquire(cell_of(c, n)));
}

/* A message with a later number has the cell, so this one was retired, and so it was done. */
static bool is_done(struct dlx_shm_cell cell, uint64_t lap)
{
    return cell.lap > lap || (cell.lap == lap && cell.state == DLX_SHM_CELL_DONE);
}

static bool is_cell_free(struct dlx_shm_cell cell, uint64_t lap)
{
    return cell.lap < lap || (cell.lap == lap && cell.state == DLX_SHM_CELL_RETURNED);
}

/* Acquire and release: the next owner sees what the former one wrote elsewhere, and a fence: the
 * worker then looks at gen, `blocked` or other cells. */
static bool swap(const struct dlx_claims *c, uint64_t n, uint64_t from, uint64_t to)
{
    dlx_sim_step(cell_of(c, n));
    return atomic_compare_exchange_strong_explicit(cell_of(c, n), &from, to, memory_order_seq_cst,
                                                   memory_order_acquire);
}

static void count_n(dlx_atomic_u64 *counter, uint64_t n)
{
    dlx_sim_step(counter);
    (void)atomic_fetch_add_explicit(counter, n, memory_order_acq_rel);
}

static void count(dlx_atomic_u64 *counter)
{
    count_n(counter, 1);
}

static bool is_over(const struct dlx_claims *c)
{
    return atomic_load_explicit(&c->is_over, memory_order_relaxed);
}

static uint64_t gen_at(const struct dlx_claims *c, uint64_t n)
{
    const struct dlx_reader *r = c->reader;
    return dlx_load64_acquire((dlx_atomic_u64 *)(uintptr_t)&r->control->entries[n & r->mask].gen);
}

/* ---- what was carried ----------------------------------------------------------------------- */

/* The first carried message that is not done. 0: that is not known yet. */
static uint64_t first_carried(const struct dlx_claims *c)
{
    uint64_t first = c->carried ? dlx_load64_acquire(c->carried) & ~DLX_SHM_UNTOUCHED : 0;
    if (first > 0 || !c->carried)
        return first > 0 ? first : c->moved_at + 1;
    if (atomic_load_explicit(&c->has_moved, memory_order_relaxed))
        return c->moved_at + 1;
    return is_over(c) ? 1 : 0; /* the publisher cannot say it: all may be done twice */
}

/* Does the message wait for the publisher to say that nobody else does it? */
static bool is_closed(const struct dlx_claims *c, uint64_t n)
{
    return n <= c->moved_at && first_carried(c) == 0;
}

static bool was_done_before(const struct dlx_claims *c, uint64_t n)
{
    return n <= c->moved_at && n < first_carried(c);
}

/* The newest message that was retired so long ago that its cell is of a later one, or is told of by
 * whoever claims or loses that. So the cells of the messages after it tell all that is to be known,
 * also what a publisher dropped that nobody had claimed. */
static uint64_t long_retired(const struct dlx_reader *r)
{
    uint64_t oldest = dlx_load64_acquire((dlx_atomic_u64 *)(uintptr_t)&r->control->oldest);
    oldest = DLX_MIN(oldest, DLX_SHM_MOVED);
    return oldest - DLX_MIN(oldest, r->mask + (uint64_t)2);
}

/* ---- done ---------------------------------------------------------------------------------- */

static uint64_t done_of(const struct dlx_claims *c)
{
    return dlx_load64_acquire(&c->reader->page->done);
}

/* Threads of one worker may be here at once: the word never falls. */
static void raise_done(struct dlx_claims *c, uint64_t to)
{
    dlx_atomic_u64 *done = &c->reader->page->done;
    uint64_t was = dlx_load64_relaxed(done);
    dlx_sim_step(done);
    while (was < to && !atomic_compare_exchange_weak_explicit(done, &was, to, memory_order_release,
                                                              memory_order_relaxed))
        ;
}

/* Walks on over what is done. Message `n` was published, so what is a ring before it was retired: a
 * worker that had little to do comes up to the others. Who finishes the last message tells the
 * others, which wait for it. */
static void advance(struct dlx_claims *c, uint64_t n)
{
    struct dlx_reader *r = c->reader;
    uint64_t was = done_of(c), done = DLX_MAX(was, n - DLX_MIN(n, r->mask + (uint64_t)1));
    uint64_t most = n + r->mask; /* no honest publisher has more */
    while (done < most &&
           (is_done(look_at(c, done + 1), lap_of(c, done + 1)) || was_done_before(c, done + 1)))
        done++;
    if (done == was)
        return;
    raise_done(c, done);
    dlx_fence_after_swap(); /* `done`, then `blocked` */
    dlx__reader_ring_if_blocked(r);
    if (is_over(c) || DLX_SHM_IS_FINAL(gen_at(c, done + 1)))
        c->env->ring_group(c->userdata);
}

/* As far as there is anything: others may be far ahead. */
static void advance_all(struct dlx_claims *c)
{
    const struct dlx_reader *r = c->reader;
    uint64_t head = dlx_load64_acquire((dlx_atomic_u64 *)(uintptr_t)&r->control->head);
    advance(c, DLX_MAX(r->cursor, DLX_MIN(head, DLX_SHM_MOVED)));
}

/* ---- start --------------------------------------------------------------------------------- */

int dlx__claims_init(struct dlx_claims *c, struct dlx_reader *reader, struct dlx_shm_claims *page,
                     uint32_t owner, uint64_t lease_ns, uint32_t max_attempts,
                     const struct dlx_claims_env *env, void *userdata)
{
    *c = (struct dlx_claims){
        .page = page,
        .reader = reader,
        .env = env,
        .userdata = userdata,
        .shift = (uint32_t)__builtin_ctz(reader->mask + 1),
        .owner = owner,
        .max_attempts = max_attempts,
        .lease_ns = lease_ns,
        .has_returned = true,
    };
    uint64_t moved_at = dlx_load64_acquire((dlx_atomic_u64 *)(uintptr_t)&reader->control->moved_at);
    c->moved_at = moved_at < DLX_SHM_MOVED ? moved_at : 0;
    if (lease_ns > 0)
        c->seen = calloc(reader->mask + (size_t)1, sizeof *c->seen);
    return lease_ns > 0 && !c->seen ? dlx__fail(DLX_E_NO_MEMORY, "table of leases") : 0;
}

void dlx__claims_set_declared(struct dlx_claims *c, uint32_t group)
{
    const struct dlx_reader *r = c->reader;
    if (group > 0 && group <= DLX_SHM_GROUPS_MAX)
        c->carried = dlx_shm_carried(r->control, r->mask + 1, group);
}

void dlx__claims_deinit(struct dlx_claims *c)
{
    free(c->seen);
    c->seen = NULL;
}

void dlx__claims_start(struct dlx_claims *c, uint64_t history, bool doubts)
{
    struct dlx_reader *r = c->reader;
    uint64_t start = 0, newest = dlx__reader_begin(r);
    uint64_t next = DLX_MAX(r->last, newest - DLX_MIN(newest, history)) + 1;
    if (!c->carried) /* its former workers do what was carried */
        next = DLX_MAX(next, c->moved_at + 1);
    if (doubts && dlx_load64_relaxed(&c->page->start) == 0) /* before others may claim them */
        dlx_store64_release(&c->page->doubtful, newest);
    dlx_sim_step(&c->page->start);
    if (atomic_compare_exchange_strong_explicit(&c->page->start, &start, next, memory_order_acq_rel,
                                                memory_order_acquire))
        start = next;
    c->doubtful = dlx_load64_acquire(&c->page->doubtful);
    uint64_t first = DLX_MAX(DLX_MAX(start, long_retired(r) + 1), r->last + 1);
    first = DLX_MIN(first, DLX_SHM_MOVED);
    r->last = first - 1;
    r->cursor =
        DLX_MAX(first - 1, c->moved_at); /* what was carried is taken as what was returned */
    raise_done(c, first - 1);
    dlx_store64_release(&r->page->cursor, r->cursor);
    dlx_store32_release(&r->page->started, 1);
    dlx_fence();
    dlx__reader_ring_if_blocked(r);
    advance_all(c);
}

/* A cell never has a value twice, so attempts do not begin again. */
#define ATTEMPTS_LAST 62U

/* ---- claim --------------------------------------------------------------------------------- */

static uint64_t pack_claim(const struct dlx_claims *c, uint64_t n, struct dlx_shm_cell was)
{
    uint64_t lap = lap_of(c, n);
    uint32_t attempt = was.lap == lap ? DLX_MIN(was.attempt, ATTEMPTS_LAST) + 1 : 1;
    bool is_untouched =
        n > c->moved_at || (c->carried && dlx_load64_relaxed(c->carried) & DLX_SHM_UNTOUCHED);
    if (was.lap != lap && (!is_untouched || n <= c->doubtful))
        attempt = 2; /* a former worker may have had it */
    return dlx_shm_cell_pack((struct dlx_shm_cell){
        .state = DLX_SHM_CELL_CLAIMED, .attempt = attempt, .owner = c->owner, .lap = lap});
}

static uint64_t cell_with_state(uint64_t claim, enum dlx_shm_cell_state state)
{
    return (claim & ~(UINT64_C(3) << 62)) | (uint64_t)state << 62;
}

/* Not by dlx__reader_miss(): in the page of a worker, `done` is where that stores `passing`. */
static void count_lost(struct dlx_claims *c, uint64_t n)
{
    struct dlx_reader *r = c->reader;
    r->lost += n;
    dlx_store64_release(&r->page->lost, r->lost);
}

/* Message n was retired before this worker could hold it. Its publisher drops messages, or lies. */
static void lose_claim(struct dlx_claims *c, uint64_t n, uint64_t claim)
{
    if (dlx__claims_settle(c, n, claim, DLX_CLAIM_LOST))
        count_lost(c, 1);
}

/* The cell of message n had no word of earlier ones, or one by which they are not done: they were
 * dropped, whoever had claimed them. */
static void lose_earlier(struct dlx_claims *c, uint64_t n, struct dlx_shm_cell was)
{
    uint64_t lap = lap_of(c, n), start, n_lost = 0;
    if (was.lap >= lap)
        return;
    if (was.lap > 0) {
        n_lost = lap - was.lap - (was.state == DLX_SHM_CELL_DONE);
    } else {
        start = DLX_MAX(dlx_load64_relaxed(&c->page->start), first_carried(c));
        n_lost = n > start ? (n - start) / (c->reader->mask + (uint64_t)1) : 0;
    }
    if (n_lost == 0)
        return;
    count_n(&c->page->lost, n_lost);
    count_lost(c, n_lost);
}

/* Claims message n, whose cell is free. Returns 1; 0 if it is not there for this worker; or
 * DLX_E_TOO_MANY_HELD. */
static int claim(struct dlx_claims *c, uint64_t n, uint64_t word, struct dlx_taken *ret)
{
    struct dlx_reader *r = c->reader;
    struct dlx_shm_cell was = dlx_shm_cell_unpack(word);
    uint64_t mine = pack_claim(c, n, was);
    if (dlx__claim_attempt(mine) > ATTEMPTS_LAST) { /* also its burial failed each time */
        if (swap(c, n, word, cell_with_state(mine, DLX_SHM_CELL_DONE))) {
            count(&c->page->dead);
            advance(c, n);
        }
        return 0;
    }
    if (!dlx__reader_find_hold(r, &ret->hold))
        return DLX_E_TOO_MANY_HELD;
    if (!swap(c, n, word, mine))
        return 0;
    lose_earlier(c, n, was);
    /* Nothing that is not done is retired by an honest publisher that waits. With others, the look
     * at gen after the fence shows whether the hold came in time. */
    if (gen_at(c, n) == n) {
        dlx__reader_hold(r, n, ret);
        dlx_fence(); /* store of the hold, then load of gen */
        __builtin_prefetch(&r->control->entries[(n + DLX_READER_AHEAD) & r->mask]);
        if (dlx_likely(gen_at(c, n) == n)) {
            ret->claim = mine;
            if (dlx__claim_attempt(mine) > 1 && dlx__claim_attempt(mine) <= c->max_attempts)
                count(&c->page->redelivered);
            return 1;
        }
        dlx__reader_release(r, ret->hold);
    }
    lose_claim(c, n, mine);
    return 0;
}

/* Was a message given back since the last look, or are those open that were carried? */
static bool has_news(const struct dlx_claims *c)
{
    return dlx_load64_acquire(&c->page->returned) != c->returned_seen ||
           (c->moved_at > 0 && !c->has_opened && first_carried(c) > 0);
}

/* Is there no need to look for messages that were given back? */
static bool has_none_returned(struct dlx_claims *c)
{
    if (!has_news(c) && !c->has_returned)
        return true;
    c->returned_seen = dlx_load64_acquire(&c->page->returned);
    c->has_opened |= first_carried(c) > 0;
    return false;
}

/* Returns the first message from n on that was given back and that no worker has. 0: there is
 * none. */
static uint64_t find_returned(const struct dlx_claims *c, uint64_t n)
{
    const struct dlx_reader *r = c->reader;
    uint64_t first = r->cursor - DLX_MIN(r->cursor, r->mask); /* a later one has the cell before */
    for (n = DLX_MAX(DLX_MAX(first, done_of(c) + 1), n); n <= r->cursor; n++)
        if (is_cell_free(look_at(c, n), lap_of(c, n)) && !is_closed(c, n) && !was_done_before(c, n))
            return n;
    return 0;
}

/* Looks for a message that was given back, from the oldest one on. Returns as claim(). */
static int claim_returned(struct dlx_claims *c, struct dlx_taken *ret)
{
    if (has_none_returned(c))
        return 0;
    for (uint64_t n = 1; (n = find_returned(c, n)) > 0; n++) {
        uint64_t word = dlx_load64_acquire(cell_of(c, n));
        if (!is_cell_free(dlx_shm_cell_unpack(word), lap_of(c, n)))
            continue;
        int got = claim(c, n, word, ret);
        c->has_returned = true;
        if (got != 0)
            return got;
    }
    c->has_returned = false;
    return 0;
}

/* Passes message n, which another worker has, or which is done. If a later one has its cell: also
 * all that were retired as long ago. */
static void pass(struct dlx_claims *c, uint64_t n, struct dlx_shm_cell cell)
{
    struct dlx_reader *r = c->reader;
    r->cursor = cell.lap > lap_of(c, n) ? DLX_MAX(n, long_retired(r)) : n;
}

/* Passes messages that other workers have, and those that are done. In bounded time. */
static void pass_claimed(struct dlx_claims *c)
{
    struct dlx_reader *r = c->reader;
    r->cursor = DLX_MAX(r->cursor, done_of(c));
    for (uint32_t i = 0; i <= r->mask; i++) {
        struct dlx_shm_cell cell = look_at(c, r->cursor + 1);
        if (is_cell_free(cell, lap_of(c, r->cursor + 1)))
            return;
        pass(c, r->cursor + 1, cell);
    }
}

/* Nobody may claim message n, whose entry has `gen`. Returns why; 0: it was retired. */
static int why_none(const struct dlx_claims *c, uint64_t n, uint64_t gen)
{
    uint64_t found = DLX_SHM_NUMBER(gen);
    if (found < n)
        return is_over(c) ? DLX_E_PUBLISHER_GONE : DLX_E_EMPTY;
    if (found == n && DLX_SHM_IS_FINAL(gen))
        return gen & DLX_SHM_END ? DLX_E_PUBLISHER_GONE : DLX_E_NOT_FOUND;
    return 0;
}

/* Looks at the next message that nobody has. Returns as claim(), or why there is none. */
static int claim_next(struct dlx_claims *c, struct dlx_taken *ret)
{
    struct dlx_reader *r = c->reader;
    for (uint32_t i = 0; i <= 2 * (r->mask + 1); i++) {
        r->cursor = DLX_MAX(r->cursor, done_of(c)); /* or it would not sleep behind the newest */
        uint64_t n = r->cursor + 1, lap = lap_of(c, n);
        uint64_t word = dlx_load64_acquire(cell_of(c, n));
        if (!is_cell_free(dlx_shm_cell_unpack(word), lap)) {
            pass(c, n, dlx_shm_cell_unpack(word));
            continue;
        }
        uint64_t gen = gen_at(c, n);
        if (gen == n) {
            int got = claim(c, n, word, ret);
            if (got == 1)
                r->cursor = DLX_MAX(r->cursor, n);
            if (got != 0)
                return got;
            continue;
        }
        if (gen == (n | DLX_SHM_MOVED))
            atomic_store_explicit(&c->has_moved, true, memory_order_relaxed);
        int why = why_none(c, n, gen);
        if (why < 0)
            return why;
        uint64_t passed = long_retired(r);
        if (passed > n) {
            raise_done(c, passed);
            continue;
        }
        struct dlx_shm_cell was = dlx_shm_cell_unpack(word);
        uint64_t mine = pack_claim(c, n, was);
        if (swap(c, n, word, mine)) { /* retired, and nobody had it */
            lose_earlier(c, n, was);
            lose_claim(c, n, mine);
        }
        r->cursor = DLX_MAX(r->cursor, n);
    }
    return DLX_E_EMPTY;
}

int dlx__claims_take(struct dlx_claims *c, struct dlx_taken *ret, uint32_t n)
{
    struct dlx_reader *r = c->reader;
    uint32_t got = 0;
    int why = DLX_E_EMPTY;
    if (n == 0 && dlx__claims_has_unclaimed(c))
        return dlx__fail(DLX_E_TOO_MANY_HELD, "no more messages may be claimed");
    uint64_t next = r->cursor + 1;
    int end = n == 0 ? why_none(c, next, gen_at(c, next)) : 0;
    if (end < 0)
        why = end;
    while (got < n) {
        why = claim_returned(c, &ret[got]);
        if (why == 0)
            why = claim_next(c, &ret[got]);
        if (why < 0)
            break;
        got++;
    }
    dlx_store64_release(&r->page->cursor, r->cursor);
    if (got > 0)
        return (int)got;
    if (why == DLX_E_TOO_MANY_HELD)
        return dlx__fail(why, "all %u hold words are in use", r->max_held);
    /* Others may yet give back what they have. */
    if (why == DLX_E_PUBLISHER_GONE || why == DLX_E_NOT_FOUND) {
        advance(c, r->cursor);
        if (done_of(c) < r->cursor)
            return DLX_E_EMPTY;
    }
    return why;
}

/* ---- settle -------------------------------------------------------------------------------- */

/* Is the cell the same claim, however often it was renewed since? */
static bool is_same(uint64_t word, uint64_t claim)
{
    return ((word ^ claim) & ~(UINT64_C(15) << 52)) == 0;
}

enum dlx_shm_cell_state dlx__claims_state(const struct dlx_claims *c, uint64_t n, uint64_t claim)
{
    uint64_t word = dlx_load64_acquire(cell_of(c, n));
    bool is_its = is_same(cell_with_state(word, DLX_SHM_CELL_CLAIMED), claim);
    return is_its ? dlx_shm_cell_unpack(word).state : DLX_SHM_CELL_NEVER;
}

bool dlx__claims_settle(struct dlx_claims *c, uint64_t n, uint64_t claim, enum dlx_claim_end end)
{
    bool returns = end == DLX_CLAIM_RETURNED;
    uint64_t word;
    do {
        word = dlx_load64_acquire(cell_of(c, n));
        if (!is_same(word, claim))
            return false;
    } while (!swap(c, n, word,
                   cell_with_state(word, returns ? DLX_SHM_CELL_RETURNED : DLX_SHM_CELL_DONE)));
    dlx_fence_after_swap(); /* DONE, then the cells of those that finish at the same time */
    if (returns) {
        count(&c->page->returned);
        c->env->ring_group(c->userdata);
        return true;
    }
    if (end != DLX_CLAIM_DONE)
        count(end == DLX_CLAIM_DEAD ? &c->page->dead : &c->page->lost);
    advance(c, n);
    if (atomic_load_explicit(&c->has_left, memory_order_acquire))
        c->env->ring_group(c->userdata); /* others tell the publisher, which has left this link */
    return true;
}

/* Leases are counted in parts, and a renewal is the number of its part, 1 to 15, so that the word
 * comes back after almost two leases at the earliest, however often a worker renews. */
#define LEASE_PARTS       8U
#define LEASE_PART_MIN_NS UINT64_C(1000000)

static uint64_t lease_part_ns(const struct dlx_claims *c)
{
    return DLX_MAX(c->lease_ns / LEASE_PARTS, LEASE_PART_MIN_NS);
}

bool dlx__claims_renew(struct dlx_claims *c, uint64_t n, uint64_t claim, uint64_t now_ns)
{
    uint32_t renewals = (uint32_t)(now_ns / lease_part_ns(c) % 15) + 1;
    for (;;) {
        uint64_t word = dlx_load64_acquire(cell_of(c, n));
        struct dlx_shm_cell cell = dlx_shm_cell_unpack(word);
        if (!is_same(word, claim))
            return false;
        if (cell.renewals == renewals)
            return true;
        cell.renewals = renewals;
        if (swap(c, n, word, dlx_shm_cell_pack(cell)))
            return true;
    }
}

/* ---- what others have ---------------------------------------------------------------------- */

/* Has the cell been the same for as long as a lease lasts, and a part of it, which is how old its
 * renewal may be? `begins`: it was not looked at for so long that the word may have come back
 * meanwhile. */
static bool has_expired(const struct dlx_claims *c, uint32_t at, uint64_t word, uint64_t now_ns,
                        bool begins)
{
    struct dlx_claims_seen *seen = c->seen ? &c->seen[at] : NULL;
    if (!seen)
        return false;
    if (seen->cell != word || begins)
        *seen = (struct dlx_claims_seen){.cell = word, .since_ns = now_ns};
    return now_ns - seen->since_ns >= c->lease_ns + lease_part_ns(c);
}

bool dlx__claims_look(struct dlx_claims *c, uint64_t now_ns)
{
    uint32_t last = 0; /* whose lock was asked for */
    bool alive = false, any = false;
    bool begins = now_ns - c->looked_ns > LEASE_PARTS * lease_part_ns(c);
    c->looked_ns = now_ns;
    /* All cells, also of messages that this worker has yet to pass. */
    for (uint32_t at = 0; at <= c->reader->mask; at++) {
        uint64_t word = dlx_load64_acquire(&c->page->cells[at]);
        struct dlx_shm_cell cell = dlx_shm_cell_unpack(word);
        /* Who gave it back may have died before it said so. */
        c->has_returned |= cell.state == DLX_SHM_CELL_RETURNED;
        if (cell.state != DLX_SHM_CELL_CLAIMED || cell.owner == c->owner)
            continue;
        if (cell.owner != last)
            alive = c->env->is_alive(c->userdata, cell.owner);
        last = cell.owner;
        any = true;
        if ((!alive || has_expired(c, at, word, now_ns, begins)) &&
            swap(c, at, word, cell_with_state(word, DLX_SHM_CELL_RETURNED))) {
            count(&c->page->returned);
            c->env->ring_group(c->userdata);
        }
    }
    advance_all(c); /* who is told of a death may be the first to see that all is done */
    return any;
}

bool dlx__claims_has_unclaimed(struct dlx_claims *c)
{
    struct dlx_reader *r = c->reader;
    if (c->has_returned || has_news(c))
        return true;
    pass_claimed(c);
    uint64_t n = r->cursor + 1, gen = gen_at(c, n);
    return DLX_SHM_NUMBER(gen) >= n && !(DLX_SHM_NUMBER(gen) == n && DLX_SHM_IS_FINAL(gen)) &&
           is_cell_free(look_at(c, n), lap_of(c, n));
}

uint64_t dlx__claims_oldest_ns(struct dlx_claims *c)
{
    const struct dlx_reader *r = c->reader;
    uint64_t n = has_none_returned(c) ? 0 : find_returned(c, 1);
    c->has_returned = n > 0;
    if (n == 0 && !dlx__claims_has_unclaimed(c))
        return 0;
    uint64_t ns = dlx__reader_message_ns(r, n > 0 ? n : r->cursor + 1);
    return DLX_MAX(ns, UINT64_C(1));
}

bool dlx__claims_nothing_there(const struct dlx_claims *c)
{
    const struct dlx_reader *r = c->reader;
    uint64_t n = r->cursor + 1, gen = gen_at(c, n);
    if (c->has_returned || has_news(c))
        return false;
    if (DLX_SHM_NUMBER(gen) != n || !DLX_SHM_IS_FINAL(gen))
        return DLX_SHM_NUMBER(gen) < n;
    /* The end waits for what others have not done: who does the last one rings the group. */
    return done_of(c) < r->cursor;
}

void dlx__claims_close(struct dlx_claims *c)
{
    dlx__claims_disarm(c);
    atomic_store_explicit(&c->has_left, true, memory_order_release);
    dlx_store64_release(&c->reader->page->left_at, dlx__reader_begin(c->reader));
    dlx__reader_close(c->reader);
    c->env->ring_group(c->userdata); /* this worker may have been rung for a message */
}
