/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The publisher of tests/fail/faults. On faults/main it waits for two subscribers, publishes LAST
 * messages of many sizes, sets and copies among them. In between it has a second publisher, on
 * faults/side, with a small depth, so that arenas that nobody needs any more are dropped; its last
 * messages stay with the daemon, are got and dropped. It ends when its standard input does.
 */

#include "tests/fail/faults/actor.h"
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct dlx_client *c;

struct stream {
    struct dlx_publisher *p;
    uint64_t id;
};

/* Messages from private memory are copied in. */
static struct {
    DLManagedTensorVersioned managed;
    int64_t shape;
    uint64_t data[64];
} own[3];

static void not_managed(DLManagedTensorVersioned *t)
{
    (void)t;
}

static DLManagedTensorVersioned *make(const struct stream *s, int64_t i, uint32_t k)
{
    int64_t n = actor_words(i, k);
    if (i % 7 == 3 && n <= 64) {
        own[k].shape = n;
        own[k].managed = (DLManagedTensorVersioned){
            .version = {DLPACK_MAJOR_VERSION, 0},
            .deleter = not_managed,
            .dl_tensor = {.data = own[k].data,
                          .device = {kDLCPU, 0},
                          .ndim = 1,
                          .dtype = {kDLUInt, 64, 1},
                          .shape = &own[k].shape},
        };
        actor_fill(own[k].data, s->id, i, k);
        return &own[k].managed;
    }
    const struct dlx_tensor_spec spec = {
        .size = sizeof spec, .dtype = {kDLUInt, 64, 1}, .ndim = 1, .shape = &n};
    DLManagedTensorVersioned *t = NULL;
    int r;
    while ((r = dlx_alloc(s->p, &spec, &t)) < 0)
        actor_error("alloc", r);
    actor_fill(t->dl_tensor.data, s->id, i, k);
    return t;
}

static void publish(const struct stream *s, int64_t i)
{
    static const char *const names[] = {"first", "second", "third"};
    struct dlx_publish_report report = {.size = sizeof report};
    const struct dlx_publish_args args = {
        .size = sizeof args, .timeout_ns = 10 * SECOND, .report = &report};
    const struct dlx_bytes meta = {.data = "the end", .size = 8};
    struct dlx_item items[3];
    uint32_t n = actor_n_tensors(i);
    int r;
    for (uint32_t k = 0; k < n; k++)
        items[k] = (struct dlx_item){.name = names[k], .tensor = make(s, i, k)};
    atomic_fetch_add(&page->began, 1);
    do {
        r = n == 1 ? dlx_publish(s->p, items[0].tensor, &args)
                   : dlx_publish_set(s->p, items, n, i >= LAST ? &meta : NULL, &args);
        if (r < 0)
            actor_error("publish", r);
    } while (r < 0);
    atomic_fetch_add(&page->done, 1);
    if (report.seq != (uint64_t)i)
        actor_wrong("wrong: message %" PRId64 " was published as %" PRIu64, i, report.seq);
}

static bool input_has_ended(int timeout_ms)
{
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    return poll(&in, 1, timeout_ms) == 1;
}

/* Returns false when nobody needs it any more. */
static bool wait_for_subscribers(const struct stream *s)
{
    int r;
    atomic_store(&page->state, FAULT_WAITING);
    while ((r = dlx_publisher_wait(s->p, (uint32_t)atomic_load(&page->wanted), SECOND / 20)) < 0) {
        if (r != DLX_E_TIMEOUT)
            actor_error("publisher_wait", r);
        if (input_has_ended(0))
            return false;
    }
    atomic_store(&page->state, FAULT_STREAMING);
    return true;
}

/* B leaves and comes back about now: three have joined then. It may be unable to. */
static void wait_for_b(const struct stream *s)
{
    struct dlx_event event = {.size = sizeof event};
    int64_t until = actor_now() + SECOND / 5;
    unsigned joined = 0;
    atomic_store(&page->state, FAULT_WAITING);
    while (joined < 3 && actor_now() < until) {
        while (dlx_publisher_next_event(s->p, &event) == 0)
            joined += event.kind == DLX_EVENT_JOINED;
        if (joined < 3)
            (void)dlx_publisher_wait(s->p, UINT32_MAX, SECOND / 200);
    }
    atomic_store(&page->state, FAULT_STREAMING);
}

static struct stream begin(const char *topic, const struct dlx_publisher_args *args)
{
    static uint64_t last_id;
    struct stream s = {.id = (uint64_t)getpid() * 100 + ++last_id};
    int r;
    while ((r = dlx_publisher_new(c, topic, args, &s.p)) < 0)
        actor_error("publisher_new", r);
    return s;
}

