/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_RING_READER_H
#define DLX_RING_READER_H

/*
 * The ring reader: the subscriber's half of the data plane, take, hold, release, sleep, as plain code. ring/writer.h
 * is the other half. Nothing that the publisher wrote is believed: words are loaded once and checked.
 *
 * One thread at a time, but dlx__reader_release() may be called by any thread at any time.
 */

#include "ring/entry.h"

struct dlx_taken;

struct dlx_reader_env {
    /* Wake the publisher: it waits for room. Called by any thread that releases. */
    void (*ring)(void *userdata);
    /* Can this message be read, or is the memory that it lies in yet to come? A reliable link
     * does not pass what it cannot read. NULL: always. */
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
    uint32_t n_used;    /* hold words that were ever used */
    uint32_t next_hold; /* where to look for a free one first */
    bool latest;
    bool reliable;
    bool is_bounded; /* see dlx__reader_set_bounded() */
    /* Not for dlx__reader_take_plain(): latest, rings, bounded, or no hold word was used yet. */
    bool is_special;
    bool rings;      /* the publisher may wait for room: tell it when there is some */
    bool is_told;    /* somebody is told of each release: it rings, or is bounded */
    uint64_t sure;   /* if reliable: what is newer is retired only when we have passed it */
    uint64_t cursor; /* the last message passed */
    uint64_t last;   /* the last message taken; at first, where we began */
    /* Messages before the first that were lost on another link: dlx__reader_follow(). */
    uint64_t untold;
    uint64_t sleep_ticket;

    /* Counters, copied to the page for reports. */
    uint64_t taken;
    uint64_t taken_bytes;
    uint64_t skipped;
    uint64_t lost;
};

/* A message that is held: a private copy of what its entry said, not yet checked. */
struct dlx_taken {
    uint64_t n;
    uint64_t gap;  /* messages between the one taken before and this one */
    uint32_t hold; /* index of the hold word: for dlx__reader_release() */
    uint64_t words[DLX_SHM_ENTRY_WORDS];
};

/* After a hold word was cleared, where the publisher may wait for that: ring it if it does. */
void dlx__reader_made_room(struct dlx_reader *r);

/* Let go of a held message, where nobody is told of it (`is_told`). Any thread. */
static inline void dlx__reader_release_quietly(struct dlx_reader *r, uint32_t hold)
{
    /* Partner: free_unheld() loads it, and then lets the payload be written again. */
    dlx_store64_release(&r->page->hold[hold], 0);
}

/* Let go of a held message. Any thread. */
static inline void dlx__reader_release(struct dlx_reader *r, uint32_t hold)
{
    dlx__reader_release_quietly(r, hold);
    if (dlx_unlikely(r->rings))
        dlx__reader_made_room(r);
}

/* Begin on a zeroed link page. `latest` and `reliable` exclude each other. */
void dlx__reader_init(struct dlx_reader *r, const struct dlx_shm_control *control,
                      uint32_t n_entries, struct dlx_shm_link *page, uint32_t link_index,
                      uint32_t max_held, bool latest, bool reliable, bool rings,
                      const struct dlx_reader_env *env, void *userdata);

/* After dlx__reader_init(): the caller counts the bytes that are held, and bounds them. So each message is taken by
 * dlx__reader_take() and released by dlx__reader_release(), then counted. */
static inline void dlx__reader_set_bounded(struct dlx_reader *r)
{
    r->is_bounded = r->is_told = true;
}

/*
 * Store the first cursor: with up to `history` messages that are there already, or, if `from_start`, with all since
 * `base`, the number of the last message that is not in the control block. From here on the publisher waits for us, if we are
 * reliable.
 */
void dlx__reader_start(struct dlx_reader *r, uint32_t history, bool from_start, uint64_t base);

