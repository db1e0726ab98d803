/* SPDX-License-Identifier: Apache-2.0 */
#include "ring/reader.h"
#include "common/error.h"
#include <assert.h>
#include <inttypes.h>
#include <string.h>

/* The publisher writes these words; they are const because the reader maps the page read-only. */
static dlx_atomic_u64 *word(const dlx_atomic_u64 *w)
{
    return (dlx_atomic_u64 *)(uintptr_t)w;
}

static const struct dlx_shm_entry *entry_of(const struct dlx_reader *r, uint64_t n)
{
    return &r->control->entries[n & r->mask];
}

static uint64_t gen_of(const struct dlx_reader *r, uint64_t n)
{
    return dlx_load64_acquire(word(&entry_of(r, n)->gen));
}

/* Caps the head at DLX_SHM_MOVED, which stands for every impossible value. No cursor comes near
 * that number, and the number after UINT64_MAX would be 0, the value of a free hold. */
static uint64_t head_of(const struct dlx_reader *r)
{
    return DLX_MIN(dlx_load64_acquire(word(&r->control->head)), DLX_SHM_MOVED);
}

void dlx__reader_init(struct dlx_reader *r, const struct dlx_shm_control *control,
                      uint32_t n_entries, uint64_t base, struct dlx_shm_link *page,
                      uint32_t link_index, uint32_t max_held, bool latest, bool reliable,
                      bool rings, const struct dlx_reader_env *env, void *userdata)
{
    assert(n_entries >= 4 && (n_entries & (n_entries - 1)) == 0);
    assert(max_held > 0 && !(latest && reliable));
    *r = (struct dlx_reader){
        .control = control,
        .mask = n_entries - 1,
        .page = page,
        .ticket = dlx_shm_ticket(page, link_index),
        .env = env,
        .userdata = userdata,
        .max_held = max_held,
        .latest = latest,
        .reliable = reliable,
        .rings = rings,
        .is_told = rings,
        .is_special = true,
        .sure = UINT64_MAX,
        .last = base,
    };
}

void dlx__reader_ring_if_blocked(struct dlx_reader *r)
{
    uint32_t blocked = dlx_load32_relaxed((dlx_atomic_u32 *)(uintptr_t)&r->control->blocked);
    if (dlx_likely(blocked == 0))
        return;
    /* Of threads that release at the same time one rings, or all do. A thread that does not ring
     * made room before the publisher stores another number, and so before it looks. */
    if (blocked != DLX_SHM_BLOCKED_ALWAYS && dlx_load32_relaxed(&r->rung) == blocked)
        return;
    dlx_store32_relaxed(&r->rung, blocked);
    r->env->ring(r->userdata);
}

/* Passes everything up to `n` without taking a message. */
static void set_cursor(struct dlx_reader *r, uint64_t n)
{
    r->cursor = n;
    dlx_store64_release(&r->page->cursor, n);
    if (r->rings) {
        dlx_fence();
        dlx__reader_ring_if_blocked(r);
    }
}

/* ---- start and go on ------------------------------------------------------------------------ */

/* Returns the newest message. `head` may be one batch behind, so the entries after it decide. A
 * publisher that stores a later entry sees that this reader has joined. */
static uint64_t find_newest(const struct dlx_reader *r)
{
    uint64_t head = head_of(r);
    for (uint32_t steps = 0; steps <= r->mask; steps++) {
        uint64_t gen = gen_of(r, head + 1), n = DLX_SHM_NUMBER(gen);
        if (n == head + 1 && !DLX_SHM_IS_FINAL(gen))
            head++;
        else if (n > head + 1) /* lapped meanwhile: head has moved on */
            head = DLX_MAX(head, head_of(r));
        else
            break;
    }
    return head;
}

uint64_t dlx__reader_begin(const struct dlx_reader *r)
{
    dlx_fence(); /* partner: an announcing writer stores gen, then reads `joins` */
    return find_newest(r);
}

