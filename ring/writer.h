/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_RING_WRITER_H
#define DLX_RING_WRITER_H

/*
 * The ring writer: the publisher's half of the data plane, without I/O. It reads and writes shared
 * words and private state, and calls its environment for everything else, so that tests can drive
 * it step by step. docs/SHM.md describes the protocol, tests/model/ proves it, and ring/reader.h is
 * the other half.
 *
 * A message is LIVE (its entry can be read), then RETIRED (its entry is GONE), then freed once no
 * living link holds its number. Messages are retired in order, so the LIVE messages are always the
 * newest ones, `oldest` to `head`.
 *
 *     a message is retired when                          | by
 *     it is `window` behind the newest                   | dlx__writer_announce()
 *     every link has passed it, and it is not `kept`     | dlx__writer_reclaim(), to free memory
 *     memory is short, and it is not `kept`              | dlx__writer_reclaim() with `drop`
 *
 * A gating writer retires no message that a reliable link has not passed. It must wait when such a
 * link is `window` behind: dlx__writer_make_room() then returns DLX_E_FULL.
 *
 * The workers of a group share the messages. A group counts as one reliable link, which has passed
 * what its workers have done: the greatest `done` of their link pages. For each message one of its
 * sleeping workers is rung.
 *
 * After the daemon was replaced, the publisher moves to another control block: it makes one with
 * dlx__writer_block_new(), may copy the newest messages into it with dlx__writer_copy_retained(),
 * has the daemon announce it, and calls dlx__writer_move(). Copied messages are LIVE in both
 * control blocks and are retired in both at once. Holds and cursors are message numbers, so they
 * span control blocks. An old control block is freed when its last message is retired. Payloads of
 * old control blocks are never written again, whoever reads them.
 *
 * One thread at a time uses a writer.
 */

#include "ring/group.h"
#include <linux/futex.h>

/* Starts on a zeroed control block and membership line, which outlive the writer. 1 <= kept <=
 * window. n_entries is a power of 2, at least 4 and at least 2 * window: dlx_shm_n_entries(), or
 * fewer in tests. Returns 0 or DLX_E_NO_MEMORY. */
int dlx__writer_init(struct dlx_writer *w, struct dlx_shm_control *control, uint32_t n_entries,
                     uint32_t window, uint32_t kept, bool gating,
                     const struct dlx_shm_membership *membership, const struct dlx_writer_env *env,
                     void *userdata);

/* Passes the remaining links, payloads and control blocks to the environment. Accepts zeroed
 * memory. */
void dlx__writer_deinit(struct dlx_writer *w);

/* ---- publish ------------------------------------------------------------------------------- */

/* May one message be put? If not, dlx__writer_make_room() comes first. */
static inline bool dlx__writer_has_room(const struct dlx_writer *w)
{
    return w->head < w->limit && w->n_payloads < w->payloads_room;
}

/* Requires that every message was announced. Returns 0; DLX_E_FULL if a reliable link is `window`
 * behind or a link was not picked up; or DLX_E_NO_MEMORY. */
int dlx__writer_make_room(struct dlx_writer *w);

/*
 * Puts the next message into the ring, which must have room. `words` are those of its entry except
 * the time. The environment owns the payload, which is not NULL. Readers may take the message from
 * now on. dlx__writer_announce() must follow, once for any number of messages; it wakes sleeping
 * readers.
 */
static inline void dlx__writer_put(struct dlx_writer *w, const uint64_t *words,
                                   uint64_t monotonic_ns, void *payload)
{
    uint64_t n = ++w->head;
    struct dlx_writer_block *block = w->block;
    uint64_t at = n & block->mask;
    struct dlx_shm_entry *entry = &block->control->entries[at];
    /* Relaxed: the previous message of this entry is GONE, and a fence followed. */
    dlx_store64_relaxed(&entry->words[0], monotonic_ns);
#pragma GCC unroll 6
    for (uint32_t i = 1; i < DLX_SHM_ENTRY_WORDS; i++)
        dlx_store64_relaxed(&entry->words[i], words[i]);
    block->payloads[at] = payload;
    w->n_payloads++;
    /* partner: a reader that loads n from gen also sees the words */
    dlx_store64_release(&entry->gen, n);
}

/* Marks the end of the messages and wakes sleeping readers. */
void dlx__writer_close(struct dlx_writer *w);

