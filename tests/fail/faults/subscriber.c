/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The subscribers of tests/fail/faults: take until the last message of a stream, check every word
 * on taking and again on releasing, and account for every number: taken, or lost and said so, or
 * passed over between two subscriptions.
 */

#include "tests/fail/faults/actor.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define STREAMS_MAX 16

struct stream {
    uint64_t id;
    uint64_t first, last, taken;
    uint64_t reported; /* as lost */
    uint64_t passed;   /* between two subscriptions */
    uint64_t seen;     /* last one of this subscription, 0: none yet */
    bool is_side;
};

static struct {
    bool reliable;
    struct dlx_client *c;
    struct dlx_subscription *s;
    struct dlx_message *held[HELD_MAX];
    uint32_t n_held;
    bool has_left; /* as it was to */
    uint64_t n_gone;
    struct stream streams[STREAMS_MAX];
    uint32_t n_streams;
} me;

static void check(const struct dlx_message *m, uint64_t *ret_stream)
{
    uint64_t seq = dlx_message_seq(m);
    uint32_t n = dlx_message_n_tensors(m);
    if (n != actor_n_tensors((int64_t)seq))
        actor_wrong("wrong: message %" PRIu64 " has %u tensors", seq, n);
    for (uint32_t k = 0; k < n; k++) {
        int64_t i = actor_check(dlx_message_peek(m, k), k, ret_stream);
        if (i != (int64_t)seq)
            actor_wrong("wrong: message %" PRIu64 " has the content of %" PRId64, seq, i);
    }
}

static struct stream *stream_of(const struct dlx_message *m, uint64_t id)
{
    for (uint32_t i = 0; i < me.n_streams; i++)
        if (me.streams[i].id == id)
            return &me.streams[i];
    if (me.n_streams == STREAMS_MAX)
        actor_wrong("wrong: %u streams", me.n_streams);
    struct stream *s = &me.streams[me.n_streams++];
    *s = (struct stream){.id = id,
                         .first = dlx_message_seq(m),
                         .last = dlx_message_seq(m) - 1,
                         .is_side = strcmp(dlx_message_topic(m), "faults/side") == 0};
    return s;
}

static void account(const struct dlx_message *m, uint64_t id)
{
    struct stream *s = stream_of(m, id);
    uint64_t seq = dlx_message_seq(m), gap = dlx_message_gap(m);
    if (s->seen > 0 && seq != s->seen + gap + 1)
        actor_wrong("wrong: message %" PRIu64 " after %" PRIu64 " with a gap of %" PRIu64, seq,
                    s->seen, gap);
    bool before = s->seen > 0 && s->seen == s->last;
    s->seen = seq;
    if (seq <= s->last)
        return; /* history: it was taken before */
    *(before ? &s->reported : &s->passed) += seq - s->last - 1;
    s->last = seq;
    s->taken++;
    atomic_fetch_add(&page->done, 1);
}

static void subscribe(void)
{
    const struct dlx_subscribe_args args = {
        .size = sizeof args, .history = 4, .reliable = me.reliable, .max_held = HELD_MAX};
    int r;
    while ((r = dlx_subscribe(me.c, "faults/*", &args, &me.s)) < 0)
        actor_error("subscribe", r);
}

/* What is held stays valid. */
static void subscribe_again(void)
{
    dlx_subscription_unref(me.s);
    subscribe();
    for (uint32_t i = 0; i < me.n_streams; i++)
        me.streams[i].seen = 0;
}

/* Without one of the publishers: a failure has cut the link, or it was never made. */
static void after_error(void)
{
    struct dlx_subscription_stats stats = {.size = sizeof stats};
    int r = dlx_subscription_get_stats(me.s, &stats);
    if (r < 0)
        actor_wrong("wrong: get_stats");
    if (stats.n_publishers < actor_n_publishers(me.c, NULL))
        subscribe_again();
}

static void release_oldest(void)
{
    uint64_t stream;
    check(me.held[0], &stream);
    dlx_message_unref(me.held[0]);
    me.n_held--;
    memmove(&me.held[0], &me.held[1], me.n_held * sizeof(struct dlx_message *));
}

/* Returns true at the end of a stream. */
static bool on_message(struct dlx_message *m)
{
    uint64_t id = 0, seq = dlx_message_seq(m);
    check(m, &id);
    account(m, id);
    me.held[me.n_held++] = m;
    uint32_t keep = !me.reliable && seq >= HOLD_FROM && seq < LAST - 20 ? HOLD_MANY : 3;
    while (me.n_held > keep)
        release_oldest();
    if (!me.reliable && !me.has_left && seq >= LEAVE_AT) {
        me.has_left = true;
        subscribe_again();
    }
    size_t size = 0;
    const char *meta = dlx_message_meta(m, &size);
    bool ends = strcmp(dlx_message_topic(m), "faults/main") == 0 && seq >= LAST;
    if (ends && (!meta || size != 8 || strcmp(meta, "the end") != 0))
        actor_wrong("wrong: the last message without its metadata");
    return ends;
}

static void follow(void)
{
    int64_t since = actor_now();
    for (;;) {
        struct dlx_message *m = NULL;
        int r = dlx_take(me.s, SECOND / 5, &m);
        if (r == 0) {
            atomic_store(&page->state, FAULT_STREAMING);
            since = actor_now();
            if (on_message(m))
                return;
        } else if (r == DLX_E_PUBLISHER_GONE) {
            me.n_gone++;
        } else if (r != DLX_E_TIMEOUT) {
            actor_error("take", r);
            if (r != DLX_E_DISCONNECTED) /* it connects again by itself */
                after_error();
        }
        if (actor_now() - since > STUCK_NS)
            actor_wrong("wrong: no message for %d s", (int)(STUCK_NS / SECOND));
    }
}

static void say_stream(const struct stream *s)
{
    actor_print("stream {\"stream\": \"%" PRIu64 "\", \"side\": %d, \"first\": %" PRIu64
                ", \"last\": %" PRIu64 ", \"taken\": %" PRIu64 ", \"reported\": %" PRIu64
                ", \"passed\": %" PRIu64 "}",
                s->id, s->is_side, s->first, s->last, s->taken, s->reported, s->passed);
}

int actor_subscribe(const char *socket, bool reliable)
{
    struct actor_usage before = actor_usage();
    struct dlx_subscription_stats stats = {.size = sizeof stats};
    me.reliable = reliable;
    actor_mark();
    me.c = actor_connect(socket);
    subscribe();
    follow();
    atomic_store(&page->state, FAULT_FINISHED);
    if (dlx_subscription_get_stats(me.s, &stats) < 0)
        actor_wrong("wrong: get_stats");
    uint32_t n_held = me.n_held;
    while (me.n_held > 0)
        release_oldest();
    dlx_subscription_unref(me.s);
    dlx_client_unref(me.c);
    actor_mark();
    struct actor_usage after = actor_usage();
    for (uint32_t i = 0; i < me.n_streams; i++)
        say_stream(&me.streams[i]);
    actor_print("{\"gone\": %" PRIu64 ", \"errors\": %u, \"fds\": %d, \"maps\": %d, "
                "\"lost\": %" PRIu64 ", \"held\": %u, \"n_held\": %u}",
                me.n_gone, actor_n_errors(), after.fds - before.fds, after.maps - before.maps,
                stats.lost + stats.skipped, n_held, stats.n_held);
    return 0;
}