void dlx__reader_start(struct dlx_reader *r, uint64_t history)
{
    uint64_t newest = dlx__reader_begin(r);
    /* the publisher stores gen of later messages, then sees this reader: dlx__writer_announce() */
    if (r->reliable)
        r->sure = newest;
    r->last = DLX_MAX(r->last, newest - DLX_MIN(newest, history));
    set_cursor(r, r->last);
    dlx_store32_release(&r->page->started, 1);
    dlx_fence();
    dlx__reader_ring_if_blocked(
        r); /* even if not `rings`: dlx_publisher_wait() waits for new links */
}

/* The value of `passing` while another link has its turn. */
#define WAITS UINT64_MAX

/* Counts `n` messages that were missed. The cursor is to pass them, if it has not: `to`. Reports
 * read the words in the order of the page, so each store is a release. */
static void count_missed(struct dlx_reader *r, uint64_t n, uint64_t to)
{
    /* In mode LATEST nothing is lost: a newer message is there. */
    uint64_t *count = r->latest ? &r->skipped : &r->lost;
    *count += n;
    dlx_store64_release(&r->page->missed, *count);
    if (dlx_load64_relaxed(&r->page->passing) != WAITS)
        dlx_store64_release(&r->page->passing, to);
    dlx_store64_release(r->latest ? &r->page->skipped : &r->page->lost, *count);
}

void dlx__reader_miss(struct dlx_reader *r, uint64_t n)
{
    count_missed(r, n, r->cursor);
}

/* Misses all messages up to `n`. */
static void miss_up_to(struct dlx_reader *r, uint64_t n)
{
    count_missed(r, n - r->cursor, n);
    set_cursor(r, n);
}

uint64_t dlx__reader_n_gone(const struct dlx_reader *r, const struct dlx_reader *before)
{
    uint64_t passed = before ? before->cursor + dlx__reader_n_left(before) : r->cursor;
    uint64_t oldest = dlx_load64_acquire(word(&r->control->oldest)), head = head_of(r);
    if (head >= DLX_SHM_MOVED)
        return 0;
    /* What is between the two links comes by none of them. */
    return dlx_shm_progress(passed, DLX_MAX(oldest, r->cursor + 1), DLX_MAX(head, r->cursor)).gone;
}

void dlx__reader_miss_gone(struct dlx_reader *r)
{
    uint64_t n = dlx__reader_n_gone(r, NULL);
    if (n > 0)
        miss_up_to(r, r->cursor + n);
}

void dlx__reader_wait(struct dlx_reader *r)
{
    dlx_store64_release(&r->page->passing, WAITS);
}

void dlx__reader_follow(struct dlx_reader *r, uint64_t cursor, uint64_t untold)
{
    cursor = DLX_MIN(cursor, DLX_SHM_MOVED); /* the peer may have supplied an impossible value */
    if (r->last > cursor) {
        dlx__reader_miss(r, r->last - cursor);
        r->last = cursor; /* the first message reports the gap */
    } else if (cursor > r->cursor) {
        r->last = cursor;
        set_cursor(r, cursor);
    }
    r->untold = untold;
    dlx_store64_release(&r->page->passing, 0);
}

static void show_counters(const struct dlx_reader *r)
{
    dlx_store64_release(&r->page->missed, r->latest ? r->skipped : r->lost);
    dlx_store64_relaxed(&r->page->taken, r->taken);
    dlx_store64_relaxed(&r->page->taken_bytes, r->taken_bytes);
    dlx_store64_relaxed(&r->page->skipped, r->skipped);
    dlx_store64_relaxed(&r->page->lost, r->lost);
}

void dlx__reader_add_counters(struct dlx_reader *r, const struct dlx_reader_counters *more)
{
    r->taken += more->taken;
    r->taken_bytes += more->taken_bytes;
    r->skipped += more->skipped;
    r->lost += more->lost;
    show_counters(r);
}

