/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/actor/actor.h"
#include <inttypes.h>
#include <string.h>

bool actor_join(struct actor_subscriber *s, const struct dlx_subscribe_args *args)
{
    struct actor_object *o = s->part->object;
    int r;
    o->flags =
        (args->reliable ? ACTOR_RELIABLE : 0) | (args->mode == DLX_MODE_LATEST ? ACTOR_LATEST : 0);
    actor_begins(s->part);
    while ((r = dlx_subscribe(s->part->client, o->topic, args, &s->s)) < 0)
        if (!actor_begins_again(s->part, r, "dlx_subscribe"))
            return false;
    actor_has_begun(s->part);
    return true;
}

void actor_leave(struct actor_subscriber *s)
{
    (void)actor_stats(s);
    s->s = dlx_subscription_unref(s->s);
    actor_ends(s->part);
}

static struct actor_key *key_of(struct actor_object *o, uint64_t key)
{
    for (uint32_t i = o->n_keys; i-- > 0;)
        if (o->keys[i].key == key)
            return &o->keys[i];
    if (o->n_keys == ACTOR_KEYS)
        actor_fault("topic %s: more than %d publishers", o->topic, ACTOR_KEYS);
    o->keys[o->n_keys].key = key;
    return &o->keys[o->n_keys++];
}

/* Messages of a publisher come in order, and what is missing is said. */
void actor_take_in(struct actor_subscriber *s, const struct dlx_message *m)
{
    struct actor_object *o = s->part->object;
    struct actor_header h = actor_header_of(m);
    struct actor_key *k = key_of(o, h.key);
    uint64_t gap = dlx_message_gap(m);
    actor_check(m, "when it was taken");
    if (gap >= h.seq)
        actor_fault("topic %s: message %" PRIu64 " after a gap of %" PRIu64, o->topic, h.seq, gap);
    if (k->taken == 0) {
        k->start = h.seq - gap - 1;
        k->first_ns = actor_now_ns();
        k->first_gap = gap;
        k->prev_ns = gap == 0 ? h.prev_ns : 0;
    } else if (h.seq != k->last + gap + 1) {
        actor_fault("topic %s, key %" PRIu64 ", flags %u: message %" PRIu64 " after %" PRIu64
                    ", and a gap of %" PRIu64 " is reported",
                    o->topic, h.key, o->flags, h.seq, k->last, gap);
    }
    k->last = h.seq;
    k->gaps += gap;
    k->taken++;
    o->done++;
    o->bytes += h.n_bytes;
}

void actor_hold(struct actor_subscriber *s, struct dlx_message *take_m, uint64_t until_ns,
                bool tensor)
{
    struct actor_held h = {.m = take_m, .bytes = actor_bytes(take_m), .until_ns = until_ns};
    int r = tensor ? dlx_message_tensor(take_m, 0, &h.t) : 0;
    if (r < 0)
        actor_fault("dlx_message_tensor: %s", dlx_errmsg());
    s->held_bytes += h.bytes;
    s->held[s->n_held++] = h;
    if (s->n_held > s->part->object->held_max)
        s->part->object->held_max = s->n_held;
}

void actor_release(struct actor_subscriber *s, uint32_t i)
{
    struct actor_held *h = &s->held[i];
    actor_check(h->m, "when it was released");
    dlx_message_unref(h->m);
    if (h->t)
        h->t->deleter(h->t);
    s->held_bytes -= h->bytes;
    s->n_held--;
    memmove(h, h + 1, (s->n_held - i) * sizeof *h);
}

void actor_release_all(struct actor_subscriber *s)
{
    while (s->n_held > 0)
        actor_release(s, s->n_held - 1);
}

bool actor_note_step(const struct actor_step *noted)
{
    uint32_t i = atomic_fetch_add(&actor.ledger->head.n_steps, 1);
    if (i >= ACTOR_STEPS)
        return false;
    struct actor_step *step = &actor.ledger->steps[i];
    step->ns = actor_now_ns();
    step->key = noted->key;
    step->seq = noted->seq;
    step->group = noted->group;
    step->attempt = noted->attempt;
    atomic_store(&step->what, noted->what);
    return true;
}

bool actor_note(const struct dlx_message *m, uint32_t group, enum actor_what what)
{
    struct actor_header h = actor_header_of(m);
    return actor_note_step(&(const struct actor_step){.key = h.key,
                                                      .seq = (uint32_t)h.seq,
                                                      .group = (uint8_t)group,
                                                      .attempt = (uint8_t)dlx_message_attempt(m),
                                                      .what = (uint8_t)what});
}

struct dlx_subscription_stats actor_stats(struct actor_subscriber *s)
{
    struct dlx_subscription_stats stats = {.size = sizeof stats};
    struct actor_object *o = s->part->object;
    if (dlx_subscription_get_stats(s->s, &stats) < 0)
        actor_fault("dlx_subscription_get_stats: %s", dlx_errmsg());
    if (stats.n_held > s->n_held) /* of publishers that are gone they are not counted */
        actor_fault("topic %s: %u messages are held, %u are counted", o->topic, s->n_held,
                    stats.n_held);
    o->taken = stats.taken;
    o->skipped = stats.skipped;
    o->lost = stats.lost;
    return stats;
}

void actor_read_events(struct actor_subscriber *s)
{
    struct actor_object *o = s->part->object;
    struct dlx_event event = {.size = sizeof event};
    while (dlx_subscription_next_event(s->s, &event) == 0)
        for (uint32_t i = 0; event.kind == DLX_EVENT_LOST && i < o->n_keys; i++)
            o->keys[i].lost_told += o->keys[i].key / ACTOR_KEYS_OF_PROCESS == event.pid;
}
