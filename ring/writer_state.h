/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_RING_WRITER_STATE_H
#define DLX_RING_WRITER_STATE_H

/* What the ring writer (ring/writer.h) and its groups (ring/group.h) both know. */

#include "ring/layout.h"

struct dlx_writer_link;

struct dlx_writer_group {
    uint32_t number; /* as the daemon calls it; 0: of a former daemon */
    bool is_declared;
    bool was_touched; /* it had a worker */
    /* Its messages were carried into another control block. They are closed there until no worker
     * is left that takes them from the earlier one. */
    bool is_closed;
    uint64_t passed; /* all messages up to this one are done, as was seen last */
    uint64_t rung;   /* its workers were rung for messages up to this one */
    uint64_t left;   /* messages up to this one were there when its workers left */
    struct dlx_writer_link **links;
    uint32_t n_links;
    uint32_t links_room;
};

/* The publisher's end of a link. The environment makes it and keeps it until link_gone(). */
struct dlx_writer_link {
    const struct dlx_shm_link *page;
    dlx_atomic_u64 *ticket;
    uint64_t rung; /* the ticket value that was rung last */
    uint64_t base; /* the subscriber needs no message up to this one, whatever its cursor says */
    uint32_t max_held;
    bool reliable;
    /* Messages are not kept for its cursor: it takes only the newest one, or is of a worker, whose
     * group has its own count. */
    bool is_passed_over;
    /* Set by the environment: the link takes no more messages and is not waited for. Its holds
     * count. */
    bool left;
    /* Set by the environment: the process of the subscriber is gone. Its holds do not count. */
    bool dead;
    bool is_former;                 /* of a worker: it reads an earlier control block */
    uint32_t group_number;          /* of a worker; 0: of none */
    struct dlx_writer_group *group; /* set by dlx__writer_link_add() */
    uint64_t group_rung;            /* as `rung`, which is not used for workers */
    dlx_atomic_u64 *group_ticket;   /* likewise: odd while the worker sleeps */
};

struct dlx_writer_block;

struct dlx_writer_env {
    /* The membership line changed: fetches the new links and passes each to dlx__writer_link_add().
     */
    void (*pick_up)(void *userdata);
    /* Wakes the subscriber of this link. */
    void (*ring)(void *userdata, struct dlx_writer_link *link);
    /* Sets `dead` and `left` of the links that ended. */
    void (*look_for_dead)(void *userdata);
    /* The writer has dropped the link, which is dead or closed without holds. Frees it. */
    void (*link_gone)(void *userdata, struct dlx_writer_link *link);
    /* No reader can see the message any more. Its payload, as given to dlx__writer_put(), may be
     * reused. */
    void (*payload_freed)(void *userdata, void *payload);
    /* Bytes of the tensors of the message with this payload, for dlx__writer_link_bytes(). */
    uint64_t (*payload_bytes)(void *userdata, const void *payload);
    /* The daemon has ended. Has a subscriber of a later daemon mapped the newest control block?
     * Called only after dlx__writer_heed_locks(). */
    bool (*has_unknown_readers)(void *userdata);
    /* `n` messages will not be done: the last worker of a group that was not declared has gone, or
     * there was no memory to carry them to another control block. */
    void (*undone)(void *userdata, uint64_t n);
    /* The writer has no use for this control block any more. */
    void (*block_gone)(void *userdata, const struct dlx_writer_block *block);
};

/* A control block and the publisher's private state about it. */
struct dlx_writer_block {
    struct dlx_writer_block *next; /* the next newer one */
    struct dlx_shm_control *control;
    uint32_t mask;     /* entries - 1 */
    uint64_t base;     /* the last message before this control block */
    uint64_t last;     /* the last message in it; UINT64_MAX for the newest control block */
    uint64_t moved_at; /* the newest message that was copied into it; 0: none was */
    void *payloads[];  /* [mask + 1]: the payload of LIVE message n is at n & mask */
};

