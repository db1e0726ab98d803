/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_RING_WRITER_H
#define DLX_RING_WRITER_H

/*
 * The ring writer: the publisher's half of the data plane, as plain code. It reads and writes shared words and
 * private state, and calls its environment for everything else, so tests drive it step by step. docs/SHM.md tells the
 * protocol, tests/model/ proves it, ring/reader.h is the other half.
 *
 * A message goes LIVE (its entry can be read) -> RETIRED (its entry is GONE) -> freed, when no living link holds its
 * number. Messages are retired in order: LIVE are always the newest ones, `oldest` to `head`.
 *
 *     retired when                                       | by
 *     it is `window` behind the newest                   | dlx__writer_announce()
 *     every link has passed it, and it is not `kept`     | dlx__writer_reclaim(), when memory is wanted
 *     memory is short, and it is not `kept`              | dlx__writer_reclaim() with `drop`
 *
 * A gating writer never retires what a reliable link has not passed. So it must wait when such a link is `window`
 * behind: dlx__writer_make_room() says FULL.
 *
 * A publisher whose daemon was replaced goes on in another control block: it makes one with dlx__writer_block_new(),
 * may copy the newest messages into it with dlx__writer_carry(), has it announced, and calls dlx__writer_move().
 * Carried messages are LIVE in both blocks, and are retired in both at once. Hold words and
 * cursors are about message numbers, so they span blocks. An old block goes when its last message
 * is retired. Payloads of old blocks are never written again, whoever reads them.
 *
 * One thread at a time.
 */

#include "ring/layout.h"
#include <linux/futex.h>

/* A link, as its publisher sees it. Made by the environment, which keeps it until link_gone(). */
struct dlx_writer_link {
    const struct dlx_shm_link *page;
    dlx_atomic_u64 *ticket;
    uint64_t rung; /* the ticket value that was rung last */
    uint64_t base; /* it needs no message up to this one, whatever its cursor says */
    uint32_t max_held;
    bool reliable;
    bool latest; /* it takes only the newest message */
    /* Set by the environment: it takes no more, and is not waited for; its holds count. */
    bool left;
    /* Likewise: its process is gone, its holds count no more. */
    bool dead;
};

struct dlx_writer_block;

struct dlx_writer_env {
    /* The membership line changed: fetch the new links and hand each to dlx__writer_link_add(). */
    void (*pick_up)(void *userdata);
    /* Wake this link's subscriber. */
    void (*ring)(void *userdata, struct dlx_writer_link *link);
    /* Set `dead` and `left` where it is so. */
    void (*look_for_dead)(void *userdata);
    /* The link has left the writer: closed and holding nothing, or dead. Free it. */
    void (*link_gone)(void *userdata, struct dlx_writer_link *link);
    /* Nobody can see this message any more: its payload, as given to dlx__writer_put(), may be used again. */
    void (*payload_freed)(void *userdata, void *payload);
    /* Bytes of the tensors in the message with this payload, for dlx__writer_link_bytes(). */
    uint64_t (*payload_bytes)(void *userdata, const void *payload);
    /* The daemon has ended. Has a subscriber of a later daemon mapped the newest control block?
     * Only asked after dlx__writer_heed_locks(). */
    bool (*has_unknown_readers)(void *userdata);
    /* The writer has no use for this control block any more. */
    void (*block_gone)(void *userdata, const struct dlx_writer_block *block);
};

/* A control block and what its publisher remembers of it. */
struct dlx_writer_block {
    struct dlx_writer_block *next; /* a newer one */
    struct dlx_shm_control *control;
    uint32_t mask;      /* entries - 1 */
    uint32_t n_carried; /* messages that an older block has, too: the first ones */
    uint64_t base;      /* the last message before it */
    uint64_t last;      /* the last message in it; UINT64_MAX of the newest block */
    void *payloads[];   /* [mask + 1]: of LIVE message n at n & mask */
};

struct dlx_writer_retired {
    uint64_t n;
    void *payload;
    bool held;
};

struct dlx_writer {
    struct dlx_writer_block *block; /* the newest: where messages go */
    struct dlx_writer_block *oldest_block;
    const struct dlx_shm_membership *membership;
    const struct dlx_writer_env *env;
    void *userdata;

