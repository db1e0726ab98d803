/* SPDX-License-Identifier: Apache-2.0 */

/* dlx_alloc() and dlx_publish(): the hot path of a publisher. */

#include "client/publisher.h"
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
    if (r == 0)
        r = dlx__tensor_size(spec.dtype, false, spec.ndim, spec.shape, &size);
    if (r == 0)
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
    struct dlx_block *block;    /* its payload */
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
    if (dlx_likely(dlx__block_is_unchanged(block, padded))) {
        *ret_offset = block->offset;
        *ret_size = block->payload_size;
        *ret_row_major = true;
        return true;
    }
    const uint8_t *base = dlx__block_data(block);
    bool row_major = *ret_row_major = dlx__tensor_is_row_major(t->ndim, t->shape, t->strides);
    uint64_t start, end;
    if (t->device.device_type != kDLCPU || t->device.device_id != 0)
        return false;
    if (!row_major && overlaps(t))
        return false;
    int r = row_major
                ? dlx__tensor_size(t->dtype, padded, t->ndim, t->shape, ret_size)
                : dlx__tensor_extent(t->dtype, padded, t->ndim, t->shape, t->strides, ret_size);
    if (r < 0)
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

static int copy_in(struct dlx_publisher *p, const DLTensor *t, bool padded, struct parcel *parcel)
{
    uint64_t size;
    int r = check_device(t);
    if (r == 0)
        r = dlx__tensor_size(t->dtype, padded, t->ndim, t->shape, &size);
    if (r == 0)
        r = dlx__publisher_block(p, size, &parcel->block);
    if (r < 0)
        return r;
    r = dlx__tensor_compact(dlx__block_data(parcel->block), t, padded);
    if (r < 0) {
        dlx__heap_give(p->heap, parcel->block);
        parcel->block = NULL;
        return r;
    }
    parcel->record.flags |= DLX_SHM_RECORD_COPIED | DLX_SHM_RECORD_ROW_MAJOR;
    parcel->record.offset = parcel->block->offset;
    parcel->record.size = size;
    parcel->copied_bytes = size;
    return 0;
}

static int make_parcel(struct dlx_publisher *p, const DLTensor *t, struct dlx_block *own,
                       bool padded, bool strict, struct parcel *parcel)
{
    uint64_t offset = 0, size = 0;
    bool row_major;
    int r = 0;
    parcel->record.flags = padded ? DLX_SHM_RECORD_PADDED : 0;
    if (own && fits_block(own, t, padded, &offset, &size, &row_major)) {
        parcel->block = own;
        parcel->record.offset = offset;
        parcel->record.size = size;
        if (row_major)
            parcel->record.flags |= DLX_SHM_RECORD_ROW_MAJOR;
    } else if (strict) {
        return dlx__fail(DLX_E_WOULD_COPY,
                         "topic %s: the tensor %s, so it would be copied, and `strict` is set",
                         p->topic,
                         own ? "was moved out of what dlx_alloc() gave, or overlaps itself"
                             : "is not from dlx_alloc() of this publisher");
    } else {
        r = copy_in(p, t, padded, parcel);
        if (r < 0)
            return r;
    }
    parcel->shape = t->shape;
    parcel->strides = t->strides;
    parcel->record.arena = parcel->record.size > 0 ? dlx__block_arena_id(parcel->block) : 0;
    parcel->record.dtype_code = t->dtype.code;
    parcel->record.dtype_bits = t->dtype.bits;
    parcel->record.dtype_lanes = t->dtype.lanes;
    parcel->record.device_type = kDLCPU;
    parcel->record.ndim = (uint32_t)t->ndim;
    if (parcel->record.ndim > DLX_SHM_NDIM_INLINE) {
        struct dlx_manifest_item item = {
            .record = parcel->record, .shape = parcel->shape, .strides = parcel->strides};
        uint64_t bytes = dlx__manifest_size(&item, 1, 0);
        r = dlx__publisher_block(p, bytes, &parcel->manifest);
        if (r == 0)
            dlx__manifest_write(dlx__block_data(parcel->manifest), &item, 1, NULL, 0);
        else if (parcel->block != own)
            dlx__heap_give(p->heap, parcel->block);
    }
    return r;
}

