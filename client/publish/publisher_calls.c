/* SPDX-License-Identifier: Apache-2.0 */

/* The calls on a publisher that publish nothing and do not wait for subscribers: its beginning, its
 * end, its counters and its events. */

#include "client/base/misuse.h"
#include "client/control/call.h"
#include "client/gpu/gpu.h"
#include "client/publish/publisher_link.h"
#include "client/publish/publisher_memory.h"
#include "client/publish/publisher_move.h"
#include "client/publish/publisher_wait.h"
#include "common/amount.h"
#include "common/memory.h"
#include "common/probes.h"
#include "common/topic.h"
#include <inttypes.h>
#include <poll.h>
#include <string.h>

#define DEFAULT_DEPTH           16U
#define DEFAULT_DEPTH_OF_GROUPS 64U

/* Subscriptions look for a new daemon 50 times a second. */
#define LINGER_NS INT64_C(200000000)

/* How often a publisher looks whether those that it waits for have come. */
#define PAUSE_MOST_MS 16

static int check_publisher(const char *topic, struct dlx_publisher_args *args)
{
    int r = 0;
    if (args->retain > DLX_SHM_HISTORY_MAX)
        return dlx__fail(DLX_E_INVALID, "publisher on %s: retain %u must be at most %u", topic,
                         args->retain, DLX_SHM_HISTORY_MAX);
    if (args->history == 0)
        args->history = DLX_MAX(1U, args->retain);
    if (args->history > DLX_SHM_HISTORY_MAX)
        return dlx__fail(DLX_E_INVALID, "publisher on %s: history %u must be at most %u", topic,
                         args->history, DLX_SHM_HISTORY_MAX);
    if (args->retain > args->history)
        return dlx__fail(DLX_E_INVALID,
                         "publisher on %s: retain %u must be at most the history, %u", topic,
                         args->retain, args->history);
    if (args->retain_for_ns < DLX_RETAIN_LATCHED)
        return dlx__fail(DLX_E_INVALID, "publisher on %s: retain_for_ns %" PRId64, topic,
                         args->retain_for_ns);
    if (args->retain_for_ns != 0 && args->retain == 0 && args->n_groups == 0)
        return dlx__fail(DLX_E_INVALID,
                         "publisher on %s: retain_for_ns without messages to retain: set retain",
                         topic);
    if (args->n_groups > DLX_SHM_GROUPS_MAX || (args->n_groups > 0 && !args->groups))
        return dlx__fail(DLX_E_INVALID, "publisher on %s: %u groups%s; at most %u", topic,
                         args->n_groups, args->groups ? "" : ", and groups is NULL",
                         DLX_SHM_GROUPS_MAX);
    for (uint32_t i = 0; r == 0 && i < args->n_groups; i++) {
        r = dlx__group_check(args->groups[i]);
        for (uint32_t k = 0; r == 0 && k < i; k++)
            if (strcmp(args->groups[k], args->groups[i]) == 0)
                r = dlx__fail(DLX_E_INVALID, "publisher on %s: group %s is there twice", topic,
                              args->groups[i]);
    }
    if (r < 0)
        return r;
    if (args->depth == 0)
        args->depth = args->n_groups > 0 ? DEFAULT_DEPTH_OF_GROUPS : DEFAULT_DEPTH;
    if (args->depth > DLX_SHM_DEPTH_MAX)
        return dlx__fail(DLX_E_INVALID, "publisher on %s: depth %u must be at most %u", topic,
                         args->depth, DLX_SHM_DEPTH_MAX);
    if (args->on_full > DLX_ON_FULL_FAIL)
        return dlx__fail(DLX_E_INVALID, "publisher on %s: on_full %u is none of enum dlx_on_full",
                         topic, args->on_full);
    if (args->max_held > DLX_SHM_HELD_MAX)
        return dlx__fail(DLX_E_INVALID, "publisher on %s: max_held %u must be at most %u", topic,
                         args->max_held, DLX_SHM_HELD_MAX);
    return 0;
}

