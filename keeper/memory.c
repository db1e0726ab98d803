/* SPDX-License-Identifier: Apache-2.0 */
#include "keeper/memory.h"
#include "common/error.h"
#include "daemon/users/share.h"
#include <inttypes.h>
#include <string.h>

void dlxk_memory_init(struct dlxk_memory *memory, uint32_t n_fds_most)
{
    *memory = (struct dlxk_memory){.n_fds_most = n_fds_most};
    dlxd_list_init(&memory->publishers);
}

void dlxk_memory_deinit(struct dlxk_memory *memory)
{
    dlx_for_each (it, &memory->publishers)
        dlxk_memory_remove(memory, dlxd_container_of(it, struct dlxk_publisher, node));
}

struct dlxk_publisher *dlxk_memory_find(const struct dlxk_memory *memory, uint64_t origin,
                                        uint64_t user)
{
    dlx_for_each (it, &memory->publishers) {
        struct dlxk_publisher *publisher = dlxd_container_of(it, struct dlxk_publisher, node);
        if (publisher->origin == origin && publisher->user == user)
            return publisher;
    }
    return NULL;
}

/* Returns the index of the first allocation with this id or a greater one. */
static uint32_t lower_bound(const struct dlxk_publisher *publisher, uint64_t id)
{
    uint32_t from = 0, to = publisher->n;
    while (from < to) {
        uint32_t middle = from + (to - from) / 2;
        if (publisher->items[middle].id < id)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

const struct dlx_gpu_handle *dlxk_memory_get(const struct dlxk_publisher *publisher, uint64_t id)
{
    uint32_t i = lower_bound(publisher, id);
    return i < publisher->n && publisher->items[i].id == id ? &publisher->items[i] : NULL;
}

static uint32_t n_fds_of(const struct dlxk_memory *memory, uint64_t user)
{
    uint32_t n = 0;
    dlx_for_each (it, &memory->publishers) {
        const struct dlxk_publisher *publisher =
            dlxd_container_of(it, const struct dlxk_publisher, node);
        if (publisher->user == user)
            n += 1 + publisher->n;
    }
    return n;
}

static int check_share(const struct dlxk_memory *memory, uint64_t user, uint32_t n_more)
{
    uint32_t n = n_fds_of(memory, user);
    uint32_t n_all = memory->n_fds + n_more;
    if (n_all <= memory->n_fds_most && dlxd_share_is_fair(n + n_more, memory->n_fds_most - n_all))
        return 0;
    return dlx__fail(DLX_E_LIMIT,
                     "the GPU keeper has %u descriptors of allocations and publishers (limit %u), "
                     "%u of them of uid %u, which may have %u times what is left: free tensors on "
                     "GPUs, publish fewer and larger ones, or raise the keeper's limit of open "
                     "files (LimitNOFILE=)",
                     memory->n_fds, memory->n_fds_most, n, (uint32_t)user, DLXD_SHARE_OF_LEFT);
}

static int make_room(struct dlxk_publisher *publisher)
{
    if (publisher->n < publisher->room)
        return 0;
    uint32_t room = publisher->room ? 2 * publisher->room : 4;
    struct dlx_gpu_handle *items = reallocarray(publisher->items, room, sizeof *items);
    if (!items)
        return dlx__fail(DLX_E_NO_MEMORY, "the GPU keeper has no memory for %u allocations", room);
    publisher->items = items;
    publisher->room = room;
    return 0;
}

static int add_publisher(struct dlxk_memory *memory, uint64_t origin, uint64_t user,
                         struct dlxk_publisher **ret)
{
    struct dlxk_publisher *publisher = calloc(1, sizeof *publisher);
    if (!publisher)
        return dlx__fail(DLX_E_NO_MEMORY, "the GPU keeper is out of memory");
    publisher->origin = origin;
    publisher->user = user;
    publisher->pidfd = -1;
    dlxd_list_push_front(&memory->publishers, &publisher->node);
    memory->n_fds++;
    *ret = publisher;
    return 0;
}

int dlxk_memory_reserve(struct dlxk_memory *memory, uint64_t origin, uint64_t user, uint64_t id,
                        struct dlxk_publisher **ret)
{
    struct dlxk_publisher *publisher = dlxk_memory_find(memory, origin, user);
    if (publisher && dlxk_memory_get(publisher, id))
        return dlx__fail(DLX_E_INVALID,
                         "the GPU keeper has allocation %" PRIu64 " of this publisher already: an "
                         "id is used once",
                         id);
    int r = check_share(memory, user, publisher ? 1 : 2);
    if (r == 0 && !publisher)
        r = add_publisher(memory, origin, user, &publisher);
    if (r < 0)
        return r;
    r = make_room(publisher);
    if (r < 0 && !dlxk_memory_is_needed(publisher))
        dlxk_memory_remove(memory, publisher);
    else
        *ret = publisher;
    return r;
}

void dlxk_memory_put(struct dlxk_memory *memory, struct dlxk_publisher *publisher,
                     const struct dlx_gpu_handle *take_handle)
{
    uint32_t i = lower_bound(publisher, take_handle->id);
    memmove(&publisher->items[i + 1], &publisher->items[i],
            (publisher->n - i) * sizeof *publisher->items);
    publisher->items[i] = *take_handle;
    publisher->n++;
    publisher->n_bytes += take_handle->size;
    memory->n_fds++;
}

void dlxk_memory_free(struct dlxk_memory *memory, struct dlxk_publisher *publisher, uint64_t id)
{
    uint32_t i = lower_bound(publisher, id);
    if (i == publisher->n || publisher->items[i].id != id)
        return;
    publisher->n_bytes -= publisher->items[i].size;
    dlx__gpu_handle_deinit(&publisher->items[i]);
    publisher->n--;
    memmove(&publisher->items[i], &publisher->items[i + 1],
            (publisher->n - i) * sizeof *publisher->items);
    memory->n_fds--;
}

void dlxk_memory_free_all(struct dlxk_memory *memory, struct dlxk_publisher *publisher)
{
    while (publisher->n > 0)
        dlxk_memory_free(memory, publisher, publisher->items[publisher->n - 1].id);
}

void dlxk_memory_remove(struct dlxk_memory *memory, struct dlxk_publisher *publisher)
{
    dlxk_memory_free_all(memory, publisher);
    dlxd_list_remove(&publisher->node);
    dlx__close(publisher->pidfd);
    free(publisher->items);
    free(publisher);
    memory->n_fds--;
}
