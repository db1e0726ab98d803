/* SPDX-License-Identifier: Apache-2.0 */
#include "client/publish/gpu_share.h"
#include "client/gpu/gpu_keep.h"
#include "client/message/subscriber_link.h"
#include "client/publish/gpu_heap.h"
#include "client/publish/publish.h"
#include "gpu/gpu.h"
#include "ring/tensor.h"
#include <poll.h>
#include <string.h>
#include <sys/random.h>

_Static_assert(DLX_SHM_ALLOCATION_SIZE == DLX_GPU_HEADER_SIZE, "a description without descriptors");

/* How long the end of a publisher waits for those who hold tensors. */
#define END_NS        UINT64_C(2000000000)
#define PAUSE_MOST_MS 16

/* Streams with these numbers are special ones, of which each device has its own. */
#define SPECIAL_STREAMS 2U

#define DEVICES_MAX 16U

struct dlx_gpu_parcel {
    struct dlx_block_guest guest; /* the first member: blocks refer to it */
    struct dlx_gpu_share *share;
    struct dlx_gpu_parcel *next; /* of those that are LEFT */
    uint32_t n_refs;             /* the maker, and a block for each control block it is in */
    uint32_t n_exports;
    uint32_t n_tensors;
    struct dlx_gpu_job job;
    struct dlx_gpu_event events[DEVICES_MAX];
    uint32_t n_devices; /* whose work was noted */
    DLDevice devices[DEVICES_MAX];
    uint32_t n_own;
    bool is_mortal;
    struct dlx_gpu_export **exports;
    struct dlx_block **own;   /* of tensors of dlx_alloc() in it */
    struct dlx_block *blocks; /* to be given back: these, or references to them; a list */
    DLManagedTensorVersioned *tensors[]; /* to be deleted */
};

/* ---- a publisher --------------------------------------------------------------------------- */

int dlx__gpu_share_begin(struct dlx_publisher *p)
{
    if (p->gpu)
        return 0;
    struct dlx_gpu_share *share = calloc(1, sizeof *share);
    if (!share)
        return dlx__fail(DLX_E_NO_MEMORY, "state of a publisher's GPU memory");
    if (getrandom(&share->number, sizeof share->number, 0) != (ssize_t)sizeof share->number) {
        free(share);
        return dlx__fail_errno("getrandom");
    }
    struct dlx_gpu_publisher publisher = {share->number, p->id};
    int r = dlx__gpu_exports_new(&share->exports, publisher);
    if (r < 0) {
        free(share);
        return r;
    }
    share->keep_number = 1;
    p->gpu = share;
    return 0;
}

int dlx__gpu_share_also(struct dlx_publisher *p, uint64_t id)
{
    return p->gpu ? dlx__gpu_exports_also(p->gpu->exports, id) : 0;
}

/* One of them, by the connection that there is or a new one. Returns 1: the keeper has nothing
 * but this. */
static int keep_one(struct dlx_publisher *p, struct dlx_gpu_export *export)
{
    struct dlx_gpu_share *share = p->gpu;
    int r = dlx__gpu_keep_put(p->client, p->id, &share->keep, dlx__gpu_export_handle(export));
    if (r == 1)
        share->keep_number++;
    if (r >= 0)
        *dlx__gpu_export_mark(export) = share->keep_number;
    return r;
}

/* The keeper was started anew: it gets all that others may still ask for. */
static int keep_others(struct dlx_publisher *p)
{
    struct dlx_gpu_export *export;
    int r = 0;
    for (uint64_t id = 0; r >= 0 && (export = dlx__gpu_exports_next_used(p->gpu->exports, id));) {
        id = dlx__gpu_export_handle(export)->id;
        if (*dlx__gpu_export_mark(export) != p->gpu->keep_number) {
            r = keep_one(p, export);
            id = r == 1 ? 0 : id;
        }
        dlx__gpu_export_unref(export);
    }
    return DLX_MIN(r, 0);
}

int dlx__gpu_share_keep(struct dlx_publisher *p, struct dlx_gpu_export *export)
{
    if (dlx__gpu_export_handle(export)->n_chunks == 0 ||
        *dlx__gpu_export_mark(export) == p->gpu->keep_number)
        return 0;
    int r = keep_one(p, export);
    return r == 1 ? keep_others(p) : r;
}