/*
 * Take the next messages, up to `n` (mode LATEST: one). 0 takes none, so if a message is there it returns
 * DLX_E_TOO_MANY_HELD. Ends in bounded time: DLX_E_EMPTY also means that so many
 * messages in a row were gone when we came to them that somebody else should have a turn; dlx__reader_arm() then says
 * that there is something. Returns how many came, at least 1; or DLX_E_EMPTY; DLX_E_NOT_FOUND (the publisher went on with
 * another daemon, and everything here was taken; or the next message cannot be read yet);
 * DLX_E_TOO_MANY_HELD; DLX_E_PUBLISHER_GONE (it closed, and everything was taken);
 * DLX_E_BAD_PEER (values that cannot be; the thread's message tells which). On any error nothing
 * is held.
 */
int dlx__reader_take(struct dlx_reader *r, struct dlx_taken *ret, uint32_t n);

/* Entries are asked for so many messages ahead, when one was there already. */
#define DLX_READER_AHEAD 3U

/* What differs between messages of the same form. */
struct dlx_taken_plain {
    uint64_t n;
    uint64_t gap; /* as of struct dlx_taken */
    uint64_t monotonic_ns;
    uint64_t offset;
    uint32_t arena;
};

/* The same for one message, where nothing is special: its entry has it, it is like `form` (dlx__entry_is_like()), the first
 * hold word, which it gets, is free, the publisher never waits. docs/SHM.md tells the steps; dlx__reader_take() has all
 * of them. False: it is special, and nothing was done, or the message was retired meanwhile. */
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
    dlx_fence(); /* hold word, then gen */
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

/* A message that was taken was handed out: count it. */
static inline void dlx__reader_count(struct dlx_reader *r, uint64_t bytes)
{
    r->taken++;
    r->taken_bytes += bytes;
    dlx_store64_relaxed(&r->page->taken, r->taken);
    dlx_store64_relaxed(&r->page->taken_bytes, r->taken_bytes);
}

/* The newest `n` messages that were taken cannot be read: they are released and count as lost. */
void dlx__reader_lose(struct dlx_reader *r, const struct dlx_taken *taken, uint32_t n);

/*
 * It goes on where another link to the same publisher ended, nothing was taken yet: what is between is lost, what is there twice is
 * skipped. `untold`: so many were lost or skipped there after the last one that was taken; the first message's gap tells of
 * them, too.
 */
void dlx__reader_follow(struct dlx_reader *r, uint64_t cursor, uint64_t untold);

/* Counted before, on a link that has ended: whoever lists links sees it. */
void dlx__reader_add_counters(struct dlx_reader *r, uint64_t taken, uint64_t taken_bytes,
                              uint64_t skipped, uint64_t lost);

/* `to` goes on where `from` ends, so it goes on counting, too: what `from` has counted so far is
 * moved to it. */
void dlx__reader_carry_counters(struct dlx_reader *to, struct dlx_reader *from);

/* The publisher had `n` more messages, on a link that we will not get. */
void dlx__reader_miss(struct dlx_reader *r, uint64_t n);

/* Lost or skipped since the last one that was taken. */
static inline uint64_t dlx__reader_untold(const struct dlx_reader *r)
{
    return r->untold + r->cursor - r->last;
}

/* Is there something that dlx__reader_take() would not call EMPTY? One load: for busy waiting. */
static inline bool dlx__reader_pending(const struct dlx_reader *r)
{
    uint64_t n = r->cursor + 1;
    dlx_atomic_u64 *gen = (dlx_atomic_u64 *)(uintptr_t)&r->control->entries[n & r->mask].gen;
    return DLX_SHM_NUMBER(dlx_load64_relaxed(gen)) >= n;
}

/* Has this one, of another link to the same publisher, newer messages than the other has passed? */
bool dlx__reader_is_past(const struct dlx_reader *r, const struct dlx_reader *other);

/* Before sleeping: ask for a bell. Returns true if there is still nothing, so sleeping is safe. */
bool dlx__reader_arm(struct dlx_reader *r);

/* Leave: takes no more; what is held stays held. */
void dlx__reader_close(struct dlx_reader *r);

/* Has the publisher said that nothing will follow? */
bool dlx__reader_is_closed(const struct dlx_reader *r);

/* Held now. */
uint32_t dlx__reader_n_held(const struct dlx_reader *r);

#endif
