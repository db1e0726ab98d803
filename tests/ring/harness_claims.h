/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_RING_HARNESS_CLAIMS_H
#define DLX_TESTS_RING_HARNESS_CLAIMS_H

/* What there is in sim_claims.c, how a seed chooses it, and what is true of its messages. */

#include "ring/claims.h"
#include "tests/harness/ring.h"
#include "tests/ring/harness_sim.h"

#define N_PUBLISHERS  2U
#define N_GROUPS      2U
#define N_WORKERS     4U
#define N_QUEUES      (N_WORKERS + 1) /* of a group at one publisher: each may be made anew */
#define PAYLOAD_WORDS 3U
#define MAX_HELD      4U
#define N_SLOTS       ((N_PUBLISHERS + 1) * MAX_HELD)
#define MAX_WINDOW    4U
#define MAX_BATCH     4U
#define MAX_MESSAGES  32U
#define LEASE_NS      UINT64_C(8000000)
#define MAX_LONG      12U /* messages, if some are kept until all others are done */

struct world;
struct worker;

enum fate {
    UNTOUCHED,
    TAKEN,
    BEING_RETURNED,
    FINISHED,
};

/* What is known of a message of a group, beside its cell. */
struct story {
    enum fate fate;
    uint32_t worker, attempt; /* the last ones */
    bool processed, dead;
};

/* A group at a publisher, while the daemon knows it. */
struct queue {
    struct publisher *publisher;
    struct dlx_shm_claims *page;
    uint32_t number, group;
    bool declared;
    uint32_t n_links; /* as the daemon counts them */
    bool deserted;    /* the publisher may have seen it without a worker */
    uint64_t left;    /* messages up to here were there when a worker left */
    bool saw_end;     /* some worker has */
    uint64_t n_done, n_dead, n_redelivered, n_given_back;
    struct story stories[MAX_MESSAGES + 1]; /* by number */
};

/* A link of a worker. */
struct wlink {
    struct worker *worker;
    struct queue *queue;
    struct dlx_shm_link *page;
    struct dlx_writer_link link;
    struct dlx_reader reader;
    struct dlx_claims claims;
    bool announced, raised, picked, gone; /* as in sim_ring.c */
    bool joined;                          /* it hears the group's bell */
    bool closed, has_ended;
    bool bell, looks;
};

struct claimed {
    struct dlx_taken taken;
    struct wlink *at;
    bool is_claimed, is_held;
};

struct worker {
    struct world *world;
    uint32_t index, group, owner;
    int process;
    struct wlink links[N_PUBLISHERS];
    struct claimed has[N_SLOTS];
    const struct claimed *keeps; /* until all others are done */
    uint64_t wake;               /* the epoll: bells */
    uint64_t progress;
    bool is_armed, was_rung;
    bool is_alive; /* it has its lock */
    bool finished;
    bool is_mortal, keeps_first, kept;
    bool gives_back, renews, keeps_holds;
    uint32_t batch;
};

/* Memory of one message. */
struct cell {
    bool used;
    uint64_t words[PAYLOAD_WORDS];
};

struct publisher {
    struct world *world;
    uint32_t index;
    int process;
    struct dlx_shm_control *control;
    struct dlx_shm_membership *membership;
    struct dlx_writer writer;
    struct cell cells[MAX_MESSAGES + 1]; /* by number */
    uint32_t n_used, memory;
    uint64_t bell;
    struct wlink *waiting[N_WORKERS]; /* the link socket */
    uint32_t n_waiting, n_picked;
    bool joining;
    uint64_t n_gone; /* what undone() said last */
    bool told_gone;
    bool hung_up, was_killed, is_over; /* is_over: what it frees is not looked at */
    struct queue queues[N_GROUPS][N_QUEUES];
    uint32_t n_queues[N_GROUPS], last_number;
    /* The ordinary subscriber. */
    struct dlx_shm_link *page;
    struct dlx_writer_link link;
    struct dlx_reader reader;
    bool subscriber_waits, subscriber_picked, subscriber_over;
    uint64_t subscriber_wake, subscriber_holds;
};