void dlx__reader_move_counters(struct dlx_reader *to, struct dlx_reader *from)
{
    const struct dlx_reader_counters moved = dlx__reader_counters(from);
    dlx__reader_add_counters(to, &moved);
    from->taken = from->taken_bytes = from->skipped = from->lost = 0;
    show_counters(from);
}

/* ---- hold words ---------------------------------------------------------------------------- */

static bool is_free(const struct dlx_reader *r, uint32_t hold)
{
    /* Acquire: the thread that released the hold is done with the payload and with the word. */
    return dlx_load64_acquire(word(&r->page->hold[hold])) == 0;
}

/* Prefers the lowest hold, so that the publisher scans few of them. */
bool dlx__reader_find_hold(struct dlx_reader *r, uint32_t *ret)
{
    if (dlx_likely(is_free(r, 0))) {
        *ret = 0;
    } else {
        uint32_t i = 0;
        for (; i < r->n_used; i++) {
            r->next_hold = r->next_hold + 1 >= r->n_used ? 0 : r->next_hold + 1;
            if (is_free(r, r->next_hold)) {
                *ret = r->next_hold;
                return true;
            }
        }
        if (r->n_used == r->max_held)
            return false;
        *ret = r->n_used;
    }
    if (dlx_unlikely(*ret >= r->n_used)) {
        r->n_used = *ret + 1;
        r->is_special = r->latest || r->rings || r->is_bounded;
        dlx_store64_release(&r->page->n_used, r->n_used);
    }
    return true;
}

void dlx__reader_made_room(struct dlx_reader *r)
{
    dlx_fence();
    dlx__reader_ring_if_blocked(r);
}

uint32_t dlx__reader_n_held(const struct dlx_reader *r)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_used; i++)
        n += dlx_load64_relaxed(word(&r->page->hold[i])) != 0;
    return n;
}

/* ---- take ---------------------------------------------------------------------------------- */

bool dlx__reader_is_left(const struct dlx_reader *r)
{
    uint64_t n = r->cursor + 1;
    return gen_of(r, n) == (n | DLX_SHM_MOVED);
}

bool dlx__reader_is_closed(const struct dlx_reader *r)
{
    uint64_t n = find_newest(r) + 1;
    return gen_of(r, n) == (n | DLX_SHM_END);
}

uint64_t dlx__reader_n_left(const struct dlx_reader *r)
{
    uint64_t newest = find_newest(r);
    return newest < DLX_SHM_MOVED ? newest - DLX_MIN(newest, r->cursor) : 0;
}

uint64_t dlx__reader_newest_ns(const struct dlx_reader *r)
{
    uint64_t n = find_newest(r);
    return n > r->cursor ? dlx__reader_message_ns(r, n) : 0;
}

uint64_t dlx__reader_message_ns(const struct dlx_reader *r, uint64_t n)
{
    if (gen_of(r, n) != n)
        return 0;
    uint64_t ns = dlx_load64_relaxed(word(&entry_of(r, n)->words[0]));
    dlx_fence(); /* load of the word, then of gen: the words are rewritten after gen has changed */
    return gen_of(r, n) == n ? ns : 0;
}

bool dlx__reader_is_past(const struct dlx_reader *r, const struct dlx_reader *other)
{
    uint64_t newest = find_newest(r);
    return newest > other->cursor && newest > find_newest(other);
}

/* Called if the next entry does not have the next message. Returns 0 if messages were lost and the
 * search continues after them, else the reason. */
static int look_further(struct dlx_reader *r, uint64_t n, uint64_t gen)
{
    uint64_t found = DLX_SHM_NUMBER(gen);
    if (dlx_likely(found < n))
        return DLX_E_EMPTY;
    if (found == n && DLX_SHM_IS_FINAL(gen))
        return gen & DLX_SHM_END ? DLX_E_PUBLISHER_GONE : DLX_E_NOT_FOUND;
    uint64_t oldest = dlx_load64_acquire(word(&r->control->oldest)), head = head_of(r);
    /* An entry is at most one batch ahead of head. */
    if (head >= DLX_SHM_MOVED || found > head + r->mask + 1)
        return dlx__fail(DLX_E_BAD_PEER,
                         "entry of message %" PRIu64 " claims %" PRIu64 ", and head is %" PRIu64, n,
                         gen, head);
    uint64_t next = n + 1;
    if (oldest > next &&
        oldest <= head + 1) /* only saves steps: the entry that it names is checked, too */
        next = oldest;
    miss_up_to(r, next - 1);
    return 0;
}

