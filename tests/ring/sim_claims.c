/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Groups of workers under a seeded scheduler: one or two publishers that wait or drop messages, up
 * to four workers of one or two groups that take from all of them, now and then an ordinary
 * reliable subscriber, and the daemon's part of joins, ends and deaths. Workers join at any time,
 * sleep, claim several messages, hold beyond done, give back, renew, lose leases, leave with claims
 * and die at any access to a shared word; publishers end, or die without a mark.
 *
 * Checked: no message is lost, none is processed twice unless its former owner died, gave it back
 * or lost its lease, and then the attempt is a higher one; what is held never changes and is not
 * freed; `done` passes no message that is not done; nobody waits for ever, also not for a message
 * while another worker works on one for as long as that takes (`keeps_first`); no more messages are
 * LIVE than `window`; and the counters of the claims pages are right.
 */

#include "tests/ring/harness_claims.h"

/* ---- the publisher --------------------------------------------------------------------------- */

static void env_pick_up(void *userdata)
{
    struct publisher *p = userdata;
    if (p->subscriber_waits) {
        p->subscriber_waits = false;
        p->subscriber_picked = true;
        sim_check(p->world, dlx__writer_link_add(&p->writer, &p->link) == 0, "no memory");
    }
    while (p->n_picked < p->n_waiting) {
        struct wlink *at = p->waiting[p->n_picked];
        if (p->world->misses && sim_random(3))
            return;
        at->picked = true;
        p->bell += is_killed(at->worker);
        sim_check(p->world, dlx__writer_link_add(&p->writer, &at->link) == 0, "no memory");
        p->n_picked++;
    }
}

static void env_ring(void *userdata, struct dlx_writer_link *link)
{
    struct publisher *p = userdata;
    if (link == &p->link)
        p->subscriber_wake++;
    else
        wake(wlink_of(link)->worker);
}

static void env_look_for_dead(void *userdata)
{
    struct publisher *p = userdata;
    for (uint32_t i = 0; i < p->world->n_workers; i++)
        p->world->workers[i].links[p->index].link.dead =
            p->world->workers[i].links[p->index].picked && is_killed(&p->world->workers[i]);
}

static void env_undone(void *userdata, uint64_t n)
{
    struct publisher *p = userdata;
    sim_check(p->world, n <= newest_of(p), "%ju are left", n);
    p->n_gone = n;
    p->told_gone = true;
}

static void env_link_gone(void *userdata, struct dlx_writer_link *link)
{
    struct publisher *p = userdata;
    if (link == &p->link)
        return;
    struct wlink *at = wlink_of(link);
    at->gone = true;
    if (!p->told_gone)
        return;
    /* Everything before is done, and if nobody had begun, nothing was left. */
    struct queue *q = at->queue;
    uint64_t start = atomic_load(&q->page->start), n_undone = 0;
    sim_check(p->world, q->deserted && !q->declared, "a group with workers is gone");
    for (uint64_t n = DLX_MAX(start, p->writer.oldest); start > 0 && n <= q->left; n++)
        n_undone += !is_done(q, n);
    sim_check(p->world, p->n_gone >= n_undone, "%ju are left, and %ju were told", n_undone,
              p->n_gone);
    sim_check(p->world, start > 0 || p->n_gone == 0, "%ju are left of a group that never began",
              p->n_gone);
    p->told_gone = false;
}

static bool holds(const struct worker *s, const struct publisher *p, uint64_t n)
{
    bool does = false;
    for (uint32_t i = 0; i < N_SLOTS; i++)
        does |= s->has[i].is_held && s->has[i].taken.n == n && s->has[i].at == &s->links[p->index];
    return does;
}

static void env_payload_freed(void *userdata, void *payload)
{
    struct publisher *p = userdata;
    struct cell *cell = payload;
    uint64_t n = (uint64_t)(cell - p->cells);
    if (p->is_over)
        return;
    sim_check(p->world, cell->used, "message %ju is freed twice", n);
    for (uint32_t i = 0; i < p->world->n_workers; i++)
        sim_check(p->world, is_killed(&p->world->workers[i]) || !holds(&p->world->workers[i], p, n),
                  "message %ju is freed, %u holds it", n, i);
    sim_check(p->world, p->subscriber_holds != n, "message %ju is freed, and held", n);
    memset(cell->words, 0xdd, sizeof cell->words);
    cell->used = false;
    p->n_used--;
}

static const struct dlx_writer_env writer_env = {
    .pick_up = env_pick_up,
    .ring = env_ring,
    .look_for_dead = env_look_for_dead,
    .link_gone = env_link_gone,
    .payload_freed = env_payload_freed,
    .undone = env_undone,
    .block_gone = dlx_test_ignore_block,
};

