/* SPDX-License-Identifier: Apache-2.0 */
#include "client/base/misuse.h"
#include "client/gpu/gpu.h"
#include "client/message/message.h"
#include "client/message/worker.h"
#include "common/amount.h"
#include "common/memory.h"
#include "common/probes.h"
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* ---- life ---------------------------------------------------------------------------------- */

int dlx__subscriber_link_new(struct dlx_subscriber_link **ret, const struct dlx_memory *memory,
                             uint64_t generation, uint64_t id, uint64_t publisher,
                             const char *topic, int take_page_fd, uint64_t page_size,
                             uint32_t max_held)
{
    dlx_cleanup(dlx__closep) int fd = take_page_fd;
    void *page;
    if (max_held == 0 || max_held > DLX_SHM_HELD_MAX || page_size != dlx_shm_link_size(max_held) ||
        strlen(topic) > DLX_TOPIC_MAX)
        return dlx__fail(DLX_E_PROTOCOL, "link page of %" PRIu64 " bytes for %u hold words",
                         page_size, max_held);
    struct dlx_subscriber_link *link = calloc(1, sizeof *link);
    if (!link)
        return dlx__fail(DLX_E_NO_MEMORY, "state of a link");
    atomic_init(&link->refs, DLX_SUBSCRIBER_LINK_ALIVE);
    pthread_mutex_init(&link->arenas_lock, NULL);
    link->memory = memory;
    link->generation = generation;
    link->id = id;
    link->publisher = publisher;
    link->max_held = max_held;
    link->bell = -1;
    memcpy(link->topic, topic, strlen(topic) + 1);
    link->messages = calloc(max_held, sizeof(struct dlx_message *));
    int r = link->messages ? 0 : dlx__fail(DLX_E_NO_MEMORY, "state of %u messages", max_held);
    if (r == 0)
        r = dlx__region_populate(memory, dlx__steal_fd(&fd), page_size, &page);
    if (r == 0) {
        link->page = page;
        *ret = link;
    } else {
        dlx__subscriber_link_unref(link);
    }
    return r;
}

int dlx__subscriber_link_assign(struct dlx_subscriber_link *link, uint64_t publisher,
                                const char *topic)
{
    size_t size = strlen(topic) + 1;
    link->publisher = publisher;
    if (publisher == 0 || size > sizeof link->topic)
        return dlx__fail(DLX_E_PROTOCOL, "LinkOpen of publisher %" PRIu64, publisher);
    memcpy(link->topic, topic, size);
    return 0;
}

static void free_arena(const struct dlx_subscriber_link *link,
                       const struct dlx_subscriber_link_arena *arena)
{
    dlx__close(arena->fd);
    if (!arena->is_pinned || dlx__gpu_receiver()->unpin(link->gpu, arena->map, arena->size))
        dlx__region_unmap(arena->map, arena->size);
    dlx__region_unmap(arena->spare, arena->size);
    dlx__mapped_remove(arena->mapped);
}

int dlx__subscriber_link_note(struct dlx_subscriber_link *link, uint64_t epoch)
{
    if (link->mapped[DLX_LINK_PAGE] || !link->of || !link->of->client->mapped)
        return 0;
    int r = link->source ? 0
                         : dlx__mapped_source_new(&link->source, link->of->client->mapped, epoch,
                                                  link->publisher, link->topic, false);
    return r < 0 ? r
                 : dlx__mapped_add(link->source, DLX_SHM_FORMER_LINK + link->id, link->page,
                                   dlx_shm_link_size(link->max_held), &link->mapped[DLX_LINK_PAGE]);
}

static void close_claims(struct dlx_subscriber_link *link)
{
    link->claims = dlx__worker_link_free(link->claims);
    dlx__mapped_remove(link->mapped[DLX_LINK_CLAIMS]);
    link->mapped[DLX_LINK_CLAIMS] = NULL;
}

