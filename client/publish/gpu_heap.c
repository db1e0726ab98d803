/* SPDX-License-Identifier: Apache-2.0 */
#include "client/publish/gpu_heap.h"
#include "client/publish/gpu_share.h"
#include "common/amount.h"
#include "client/base/device.h"
#include "gpu/gpu.h"
#include <string.h>

/* Kernels want what cudaMalloc() gives. */
#define ALIGN 256U
/* The smallest piece that drivers allocate. */
#define ARENA_LEAST (UINT64_C(2) << 20)

struct dlx_gpu_heap {
    struct dlx_gpu_heap *next;
    struct dlx_heap *heap;
    uint64_t next_trim; /* message number */
};

static bool is_same_device(DLDevice a, DLDevice b)
{
    return a.device_type == b.device_type && a.device_id == b.device_id;
}

/* Work of this process may use the memory of tensors that it has deleted. An error has ended it,
 * too. */
static void wait_for_device(const struct dlx_heap_kind *kind)
{
    (void)dlx__gpu_wait_device((int32_t)kind->device.device_type, kind->device.device_id);
    dlx__error_clear();
}

static void free_arena(const struct dlx_heap_kind *kind, const struct dlx_arena *arena)
{
    wait_for_device(kind);
    dlx__gpu_export_unref(arena->owner);
}

/* ---- heaps --------------------------------------------------------------------------------- */

static struct dlx_gpu_heap *find(const struct dlx_publisher *p, DLDevice device)
{
    struct dlx_gpu_heap *of = p->gpu ? p->gpu->heaps : NULL;
    while (of && !is_same_device(dlx__heap_kind(of->heap)->device, device))
        of = of->next;
    return of;
}

static int heap_new(struct dlx_publisher *p, DLDevice device, struct dlx_heap **ret)
{
    const struct dlx_heap_kind kind = {.device = device,
                                       .align = ALIGN,
                                       .least = ARENA_LEAST,
                                       .free_arena = free_arena,
                                       .settle = wait_for_device};
    struct dlx_gpu_uuid uuid;
    int r = dlx__gpu_uuid((int32_t)device.device_type, device.device_id, &uuid);
    if (r == 0)
        r = dlx__gpu_share_begin(p);
    if (r < 0)
        return r;
    struct dlx_gpu_heap *of = calloc(1, sizeof *of);
    if (!of)
        return dlx__fail(DLX_E_NO_MEMORY, "state of a publisher's memory");
    r = dlx__heap_new_of(&of->heap, p->generation, &kind);
    if (r < 0) {
        free(of);
        return r;
    }
    of->next = p->gpu->heaps;
    p->gpu->heaps = of;
    *ret = of->heap;
    return 0;
}

int dlx__publisher_heap(struct dlx_publisher *p, DLDevice device, struct dlx_heap **ret)
{
    if (dlx__device_is_cpu(device)) {
        if (device.device_id != 0)
            return dlx__fail(DLX_E_DEVICE, "there is no CPU device %d, only 0", device.device_id);
        *ret = p->heap;
        return 0;
    }
    struct dlx_gpu_heap *of = find(p, device);
    if (!of)
        return heap_new(p, device, ret);
    *ret = of->heap;
    return 0;
}

struct dlx_gpu_heap *dlx__gpu_heaps_close(struct dlx_gpu_heap *first)
{
    while (first) {
        struct dlx_gpu_heap *of = first;
        first = of->next;
        dlx__heap_close(of->heap);
        free(of);
    }
    return NULL;
}

uint64_t dlx__gpu_heap_bytes(const struct dlx_publisher *p)
{
    uint64_t bytes = 0;
    for (const struct dlx_gpu_heap *of = p->gpu ? p->gpu->heaps : NULL; of; of = of->next)
        bytes += dlx__heap_bytes(of->heap);
    return bytes;
}

void dlx__gpu_heap_reader_died(struct dlx_publisher *p)
{
    for (struct dlx_gpu_heap *of = p->gpu ? p->gpu->heaps : NULL; of; of = of->next) {
        struct dlx_heap_aside aside;
        dlx__heap_set_aside(of->heap, &aside);
        dlx__heap_freeze(of->heap, &aside);
    }
}

/* ---- blocks -------------------------------------------------------------------------------- */