/* In mode LATEST, with message n in the ring: returns the number of the newest message. */
static uint64_t skip_to_newest(struct dlx_reader *r, uint64_t n)
{
    if (DLX_SHM_NUMBER(gen_of(r, n + 1)) <= n)
        return n;
    uint64_t head = head_of(r);
    if (head <= n || head >= DLX_SHM_MOVED)
        return n;
    miss_up_to(r, head - 1);
    return head;
}

void dlx__reader_pass(struct dlx_reader *r)
{
    uint64_t n = dlx__reader_n_left(r);
    if (n > 0)
        miss_up_to(r, r->cursor + n);
}

/* Copies message n, which its entry was seen to have, and stores its hold. */
static inline void copy_and_hold(struct dlx_reader *r, uint64_t n, struct dlx_taken *ret)
{
    const struct dlx_shm_entry *entry = entry_of(r, n);
#pragma GCC unroll 7
    for (uint32_t i = 0; i < DLX_SHM_ENTRY_WORDS; i++)
        ret->words[i] = dlx_load64_relaxed(word(&entry->words[i]));
    ret->n = n;
    dlx_store64_relaxed(&r->page->hold[ret->hold], n);
}

void dlx__reader_hold(struct dlx_reader *r, uint64_t n, struct dlx_taken *ret)
{
    copy_and_hold(r, n, ret);
}

/* A reliable link does not pass a message that it cannot read yet: the publisher keeps the message
 * for this link, or for the link's successor at the next daemon. */
static inline bool is_readable(const struct dlx_reader *r, const struct dlx_taken *taken)
{
    return !r->reliable || !r->env->is_readable || r->env->is_readable(r->userdata, taken);
}

/* Drops those of `got` messages that were retired before their holds became visible. Messages are
 * retired in order, so these are the first ones. */
static uint32_t drop_gone(struct dlx_reader *r, struct dlx_taken *taken, uint32_t got)
{
    uint32_t n_gone = 0;
    /* Relaxed: a fence came before. Partner: dlx__writer_retire_in(), which stores GONE before it
     * loads holds. */
    while (n_gone < got &&
           dlx_load64_relaxed(word(&entry_of(r, taken[n_gone].n)->gen)) != taken[n_gone].n)
        n_gone++;
    if (dlx_likely(n_gone == 0))
        return got;
    for (uint32_t i = 0; i < n_gone; i++)
        dlx__reader_release(r, taken[i].hold);
    count_missed(r, n_gone, taken[n_gone - 1].n);
    memmove(taken, taken + n_gone, (got - n_gone) * sizeof *taken);
    return got - n_gone;
}