void dlx__gpu_share_tell_gone(struct dlx_publisher *p)
{
    uint64_t id;
    while (dlx__gpu_exports_next_gone(p->gpu->exports, &id))
        dlx__gpu_keep_drop(p->gpu->keep, id);
}

void dlx__gpu_share_free(struct dlx_gpu_share *share)
{
    if (!share)
        return;
    dlx__gpu_order_end(&share->order);
    share->heaps = dlx__gpu_heaps_close(share->heaps);
    dlx__gpu_exports_end(share->exports);
    share->keep = dlx__gpu_keep_free(share->keep);
    free(share);
}

void dlx__gpu_share_collect(struct dlx_publisher *p)
{
    while (p->gpu && p->gpu->n_parcels > 0 && dlx__writer_reclaim(&p->core, false) > 0)
        ;
}

/* Also who died unnoticed, since the daemon that would tell may be gone. */
static void collect_of_dead(struct dlx_publisher *p)
{
    dlx__writer_look_for_dead(&p->core);
    dlx__gpu_share_collect(p);
}

void dlx__gpu_share_end(struct dlx_publisher *p)
{
    if (!p->gpu)
        return;
    dlx__gpu_order_drain(&p->gpu->order);
    if (p->gpu->n_mortal == 0)
        return;
    uint64_t deadline = dlx__now_ns() + END_NS;
    dlx__writer_set_kept(&p->core, 0);
    collect_of_dead(p);
    for (int pause_ms = 1; p->gpu->n_mortal > 0 && dlx__now_ns() < deadline;
         pause_ms = DLX_MIN(2 * pause_ms, PAUSE_MOST_MS)) {
        (void)poll(NULL, 0, pause_ms);
        collect_of_dead(p);
    }
    /* What nobody has taken is lost: its memory may be used for something else from now on. */
    while (p->gpu->n_mortal > 0 && dlx__writer_reclaim(&p->core, true) > 0)
        ;
    p->gpu->is_over = true;
}

/* ---- parcels ------------------------------------------------------------------------------- */

/* The block that stood for a parcel came back. */
static void drop_block(struct dlx_block *block)
{
    struct dlx_gpu_parcel *parcel = dlx__block_gpu_parcel(block);
    block->is_gpu = false;
    block->guest = NULL;
    dlx__gpu_parcel_unref(parcel);
}

static int parcel_new(struct dlx_publisher *p, uint32_t n, struct dlx_gpu_parcel **ret)
{
    int r = dlx__gpu_share_begin(p);
    if (r < 0)
        return r;
    struct dlx_gpu_parcel *parcel = calloc(1, sizeof *parcel + n * sizeof parcel->tensors[0]);
    struct dlx_gpu_export **exports = calloc(n, sizeof(struct dlx_gpu_export *));
    struct dlx_block **own = calloc(n, sizeof(struct dlx_block *));
    if (!parcel || !exports || !own) {
        free(parcel);
        free(exports);
        free(own);
        return dlx__fail(DLX_E_NO_MEMORY, "table of %u tensors", n);
    }
    parcel->guest.came_back = drop_block;
    parcel->share = p->gpu;
    parcel->share->n_parcels++;
    parcel->n_refs = 1;
    parcel->job.events = parcel->events;
    parcel->exports = exports;
    parcel->own = own;
    *ret = parcel;
    return 0;
}

/* LEFT ones: referred to, so that it is plain where they are. */
static struct dlx_gpu_parcel *_Atomic left;

static void leave(struct dlx_gpu_parcel *parcel)
{
    parcel->next = atomic_load_explicit(&left, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&left, &parcel->next, parcel,
                                                  memory_order_release, memory_order_relaxed))
        ;
}

static void give_blocks(struct dlx_block *block)
{
    while (block) {
        struct dlx_block *next = block->next;
        dlx__heap_give(block->heap, block);
        block = next;
    }
}

