/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_TAKE_H
#define DLX_COMMON_TAKE_H

/*
 * The subscriber's half of the data plane: take, hold, release, sleep, as plain code. common/publish.h
 * is the other half. Nothing that the publisher wrote is believed: words are loaded once and checked.
 *
 * One thread at a time, but dlx__take_release() may be called by any thread at any time.
 */

#include "common/shm.h"

struct dlx_take_env {
    /* Wake the publisher: it waits for room. Called by any thread that releases. */
    void (*ring)(void *userdata);
};

struct dlx_take {
    /* The block that we are in. Releases on other threads look at it, too. */
    _Atomic(const struct dlx_shm_control *) control;
    const dlx_atomic_u32 *ring;
    const struct dlx_shm_slot *slots;
    struct dlx_shm_link *page;
    dlx_atomic_u64 *ticket;
    const struct dlx_take_env *env;
    void *userdata;

    uint32_t n_slots;
    uint32_t ring_mask;
    uint32_t max_held;
    uint32_t next_hold; /* where to look for a free hold word first */
    bool latest;
    bool reliable;
    bool never_rings; /* its publisher never waits for room: set after dlx__take_init(), or not */
    bool
        stays; /* latest, in a block that its publisher has left: there is nothing newer elsewhere */
    uint64_t word;   /* of head, when it was looked at last; 0: not yet, here */
    uint64_t cursor; /* the last message passed */
    uint64_t last;   /* the last message taken; at first, where we began */
    uint64_t passed; /* up to here everything was passed on another link: dlx__take_follow() */
    uint64_t untold; /* messages before the first that were lost on that link, for its gap */
    uint64_t sleep_ticket;
    uint64_t n_forms; /* given to messages: dlx_taken.form */

    /* Counters, copied to the page's report lines. */
    uint64_t taken;
    uint64_t skipped;
    uint64_t lost;
};

/* A control block that the daemon announced. */
struct dlx_take_block {
    const struct dlx_shm_control *control;
    uint64_t base; /* the number of the last message before it, as its publisher said */
    uint32_t n_slots;
    uint32_t id;
    uint64_t size; /* bytes */
};

/* A message that is held: a private copy of what its slot said, not yet checked against arenas. Zero before the first. */
struct dlx_taken {
    uint64_t n;
    uint64_t gap; /* messages between the one taken before and this one */
    uint64_t time_ns;
    uint32_t hold; /* index of the hold word: for dlx__take_release() */
    uint32_t n_tensors;
    uint32_t flags;               /* enum dlx_shm_slot_flags */
    struct dlx_shm_record record; /* unless flags has MANIFEST */
    uint64_t manifest_offset;     /* if it has */
    uint64_t manifest_size;
    uint32_t manifest_arena;
    int64_t shape[DLX_SHM_NDIM_INLINE];   /* record.ndim of them */
    int64_t strides[DLX_SHM_NDIM_INLINE]; /* likewise */
    /* A number for what record, shape and strides say, arena and offset aside. 0: for none, always so unless ROW_MAJOR. Messages of a
     * stream are alike, and what was found out about one need not be found out about the next. */
    uint64_t form;
    uint64_t brief[4]; /* the words of a brief that say the same; 0: none */
};

/* Begin on a zeroed link page. `latest` and `reliable` exclude each other. */
void dlx__take_init(struct dlx_take *take, const struct dlx_shm_control *control, uint32_t n_slots,
                    struct dlx_shm_link *page, uint32_t link_index, uint32_t max_held, bool latest,
                    bool reliable, const struct dlx_take_env *env, void *userdata);

/*
 * Where to start: with up to `history` messages that are there already, or with all if `from_start`. Blocks are in the
 * order of their bases, at least one. Returns the index of the block to start in.
 */
uint32_t dlx__take_choose(const struct dlx_take_block *blocks, uint32_t n_blocks, uint32_t history,
                          bool from_start, uint64_t *ret_cursor);