    uint64_t head;   /* newest message */
    uint64_t limit;  /* the newest message that may be put without dlx__writer_make_room() */
    uint64_t oldest; /* oldest LIVE message; head + 1 when none is */
    /* `oldest` at the last fence: entries of what is older may be written again. */
    uint64_t reusable;
    uint64_t passed;    /* if gating: every reliable link has passed it, as far as was seen */
    uint64_t announced; /* dlx__writer_announce() was called for messages up to here */
    uint32_t window;    /* messages that stay LIVE at most */
    uint32_t kept;      /* messages that stay LIVE at least */
    bool gating;        /* waits for reliable links instead of dropping */
    bool heeds_locks;   /* the newest block says so */

    uint64_t joins_seen;
    /* Links ever added: behind joins_seen, a packet is missing. Both begin as the line says. */
    uint64_t joins_picked;
    uint64_t leaves_seen;

    struct dlx_writer_link **links;
    uint32_t n_links;
    uint32_t links_room;

    struct dlx_writer_retired *retired; /* ascending n */
    uint32_t n_retired;
    uint32_t n_kept; /* of them, those that were held when it was looked last: the first ones */
    /* LIVE and RETIRED: at most payloads_room, which is the room of `retired`. */
    uint32_t n_payloads;
    uint32_t payloads_room;
};

/*
 * Begin on a zeroed control block and membership line; both outlive the writer. 1 <= kept <= window; n_entries is a
 * power of 2, at least 4 and 2 * window: dlx_shm_n_entries(), or fewer in tests. Returns 0 or DLX_E_NO_MEMORY.
 */
int dlx__writer_init(struct dlx_writer *w, struct dlx_shm_control *control, uint32_t n_entries,
                     uint32_t window, uint32_t kept, bool gating,
                     const struct dlx_shm_membership *membership, const struct dlx_writer_env *env,
                     void *userdata);

/* Forget. Links, payloads and blocks that are still there are handed to the environment. Zeroed memory is fine. */
void dlx__writer_deinit(struct dlx_writer *w);

/* ---- publish ------------------------------------------------------------------------------- */

/* May one message be put? Otherwise dlx__writer_make_room(). */
static inline bool dlx__writer_has_room(const struct dlx_writer *w)
{
    return w->head < w->limit && w->n_payloads < w->payloads_room;
}

/* Everything that was put is announced. Returns 0; DLX_E_FULL (a reliable link is `window` behind, or was not picked
 * up); DLX_E_NO_MEMORY. */
int dlx__writer_make_room(struct dlx_writer *w);

/*
 * Put the next message into the ring. There is room; `words` are those of its entry, but for the time; the payload (not
 * NULL) is the environment's. A reader may take it from now on; one that sleeps is woken by dlx__writer_announce(), which
 * must follow, once for any number of messages.
 */
static inline void dlx__writer_put(struct dlx_writer *w, const uint64_t *words,
                                   uint64_t monotonic_ns, void *payload)
{
    uint64_t n = ++w->head;
    struct dlx_writer_block *block = w->block;
    uint64_t at = n & block->mask;
    struct dlx_shm_entry *entry = &block->control->entries[at];
    /* Relaxed: its last message is GONE, and a fence came since. */
    dlx_store64_relaxed(&entry->words[0], monotonic_ns);
#pragma GCC unroll 6
    for (uint32_t i = 1; i < DLX_SHM_ENTRY_WORDS; i++)
        dlx_store64_relaxed(&entry->words[i], words[i]);
    block->payloads[at] = payload;
    w->n_payloads++;
    dlx_store64_release(&entry->gen, n); /* partner: whoever reads n here reads the words */
}

/* No message will follow. Wakes who sleeps. */
void dlx__writer_close(struct dlx_writer *w);

/* ---- reclaim ------------------------------------------------------------------------------- */

/*
 * Free what nobody needs: retire the oldest messages that are not `kept` and that every link has passed, a bounded
 * number at a time, and free every retired message that nobody holds. With `drop` one message is retired although links
 * that are not reliable have not passed it. Returns how many messages were retired or freed: 0, nothing will come
 * of another call.
 */