/* ---- slot ---------------------------------------------------------------------------------- */

/* A slot, waiting for one if the publisher blocks. */
static int wait_slot(struct dlx_publisher *p, int64_t timeout_ns, uint32_t *ret_slot)
{
    int r = dlx__pub_slot(&p->core, ret_slot);
    if (dlx_likely(r == 0))
        return 0;
    if (timeout_ns != 0 && p->core.gating) {
        uint64_t deadline = dlx__deadline(timeout_ns);
        p->stats.blocked++;
        dlx__pub_set_blocked(&p->core, true);
        do {
            r = dlx__pub_slot(&p->core, ret_slot);
            if (r == 0)
                break;
            r = dlx__outlet_wait(p, deadline);
        } while (r == 0);
        dlx__pub_set_blocked(&p->core, false);
        if (r == 0)
            return 0;
    }
    p->stats.full++;
    return r == DLX_E_FULL || r == DLX_E_TIMEOUT ? dlx__outlet_blame(p, r) : r;
}

static void fill_slot(struct dlx_shm_slot *slot, const struct parcel *parcel, uint64_t time_ns)
{
    slot->time_ns = time_ns;
    slot->n_tensors = 1;
    if (dlx_unlikely(parcel->manifest)) {
        slot->flags = DLX_SHM_SLOT_MANIFEST;
        slot->manifest_arena = dlx__block_arena_id(parcel->manifest);
        slot->manifest_offset = parcel->manifest->offset;
        slot->manifest_size = parcel->manifest->size;
        return;
    }
    slot->flags = 0;
    slot->record = parcel->record;
    for (uint32_t i = 0; i < parcel->record.ndim; i++)
        slot->shape[i] = parcel->shape[i];
    if (dlx_unlikely(!(parcel->record.flags & DLX_SHM_RECORD_ROW_MAJOR)))
        for (uint32_t i = 0; i < parcel->record.ndim; i++)
            slot->strides[i] = parcel->strides[i];
}

static void count(struct dlx_publisher *p, uint64_t bytes, uint64_t copied_bytes, bool copied)
{
    p->stats.published_bytes += bytes;
    p->stats.copied_bytes += copied_bytes;
    p->stats.copied += copied;
    dlx_store64_relaxed(&p->control->published, p->core.head);
    dlx_store64_relaxed(&p->control->published_bytes, p->stats.published_bytes);
    dlx_store64_relaxed(&p->control->copied, p->stats.copied);
    dlx_store64_relaxed(&p->control->copied_bytes, p->stats.copied_bytes);
}

static int publish(struct dlx_publisher *p, const DLTensor *t, struct dlx_block *own, bool padded,
                   const struct dlx_publish_args *user_args)
{
    struct dlx_publish_args args = {0};
    struct parcel parcel = {0};
    uint32_t slot;
    int r = user_args ? dlx__args_copy(&args, sizeof args, sizeof args, user_args) : 0;
    if (dlx_likely(r == 0))
        r = wait_slot(p, args.timeout_ns, &slot);
    if (dlx_likely(r == 0))
        r = make_parcel(p, t, own, padded, args.strict, &parcel);
    if (dlx_unlikely(r < 0))
        return r;
    fill_slot(&p->core.slots[slot], &parcel, args.time_ns ? args.time_ns : dlx__now_ns());
    parcel.block->next = parcel.manifest;
    p->slot_blocks[slot] = parcel.block;
    uint64_t seq = dlx__pub_commit(&p->core, slot);
    dlx__publisher_look_ahead(p);
    bool copied = parcel.block != own;
    count(p, parcel.record.size, parcel.copied_bytes, copied);
    if (parcel.block == own)
        dlx__block_published(own);
    if (args.report) {
        struct dlx_publish_report report = {.size = sizeof report,
                                            .seq = seq,
                                            .copied_bytes = parcel.copied_bytes,
                                            .n_copied = copied};
        (void)dlx__args_return(args.report, sizeof report, &report, sizeof report);
    }
    return copied;
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
    if (r <= 0)
        return r;
    if (tensor->deleter) /* copied: the original has done its work */
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
    if (r <= 0)
        return r;
    if (tensor->deleter)
        tensor->deleter(tensor);
    return 0;
}
