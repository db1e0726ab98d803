/* SPDX-License-Identifier: Apache-2.0 */
#include "client/inlet.h"
#include "common/memory.h"
#include <inttypes.h>
#include <string.h>
#include <sys/socket.h>

/* ---- life ---------------------------------------------------------------------------------- */

int dlx__inlet_new(struct dlx_inlet **ret, uint64_t generation, uint64_t id, uint64_t publisher,
                   const char *topic, int take_page_fd, uint64_t page_size, uint32_t link_index,
                   uint32_t max_held)
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
        r = dlx__region_populate(dlx__steal_fd(&fd), page_size, &page);
    if (r == 0) {
        inlet->page = page;
        inlet->page_size = page_size;
        *ret = inlet;
    } else {
        dlx__inlet_unref(inlet);
    }
    return r;
}

static void put(struct dlx_inlet *inlet, uint64_t n)
{
    if (dlx_likely(atomic_fetch_sub_explicit(&inlet->refs, n, memory_order_acq_rel) != n))
        return;
    for (uint32_t i = 0; inlet->messages && i < inlet->max_held; i++)
        dlx__message_free(inlet->messages[i]);
    free(inlet->messages);
    for (uint32_t i = 0; i < inlet->n_arenas; i++)
        dlx__region_unmap(inlet->arenas[i].map, inlet->arenas[i].size);
    free(inlet->arenas);
    if (inlet->bell >= 0)
        shutdown(inlet->bell, SHUT_RDWR); /* a forked child may have inherited it */
    dlx__close(inlet->bell);
    dlx__region_unmap(inlet->control, inlet->control_size);
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

int dlx__inlet_open(struct dlx_inlet *inlet, int take_control_fd, int take_bell,
                    uint64_t control_size, uint32_t n_slots, bool latest, bool reliable)
{
    dlx_cleanup(dlx__closep) int control_fd = take_control_fd;
    dlx_cleanup(dlx__closep) int bell = take_bell;
    const void *control;
    if (inlet->state != DLX_INLET_OFFERED || n_slots == 0 || n_slots > DLX_SHM_SLOTS_MAX ||
        control_size != dlx_shm_control_size(n_slots))
        return dlx__fail(DLX_E_PROTOCOL, "control block of %" PRIu64 " bytes for %u slots",
                         control_size, n_slots);
    int r = dlx__region_attach(dlx__steal_fd(&control_fd), control_size, &control);
    if (r < 0)
        return r;
    inlet->control = control;
    inlet->control_size = control_size;
    inlet->bell = dlx__steal_fd(&bell);
    inlet->state = DLX_INLET_OPEN;
    dlx__take_init(&inlet->core, control, n_slots, inlet->page, inlet->link_index, inlet->max_held,
                   latest, reliable, &take_env, inlet);
    return 0;
}

void dlx__inlet_close(struct dlx_inlet *inlet)
{
    if (inlet->state != DLX_INLET_OPEN)
        return;
    if (inlet->stuck)
        dlx__take_release(&inlet->core, inlet->pending.hold);
    inlet->stuck = false;
    dlx__take_close(&inlet->core);
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

const struct dlx_inlet_arena *dlx__inlet_arena(const struct dlx_inlet *inlet, uint32_t id)
{
    uint32_t i = find_arena(inlet, id);
    return i < inlet->n_arenas && inlet->arenas[i].id == id ? &inlet->arenas[i] : NULL;
}

int dlx__inlet_arena_add(struct dlx_inlet *inlet, uint32_t id, int take_fd, uint64_t size)
{
    dlx_cleanup(dlx__closep) int fd = take_fd;
    const void *map;
    uint32_t at = find_arena(inlet, id);
    if (at < inlet->n_arenas && inlet->arenas[at].id == id)
        return dlx__fail(DLX_E_PROTOCOL, "arena %u was announced twice", id);
    if (inlet->n_arenas == inlet->arenas_room) {
        uint32_t room = inlet->arenas_room ? inlet->arenas_room * 2 : 4;
        struct dlx_inlet_arena *arenas = realloc(inlet->arenas, room * sizeof *arenas);
        if (!arenas)
            return dlx__fail(DLX_E_NO_MEMORY, "table of %u arenas", room);
        inlet->arenas = arenas;
        inlet->arenas_room = room;
    }
    int r = dlx__region_attach(dlx__steal_fd(&fd), size, &map);
    if (r < 0)
        return r;
    memmove(&inlet->arenas[at + 1], &inlet->arenas[at],
            (inlet->n_arenas - at) * sizeof *inlet->arenas);
    inlet->arenas[at] = (struct dlx_inlet_arena){.id = id, .map = map, .size = size};
    inlet->n_arenas++;
    return 0;
}

void dlx__inlet_arena_dropped(struct dlx_inlet *inlet, uint32_t id)
{
    uint32_t i = find_arena(inlet, id);
    if (i < inlet->n_arenas && inlet->arenas[i].id == id)
        inlet->arenas[i].dropped_after = inlet->core.cursor + 1;
    dlx__inlet_sweep_arenas(inlet);
}

void dlx__inlet_sweep_arenas(struct dlx_inlet *inlet)
{
    uint64_t oldest = UINT64_MAX; /* message that is held */
    for (uint32_t i = 0; i < inlet->max_held; i++) {
        uint64_t n = dlx_load64_acquire(&inlet->page->hold[i]);
        if (n)
            oldest = DLX_MIN(oldest, n);
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < inlet->n_arenas; i++) {
        struct dlx_inlet_arena *arena = &inlet->arenas[i];
        /* An honest publisher drops an arena when nothing in it is held; a hostile one must not make
         * us unmap what our own user still reads. */
        if (arena->dropped_after && oldest >= arena->dropped_after)
            dlx__region_unmap(arena->map, arena->size);
        else
            inlet->arenas[kept++] = *arena;
    }
    inlet->n_arenas = kept;
}

/* ---- take ---------------------------------------------------------------------------------- */

int dlx__inlet_take(struct dlx_inlet *inlet, struct dlx_message **ret)
{
    if (!inlet->stuck) {
        int r = dlx__take_next(&inlet->core, &inlet->pending);
        if (r < 0)
            return r;
    }
    int r = dlx__message_build(inlet, &inlet->pending, ret);
    inlet->stuck = r == DLX_E_NOT_FOUND;
    if (dlx_unlikely(r < 0 && !inlet->stuck))
        dlx__take_release(&inlet->core, inlet->pending.hold);
    return r;
}
