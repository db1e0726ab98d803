/* SPDX-License-Identifier: Apache-2.0 */

/* Workers of queues: they come, claim one or several, say done, give back, release without either,
 * and go, and their books say what they did with which message. */

#include "tests/actor/actor.h"
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>

#define TAKEN_MAX 20
#define DRAIN_NS  (60 * ACTOR_SECOND)
#define QUIET     50

/* The attempts of each group. No message of the first one becomes a dead letter. */
static const struct {
    const char *name;
    uint32_t max_attempts;
} groups[ACTOR_GROUPS] = {{"a", 60}, {"b", 2}, {"c", 0}};

/* Publishers declare none of group c. */
void actor_choose_groups(struct actor_part *part, struct dlx_publisher_args *args)
{
    static const char *const declared[] = {"a", "b"};
    struct actor_object *o = part->object;
    (void)snprintf(o->topic, sizeof o->topic, "soak/work/%u", (unsigned)actor_random(part, 3));
    args->on_full = DLX_ON_FULL_BLOCK;
    if (!actor_once_in(part, 4)) {
        args->groups = declared;
        args->n_groups = 2;
        args->retain_for_ns = 0; /* what is undone would be dropped then */
        o->flags = ACTOR_DECLARES;
    }
}

struct worker {
    struct actor_part *part;
    struct actor_subscriber in;
    struct dlx_subscribe_args args;
    uint32_t group;
    bool sweeps, polls, has_room;
    uint64_t pause_us;
};

static void note(struct worker *w, const struct dlx_message *m, enum actor_what what)
{
    w->has_room &= actor_note(m, w->group, what);
}

static void say_done(struct worker *w, struct dlx_message *m)
{
    note(w, m, ACTOR_SAYS_DONE);
    int r = dlx_message_done(m);
    if (r != 0 && r != DLX_E_NOT_FOUND)
        actor_fault("dlx_message_done: %s", dlx_errmsg());
    note(w, m, r == 0 ? ACTOR_DID : ACTOR_WAS_LATE);
}

/* Claimed messages are held here, and done when they are released. */
static void release(struct worker *w, uint32_t i)
{
    if (!actor_once_in(w->part, 20) || w->sweeps)
        say_done(w, w->in.held[i].m);
    actor_release(&w->in, i);
}

static void deal_with(struct worker *w, struct dlx_message *m)
{
    struct actor_part *part = w->part;
    uint64_t what = w->sweeps ? 0 : actor_random(part, 20);
    note(w, m, ACTOR_TOOK);
    actor_check(m, "when a worker took it");
    part->object->taken++;
    part->object->bytes += actor_bytes(m);
    if (what < 12 || w->in.n_held == ACTOR_HELD_MAX) {
        say_done(w, m);
    } else if (what < 13) {
        if (dlx_message_give_back(m) < 0)
            note(w, m, ACTOR_WAS_LATE);
        actor_check(m, "after it was given back");
    } else if (what < 14) {
        int r = dlx_message_renew(m);
        if (r < 0)
            note(w, m, ACTOR_WAS_LATE);
    } else if (what < 19) {
        actor_hold(&w->in, m, actor_now_ns() + actor_random_log(part, 400) * (uint64_t)ACTOR_MS,
                   actor_once_in(part, 2));
        return;
    } /* else it is released without a word */
    dlx_message_unref(m);
}

static bool take(struct worker *w, int64_t timeout_ns)
{
    struct dlx_message *taken[TAKEN_MAX];
    uint32_t n = 1;
    int64_t at_once = w->polls ? 0 : timeout_ns;
    int r = actor_once_in(w->part, 3) ? dlx_take_n(w->in.s, TAKEN_MAX, at_once, taken, &n)
                                      : dlx_take(w->in.s, at_once, &taken[0]);
    for (uint32_t i = 0; r == 0 && i < n; i++)
        deal_with(w, taken[i]);
    if (r == 0)
        return true;
    if (r == DLX_E_TOO_MANY_HELD) {
        if (w->in.n_held == 0)
            actor_fault("topic %s: nothing is held, but: %s", w->part->object->topic, dlx_errmsg());
        release(w, 0);
        return true;
    }
    if (r == DLX_E_EMPTY && w->polls) {
        struct pollfd p = {.fd = dlx_subscription_fd(w->in.s), .events = POLLIN};
        (void)poll(&p, 1, (int)(timeout_ns / ACTOR_MS));
    } else {
        actor_error(w->part->object, r, "dlx_take of a worker");
    }
    return false;
}