/* Was nothing put into it before its publisher left it? Another one that begins there follows, or it never went there. */
bool dlx__take_block_is_dead(const struct dlx_take_block *block);

/* Is there no message in it? */
bool dlx__take_block_is_empty(const struct dlx_take_block *block);

/* The first cursor: from here on the publisher waits for us, if we are reliable. */
void dlx__take_start(struct dlx_take *take, uint64_t cursor);

/*
 * Go on in another block, whose first message comes after number `base`. Messages up to there that were not
 * taken are lost, since their block has gone, or skipped, if only the latest is wanted. The old block stays mapped until no release can be looking at it. Returns
 * 0; DLX_E_BAD_PEER (`base` was passed before).
 */
int dlx__take_move(struct dlx_take *take, const struct dlx_shm_control *control, uint32_t n_slots,
                   uint64_t base);

/*
 * Take the next message. Ends in bounded time: DLX_E_EMPTY also means that so many messages in a row were gone
 * when we came to them that somebody else should have a turn; dlx__take_arm() then says that there is
 * something. Returns 0; DLX_E_EMPTY; DLX_E_NOT_FOUND (the publisher has moved to another block, and everything in
 * this one was taken, or is not the latest: dlx__take_move(), or dlx__take_stay()); DLX_E_TOO_MANY_HELD; DLX_E_PUBLISHER_GONE (it closed,
 * and everything was taken); DLX_E_BAD_PEER (values that cannot be; the thread's message tells which).
 * On any error nothing is held.
 */
int dlx__take_next(struct dlx_take *take, struct dlx_taken *ret);

/*
 * It goes on where another link to the same publisher ended, nothing was taken yet: what is between is lost, what is there twice is
 * passed over. `untold`: so many were lost or skipped there after the last one that was taken; the first message's gap tells of
 * them, too.
 */
void dlx__take_follow(struct dlx_take *take, uint64_t cursor, uint64_t untold);

/* The publisher had `n` more messages, on a link that we will not get. */
void dlx__take_miss(struct dlx_take *take, uint64_t n);

/* Lost or skipped since the last one that was taken. */
static inline uint64_t dlx__take_untold(const struct dlx_take *take)
{
    return take->untold + take->cursor - take->last;
}

/* The message taken last, still held, cannot be read: it counts as lost. */
void dlx__take_lose(struct dlx_take *take, const struct dlx_taken *taken);

/* Of mode latest: take the last message of this block, although the publisher has left it. False: it was taken. */
bool dlx__take_stay(struct dlx_take *take);

/* Let go of a held message. Any thread. */
void dlx__take_release(struct dlx_take *take, uint32_t hold);

/* Was there a message after the one passed last, when head was looked at last? */
static inline bool dlx__take_knows(const struct dlx_take *take)
{
    return (take->word & ~DLX_SHM_MOVED) > take->cursor;
}

/* Is there something that dlx__take_next() would not call EMPTY? One load: for busy waiting. */
static inline bool dlx__take_pending(struct dlx_take *take)
{
    dlx__prefetch_write(&take->page->hold[take->next_hold]);
    const struct dlx_shm_control *control =
        atomic_load_explicit(&take->control, memory_order_relaxed);
    dlx_atomic_u64 *head = (dlx_atomic_u64 *)(uintptr_t)&control->head;
    return dlx_load64_relaxed(head) != take->cursor;
}

/*
 * Before sleeping: ask for a bell. Returns true if there is still nothing, so sleeping is safe.
 */
bool dlx__take_arm(struct dlx_take *take);

/* Leave: takes no more; what is held stays held. */
void dlx__take_close(struct dlx_take *take);

/* Has the publisher said that nothing will follow? */
bool dlx__take_is_closed(const struct dlx_take *take);

/* Held now. */
uint32_t dlx__take_n_held(struct dlx_take *take);

#endif