struct world {
    struct publisher publishers[N_PUBLISHERS];
    struct worker workers[N_WORKERS];
    uint32_t n_publishers, n_workers, n_groups, n_declared;
    uint32_t n_entries, window, kept, batch;
    uint32_t max_attempts, n_to_die, n_dead;
    uint64_t last; /* messages of each publisher */
    uint64_t lease_ns, now_ns;
    bool gating, roomy, misses, leaves, drains, publisher_dies, keeps_first, subscribes;
    uint64_t seed;
};

static inline struct wlink *wlink_of(struct dlx_writer_link *link)
{
    return (struct wlink *)((char *)link - offsetof(struct wlink, link));
}

static inline bool is_killed(const struct worker *s)
{
    return sim_killed(s->process) && !s->finished;
}

static inline void wake(struct worker *s)
{
    s->wake++;
}

/* ---- what is true of a message --------------------------------------------------------------- */

static inline uint64_t lap_of(const struct world *w, uint64_t n)
{
    return n / w->n_entries + 1;
}

/* Without a step: the scheduler is not to see that the test looks. */
static inline struct dlx_shm_cell look_at(const struct queue *q, uint64_t n)
{
    const struct world *w = q->publisher->world;
    return dlx_shm_cell_unpack(
        atomic_load_explicit(&q->page->cells[n % w->n_entries], memory_order_relaxed));
}

static inline bool is_done(const struct queue *q, uint64_t n)
{
    struct dlx_shm_cell cell = look_at(q, n);
    uint64_t lap = lap_of(q->publisher->world, n);
    return cell.lap > lap || (cell.lap == lap && cell.state == DLX_SHM_CELL_DONE);
}

/* The newest message that is there: a publisher that was killed may have counted one more. */
static inline uint64_t newest_of(const struct publisher *p)
{
    uint64_t n = p->writer.head;
    return n > 0 && DLX_SHM_NUMBER(atomic_load(&p->control->entries[n % p->world->n_entries].gen)) <
                        n
               ? n - 1
               : n;
}

/* At a publisher that waits, everything up to here is done, but what had left a deserted group. */
static inline void check_done(const struct queue *q, uint64_t to, const char *what)
{
    const struct world *w = q->publisher->world;
    uint64_t start = atomic_load(&q->page->start);
    if (start == 0 || q->deserted || !w->gating)
        return;
    for (uint64_t n = start; n <= to; n++)
        sim_check(w, n <= q->publisher->writer.head && is_done(q, n),
                  "%s of group %u of publisher %u is %ju, and message %ju is not done", what,
                  q->group, q->publisher->index, to, n);
}

static inline void check_links(const struct worker *s)
{
    for (uint32_t p = 0; p < s->world->n_publishers; p++)
        if (s->links[p].queue)
            check_done(s->links[p].queue, s->links[p].page->done, "`done`");
}

/* A worker leaves, or has died. Is nobody left of whom the publisher knows? */
static inline void note_desertion(struct queue *q, const struct wlink *left)
{
    const struct world *w = q->publisher->world;
    bool any = false;
    if (left->page->started && left->picked) /* else the publisher has yet to hear of it */
        q->left = DLX_MAX(q->left, newest_of(q->publisher));
    for (uint32_t i = 0; i < w->n_workers; i++) {
        const struct wlink *at = &w->workers[i].links[q->publisher->index];
        any |= at->queue == q && at->picked && !at->closed && !is_killed(at->worker);
    }
    q->deserted |= !any && !q->declared;
}

/* Messages of which no cell has told what became of them. */
static inline uint64_t n_pending(const struct queue *q, uint64_t start, uint64_t last)
{
    const struct world *w = q->publisher->world;
    uint64_t pending = 0;
    for (uint64_t first = start; first < start + w->n_entries && first <= last; first++) {
        struct dlx_shm_cell cell = look_at(q, first);
        uint64_t n = (last - first) / w->n_entries + 1, lap = lap_of(w, first);
        uint64_t told = cell.lap < lap ? 0 : cell.lap - lap + (cell.state == DLX_SHM_CELL_DONE);
        pending += n - told;
    }
    return pending;
}

