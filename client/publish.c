/* SPDX-License-Identifier: Apache-2.0 */

/* dlx_alloc() and dlx_publish(): the hot path of a publisher. */

#include "client/debug.h"
#include "client/inlet.h"
#include "client/publish.h"
#include "client/revive.h"
#include "common/manifest.h"
#include "common/tensor.h"
#include <inttypes.h>
#include <string.h>

/* ---- alloc --------------------------------------------------------------------------------- */

int dlx_alloc(struct dlx_publisher *p, const struct dlx_tensor_spec *user_spec,
              DLManagedTensorVersioned **ret)
{
    struct dlx_tensor_spec spec;
    struct dlx_block *block;
    uint64_t size;
    dlx__error_clear();
    if (!p || !user_spec || !ret)
        return dlx__fail(DLX_E_INVALID, "dlx_alloc: publisher, spec or ret is NULL");
    if (dlx__forked(p->generation))
        return dlx__fail_forked();
    int r = dlx__args_copy(&spec, sizeof spec, sizeof spec, user_spec);
    if (dlx_likely(r == 0) && dlx__publisher_alloc_again(p, &spec, ret))
        return 0;
    if (r == 0)
        r = dlx__tensor_size(spec.dtype, false, spec.ndim, spec.shape, &size);
    if (r == 0)
        r = dlx__publisher_block(p, size, &block);
    while (dlx_unlikely(r < 0) && dlx__publisher_has_resumed(p, r, p->client->timeout_ns))
        r = dlx__publisher_block(p, size, &block);
    if (r < 0)
        return r;
    r = dlx__block_export(block, spec.dtype, spec.ndim, spec.shape, size);
    if (r < 0) {
        dlx__heap_give(p->heap, block);
        return r;
    }
    *ret = &block->tensor;
    return 0;
}

/* ---- what to publish ----------------------------------------------------------------------- */

/* A tensor on its way into a slot. */
struct parcel {
    struct dlx_shm_record record;
    struct dlx_block *block;    /* its payload, or a reference to that */
    struct dlx_block *manifest; /* if it needs one */
    const int64_t *shape;
    const int64_t *strides; /* unless ROW_MAJOR */
    uint64_t copied_bytes;
};

static bool overlaps(const DLTensor *t)
{
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->strides[i] <= 0 && t->shape[i] > 1)
            return true;
    return false;
}

/* Can this tensor be read where it lies, in its own block? The user may have changed the shape, the strides
 * or the start of what dlx_alloc() gave. */
static bool fits_block(const struct dlx_block *block, const DLTensor *t, bool padded,
                       uint64_t *ret_offset, uint64_t *ret_size, bool *ret_row_major)
{
    if (dlx__block_is_frozen(block))
        return false;
    const uint8_t *base = dlx__block_data(block);
    uint64_t start, end;
    if (t->device.device_type != kDLCPU || t->device.device_id != 0)
        return false;
    /* First: it says whether there are shapes to look at. */
    if (dlx__tensor_size(t->dtype, padded, t->ndim, t->shape, ret_size) < 0)
        return false;
    bool row_major = *ret_row_major = dlx__tensor_is_row_major(t->ndim, t->shape, t->strides);
    if (!row_major && (overlaps(t) || dlx__tensor_extent(t->dtype, padded, t->ndim, t->shape,
                                                         t->strides, ret_size) < 0))
        return false;
    if (*ret_size == 0) {
        *ret_offset = 0;
        return true;
    }
    /* As numbers: the pointer need not lie in the block at all. */
    uintptr_t data = (uintptr_t)t->data, first = (uintptr_t)base;
    if (!base || __builtin_add_overflow(data, t->byte_offset, &data) || data < first)
        return false;
    start = data - first;
    if (start % DLX_SHM_ALIGN != 0 || __builtin_add_overflow(start, *ret_size, &end) ||
        end > block->size)
        return false;
    *ret_offset = block->offset + start;
    return true;
}

static int check_device(const DLTensor *t)
{
    switch (t->device.device_type) {
    case kDLCPU:
    case kDLCUDAHost:
    case kDLROCMHost:
        return 0;
    default:
        return dlx__fail(DLX_E_DEVICE,
                         "device type %d cannot be carried: only memory that this process can read "
                         "(CPU %d, CUDAHost %d, ROCMHost %d)",
                         t->device.device_type, kDLCPU, kDLCUDAHost, kDLROCMHost);
    }
}