void dlx__gpu_parcel_unref(struct dlx_gpu_parcel *parcel)
{
    uint64_t gone;
    if (!parcel || --parcel->n_refs > 0)
        return;
    struct dlx_gpu_share *share = parcel->share;
    dlx__gpu_order_settle(&share->order, &parcel->job);
    for (uint32_t i = 0; i < parcel->job.n_events; i++) /* of one that was not published */
        dlx__gpu_event_end(&parcel->events[i]);
    share->n_parcels--;
    share->n_mortal -= parcel->is_mortal;
    if (share->is_over && parcel->is_mortal) {
        leave(parcel);
        return;
    }
    give_blocks(parcel->blocks);
    for (uint32_t i = 0; i < parcel->n_exports; i++)
        dlx__gpu_export_unref(parcel->exports[i]);
    while (dlx__gpu_exports_next_gone(share->exports, &gone))
        dlx__gpu_keep_drop(share->keep, gone);
    for (uint32_t i = 0; i < parcel->n_tensors; i++)
        if (parcel->tensors[i]->deleter)
            parcel->tensors[i]->deleter(parcel->tensors[i]);
    free(parcel->exports);
    free(parcel->own);
    free(parcel);
}

void dlx__gpu_parcel_adopt(struct dlx_publisher *p, struct dlx_gpu_parcel *parcel,
                           DLManagedTensorVersioned *tensor, const struct dlx_publish_args *args)
{
    struct dlx_block *own = dlx__gpu_block(p, tensor);
    if (!own) {
        if (!args->share)
            parcel->tensors[parcel->n_tensors++] = tensor;
        return;
    }
    if (!dlx__publish_shares(own, args)) {
        own->next = parcel->blocks;
        parcel->blocks = own;
    }
    dlx__publish_handed_over(own, args);
}

int dlx__gpu_parcel_hold(struct dlx_publisher *p, struct dlx_gpu_parcel *parcel,
                         const struct dlx_publish_args *args, struct dlx_block **ret)
{
    for (uint32_t i = 0; i < parcel->n_own; i++) {
        struct dlx_block *ref;
        if (!dlx__publish_shares(parcel->own[i], args))
            continue;
        int r = dlx__block_share(parcel->own[i], &ref);
        if (r < 0)
            return r;
        ref->next = parcel->blocks;
        parcel->blocks = ref;
    }
    int r = dlx__heap_take(p->heap, 0, ret);
    if (r < 0)
        return r;
    dlx__block_hold_gpu(*ret, parcel);
    return 0;
}

void dlx__block_hold_gpu(struct dlx_block *block, struct dlx_gpu_parcel *parcel)
{
    parcel->n_refs++;
    block->is_gpu = true;
    block->guest = &parcel->guest;
}

void dlx__block_settle_gpu(const struct dlx_block *block)
{
    struct dlx_gpu_parcel *parcel = dlx__block_gpu_parcel(block);
    dlx__gpu_order_settle(&parcel->share->order, &parcel->job);
}

/* ---- tensors ------------------------------------------------------------------------------- */

/* All but where it lies. */
static int make_record(const DLTensor *t, bool padded, struct dlx_shm_record *ret)
{
    uint64_t size;
    int r = dlx__tensor_size(t->dtype, padded, t->ndim, t->shape, &size);
    bool follow = r == 0 && dlx__tensor_strides_follow(t->ndim, t->shape, t->strides);
    if (r == 0 && !follow)
        r = dlx__tensor_extent(t->dtype, padded, t->ndim, t->shape, t->strides, &size);
    if (r < 0)
        return r;
    *ret = (struct dlx_shm_record){
        .dtype_code = t->dtype.code,
        .dtype_bits = t->dtype.bits,
        .dtype_lanes = t->dtype.lanes,
        .device_type = (int32_t)t->device.device_type,
        .ndim = (uint32_t)t->ndim,
        .flags = (padded ? DLX_SHM_RECORD_PADDED : 0U) | (follow ? DLX_SHM_RECORD_ROW_MAJOR : 0U),
        .size = size,
    };
    return 0;
}