static void unmap_control(struct dlx_subscriber_link *link)
{
    const struct dlx_reader *core = &link->core;
    dlx__region_unmap(dlx__reader_control(core), dlx_shm_control_size(dlx__reader_n_entries(core)));
    dlx__mapped_remove(link->mapped[DLX_LINK_CONTROL]);
}

static void forget_control(struct dlx_subscriber_link *link)
{
    unmap_control(link);
    link->mapped[DLX_LINK_CONTROL] = NULL;
    link->core = (struct dlx_reader){0};
}

void dlx__subscriber_link_free(struct dlx_subscriber_link *link)
{
    for (uint32_t i = 0; link->messages && i < link->max_held; i++)
        dlx__message_free(link->messages[i]);
    free(link->messages);
    for (uint32_t i = 0; i < link->n_arenas; i++)
        free_arena(link, &link->arenas[i]);
    free(link->arenas);
    if (link->gpu)
        dlx__gpu_receiver()->link_end(link);
    pthread_mutex_destroy(&link->arenas_lock);
    if (link->bell >= 0)
        shutdown(link->bell, SHUT_RDWR); /* a forked child may have inherited it */
    dlx__close(link->bell);
    close_claims(link);
    unmap_control(link);
    dlx__region_unmap(link->page, dlx_shm_link_size(link->max_held));
    dlx__mapped_remove(link->mapped[DLX_LINK_PAGE]);
    dlx__mapped_source_unref(link->source);
    free(link);
}

struct dlx_subscriber_link *dlx__subscriber_link_leave(struct dlx_subscriber_link *link,
                                                       uint64_t reader)
{
    dlx__mapped_source_left(link->source, reader, &link->refs);
    return dlx__subscriber_link_unref(link);
}

struct dlx_subscriber_link *dlx__subscriber_link_unref(struct dlx_subscriber_link *link)
{
    uint64_t n = link ? DLX_SUBSCRIBER_LINK_ALIVE - link->n_given : 0;
    if (link && link->gpu)
        dlx__gpu_receiver()->link_leave(link);
    if (link && atomic_fetch_sub_explicit(&link->refs, n, memory_order_acq_rel) == n)
        dlx__subscriber_link_free(link);
    return NULL;
}

void dlx__subscriber_link_look_at_gpu(struct dlx_subscriber_link *link)
{
    dlx__gpu_receiver()->link_look(link);
}

static void ring_publisher(void *userdata)
{
    const struct dlx_subscriber_link *link = userdata;
    DLX_PROBE_BELL(link->publisher, link->id, DLX_PROBE_SUBSCRIBER, link->pid);
    (void)dlx__ring_bell(link->bell);
}

/* Is the memory of all its tensors here? What else is wrong with it, is said when it is built. */
static bool link_can_read(void *userdata, const struct dlx_taken *taken)
{
    struct dlx_subscriber_link *link = userdata;
    struct dlx_manifest manifest;
    uint32_t id = dlx__entry_arena(taken->words);
    if (link->wants == DLX_WANTS_LAST_LOOK || id == 0)
        return true;
    if (!dlx__subscriber_link_has_arena(link, id))
        return false;
    if (!dlx__entry_is_manifest(taken->words) ||
        dlx__message_open_manifest(link, taken, &manifest) < 0)
        return true;
    for (uint32_t i = 0; i < manifest.header.n_tensors; i++) {
        const struct dlx_shm_record *record = &manifest.entries[i].record;
        if (record->size > 0 && !dlx__device_is_gpu(record->device_type) &&
            !dlx__subscriber_link_has_arena(link, record->arena))
            return false;
    }
    return true;
}

static const struct dlx_reader_env reader_env = {.ring = ring_publisher,
                                                 .is_readable = link_can_read};