struct dlx_writer_retired {
    uint64_t n;
    void *payload;
    bool held;
};

struct dlx_writer {
    struct dlx_writer_block *block; /* the newest: receives new messages */
    struct dlx_writer_block *oldest_block;
    const struct dlx_shm_membership *membership;
    const struct dlx_writer_env *env;
    void *userdata;

    uint64_t head;   /* newest message */
    uint64_t limit;  /* the newest message that may be put without dlx__writer_make_room() */
    uint64_t oldest; /* oldest LIVE message; head + 1 if there is none */
    /* `oldest` at the last fence: entries of older messages may be written again. */
    uint64_t reusable;
    uint64_t passed;    /* if gating: every reliable link was seen to have passed this message */
    uint64_t announced; /* dlx__writer_announce() was called for messages up to this one */
    uint32_t window;    /* the most messages that stay LIVE */
    uint32_t kept;      /* the fewest messages that stay LIVE */
    bool gating;        /* waits for reliable links instead of dropping messages */
    bool heeds_locks;   /* the value in the newest control block */
    uint32_t blocked;   /* the number that `blocked` had last */

    uint64_t joins_seen;
    /* The number of links ever added. Below joins_seen, a packet is missing. Both start from the
     * value in the membership line. */
    uint64_t joins_picked;
    uint64_t leaves_seen;

    struct dlx_writer_link **links;
    uint32_t n_links;
    uint32_t links_room;
    dlx_atomic_u64 no_ticket; /* what dlx__writer_ring_sleepers() reads of workers: always 0 */

    struct dlx_writer_group **groups; /* the declared ones first, by number */
    uint32_t n_groups;
    uint32_t groups_room;

    struct dlx_writer_retired *retired; /* by ascending n */
    uint32_t n_retired;
    uint32_t n_kept; /* of them, those held at the last check: the first ones */
    /* LIVE and RETIRED messages: at most payloads_room, which is the capacity of `retired`. */
    uint32_t n_payloads;
    uint32_t payloads_room;
};

/* Other processes write these words; they are const because their page is mapped read-only. */
static inline dlx_atomic_u64 *dlx__writer_word(const dlx_atomic_u64 *w)
{
    return (dlx_atomic_u64 *)(uintptr_t)w;
}

/* Every message up to this one is passed. */
static inline uint64_t dlx__writer_cursor_of(const struct dlx_writer_link *link)
{
    /* Partner: a reader stores the hold of a message before its cursor. */
    return DLX_MAX(dlx_load64_acquire(dlx__writer_word(&link->page->cursor)), link->base);
}

/* Has the subscription left? It may still hold messages. */
static inline bool dlx__writer_link_is_closed(const struct dlx_writer_link *link)
{
    return dlx__writer_cursor_of(link) == DLX_SHM_CURSOR_CLOSED;
}

/* Has its subscriber stored a first cursor? Sequentially consistent: with `blocked`, which it reads
 * after that. */
static inline bool dlx__writer_link_is_started(const struct dlx_writer_link *link)
{
    return dlx_load32_sc((dlx_atomic_u32 *)(uintptr_t)&link->page->started) != 0;
}

/* Will it take no more messages? */
static inline bool dlx__writer_link_is_over(const struct dlx_writer_link *link)
{
    return link->dead || link->left || dlx__writer_link_is_closed(link);
}

static inline void dlx__writer_ring_sleepers(struct dlx_writer *w)
{
    for (uint32_t i = 0; i < w->n_links; i++) {
        struct dlx_writer_link *link = w->links[i];
        /* Partner: dlx__reader_arm() raises its ticket, then loads gen of the next entry, and
         * n_freed. A fence came before. */
        uint64_t ticket = dlx_load64_relaxed(link->ticket);
        if (dlx_unlikely(ticket != link->rung)) {
            link->rung = ticket;
            w->env->ring(w->userdata, link);
        }
    }
}

#endif