static void check_retired(const struct publisher *p)
{
    for (uint32_t g = 0; g < p->world->n_groups; g++)
        for (uint32_t i = 0; i < p->n_queues[g]; i++)
            check_done(&p->queues[g][i], p->writer.oldest - 1, "the newest retired message");
}

static void announce(struct publisher *p)
{
    dlx__writer_announce(&p->writer);
    uint64_t n_live = p->writer.head + 1 - p->writer.oldest;
    sim_check(p->world, n_live <= p->world->window, "%ju messages are LIVE", n_live);
    sim_check(p->world, dlx_test_blocks_are_right(&p->writer), "wrong entries");
    check_retired(p);
}

/* Memory for a payload, and room for the message? */
static bool is_ready(struct publisher *p)
{
    const struct world *w = p->world;
    while (p->n_used >= p->memory && dlx__writer_reclaim(&p->writer, false) > 0)
        ;
    while (!w->gating && p->n_used >= p->memory && dlx__writer_reclaim(&p->writer, true) > 0)
        ;
    int r = dlx__writer_make_room(&p->writer);
    sim_check(w, r == 0 || (r == DLX_E_FULL && w->gating), "make_room: %d", r);
    check_retired(p);
    return r == 0 && p->n_used < p->memory;
}

static void wait_for_bell(struct publisher *p, uint64_t picked)
{
    if (picked == p->writer.joins_picked && picked >= p->writer.joins_seen)
        sim_wait(&p->bell);
    else /* who was picked up late may have nothing to ring for */
        sim_yield();
    p->bell = 0;
    env_look_for_dead(p); /* as poll(2) tells it */
}

static void wait_for_room(struct publisher *p)
{
    if (dlx__writer_has_room(&p->writer) && p->n_used < p->memory)
        return;
    if (p->writer.announced < p->writer.head)
        announce(p);
    while (!is_ready(p)) {
        dlx__writer_set_blocked(&p->writer, true);
        uint64_t picked = p->writer.joins_picked;
        bool ready = is_ready(p);
        if (!ready)
            wait_for_bell(p, picked);
        dlx__writer_set_blocked(&p->writer, false);
        if (ready)
            break;
    }
}

static bool is_drained(struct publisher *p)
{
    bool all = true;
    dlx__writer_read_membership(&p->writer);
    dlx__writer_look_for_dead(&p->writer);
    for (uint32_t i = 0; i < dlx__writer_n_groups(&p->writer); i++)
        all &= dlx__writer_group_passed(&p->writer, dlx__writer_group_at(&p->writer, i)) ==
               p->writer.head;
    return all;
}

/* As dlx_publisher_drain(). */
static void drain(struct publisher *p)
{
    for (;;) {
        dlx__writer_set_blocked(&p->writer, true);
        if (is_drained(p))
            break;
        wait_for_bell(p, p->writer.joins_picked);
    }
    dlx__writer_set_blocked(&p->writer, false);
}

static void note_progress(struct world *w)
{
    for (uint32_t i = 0; i < w->n_workers; i++)
        w->workers[i].progress++;
}

static void put(struct publisher *p)
{
    uint64_t n = p->writer.head + 1;
    struct cell *cell = &p->cells[n];
    cell->used = true;
    p->n_used++;
    for (uint32_t i = 0; i < PAYLOAD_WORDS; i++) {
        cell->words[i] = n;
        sim_yield();
    }
    dlx_test_put(&p->writer, cell);
}

/* The daemon, and the bells that hang up. */
static void hang_up(struct publisher *p)
{
    p->hung_up = true;
    p->subscriber_over = true;
    p->subscriber_wake++;
    for (uint32_t i = 0; i < p->world->n_workers; i++)
        wake(&p->world->workers[i]);
    note_progress(p->world);
}

static void publisher_main(void *userdata)
{
    struct publisher *p = userdata;
    struct world *w = p->world;
    sim_pause(0, 40);
    while (p->writer.head < w->last) {
        for (uint32_t i = sim_random(w->batch) + 1; i > 0 && p->writer.head < w->last; i--) {
            wait_for_room(p);
            put(p);
        }
        announce(p);
        if (sim_random(8) == 0)
            dlx__writer_reclaim(&p->writer, sim_random(3) == 0);
        note_progress(w);
        sim_pause(0, sim_random(4) == 0 ? 200 : 2);
    }
    if (w->drains && sim_random(2))
        drain(p);
    dlx__writer_close(&p->writer);
    note_progress(w);
    if (w->drains)
        drain(p);
    sim_pause(0, 100);
    hang_up(p);
}

/* ---- the daemon ------------------------------------------------------------------------------ */

