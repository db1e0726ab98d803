/* SPDX-License-Identifier: Apache-2.0 */

/* A subscription's life, and that of somebody who only gets. */

#include "tests/soak/actor.h"
#include "tests/soak/payload.h"
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#define HELD_MAX       64
#define BATCH_MAX      20
#define HELD_BYTES_MAX (UINT64_C(40) << 20)
#define DRAIN_NS       (UINT64_C(60) * 1000000000U)

/* A message, or a tensor of it, that is kept for a while and looked at once more. */
struct held {
    struct dlx_message *m;
    DLManagedTensorVersioned *t; /* or NULL */
    uint64_t bytes, until_ns;
};

struct reader {
    struct soak_part *part;
    struct dlx_subscription *s;
    struct dlx_subscribe_args args;
    bool polls;
    uint64_t pause_us;
    uint64_t keep_one_in; /* messages */
    struct held held[HELD_MAX];
    uint32_t n_held;
    uint64_t held_bytes;
};

static const char *any_topic(struct soak_part *part, bool blocks, char *text, size_t size)
{
    const char *kind = blocks ? "block" : "drop";
    switch (soak_random(part, 6)) {
    case 0:
        (void)snprintf(text, size, "soak/%s/*", kind);
        break;
    case 1:
        (void)snprintf(text, size, blocks ? "soak/block/**" : "soak/**");
        break;
    default:
        (void)snprintf(text, size, "soak/%s/%u", kind, (unsigned)soak_random(part, 5));
    }
    return text;
}

/* ---- what was taken ------------------------------------------------------------------------ */

static struct soak_key *key_of(struct soak_object *o, uint64_t key)
{
    for (uint32_t i = o->n_keys; i-- > 0;)
        if (o->keys[i].key == key)
            return &o->keys[i];
    if (o->n_keys == SOAK_KEYS)
        soak_fault("topic %s: more than %d publishers", o->topic, SOAK_KEYS);
    o->keys[o->n_keys].key = key;
    return &o->keys[o->n_keys++];
}

/* Messages of a publisher come in order, and what is missing is said. */
static void count(struct reader *r, const struct dlx_message *m)
{
    struct soak_object *o = r->part->object;
    struct soak_header header = soak_message_header(m);
    struct soak_key *k = key_of(o, header.key);
    uint64_t gap = dlx_message_gap(m);
    if (gap >= header.seq)
        soak_fault("topic %s: message %" PRIu64 " after a gap of %" PRIu64, o->topic, header.seq,
                   gap);
    if (k->taken == 0) {
        k->start = header.seq - gap - 1;
        k->first_ns = soak_now_ns();
        k->first_gap = gap;
        k->prev_ns = gap == 0 ? header.prev_ns : 0;
    } else if (header.seq != k->last + gap + 1) {
        soak_fault("topic %s, key %" PRIu64 ", flags %u: message %" PRIu64 " after %" PRIu64
                   ", and a gap of %" PRIu64 " is reported",
                   o->topic, header.key, o->flags, header.seq, k->last, gap);
    }
    k->last = header.seq;
    k->gaps += gap;
    k->taken++;
    o->bytes += soak_message_bytes(m);
}

static void release(struct reader *r, uint32_t i)
{
    struct held *h = &r->held[i];
    soak_message_check(h->m, "when it was released");
    dlx_message_unref(h->m);
    if (h->t)
        h->t->deleter(h->t);
    r->held_bytes -= h->bytes;
    *h = r->held[--r->n_held];
}

static void release_some(struct reader *r, bool all)
{
    uint64_t now = soak_now_ns();
    for (uint32_t i = r->n_held; i-- > 0;)
        if (all || r->held[i].until_ns <= now)
            release(r, i);
}

