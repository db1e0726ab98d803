/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpu_threads.h"
#include "client/message.h"
#include "client/message_gpu.h"
#include "common/amount.h"
#include "common/memory.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* ---- life ---------------------------------------------------------------------------------- */

int dlx__inlet_new(struct dlx_inlet **ret, const struct dlx_memory *memory, uint64_t generation,
                   uint64_t id, uint64_t publisher, const char *topic, int take_page_fd,
                   uint64_t page_size, uint32_t link_index, uint32_t max_held)
{
    dlx_cleanup(dlx__closep) int fd = take_page_fd;
    void *page;
    if (max_held == 0 || max_held > DLX_SHM_HELD_MAX || page_size != dlx_shm_link_size(max_held) ||
        strlen(topic) > DLX_TOPIC_MAX)
        return dlx__fail(DLX_E_PROTOCOL, "link page of %" PRIu64 " bytes for %u hold words",
                         page_size, max_held);
    struct dlx_inlet *inlet = calloc(1, sizeof *inlet);
    if (!inlet)
        return dlx__fail(DLX_E_NO_MEMORY, "state of a link");
    atomic_init(&inlet->refs, DLX_INLET_ALIVE);
    pthread_mutex_init(&inlet->arenas_lock, NULL);
    inlet->memory = memory;
    inlet->generation = generation;
    inlet->id = id;
    inlet->publisher = publisher;
    inlet->link_index = link_index;
    inlet->max_held = max_held;
    inlet->bell = -1;
    memcpy(inlet->topic, topic, strlen(topic) + 1);
    inlet->messages = calloc(max_held, sizeof(struct dlx_message *));
    int r = inlet->messages ? 0 : dlx__fail(DLX_E_NO_MEMORY, "state of %u messages", max_held);
    if (r == 0)
        r = dlx__region_populate(memory, dlx__steal_fd(&fd), page_size, &page);
    if (r == 0) {
        inlet->page = page;
        inlet->page_size = page_size;
        *ret = inlet;
    } else {
        dlx__inlet_unref(inlet);
    }
    return r;
}

int dlx__inlet_assign(struct dlx_inlet *inlet, uint64_t publisher, const char *topic,
                      uint32_t link_index)
{
    size_t size = strlen(topic) + 1;
    inlet->publisher = publisher;
    inlet->link_index = link_index;
    if (publisher == 0 || size > sizeof inlet->topic)
        return dlx__fail(DLX_E_PROTOCOL, "LinkOpen of publisher %" PRIu64, publisher);
    memcpy(inlet->topic, topic, size);
    return 0;
}

static void unmap_arena(const struct dlx_inlet *inlet, const struct dlx_inlet_arena *arena)
{
    if (!arena->is_pinned || dlx__pin_remove(inlet->pin, arena->map, arena->size))
        dlx__region_unmap(arena->map, arena->size);
    dlx__region_unmap(arena->spare, arena->size);
}

void dlx__inlet_free(struct dlx_inlet *inlet)
{
    for (uint32_t i = 0; inlet->messages && i < inlet->max_held; i++)
        dlx__message_free(inlet->messages[i]);
    free(inlet->messages);
    dlx__message_gpu_leave(inlet);
    for (uint32_t i = 0; i < inlet->n_arenas; i++)
        unmap_arena(inlet, &inlet->arenas[i]);
    free(inlet->arenas);
    dlx__pin_unref(inlet->pin);
    dlx__gpu_threads_unref(inlet->gpu_threads);
    pthread_mutex_destroy(&inlet->arenas_lock);
    if (inlet->bell >= 0)
        shutdown(inlet->bell, SHUT_RDWR); /* a forked child may have inherited it */
    dlx__close(inlet->bell);
    dlx__region_unmap(inlet->control, inlet->control_size);
    dlx__region_unmap(inlet->page, inlet->page_size);
    free(inlet);
}

struct dlx_inlet *dlx__inlet_unref(struct dlx_inlet *inlet)
{
    uint64_t n = inlet ? DLX_INLET_ALIVE - inlet->n_given : 0;
    if (inlet && atomic_fetch_sub_explicit(&inlet->refs, n, memory_order_acq_rel) == n)
        dlx__inlet_free(inlet);
    return NULL;
}

static void ring_publisher(void *userdata)
{
    const struct dlx_inlet *inlet = userdata;
    (void)dlx__ring_bell(inlet->bell);
}

