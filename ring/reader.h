/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_RING_READER_H
#define DLX_RING_READER_H

/*
 * The ring reader: the subscriber's half of the data plane (take, hold, release, sleep), without
 * I/O. ring/writer.h is the other half. The reader does not trust the publisher: it loads each word
 * once and checks it.
 *
 * One thread at a time uses a reader, except that any thread may call dlx__reader_release() at any
 * time.
 */

#include "ring/entry.h"

struct dlx_taken;

struct dlx_reader_env {
    /* Wakes the publisher, which waits for room. Any thread that releases a message may call it. */
    void (*ring)(void *userdata);
    /* Is the memory of this message mapped, so that it can be read? A reliable link does not pass a
     * message that it cannot read. NULL: always. */
    bool (*is_readable)(void *userdata, const struct dlx_taken *taken);
};

struct dlx_reader {
    const struct dlx_shm_control *control;
    struct dlx_shm_link *page;
    dlx_atomic_u64 *ticket;
    const struct dlx_reader_env *env;
    void *userdata;

    uint32_t mask; /* entries - 1 */
    uint32_t max_held;
    uint32_t n_used;    /* holds that were ever used */
    uint32_t next_hold; /* where the search for a free hold starts */
    bool latest;
    bool reliable;
    bool is_bounded; /* see dlx__reader_set_bounded() */
    /* Rules out dlx__reader_take_plain(): latest, rings, is_bounded, or no hold was used yet. */
    bool is_special;
    bool rings;          /* the publisher may wait for room: ring it when there is some */
    dlx_atomic_u32 rung; /* the value of `blocked` for which it was rung last */
    bool is_told;        /* each release is reported: rings or is_bounded */
    /* if reliable: newer messages are retired only after the reader has passed them */
    uint64_t sure;
    uint64_t cursor; /* the last message passed */
    uint64_t last;   /* the last message taken; at first, the message before the first */
    /* Messages lost on the previous link that no gap has reported yet: dlx__reader_follow(). */
    uint64_t untold;
    uint64_t sleep_ticket;

    /* Counters, copied to the page for reports. */
    uint64_t taken;
    uint64_t taken_bytes;
    uint64_t skipped;
    uint64_t lost;
};

/* A message that is held: a private, unchecked copy of its entry. */
struct dlx_taken {
    uint64_t n;
    union {
        uint64_t gap;   /* messages between the previously taken one and this one */
        uint64_t claim; /* of a worker: the cell of the message, as ring/claims.h has stored it */
    };
    uint32_t hold; /* index of the hold, for dlx__reader_release() */
    uint64_t words[DLX_SHM_ENTRY_WORDS];
};

/* Rings the publisher if it waits for room. Called after a hold was cleared. */
void dlx__reader_made_room(struct dlx_reader *r);

/* Releases a held message on a link without `is_told`. Any thread may call it. */
static inline void dlx__reader_release_quietly(struct dlx_reader *r, uint32_t hold)
{
    /* Partner: free_unheld() loads the hold, and then allows writes to the payload. */
    dlx_store64_release(&r->page->hold[hold], 0);
}

/* Releases a held message. Any thread may call it. */
static inline void dlx__reader_release(struct dlx_reader *r, uint32_t hold)
{
    dlx__reader_release_quietly(r, hold);
    if (dlx_unlikely(r->rings))
        dlx__reader_made_room(r);
}

/* On a zeroed link page. `base` is the last message before those in the control block. `latest` and
 * `reliable` exclude each other. */
void dlx__reader_init(struct dlx_reader *r, const struct dlx_shm_control *control,
                      uint32_t n_entries, uint64_t base, struct dlx_shm_link *page,
                      uint32_t link_index, uint32_t max_held, bool latest, bool reliable,
                      bool rings, const struct dlx_reader_env *env, void *userdata);

/* Called after dlx__reader_init() if the caller limits the bytes that are held. Each message is
 * then taken by dlx__reader_take(), released by dlx__reader_release(), and counted by the
 * caller. */
static inline void dlx__reader_set_bounded(struct dlx_reader *r)
{
    r->is_bounded = r->is_told = true;
}

/* Stores the first cursor. The reader gets up to `history` messages that are already there. From
 * now on the publisher waits for this reader if it is reliable. */
void dlx__reader_start(struct dlx_reader *r, uint64_t history);
/* The `history` that means all messages since `base`. */
#define DLX_READER_ALL UINT64_MAX

/*
 * Takes up to `n` next messages (one in mode LATEST). With `n` 0 it takes none and returns
 * DLX_E_TOO_MANY_HELD if there is a message. It ends in bounded time. Returns the number of
 * messages, at least 1, or an error, and then holds nothing:
 *
 *     DLX_E_EMPTY           nothing to take; or so many messages in a row were already retired that
 *                           other links should have a turn, and dlx__reader_arm() returns false
 *     DLX_E_NOT_FOUND       the publisher moved to another daemon and everything here was taken, or
 *                           the next message cannot be read yet
 *     DLX_E_TOO_MANY_HELD   no hold is free
 *     DLX_E_PUBLISHER_GONE  the publisher closed and everything was taken
 *     DLX_E_BAD_PEER        impossible values; the thread's message names them
 */