/* Begin the ring writer on what the daemon made. Takes the fds of `made`. */
static int set_up(struct dlx_publisher *p, const struct dlx_publisher_args *args,
                  struct dlx_new_publisher *made)
{
    struct dlx_shm_control *control;
    p->id = made->id;
    DLX_PROBE_ATTACH(p->id, UINT64_C(0), p->topic, DLX_PROBE_PUBLISHER, 0U);
    int r = dlx__publisher_daemon_init(p, p->epoch, made, &p->daemon, &control);
    if (r < 0)
        return r;
    r = dlx__writer_init(&p->core, control, dlx__publisher_n_entries(args),
                         DLX_MAX(args->depth, args->history), args->history,
                         dlx__publisher_gates(args), p->daemon.membership + made->membership_line,
                         &dlx__publisher_link_env, p);
    if (r == 0)
        r = dlx__writer_declare(&p->core, args->n_groups);
    if (r < 0) {
        dlx__publisher_unmap_control(p, control);
        return r;
    }
    if (p->daemon.control_fd >= 0)
        dlx__writer_heed_locks(&p->core);
    p->is_guarded = dlx__debug();
    r = dlx__heap_new(&p->heap, p->generation, p->is_guarded);
    if (r == 0)
        dlx__heap_note_in(p->heap, p->daemon.source);
    return r;
}

static void publisher_free(struct dlx_publisher *p)
{
    dlx__writer_deinit(&p->core);
    dlx__events_deinit(&p->events);
    if (p->heap)
        dlx__heap_note_in(p->heap, NULL);
    dlx__heap_close(p->heap);
    if (p->gpu)
        dlx__gpu_publisher()->free(p->gpu);
    dlx__publisher_daemon_deinit(&p->daemon);
    dlx__close(p->ready.timer);
    dlx__close(p->ready.sources);
    dlx__close(p->ready.fd);
    dlx__notification_deinit(&p->joins.due);
    dlx__client_unref(p->client);
    free((void *)(uintptr_t)p->args.groups);
    dlx__release_handle(p, &p->generation);
}

/* Announce it. A reliable subscription that was there first, and has no link for it, is waited
 * for. */
static int announce_publisher(struct dlx_publisher *p)
{
    struct dlx_client *c = p->client;
    uint64_t deadline = dlx__deadline(c->timeout_ns);
    bool unanswered;
    for (int pause_ms = 1;; pause_ms = DLX_MIN(2 * pause_ms, PAUSE_MOST_MS)) {
        int r = dlx__call_publisher_ready(c, p->id, c->timeout_ns, &unanswered);
        if (r != DLX_E_FULL)
            return r;
        uint64_t now = dlx__now_ns();
        if (now >= deadline) {
            char why[DLX_ERROR_TEXT_SIZE];
            memcpy(why, dlx__error_message(), sizeof why);
            return dlx__fail(DLX_E_TIMEOUT, "%s", why);
        }
        int left_ms = dlx__deadline_ms(deadline, now);
        (void)poll(NULL, 0, left_ms < 0 ? pause_ms : DLX_MIN(pause_ms, left_ms));
        r = dlx__call_check_interrupt(c);
        if (r < 0)
            return r;
    }
}

/* The names of the groups, in one allocation behind their pointers. */
static const char *const *copy_names(const struct dlx_publisher_args *args)
{
    size_t used = args->n_groups * sizeof(char *), size = used;
    for (uint32_t i = 0; i < args->n_groups; i++)
        size += strlen(args->groups[i]) + 1;
    char **names = malloc(size);
    for (uint32_t i = 0; names && i < args->n_groups; i++) {
        size_t n = strlen(args->groups[i]) + 1;
        names[i] = memcpy((char *)names + used, args->groups[i], n);
        used += n;
    }
    return (const char *const *)names;
}

int dlx_publisher_new(struct dlx_client *c, const char *topic,
                      const struct dlx_publisher_args *args, struct dlx_publisher **ret)
{
    dlx__error_clear();
    if (!c || !ret)
        return DLX_NAME_NULL(0, "dlx_publisher_new", {"client", c}, {"ret", ret});
    int r = dlx__refuse_forked(c->generation);
    if (r == 0)
        r = dlx__topic_check(topic);
    return r < 0 ? r : dlx__publisher_new(c, topic, args, ret);
}