int dlx__reader_take(struct dlx_reader *r, struct dlx_taken *ret, uint32_t count)
{
    /* Two rings exceed the distance to an honest head, and a head that runs away, or a publisher as
     * fast as the reader, cannot keep it here. */
    for (uint32_t misses = 0; misses < 2 * (r->mask + 1); misses++) {
        uint64_t n = r->cursor + 1, gen = gen_of(r, n);
        if (dlx_unlikely(gen != n)) {
            int why = look_further(r, n, gen);
            if (why < 0)
                return why;
            continue;
        }
        if (dlx_unlikely(count == 0))
            return dlx__fail(DLX_E_TOO_MANY_HELD, "no more bytes may be held");
        if (dlx_unlikely(r->latest)) {
            count = 1;
            n = skip_to_newest(r, n);
            if (gen_of(r, n) != n)
                continue;
        }
        uint32_t got = 0;
        do {
            if (dlx_unlikely(!dlx__reader_find_hold(r, &ret[got].hold)))
                break;
            copy_and_hold(r, n + got, &ret[got]);
            if (dlx_unlikely(!is_readable(r, &ret[got]))) {
                dlx__reader_release(r, ret[got].hold);
                if (got == 0)
                    return DLX_E_NOT_FOUND;
                break;
            }
            got++;
        } while (got < count && gen_of(r, n + got) == n + got);
        if (dlx_unlikely(got == 0))
            return dlx__fail(DLX_E_TOO_MANY_HELD, "all %u hold words are in use", r->max_held);
        uint64_t newest = n + got - 1;
        /*
         * Messages that follow the join of a reliable link are not retired before the link has
         * passed them, so their copies are whole, and the holds are stored before the cursor. For
         * other messages the check after the fence shows whether the holds came in time. A message
         * that the cursor has passed may be GONE for that reason, so the cursor is stored after the
         * check.
         */
        bool sure = n > r->sure;
        if (sure)
            dlx_store64_release(&r->page->cursor, newest);
        dlx_fence(); /* stores of holds and cursor, then loads of gen and `blocked` */
        if (!sure) {
            got = drop_gone(r, ret, got);
            dlx_store64_release(&r->page->cursor, newest);
            if (dlx_unlikely(r->reliable))
                dlx_fence(); /* the publisher may wait for the cursor */
        }
        r->cursor = newest;
        if (r->rings)
            dlx__reader_ring_if_blocked(r);
        if (dlx_unlikely(got == 0))
            continue;
        for (uint32_t i = 0; i < got; i++) {
            ret[i].gap = r->untold + ret[i].n - r->last - 1;
            r->last = ret[i].n;
            r->untold = 0;
        }
        __builtin_prefetch(entry_of(r, newest + DLX_READER_AHEAD));
        return (int)got;
    }
    return DLX_E_EMPTY;
}

void dlx__reader_lose(struct dlx_reader *r, const struct dlx_taken *taken, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        dlx__reader_release(r, taken[i].hold);
    r->last = taken->n - taken->gap - 1; /* the next message reports the gap */
    dlx__reader_miss(r, n);
}

/* ---- sleep and leave ----------------------------------------------------------------------- */

bool dlx__reader_arm(struct dlx_reader *r)
{
    /* Partner: dlx__writer_ring_sleepers(), called after gen or a mark was stored. */
    dlx_store64_relaxed(r->ticket, ++r->sleep_ticket);
    dlx_fence();
    return !dlx__reader_pending(r);
}

uint32_t dlx__reader_freed(const struct dlx_reader *r, uint64_t *seen,
                           uint64_t ret_ids[DLX_SHM_FREED])
{
    struct dlx_shm_control *control = (struct dlx_shm_control *)(uintptr_t)r->control;
    /* Partner: dlx__writer_note_freed() stored the id before. */
    uint64_t first = *seen, n = dlx_load64_acquire(&control->n_freed);
    *seen = n;
    if (dlx_likely(n == first))
        return 0;
    if (n - first >= DLX_SHM_FREED)
        return DLX_READER_FREED_MANY;
    for (uint32_t i = 0; i < n - first; i++)
        ret_ids[i] = dlx_load64_relaxed(&control->freed[(first + i) % DLX_SHM_FREED]);
    dlx_fence();
    /* The next id is stored before n_freed says so: one less than there is room for is safe. */
    return dlx_load64_relaxed(&control->n_freed) - first < DLX_SHM_FREED ? (uint32_t)(n - first)
                                                                         : DLX_READER_FREED_MANY;
}

void dlx__reader_close(struct dlx_reader *r)
{
    dlx_store64_release(&r->page->cursor, DLX_SHM_CURSOR_CLOSED);
    dlx_fence();
    dlx__reader_ring_if_blocked(r);
}
