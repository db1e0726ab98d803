/* SPDX-License-Identifier: Apache-2.0 */
#include "client/publisher.h"
#include "client/call.h"
#include "client/revive.h"
#include "common/memory.h"
#include "common/topic.h"
#include <inttypes.h>
#include <string.h>

#define DEFAULT_HISTORY 4U
#define DEFAULT_SLOTS   64U

/* Subscriptions look for a new daemon 50 times a second. */
#define LINGER_NS INT64_C(200000000)

/* Arenas grow freely up to this many bytes, so that small messages can use the whole ring. Beyond it, old
 * messages make room first. */
#define FREE_GROWTH (UINT64_C(1) << 20)

/* But there may be some blocks more than the history and the one being filled: looking at the hold words of
 * the readers disturbs them, so it is done once in a few messages. So many bytes of them, at least 3 blocks
 * unless they are large, at most 8. */
#define EXTRA_BYTES     (UINT64_C(8) << 20)
#define EXTRA_BLOCK_MAX (UINT64_C(64) << 20)

/* So long a daemon that gave no arena is not asked for one, if there is another way. */
#define CROWDED_NS UINT64_C(1000000000)

static int check_args(const char *topic, struct dlx_publisher_args *args)
{
    int r = dlx__topic_check(topic);
    if (r < 0)
        return r;
    if (args->history == 0)
        args->history = DLX_MAX(DEFAULT_HISTORY, args->retain);
    if (args->history > DLX_SHM_HISTORY_MAX)
        return dlx__fail(DLX_E_INVALID, "publisher on %s: history %u, at most %u is possible",
                         topic, args->history, DLX_SHM_HISTORY_MAX);
    if (args->retain > args->history)
        return dlx__fail(DLX_E_INVALID, "publisher on %s: retains %u messages of a history of %u",
                         topic, args->retain, args->history);
    if (args->retain_for_ns < DLX_RETAIN_LATCHED || (args->retain_for_ns != 0 && args->retain == 0))
        return dlx__fail(DLX_E_INVALID,
                         "publisher on %s: retain_for_ns %" PRId64 " with %u messages to retain",
                         topic, args->retain_for_ns, args->retain);
    if (args->n_slots == 0)
        args->n_slots = DLX_MAX(DEFAULT_SLOTS, args->history * 2);
    if (args->n_slots < args->history + 2 || args->n_slots > DLX_SHM_SLOTS_MAX)
        return dlx__fail(DLX_E_INVALID,
                         "publisher on %s: %u slots, possible are %u (history + 2) to %u", topic,
                         args->n_slots, args->history + 2, DLX_SHM_SLOTS_MAX);
    if (args->on_full > DLX_ON_FULL_BLOCK)
        return dlx__fail(DLX_E_INVALID, "publisher on %s: on_full %u", topic, args->on_full);
    return 0;
}

/* Map what the daemon made, and begin the core on it. Takes the fds of `made`. */
static int set_up(struct dlx_publisher *p, const struct dlx_publisher_args *args,
                  struct dlx_new_publisher *made)
{
    void *control;
    p->id = p->origin = made->id;
    p->link_sock = made->link_sock;
    dlx_cleanup(dlx__closep) int membership_fd = made->membership_fd;
    int r = dlx__region_populate(made->memory, made->control_fd, made->control_size, &control);
    if (r < 0)
        return r;
    if (made->control_size != dlx_shm_control_size(args->n_slots) ||
        made->membership_line >= made->membership_size / DLX_CACHELINE)
        r = dlx__fail(DLX_E_PROTOCOL, "control block or membership line out of range");
    if (r == 0)
        r = dlx__membership_attach(made->memory, dlx__steal_fd(&membership_fd),
                                   made->membership_size, &p->membership);
    if (r == 0) {
        p->membership_size = made->membership_size;
        const struct dlx_shm_membership *line =
            (const struct dlx_shm_membership *)p->membership + made->membership_line;
        r = dlx__pub_init(&p->core, control, args->n_slots, args->history,
                          args->on_full == DLX_ON_FULL_BLOCK, line, &dlx__outlet_env, p);
    }
    if (r < 0) {
        dlx__region_unmap(control, made->control_size);
        return r;
    }
    p->memory = made->memory;
    p->control = control; /* goes with the core */
    return dlx__heap_new(&p->heap, p->generation);
}

static void publisher_free(struct dlx_publisher *p)
{
    p->closed = true;
    dlx__pub_deinit(&p->core);
    dlx__events_deinit(&p->events);
    dlx__heap_close(p->heap);
    dlx__region_unmap(p->membership, p->membership_size);
    dlx__close(p->link_sock);
    dlx__news_deinit(&p->due);
    dlx_client_unref(p->client);
    free(p);
}