static void env_ring_publisher(void *userdata)
{
    ((struct wlink *)userdata)->queue->publisher->bell++;
}

static const struct dlx_reader_env reader_env = {.ring = env_ring_publisher};

static void ring_queue(struct queue *q)
{
    const struct world *w = q->publisher->world;
    for (uint32_t i = 0; i < w->n_workers; i++) {
        struct wlink *at = (struct wlink *)&w->workers[i].links[q->publisher->index];
        if (at->queue == q && at->joined) {
            at->bell = true;
            wake(at->worker);
        }
    }
}

static void env_ring_group(void *userdata)
{
    ring_queue(((struct wlink *)userdata)->queue);
}

static bool env_is_alive(void *userdata, uint32_t owner)
{
    const struct wlink *at = userdata;
    const struct world *w = at->worker->world;
    bool alive = false;
    for (uint32_t i = 0; i < w->n_workers; i++)
        alive |= w->workers[i].group == at->worker->group && w->workers[i].owner == owner &&
                 w->workers[i].is_alive;
    return alive;
}

static const struct dlx_claims_env claims_env = {.ring_group = env_ring_group,
                                                 .is_alive = env_is_alive};

static bool is_owner_used(const struct world *w, uint32_t group, uint32_t owner)
{
    bool used = false;
    for (uint32_t i = 0; i < w->n_workers; i++)
        used |=
            w->workers[i].group == group && w->workers[i].owner == owner && w->workers[i].is_alive;
    for (uint32_t p = 0; p < w->n_publishers; p++)
        for (uint32_t i = 0; i < w->publishers[p].n_queues[group]; i++)
            for (uint32_t n = 0; n < w->n_entries; n++) {
                struct dlx_shm_cell cell = look_at(&w->publishers[p].queues[group][i], n);
                used |= cell.state == DLX_SHM_CELL_CLAIMED && cell.owner == owner;
            }
    return used;
}

static struct queue *queue_of(struct publisher *p, uint32_t group)
{
    struct world *w = p->world;
    uint32_t n = p->n_queues[group];
    struct queue *q = n > 0 ? &p->queues[group][n - 1] : NULL;
    if (q && (q->declared || q->n_links > 0))
        return q;
    sim_check(w, n < N_QUEUES, "groups");
    q = &p->queues[group][p->n_queues[group]++];
    *q = (struct queue){.publisher = p, .group = group, .declared = group < w->n_declared};
    q->number = q->declared ? group + 1 : ++p->last_number;
    q->page = dlx_test_pages(dlx_shm_claims_size(w->n_entries));
    if (q->declared)
        q->page->start = 1;
    return q;
}

static void raise_joins(struct wlink *at)
{
    at->raised = true;
    at->queue->publisher->joining = false;
    atomic_fetch_add(&at->queue->publisher->membership->joins, 1);
}

static void join(struct wlink *at, struct publisher *p)
{
    struct worker *s = at->worker;
    const struct world *w = s->world;
    while (p->joining) /* the daemon does one join after the other */
        sim_yield();
    p->joining = true;
    at->queue = queue_of(p, s->group);
    at->queue->n_links++;
    at->link.group_number = at->queue->number;
    p->waiting[p->n_waiting++] = at; /* LinkAdded */
    at->announced = true;
    p->bell++; /* the link socket */
    sim_yield();
    raise_joins(at);
    sim_yield();
    dlx__reader_init(&at->reader, p->control, w->n_entries, 0, at->page, s->index, MAX_HELD, false,
                     false, true, &reader_env, at);
    sim_check(w,
              dlx__claims_init(&at->claims, &at->reader, at->queue->page, s->owner, w->lease_ns,
                               w->max_attempts, &claims_env, at) == 0,
              "no memory");
    at->joined = true;
    at->looks = true; /* for what the dead had before this worker came */
    dlx__claims_start(&at->claims, 0, false);
}

/* The daemon sees the end of a link: `leaves`, then the bell of the group. */
static void end_link(struct wlink *at)
{
    struct publisher *p = at->queue->publisher;
    at->queue->n_links--;
    atomic_fetch_add(&p->membership->leaves, 1);
    p->bell++;
    sim_yield();
    ring_queue(at->queue);
}

static void kill_worker(struct worker *s)
{
    struct world *w = s->world;
    sim_kill(s->process);
    w->n_dead++;
    for (uint32_t p = 0; p < w->n_publishers; p++)
        if (s->links[p].queue)
            note_desertion(s->links[p].queue, &s->links[p]);
    note_progress(w);
    /* The lock may go after the daemon has seen the death: workers look again a little later. */
    bool lock_first = sim_random(2);
    s->is_alive = s->is_alive && !lock_first;
    for (uint32_t p = 0; p < w->n_publishers; p++) {
        struct wlink *at = &s->links[p];
        sim_yield();
        w->publishers[p].bell++;
        if (at->announced && !at->raised)
            raise_joins(at);
        if (at->announced && !at->closed)
            end_link(at);
    }
    sim_pause(0, 20);
    s->is_alive = false;
    for (uint32_t p = 0; p < w->n_publishers; p++)
        if (s->links[p].queue)
            ring_queue(s->links[p].queue);
}