int dlx__publish_fail_would_copy(const struct dlx_publisher *p, const char *what,
                                 const struct dlx_block *own, const struct dlx_message *received)
{
    static const char end[] = "so it would be copied, and `strict` is set";
    if (received)
        return dlx__fail(DLX_E_WOULD_COPY,
                         "topic %s: %s was received, and lies in memory of publisher %" PRIu64
                         " on topic %s, %s",
                         p->topic, what, dlx_message_publisher(received),
                         dlx_message_topic(received), end);
    return dlx__fail(DLX_E_WOULD_COPY, "topic %s: %s %s, %s", p->topic, what,
                     own ? "was moved out of what dlx_alloc() gave, overlaps itself, or is from "
                           "before dlpackd was started anew"
                         : "is not from dlx_alloc() of this publisher",
                     end);
}

int dlx__publish_place_slowly(const DLTensor *t, const struct dlx_block *own, bool padded,
                              struct dlx_shm_record *ret)
{
    uint64_t offset = 0, size = 0;
    bool row_major = true, copy = false;
    if (!own || !fits_block(own, t, padded, &offset, &size, &row_major)) {
        copy = true;
        int r = check_device(t);
        if (r == 0)
            r = dlx__tensor_size(t->dtype, padded, t->ndim, t->shape, &size);
        if (r < 0)
            return r;
    }
    *ret = (struct dlx_shm_record){
        .arena = own && !copy && size > 0 ? dlx__block_arena_id(own) : 0,
        .dtype_code = t->dtype.code,
        .dtype_bits = t->dtype.bits,
        .dtype_lanes = t->dtype.lanes,
        .device_type = kDLCPU,
        .ndim = (uint32_t)t->ndim,
        .flags = (padded ? DLX_SHM_RECORD_PADDED : 0U) |
                 (copy || row_major ? DLX_SHM_RECORD_ROW_MAJOR : 0U) |
                 (copy ? DLX_SHM_RECORD_COPIED : 0U),
        .offset = offset,
        .size = size,
    };
    return copy;
}

int dlx__publish_copy(const struct dlx_block *block, uint64_t at, const DLTensor *t,
                      struct dlx_shm_record *record)
{
    if (record->size == 0)
        return 0;
    int r = dlx__tensor_compact((uint8_t *)dlx__block_data(block) + at, t,
                                record->flags & DLX_SHM_RECORD_PADDED);
    record->arena = dlx__block_arena_id(block);
    record->offset = block->offset + at;
    return r;
}

int dlx__publish_manifest(struct dlx_publisher *p, const struct dlx_manifest_item *items,
                          uint32_t n_items, const struct dlx_bytes *meta, struct dlx_block **ret)
{
    struct dlx_shm_manifest header;
    uint64_t size = dlx__manifest_lay_out(items, n_items, meta ? (uint32_t)meta->size : 0, &header);
    int r = dlx__publisher_block_beside(p, size, ret);
    if (r < 0)
        return r;
    (*ret)->payload_size = size;
    (*ret)->ndim = -1;
    dlx__manifest_write(dlx__block_data(*ret), &header, items, meta ? meta->data : NULL);
    return 0;
}

static int make_parcel(struct dlx_publisher *p, const DLTensor *t, struct dlx_block *own,
                       bool padded, const struct dlx_publish_args *args, struct parcel *parcel)
{
    int r = dlx__publish_place(t, own, padded, &parcel->record);
    if (dlx_unlikely(r < 0))
        return r;
    parcel->block = own;
    parcel->shape = t->shape;
    parcel->strides = t->strides;
    if (r > 0) {
        if (args->strict)
            return DLX_E_WOULD_COPY; /* the caller knows more to say about it */
        r = dlx__publisher_block(p, parcel->record.size, &parcel->block);
        if (r < 0)
            return r;
        r = dlx__publish_copy(parcel->block, 0, t, &parcel->record);
        parcel->copied_bytes = parcel->record.size;
    } else if (dlx_unlikely(dlx__publish_shares(own, args))) {
        r = dlx__block_share(own, &parcel->block);
        if (r < 0)
            return r;
    }
    if (dlx_unlikely(r == 0 && parcel->record.ndim > DLX_SHM_NDIM_INLINE)) {
        struct dlx_manifest_item item = {
            .record = parcel->record, .shape = parcel->shape, .strides = parcel->strides};
        r = dlx__publish_manifest(p, &item, 1, NULL, &parcel->manifest);
    }
    if (dlx_unlikely(r < 0 && parcel->block != own))
        dlx__heap_give(p->heap, parcel->block);
    return r;
}

/* ---- slot ---------------------------------------------------------------------------------- */