int dlx__publisher_new(struct dlx_client *c, const char *topic,
                       const struct dlx_publisher_args *user_args, struct dlx_publisher **ret)
{
    struct dlx_publisher_args args;
    struct dlx_new_publisher made;
    int r =
        dlx__args_copy(&args, sizeof args, offsetof(struct dlx_publisher_args, groups), user_args);
    if (r == 0)
        r = check_publisher(topic, &args);
    if (r < 0)
        return r;
    struct dlx_publisher *p = calloc(1, sizeof *p);
    if (!p)
        return dlx__fail(DLX_E_NO_MEMORY, "state of a publisher");
    r = dlx__client_ensure(c);
    if (r < 0) {
        free(p);
        return r;
    }
    if (args.n_groups == 0)
        args.groups = NULL; /* the caller's */
    else if (!(args.groups = copy_names(&args))) {
        free(p);
        return dlx__fail(DLX_E_NO_MEMORY, "names of %u groups", args.n_groups);
    }
    p->client = dlx__client_ref(c);
    p->generation = c->generation;
    p->daemon.link_sock = p->daemon.control_fd = p->ready.fd = p->ready.sources = p->ready.timer =
        -1;
    p->memory.next_block = p->memory.next_data = p;
    memcpy(p->topic, topic, strlen(topic) + 1);
    p->stats.size = sizeof p->stats;
    p->retain = args.retain;
    p->args = args;
    p->epoch = atomic_load_explicit(&c->epoch, memory_order_acquire);
    p->watch.linger_ns = LINGER_NS;
    dlx__publisher_detour(p, DLX_DETOUR_REQUIRE, args.min_subscribers > 0);
    dlx__publisher_detour(p, DLX_DETOUR_BYTES,
                          args.max_queued_bytes > 0 && dlx__publisher_gates(&args));
    r = dlx__call_publisher_new(c, topic, &args, dlx__publisher_n_entries(&args), 0, 0,
                                c->timeout_ns, &made);
    if (r == 0) {
        r = set_up(p, &args, &made);
        if (r == 0)
            r = announce_publisher(p);
        if (r < 0) {
            char why[DLX_ERROR_TEXT_SIZE];
            memcpy(why, dlx__error_message(), sizeof why);
            (void)dlx__call_publisher_close(c, p->id);
            dlx__fail(r, "%s", why);
        }
    }
    if (r < 0) {
        dlx__fail_prefix(r, "publisher on %s", topic);
        publisher_free(p);
        return r;
    }
    *ret = p;
    return 0;
}

/* The daemon charges what it keeps: give back arenas that have neither a retained message nor one
 * that subscribers have yet to take. */
static void keep_only_retained(struct dlx_publisher *p)
{
    dlx__writer_set_kept(&p->core, p->retain);
    while (dlx__publisher_reclaim_some(p, false) > 0)
        ;
    (void)dlx__publisher_drop_empty(p, true);
}

struct dlx_publisher *dlx_publisher_unref(struct dlx_publisher *p)
{
    if (!p)
        return NULL;
    if (dlx__forked(p->generation)) {
        dlx__check_released(p->generation, "dlx_publisher_unref()");
        return NULL;
    }
    dlx__publisher_drain(p, p->watch.linger_ns);
    dlx__writer_close(&p->core);
    dlx__publisher_link_tell_end(p);
    if (p->gpu)
        dlx__gpu_publisher()->end(p);
    if (p->retain > 0)
        keep_only_retained(p);
    (void)dlx__call_publisher_close(p->client, p->id); /* a daemon that is gone knows already */
    publisher_free(p);
    return NULL;
}

/* ---- counters and events ------------------------------------------------------------------ */

/* A program that only polls these is to be found by another daemon, and to hear of ends, too. */
static void notice_ends(struct dlx_publisher *p)
{
    dlx__publisher_look(p, dlx__now_ns());
    dlx__publisher_link_find_ends(p);
}

uint64_t dlx_publisher_id(const struct dlx_publisher *p)
{
    return p ? p->id : 0;
}

int dlx_publisher_get_stats(struct dlx_publisher *p, struct dlx_publisher_stats *ret)
{
    int r = dlx__publisher_begin(ret ? p : NULL, "dlx_publisher_get_stats");
    if (r < 0)
        return DLX_NAME_NULL(r, "dlx_publisher_get_stats", {"ret", ret});
    notice_ends(p);
    p->stats.published = dlx__writer_head(&p->core);
    p->stats.arena_bytes = dlx__heap_bytes(p->heap);
    p->stats.n_arenas = dlx__heap_n_arenas(p->heap);
    p->stats.gpu_arena_bytes = p->gpu ? dlx__gpu_publisher()->bytes(p) : 0;
    p->stats.n_subscribers = dlx__publisher_link_n_attached(p);
    p->stats.deleted_again = dlx__heap_n_deleted_again(p->heap);
    r = dlx__args_return(ret, offsetof(struct dlx_publisher_stats, gpu_waits), &p->stats,
                         sizeof p->stats);
    dlx__publisher_leave(p);
    return r;
}

int dlx_publisher_next_event(struct dlx_publisher *p, struct dlx_event *ret)
{
    int r = dlx__publisher_begin(ret ? p : NULL, "dlx_publisher_next_event");
    if (r < 0)
        return DLX_NAME_NULL(r, "dlx_publisher_next_event", {"ret", ret});
    notice_ends(p);
    r = dlx__events_pop(&p->events, ret);
    dlx__publisher_leave(p);
    return r;
}