/* ---- reclaim ------------------------------------------------------------------------------- */

/*
 * Frees what no reader needs. Retires a bounded number of the oldest messages that are not `kept`
 * and that every link has passed, and frees every retired message that no link holds. With `drop`
 * it also retires one message that links without `reliable` have not passed. Returns the number of
 * messages retired or freed; after 0, another call would do nothing.
 */
dlx_for_gpu uint32_t dlx__writer_reclaim(struct dlx_writer *w, bool drop);

/* Called with true before waiting for room: asks subscribers to ring, each of them once. The caller
 * then calls dlx__writer_make_room() once more and waits only if that still returns DLX_E_FULL. It
 * forgets rings only before it calls this again. Called with false afterwards. */
void dlx__writer_set_blocked(struct dlx_writer *w, bool blocked);

/* Notes the id of GPU memory that the publisher has freed, and wakes sleeping readers, which may
 * have it open. */
dlx_for_gpu void dlx__writer_note_freed(struct dlx_writer *w, uint64_t id);

/* The newest message that every reliable link has passed. */
uint64_t dlx__writer_passed(struct dlx_writer *w);

/* Bytes of the messages that a reliable link or a group has not passed. */
uint64_t dlx__writer_queued_bytes(struct dlx_writer *w);

/* ---- links --------------------------------------------------------------------------------- */

/* Called by pick_up(). Returns 0, or DLX_E_NO_MEMORY if the link was not added; the writer then
 * treats it as one that holds everything. */
int dlx__writer_link_add(struct dlx_writer *w, struct dlx_writer_link *link);

/* Switches to the membership line of another daemon, whose counts start anew. Links stay. */
void dlx__writer_set_membership(struct dlx_writer *w, const struct dlx_shm_membership *membership);

/*
 * Called after dlx__writer_init(), or after dlx__writer_move() and dlx__writer_set_membership(), if
 * the environment can detect unknown readers. The writer asks for them once the daemon has ended.
 * Has no effect unless the membership line contains the daemon's thread id, without which the
 * writer could not see the end of the daemon.
 */
void dlx__writer_heed_locks(struct dlx_writer *w);

/* Does the daemon run, and has it not disconnected this publisher? Also false if the daemon cannot
 * say so in shared memory. */
static inline bool dlx__writer_has_daemon(const struct dlx_writer *w)
{
    dlx_atomic_u32 *daemon_tid = (dlx_atomic_u32 *)(uintptr_t)&w->membership->daemon_tid;
    return dlx_load32_relaxed(daemon_tid) & FUTEX_TID_MASK;
}

/* Has the environment look for links that ended, and drops those that are dead, or closed and hold
 * nothing. A change of `leaves` does so, too; it may come before the environment can see the end.
 */
dlx_for_gpu void dlx__writer_look_for_dead(struct dlx_writer *w);

/* The number of messages that the link holds according to its page. For reports. */
uint32_t dlx__writer_link_n_held(const struct dlx_writer_link *link);

/* The number of holds that the link has used, at most `max_held`. It never falls in an honest page.
 */
uint32_t dlx__writer_link_n_used(const struct dlx_writer_link *link);

/*
 * Bytes of the messages that the link holds, except the newest one. A hold counts 0 if its number
 * is neither LIVE nor retired, and everything counts 0 if memory is short. Holds that change during
 * the scan do not count. The result was therefore held all at one moment, and never exceeds what an
 * honest reader held when it took its newest message.
 */
uint64_t dlx__writer_link_bytes(const struct dlx_writer *w, const struct dlx_writer_link *link);

/* ---- for the environment: what it may know --------------------------------------------------- */

/* The newest message. */
static inline uint64_t dlx__writer_head(const struct dlx_writer *w)
{
    return w->head;
}

/* Messages that are LIVE. */
static inline uint64_t dlx__writer_n_live(const struct dlx_writer *w)
{
    return w->head + 1 - w->oldest;
}

/* Was dlx__writer_announce() called since the newest message? */
static inline bool dlx__writer_has_announced(const struct dlx_writer *w)
{
    return w->announced == w->head;
}

static inline uint32_t dlx__writer_n_links(const struct dlx_writer *w)
{
    return w->n_links;
}

/* Link `i` of n_links. Their order changes when one goes. */
static inline struct dlx_writer_link *dlx__writer_link_at(const struct dlx_writer *w, uint32_t i)
{
    return w->links[i];
}

