/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_RING_CLAIMS_H
#define DLX_RING_CLAIMS_H

/*
 * The worker's half of a work queue: a reader whose messages are shared with the other workers of
 * its group by a claims page (ring/layout.h). tests/model/claims.pml proves the protocol.
 *
 *     what a worker does                | who may call it
 *     start, take, look, arm, disarm,   | the thread that uses the reader
 *     oldest_ns                         |
 *     settle, renew                     | any thread, on a claim that is in use
 *
 * The publisher does not see the claims page. It retires what the greatest `done` of the group has
 * passed. Everything that a worker stores there is true for all workers: a message is done, by
 * whichever of them.
 */

#include "ring/reader.h"

struct dlx_claims_env {
    /* Makes all workers of the group look at the ring again. Any thread. */
    void (*ring_group)(void *userdata);
    /* Does the process of this worker still map the claims page? */
    bool (*is_alive)(void *userdata, uint32_t owner);
};

struct dlx_claims {
    struct dlx_shm_claims *page;
    struct dlx_reader *reader;
    const struct dlx_claims_env *env;
    void *userdata;
    uint32_t shift; /* 1 << shift: entries */
    uint32_t owner;
    uint32_t max_attempts;  /* a claim that was attempted more often is of a dead letter */
    uint64_t returned_seen; /* of the page */
    bool has_returned;      /* messages up to the cursor may have been given back */
    /* The publisher is gone, and set no END. The thread that uses the reader stores it. */
    atomic_bool is_over;
    /* Its publisher may read this worker's `done` no more. */
    atomic_bool has_left;
    /* Messages up to here were copied from an earlier control block. They are closed until
     * `carried` says which of them are not done; NULL: none of them is the group's. */
    uint64_t moved_at;
    dlx_atomic_u64 *carried;
    bool has_opened;   /* that was seen */
    uint64_t doubtful; /* of the page */
    /* The publisher has moved once more, and offers them there. The thread that uses the reader
     * stores it. */
    atomic_bool has_moved;
    /* Leases: the cell of each message as it was seen first, and when. NULL: there is no lease. */
    uint64_t lease_ns;
    struct dlx_claims_seen *seen; /* [n_entries] */
    uint64_t looked_ns;
};

struct dlx_claims_seen {
    uint64_t cell;
    uint64_t since_ns;
};

/* `reader` was initialised with `rings` and without latest and reliable, and all of its messages
 * are taken here. Returns 0; DLX_E_NO_MEMORY (a lease needs a table). */
int dlx__claims_init(struct dlx_claims *c, struct dlx_reader *reader, struct dlx_shm_claims *page,
                     uint32_t owner, uint64_t lease_ns, uint32_t max_attempts,
                     const struct dlx_claims_env *env, void *userdata);
/* Called before dlx__claims_start(): the publisher has declared the group, with this number. */
void dlx__claims_set_declared(struct dlx_claims *c, uint32_t group);
/* Is the publisher gone? Then it will neither mark its end nor say what was carried. */
static inline void dlx__claims_set_over(struct dlx_claims *c, bool is_over)
{
    atomic_store_explicit(&c->is_over, is_over, memory_order_relaxed);
}
void dlx__claims_deinit(struct dlx_claims *c);

/* As dlx__reader_start(). If nobody has begun, the group begins behind the newest message, or
 * `history` before that; `doubts`: others may have done those. */
void dlx__claims_start(struct dlx_claims *c, uint64_t history, bool doubts);

/*
 * Claims up to `n` messages and holds them: first those that were given back. A claim that
 * was attempted too often is of a dead letter: the caller settles it as DEAD. Returns as
 * dlx__reader_take(), and DLX_E_EMPTY also while others have messages that are not done, though the
 * publisher is gone.
 */
int dlx__claims_take(struct dlx_claims *c, struct dlx_taken *ret, uint32_t n);

static inline uint32_t dlx__claim_attempt(uint64_t claim)
{
    return dlx_shm_cell_unpack(claim).attempt;
}

/* What becomes of a claim. */
enum dlx_claim_end {
    DLX_CLAIM_DONE,
    DLX_CLAIM_DEAD,     /* given back too often: it is done, and counts as dead */
    DLX_CLAIM_LOST,     /* it cannot be read: likewise, as lost */
    DLX_CLAIM_RETURNED, /* any worker may have it */
};

/* Ends the claim on message n. Returns false if it was not the caller's any more. */
bool dlx__claims_settle(struct dlx_claims *c, uint64_t n, uint64_t claim, enum dlx_claim_end end);

/* What became of the claim on message n? NEVER: the cell says it no more. */
enum dlx_shm_cell_state dlx__claims_state(const struct dlx_claims *c, uint64_t n, uint64_t claim);

/* Begins the lease of the claim on message n anew. Returns false if it was not the caller's. */
bool dlx__claims_renew(struct dlx_claims *c, uint64_t n, uint64_t claim, uint64_t now_ns);

/* Gives back what dead workers have, and what was held longer than a lease. A worker does so when
 * the group's bell rang, and once a second while it waits. Returns whether others have messages
 * that are not done. */
bool dlx__claims_look(struct dlx_claims *c, uint64_t now_ns);

/* Asks for a bell before sleeping. The caller has dlx__claims_nothing_there() look after it has
 * done so for all of its links, and a fence. */
static inline void dlx__claims_arm(struct dlx_claims *c)
{
    struct dlx_reader *r = c->reader;
    r->sleep_ticket |= 1;
    dlx_store64_relaxed(r->ticket, r->sleep_ticket);
}
bool dlx__claims_nothing_there(const struct dlx_claims *c);

/* The worker is awake: publishers ring others. */
static inline void dlx__claims_disarm(struct dlx_claims *c)
{
    struct dlx_reader *r = c->reader;
    r->sleep_ticket += r->sleep_ticket & 1;
    dlx_store64_relaxed(r->ticket, r->sleep_ticket);
}

/* Is there a message that no worker has? A worker asks that has just woken up and taken one. */
bool dlx__claims_has_unclaimed(struct dlx_claims *c);

/* When was the message published that the next claim would be of? 0: there is none. 1: it was
 * retired meanwhile, so that the next take passes it. */
uint64_t dlx__claims_oldest_ns(struct dlx_claims *c);

/* Leaves the ring. What the worker has stays its own until it is settled. */
void dlx__claims_close(struct dlx_claims *c);

#endif