static void keep_or_drop(struct reader *r, struct dlx_message *m)
{
    struct held h = {.m = m, .bytes = soak_message_bytes(m)};
    uint32_t most = r->args.max_held > 0 && r->args.max_held < HELD_MAX ? r->args.max_held : 16;
    if (r->n_held >= most || r->held_bytes + h.bytes > HELD_BYTES_MAX ||
        !soak_once_in(r->part, r->keep_one_in)) {
        dlx_message_unref(m);
        return;
    }
    h.until_ns = soak_now_ns() + soak_random_log(r->part, 800) * (uint64_t)SOAK_MS;
    if (soak_once_in(r->part, 2)) {
        int code = dlx_message_tensor(m, 0, &h.t);
        if (code < 0)
            soak_fault("dlx_message_tensor: %s", dlx_client_errmsg(NULL));
    }
    r->held_bytes += h.bytes;
    r->held[r->n_held++] = h;
    if (r->n_held > r->part->object->held_max)
        r->part->object->held_max = r->n_held;
}

/* Take one, or several; false: nothing came. */
static bool take(struct reader *r, int64_t timeout_ns)
{
    struct dlx_message *taken[BATCH_MAX];
    uint32_t n = 1;
    int code;
    int64_t wait_ns = timeout_ns;
    if (r->polls)
        timeout_ns = 0;
    if (soak_once_in(r->part, 4))
        code =
            dlx_take_n(r->s, timeout_ns, taken, 1 + (uint32_t)soak_random(r->part, BATCH_MAX), &n);
    else
        code = dlx_take(r->s, timeout_ns, &taken[0]);
    if (code == 0) {
        for (uint32_t i = 0; i < n; i++) {
            count(r, taken[i]);
            soak_message_check(taken[i], "when it was taken");
        }
        for (uint32_t i = 0; i < n; i++)
            keep_or_drop(r, taken[i]);
        return true;
    }
    if (code == DLX_E_TOO_MANY_HELD) {
        if (r->n_held == 0)
            soak_fault("topic %s: nothing is held, but: %s", r->part->object->topic,
                       dlx_client_errmsg(NULL));
        release(r, (uint32_t)soak_random(r->part, r->n_held));
        return true;
    }
    if (code == DLX_E_EMPTY && r->polls) {
        struct pollfd p = {.fd = dlx_subscription_fd(r->s), .events = POLLIN};
        (void)poll(&p, 1, (int)(wait_ns / SOAK_MS));
    } else {
        soak_error(r->part, code, "dlx_take");
    }
    return false;
}

static struct dlx_subscription_stats stats_of(struct reader *r)
{
    struct dlx_subscription_stats stats = {.size = sizeof stats};
    struct soak_object *o = r->part->object;
    if (dlx_subscription_get_stats(r->s, &stats) < 0)
        soak_fault("dlx_subscription_get_stats: %s", dlx_client_errmsg(NULL));
    if (stats.n_held > r->n_held) /* of publishers that are gone they are not counted */
        soak_fault("topic %s: %u messages are held, %u are counted", o->topic, r->n_held,
                   stats.n_held);
    o->taken = stats.taken;
    o->skipped = stats.skipped;
    o->lost = stats.lost;
    return stats;
}

/* ---- a life -------------------------------------------------------------------------------- */

static void choose(struct reader *r)
{
    struct soak_part *part = r->part;
    struct soak_object *o = part->object;
    static const int64_t spins[] = {0, 0, 0, DLX_SPIN_NEVER, DLX_SPIN_NEVER, 100000};
    bool blocks = soak_once_in(part, 2);
    r->args = (struct dlx_subscribe_args){.size = sizeof r->args};
    r->args.reliable = blocks && !soak_once_in(part, 3);
    r->args.mode = !r->args.reliable && soak_once_in(part, 4) ? DLX_MODE_LATEST : DLX_MODE_ALL;
    r->args.history = soak_once_in(part, 2)   ? 0
                      : soak_once_in(part, 3) ? DLX_HISTORY_NONE
                                              : 1 + (uint32_t)soak_random(part, 20);
    r->args.max_held = soak_once_in(part, 2) ? 0 : 1 + (uint32_t)soak_random(part, 100);
    r->args.spin_ns = spins[soak_random(part, sizeof spins / sizeof *spins)];
    r->polls = soak_once_in(part, 3);
    r->keep_one_in = 1 + soak_random(part, 20);
    r->pause_us = soak_once_in(part, 4) ? soak_random(part, 20000) : 0;
    (void)any_topic(part, blocks, o->topic, sizeof o->topic);
    o->flags = (r->args.reliable ? SOAK_RELIABLE : 0) |
               (r->args.mode == DLX_MODE_LATEST ? SOAK_LATEST : 0);
}