/* The newest control block, for counters. */
static inline struct dlx_shm_control *dlx__writer_control(const struct dlx_writer *w)
{
    return w->block->control;
}

/* Links that were ever added, and links that the daemon has told of and that were not. */
static inline uint64_t dlx__writer_n_picked(const struct dlx_writer *w)
{
    return w->joins_picked;
}
static inline uint64_t dlx__writer_n_missing(const struct dlx_writer *w)
{
    return w->joins_seen > w->joins_picked ? w->joins_seen - w->joins_picked : 0;
}

/* Links that the daemon has ended, as far as was read. */
static inline uint64_t dlx__writer_n_ended(const struct dlx_writer *w)
{
    return w->leaves_seen;
}

/* Messages that are retired, and held. */
static inline uint32_t dlx__writer_n_retired(const struct dlx_writer *w)
{
    return w->n_retired;
}

/* See dlx__writer_heed_locks(). */
static inline bool dlx__writer_heeds_locks(const struct dlx_writer *w)
{
    return w->heeds_locks;
}

/* From now on so few messages stay LIVE, when memory is wanted. */
static inline void dlx__writer_set_kept(struct dlx_writer *w, uint32_t kept)
{
    w->kept = kept;
}

static inline bool dlx__writer_link_is_dead(const struct dlx_writer_link *link)
{
    return link->dead;
}
static inline void dlx__writer_link_set_dead(struct dlx_writer_link *link)
{
    link->dead = true;
}
static inline void dlx__writer_link_set_left(struct dlx_writer_link *link)
{
    link->left = true;
}

/* Its bell could not be rung: the next message tries again. */
static inline void dlx__writer_link_ring_again(struct dlx_writer_link *link)
{
    if (link->group)
        link->group_rung--;
    else
        link->rung--;
}

static inline bool dlx__writer_link_is_reliable(const struct dlx_writer_link *link)
{
    return link->reliable;
}

/* The number of the worker's group; 0: it is of none. */
static inline uint32_t dlx__writer_link_group(const struct dlx_writer_link *link)
{
    return link->group_number;
}

/* Is it of a worker of a group for which nothing is kept without a worker? */
static inline bool dlx__writer_link_keeps_group(const struct dlx_writer_link *link)
{
    return link->group && !link->group->is_declared;
}

static inline uint32_t dlx__writer_n_groups(const struct dlx_writer *w)
{
    return w->n_groups;
}
/* Group `i` of n_groups. */
static inline struct dlx_writer_group *dlx__writer_group_at(const struct dlx_writer *w, uint32_t i)
{
    return w->groups[i];
}
static inline uint32_t dlx__writer_group_number(const struct dlx_writer_group *group)
{
    return group->number;
}
static inline bool dlx__writer_group_is_declared(const struct dlx_writer_group *group)
{
    return group->is_declared;
}
static inline uint32_t dlx__writer_group_n_links(const struct dlx_writer_group *group)
{
    return group->n_links;
}
static inline struct dlx_writer_link *
dlx__writer_group_link_at(const struct dlx_writer_group *group, uint32_t i)
{
    return group->links[i];
}
/* Does this link hold message n, according to its page? */
bool dlx__writer_link_holds(const struct dlx_writer_link *link, uint64_t n);
/* When message n was published, CLOCK_MONOTONIC; 0: it is not LIVE. */
uint64_t dlx__writer_published_ns(const struct dlx_writer *w, uint64_t n);

/* How many messages a reliable link is behind that keeps messages from being dropped. 0: it does
 * not. */
uint64_t dlx__writer_link_lag(const struct dlx_writer *w, const struct dlx_writer_link *link);

/* ---- another control block ------------------------------------------------------------------ */

/* Prepares a zeroed control block to continue in. dlx__writer_move(), which cannot fail, or
 * dlx__writer_block_free() follows. The `n` newest messages, all LIVE, will be copied. Returns 0 or
 * DLX_E_NO_MEMORY. */
int dlx__writer_block_new(struct dlx_writer *w, struct dlx_shm_control *control, uint32_t n_entries,
                          uint32_t n, struct dlx_writer_block **ret);
/* Adds one of the `n` messages: copies its words, and records its payload for the new control
 * block. */
void dlx__writer_copy_retained(struct dlx_writer_block *block, uint64_t n, const uint64_t *words,
                               void *payload);