/* Is the memory of all its tensors here? What else is wrong with it, is said when it is built. */
static bool is_readable(void *userdata, const struct dlx_taken *taken)
{
    struct dlx_inlet *inlet = userdata;
    struct dlx_manifest manifest;
    uint32_t id = dlx__entry_arena(taken->words);
    if (inlet->is_final || id == 0)
        return true;
    if (!dlx__inlet_arena(inlet, id))
        return false;
    if (!dlx__entry_is_manifest(taken->words) ||
        dlx__message_open_manifest(inlet, taken, &manifest) < 0)
        return true;
    for (uint32_t i = 0; i < manifest.header.n_tensors; i++) {
        const struct dlx_shm_record *record = &manifest.entries[i].record;
        if (record->size > 0 && !dlx__device_is_gpu(record->device_type) &&
            !dlx__inlet_arena(inlet, record->arena))
            return false;
    }
    return true;
}

static const struct dlx_reader_env reader_env = {.ring = ring_publisher,
                                                 .is_readable = is_readable};

int dlx__inlet_open(struct dlx_inlet *inlet, int take_bell, int take_control_fd,
                    uint64_t control_size, uint32_t n_entries, uint64_t base, uint32_t n_arenas)
{
    dlx_cleanup(dlx__closep) int bell = take_bell;
    dlx_cleanup(dlx__closep) int fd = take_control_fd;
    const void *control;
    if (inlet->state != DLX_INLET_OFFERED || n_arenas > DLX_SHM_ARENAS_MAX)
        return dlx__fail(DLX_E_PROTOCOL, "LinkOpen with %u arenas", n_arenas);
    if (!dlx_shm_n_entries_is_valid(n_entries) || control_size != dlx_shm_control_size(n_entries) ||
        base >= DLX_SHM_MOVED)
        return dlx__fail(DLX_E_PROTOCOL, "control block of %" PRIu64 " bytes for %u entries",
                         control_size, n_entries);
    int r = dlx__region_attach(inlet->memory, dlx__steal_fd(&fd), control_size, &control);
    if (r < 0)
        return r;
    inlet->control = control;
    inlet->control_size = control_size;
    inlet->n_entries = n_entries;
    inlet->base = base;
    inlet->bell = dlx__steal_fd(&bell);
    inlet->arenas_due = n_arenas;
    inlet->state = DLX_INLET_OPENING;
    return 0;
}

void dlx__inlet_start(struct dlx_inlet *inlet, uint32_t history, bool from_start, bool latest,
                      bool reliable)
{
    bool rings = inlet->on_full == DLX_ON_FULL_BLOCK;
    inlet->state = DLX_INLET_OPEN;
    uint32_t max_held =
        inlet->most_held ? DLX_MIN(inlet->max_held, inlet->most_held) : inlet->max_held;
    dlx__reader_init(&inlet->core, inlet->control, inlet->n_entries, inlet->page, inlet->link_index,
                     max_held, latest, reliable, rings, &reader_env, inlet);
    if (inlet->most_held_bytes > 0)
        dlx__reader_set_bounded(&inlet->core);
    dlx__reader_start(&inlet->core, history, from_start, inlet->base);
}

static void release_pending(struct dlx_inlet *inlet)
{
    for (; inlet->n_pending > 0; inlet->n_pending--)
        dlx__reader_release(&inlet->core, inlet->pending[inlet->first_pending++].hold);
    inlet->stuck = false;
}

void dlx__inlet_close(struct dlx_inlet *inlet)
{
    if (inlet->state != DLX_INLET_OPEN) {
        /* The publisher may have it already, and would wait for ever for its first cursor. */
        dlx_store64_sc(&inlet->page->cursor, DLX_SHM_CURSOR_CLOSED);
        if (inlet->bell >= 0)
            ring_publisher(inlet);
        return;
    }
    release_pending(inlet);
    dlx__reader_close(&inlet->core);
}

/* ---- arenas -------------------------------------------------------------------------------- */