/* Is the work of this device on the stream among what the message waits for? */
static bool is_noted(const struct dlx_gpu_parcel *parcel, DLDevice device, const void *stream)
{
    bool is_special = (uintptr_t)stream <= SPECIAL_STREAMS;
    for (uint32_t i = 0; i < parcel->n_devices; i++)
        if (!is_special || (parcel->devices[i].device_type == device.device_type &&
                            parcel->devices[i].device_id == device.device_id))
            return true;
    return false;
}

/* Once a message, or once a device where the stream stands for one of each device. In the debug
 * mode nothing can be written to a manifest that is out. */
static int note_work(struct dlx_publisher *p, struct dlx_gpu_parcel *parcel, DLDevice device,
                     void *stream)
{
    struct dlx_gpu_event event;
    bool waited;
    if (is_noted(parcel, device, stream))
        return 0;
    int r = dlx__gpu_event_record((int32_t)device.device_type, device.device_id, stream, &event,
                                  &waited);
    if (r == 1 && (p->is_guarded || parcel->n_devices == DEVICES_MAX)) {
        r = dlx__gpu_event_wait(&event);
        dlx__gpu_event_end(&event);
        waited = true;
    }
    if (r < 0)
        return r;
    p->stats.gpu_waits += waited;
    if (r == 1)
        parcel->events[parcel->job.n_events++] = event;
    if (parcel->n_devices < DEVICES_MAX)
        parcel->devices[parcel->n_devices++] = device;
    return 0;
}

/* One of its exports, as a number from 1 on. One use of each is enough. */
static uint32_t add_export(struct dlx_gpu_parcel *parcel, struct dlx_gpu_export *export)
{
    uint32_t i = 0;
    while (i < parcel->n_exports && parcel->exports[i] != export)
        i++;
    if (i < parcel->n_exports)
        dlx__gpu_export_unref(export);
    else
        parcel->exports[parcel->n_exports++] = export;
    return i + 1;
}

static void set_mortal(struct dlx_gpu_parcel *parcel)
{
    parcel->share->n_mortal += !parcel->is_mortal;
    parcel->is_mortal = true;
}

/* Memory of somebody else. */
static int share_memory(struct dlx_publisher *p, struct dlx_gpu_parcel *parcel, const DLTensor *t,
                        struct dlx_manifest_item *item)
{
    struct dlx_gpu_export *export;
    const void *data = (const uint8_t *)t->data + t->byte_offset;
    int r =
        dlx__gpu_exports_share(p->gpu->exports, (int32_t)t->device.device_type, t->device.device_id,
                               data, item->record.size, &export, &item->record.offset);
    if (r < 0)
        return r;
    r = dlx__gpu_share_keep(p, export);
    if (r < 0) {
        dlx__gpu_export_unref(export);
        return r;
    }
    item->allocation = add_export(parcel, export);
    return 0;
}

/* The user may have changed the shape, the strides or the start of what dlx_alloc() gave. */
static int share_block(struct dlx_gpu_parcel *parcel, const struct dlx_block *own,
                       const DLTensor *t, struct dlx_manifest_item *item)
{
    uintptr_t first = (uintptr_t)dlx__block_data(own), data = (uintptr_t)t->data;
    uint64_t size = item->record.size;
    if (__builtin_add_overflow(data, t->byte_offset, &data) || data < first || size > own->size ||
        data - first > own->size - size)
        return dlx__fail(DLX_E_DEVICE, "it was moved out of what dlx_alloc() gave");
    item->record.offset = own->offset + (data - first);
    item->allocation = add_export(parcel, dlx__gpu_export_ref(dlx__gpu_block_export(own)));
    return 0;
}

/* Publish a tensor where it is. */
static int share_tensor(struct dlx_publisher *p, struct dlx_gpu_parcel *parcel,
                        const DLManagedTensorVersioned *tensor, struct dlx_block *own, void *stream,
                        struct dlx_manifest_item *item)
{
    const DLTensor *t = &tensor->dl_tensor;
    int r = 0;
    if (dlx__message_of(tensor))
        return dlx__fail(DLX_E_DEVICE, "a GPU tensor that was received cannot be published, but a "
                                       "copy of it (`stage`)");
    if (item->record.size > 0)
        r = note_work(p, parcel, t->device, stream);
    if (r == 0 && item->record.size > 0)
        r = own ? share_block(parcel, own, t, item) : share_memory(p, parcel, t, item);
    if (r < 0)
        return r;
    if (own)
        parcel->own[parcel->n_own++] = own;
    else
        set_mortal(parcel);
    return 0;
}