static uint32_t n_arenas(const struct stream *s)
{
    struct dlx_publisher_stats stats = {.size = sizeof stats};
    int r = dlx_publisher_get_stats(s->p, &stats);
    if (r < 0)
        actor_wrong("wrong: get_stats");
    return stats.n_arenas;
}

/* What the daemon keeps is the newest. A daemon that has ended since has kept nothing. */
static void get_retained(const struct stream *s)
{
    struct dlx_message *m = NULL;
    uint64_t id;
    int r = DLX_E_TIMEOUT;
    for (int64_t until = actor_now() + STUCK_NS; r < 0 && actor_now() < until;) {
        r = dlx_get(c, "faults/side", SECOND, &m);
        if (r == DLX_E_TIMEOUT)
            return;
        if (r < 0) {
            actor_error("get", r);
            (void)input_has_ended(20); /* the next daemon takes a while */
        }
    }
    if (r < 0)
        actor_wrong("wrong: dlx_get() fails for ever");
    int64_t i = actor_check(dlx_message_peek(m, 0), 0, &id);
    if (id != s->id || i != LAST_SIDE)
        actor_wrong("wrong: message %" PRId64 " of %" PRIu64 " is retained", i, id);
    dlx_message_unref(m);
}

static void drop_retained(void)
{
    int r;
    while ((r = dlx_retained_drop(c, "faults/side")) < 0 && r != DLX_E_NOT_FOUND)
        actor_error("retained_drop", r);
}

static void side_story(uint32_t ret_arenas[2])
{
    const struct dlx_publisher_args args = {
        .size = sizeof args, .history = 2, .on_full = DLX_ON_FULL_BLOCK, .depth = 2, .retain = 2};
    struct stream s = begin("faults/side", &args);
    bool wanted = wait_for_subscribers(&s);
    for (int64_t i = 1; wanted && i <= LAST_SIDE; i++) {
        publish(&s, i);
        if (i == LAST_BIG)
            ret_arenas[0] = n_arenas(&s);
    }
    ret_arenas[1] = n_arenas(&s);
    dlx_publisher_unref(s.p);
    if (wanted)
        get_retained(&s);
    drop_retained();
}

int actor_publish(const char *socket)
{
    const struct dlx_publisher_args args = {
        .size = sizeof args, .history = 4, .on_full = DLX_ON_FULL_BLOCK};
    struct dlx_publisher_stats stats = {.size = sizeof stats};
    struct dlx_publisher_info info = {.size = sizeof info};
    struct actor_usage before = actor_usage();
    uint32_t arenas[2] = {0, 0};
    int r;
    actor_mark();
    c = actor_connect(socket);
    struct stream s = begin("faults/main", &args);
    bool wanted = wait_for_subscribers(&s);
    for (int64_t i = 1; wanted && i <= LAST; i++) {
        publish(&s, i);
        if (i == LAST_BIG)
            side_story(arenas);
        if (i == (LEAVE_AT + HOLD_FROM) / 2)
            wait_for_b(&s);
    }
    (void)actor_n_publishers(c, &info);
    atomic_store(&page->state, FAULT_FINISHED);
    /* It calls the library: else a new daemon would not hear of it. What it published before that
     * daemon came is not for newcomers, so it says the end again. */
    for (int64_t i = LAST + 1; !input_has_ended(0);) {
        r = dlx_publisher_wait(s.p, UINT32_MAX, SECOND / 5);
        if (r != DLX_E_TIMEOUT)
            actor_error("publisher_wait", r);
        else if (wanted && i <= LAST + ENCORES && !input_has_ended(0))
            publish(&s, i++);
    }
    if (dlx_publisher_get_stats(s.p, &stats) < 0)
        actor_wrong("wrong: get_stats");
    dlx_publisher_unref(s.p);
    dlx_client_unref(c);
    actor_mark();
    struct actor_usage after = actor_usage();
    actor_print("{\"stream\": \"%" PRIu64 "\", \"sent\": %" PRIu64
                ", \"errors\": %u, \"fds\": %d, \"maps\": %d, \"depth\": %u, \"arenas\": [%u, %u], "
                "\"blocked\": %" PRIu64 ", \"bells\": %" PRIu64 "}",
                s.id, stats.published, actor_n_errors(), after.fds - before.fds,
                after.maps - before.maps, info.depth, arenas[0], arenas[1], stats.blocked,
                stats.bells);
    return 0;
}