/* Ends a block that is not used: frees the payloads that were added. The caller keeps the control
 * block. Accepts NULL. */
void dlx__writer_block_free(struct dlx_writer *w, struct dlx_writer_block *block);
/* The last message before this control block. */
static inline uint64_t dlx__writer_block_base(const struct dlx_writer_block *block)
{
    return block->base;
}
/* For block_gone(): what is to be unmapped. */
static inline struct dlx_shm_control *
dlx__writer_block_control(const struct dlx_writer_block *block)
{
    return block->control;
}
/* Continues in this control block. */
void dlx__writer_move(struct dlx_writer *w, struct dlx_writer_block *block);

/* Returns the payload of a LIVE message, and copies its words, from the newest control block that
 * has it. */
void *dlx__writer_payload(const struct dlx_writer *w, uint64_t n,
                          uint64_t ret_words[DLX_SHM_ENTRY_WORDS]);

/* ---- the path of every message --------------------------------------------------------------- */

static inline struct dlx_shm_entry *dlx__writer_entry(const struct dlx_writer_block *block,
                                                      uint64_t n)
{
    return &block->control->entries[n & block->mask];
}

/* The membership line has changed. */
void dlx__writer_joins_changed(struct dlx_writer *w, uint64_t joins);
void dlx__writer_leaves_changed(struct dlx_writer *w, uint64_t leaves);

static inline bool dlx__writer_misses_link(const struct dlx_writer *w)
{
    return w->joins_picked < w->joins_seen;
}

/* Reads the membership line: picks up joins and looks for leaves. dlx__writer_announce() and
 * dlx__writer_reclaim() call it, too. */
static inline void dlx__writer_read_membership(struct dlx_writer *w)
{
    /*
     * Partner: the daemon raises `joins` after it has queued the packet of the link, and before the
     * subscriber may read `head`. So a subscriber that reads the ring from now on is seen here. The
     * daemon lowers `joins` only for a link that was never picked up and holds nothing, so an equal
     * number hides no link.
     */
    uint64_t joins = dlx_load64_acquire(dlx__writer_word(&w->membership->joins));
    if (dlx_unlikely(joins != w->joins_seen || dlx__writer_misses_link(w)))
        dlx__writer_joins_changed(w, joins);
    uint64_t leaves = dlx_load64_relaxed(dlx__writer_word(&w->membership->leaves));
    if (dlx_unlikely(leaves != w->leaves_seen))
        dlx__writer_leaves_changed(w, leaves);
}

/* Retires message n, which is LIVE in this control block. */
static inline void dlx__writer_retire_in(struct dlx_writer *w, const struct dlx_writer_block *block,
                                         uint64_t n)
{
    /* Partner: a reader stores its hold, has a fence and loads gen. Either it sees GONE and
     * releases the message, or the writer sees the hold after its next fence. Release: for a
     * joining reader that scans past this entry. */
    uint64_t at = n & block->mask;
    dlx_store64_release(&block->control->entries[at].gen, n | DLX_SHM_GONE);
    w->retired[w->n_retired++] =
        (struct dlx_writer_retired){.n = n, .payload = block->payloads[at], .held = false};
}

/* Retires messages that may be in several control blocks. */
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

/* The newest message that is `window` behind and may be retired. */
static inline uint64_t dlx__writer_behind_window(const struct dlx_writer *w)
{
    uint64_t to = w->head > w->window ? w->head - w->window : 0;
    return w->gating ? DLX_MIN(to, w->passed) : to;
}

/* Wakes sleeping readers, picks up new links, and retires what is `window` behind. */
static inline __attribute__((always_inline)) void dlx__writer_announce(struct dlx_writer *w)
{
    uint64_t head = w->head;
    dlx_fence(); /* gen of all messages that were put, then joins and tickets */
    w->reusable = w->oldest;
    w->announced = head;
    dlx_store64_release(&w->block->control->head, head);
    /* Computed before a new link is seen, which need not be waited for unless it asked for that
     * much history: what was passed by then had been announced before the link joined. */
    uint64_t to = dlx__writer_behind_window(w);
    dlx__writer_read_membership(w);
    dlx__writer_ring_sleepers(w);
    if (dlx_unlikely(w->n_groups > 0)) /* after `leaves` was read: who has died is not rung */
        dlx__writer_ring_workers(w, false);
    dlx__writer_retire(w, to);
}

#endif