/* A slot, if there is one now. */
static int try_slot(struct dlx_publisher *p, uint32_t *ret_slot)
{
    if (dlx_unlikely(p->core.pressure >= DLX_PUB_PRESSURE))
        dlx__publisher_relieve(p);
    int r = dlx__pub_slot(&p->core, ret_slot);
    if (dlx_likely(r == 0) || p->core.pressure < DLX_PUB_PRESSURE)
        return r;
    dlx__publisher_relieve(p);
    return dlx__pub_slot(&p->core, ret_slot);
}

/* One attempt, and if it fails, something has happened since that may help. */
static int wait_slot(struct dlx_publisher *p, uint64_t deadline, uint32_t *ret_slot)
{
    dlx__pub_set_blocked(&p->core, true); /* again each time, as it may have moved */
    int r = dlx__pub_slot(&p->core, ret_slot);
    if (r == 0)
        return 0;
    r = dlx__outlet_wait(p, deadline);
    if (r == 0 && p->rejoining)
        r = dlx__outlet_rejoin(p, deadline);
    return r < 0 ? r : 1;
}

int dlx__publish_slot_slowly(struct dlx_publisher *p, int64_t timeout_ns, uint32_t *ret_slot)
{
    int r = 0;
    if (dlx_unlikely(p->rejoining))
        r = dlx__outlet_rejoin(p, timeout_ns == 0 ? 0 : dlx__deadline(timeout_ns));
    if (dlx_unlikely(r < 0))
        return r;
    r = try_slot(p, ret_slot);
    if (dlx_likely(r == 0))
        return 0;
    if (dlx_unlikely(p->link_sock <
                     0)) { /* a daemon that has ended may be why: with another one there is room */
        uint64_t epoch = p->epoch;
        dlx__publisher_look(p, dlx__now_ns());
        if (p->epoch != epoch)
            return dlx__publish_slot_slowly(p, timeout_ns, ret_slot);
    }
    if (timeout_ns != 0 && p->core.gating) {
        uint64_t deadline = dlx__deadline(timeout_ns);
        p->stats.blocked++;
        do
            r = wait_slot(p, deadline, ret_slot);
        while (r > 0);
        dlx__pub_set_blocked(&p->core, false);
        if (r == 0)
            return 0;
    }
    p->stats.full++;
    return r == DLX_E_FULL || r == DLX_E_TIMEOUT ? dlx__outlet_blame(p, r) : r;
}

void dlx__publish_fill_manifest(struct dlx_shm_slot *slot, const struct dlx_block *manifest,
                                uint32_t n_tensors, uint64_t time_ns)
{
    slot->time_ns = time_ns;
    slot->n_tensors = n_tensors;
    slot->flags = DLX_SHM_SLOT_MANIFEST;
    slot->manifest_arena = dlx__block_arena_id(manifest);
    slot->manifest_offset = manifest->offset;
    slot->manifest_size = manifest->payload_size;
}

static void fill_slot(struct dlx_shm_slot *slot, const struct parcel *parcel, uint64_t time_ns)
{
    if (dlx_unlikely(parcel->manifest)) {
        dlx__publish_fill_manifest(slot, parcel->manifest, 1, time_ns);
        return;
    }
    slot->time_ns = time_ns;
    slot->n_tensors = 1;
    slot->flags = 0;
    slot->record = parcel->record;
    for (uint32_t i = 0; i < parcel->record.ndim; i++)
        slot->shape[i] = parcel->shape[i];
    if (dlx_unlikely(!(parcel->record.flags & DLX_SHM_RECORD_ROW_MAJOR)))
        for (uint32_t i = 0; i < parcel->record.ndim; i++)
            slot->strides[i] = parcel->strides[i];
}

uint64_t dlx__publish_commit(struct dlx_publisher *p, uint32_t slot, struct dlx_block *blocks,
                             uint64_t bytes, uint64_t copied_bytes, bool copied)
{
    if (dlx_unlikely(blocks->is_guarded)) /* before anybody can read it */
        p->stats.unprotected += !dlx__debug_protect(blocks);
    uint64_t seq = dlx__pub_commit(&p->core, slot, blocks);
    dlx__publisher_look_ahead(p);
    p->stats.published_bytes += bytes;
    p->stats.copied_bytes += copied_bytes;
    p->stats.copied += copied;
    dlx_store64_relaxed(&p->control->published, p->core.head);
    dlx_store64_relaxed(&p->control->published_bytes, p->stats.published_bytes);
    dlx_store64_relaxed(&p->control->copied, p->stats.copied);
    dlx_store64_relaxed(&p->control->copied_bytes, p->stats.copied_bytes);
    if (dlx_unlikely(!p->has_succeeded && seq >= p->base + p->retain))
        dlx__publisher_succeed(p);
    return seq;
}