int dlx_publisher_new(struct dlx_client *c, const char *topic,
                      const struct dlx_publisher_args *user_args, struct dlx_publisher **ret)
{
    struct dlx_publisher_args args;
    struct dlx_new_publisher made;
    bool unanswered;
    dlx__error_clear();
    if (!c || !ret)
        return dlx__fail(DLX_E_INVALID, "dlx_publisher_new: client or ret is NULL");
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
    dlx__client_ensure(c);
    p->client = dlx__client_ref(c);
    p->generation = c->generation;
    p->link_sock = -1;
    memcpy(p->topic, topic, strlen(topic) + 1);
    p->stats.size = sizeof p->stats;
    p->grows = user_args == NULL || user_args->n_slots == 0;
    p->retain = args.retain;
    p->args = args;
    p->epoch = atomic_load_explicit(&c->epoch, memory_order_acquire);
    p->linger_ns = LINGER_NS;
    p->has_succeeded = args.retain == 0;
    r = dlx__call_publisher_new(c, topic, &args, 0, 0, c->timeout_ns, &made);
    if (r == 0) {
        r = set_up(p, &args, &made);
        if (r == 0)
            r = dlx__call_publisher_ready(c, p->id, c->timeout_ns, &unanswered);
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

/* What the daemon keeps is charged: give back the arenas that have none of it. */
static void keep_only_retained(struct dlx_publisher *p)
{
    uint32_t arena;
    p->core.history = p->retain;
    (void)dlx__pub_reclaim(&p->core, UINT32_MAX);
    (void)dlx__heap_drop_idle(p->heap, 0, 0);
    while ((arena = dlx__heap_drop_idle(p->heap, 0, UINT64_MAX)))
        (void)dlx__call_arena_drop(p->client, p->id, arena);
}

struct dlx_publisher *dlx_publisher_unref(struct dlx_publisher *p)
{
    if (!p || dlx__forked(p->generation))
        return NULL;
    dlx__outlet_linger(p, p->linger_ns);
    dlx__pub_close(&p->core);
    dlx__outlet_tell_end(p);
    if (p->retain > 0)
        keep_only_retained(p);
    (void)dlx__call_publisher_close(p->client, p->id); /* a daemon that is gone knows already */
    publisher_free(p);
    return NULL;
}

/* ---- memory -------------------------------------------------------------------------------- */

/* Messages after which what was not used is not missed. */
static uint64_t idle_age(const struct dlx_publisher *p)
{
    return 4 * (uint64_t)p->core.n_slots;
}

static void drop_excess(struct dlx_publisher *p, uint64_t id, uint64_t bytes)
{
    uint32_t arena;
    while ((arena = dlx__heap_drop_excess(p->heap, bytes, p->core.head, idle_age(p))))
        (void)dlx__call_arena_drop(p->client, id, arena);
}

int dlx__publisher_grow(struct dlx_publisher *p, const struct dlx_memory *memory, uint64_t id,
                        uint64_t size)
{
    uint64_t bytes = dlx__heap_growth(p->heap, size);
    uint32_t arena = 0;
    void *map = NULL;
    int fd;
    if (bytes == UINT64_MAX)
        return dlx__fail(DLX_E_NO_MEMORY,
                         "%" PRIu64 " bytes are more than an arena can have (%" PRIu64 ")", size,
                         DLX_SHM_ARENA_MAX);
    if (dlx__heap_n_arenas(p->heap) >= DLX_SHM_ARENAS_MAX)
        return dlx__fail(DLX_E_LIMIT, "%u arenas, the most of a publisher", DLX_SHM_ARENAS_MAX);
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
    if (r < 0) {
        dlx__region_unmap(map, bytes);
        (void)dlx__call_arena_drop(p->client, id, arena);
    }
    return r;
}

/* Now and then, give back arenas that nothing has used for long. */
static void drop_idle_arenas(struct dlx_publisher *p)
{
    uint64_t now = p->core.head, age = idle_age(p);
    if (now < p->next_idle_check)
        return;
    p->next_idle_check = now + age;
    uint32_t arena = dlx__heap_drop_idle(p->heap, now, now > age ? now - age + 1 : 0);
    if (arena)
        (void)dlx__call_arena_drop(p->client, p->id, arena); /* at worst its subscribers keep it */
}

/* Let the oldest messages go until `size` bytes are free. DLX_E_FULL: none can go any more. */
static int make_room(struct dlx_publisher *p, uint64_t size, struct dlx_block **ret)
{
    bool looked = false;
    for (;;) {
        uint32_t freed = dlx__pub_reclaim(&p->core, 1);
        int r = dlx__heap_take(p->heap, size, ret);
        if (r != DLX_E_FULL)
            return r;
        if (freed > 0 || dlx__pub_retirable(&p->core) > 0)
            continue;
        if (looked || p->core.n_retired == 0)
            return DLX_E_FULL;
        dlx__outlet_env.look_for_dead(p); /* before taking more memory: who holds, and is dead? */
        looked = true;
    }
}

static bool may_grow_freely(const struct dlx_publisher *p, uint64_t size)
{
    uint64_t bytes = dlx__heap_bytes(p->heap), after, most;
    uint64_t extra =
        size > EXTRA_BLOCK_MAX ? 0 : DLX_MIN(DLX_MAX(EXTRA_BYTES / DLX_MAX(size, 1U), 3U), 8U);
    uint64_t blocks = p->core.history + 1 + extra;
    if (__builtin_add_overflow(bytes, size, &after))
        return false;
    return after <= FREE_GROWTH || (!__builtin_mul_overflow(blocks, size, &most) && after <= most);
}

void dlx__publisher_look_ahead(struct dlx_publisher *p)
{
    if (dlx_likely(p->room_size == 0) || dlx__heap_has(p->heap, p->room_size))
        return;
    (void)dlx__pub_reclaim(&p->core, UINT32_MAX);
}

/* No memory, or no daemon: the stream goes on with what there is, if that is enough. */
static int take_what_is_there(struct dlx_publisher *p, uint64_t size, bool reclaim,
                              struct dlx_block **ret)
{
    bool before = dlx__heap_put_anywhere(p->heap, true);
    int r = dlx__heap_take(p->heap, size, ret);
    if (r == DLX_E_FULL && reclaim)
        r = make_room(p, size, ret);
    (void)dlx__heap_put_anywhere(p->heap, before);
    return r;
}

static int grow_and_take(struct dlx_publisher *p, uint64_t size, struct dlx_block **ret)
{
    int r = dlx__publisher_grow(p, p->memory, p->id, size);
    if (r == 0)
        r = dlx__heap_take(p->heap, size, ret);
    /* With an arena more, or others less, it may have become a large block. There is room for it. */
    return r == DLX_E_FULL ? take_what_is_there(p, size, false, ret) : r;
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

/* No block fits. Not part of what follows: its registers are not saved for each message. */
static int __attribute__((noinline))
find_room(struct dlx_publisher *p, uint64_t size, struct dlx_block **ret)
{
    int r;
    bool free_growth = may_grow_freely(p, size);
    if (!free_growth) {
        p->room_size = size;
        r = make_room(p, size, ret);
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
    r = take_what_is_there(p, size, free_growth, ret);
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
    return dlx__fail(grown, "topic %s: %" PRIu64 " bytes of shared memory: %s", p->topic, size,
                     why);
}

int dlx__publisher_block(struct dlx_publisher *p, uint64_t size, struct dlx_block **ret)
{
    drop_idle_arenas(p);
    int r = dlx__heap_take(p->heap, size, ret);
    return dlx_likely(r != DLX_E_FULL) ? r : find_room(p, size, ret);
}

bool dlx__publisher_alloc_again(struct dlx_publisher *p, const struct dlx_tensor_spec *spec,
                                DLManagedTensorVersioned **ret)
{
    drop_idle_arenas(p);
    struct dlx_block *block = dlx__heap_export_again(p->heap, spec->dtype, spec->ndim, spec->shape);
    if (dlx_likely(block != NULL))
        *ret = &block->tensor;
    return block;
}

int dlx__publisher_block_beside(struct dlx_publisher *p, uint64_t size, struct dlx_block **ret)
{
    int r =
        dlx__heap_is_large(p->heap, size) ? take_what_is_there(p, size, false, ret) : DLX_E_FULL;
    return r == DLX_E_FULL ? dlx__publisher_block(p, size, ret) : r;
}

/* ---- subscribers and counters -------------------------------------------------------------- */

int dlx_publisher_wait(struct dlx_publisher *p, uint32_t n_subscribers, int64_t timeout_ns)
{
    dlx__error_clear();
    if (!p)
        return dlx__fail(DLX_E_INVALID, "dlx_publisher_wait: publisher is NULL");
    if (dlx__forked(p->generation))
        return dlx__fail_forked();
    uint64_t deadline = dlx__deadline(timeout_ns);
    int r = 0;
    /* A subscription that stores its first cursor rings if somebody waits. */
    for (;;) {
        dlx__pub_set_blocked(&p->core, true); /* again, as it may have moved */
        dlx__outlet_env.pick_up(p);
        dlx__pub_read_membership(&p->core);
        uint32_t n = dlx__outlet_n_started(p);
        if (n >= n_subscribers)
            break;
        r = dlx__outlet_wait(p, deadline);
        if (r == DLX_E_TIMEOUT)
            r = dlx__fail(r, "topic %s has %u of %u subscribers", p->topic, n, n_subscribers);
        if (r < 0)
            break;
    }
    dlx__pub_set_blocked(&p->core, false);
    return r;
}

int dlx_publisher_get_stats(struct dlx_publisher *p, struct dlx_publisher_stats *stats)
{
    dlx__error_clear();
    if (!p || !stats)
        return dlx__fail(DLX_E_INVALID, "dlx_publisher_get_stats: publisher or stats is NULL");
    if (dlx__forked(p->generation))
        return dlx__fail_forked();
    dlx__pub_read_membership(&p->core);
    p->stats.published = p->core.head;
    p->stats.arena_bytes = dlx__heap_bytes(p->heap);
    p->stats.n_arenas = dlx__heap_n_arenas(p->heap);
    p->stats.n_subscribers = p->core.n_links;
    return dlx__args_return(stats, sizeof *stats, &p->stats, sizeof p->stats);
}