static void reaper_main(void *userdata)
{
    struct world *w = userdata;
    for (uint32_t i = 0; i < w->n_to_die; i++) {
        sim_pause(0, 500);
        struct worker *s = &w->workers[sim_random(w->n_workers)];
        if (s->is_mortal && !s->finished && !sim_killed(s->process))
            kill_worker(s);
    }
    if (w->publisher_dies) {
        struct publisher *p = &w->publishers[0];
        sim_pause(0, 500);
        if (p->hung_up)
            return;
        sim_kill(p->process);
        p->was_killed = true;
        sim_yield();
        hang_up(p);
    }
}

/* ---- workers --------------------------------------------------------------------------------- */

static void check_held(const struct claimed *h)
{
    const struct publisher *p = h->at->queue->publisher;
    const struct dlx_taken *t = &h->taken;
    sim_check(p->world, dlx_test_is_of(t->words, t->n), "message %ju has words of %ju", t->n,
              t->words[1] / 8);
    for (uint32_t i = 0; i < PAYLOAD_WORDS; i++)
        sim_check(p->world, p->cells[t->n].words[i] == t->n, "message %ju: payload is %jx", t->n,
                  p->cells[t->n].words[i]);
}

static void let_go(struct claimed *h)
{
    if (!h->is_held)
        return;
    check_held(h);
    h->is_held = false;
    dlx__reader_release(&h->at->reader, h->taken.hold);
}

/* May a claim of a worker that lives be ended by another one? */
static bool may_be_lost(const struct queue *q)
{
    return q->publisher->world->lease_ns > 0 || !q->publisher->world->gating || q->deserted;
}

static void settle(struct claimed *h, enum dlx_claim_end end)
{
    struct queue *q = h->at->queue;
    struct world *w = q->publisher->world;
    struct story *story = &q->stories[h->taken.n];
    bool returns = end == DLX_CLAIM_RETURNED;
    bool is_last = story->attempt == dlx__claim_attempt(h->taken.claim);
    sim_check(w, h->is_claimed, "not claimed");
    h->is_claimed = false;
    if (!returns && end != DLX_CLAIM_DEAD) {
        if (h->is_held)
            check_held(h);
        story->processed = true;
    }
    story->dead |= end == DLX_CLAIM_DEAD; /* also if it dies before it returns */
    if (is_last)
        story->fate = returns ? BEING_RETURNED : TAKEN;
    bool was_ours = dlx__claims_settle(&h->at->claims, h->taken.n, h->taken.claim, end);
    sim_check(w, was_ours || may_be_lost(q), "message %ju was not %u's any more", h->taken.n,
              h->at->worker->index);
    note_progress(w);
    if (!was_ours)
        return;
    sim_check(w, is_last, "message %ju was ended by attempt %u, after %u", h->taken.n,
              dlx__claim_attempt(h->taken.claim), story->attempt);
    if (returns) {
        q->n_given_back++;
        return;
    }
    story->fate = FINISHED;
    *(end == DLX_CLAIM_DEAD ? &q->n_dead : &q->n_done) += 1;
    sim_check(w, is_done(q, h->taken.n), "message %ju is done, and its cell does not say so",
              h->taken.n);
}

/* Everything is done but what is kept. */
static bool may_go_on(const struct world *w)
{
    for (uint32_t p = 0; p < w->n_publishers; p++)
        for (uint32_t g = 0; g < w->n_groups; g++) {
            const struct publisher *from = &w->publishers[p];
            const struct queue *q = &from->queues[g][0];
            if (from->writer.head < w->last)
                return false;
            for (uint64_t n = from->n_queues[g] ? q->page->start : MAX_MESSAGES; n <= w->last;
                 n++) {
                bool is_kept = false;
                for (uint32_t i = 0; i < w->n_workers; i++)
                    is_kept |= w->workers[i].keeps && w->workers[i].keeps->at->queue == q &&
                               w->workers[i].keeps->taken.n == n;
                if (!is_kept && !is_done(q, n))
                    return false;
            }
        }
    return true;
}

