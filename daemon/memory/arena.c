/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/arena.h"
#include "common/error.h"
#include "daemon/memory/proof.h"
#include "daemon/users/outbox.h"
#include "daemon/base/worker.h"
#include <assert.h>
#include <string.h>

/* Returns NULL if out of memory, with the thread's message set. */
static struct dlxd_arena *arena_alloc(struct dlxd_workers *workers, uint32_t id, uint64_t size)
{
    struct dlxd_arena *arena = calloc(1, sizeof *arena);
    if (!arena) {
        (void)dlx__fail(DLX_E_NO_MEMORY, "out of memory for an arena's description");
        return NULL;
    }
    arena->workers = workers;
    arena->id = id;
    arena->size = size;
    arena->fd = -1;
    dlxd_list_init(&arena->told);
    return arena;
}

int dlxd_arena_new(struct dlxd_arena **ret, struct dlxd_workers *workers, struct dlxd_user *user,
                   uint32_t id, uint64_t size, bool is_retained)
{
    struct dlxd_arena *arena = arena_alloc(workers, id, size);
    if (!arena)
        return DLX_E_NO_MEMORY;
    int r = dlxd_flights_charge(&arena->charge, user, DLXD_BYTES, size);
    if (r == 0 && is_retained)
        r = dlxd_charge_init(&arena->retained_charge, user, DLXD_RETAINED_BYTES, size);
    if (r < 0) {
        dlxd_charge_deinit(&arena->charge);
        free(arena);
        return r;
    }
    *ret = arena;
    return 0;
}

int dlxd_arena_restore(struct dlxd_arena **ret, struct dlxd_workers *workers,
                       struct dlxd_user *user, uint32_t id, uint64_t size, bool is_retained)
{
    struct dlxd_arena *arena = arena_alloc(workers, id, size);
    if (!arena)
        return DLX_E_NO_MEMORY;
    dlxd_charge_restore(&arena->charge, user, DLXD_BYTES, size);
    if (is_retained)
        dlxd_charge_restore(&arena->retained_charge, user, DLXD_RETAINED_BYTES, size);
    *ret = arena;
    return 0;
}

void dlxd_arena_forget(struct dlxd_arena *arena)
{
    dlxd_charge_deinit(&arena->retained_charge);
}

void dlxd_arena_close(struct dlxd_arena *arena)
{
    arena->proof = dlxd_proof_abandon(arena->proof);
    arena->fd = dlxd_workers_close(arena->workers, arena->charge.user, arena->fd);
    dlxd_charge_close_descriptors(&arena->charge);
}

void dlxd_reservation_begin(struct dlxd_arena *arena, struct dlxd_publisher *publisher,
                            struct dlxd_list *all)
{
    arena->reservation =
        (struct dlxd_reservation){.publisher = publisher, .grown_ns = dlx__now_ns()};
    dlxd_list_init(&arena->reservation.node);
    dlxd_list_push_back(all, &arena->reservation.node);
}

void dlxd_reservation_end(struct dlxd_arena *arena)
{
    if (!arena->reservation.publisher)
        return;
    dlxd_list_remove(&arena->reservation.node);
    arena->reservation.publisher = NULL;
}

struct dlxd_arena *dlxd_arena_free(struct dlxd_arena *arena)
{
    if (arena) {
        assert(dlxd_list_empty(&arena->told));
        dlxd_reservation_end(arena);
        dlxd_arena_close(arena);
        dlxd_arena_forget(arena);
        dlxd_charge_deinit(&arena->charge);
        free(arena);
    }
    return NULL;
}

void dlxd_arenas_deinit(struct dlxd_arenas *arenas)
{
    for (size_t i = 0; i < arenas->n; i++)
        dlxd_arena_free(arenas->items[i]);
    free(arenas->items);
    *arenas = (struct dlxd_arenas){.n = 0};
}

int dlxd_arenas_reserve(struct dlxd_arenas *arenas)
{
    if (arenas->n < arenas->n_max)
        return 0;
    size_t n = arenas->n_max ? arenas->n_max * 2 : 8;
    struct dlxd_arena **items = reallocarray(arenas->items, n, sizeof(*items));
    if (!items)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a list of %zu arenas", n);
    arenas->items = items;
    arenas->n_max = n;
    return 0;
}

void dlxd_arenas_push(struct dlxd_arenas *arenas, struct dlxd_arena *arena)
{
    assert(arenas->n < arenas->n_max);
    arenas->items[arenas->n++] = arena;
}

static void remove_at(struct dlxd_arenas *arenas, size_t i)
{
    arenas->n--;
    memmove(arenas->items + i, arenas->items + i + 1,
            (arenas->n - i) * sizeof(struct dlxd_arena *));
}

struct dlxd_arena *dlxd_arenas_find(const struct dlxd_arenas *arenas, uint32_t id)
{
    for (size_t i = 0; i < arenas->n; i++)
        if (arenas->items[i]->id == id)
            return arenas->items[i];
    return NULL;
}

void dlxd_arenas_remove(struct dlxd_arenas *arenas, struct dlxd_arena *arena)
{
    for (size_t i = 0; i < arenas->n; i++) {
        if (arenas->items[i] == arena) {
            remove_at(arenas, i);
            return;
        }
    }
}

struct dlxd_arena *dlxd_arenas_take(struct dlxd_arenas *arenas, uint32_t id)
{
    struct dlxd_arena *arena = dlxd_arenas_find(arenas, id);
    if (arena)
        dlxd_arenas_remove(arenas, arena);
    return arena;
}

static struct dlxd_arena *first_after(const struct dlxd_arenas *arenas, uint64_t seq, bool dropped)
{
    size_t low = 0;
    size_t high = arenas->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct dlxd_arena *arena = arenas->items[middle];
        if ((dropped ? arena->drop_seq : arena->ready_seq) <= seq)
            low = middle + 1;
        else
            high = middle;
    }
    return low < arenas->n ? arenas->items[low] : NULL;
}

struct dlxd_arena *dlxd_arenas_ready_after(const struct dlxd_arenas *ready, uint64_t seq)
{
    return first_after(ready, seq, false);
}

struct dlxd_arena *dlxd_arenas_dropped_after(const struct dlxd_arenas *dropped, uint64_t seq)
{
    return first_after(dropped, seq, true);
}
