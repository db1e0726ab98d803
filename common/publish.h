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
 * One thread at a time.
 */

#include "common/shm.h"

/* A link, as its publisher sees it. Made by the environment, which keeps it until link_gone(). */
struct dlx_pub_link {
    const struct dlx_shm_link *page;
    dlx_atomic_u64 *ticket;
    uint64_t rung; /* the ticket value that was rung last */
    uint32_t max_held;
    bool reliable;
    bool dead; /* set by the environment: its process is gone, its holds count no more */
};

struct dlx_pub_env {
    /* The membership line changed: fetch the new links and hand each to dlx__pub_link_add(). */
    void (*pick_up)(void *userdata);
    /* Wake this link's subscriber. */
    void (*ring)(void *userdata, struct dlx_pub_link *link);
    /* Set `dead` where it is so. */
    void (*look_for_dead)(void *userdata);
    /* The link has left the core: closed and holding nothing, or dead. Free it. */
    void (*link_gone)(void *userdata, struct dlx_pub_link *link);
    /* Nobody can see this slot's message any more: its payload may be used again. */
    void (*slot_freed)(void *userdata, uint32_t slot);
};

struct dlx_pub_retired {
    uint64_t n;
    uint32_t slot;
    bool held;
};

struct dlx_pub {
    struct dlx_shm_control *control;
    dlx_atomic_u32 *ring;
    struct dlx_shm_slot *slots;
    const struct dlx_shm_membership *membership;
    const struct dlx_pub_env *env;
    void *userdata;

    uint32_t n_slots;
    uint32_t ring_mask;
    uint32_t history;
    bool gating; /* waits for reliable links instead of dropping */

    uint64_t head;   /* newest message */
    uint64_t oldest; /* oldest LIVE message; head + 1 when none is */
    uint64_t joins_seen;
    uint64_t joins_picked; /* links ever added: behind joins_seen, a packet is missing */
    uint64_t leaves_seen;

    uint32_t n_free;
    uint32_t n_retired;
    uint32_t *free; /* [n_slots], used as a queue, so that slots rotate */
    uint32_t free_first;
    uint32_t *slot_of;               /* [ring_mask + 1]: slot of LIVE message n at n & ring_mask */
    struct dlx_pub_retired *retired; /* [n_slots], ascending n */

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

/* Forget. Links that are still there are handed to link_gone(). Zeroed memory is fine. */
void dlx__pub_deinit(struct dlx_pub *pub);

/* Called from pick_up(). Returns 0 or DLX_E_NO_MEMORY: the link was not added, and counts as one that
 * holds everything. */
int dlx__pub_link_add(struct dlx_pub *pub, struct dlx_pub_link *link);

/*
 * Get a free slot, reclaiming if there is none. It is taken only by dlx__pub_commit(). Returns 0 or
 * DLX_E_FULL.
 */
int dlx__pub_slot(struct dlx_pub *pub, uint32_t *ret_slot);

/* The filled slot becomes the next message; wakes who sleeps. Returns its number. */
uint64_t dlx__pub_commit(struct dlx_pub *pub, uint32_t slot);

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

/* Look at the membership line: pick up joins, look for leaves. Also part of commit and reclaim. */
void dlx__pub_read_membership(struct dlx_pub *pub);

/* No message will follow. Wakes who sleeps. */
void dlx__pub_close(struct dlx_pub *pub);

/* Has its subscription left? It may still hold messages. */
bool dlx__pub_link_is_closed(const struct dlx_pub_link *link);

/* Is message `n` of this publisher held by the link, as far as its page tells? For reports. */
bool dlx__pub_link_holds(const struct dlx_pub_link *link, uint64_t n);

#endif