static void finish(struct worker *s, struct claimed *h)
{
    sim_pause(0, 4);
    if (h->is_held)
        check_held(h);
    if (s->keeps_first && !s->kept) {
        s->kept = true;
        s->keeps = h;
        while (!may_go_on(s->world)) {
            sim_wait(&s->progress);
            s->progress = 0;
        }
        s->keeps = NULL;
    }
    if (s->renews && sim_random(3) == 0)
        sim_check(s->world,
                  dlx__claims_renew(&h->at->claims, h->taken.n, h->taken.claim, s->world->now_ns) ||
                      may_be_lost(h->at->queue),
                  "message %ju was not %u's any more", h->taken.n, s->index);
    bool returns = s->gives_back && sim_random(4) == 0;
    uint32_t order = sim_random(3);
    if (order == 0)
        let_go(h);
    settle(h, returns ? DLX_CLAIM_RETURNED : DLX_CLAIM_DONE);
    if (order == 1 || !s->keeps_holds)
        let_go(h);
}

static void finish_all(struct worker *s)
{
    for (uint32_t i = 0; i < N_SLOTS; i++)
        if (s->has[i].is_claimed)
            finish(s, &s->has[i]);
}

static void let_all_go(struct worker *s)
{
    for (uint32_t i = 0; i < N_SLOTS; i++)
        if (!s->has[i].is_claimed)
            let_go(&s->has[i]);
}

static void check_former(const struct queue *q, const struct story *story,
                         const struct dlx_taken *t)
{
    const struct world *w = q->publisher->world;
    uint32_t attempt = dlx__claim_attempt(t->claim);
    sim_check(w, story->fate != FINISHED, "message %ju was done, and is taken again", t->n);
    sim_check(w, attempt > story->attempt, "attempt %u at message %ju follows %u", attempt, t->n,
              story->attempt);
    sim_check(w, story->fate != TAKEN || is_killed(&w->workers[story->worker]) || w->lease_ns > 0,
              "worker %u has message %ju, which is taken again", story->worker, t->n);
    sim_check(w, t->n >= q->page->start, "message %ju is older than the group", t->n);
    sim_check(w, attempt == 1 || story->fate != UNTOUCHED || w->n_dead > 0 || may_be_lost(q),
              "message %ju was never taken, and this is attempt %u", t->n, attempt);
}

static struct claimed *free_slot(struct worker *s)
{
    for (uint32_t i = 0; i < N_SLOTS; i++)
        if (!s->has[i].is_claimed && !s->has[i].is_held)
            return &s->has[i];
    return NULL;
}

static void receive(struct wlink *at, const struct dlx_taken *taken, uint32_t n)
{
    struct worker *s = at->worker;
    const struct world *w = s->world;
    for (uint32_t i = 0; i < n; i++) {
        struct story *story = &at->queue->stories[taken[i].n];
        struct claimed *h = free_slot(s);
        uint32_t attempt = dlx__claim_attempt(taken[i].claim);
        sim_check(w, h, "more is held than allowed");
        if (!may_be_lost(at->queue) || attempt > story->attempt) {
            check_former(at->queue, story, &taken[i]);
            *story = (struct story){.fate = TAKEN,
                                    .worker = s->index,
                                    .attempt = attempt,
                                    .processed = story->processed,
                                    .dead = story->dead};
        }
        at->queue->n_redelivered += attempt > 1 && attempt <= w->max_attempts;
        *h = (struct claimed){.taken = taken[i], .at = at, .is_claimed = true, .is_held = true};
        check_held(h);
    }
    /* Dead letters. */
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        struct claimed *h = &s->has[i];
        if (h->is_claimed && dlx__claim_attempt(h->taken.claim) > w->max_attempts) {
            settle(h, DLX_CLAIM_DEAD);
            let_go(h);
        }
    }
}

static void handle_events(struct worker *s)
{
    for (uint32_t p = 0; p < s->world->n_publishers; p++) {
        s->links[p].looks |= s->links[p].bell;
        s->links[p].bell = false;
    }
}

static void disarm(struct worker *s)
{
    if (!s->is_armed)
        return;
    for (uint32_t p = 0; p < s->world->n_publishers; p++)
        if (s->links[p].joined && !s->links[p].has_ended)
            dlx__claims_disarm(&s->links[p].claims);
    dlx_fence();
    s->is_armed = false;
    s->was_rung = true;
}

static bool arm(struct worker *s)
{
    bool nothing = true;
    for (uint32_t p = 0; p < s->world->n_publishers; p++)
        if (!s->links[p].has_ended)
            dlx__claims_arm(&s->links[p].claims);
    dlx_fence();
    s->is_armed = true;
    for (uint32_t p = 0; p < s->world->n_publishers; p++)
        nothing &= s->links[p].has_ended ||
                   (!s->links[p].looks && dlx__claims_nothing_there(&s->links[p].claims));
    return nothing;
}

