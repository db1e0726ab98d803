/* SPDX-License-Identifier: Apache-2.0 */
#include "client/inlet.h"
#include "common/memory.h"
#include <inttypes.h>
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

static void unmap_blocks(struct dlx_take_block **blocks, uint32_t *n)
{
    for (uint32_t i = 0; i < *n; i++)
        dlx__region_unmap((*blocks)[i].control, (*blocks)[i].size);
    *n = 0;
}

static void unmap_arena(const struct dlx_inlet_arena *arena)
{
    dlx__region_unmap(arena->map, arena->size);
    dlx__region_unmap(arena->spare, arena->size);
}

static void put(struct dlx_inlet *inlet, uint64_t n)
{
    if (dlx_likely(atomic_fetch_sub_explicit(&inlet->refs, n, memory_order_acq_rel) != n))
        return;
    for (uint32_t i = 0; inlet->messages && i < inlet->max_held; i++)
        dlx__message_free(inlet->messages[i]);
    free(inlet->messages);
    for (uint32_t i = 0; i < inlet->n_arenas; i++)
        unmap_arena(&inlet->arenas[i]);
    free(inlet->arenas);
    pthread_mutex_destroy(&inlet->arenas_lock);
    if (inlet->bell >= 0)
        shutdown(inlet->bell, SHUT_RDWR); /* a forked child may have inherited it */
    dlx__close(inlet->bell);
    unmap_blocks(&inlet->blocks, &inlet->n_blocks);
    unmap_blocks(&inlet->left, &inlet->n_left);
    free(inlet->blocks);
    free(inlet->left);
    dlx__region_unmap(inlet->page, inlet->page_size);
    free(inlet);
}

void dlx__inlet_released(struct dlx_inlet *inlet)
{
    put(inlet, 1);
}

struct dlx_inlet *dlx__inlet_unref(struct dlx_inlet *inlet)
{
    if (inlet)
        put(inlet, DLX_INLET_ALIVE - inlet->n_given);
    return NULL;
}