static int open_claims(struct dlx_subscriber_link *link, struct dlx_notification *opened)
{
    uint64_t number = dlx_shm_former_claims(dlx__region_inode(opened->fds[2]));
    int r = dlx__worker_link_new(link->of->worker, &link->core, opened->owner, opened->claims_size,
                                 &opened->fds[2], &link->claims);
    if (r < 0)
        return r;
    dlx__claims_set_declared(&link->claims->core, opened->declared_group);
    r = dlx__mapped_add(link->source, number, link->claims->page, opened->claims_size,
                        &link->mapped[DLX_LINK_CLAIMS]);
    if (r < 0)
        close_claims(link);
    return r;
}

int dlx__subscriber_link_open(struct dlx_subscriber_link *link, struct dlx_notification *opened,
                              bool latest, bool reliable)
{
    dlx_cleanup(dlx__closep) int fd = dlx__steal_fd(&opened->fds[0]);
    dlx_cleanup(dlx__closep) int bell = dlx__steal_fd(&opened->fds[1]);
    uint32_t n_entries = opened->n_entries;
    const void *control;
    if (link->state >= DLX_LINK_OPENING || opened->n_arenas > DLX_SHM_ARENAS_MAX)
        return dlx__fail(DLX_E_PROTOCOL, "LinkOpen with %u arenas", opened->n_arenas);
    if (!dlx_shm_n_entries_is_valid(n_entries) || opened->size != dlx_shm_control_size(n_entries) ||
        opened->base >= DLX_SHM_MOVED)
        return dlx__fail(DLX_E_PROTOCOL, "control block of %" PRIu64 " bytes for %u entries",
                         opened->size, n_entries);
    int r = dlx__region_attach(link->memory, dlx__steal_fd(&fd), opened->size, &control);
    if (r < 0)
        return r;
    r = dlx__mapped_add(link->source, 0, control, opened->size, &link->mapped[DLX_LINK_CONTROL]);
    if (r < 0) {
        dlx__region_unmap(control, opened->size);
        return r;
    }
    dlx__reader_init(&link->core, control, n_entries, opened->base, link->page, opened->link_index,
                     DLX_MIN(link->max_held, opened->max_held ? opened->max_held : UINT32_MAX),
                     latest, reliable && !opened->owner,
                     opened->owner || opened->on_full == DLX_ON_FULL_BLOCK, &reader_env, link);
    if (opened->owner || (link->of && link->of->worker))
        r = open_claims(link, opened);
    if (r < 0) {
        forget_control(link);
        return r;
    }
    link->most_held_bytes = opened->max_held_bytes;
    link->is_watched = dlx__debug();
    if (link->is_watched && link->most_held_bytes == 0)
        link->most_held_bytes = UINT64_MAX; /* each message is taken and released by itself */
    if (link->most_held_bytes > 0)
        dlx__reader_set_bounded(&link->core);
    link->bell = dlx__steal_fd(&bell);
    link->qos = (struct dlx_message_qos){.size = sizeof link->qos,
                                         .reliable = opened->on_full == DLX_ON_FULL_BLOCK &&
                                                     (reliable || opened->owner),
                                         .on_full = opened->on_full,
                                         .depth = opened->depth,
                                         .history = opened->history,
                                         .retain = opened->retain,
                                         .retain_for_ns = opened->retain_for_ns};
    link->stream_wait_ns = opened->same_user ? DLX_FOREVER : DLX_STREAM_OTHER_USER_NS;
    link->arenas_due = opened->n_arenas;
    link->state = DLX_LINK_OPENING;
    return 0;
}

void dlx__subscriber_link_unopen(struct dlx_subscriber_link *link)
{
    assert(link->state == DLX_LINK_OPENING);
    close_claims(link);
    forget_control(link);
    link->bell = dlx__close(link->bell);
    link->state = DLX_LINK_OFFERED;
}

void dlx__subscriber_link_start(struct dlx_subscriber_link *link, uint64_t history, bool follows)
{
    assert(link->state == DLX_LINK_OPENING);
    link->state = link->holder == DLX_BELL_HUNG_UP ? DLX_LINK_DRAINING : DLX_LINK_LIVE;
    if (link->claims) {
        dlx__claims_start(&link->claims->core, history, history != link->history);
        return;
    }
    if (follows)
        dlx__reader_wait(&link->core);
    dlx__reader_start(&link->core, history);
}