static void release_due(struct worker *w, uint64_t now)
{
    for (uint32_t i = w->in.n_held; i-- > 0;)
        if (w->in.held[i].until_ns <= now)
            release(w, i);
}

static void choose(struct worker *w)
{
    struct actor_part *part = w->part;
    struct actor_object *o = part->object;
    bool all = w->sweeps || actor_once_in(part, 3);
    (void)snprintf(o->topic, sizeof o->topic, all ? "soak/work/*" : "soak/work/%u",
                   (unsigned)actor_random(part, 3));
    w->args = (struct dlx_subscribe_args){.size = sizeof w->args,
                                          .group = groups[w->group].name,
                                          .max_attempts = groups[w->group].max_attempts};
    if (w->sweeps)
        return;
    w->args.max_held = actor_once_in(part, 2) ? 0 : 1 + (uint32_t)actor_random(part, 30);
    w->args.spin_ns = actor_once_in(part, 2) ? 0 : DLX_SPIN_NEVER;
    w->polls = actor_once_in(part, 3);
    w->pause_us = actor_once_in(part, 4) ? actor_random(part, 10000) : 0;
}

/* All publishers are closed: until everything is done, also what others give back. */
static void drain(struct worker *w)
{
    uint64_t end = actor_now_ns() + DRAIN_NS;
    for (unsigned quiet = 0; quiet < QUIET && atomic_load(&actor.phase) < ACTOR_END;) {
        while (w->in.n_held > 0)
            release(w, 0);
        bool came = take(w, 20 * ACTOR_MS);
        struct dlx_subscription_stats stats = {.size = sizeof stats};
        (void)dlx_subscription_get_stats(w->in.s, &stats);
        bool is_quiet =
            !came && stats.n_publishers == 0 && atomic_load(&actor.phase) >= ACTOR_DRAIN;
        quiet = is_quiet ? quiet + 1 : 0;
        if (actor_now_ns() > end)
            actor_fault("topic %s, group %s: %u publishers have something undone 60 s after all "
                        "have ended; done %" PRIu64 ", claimed %u",
                        w->part->object->topic, w->args.group, stats.n_publishers, stats.done,
                        stats.n_claimed);
    }
    if (atomic_load(&actor.phase) < ACTOR_END)
        w->part->object->state = ACTOR_DRAINED;
}

void actor_work(struct actor_part *part, uint32_t group)
{
    struct worker w = {.part = part,
                       .in = {.part = part},
                       .group = group < ACTOR_GROUPS ? group : (uint32_t)actor_random(part, 4) % 3,
                       .sweeps = group < ACTOR_GROUPS,
                       .has_room = true};
    choose(&w);
    if (!actor_join(&w.in, &w.args))
        return;
    while (actor_goes_on(part) && w.has_room) {
        (void)take(&w, (int64_t)actor_random_log(part, 50) * ACTOR_MS);
        actor_read_events(&w.in);
        release_due(&w, actor_now_ns());
        if (w.pause_us > 0)
            actor_sleep_ns(actor_random(part, w.pause_us * 1000));
    }
    if (atomic_load(&actor.phase) != ACTOR_RUN && atomic_load(&actor.phase) != ACTOR_END)
        drain(&w);
    if (actor_once_in(part, 2)) /* what is held may go before or after its subscription */
        release_due(&w, UINT64_MAX);
    actor_leave(&w.in);
    release_due(&w, UINT64_MAX);
}