uint32_t dlx__writer_reclaim(struct dlx_writer *w, bool drop);

/*
 * Before waiting for room: tell subscribers to ring. Then call dlx__writer_make_room() once more, and wait only if it
 * still says FULL. Afterwards, with false.
 */
void dlx__writer_set_blocked(struct dlx_writer *w, bool blocked);

/* The newest message that every reliable link has passed. */
uint64_t dlx__writer_passed(struct dlx_writer *w);

/* ---- links --------------------------------------------------------------------------------- */

/* Called from pick_up(). Returns 0 or DLX_E_NO_MEMORY: the link was not added, and counts as one that holds
 * everything. */
int dlx__writer_link_add(struct dlx_writer *w, struct dlx_writer_link *link);

/* Another daemon has taken over: look at its membership line, whose counts begin, from now on. Links stay. */
void dlx__writer_set_membership(struct dlx_writer *w, const struct dlx_shm_membership *membership);

/* After dlx__writer_init(), or after dlx__writer_move() and dlx__writer_set_membership(): the
 * environment can tell of unknown readers, and is asked for them once the daemon has ended.
 * Without the daemon's word in the membership line nothing happens: the writer could not see its
 * end. */
void dlx__writer_heed_locks(struct dlx_writer *w);

/* Is the daemon there, and has it not disconnected this publisher? False also where it cannot say so by shared
 * memory. */
static inline bool dlx__writer_is_vouched(const struct dlx_writer *w)
{
    dlx_atomic_u32 *vouched = (dlx_atomic_u32 *)(uintptr_t)&w->membership->vouched;
    return dlx_load32_relaxed(vouched) & FUTEX_TID_MASK;
}

/* Has its subscription left? It may still hold messages. */
bool dlx__writer_link_is_closed(const struct dlx_writer_link *link);

/* How many messages it holds, as far as its page tells. For reports. */
uint32_t dlx__writer_link_n_held(const struct dlx_writer_link *link);

/* How many hold words it has used, at most `max_held`. The number never falls in an honest page. */
uint32_t dlx__writer_link_n_used(const struct dlx_writer_link *link);

/*
 * Bytes of the messages that the link holds, not counting the newest one. A number of no LIVE or retired message counts
 * 0, and so does everything if there is no memory for the look. Hold words that change during the look do not count:
 * what counts was held all at one moment, so it is never more than an honest reader held when it took the newest one.
 */
uint64_t dlx__writer_link_bytes(const struct dlx_writer *w, const struct dlx_writer_link *link);

/* ---- another control block ------------------------------------------------------------------ */

/*
 * Prepare a zeroed control block to go on in: dlx__writer_move() follows, which cannot fail, or
 * dlx__writer_block_free(). `n` newest messages, all LIVE, will be carried. Returns 0 or DLX_E_NO_MEMORY.
 */
int dlx__writer_block_new(struct dlx_writer *w, struct dlx_shm_control *control, uint32_t n_entries,
                          uint32_t n, struct dlx_writer_block **ret);
/* Message n, one of those to carry: its words, which are copied, and its payload in the new block. */
void dlx__writer_carry(struct dlx_writer_block *block, uint64_t n, const uint64_t *words,
                       void *payload);
/* NULL is fine. Control block and payloads stay the caller's. */
void dlx__writer_block_free(struct dlx_writer_block *block);
/* Go on in this block. */
void dlx__writer_move(struct dlx_writer *w, struct dlx_writer_block *block);

/* The payload of a LIVE message, and its words, in the newest block that has it. */
void *dlx__writer_payload(const struct dlx_writer *w, uint64_t n,
                          uint64_t ret_words[DLX_SHM_ENTRY_WORDS]);

/* ---- the path of every message --------------------------------------------------------------- */

/* The words are others'; const is the page's protection, they change all the same. */
static inline dlx_atomic_u64 *dlx__writer_word(const dlx_atomic_u64 *w)
{
    return (dlx_atomic_u64 *)(uintptr_t)w;
}

static inline struct dlx_shm_entry *dlx__writer_entry(const struct dlx_writer_block *block,
                                                      uint64_t n)
{
    return &block->control->entries[n & block->mask];
}

