/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_PUBLISH_H
#define DLX_COMMON_PUBLISH_H

/*
 * The publisher's half of the data plane: publish and reclaim, as plain code. It reads and writes
 * shared words and private state, and calls its environment for everything else, so tests drive it
 * step by step. docs/SHM.md tells the protocol; tests/model/ proves it; common/take.h is the other
 * half.
 *
 * A slot goes FREE -> filled by the caller -> LIVE (commit) -> RETIRED (gen = 0) -> FREE, when nobody
 * alive holds its number. Messages are retired in order, so LIVE are always the newest ones.
 *
 * A publisher that needs more slots, or whose daemon was replaced, goes on in another control block: it
 * makes one with dlx__pub_block_new(), has it announced, and calls dlx__pub_move(). The old block stays until
 * the last of its slots is FREE. Hold words and cursors are about message numbers, so they span blocks. The newest
 * messages may be copied into the new block first (dlx__pub_carry()), for readers who will not see the old one; they
 * are then in both, and retired in both at once.
 *
 * One thread at a time.
 */

#include "common/shm.h"
#include <linux/futex.h>

/* A link, as its publisher sees it. Made by the environment, which keeps it until link_gone(). */
struct dlx_pub_link {
    const struct dlx_shm_link *page;
    dlx_atomic_u64 *ticket;
    uint64_t rung; /* the ticket value that was rung last */
    uint32_t max_held;
    bool reliable;
    bool dead; /* set by the environment: its process is gone, its holds count no more */
};

struct dlx_pub_block;

struct dlx_pub_env {
    /* The membership line changed: fetch the new links and hand each to dlx__pub_link_add(). */
    void (*pick_up)(void *userdata);
    /* Wake this link's subscriber. */
    void (*ring)(void *userdata, struct dlx_pub_link *link);
    /* Set `dead` where it is so. */
    void (*look_for_dead)(void *userdata);
    /* The link has left the core: closed and holding nothing, or dead. Free it. */
    void (*link_gone)(void *userdata, struct dlx_pub_link *link);
    /* Nobody can see this message any more: its payload, as given to dlx__pub_commit(), may be used again. */
    void (*slot_freed)(void *userdata, void *payload);
    /* The core has no use for this control block any more. */
    void (*block_gone)(void *userdata, const struct dlx_pub_block *block);
};

/* A control block and what its publisher remembers of it. */
struct dlx_pub_block {
    struct dlx_pub_block *next; /* a newer one */
    struct dlx_shm_control *control;
    dlx_atomic_u32 *ring;
    struct dlx_shm_slot *slots;
    uint32_t n_slots;
    uint32_t ring_mask;
    uint32_t id;                     /* the environment's */
    uint64_t base;                   /* the last message before it */
    uint64_t last;                   /* the last message in it; UINT64_MAX for the newest block */
    uint32_t n_carried;              /* messages that an older block has, too: the first ones */
    uint32_t n_used;                 /* LIVE or RETIRED slots, once it is an old block */
    uint32_t *slot_of;               /* [ring_mask + 1]: slot of LIVE message n at n & ring_mask */
    void **payloads;                 /* [n_slots] */
    uint32_t *free;                  /* [n_slots]; becomes that of the core */
    struct dlx_pub_retired *retired; /* likewise, with room for the slots of all blocks */
};

struct dlx_pub_retired {
    uint64_t n;
    struct dlx_pub_block *block;
    uint32_t slot;
    bool held;
};

/* `pressure` from which on it is worth asking whether more slots would help. */
#define DLX_PUB_PRESSURE 64U

struct dlx_pub {
    struct dlx_pub_block *block; /* the newest: where messages go */
    struct dlx_pub_block *oldest_block;
    struct dlx_shm_slot *slots; /* of the newest */
    uint32_t n_slots;           /* likewise */
    const struct dlx_shm_membership *membership;
    const struct dlx_pub_env *env;
    void *userdata;

    uint32_t history;
    bool gating; /* waits for reliable links instead of dropping */

    uint64_t head;   /* newest message */
    uint64_t oldest; /* oldest LIVE message; head + 1 when none is */
    uint64_t joins_seen;
    uint64_t
        joins_picked; /* links ever added: behind joins_seen, a packet is missing. Both begin as the line says */
    uint64_t leaves_seen;
    bool leaving;           /* a link was closed and may still hold something */
    uint32_t passes_closed; /* passes over the hold words since it was last asked who is closed */

    uint32_t n_free;
    uint32_t n_retired;
    uint32_t
        pressure; /* grows with each batch that is reclaimed, and faster while most slots are held */
    uint32_t *free; /* [n_slots], used as a queue, so that slots rotate */
    uint32_t free_first;
    struct dlx_pub_retired *retired; /* ascending n */