static int grow_heap(struct dlx_publisher *p, struct dlx_heap *heap, uint64_t size)
{
    DLDevice device = dlx__heap_kind(heap)->device;
    uint64_t bytes = dlx__heap_growth(heap, size);
    struct dlx_gpu_export *export;
    if (bytes == UINT64_MAX)
        return dlx__fail(DLX_E_NO_MEMORY, "a tensor or a set may have at most %s",
                         DLX_AMOUNT(DLX_SHM_ARENA_MAX));
    uint64_t window = (uint64_t)DLX_TRIM_EVERY * p->args.depth;
    while (dlx__heap_drop_excess(heap, bytes, dlx__writer_head(&p->core), window))
        ;
    int r = dlx__gpu_exports_allocate(p->gpu->exports, (int32_t)device.device_type,
                                      device.device_id, bytes, &export);
    if (r < 0)
        return r;
    const struct dlx_gpu_handle *handle = dlx__gpu_export_handle(export);
    r = dlx__gpu_share_keep(p, export);
    if (r == 0)
        r = dlx__heap_add_of(heap, (uint32_t)handle->id, dlx__gpu_export_base(export), handle->size,
                             export);
    if (r < 0)
        dlx__gpu_export_unref(export);
    return r;
}

static int grow_heap_and_take(struct dlx_publisher *p, struct dlx_heap *heap, uint64_t size,
                              struct dlx_block **ret)
{
    int r = grow_heap(p, heap, size);
    if (r == 0)
        r = dlx__heap_take(heap, size, ret);
    if (r == DLX_E_FULL) { /* with an arena more it may have become a large block */
        bool before = dlx__heap_put_anywhere(heap, true);
        r = dlx__heap_take(heap, size, ret);
        (void)dlx__heap_put_anywhere(heap, before);
    }
    return r;
}

/* No more memory of the GPU: the stream goes on with what it has, if that is enough. */
static int find_heap_room(struct dlx_publisher *p, struct dlx_heap *heap, uint64_t size,
                          struct dlx_block **ret)
{
    char why[DLX_ERROR_TEXT_SIZE];
    int r = dlx__publisher_reclaim(p, heap, size, false, ret);
    if (r != DLX_E_FULL)
        return r;
    int grown = grow_heap_and_take(p, heap, size, ret);
    if (grown == 0)
        return 0;
    memcpy(why, dlx__error_message(), sizeof why);
    bool before = dlx__heap_put_anywhere(heap, true);
    r = dlx__publisher_reclaim(p, heap, size, true, ret);
    (void)dlx__heap_put_anywhere(heap, before);
    if (r != DLX_E_FULL)
        return r;
    if (grown == DLX_E_NO_MEMORY && dlx__heap_drop_empty(heap)) {
        while (dlx__heap_drop_empty(heap))
            ;
        grown = grow_heap_and_take(p, heap, size, ret);
        if (grown == 0)
            return 0;
        memcpy(why, dlx__error_message(), sizeof why);
    }
    DLDevice device = dlx__heap_kind(heap)->device;
    return dlx__fail(grown, "topic %s: no memory for %s on %s: %s", p->topic, DLX_AMOUNT(size),
                     DLX_DEVICE(device), why);
}

/* Arenas that nothing is in go back: memory of GPUs is scarce. */
static void trim(struct dlx_publisher *p, struct dlx_heap *heap)
{
    struct dlx_gpu_heap *of = find(p, dlx__heap_kind(heap)->device);
    uint64_t size, bytes;
    uint32_t id;
    if (dlx__writer_head(&p->core) < of->next_trim)
        return;
    bytes = dlx__heap_trim(heap, of->next_trim > 0);
    while ((id = dlx__heap_find_empty(heap, bytes, &size))) {
        dlx__heap_drop(heap, id);
        bytes -= DLX_MIN(bytes, size);
    }
    of->next_trim = dlx__writer_head(&p->core) + (uint64_t)DLX_TRIM_EVERY * p->args.depth;
}

int dlx__publisher_block_of(struct dlx_publisher *p, struct dlx_heap *heap, uint64_t size,
                            struct dlx_block **ret)
{
    if (heap == p->heap)
        return dlx__publisher_block(p, size, ret);
    trim(p, heap);
    int r = dlx__heap_take(heap, size, ret);
    if (r == DLX_E_FULL)
        r = find_heap_room(p, heap, size, ret);
    dlx__gpu_share_tell_gone(p);
    return r;
}

struct dlx_block *dlx__gpu_block(const struct dlx_publisher *p,
                                 const DLManagedTensorVersioned *tensor)
{
    struct dlx_block *block = NULL;
    for (struct dlx_gpu_heap *of = p->gpu ? p->gpu->heaps : NULL; of && !block; of = of->next)
        block = dlx__block_of(of->heap, tensor);
    return block;
}

struct dlx_gpu_export *dlx__gpu_block_export(const struct dlx_block *block)
{
    return block->arena->owner;
}