static inline void dlx__writer_ring_sleepers(struct dlx_writer *w)
{
    for (uint32_t i = 0; i < w->n_links; i++) {
        struct dlx_writer_link *link = w->links[i];
        /* Partner: dlx__reader_arm() raises its ticket, then looks at the next entry. A fence came before this. */
        uint64_t ticket = dlx_load64_relaxed(link->ticket);
        if (dlx_unlikely(ticket != link->rung)) {
            link->rung = ticket;
            w->env->ring(w->userdata, link);
        }
    }
}

/* The membership line is not as it was. */
void dlx__writer_joins_changed(struct dlx_writer *w, uint64_t joins);
void dlx__writer_leaves_changed(struct dlx_writer *w, uint64_t leaves);

static inline bool dlx__writer_misses_link(const struct dlx_writer *w)
{
    return w->joins_picked < w->joins_seen;
}

/* Look at the membership line: pick up joins, look for leaves. Also part of announce and reclaim. */
static inline void dlx__writer_read_membership(struct dlx_writer *w)
{
    /* Partner: the daemon raises `joins` after it queued the link's packet, before the joiner may look at `head`. So
     * whoever looks at our ring from now on is seen here. It lowers `joins` only for who was never picked up and holds
     * nothing: an equal number hides nobody. */
    uint64_t joins = dlx_load64_acquire(dlx__writer_word(&w->membership->joins));
    if (dlx_unlikely(joins != w->joins_seen || dlx__writer_misses_link(w)))
        dlx__writer_joins_changed(w, joins);
    uint64_t leaves = dlx_load64_relaxed(dlx__writer_word(&w->membership->leaves));
    if (dlx_unlikely(leaves != w->leaves_seen))
        dlx__writer_leaves_changed(w, leaves);
}

/* Message n, which is LIVE in this block. */
static inline void dlx__writer_retire_in(struct dlx_writer *w, const struct dlx_writer_block *block,
                                         uint64_t n)
{
    /* Partner: a reader stores its hold word, has a fence and looks at gen. Either it sees GONE and lets go, or we see its
     * hold word after our next fence. Release: for a joiner that counts up over it. */
    uint64_t at = n & block->mask;
    dlx_store64_release(&block->control->entries[at].gen, n | DLX_SHM_GONE);
    w->retired[w->n_retired++] =
        (struct dlx_writer_retired){.n = n, .payload = block->payloads[at], .held = false};
}

/* Messages that may be in several blocks. */
void dlx__writer_retire_in_blocks(struct dlx_writer *w, uint64_t to);

static inline void dlx__writer_retire(struct dlx_writer *w, uint64_t to)
{
    struct dlx_writer_block *block = w->block;
    uint64_t n = w->oldest;
    if (n > to)
        return;
    if (dlx_unlikely(w->oldest_block != block)) {
        dlx__writer_retire_in_blocks(w, to);
        return;
    }
    do
        dlx__writer_retire_in(w, block, n++);
    while (dlx_unlikely(n <= to));
    w->oldest = n;
    dlx_store64_release(&block->control->oldest, n);
}

/* The newest message that is `window` behind. */
static inline uint64_t dlx__writer_behind_window(const struct dlx_writer *w)
{
    uint64_t to = w->head > w->window ? w->head - w->window : 0;
    return w->gating ? DLX_MIN(to, w->passed) : to;
}

/* Wake who sleeps, see who joined, retire what is `window` behind. */
static inline __attribute__((always_inline)) void dlx__writer_announce(struct dlx_writer *w)
{
    uint64_t head = w->head;
    dlx_fence(); /* gen of everything that was put, then joins and tickets */
    w->reusable = w->oldest;
    w->announced = head;
    dlx_store64_release(&w->block->control->head, head);
    /* Before a new link is seen: it need not be waited for where it did not ask for so much history. What was passed
     * then was announced before it joined. */
    uint64_t to = dlx__writer_behind_window(w);
    dlx__writer_read_membership(w);
    dlx__writer_ring_sleepers(w);
    dlx__writer_retire(w, to);
}

#endif
