/* SPDX-License-Identifier: Apache-2.0 */
#include "client/publish/publisher.h"
#include "client/control/call.h"
#include "client/control/wait.h"
#include "client/heap/debug.h"
#include "client/publish/gpu_heap.h"
#include "client/publish/gpu_share.h"
#include "client/publish/publisher_reconnect.h"
#include "common/amount.h"
#include "common/memory.h"
#include "common/topic.h"
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>

#define DEFAULT_DEPTH 16U

/* Subscriptions look for a new daemon 50 times a second. */
#define LINGER_NS INT64_C(200000000)

/* So many bytes of blocks are taken before it is looked which ones nobody needs any more: looking at cursors and hold words
 * disturbs the readers, so for small messages it is done once in many. */
#define FREE_GROWTH (UINT64_C(32) << 10)

/* How often a publisher looks whether those that it waits for have come. */
#define PAUSE_MOST_MS 16

/* What is not in use goes back after `depth` messages if it is much, else after so many times that. */
#define TRIM_MUCH (UINT64_C(32) << 20)

/* So long a daemon that gave no arena is not asked for one, if there is another way. */
#define CROWDED_NS UINT64_C(1000000000)

static int check_args(const char *topic, struct dlx_publisher_args *args)
{
    int r = dlx__topic_check(topic);
    if (r < 0)
        return r;
    if (args->retain > DLX_SHM_HISTORY_MAX)
        return dlx__fail(DLX_E_INVALID, "publisher on %s: retain %u, at most %u is possible", topic,
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
    if (args->retain_for_ns != 0 && args->retain == 0)
        return dlx__fail(DLX_E_INVALID,
                         "publisher on %s: retain_for_ns without messages to retain: set retain",
                         topic);
    if (args->depth == 0)
        args->depth = DEFAULT_DEPTH;
    if (args->depth > DLX_SHM_DEPTH_MAX)
        return dlx__fail(DLX_E_INVALID, "publisher on %s: depth %u must be at most %u", topic,
                         args->depth, DLX_SHM_DEPTH_MAX);
    if (args->on_full > DLX_ON_FULL_BLOCK)
        return dlx__fail(
            DLX_E_INVALID,
            "publisher on %s: on_full %u must be 0 (DLX_ON_FULL_DROP) or 1 (DLX_ON_FULL_BLOCK)",
            topic, args->on_full);
    if (args->max_held > DLX_SHM_HELD_MAX)
        return dlx__fail(DLX_E_INVALID, "publisher on %s: max_held %u must be at most %u", topic,
                         args->max_held, DLX_SHM_HELD_MAX);
    return 0;
}

uint32_t dlx__publisher_n_entries(const struct dlx_publisher_args *args)
{
    return dlx_shm_n_entries(DLX_MAX(args->depth, args->history));
}

int dlx__publisher_keep_control(const struct dlx_publisher_args *args, int borrow_fd)
{
    return args->retain > 0 ? fcntl(borrow_fd, F_DUPFD_CLOEXEC, 0) : -1;
}

/* Map what the daemon made, and begin the ring writer on it. Takes the fds of `made`. */
static int set_up(struct dlx_publisher *p, const struct dlx_publisher_args *args,
                  struct dlx_new_publisher *made)
{
    void *control;
    p->id = p->origin = made->id;
    p->link_sock = made->link_sock;
    dlx_cleanup(dlx__closep) int membership_fd = made->membership_fd;
    p->control_fd = dlx__publisher_keep_control(args, made->control_fd);
    int r = dlx__region_populate(made->memory, made->control_fd, made->control_size, &control);
    if (r < 0)
        return r;
    if (made->control_size != dlx_shm_control_size(dlx__publisher_n_entries(args)) ||
        made->membership_line >= made->membership_size / DLX_CACHELINE)
        r = dlx__fail(DLX_E_PROTOCOL, "control block or membership line out of range");
    if (r == 0)
        r = dlx__region_attach(made->memory, dlx__steal_fd(&membership_fd), made->membership_size,
                               &p->membership);
    if (r == 0) {
        p->membership_size = made->membership_size;
        const struct dlx_shm_membership *line =
            (const struct dlx_shm_membership *)p->membership + made->membership_line;
        r = dlx__writer_init(&p->core, control, dlx__publisher_n_entries(args),
                             DLX_MAX(args->depth, args->history), args->history,
                             args->on_full == DLX_ON_FULL_BLOCK, line, &dlx__publisher_link_env, p);
    }
    if (r < 0) {
        dlx__region_unmap(control, made->control_size);
        return r;
    }
    if (p->control_fd >= 0)
        dlx__writer_heed_locks(&p->core);
    p->memory = made->memory;
    p->is_guarded = dlx__debug();
    return dlx__heap_new(&p->heap, p->generation, p->is_guarded);
}

static void publisher_free(struct dlx_publisher *p)
{
    p->closed = true;
    dlx__writer_deinit(&p->core);
    dlx__events_deinit(&p->events);
    dlx__heap_close(p->heap);
    dlx__gpu_share_free(p->gpu);
    dlx__region_unmap(p->membership, p->membership_size);
    dlx__close(p->link_sock);
    dlx__close(p->control_fd);
    dlx__close(p->timer);
    dlx__close(p->sources);
    dlx__close(p->ready);
    dlx__notification_deinit(&p->due);
    dlx_client_unref(p->client);
    free(p);
}

int dlx__publisher_fail_refused(const struct dlx_publisher *p)
{
    return dlx__fail(DLX_E_ACCESS, "topic %s: %s", p->topic, p->refusal);
}

int dlx__publisher_refuse(const struct dlx_publisher *p, const char *what)
{
    if (!p)
        return dlx__fail(DLX_E_INVALID, "%s: publisher is NULL", what);
    if (dlx__forked(p->generation))
        return dlx__fail_forked();
    return dlx__fail(
        DLX_E_IN_USE,
        "%s: the publisher on %s is in use by another thread: use one for each thread, or a lock",
        what, p->topic);
}

/* Announce it. A reliable subscription that was there first, and has no link for it, is waited for. */
static int announce(struct dlx_publisher *p)
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

int dlx_publisher_new(struct dlx_client *c, const char *topic,
                      const struct dlx_publisher_args *user_args, struct dlx_publisher **ret)
{
    struct dlx_publisher_args args;
    struct dlx_new_publisher made;
    dlx__error_clear();
    if (!c || !ret)
        return DLX_NAME_NULL(0, "dlx_publisher_new", {"client", c}, {"ret", ret});
    if (dlx__forked(c->generation))
        return dlx__fail_forked();
    int r = dlx__args_copy(&args, sizeof args, sizeof args, user_args);
    if (r == 0)
        r = check_args(topic, &args);
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
    p->client = dlx__client_ref(c);
    p->generation = c->generation;
    p->link_sock = p->control_fd = p->ready = p->sources = p->timer = -1;
    p->next_block = p->next_data = p;
    memcpy(p->topic, topic, strlen(topic) + 1);
    p->stats.size = sizeof p->stats;
    p->retain = args.retain;
    p->args = args;
    p->epoch = atomic_load_explicit(&c->epoch, memory_order_acquire);
    p->linger_ns = LINGER_NS;
    p->has_succeeded = args.retain == 0;
    dlx__publisher_detour(p, DLX_DETOUR_REQUIRE, args.min_subscribers > 0);
    r = dlx__call_publisher_new(c, topic, &args, dlx__publisher_n_entries(&args), 0, 0,
                                c->timeout_ns, &made);
    if (r == 0) {
        r = set_up(p, &args, &made);
        if (r == 0)
            r = announce(p);
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

void dlx__publisher_succeed(struct dlx_publisher *p)
{
    int r = dlx__call_publisher_retains(p->client, p->id);
    p->has_succeeded = r != DLX_E_FULL; /* a daemon that is gone has nothing of predecessors */
}

/* Tell the daemon, which may have no time for it now, and unmap. */
static bool drop_arena(struct dlx_publisher *p, uint32_t id)
{
    if (dlx__call_arena_drop(p->client, p->id, id) == DLX_E_FULL)
        return false;
    dlx__heap_drop(p->heap, id);
    return true;
}

/* Give back empty arenas of so many bytes together, at most n of them. Returns false if there may be more. */
static bool drop_arenas(struct dlx_publisher *p, uint64_t bytes, uint32_t n)
{
    uint64_t size;
    for (; n > 0; n--) {
        uint32_t id = dlx__heap_find_empty(p->heap, bytes, &size);
        if (id == 0)
            return true;
        if (!drop_arena(p, id))
            break;
        bytes -= DLX_MIN(bytes, size);
    }
    return false;
}

/* Arenas that are empty, but too small, or not to be spared any more. */
static bool drop_empty(struct dlx_publisher *p)
{
    bool any = false;
    uint32_t arena;
    while ((arena = dlx__heap_drop_empty(p->heap))) {
        (void)dlx__call_arena_drop(p->client, p->id, arena);
        any = true;
    }
    return any;
}

/* What the daemon keeps is charged: give back the arenas that have none of it, nor of what subscribers have yet to take. */
static void keep_only_retained(struct dlx_publisher *p)
{
    p->core.kept = p->retain;
    while (dlx__writer_reclaim(&p->core, false) > 0)
        ;
    (void)drop_empty(p);
}

struct dlx_publisher *dlx_publisher_unref(struct dlx_publisher *p)
{
    if (!p || dlx__forked(p->generation))
        return NULL;
    dlx__publisher_link_drain(p, p->linger_ns);
    dlx__writer_close(&p->core);
    dlx__publisher_link_tell_end(p);
    dlx__gpu_share_end(p);
    if (p->retain > 0)
        keep_only_retained(p);
    (void)dlx__call_publisher_close(p->client, p->id); /* a daemon that is gone knows already */
    publisher_free(p);
    return NULL;
}

/* ---- memory -------------------------------------------------------------------------------- */

static void drop_excess(struct dlx_publisher *p, uint64_t id, uint64_t bytes)
{
    uint32_t arena;
    uint64_t window = (uint64_t)DLX_TRIM_EVERY * p->args.depth;
    while ((arena = dlx__heap_drop_excess(p->heap, bytes, p->core.head, window)))
        (void)dlx__call_arena_drop(p->client, id, arena);
}

static int grow(struct dlx_publisher *p, const struct dlx_memory *memory, uint64_t id,
                uint64_t size)
{
    uint64_t bytes = dlx__heap_growth(p->heap, size);
    uint32_t arena = 0;
    void *map = NULL;
    int fd;
    if (bytes == UINT64_MAX)
        return dlx__fail(DLX_E_NO_MEMORY, "a tensor or a set may have at most %s",
                         DLX_AMOUNT(DLX_SHM_ARENA_MAX));
    if (dlx__heap_n_arenas(p->heap) >= DLX_SHM_ARENAS_MAX)
        return dlx__fail(DLX_E_LIMIT, "%u arenas, the most of a publisher", DLX_SHM_ARENAS_MAX);
    if (p->client->interrupt) /* it runs while this call waits for the daemon */
        dlx__turn_disown(&p->turn);
    int r = dlx__call_arena_new(p->client, id, bytes, &arena, &fd);
    if (r < 0)
        return r;
    /* Now that there will be one, and before it has memory. */
    drop_excess(p, id, bytes);
    r = dlx__region_populate(memory, fd, bytes, &map);
    if (r == 0)
        r = dlx__call_arena_ready(p->client, id, arena);
    if (r == 0)
        r = dlx__heap_add(p->heap, arena, map, bytes);
    if (r == 0 && dlx__heap_bytes(p->heap) > TRIM_MUCH)
        p->next_trim = DLX_MIN(p->next_trim, p->core.head + p->args.depth);
    if (r < 0) {
        dlx__region_unmap(map, bytes);
        (void)dlx__call_arena_drop(p->client, id, arena);
    }
    return r;
}

int dlx__publisher_grow(struct dlx_publisher *p, const struct dlx_memory *memory, uint64_t id,
                        uint64_t size)
{
    int r = grow(p, memory, id, size);
    /* The daemon returns memory that is not populated for a while: this process may have been
     * stopped. */
    return r == DLX_E_NOT_FOUND ? grow(p, memory, id, size) : r;
}

/* Memory that nobody needs any more goes back, a part with each of the next messages: all of it after `depth`. */
static void __attribute__((noinline)) trim(struct dlx_publisher *p)
{
    bool much = dlx__heap_bytes(p->heap) > TRIM_MUCH, goes_on = p->trim_step > 0;
    uint32_t every = much ? 1 : DLX_TRIM_EVERY;
    if (!goes_on) {
        while (much &&
               dlx__writer_reclaim(&p->core, false) > 0) /* or what nobody needs counts as used */
            ;
        p->n_trims += every;
        p->trim_step = dlx__heap_n_arenas(p->heap) / p->args.depth + 1;
    }
    bool all = p->n_trims % DLX_TRIM_EVERY == 0;
    uint64_t bytes = goes_on ? dlx__heap_excess(p->heap, all) : dlx__heap_trim(p->heap, all);
    bool done = drop_arenas(p, bytes, p->trim_step);
    if (done)
        dlx__heap_vacate(p->heap);
    p->next_trim = p->core.head + (done ? (uint64_t)p->args.depth * every : 1);
    if (done)
        p->trim_step = 0;
}

int dlx__publisher_reclaim(struct dlx_publisher *p, struct dlx_heap *heap, uint64_t size, bool drop,
                           struct dlx_block **ret)
{
    bool looked = false, cut = false;
    for (;;) {
        uint32_t n = dlx__writer_reclaim(&p->core, drop);
        int r = dlx__heap_take(heap, size, ret);
        if (r != DLX_E_FULL)
            return r;
        if (n > 0)
            continue;
        if (cut || p->core.n_retired == 0)
            return DLX_E_FULL;
        /* Before taking more memory: who holds, and is dead? And who holds more than it may? */
        if (!looked)
            dlx__publisher_link_env.look_for_dead(p);
        else if (!dlx__publisher_link_cut(p))
            return DLX_E_FULL;
        cut = looked;
        looked = true;
    }
}

void dlx__publisher_look_ahead(struct dlx_publisher *p)
{
    (void)dlx__writer_reclaim(&p->core, false);
}

/* No memory, or no daemon: the stream goes on with what there is, if that is enough. */
static int take_what_is_there(struct dlx_publisher *p, uint64_t size, bool reclaim,
                              struct dlx_block **ret)
{
    bool before = dlx__heap_put_anywhere(p->heap, true);
    int r = dlx__heap_take(p->heap, size, ret);
    if (r == DLX_E_FULL && reclaim)
        r = dlx__publisher_reclaim(p, p->heap, size, true, ret);
    (void)dlx__heap_put_anywhere(p->heap, before);
    return r;
}

static int grow_and_take(struct dlx_publisher *p, uint64_t size, struct dlx_block **ret)
{
    /* A new daemon knows of no publisher that has yet to announce itself, and may be slow to say so. */
    int r = atomic_load_explicit(&p->client->epoch, memory_order_acquire) != p->epoch
                ? dlx__fail(DLX_E_DISCONNECTED, "the publisher predates the dlpackd restart")
                : dlx__publisher_grow(p, p->memory, p->id, size);
    if (r == 0)
        r = dlx__heap_take(p->heap, size, ret);
    /* With an arena more, or others less, it may have become a large block. There is room for it. */
    return r == DLX_E_FULL ? take_what_is_there(p, size, false, ret) : r;
}

/* No block fits. Not part of what follows: its registers are not saved for each message. */
static int __attribute__((noinline))
find_room(struct dlx_publisher *p, uint64_t size, struct dlx_block **ret)
{
    int r;
    uint64_t after;
    bool free_growth =
        !__builtin_add_overflow(dlx__heap_bytes(p->heap), size, &after) && after <= FREE_GROWTH;
    if (!free_growth) {
        p->room_size = size;
        r = dlx__publisher_reclaim(p, p->heap, size, false, ret);
        if (r != DLX_E_FULL)
            return r;
    }
    p->room_size = 0;
    if (p->crowded_until > 0 && dlx__now_ns() < p->crowded_until) {
        r = take_what_is_there(p, size, false, ret);
        if (r != DLX_E_FULL)
            return r;
    }
    int grown = grow_and_take(p, size, ret);
    p->crowded_until = grown < 0 ? dlx__now_ns() + CROWDED_NS : 0;
    if (grown == 0)
        return 0;
    char why[DLX_ERROR_TEXT_SIZE];
    memcpy(why, dlx__error_message(), sizeof why);
    r = take_what_is_there(p, size, true, ret);
    if (r != DLX_E_FULL)
        return r;
    bool is_possible = dlx__heap_growth(p->heap, size) != UINT64_MAX;
    if ((grown == DLX_E_NO_MEMORY || grown == DLX_E_LIMIT || grown == DLX_E_FD_LIMIT) &&
        is_possible && drop_empty(p)) {
        grown = grow_and_take(p, size, ret);
        if (grown == 0)
            return 0;
        memcpy(why, dlx__error_message(), sizeof why);
    }
    return dlx__fail(grown, "topic %s: no memory for %s: %s", p->topic, DLX_AMOUNT(size), why);
}

int dlx__publisher_block(struct dlx_publisher *p, uint64_t size, struct dlx_block **ret)
{
    if (dlx_unlikely(p->core.head >= p->next_trim))
        trim(p);
    int r = dlx__heap_take(p->heap, size, ret);
    return dlx_likely(r != DLX_E_FULL) ? r : find_room(p, size, ret);
}

int dlx__publisher_block_beside(struct dlx_publisher *p, const struct dlx_block *other,
                                uint64_t size, struct dlx_block **ret)
{
    int r = dlx__heap_take_beside(p->heap, other, size, ret);
    if (r == DLX_E_FULL && dlx__heap_is_large(p->heap, size))
        r = take_what_is_there(p, size, false, ret);
    return r == DLX_E_FULL ? dlx__publisher_block(p, size, ret) : r;
}

/* ---- subscribers and counters -------------------------------------------------------------- */

/* Whose link the daemon has ended is over. */
static uint32_t count_subscribers(struct dlx_publisher *p)
{
    dlx__writer_read_membership(&p->core);
    if (p->n_ended < p->core.leaves_seen)
        dlx__publisher_link_env.look_for_dead(p);
    return dlx__publisher_link_n_started(p);
}

int dlx__publisher_await(struct dlx_publisher *p, uint32_t n_subscribers, struct dlx_wait *wait)
{
    int r = 0;
    if (count_subscribers(p) >= n_subscribers && !(p->detours & DLX_DETOUR_REFUSED))
        return 0;
    /* A subscription that stores its first cursor rings if somebody waits. */
    for (;;) {
        dlx__writer_set_blocked(&p->core, true); /* again, as it may have moved */
        dlx__publisher_link_env.pick_up(p);
        uint32_t n = count_subscribers(p);
        if (p->detours & DLX_DETOUR_REFUSED)
            r = dlx__publisher_fail_refused(p);
        if (r < 0 || n >= n_subscribers)
            break;
        r = dlx__publisher_link_wait(p, wait);
        if (r == DLX_E_TIMEOUT)
            r = dlx__fail(r, "topic %s has %u of %u subscribers", p->topic, n, n_subscribers);
        if (r < 0)
            break;
    }
    dlx__publisher_link_unblock(p);
    return r;
}

int dlx_publisher_wait(struct dlx_publisher *p, uint32_t n_subscribers, int64_t timeout_ns)
{
    int r = dlx__publisher_begin(p, "dlx_publisher_wait");
    if (r < 0)
        return r;
    dlx__publisher_look(p, dlx__now_ns()); /* whoever has enough subscribers looks nowhere else */
    dlx__publisher_link_arm_begin(p);
    struct dlx_wait wait = {.deadline = dlx__deadline(timeout_ns)};
    r = dlx__publisher_await(p, n_subscribers, &wait);
    r = dlx__publisher_link_arm_end(p, r);
    dlx__gpu_share_collect(p);
    dlx__publisher_leave(p);
    return r;
}

int dlx_publisher_get_stats(struct dlx_publisher *p, struct dlx_publisher_stats *stats)
{
    int r = dlx__publisher_begin(stats ? p : NULL, "dlx_publisher_get_stats");
    if (r < 0)
        return DLX_NAME_NULL(r, "dlx_publisher_get_stats", {"stats", stats});
    dlx__publisher_look(p, dlx__now_ns()); /* a program that only polls this is to be found, too */
    dlx__writer_read_membership(&p->core);
    if (p->n_ended < p->core.leaves_seen) /* whose end was not to be seen when the daemon told it */
        dlx__publisher_link_env.look_for_dead(p);
    p->stats.published = p->core.head;
    p->stats.arena_bytes = dlx__heap_bytes(p->heap);
    p->stats.n_arenas = dlx__heap_n_arenas(p->heap);
    p->stats.gpu_arena_bytes = dlx__gpu_heap_bytes(p);
    p->stats.n_subscribers = dlx__publisher_link_n_attached(p);
    p->stats.deleted_again = dlx__heap_n_deleted_again(p->heap);
    r = dlx__args_return(stats, offsetof(struct dlx_publisher_stats, gpu_waits), &p->stats,
                         sizeof p->stats);
    dlx__publisher_leave(p);
    return r;
}