static void pass_on(struct worker *s, const struct wlink *link)
{
    for (uint32_t p = 0; s->was_rung && p < s->world->n_publishers; p++)
        if (&s->links[p] != link && !s->links[p].has_ended &&
            dlx__claims_has_unclaimed(&s->links[p].claims))
            ring_queue(s->links[p].queue);
    s->was_rung = false;
}

static void close_link(struct wlink *at)
{
    struct publisher *p = at->queue->publisher;
    at->closed = at->has_ended = true;
    note_desertion(at->queue, at); /* the publisher may see it at any step from now on */
    dlx__claims_close(&at->claims);
    p->bell += p->hung_up;
    sim_yield();
    end_link(at);
}

static void see_end(struct wlink *at)
{
    struct queue *q = at->queue;
    const struct world *w = q->publisher->world;
    q->saw_end = true;
    for (uint64_t n = q->page->start; w->gating && !q->deserted && n <= newest_of(q->publisher);
         n++)
        sim_check(w, is_done(q, n), "worker %u came to the end, and message %ju is not done",
                  at->worker->index, n);
    for (uint32_t i = 0; i < N_SLOTS; i++)
        sim_check(w,
                  !at->worker->has[i].is_claimed || at->worker->has[i].at != at || may_be_lost(q),
                  "worker %u came to the end, and has message %ju", at->worker->index,
                  at->worker->has[i].taken.n);
    close_link(at);
}

/* As try_take() of the client. Returns whether something was taken. */
static bool try_take(struct worker *s, uint32_t first)
{
    struct world *w = s->world;
    disarm(s);
    for (uint32_t k = 0; k < w->n_publishers; k++) {
        struct wlink *at = &s->links[(first + k) % w->n_publishers];
        struct dlx_taken taken[MAX_HELD];
        uint32_t n_claims = 0;
        if (at->has_ended)
            continue;
        for (uint32_t i = 0; i < N_SLOTS; i++)
            n_claims += s->has[i].is_claimed;
        dlx__claims_set_over(&at->claims, at->queue->publisher->hung_up);
        if (at->looks || (w->lease_ns > 0 && sim_random(4) == 0)) {
            at->looks = false;
            w->now_ns += sim_random(4) * LEASE_NS / 8;
            (void)dlx__claims_look(&at->claims, w->now_ns);
        }
        int r = dlx__claims_take(&at->claims, taken,
                                 DLX_MIN(MAX_HELD - n_claims, 1 + sim_random(s->batch)));
        check_links(s);
        if (r == DLX_E_TOO_MANY_HELD) {
            sim_check(w, n_claims == MAX_HELD || dlx__reader_n_held(&at->reader) == MAX_HELD,
                      "too many held");
            finish_all(s);
            let_all_go(s);
            k--;
        } else if (r == DLX_E_PUBLISHER_GONE) {
            see_end(at);
        } else if (r > 0) {
            receive(at, taken, (uint32_t)r);
            pass_on(s, at);
            return true;
        } else {
            sim_check(w, r == DLX_E_EMPTY, "take: %d %s", r, dlx__error_message());
        }
    }
    return false;
}

static void leave(struct worker *s)
{
    for (uint32_t p = 0; p < s->world->n_publishers; p++)
        if (!s->links[p].has_ended)
            close_link(&s->links[p]);
    /* The messages outlive the subscription; and those that are let go are given back. */
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        struct claimed *h = &s->has[i];
        if (h->is_claimed && sim_random(2))
            let_go(h), settle(h, DLX_CLAIM_RETURNED);
        else if (h->is_claimed)
            finish(s, h);
        let_go(h);
    }
    s->is_alive = false;
    for (uint32_t p = 0; p < s->world->n_publishers; p++)
        ring_queue(s->links[p].queue); /* as dlx__link_claims_free() */
    s->finished = true;
    note_progress(s->world);
}

static void worker_main(void *userdata)
{
    struct worker *s = userdata;
    struct world *w = s->world;
    uint32_t leave_after = w->leaves && s->is_mortal ? sim_random(12) : UINT32_MAX;
    sim_pause(0, sim_random(3) == 0 ? 1500 : 100);
    for (s->owner = 1; is_owner_used(w, s->group, s->owner);)
        s->owner++;
    s->is_alive = true;
    for (uint32_t p = 0; p < w->n_publishers; p++)
        join(&s->links[p], &w->publishers[p]);
    for (uint32_t n = 0; n < leave_after; n++) {
        bool is_over = true;
        for (uint32_t p = 0; p < w->n_publishers; p++)
            is_over &= s->links[p].has_ended;
        if (is_over)
            break;
        if (sim_random(8) == 0)
            handle_events(s);
        if (try_take(s, sim_random(w->n_publishers))) {
            for (uint32_t i = 0; i < N_SLOTS; i++)
                if (s->has[i].is_claimed && (s->batch == 1 || sim_random(3)))
                    finish(s, &s->has[i]);
            if (sim_random(3) == 0)
                let_all_go(s);
            continue;
        }
        /* Who sleeps with claims, or with holds where memory is short, may starve the publisher. */
        finish_all(s);
        if (!w->roomy)
            let_all_go(s);
        if (arm(s)) {
            sim_wait(&s->wake);
            s->wake = 0;
            handle_events(s);
        }
    }
    leave(s);
}