int dlx__reader_take(struct dlx_reader *r, struct dlx_taken *ret, uint32_t n);

/* How many messages ahead entries are prefetched after a message was found. */
#define DLX_READER_AHEAD 3U

/* What differs between messages of the same form. */
struct dlx_taken_plain {
    uint64_t n;
    uint64_t gap; /* as in struct dlx_taken */
    uint64_t monotonic_ns;
    uint64_t offset;
    uint32_t arena;
};

/*
 * A fast path of dlx__reader_take() for one message. It requires that the message is there and
 * matches `form` (dlx__entry_is_like()), that the first hold, which it gets, is free, and that the
 * publisher never waits. docs/SHM.md lists the steps; dlx__reader_take() has all of them. Returns
 * false, without a change, if a condition does not hold or the message was retired meanwhile.
 */
static inline __attribute__((always_inline)) bool
dlx__reader_take_plain(struct dlx_reader *r, const struct dlx_entry_form *form,
                       struct dlx_taken_plain *ret)
{
    uint64_t n = r->cursor + 1, words[DLX_SHM_ENTRY_WORDS];
    struct dlx_shm_entry *entry =
        (struct dlx_shm_entry *)(uintptr_t)&r->control->entries[n & r->mask];
    dlx_atomic_u64 *hold = &r->page->hold[0];
    if (dlx_unlikely(dlx_load64_acquire(&entry->gen) != n || r->is_special ||
                     dlx_load64_acquire(hold) != 0))
        return false;
#pragma GCC unroll 7
    for (uint32_t i = 0; i < DLX_SHM_ENTRY_WORDS; i++)
        words[i] = dlx_load64_relaxed(&entry->words[i]);
    if (dlx_unlikely(!dlx__entry_is_like(words, form)))
        return false;
    dlx_store64_relaxed(hold, n);
    dlx_fence(); /* store of the hold, then load of gen */
    if (dlx_unlikely(dlx_load64_relaxed(&entry->gen) != n)) {
        dlx_store64_release(hold, 0);
        return false;
    }
    dlx_store64_release(&r->page->cursor, n);
    *ret = (struct dlx_taken_plain){.n = n,
                                    .gap = r->untold + r->cursor - r->last,
                                    .monotonic_ns = words[0],
                                    .offset = dlx__entry_offset(words),
                                    .arena = dlx__entry_arena(words)};
    r->untold = 0;
    r->cursor = r->last = n;
    return true;
}

/* Counts a taken message that was handed to the caller. */
static inline void dlx__reader_count(struct dlx_reader *r, uint64_t bytes)
{
    r->taken++;
    r->taken_bytes += bytes;
    dlx_store64_relaxed(&r->page->taken, r->taken);
    dlx_store64_relaxed(&r->page->taken_bytes, r->taken_bytes);
}

/* Releases the newest `n` taken messages, which cannot be read, and counts them as lost. */
void dlx__reader_lose(struct dlx_reader *r, const struct dlx_taken *taken, uint32_t n);

/* Called between dlx__reader_init() and dlx__reader_start() if dlx__reader_follow() will be called:
 * until then, reports count no messages as gone on this link. */
void dlx__reader_wait(struct dlx_reader *r);

/*
 * Continues where another link to the same publisher ended. No message was taken on this link
 * yet. Messages between the two links are lost; duplicates are skipped. `untold` messages were
 * lost or skipped on the other link after its last taken one; the gap of the first message
 * includes them.
 */
void dlx__reader_follow(struct dlx_reader *r, uint64_t cursor, uint64_t untold);

struct dlx_reader_counters {
    uint64_t taken;
    uint64_t taken_bytes;
    uint64_t skipped;
    uint64_t lost;
};

static inline struct dlx_reader_counters dlx__reader_counters(const struct dlx_reader *r)
{
    return (struct dlx_reader_counters){r->taken, r->taken_bytes, r->skipped, r->lost};
}

/* Adds counters of an ended link, so that lists of links show them. */
void dlx__reader_add_counters(struct dlx_reader *r, const struct dlx_reader_counters *more);

/* Moves the counters of `from` to `to`, which continues the stream of `from`. */
void dlx__reader_move_counters(struct dlx_reader *to, struct dlx_reader *from);

/* The publisher had `n` more messages, on a link that this subscription will not get. */
void dlx__reader_miss(struct dlx_reader *r, uint64_t n);

/* The number of messages that this reader can never get and has yet to count as missed. `before` is
 * the link that has its turn before this one, and counts what is gone there; NULL: none. 0 if the
 * publisher claims an impossible number. */
uint64_t dlx__reader_n_gone(const struct dlx_reader *r, const struct dlx_reader *before);

/* Passes and counts these messages: the reader takes none any more. */
void dlx__reader_miss_gone(struct dlx_reader *r);

/* The last message passed. */
static inline uint64_t dlx__reader_cursor(const struct dlx_reader *r)
{
    return r->cursor;
}