/* ---- how it begins and ends ----------------------------------------------------------------- */

static inline uint32_t digit(uint64_t *x, uint32_t base)
{
    uint32_t d = (uint32_t)(*x % base);
    *x /= base;
    return d;
}

/* The seed's low digits choose the configuration. */
static inline void configure(struct world *w)
{
    uint64_t x = w->seed;
    w->gating = digit(&x, 4) > 0;
    w->n_publishers = 1 + digit(&x, N_PUBLISHERS);
    w->n_workers = 1 + digit(&x, N_WORKERS);
    w->n_groups = w->n_workers > 2 && digit(&x, 4) == 0 ? 2 : 1;
    w->n_declared = digit(&x, w->n_groups + 1);
    w->keeps_first = w->n_workers / w->n_groups > 1 && w->gating && digit(&x, 4) == 0;
    w->window = 1 + digit(&x, MAX_WINDOW);
    w->last = 5 + digit(&x, MAX_MESSAGES - 4);
    w->roomy = digit(&x, 4) == 3 || w->keeps_first;
    w->misses = digit(&x, 8) == 0;
    w->max_attempts = 1 + digit(&x, 4);
    w->subscribes = digit(&x, 4) == 0;
    w->publisher_dies = digit(&x, 4) == 0 && !w->keeps_first;
    w->n_to_die = digit(&x, 2) && !w->keeps_first ? 1 + digit(&x, w->n_workers) : 0;
    w->lease_ns = digit(&x, 6) == 0 && !w->keeps_first ? LEASE_NS : 0;
    w->leaves = digit(&x, 3) == 0 && !w->keeps_first;
    w->drains = digit(&x, 2);
    w->batch = 1 + (digit(&x, 2) ? digit(&x, MAX_BATCH) : 0);
    if (w->keeps_first) {
        w->last = 5 + digit(&x, MAX_LONG - 4);
        w->window = (uint32_t)w->last;
    }
    w->kept = 1 + digit(&x, w->window);
    for (w->n_entries = 4; w->n_entries < 2 * w->window;)
        w->n_entries *= 2;
    w->n_entries <<= digit(&x, 2);
}

/* Who waits for what, if that never ends. */
static inline void show(const struct world *w)
{
    for (uint32_t i = 0; i < w->n_publishers; i++)
        fprintf(stderr, "publisher %u: head %ju, oldest %ju, passed %ju, links %u, over %d\n", i,
                w->publishers[i].writer.head, w->publishers[i].writer.oldest,
                w->publishers[i].writer.passed, w->publishers[i].writer.n_links,
                sim_killed(w->publishers[i].process));
    for (uint32_t i = 0; i < w->n_workers; i++) {
        const struct worker *s = &w->workers[i];
        fprintf(stderr, "worker %u: over %d, group %u, owner %u, armed %d, keeps %d\n", i,
                sim_killed(s->process), s->group, s->owner, s->is_armed, s->kept);
        for (uint32_t p = 0; p < w->n_publishers; p++) {
            const struct wlink *at = &s->links[p];
            fprintf(stderr, "  link: joined %d, picked %d, ended %d, cursor %ju, done %ju\n",
                    at->joined, at->picked, at->has_ended, at->reader.cursor,
                    (uint64_t)at->page->done);
        }
    }
    for (uint32_t p = 0; p < w->n_publishers; p++)
        for (uint32_t g = 0; g < w->n_groups; g++)
            for (uint32_t i = 0; i < w->publishers[p].n_queues[g]; i++) {
                const struct queue *q = &w->publishers[p].queues[g][i];
                fprintf(stderr, "publisher %u, group %u, start %ju:", p, g,
                        (uint64_t)q->page->start);
                for (uint32_t n = 0; n < w->n_entries; n++) {
                    struct dlx_shm_cell cell = look_at(q, n);
                    fprintf(stderr, " %ju:%u/%u",
                            cell.lap > 0 ? (cell.lap - 1) * w->n_entries + n : 0, cell.state,
                            cell.owner);
                }
                fprintf(stderr, "\n");
            }
}

#endif