/* ---- an ordinary subscriber ------------------------------------------------------------------ */

static void env_ring_publisher_too(void *userdata)
{
    ((struct publisher *)userdata)->bell++;
}

static const struct dlx_reader_env subscriber_env = {.ring = env_ring_publisher_too};

static void subscriber_main(void *userdata)
{
    struct publisher *p = userdata;
    const struct world *w = p->world;
    uint64_t last;
    while (p->joining)
        sim_yield();
    p->joining = true;
    p->subscriber_waits = true;
    sim_yield();
    p->joining = false;
    atomic_fetch_add(&p->membership->joins, 1);
    sim_yield();
    dlx__reader_init(&p->reader, p->control, w->n_entries, 0, p->page, 31, 1, false, w->gating,
                     true, &subscriber_env, p);
    dlx__reader_start(&p->reader, 0);
    last = p->reader.cursor;
    for (;;) {
        struct dlx_taken taken;
        bool over = p->subscriber_over;
        int r = dlx__reader_take(&p->reader, &taken, 1);
        if (r == DLX_E_PUBLISHER_GONE || (r == DLX_E_EMPTY && over))
            break;
        if (r == DLX_E_EMPTY) {
            if (dlx__reader_arm(&p->reader)) {
                sim_wait(&p->subscriber_wake);
                p->subscriber_wake = 0;
            }
            continue;
        }
        sim_check(w, r == 1 && taken.n == last + taken.gap + 1 && (!w->gating || taken.gap == 0),
                  "%ju after %ju", taken.n, last);
        p->subscriber_holds = last = taken.n;
        for (uint32_t i = 0; i < PAYLOAD_WORDS; i++, sim_yield())
            sim_check(w, p->cells[last].words[i] == last, "payload of %ju", last);
        p->subscriber_holds = 0;
        dlx__reader_release(&p->reader, taken.hold);
    }
    dlx__reader_close(&p->reader);
    atomic_fetch_add(&p->membership->leaves, 1);
    p->bell++;
}

/* ---- a run ----------------------------------------------------------------------------------- */

static void begin_worker(struct world *w, struct sim *sim, uint32_t i)
{
    struct worker *s = &w->workers[i];
    uint64_t x = w->seed >> (3 + i);
    *s = (struct worker){.world = w, .index = i, .group = i % w->n_groups};
    /* One of each group stays to the end, but sometimes of one that was not declared: messages of
     * others are done by it. */
    s->is_mortal = i >= w->n_groups || (x % 3 == 0 && s->group >= w->n_declared && !w->keeps_first);
    s->keeps_first = w->keeps_first && i >= w->n_groups && (x / 3 % 4 > 0 || i < 2 * w->n_groups);
    s->gives_back = x / 5 % 3 == 0;
    s->renews = x / 7 % 3 == 0;
    s->keeps_holds = x / 11 % 2;
    s->batch = w->keeps_first ? 1 : 1 + (uint32_t)(x / 13 % MAX_HELD);
    for (uint32_t p = 0; p < w->n_publishers; p++) {
        struct wlink *at = &s->links[p];
        at->worker = s;
        at->page = dlx_test_link(&at->link, i, MAX_HELD, false, false);
    }
    s->process = sim_spawn(sim, worker_main, s);
}

static void begin_publisher(struct world *w, struct sim *sim, uint32_t i)
{
    struct publisher *p = &w->publishers[i];
    p->world = w;
    p->index = i;
    p->last_number = w->n_declared;
    p->control = dlx_test_control(w->n_entries);
    p->membership = dlx_test_pages(DLX_PAGE);
    p->memory = w->kept + 1 + (uint32_t)(w->seed >> 5) % 4;
    if (w->roomy)
        p->memory += w->n_workers * MAX_HELD + w->window;
    ck_assert_int_eq(dlx__writer_init(&p->writer, p->control, w->n_entries, w->window, w->kept,
                                      w->gating, p->membership, &writer_env, p),
                     0);
    ck_assert_int_eq(dlx__writer_declare(&p->writer, w->n_declared), 0);
    for (uint32_t g = 0; g < w->n_declared; g++)
        (void)queue_of(p, g);
    p->page = dlx_test_link(&p->link, 31, 1, w->gating, false);
    p->process = sim_spawn(sim, publisher_main, p);
}