/* A message that was taken will not be handed out. */
static void drop_taken(struct dlx_subscriber_link *link, const struct dlx_taken *taken)
{
    if (link->claims) {
        dlx__worker_link_set_stuck(link->claims, 0);
        dlx__worker_link_drop(link->claims, taken);
    }
    dlx__reader_release(&link->core, taken->hold);
}

static void release_pending(struct dlx_subscriber_link *link)
{
    for (; link->n_pending > 0; link->n_pending--)
        drop_taken(link, &link->pending[link->first_pending++]);
    link->wants = DLX_WANTS_NOTHING;
}

void dlx__subscriber_link_close(struct dlx_subscriber_link *link)
{
    if (!dlx__subscriber_link_is_open(link)) {
        /* The publisher may have it already, and would wait for ever for its first cursor. */
        dlx_store64_sc(&link->page->cursor, DLX_SHM_CURSOR_CLOSED);
        if (link->bell >= 0)
            ring_publisher(link);
        return;
    }
    release_pending(link);
    if (link->claims)
        dlx__claims_close(&link->claims->core);
    else
        dlx__reader_close(&link->core);
}

/* ---- arenas -------------------------------------------------------------------------------- */

/* Index of the first arena whose id is not below `id`. */
static uint32_t find_arena(const struct dlx_subscriber_link *link, uint32_t id)
{
    uint32_t low = 0, high = link->n_arenas;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (link->arenas[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct dlx_subscriber_link_arena *
dlx__subscriber_link_arena_search(struct dlx_subscriber_link *link, uint32_t id)
{
    uint32_t i = link->arena_at[id % DLX_SUBSCRIBER_LINK_HINTS] = find_arena(link, id);
    return i < link->n_arenas && link->arenas[i].id == id ? &link->arenas[i] : NULL;
}

bool dlx__subscriber_link_has_arena(struct dlx_subscriber_link *link, uint32_t id)
{
    const struct dlx_subscriber_link_arena *arena = dlx__subscriber_link_arena(link, id);
    if (arena && arena->fd >= 0)
        link->lacks = id;
    return arena && arena->fd < 0;
}

/* Takes the arena over on success. */
static int insert_arena(struct dlx_subscriber_link *link, uint32_t at,
                        const struct dlx_subscriber_link_arena *arena)
{
    if (link->n_arenas == link->arenas_room) {
        uint32_t room = link->arenas_room ? link->arenas_room * 2 : 4;
        struct dlx_subscriber_link_arena *arenas = realloc(link->arenas, room * sizeof *arenas);
        if (!arenas)
            return dlx__fail(DLX_E_NO_MEMORY, "table of %u arenas", room);
        link->arenas = arenas;
        link->arenas_room = room;
    }
    memmove(&link->arenas[at + 1], &link->arenas[at], (link->n_arenas - at) * sizeof *link->arenas);
    link->arenas[at] = *arena;
    link->n_arenas++;
    return 0;
}

/* Maps an arena, and closes its fd. Outside the lock, since it takes time, and before the first
 * message of the arena is built. A failure changes nothing. */
static int map_arena(const struct dlx_subscriber_link *link,
                     struct dlx_subscriber_link_arena *arena)
{
    struct dlx_gpu_link *gpu = link->gpu;
    struct dlx_subscriber_link_arena to = *arena;
    const void *map;
    int r = dlx__region_attach_borrowed(link->memory, to.fd, to.size, &map);
    if (r < 0)
        return r;
    to.map = map;
    if (to.size >= DLX_VIEW_MIN)
        to.spare = dlx__region_spare(to.fd, to.size);
    to.is_pinned = gpu && dlx__gpu_receiver()->pin(gpu, map, to.size);
    to.until = UINT64_MAX;
    to.fd = -1;
    r = dlx__mapped_add(link->source, to.id, map, to.size, &to.mapped);
    if (r < 0) {
        free_arena(link, &to);
        return r;
    }
    dlx__close(arena->fd);
    *arena = to;
    return 0;
}

int dlx__subscriber_link_arena_add(struct dlx_subscriber_link *link, uint32_t id, int take_fd,
                                   uint64_t size)
{
    struct dlx_subscriber_link_arena arena = {.id = id, .fd = take_fd, .size = size};
    uint32_t at = find_arena(link, id);
    bool is_there = at < link->n_arenas && link->arenas[at].id == id;
    int r = is_there ? dlx__fail(DLX_E_PROTOCOL, "arena %u was announced twice", id)
                     : map_arena(link, &arena);
    if (dlx__error_is_lack(r)) {
        dlx__error_clear(); /* it matters when a message lies there */
        r = 0;
    }
    pthread_mutex_lock(&link->arenas_lock);
    if (r == 0)
        r = insert_arena(link, at, &arena);
    pthread_mutex_unlock(&link->arenas_lock);
    if (r < 0)
        free_arena(link, &arena);
    return r;
}

/* Map the arena that a message was found to need. Returns 0; DLX_E_NOT_FOUND: it needs none of
 * those that are here; why it cannot be mapped. */
static int map_lacking(struct dlx_subscriber_link *link)
{
    uint32_t id = link->lacks, i = find_arena(link, id);
    link->lacks = 0;
    if (i == link->n_arenas || link->arenas[i].id != id || link->arenas[i].fd < 0)
        return DLX_E_NOT_FOUND;
    struct dlx_subscriber_link_arena arena = link->arenas[i];
    int r = map_arena(link, &arena);
    pthread_mutex_lock(&link->arenas_lock);
    link->arenas[i] = arena;
    pthread_mutex_unlock(&link->arenas_lock);
    return r;
}

void *dlx__subscriber_link_view(struct dlx_subscriber_link *link, const void *data, uint64_t size)
{
    const void *spare = NULL;
    uint64_t offset = 0;
    if (size < DLX_VIEW_MIN)
        return NULL;
    pthread_mutex_lock(&link->arenas_lock);
    for (uint32_t i = 0; !spare && i < link->n_arenas; i++) {
        const struct dlx_subscriber_link_arena *arena = &link->arenas[i];
        offset = (uintptr_t)data - (uintptr_t)arena->map;
        if (offset < arena->size) /* wraps where it is below the map */
            spare = arena->spare;
    }
    pthread_mutex_unlock(&link->arenas_lock);
    /* The arena stays: the caller holds a message in it. */
    return spare ? dlx__region_view(spare, offset, size) : NULL;
}

void dlx__subscriber_link_arena_dropped(struct dlx_subscriber_link *link, uint32_t id)
{
    uint32_t i = find_arena(link, id);
    if (i < link->n_arenas && link->arenas[i].id == id) {
        link->arenas[i].until = dlx__reader_cursor(&link->core) + 1;
        link->arenas[i].fd = dlx__close(link->arenas[i].fd);
    }
    dlx__subscriber_link_sweep_arenas(link);
}

static bool may_lie_in(const struct dlx_taken *taken, const struct dlx_subscriber_link_arena *arena)
{
    return taken->n < arena->until && (dlx__entry_kind(taken->words) != DLX_SHM_KIND_TENSOR ||
                                       dlx__entry_arena(taken->words) == arena->id);
}

/* Is something held that may lie in this arena, which was dropped? */
static bool is_held(const struct dlx_subscriber_link *link,
                    const struct dlx_subscriber_link_arena *arena)
{
    for (uint32_t i = 0; i < link->n_pending; i++)
        if (may_lie_in(&link->pending[link->first_pending + i], arena))
            return true;
    for (uint32_t i = 0; i < dlx__reader_n_used(&link->core); i++)
        if (dlx_load64_acquire(&link->page->hold[i]) != 0 && link->messages[i] &&
            dlx__message_may_lie_in(link->messages[i], arena))
            return true;
    return false;
}

void dlx__subscriber_link_sweep_arenas(struct dlx_subscriber_link *link)
{
    uint32_t kept = 0;
    pthread_mutex_lock(&link->arenas_lock);
    for (uint32_t i = 0; i < link->n_arenas; i++) {
        struct dlx_subscriber_link_arena *arena = &link->arenas[i];
        bool is_dropped = arena->fd < 0 && arena->until < UINT64_MAX;
        /* An honest publisher drops an arena when nothing in it is held; a hostile one must not
         * make us unmap what our own user still reads. */
        if (is_dropped && !(arena->map && is_held(link, arena)))
            free_arena(link, arena);
        else
            link->arenas[kept++] = *arena;
    }
    link->n_arenas = kept;
    pthread_mutex_unlock(&link->arenas_lock);
}

/* ---- take ----------------------------------------------------------------------------------- */

/* How many messages a bounded link may take now. One at a time: their bytes are known when they are
 * built. */
static uint32_t room_within_bound(const struct dlx_subscriber_link *link)
{
    uint64_t held = atomic_load_explicit(&link->held_bytes, memory_order_acquire);
    return held < link->most_held_bytes ? 1 : 0;
}

static int fail_too_many_held(const struct dlx_subscriber_link *link, uint32_t n)
{
    if (n == 0)
        return dlx__fail(DLX_E_TOO_MANY_HELD,
                         "%s are held, and the publisher allows %s (its max_held_bytes): release "
                         "some first, or raise it there",
                         DLX_AMOUNT(atomic_load_explicit(&link->held_bytes, memory_order_relaxed)),
                         DLX_AMOUNT(link->most_held_bytes));
    if (dlx__reader_max_held(&link->core) < link->max_held)
        return dlx__fail(DLX_E_TOO_MANY_HELD,
                         "%u messages are held, the limit of the publisher (its max_held): release "
                         "some first, or raise it there",
                         dlx__reader_max_held(&link->core));
    return dlx__fail(DLX_E_TOO_MANY_HELD,
                     "%u messages are held, the limit of this subscription (max_held): release "
                     "some first, or subscribe with a larger max_held",
                     dlx__reader_max_held(&link->core));
}

static int take_claims(struct dlx_subscriber_link *link, struct dlx_taken *ret, uint32_t n)
{
    dlx__claims_set_over(&link->claims->core, link->state >= DLX_LINK_DRAINING);
    return dlx__worker_link_take(link->claims, ret, n);
}

static void begin_claim(struct dlx_message *m, const struct dlx_taken *taken)
{
    m->gap = 0; /* others have what is between */
    dlx__worker_claim_begin(&m->claim, taken);
}

/* Has the first line of the next payload come while the caller uses this one: no load of the caller
 * passes the fences of a take. A hint, as the next message may lie in another arena. */
static void prefetch_payload(const struct dlx_subscriber_link *link, const struct dlx_taken *taken,
                             const struct dlx_message *m)
{
    uint64_t next = dlx__reader_offset(&link->core, taken->n + 1);
    if (m->tensors == &m->inline_tensor)
        __builtin_prefetch((const void *)((uintptr_t)m->inline_tensor.data -
                                          dlx__entry_offset(taken->words) + next));
}

static int take_mapped(struct dlx_subscriber_link *link, uint32_t n, struct dlx_message **ret)
{
    if (link->n_pending == 0) {
        if (dlx_unlikely(dlx__reader_is_bounded(&link->core)))
            n = room_within_bound(link);
        int got = dlx_unlikely(link->claims) ? take_claims(link, link->pending, n)
                                             : dlx__reader_take(&link->core, link->pending, n);
        link->wants = got == DLX_E_NOT_FOUND ? DLX_WANTS_NEWS : DLX_WANTS_NOTHING;
        if (dlx_unlikely(got == DLX_E_TOO_MANY_HELD))
            return link->claims && n > 0 ? got : fail_too_many_held(link, n);
        if (got < 0)
            return got;
        link->n_pending = (uint32_t)got;
        link->first_pending = 0;
    }
    const struct dlx_taken *taken = &link->pending[link->first_pending];
    int r = dlx__message_build(link, taken, ret);
    link->wants = r == DLX_E_NOT_FOUND ? DLX_WANTS_NEWS : DLX_WANTS_NOTHING;
    if (dlx_unlikely(r == DLX_E_NOT_FOUND || r == DLX_E_NO_MEMORY))
        return r;
    link->first_pending++;
    link->n_pending--;
    if (dlx_unlikely(r < 0)) {
        drop_taken(link, taken);
        return r;
    }
    prefetch_payload(link, taken, *ret);
    if (dlx_unlikely(link->claims))
        begin_claim(*ret, taken);
    if (dlx_unlikely(dlx__reader_is_bounded(&link->core)))
        atomic_fetch_add_explicit(&link->held_bytes, (*ret)->bytes, memory_order_relaxed);
    return 0;
}

/* The message lies in an arena that is here and could not be mapped before. In mode LATEST a
 * message that cannot be read makes way for a newer one. Each round maps an arena or passes a
 * message. */
static int __attribute__((noinline))
map_and_take(struct dlx_subscriber_link *link, uint32_t n, struct dlx_message **ret)
{
    int r = DLX_E_NOT_FOUND;
    for (uint32_t k = 0; k < DLX_SHM_ARENAS_MAX && r == DLX_E_NOT_FOUND && link->lacks != 0; k++) {
        int mapped = map_lacking(link);
        bool passes = dlx__reader_is_latest(&link->core) && dlx__reader_pending(&link->core);
        if (mapped < 0 && !passes) {
            link->wants = mapped == DLX_E_NOT_FOUND ? DLX_WANTS_NEWS : DLX_WANTS_NOTHING;
            return mapped;
        }
        if (mapped < 0)
            dlx__subscriber_link_lose_pending(link);
        r = take_mapped(link, n, ret);
    }
    return r;
}

int dlx__subscriber_link_take(struct dlx_subscriber_link *link, uint32_t n,
                              struct dlx_message **ret)
{
    int r = take_mapped(link, n, ret);
    if (dlx_unlikely(r == DLX_E_NOT_FOUND))
        r = map_and_take(link, n, ret);
    if (dlx_unlikely(link->claims))
        dlx__worker_link_set_stuck(link->claims, r == 0 ? 0 : link->n_pending);
    return r;
}

int dlx__subscriber_link_look_ahead(struct dlx_subscriber_link *link)
{
    return link->claims ? take_claims(link, NULL, 0) : dlx__reader_take(&link->core, NULL, 0);
}

void dlx__subscriber_link_lose_first(struct dlx_subscriber_link *link)
{
    const struct dlx_taken *first = &link->pending[link->first_pending++];
    if (link->claims) { /* another worker may have what it takes */
        drop_taken(link, first);
        link->n_pending--;
    } else if (--link->n_pending == 0) {
        dlx__reader_lose(&link->core, first, 1);
    } else { /* the next one tells the gap */
        dlx__reader_release(&link->core, first->hold);
        dlx__reader_miss(&link->core, 1);
        link->pending[link->first_pending].gap += first->gap + 1;
    }
    link->wants = DLX_WANTS_NOTHING;
}

void dlx__subscriber_link_lose_pending(struct dlx_subscriber_link *link)
{
    while (link->n_pending > 0)
        dlx__subscriber_link_lose_first(link);
}

uint64_t dlx__subscriber_link_newest_ns(const struct dlx_subscriber_link *link)
{
    uint64_t ns = dlx__reader_newest_ns(&link->core);
    return ns > 0 || link->n_pending == 0 ? ns : link->pending[link->first_pending].words[0];
}

void dlx__subscriber_link_pass(struct dlx_subscriber_link *link)
{
    dlx__subscriber_link_lose_pending(link);
    dlx__reader_pass(&link->core);
}