/* Index of the first arena whose id is not below `id`. */
static uint32_t find_arena(const struct dlx_inlet *inlet, uint32_t id)
{
    uint32_t low = 0, high = inlet->n_arenas;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (inlet->arenas[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct dlx_inlet_arena *dlx__inlet_arena_search(struct dlx_inlet *inlet, uint32_t id)
{
    uint32_t i = inlet->arena_at[id % DLX_INLET_HINTS] = find_arena(inlet, id);
    return i < inlet->n_arenas && inlet->arenas[i].id == id ? &inlet->arenas[i] : NULL;
}

static int insert_arena(struct dlx_inlet *inlet, uint32_t at, const struct dlx_inlet_arena *arena)
{
    if (inlet->n_arenas == inlet->arenas_room) {
        uint32_t room = inlet->arenas_room ? inlet->arenas_room * 2 : 4;
        struct dlx_inlet_arena *arenas = realloc(inlet->arenas, room * sizeof *arenas);
        if (!arenas)
            return dlx__fail(DLX_E_NO_MEMORY, "table of %u arenas", room);
        inlet->arenas = arenas;
        inlet->arenas_room = room;
    }
    memmove(&inlet->arenas[at + 1], &inlet->arenas[at],
            (inlet->n_arenas - at) * sizeof *inlet->arenas);
    inlet->arenas[at] = *arena;
    inlet->n_arenas++;
    return 0;
}

/* Outside the lock, since it takes time, and before the first message of the arena is built. */
static void pin_arena(struct dlx_inlet *inlet, struct dlx_inlet_arena *arena)
{
    arena->is_pinned = dlx__pin_add(inlet->pin, arena->map, arena->size) == 0;
    if (arena->is_pinned)
        return;
    if (inlet->unpinned[0] == '\0')
        (void)snprintf(inlet->unpinned, sizeof inlet->unpinned, "%s", dlx__error_message());
    dlx__error_clear();
}

int dlx__inlet_arena_add(struct dlx_inlet *inlet, uint32_t id, int take_fd, uint64_t size)
{
    dlx_cleanup(dlx__closep) int fd = take_fd;
    const void *map;
    uint32_t at = find_arena(inlet, id);
    if (at < inlet->n_arenas && inlet->arenas[at].id == id)
        return dlx__fail(DLX_E_PROTOCOL, "arena %u was announced twice", id);
    int r = dlx__region_attach_borrow(inlet->memory, fd, size, &map);
    if (r < 0)
        return r;
    struct dlx_inlet_arena arena = {.id = id, .map = map, .size = size};
    if (size >= DLX_VIEW_MIN)
        arena.spare = dlx__region_spare(fd, size);
    if (inlet->pin)
        pin_arena(inlet, &arena);
    pthread_mutex_lock(&inlet->arenas_lock);
    r = insert_arena(inlet, at, &arena);
    pthread_mutex_unlock(&inlet->arenas_lock);
    if (r < 0)
        unmap_arena(inlet, &arena);
    return r;
}

void *dlx__inlet_view(struct dlx_inlet *inlet, const void *data, uint64_t size)
{
    const void *spare = NULL;
    uint64_t offset = 0;
    if (size < DLX_VIEW_MIN)
        return NULL;
    pthread_mutex_lock(&inlet->arenas_lock);
    for (uint32_t i = 0; !spare && i < inlet->n_arenas; i++) {
        const struct dlx_inlet_arena *arena = &inlet->arenas[i];
        offset = (uintptr_t)data - (uintptr_t)arena->map;
        if (offset < arena->size) /* wraps where it is below the map */
            spare = arena->spare;
    }
    pthread_mutex_unlock(&inlet->arenas_lock);
    /* It stays: the caller holds a message in it. */
    return spare ? dlx__region_view(spare, offset, size) : NULL;
}

void dlx__inlet_arena_dropped(struct dlx_inlet *inlet, uint32_t id)
{
    uint32_t i = find_arena(inlet, id);
    if (i < inlet->n_arenas && inlet->arenas[i].id == id)
        inlet->arenas[i].dropped_after = inlet->core.cursor + 1;
    dlx__inlet_sweep_arenas(inlet);
}

static bool may_lie_in(const struct dlx_taken *taken, const struct dlx_inlet_arena *arena)
{
    return taken->n < arena->dropped_after &&
           (dlx__entry_kind(taken->words) != DLX_SHM_KIND_TENSOR ||
            dlx__entry_arena(taken->words) == arena->id);
}

/* Is something held that may lie in this arena, which was dropped? */
static bool is_held(const struct dlx_inlet *inlet, const struct dlx_inlet_arena *arena)
{
    for (uint32_t i = 0; i < inlet->n_pending; i++)
        if (may_lie_in(&inlet->pending[inlet->first_pending + i], arena))
            return true;
    for (uint32_t i = 0; i < inlet->core.n_used; i++)
        if (dlx_load64_acquire(&inlet->page->hold[i]) != 0 && inlet->messages[i] &&
            dlx__message_may_lie_in(inlet->messages[i], arena))
            return true;
    return false;
}

void dlx__inlet_sweep_arenas(struct dlx_inlet *inlet)
{
    uint32_t kept = 0;
    pthread_mutex_lock(&inlet->arenas_lock);
    for (uint32_t i = 0; i < inlet->n_arenas; i++) {
        struct dlx_inlet_arena *arena = &inlet->arenas[i];
        /* An honest publisher drops an arena when nothing in it is held; a hostile one must not make
         * us unmap what our own user still reads. */
        if (arena->dropped_after && !is_held(inlet, arena))
            unmap_arena(inlet, arena);
        else
            inlet->arenas[kept++] = *arena;
    }
    inlet->n_arenas = kept;
    pthread_mutex_unlock(&inlet->arenas_lock);
}

/* ---- take ----------------------------------------------------------------------------------- */

/* How many messages a bounded link may take now. One at a time: their bytes are known when they are built. */
static uint32_t room_within_bound(const struct dlx_inlet *inlet)
{
    uint64_t held = atomic_load_explicit(&inlet->held_bytes, memory_order_acquire);
    return held < inlet->most_held_bytes ? 1 : 0;
}

static int fail_too_many_held(const struct dlx_inlet *inlet, uint32_t n)
{
    if (n == 0)
        return dlx__fail(DLX_E_TOO_MANY_HELD,
                         "%s are held, and the publisher allows %s (its max_held_bytes): release "
                         "some first, or raise it there",
                         DLX_AMOUNT(atomic_load_explicit(&inlet->held_bytes, memory_order_relaxed)),
                         DLX_AMOUNT(inlet->most_held_bytes));
    if (inlet->core.max_held < inlet->max_held)
        return dlx__fail(DLX_E_TOO_MANY_HELD,
                         "%u messages are held, the limit of the publisher (its max_held): release "
                         "some first, or raise it there",
                         inlet->core.max_held);
    return dlx__fail(DLX_E_TOO_MANY_HELD,
                     "%u messages are held, the limit of this subscription (max_held): release "
                     "some first, or subscribe with a larger max_held",
                     inlet->core.max_held);
}

int dlx__inlet_take(struct dlx_inlet *inlet, uint32_t n, struct dlx_message **ret)
{
    if (inlet->n_pending == 0) {
        if (dlx_unlikely(inlet->core.is_bounded))
            n = room_within_bound(inlet);
        int got = dlx__reader_take(&inlet->core, inlet->pending, n);
        inlet->stuck = got == DLX_E_NOT_FOUND;
        if (dlx_unlikely(got == DLX_E_TOO_MANY_HELD))
            return fail_too_many_held(inlet, n);
        if (got < 0)
            return got;
        inlet->n_pending = (uint32_t)got;
        inlet->first_pending = 0;
    }
    const struct dlx_taken *taken = &inlet->pending[inlet->first_pending];
    int r = dlx__message_build(inlet, taken, ret);
    inlet->stuck = r == DLX_E_NOT_FOUND;
    if (dlx_unlikely(inlet->stuck || r == DLX_E_NO_MEMORY))
        return r;
    inlet->first_pending++;
    inlet->n_pending--;
    if (dlx_unlikely(r < 0))
        dlx__reader_release(&inlet->core, taken->hold);
    else if (dlx_unlikely(inlet->core.is_bounded))
        atomic_fetch_add_explicit(&inlet->held_bytes, (*ret)->bytes, memory_order_relaxed);
    return r;
}

void dlx__inlet_lose_first(struct dlx_inlet *inlet)
{
    const struct dlx_taken *first = &inlet->pending[inlet->first_pending++];
    if (--inlet->n_pending == 0) {
        dlx__reader_lose(&inlet->core, first, 1);
    } else { /* the next one tells the gap */
        dlx__reader_release(&inlet->core, first->hold);
        dlx__reader_miss(&inlet->core, 1);
        inlet->pending[inlet->first_pending].gap += first->gap + 1;
    }
    inlet->stuck = false;
}

void dlx__inlet_lose_pending(struct dlx_inlet *inlet)
{
    while (inlet->n_pending > 0)
        dlx__inlet_lose_first(inlet);
}