static void check_queue(const struct queue *q)
{
    const struct publisher *p = q->publisher;
    const struct world *w = p->world;
    struct dlx_shm_claims *page = q->page;
    uint64_t start = page->start, last = newest_of(p);
    if (start == 0)
        return;
    for (uint64_t n = start; n <= last; n++) {
        const struct story *story = &q->stories[n];
        if (w->gating && !q->deserted)
            sim_check(w, story->processed || story->dead || !is_done(q, n),
                      "message %ju of publisher %u, group %u, is lost", n, p->index, q->group);
        if (w->gating && !q->deserted && q->saw_end)
            sim_check(w, is_done(q, n), "message %ju is not done", n);
    }
    sim_check(w, !w->gating || q->deserted || page->lost == 0, "%ju are lost", page->lost);
    sim_check(w,
              page->redelivered >= q->n_redelivered && page->dead >= q->n_dead &&
                  page->returned >= q->n_given_back,
              "counts: redelivered %ju of %ju, dead %ju of %ju, returned %ju of %ju",
              page->redelivered, q->n_redelivered, page->dead, q->n_dead, page->returned,
              q->n_given_back);
    if (w->n_dead > 0)
        return;
    sim_check(w,
              page->redelivered == q->n_redelivered && page->dead == q->n_dead &&
                  (w->lease_ns > 0 || page->returned == q->n_given_back),
              "counts: redelivered %ju of %ju, dead %ju of %ju, returned %ju of %ju",
              page->redelivered, q->n_redelivered, page->dead, q->n_dead, page->returned,
              q->n_given_back);
    uint64_t n_told = q->n_done + q->n_dead + page->lost, pending = n_pending(q, start, last);
    sim_check(w, n_told + pending == last + 1 - DLX_MIN(start, last + 1),
              "%ju done, %ju dead, %ju lost, %ju pending of %ju to %ju", q->n_done, q->n_dead,
              (uint64_t)page->lost, pending, start, last);
}

static void end_publisher(struct publisher *p)
{
    struct world *w = p->world;
    w->misses = false;
    if (!p->was_killed) {
        dlx__writer_read_membership(&p->writer);
        env_look_for_dead(p);
        sim_check(w, p->writer.head == w->last, "published %ju", p->writer.head);
        dlx_test_reclaim_all(&p->writer);
        for (uint32_t i = 0; i < w->n_workers; i++)
            sim_check(w,
                      !w->workers[i].links[p->index].picked || w->workers[i].links[p->index].gone,
                      "link of %u stays", i);
        bool all_done = true;
        for (uint32_t g = 0; g < w->n_declared; g++)
            all_done &= p->queues[g][0].saw_end;
        sim_check(w, !all_done || (p->n_used == w->kept && p->writer.n_retired == 0),
                  "%u payloads are in use", p->n_used);
    }
    for (uint32_t g = 0; g < w->n_groups; g++)
        for (uint32_t i = 0; i < p->n_queues[g]; i++)
            check_queue(&p->queues[g][i]);
    p->is_over = p->was_killed;
    dlx__writer_deinit(&p->writer);
    for (uint32_t g = 0; g < w->n_groups; g++)
        for (uint32_t i = 0; i < p->n_queues[g]; i++)
            free(p->queues[g][i].page);
    free(p->control);
    free(p->membership);
    free(p->page);
}

static void run_seed(uint64_t seed)
{
    static struct world w;
    struct sim *sim = sim_new(seed);
    w = (struct world){.seed = seed};
    configure(&w);
    for (uint32_t i = 0; i < w.n_publishers; i++)
        begin_publisher(&w, sim, i);
    for (uint32_t i = 0; i < w.n_workers; i++)
        begin_worker(&w, sim, i);
    if (w.subscribes)
        sim_spawn(sim, subscriber_main, &w.publishers[0]);
    if (w.n_to_die > 0 || w.publisher_dies)
        sim_spawn(sim, reaper_main, &w);
    bool ended = sim_run(sim);
    if (!ended)
        show(&w);
    sim_check(&w, ended, "deadlock");
    for (uint32_t i = 0; i < w.n_publishers; i++)
        end_publisher(&w.publishers[i]);
    for (uint32_t i = 0; i < w.n_workers; i++)
        for (uint32_t p = 0; p < w.n_publishers; p++) {
            dlx__claims_deinit(&w.workers[i].links[p].claims);
            free(w.workers[i].links[p].page);
        }
    sim_free(sim);
}

int main(void)
{
    return dlx_test_sim_run(run_seed, 4000);
}