bool dlx__publish_shares(const struct dlx_block *own, const struct dlx_publish_args *args)
{
    return args->share || own->n_refs > 0;
}

void dlx__publish_handed_over(struct dlx_block *own, const struct dlx_publish_args *args)
{
    if (dlx_unlikely(args->share))
        own->tensor.flags |= DLPACK_FLAG_BITMASK_READ_ONLY;
    else
        dlx__block_published(own);
}

/* Returns 1 if the caller's tensor is spent, but its memory was not used: it is to be deleted. */
static int publish(struct dlx_publisher *p, const DLTensor *t, struct dlx_block *own, bool padded,
                   const struct dlx_publish_args *user_args)
{
    struct dlx_publish_args args = {0};
    struct parcel parcel = {0};
    uint32_t slot;
    int r = user_args ? dlx__args_copy(&args, sizeof args, sizeof args, user_args) : 0;
    if (dlx_likely(r == 0))
        r = dlx__publish_slot(p, args.timeout_ns, &slot);
    if (dlx_likely(r == 0))
        r = make_parcel(p, t, own, padded, &args, &parcel);
    if (dlx_unlikely(r < 0))
        return r;
    uint64_t now = dlx__now_ns();
    fill_slot(&p->core.slots[slot], &parcel, args.time_ns ? args.time_ns : now);
    parcel.block->next = parcel.manifest;
    bool copied = parcel.record.flags & DLX_SHM_RECORD_COPIED;
    uint64_t seq =
        dlx__publish_commit(p, slot, parcel.block, parcel.record.size, parcel.copied_bytes, copied);
    if (dlx_likely(!copied))
        dlx__publish_handed_over(own, &args);
    dlx__publisher_look(p, now); /* last: it may move */
    if (args.report) {
        struct dlx_publish_report report = {.size = sizeof report,
                                            .seq = seq,
                                            .copied_bytes = parcel.copied_bytes,
                                            .n_copied = copied};
        (void)dlx__args_return(args.report, sizeof report, &report, sizeof report);
    }
    return copied && !args.share;
}

/* ---- publish ------------------------------------------------------------------------------- */

int dlx_publish(struct dlx_publisher *p, DLManagedTensorVersioned *tensor,
                const struct dlx_publish_args *args)
{
    dlx__error_clear();
    if (dlx_unlikely(!p || !tensor))
        return dlx__fail(DLX_E_INVALID, "dlx_publish: publisher or tensor is NULL");
    if (dlx_unlikely(dlx__forked(p->generation)))
        return dlx__fail_forked();
    if (dlx_unlikely(tensor->version.major != DLPACK_MAJOR_VERSION))
        return dlx__fail(DLX_E_VERSION, "topic %s: tensor of DLPack %u.%u, this library knows %d.x",
                         p->topic, tensor->version.major, tensor->version.minor,
                         DLPACK_MAJOR_VERSION);
    int r = publish(p, &tensor->dl_tensor, dlx__block_of(p->heap, tensor),
                    tensor->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED, args);
    while (dlx_unlikely(r < 0) && dlx__publisher_has_resumed(p, r, args ? args->timeout_ns : 0))
        r = publish(p, &tensor->dl_tensor, dlx__block_of(p->heap, tensor),
                    tensor->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED, args);
    if (dlx_unlikely(r == DLX_E_WOULD_COPY))
        return dlx__publish_fail_would_copy(p, "the tensor", dlx__block_of(p->heap, tensor),
                                            dlx__message_of(tensor));
    if (r <= 0)
        return r;
    if (tensor->deleter) /* the original has done its work */
        tensor->deleter(tensor);
    return 0;
}

int dlx_publish_legacy(struct dlx_publisher *p, DLManagedTensor *tensor,
                       const struct dlx_publish_args *args)
{
    dlx__error_clear();
    if (!p || !tensor)
        return dlx__fail(DLX_E_INVALID, "dlx_publish_legacy: publisher or tensor is NULL");
    if (dlx__forked(p->generation))
        return dlx__fail_forked();
    int r = publish(p, &tensor->dl_tensor, NULL, false, args);
    while (r < 0 && dlx__publisher_has_resumed(p, r, args ? args->timeout_ns : 0))
        r = publish(p, &tensor->dl_tensor, NULL, false, args);
    if (r == DLX_E_WOULD_COPY)
        return dlx__publish_fail_would_copy(p, "the tensor", NULL, dlx__message_of_legacy(tensor));
    if (r <= 0)
        return r;
    if (tensor->deleter)
        tensor->deleter(tensor);
    return 0;
}