/* Publish a copy in memory of dlx_alloc() instead. It is complete when this returns, so the caller
 * may reuse the original at once. The thread's error says why the original cannot be shared. */
static int stage_tensor(struct dlx_publisher *p, struct dlx_gpu_parcel *parcel, const DLTensor *t,
                        const struct dlx_publish_args *args, struct dlx_manifest_item *item)
{
    struct dlx_heap *heap;
    struct dlx_block *block;
    if (args->strict)
        return dlx__fail_prefix(DLX_E_WOULD_COPY, "it would be copied, which `strict` forbids");
    dlx__error_clear();
    if (item->record.size == 0)
        return 1;
    const int32_t type = (int32_t)t->device.device_type, device = t->device.device_id;
    const void *data = (const uint8_t *)t->data + t->byte_offset;
    int r = dlx__gpu_check_range(type, device, data, item->record.size);
    if (r == 0)
        r = dlx__publisher_heap(p, t->device, &heap);
    if (r == 0)
        r = dlx__publisher_block_of(p, heap, item->record.size, &block);
    if (r < 0)
        return r;
    r = dlx__gpu_copy(type, device, dlx__block_data(block), data, item->record.size, args->stream);
    if (r < 0) {
        dlx__heap_give(heap, block);
        return r;
    }
    p->stats.gpu_waits++;
    block->next = parcel->blocks;
    parcel->blocks = block;
    item->record.offset = block->offset;
    item->allocation = add_export(parcel, dlx__gpu_export_ref(dlx__gpu_block_export(block)));
    return 1;
}

int dlx__gpu_parcel_add(struct dlx_publisher *p, struct dlx_gpu_parcel **parcel, uint32_t n,
                        const DLManagedTensorVersioned *tensor, const struct dlx_publish_args *args,
                        struct dlx_manifest_item *ret)
{
    const DLTensor *t = &tensor->dl_tensor;
    struct dlx_block *own = dlx__gpu_block(p, tensor);
    if (dlx__block_of(p->heap, tensor))
        return dlx__fail(DLX_E_DEVICE,
                         "it is from dlx_alloc(), on the CPU, and claims device type %d",
                         t->device.device_type);
    if (dlx__publish_is_again(own))
        return dlx__fail(DLX_E_INVALID,
                         "it was published or deleted before, and is not the caller's any more: "
                         "allocate another one, or publish with `share`");
    int r =
        make_record(t, tensor->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED, &ret->record);
    if (r == 0 && !*parcel)
        r = parcel_new(p, n, parcel);
    if (r < 0)
        return r;
    ret->shape = t->shape;
    ret->strides = t->strides;
    ret->allocation = 0;
    r = share_tensor(p, *parcel, tensor, own, args->stream, ret);
    if (r == DLX_E_DEVICE && args->stage)
        r = stage_tensor(p, *parcel, t, args, ret);
    return r;
}

void dlx__gpu_parcel_write(struct dlx_publisher *p, struct dlx_gpu_parcel *parcel, void *manifest)
{
    if (parcel->n_exports == 0)
        return;
    struct dlx_shm_manifest_gpu *gpu = dlx__manifest_gpu(manifest);
    bool is_ready = parcel->job.n_events == 0;
    gpu->publisher = parcel->share->number;
    gpu->reserved = 0;
    dlx_store32_relaxed(&gpu->ready, is_ready ? DLX_GPU_READY : DLX_GPU_PENDING);
    for (uint32_t i = 0; i < parcel->n_exports; i++)
        dlx__gpu_handle_encode_outline(dlx__gpu_export_handle(parcel->exports[i]),
                                       dlx__manifest_allocation(manifest, i));
    parcel->job.word = &gpu->ready;
    if (!is_ready)
        p->stats.gpu_waits += dlx__gpu_order_add(&parcel->share->order, &parcel->job);
}