    struct dlx_pub_link **links;
    uint32_t n_links;
    uint32_t links_room;
};

/*
 * Begin on a zeroed control block and membership line; both outlive the core. Returns 0 or
 * DLX_E_NO_MEMORY.
 */
int dlx__pub_init(struct dlx_pub *pub, struct dlx_shm_control *control, uint32_t n_slots,
                  uint32_t history, bool gating, const struct dlx_shm_membership *membership,
                  const struct dlx_pub_env *env, void *userdata);

/* Forget. Links, payloads and blocks that are still there are handed to the environment. Zeroed memory is fine. */
void dlx__pub_deinit(struct dlx_pub *pub);

/*
 * Prepare a zeroed control block to go on in: no message may be published until it was announced to every link and
 * dlx__pub_move() called, which cannot fail, or dlx__pub_block_free(). Returns 0 or DLX_E_NO_MEMORY.
 */
int dlx__pub_block_new(const struct dlx_pub *pub, struct dlx_shm_control *control, uint32_t n_slots,
                       struct dlx_pub_block **ret);
/*
 * Then: the n newest messages, n of them LIVE at most, are to be in it as well. For the i-th of them, the oldest first, slot i of
 * the block is filled, and its payload is the environment's. The block is not in use yet, whatever its slots say.
 */
void dlx__pub_carry(const struct dlx_pub *pub, struct dlx_pub_block *block, uint32_t n,
                    void *const *payloads);
/* How many messages are LIVE. */
uint32_t dlx__pub_n_live(const struct dlx_pub *pub);
/* Where LIVE message n is, in the newest block that has it. */
struct dlx_pub_block *dlx__pub_find(const struct dlx_pub *pub, uint64_t n, uint32_t *ret_slot);
/* Nothing will be put into it: whoever is told of it all the same passes it by, or takes what was carried, and leaves. */
void dlx__pub_abandon(struct dlx_pub_block *block);
/* NULL is fine. The control block stays the caller's. */
void dlx__pub_block_free(struct dlx_pub_block *block);
/* Go on in this block. */
void dlx__pub_move(struct dlx_pub *pub, struct dlx_pub_block *block);

/* Called from pick_up(). Returns 0 or DLX_E_NO_MEMORY: the link was not added, and counts as one that
 * holds everything. */
int dlx__pub_link_add(struct dlx_pub *pub, struct dlx_pub_link *link);

/*
 * Get a free slot, reclaiming if there is none. It is taken only by dlx__pub_commit(). Returns 0 or
 * DLX_E_FULL.
 */
int dlx__pub_slot(struct dlx_pub *pub, uint32_t *ret_slot);

/* The filled slot becomes the next message; wakes who sleeps. Returns its number. The payload (not NULL, if it is to
 * come back) is the environment's. */
uint64_t dlx__pub_commit(struct dlx_pub *pub, uint32_t slot, void *payload);

/*
 * Free what nobody needs: retire at most `max_retire` of the oldest messages beyond the history (and, if
 * gating, passed by every reliable link), then free every retired slot that nobody holds. Returns the
 * number of slots freed.
 */
uint32_t dlx__pub_reclaim(struct dlx_pub *pub, uint32_t max_retire);

/* How many messages dlx__pub_reclaim() could retire now. */
uint32_t dlx__pub_retirable(struct dlx_pub *pub);

/*
 * Before waiting for room: tell subscribers to ring. Then call dlx__pub_slot() once more, and wait
 * only if it still says FULL. Afterwards, with false.
 */
void dlx__pub_set_blocked(struct dlx_pub *pub, bool blocked);

/* Another daemon has taken over: look at its membership line, whose counts begin, from now on. Links stay. */
void dlx__pub_set_membership(struct dlx_pub *pub, const struct dlx_shm_membership *membership);

/* Look at the membership line: pick up joins, look for leaves. Also part of commit and reclaim. */
void dlx__pub_read_membership(struct dlx_pub *pub);

/* Is the daemon there, and has it not disconnected this publisher? False also where it cannot say so by shared memory. */
static inline bool dlx__pub_is_vouched(const struct dlx_pub *pub)
{
    dlx_atomic_u32 *vouched = (dlx_atomic_u32 *)(uintptr_t)&pub->membership->vouched;
    return dlx_load32_relaxed(vouched) & FUTEX_TID_MASK;
}

/* No message will follow. Wakes who sleeps. */
void dlx__pub_close(struct dlx_pub *pub);

/* Has its subscription left? It may still hold messages. */
bool dlx__pub_link_is_closed(const struct dlx_pub_link *link);

/* Is message `n` of this publisher held by the link, as far as its page tells? For reports. */
bool dlx__pub_link_holds(const struct dlx_pub_link *link, uint64_t n);

#endif