/* Its control block, and the entries there. */
static inline const struct dlx_shm_control *dlx__reader_control(const struct dlx_reader *r)
{
    return r->control;
}
static inline uint32_t dlx__reader_n_entries(const struct dlx_reader *r)
{
    return r->mask + 1;
}

/* Where the payload of message n lies in its arena. Any number, if it is not there. */
static inline uint64_t dlx__reader_offset(const struct dlx_reader *r, uint64_t n)
{
    const struct dlx_shm_entry *entry = &r->control->entries[n & r->mask];
    return dlx_load64_relaxed((dlx_atomic_u64 *)(uintptr_t)&entry->words[1]);
}

/* Holds that were ever used, and that there may be. */
static inline uint32_t dlx__reader_n_used(const struct dlx_reader *r)
{
    return r->n_used;
}
static inline uint32_t dlx__reader_max_held(const struct dlx_reader *r)
{
    return r->max_held;
}

/* Is it in mode LATEST? */
static inline bool dlx__reader_is_latest(const struct dlx_reader *r)
{
    return r->latest;
}

/* See dlx__reader_set_bounded(). */
static inline bool dlx__reader_is_bounded(const struct dlx_reader *r)
{
    return r->is_bounded;
}

/* Is each release to be reported, by dlx__reader_release()? Else dlx__reader_release_quietly() is
 * enough. */
static inline bool dlx__reader_is_told(const struct dlx_reader *r)
{
    return r->is_told;
}

/* The number of messages lost or skipped since the last one taken. */
static inline uint64_t dlx__reader_untold(const struct dlx_reader *r)
{
    return r->untold + r->cursor - r->last;
}

/* Messages that were published after the last one passed. 0 if the publisher claims an impossible
 * number. */
uint64_t dlx__reader_n_left(const struct dlx_reader *r);

/* When was the newest message published that was not passed? 0: there is none, or it was retired
 * meanwhile. */
uint64_t dlx__reader_newest_ns(const struct dlx_reader *r);
/* When was message n published? 0: it was retired meanwhile. */
uint64_t dlx__reader_message_ns(const struct dlx_reader *r, uint64_t n);
/* In mode LATEST: passes everything that is there, since another publisher has something newer. */
void dlx__reader_pass(struct dlx_reader *r);

/* Would dlx__reader_take() return anything but EMPTY? Costs one load, for busy waiting. */
static inline bool dlx__reader_pending(const struct dlx_reader *r)
{
    uint64_t n = r->cursor + 1;
    dlx_atomic_u64 *gen = (dlx_atomic_u64 *)(uintptr_t)&r->control->entries[n & r->mask].gen;
    return DLX_SHM_NUMBER(dlx_load64_relaxed(gen)) >= n;
}

/* Has `next`, which goes on with the stream of `r`, taken nothing that `r` has not passed? */
static inline bool dlx__reader_begins_by(const struct dlx_reader *next, const struct dlx_reader *r)
{
    return next->last <= r->cursor;
}

/* Does this link have newer messages than `other`, a link to the same publisher, has passed? */
bool dlx__reader_is_past(const struct dlx_reader *r, const struct dlx_reader *other);

/* Asks for a bell before sleeping. Returns true if there is still no message, so that sleeping is
 * safe. */
bool dlx__reader_arm(struct dlx_reader *r);

/*
 * Which GPU memory has the publisher freed since `*seen`, a count that becomes what it is now?
 * Returns the number of ids; DLX_READER_FREED_MANY: so many that their ids are not known. Called
 * after dlx__reader_arm(), it misses none: a later one rings.
 */
dlx_for_gpu uint32_t dlx__reader_freed(const struct dlx_reader *r, uint64_t *seen,
                                       uint64_t ret_ids[DLX_SHM_FREED]);
#define DLX_READER_FREED_MANY DLX_SHM_FREED

/* ---- for ring/claims.c ---------------------------------------------------------------------- */

/* Called after stores that may unblock the publisher, and a fence. Partner:
 * dlx__writer_set_blocked(), which is followed by a reclaim. */
void dlx__reader_ring_if_blocked(struct dlx_reader *r);
/* The newest message, for a reader that starts. */
uint64_t dlx__reader_begin(const struct dlx_reader *r);
/* Finds a free hold. Returns false if all are in use. */
bool dlx__reader_find_hold(struct dlx_reader *r, uint32_t *ret);
/* Copies message n, which its entry was seen to have, and stores its number in `ret->hold`. */
void dlx__reader_hold(struct dlx_reader *r, uint64_t n, struct dlx_taken *ret);

/* Leaves the ring: takes no more messages. Held messages stay held. */
void dlx__reader_close(struct dlx_reader *r);

/* Has the publisher marked the end of its messages? */
bool dlx__reader_is_closed(const struct dlx_reader *r);
/* Was everything taken that the publisher wrote before it moved to another daemon? */
bool dlx__reader_is_left(const struct dlx_reader *r);

/* The number of messages held now. */
uint32_t dlx__reader_n_held(const struct dlx_reader *r);

#endif