static bool begin(struct reader *r)
{
    struct soak_object *o = r->part->object;
    o->begun_ns = soak_now_ns();
    o->state = SOAK_BEGUN;
    for (;;) {
        int code = dlx_subscribe(r->part->client, o->topic, &r->args, &r->s);
        if (code == 0)
            break;
        soak_error(r->part, code, "dlx_subscribe");
        if (atomic_load(&soak_phase) != SOAK_RUN)
            return false;
        soak_sleep_ns(20 * SOAK_MS);
    }
    o->ready_ns = soak_now_ns();
    o->state = SOAK_ALIVE;
    return true;
}

/* All publishers close: until none is there any more, and everything was taken. */
static void drain(struct reader *r)
{
    uint64_t end = soak_now_ns() + DRAIN_NS;
    unsigned quiet = 0;
    while (atomic_load(&soak_phase) < SOAK_END) {
        release_some(r, true);
        bool came = take(r, 20 * SOAK_MS);
        struct dlx_subscription_stats stats = stats_of(r);
        quiet =
            came || stats.n_publishers > 0 || atomic_load(&soak_phase) < SOAK_DRAIN ? 0 : quiet + 1;
        if (quiet == 10) {
            r->part->object->state = SOAK_DRAINED;
            return;
        }
        if (soak_now_ns() > end)
            soak_fault("topic %s, flags %u: %u publishers are still there 60 s after all have "
                       "ended; taken %" PRIu64 ", lost %" PRIu64,
                       r->part->object->topic, r->part->object->flags, stats.n_publishers,
                       stats.taken, stats.lost);
    }
}

void soak_subscribe(struct soak_part *part)
{
    struct reader r = {.part = part};
    struct soak_object *o = part->object;
    o->kind = SOAK_SUBSCRIPTION;
    choose(&r);
    if (!begin(&r)) {
        o->state = SOAK_UNUSED;
        return;
    }
    while (atomic_load(&soak_phase) == SOAK_RUN && soak_now_ns() < part->until_ns) {
        (void)take(&r, (int64_t)soak_random_log(part, 50) * SOAK_MS);
        release_some(&r, false);
        if (r.pause_us > 0)
            soak_sleep_ns(soak_random(part, r.pause_us * 1000));
    }
    if (atomic_load(&soak_phase) != SOAK_RUN && atomic_load(&soak_phase) != SOAK_END)
        drain(&r);
    (void)stats_of(&r);
    if (soak_once_in(part, 2)) /* what is held may go before or after its subscription */
        release_some(&r, true);
    dlx_subscription_unref(r.s);
    release_some(&r, true);
    o->ended_ns = soak_now_ns();
    if (o->state != SOAK_DRAINED)
        o->state = SOAK_CLOSED;
}

void soak_get(struct soak_part *part)
{
    struct soak_object *o = part->object;
    o->kind = SOAK_GETTER;
    o->state = SOAK_ALIVE;
    while (atomic_load(&soak_phase) == SOAK_RUN && soak_now_ns() < part->until_ns) {
        struct dlx_message *m;
        (void)any_topic(part, soak_once_in(part, 2), o->topic, sizeof o->topic);
        int code = dlx_get(part->client, o->topic, (int64_t)soak_random(part, 50) * SOAK_MS, &m);
        if (code == 0) {
            soak_message_check(m, "when it was got");
            soak_sleep_ns(soak_random(part, 30) * (uint64_t)SOAK_MS);
            soak_message_check(m, "after it was got");
            o->bytes += soak_message_bytes(m);
            o->taken++;
            dlx_message_unref(m);
        } else {
            soak_error(part, code, "dlx_get");
        }
        soak_sleep_ns(soak_random(part, 200) * (uint64_t)SOAK_MS);
    }
    o->state = SOAK_CLOSED;
}