static void ring_publisher(void *userdata)
{
    struct dlx_inlet *inlet = userdata;
    /* A full socket has a byte in it already; a closed one has nobody to wake. */
    (void)!send(inlet->bell, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static const struct dlx_take_env take_env = {.ring = ring_publisher};

int dlx__inlet_open(struct dlx_inlet *inlet, int take_bell, uint32_t n_arenas)
{
    if (inlet->state != DLX_INLET_OFFERED || n_arenas > DLX_SHM_ARENAS_MAX) {
        dlx__close(take_bell);
        return dlx__fail(DLX_E_PROTOCOL, "LinkOpen with %u arenas", n_arenas);
    }
    inlet->bell = take_bell;
    inlet->arenas_due = n_arenas;
    inlet->state = DLX_INLET_OPENING;
    return 0;
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
    if (inlet->has_pending)
        dlx__take_release(&inlet->core, inlet->pending.hold);
    inlet->stuck = inlet->has_pending = false;
    dlx__take_close(&inlet->core);
}

/* ---- control blocks ------------------------------------------------------------------------ */

static int add_block(struct dlx_take_block **blocks, uint32_t *n, uint32_t at,
                     const struct dlx_take_block *block)
{
    struct dlx_take_block *more = realloc(*blocks, (*n + 1) * sizeof *more);
    if (!more)
        return dlx__fail(DLX_E_NO_MEMORY, "table of %u control blocks", *n + 1);
    memmove(&more[at + 1], &more[at], (*n - at) * sizeof *more);
    more[at] = *block;
    *blocks = more;
    ++*n;
    return 0;
}

static void remove_block(struct dlx_inlet *inlet, uint32_t at)
{
    inlet->n_blocks--;
    memmove(&inlet->blocks[at], &inlet->blocks[at + 1],
            (inlet->n_blocks - at) * sizeof *inlet->blocks);
}

int dlx__inlet_block_add(struct dlx_inlet *inlet, uint32_t id, int take_fd, uint64_t size,
                         uint32_t n_slots, uint64_t base)
{
    struct dlx_take_block block = {.base = base, .n_slots = n_slots, .id = id, .size = size};
    const void *map;
    dlx_cleanup(dlx__closep) int fd = take_fd;
    if (n_slots == 0 || n_slots > DLX_SHM_SLOTS_MAX || size != dlx_shm_control_size(n_slots) ||
        base >= DLX_SHM_MOVED)
        return dlx__fail(DLX_E_PROTOCOL, "control block of %" PRIu64 " bytes for %u slots", size,
                         n_slots);
    int r = dlx__region_attach(inlet->memory, dlx__steal_fd(&fd), size, &map);
    if (r < 0)
        return r;
    block.control = map;
    uint32_t at = inlet->n_blocks;
    while (at > 0 && inlet->blocks[at - 1].base > base)
        at--;
    if (inlet->state == DLX_INLET_OPEN && at == 0)
        r = dlx__fail(DLX_E_BAD_PEER,
                      "control block that begins after message %" PRIu64
                      ", later than one that does after %" PRIu64,
                      base, inlet->blocks[0].base);
    else
        r = add_block(&inlet->blocks, &inlet->n_blocks, at, &block);
    if (r < 0)
        dlx__region_unmap(map, size);
    return r;
}

void dlx__inlet_block_dropped(struct dlx_inlet *inlet, uint32_t id)
{
    /* Where we are, or will start, is the last to go: there is another one after it. */
    for (uint32_t i = inlet->state == DLX_INLET_OPEN; i < inlet->n_blocks; i++) {
        if (inlet->blocks[i].id == id && inlet->n_blocks > 1) {
            dlx__region_unmap(inlet->blocks[i].control, inlet->blocks[i].size);
            remove_block(inlet, i);
            return;
        }
    }
}

void dlx__inlet_start(struct dlx_inlet *inlet, uint32_t history, bool from_start, bool latest,
                      bool reliable)
{
    uint64_t cursor;
    uint32_t first = dlx__take_choose(inlet->blocks, inlet->n_blocks, history, from_start, &cursor);
    for (uint32_t i = 0; i < first; i++) {
        dlx__region_unmap(inlet->blocks[0].control, inlet->blocks[0].size);
        remove_block(inlet, 0);
    }
    inlet->state = DLX_INLET_OPEN;
    dlx__take_init(&inlet->core, inlet->blocks[0].control, inlet->blocks[0].n_slots, inlet->page,
                   inlet->link_index, inlet->max_held, latest, reliable, &take_env, inlet);
    inlet->core.never_rings = inlet->on_full != DLX_ON_FULL_BLOCK;
    dlx__take_start(&inlet->core, cursor);
}

/* A release looks at the block that we were in when it began, and is done when it is counted. */
static void sweep_left(struct dlx_inlet *inlet)
{
    uint64_t refs = atomic_load_explicit(&inlet->refs, memory_order_acquire);
    if (refs == DLX_INLET_ALIVE - inlet->n_given)
        unmap_blocks(&inlet->left, &inlet->n_left);
}

int dlx__inlet_go_on(struct dlx_inlet *inlet)
{
    struct dlx_take *core = &inlet->core;
    while (inlet->n_blocks > 1 && dlx__take_block_is_dead(&inlet->blocks[1])) {
        dlx__region_unmap(inlet->blocks[1].control, inlet->blocks[1].size);
        remove_block(inlet, 1);
    }
    const struct dlx_take_block *next = inlet->n_blocks > 1 ? &inlet->blocks[1] : NULL;
    if (core->latest && (!next || dlx__take_block_is_empty(next))) {
        if (!next && !inlet->asked) {
            inlet->asked = true;
            return DLX_E_NOT_FOUND;
        }
        if (dlx__take_stay(core))
            return 0;
    }
    if (!next)
        return DLX_E_NOT_FOUND;
    int r = add_block(&inlet->left, &inlet->n_left, inlet->n_left, &inlet->blocks[0]);
    if (r < 0)
        return r;
    r = dlx__take_move(core, next->control, next->n_slots, next->base);
    if (r < 0) {
        inlet->n_left--; /* we are still in it, and it is unmapped once */
        return r;
    }
    inlet->asked = false;
    remove_block(inlet, 0);
    sweep_left(inlet);
    return 0;
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
    pthread_mutex_lock(&inlet->arenas_lock);
    r = insert_arena(inlet, at, &arena);
    pthread_mutex_unlock(&inlet->arenas_lock);
    if (r < 0)
        unmap_arena(&arena);
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

/* Is something held that may lie in this arena, which was dropped? */
static bool is_held(const struct dlx_inlet *inlet, const struct dlx_inlet_arena *arena)
{
    for (uint32_t i = 0; i < inlet->max_held; i++) {
        if (dlx_load64_acquire(&inlet->page->hold[i]) == 0)
            continue;
        if (inlet->has_pending && inlet->pending.hold == i) {
            if (inlet->pending.n < arena->dropped_after &&
                (inlet->pending.flags & DLX_SHM_SLOT_MANIFEST ||
                 inlet->pending.record.arena == arena->id))
                return true;
        } else if (inlet->messages[i] && dlx__message_may_lie_in(inlet->messages[i], arena)) {
            return true;
        }
    }
    return false;
}

void dlx__inlet_sweep_arenas(struct dlx_inlet *inlet)
{
    sweep_left(inlet);
    uint32_t kept = 0;
    pthread_mutex_lock(&inlet->arenas_lock);
    for (uint32_t i = 0; i < inlet->n_arenas; i++) {
        struct dlx_inlet_arena *arena = &inlet->arenas[i];
        /* An honest publisher drops an arena when nothing in it is held; a hostile one must not make
         * us unmap what our own user still reads. */
        if (arena->dropped_after && !is_held(inlet, arena))
            unmap_arena(arena);
        else
            inlet->arenas[kept++] = *arena;
    }
    inlet->n_arenas = kept;
    pthread_mutex_unlock(&inlet->arenas_lock);
}

void dlx__inlet_lose(struct dlx_inlet *inlet)
{
    dlx__take_lose(&inlet->core, &inlet->pending);
    inlet->stuck = inlet->has_pending = false;
}
