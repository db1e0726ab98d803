/* SPDX-License-Identifier: Apache-2.0 */
#include "keeper/shelf.h"
#include "common/error.h"
#include <endian.h>
#include <inttypes.h>
#include <string.h>

/* The offset of the number of chunks in a part, a u16: gpu/handle.h. */
#define AT_N_HERE 2

void dlxk_shelf_deinit(struct dlxk_shelf *shelf)
{
    for (uint32_t i = 0; i < shelf->n; i++)
        dlx__gpu_handle_deinit(&shelf->items[i]);
    dlx__gpu_handle_deinit(&shelf->incoming);
    free(shelf->items);
    *shelf = (struct dlxk_shelf){0};
}

/* Returns the index of the first description with this id or a greater one. */
static uint32_t lower_bound(const struct dlxk_shelf *shelf, uint64_t id)
{
    uint32_t from = 0, to = shelf->n;
    while (from < to) {
        uint32_t middle = from + (to - from) / 2;
        if (shelf->items[middle].id < id)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

const struct dlx_gpu_handle *dlxk_shelf_find(const struct dlxk_shelf *shelf, uint64_t id)
{
    uint32_t i = lower_bound(shelf, id);
    return i < shelf->n && shelf->items[i].id == id ? &shelf->items[i] : NULL;
}

void dlxk_shelf_drop(struct dlxk_shelf *shelf, uint64_t id)
{
    uint32_t i = lower_bound(shelf, id);
    if (i == shelf->n || shelf->items[i].id != id)
        return;
    struct dlx_gpu_handle gone = shelf->items[i];
    shelf->n--;
    memmove(&shelf->items[i], &shelf->items[i + 1], (shelf->n - i) * sizeof gone);
    shelf->n_fds -= gone.n_chunks;
    dlx__gpu_handle_deinit(&gone); /* last, because it may block */
}

static void clear_incoming(struct dlxk_shelf *shelf)
{
    shelf->n_fds -= shelf->incoming.n_chunks;
    dlx__gpu_handle_deinit(&shelf->incoming);
}

static int reserve(struct dlxk_shelf *shelf)
{
    if (shelf->n < shelf->room)
        return 0;
    uint32_t room = shelf->room ? 2 * shelf->room : 16;
    struct dlx_gpu_handle *items = reallocarray(shelf->items, room, sizeof *items);
    if (!items)
        return dlx__fail(DLX_E_NO_MEMORY, "the GPU keeper has no memory for %u allocations", room);
    shelf->items = items;
    shelf->room = room;
    return 0;
}

static int insert(struct dlxk_shelf *shelf)
{
    dlxk_shelf_drop(shelf, shelf->incoming.id);
    int r = reserve(shelf);
    if (r < 0)
        return r;
    uint32_t i = lower_bound(shelf, shelf->incoming.id);
    memmove(&shelf->items[i + 1], &shelf->items[i], (shelf->n - i) * sizeof *shelf->items);
    shelf->items[i] = shelf->incoming;
    shelf->incoming = (struct dlx_gpu_handle){0};
    shelf->n++;
    return 0;
}

/* The first part was decoded: checks the number of descriptors. */
static int shelf_count(struct dlxk_shelf *shelf)
{
    uint32_t n = shelf->incoming.n_chunks;
    uint32_t used = shelf->n_fds;
    shelf->n_fds += n;
    if (n == 0)
        return dlx__fail(DLX_E_PROTOCOL, "memory of the kind %s has no descriptors to be kept",
                         dlx__gpu_kind_text(shelf->incoming.kind));
    if (shelf->n_fds > shelf->n_fds_most)
        return dlx__fail(DLX_E_LIMIT,
                         "allocation %" PRIu64 " needs %u file descriptors of the GPU keeper, "
                         "which has %u of this publisher (limit %u): share fewer or larger chunks, "
                         "or raise its limit of open files",
                         shelf->incoming.id, n, used, shelf->n_fds_most);
    return 0;
}

int dlxk_shelf_put(struct dlxk_shelf *shelf, uint32_t serial, const uint8_t *data, size_t size,
                   int *take_fds, size_t n_fds)
{
    if (serial == shelf->serial && shelf->is_refused)
        return 1;
    if (serial != shelf->serial || shelf->incoming.id == 0) {
        clear_incoming(shelf);
        shelf->serial = serial;
        shelf->is_refused = false;
    }
    bool is_first = shelf->incoming.id == 0;
    int r = dlx__gpu_handle_decode(&shelf->incoming, data, size, take_fds, n_fds);
    if (r == 0 && is_first)
        r = shelf_count(shelf);
    if (r == 0 && !dlx__gpu_handle_is_complete(&shelf->incoming))
        return 1;
    if (r == 0)
        r = insert(shelf);
    if (r < 0)
        dlxk_shelf_refuse(shelf, serial);
    return r;
}

void dlxk_shelf_refuse(struct dlxk_shelf *shelf, uint32_t serial)
{
    shelf->serial = serial;
    shelf->is_refused = true;
    clear_incoming(shelf);
}

size_t dlxk_shelf_part(const struct dlx_gpu_handle *handle, uint32_t first, uint32_t n_most,
                       uint8_t ret[DLX_GPU_BYTES_MAX], int ret_borrow_fds[DLX_PACKET_FDS_MAX],
                       size_t *ret_n_fds)
{
    size_t size = dlx__gpu_handle_encode(handle, first, ret, ret_borrow_fds, ret_n_fds);
    if (*ret_n_fds <= n_most)
        return size;
    /* A part ends with the sizes of its chunks, so a shorter part is a prefix of it. */
    uint16_t n_here = htole16((uint16_t)n_most);
    memcpy(ret + AT_N_HERE, &n_here, sizeof n_here);
    *ret_n_fds = n_most;
    return DLX_GPU_HEADER_SIZE + (size_t)8 * n_most;
}
