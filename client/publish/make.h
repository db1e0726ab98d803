/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_MAKE_H
#define DLX_CLIENT_MAKE_H

/* What messages are made of: the steps of publishing, for one tensor and batches (publish.c) and
 * for sets. */

#include "client/publish/publisher_memory.h"
#include "client/publish/publisher_move.h"
#include "client/publish/publisher_wait.h"
#include "ring/manifest.h"

/* What the caller passed, perhaps without the members that this version added. A report without
 * its size is refused here, before anything is published. */
static inline int dlx__publish_args(struct dlx_publish_args *ret,
                                    const struct dlx_publish_args *user_args,
                                    const struct dlx_publish_report *report)
{
    int r = dlx__args_copy(ret, sizeof *ret, offsetof(struct dlx_publish_args, stream), user_args);
    return r == 0 && report ? dlx__args_check_result(report, sizeof *report) : r;
}

/* Likewise for a tensor that is to be allocated. */
static inline int dlx__tensor_spec(struct dlx_tensor_spec *ret, const struct dlx_tensor_spec *spec)
{
    return dlx__args_copy(ret, sizeof *ret, offsetof(struct dlx_tensor_spec, device), spec);
}

/* Publish a set. All earlier messages were announced. `ret` may be NULL. */
int dlx__publish_items(struct dlx_publisher *p, const struct dlx_item *items, uint32_t n,
                       const struct dlx_bytes *meta, const struct dlx_publish_args *args,
                       struct dlx_publish_report *ret);

/* Publish a tensor on a GPU as a message of its own, and add what was copied of it. */
int dlx__publish_on_gpu(struct dlx_publisher *p, DLManagedTensorVersioned *tensor,
                        const struct dlx_publish_args *args, uint64_t *copied_bytes,
                        uint32_t *n_copied);

/* dlx__publish_place() of one that is not as dlx_alloc() gave it. */
int dlx__publish_place_slowly(const DLTensor *t, const struct dlx_block *own, bool padded,
                              struct dlx_shm_record *ret);

/*
 * Fill the record of a tensor. Returns 0: it can be read where it lies, in its block `own` (NULL:
 * it has none). Returns 1: it is to be copied; arena and offset are not known yet. DLX_E_DEVICE,
 * DLX_E_SHAPE.
 */
static inline int dlx__publish_place(const DLTensor *t, struct dlx_block *own, bool padded,
                                     struct dlx_shm_record *ret)
{
    if (dlx_unlikely(!own || !dlx__block_is_unchanged(own) || dlx__block_is_frozen(own))) {
        if (own)
            own->is_dirty = true;
        return dlx__publish_place_slowly(t, own, padded, ret);
    }
    *ret = (struct dlx_shm_record){
        .arena = dlx__block_arena_id(own),
        .dtype_code = own->made.dtype.code,
        .dtype_bits = own->made.dtype.bits,
        .dtype_lanes = own->made.dtype.lanes,
        .device_type = kDLCPU,
        .ndim = (uint32_t)own->made.ndim,
        .flags = DLX_SHM_RECORD_ROW_MAJOR,
        .offset = own->offset,
        .size = own->payload_size,
    };
    return 0;
}

/* Copy it to `at` in the block, row-major, and complete the record. Returns 0; DLX_E_SHAPE. */
int dlx__publish_copy(const struct dlx_block *block, uint64_t at, const DLTensor *t,
                      struct dlx_shm_record *record);

/* DLX_E_WOULD_COPY, with why: it was received with the message (NULL: it was not), or its block.
 * `what` names the tensor. */
int dlx__publish_fail_would_copy(const struct dlx_publisher *p, const char *what,
                                 const struct dlx_block *own, const struct dlx_message *received);

/* The tensor of this block was published, and is not the caller's any more: DLX_E_INVALID. */
int dlx__publish_fail_again(const struct dlx_publisher *p, const char *what);

static inline bool dlx__publish_is_again(const struct dlx_block *own)
{
    return own && !atomic_load_explicit(&own->at_caller, memory_order_relaxed);
}

/* A block with a manifest, where `tensors`, the message's first block, lies if there is room.
 * `tensors` and `meta` may be NULL. Errors as of dlx__publisher_block(). */
int dlx__publish_manifest(struct dlx_publisher *p, const struct dlx_manifest_item *items,
                          uint32_t n_items, const struct dlx_bytes *meta,
                          const struct dlx_block *tensors, struct dlx_block **ret);

/* Is this tensor, which is not copied, to be in the message by a reference? Either it stays the
 * caller's, or other messages refer to it. */
dlx_for_gpu bool dlx__publish_shares(const struct dlx_block *own,
                                     const struct dlx_publish_args *args);

/* The message is out: say whose its tensor is now. */
dlx_for_gpu void dlx__publish_handed_over(struct dlx_block *own,
                                          const struct dlx_publish_args *args);

/* What a message is made of. */
struct dlx_parcel {
    const uint64_t *words; /* of its entry, but for the time */
    /* Its payload, a list by `next`: the blocks come back when no subscriber needs the message any
     * more. */
    struct dlx_block *blocks;
    uint64_t bytes;
    uint64_t copied_bytes;
    uint32_t n_copied;
    uint32_t n_copied_views; /* of these, in memory of the publisher */
};

/* Put it into the ring: there is room. dlx__publish_announce() follows. */
void dlx__publish_put(struct dlx_publisher *p, const struct dlx_parcel *parcel,
                      uint64_t monotonic_ns);

/* Wake who sleeps, count, and make room for what comes next. */
static inline __attribute__((always_inline)) void dlx__publish_announce(struct dlx_publisher *p)
{
    struct dlx_shm_control *control = dlx__writer_control(&p->core);
    dlx__writer_announce(&p->core);
    dlx_store64_relaxed(&control->published, dlx__writer_head(&p->core));
    dlx_store64_relaxed(&control->published_bytes, p->stats.published_bytes);
    if (dlx_unlikely(p->memory.room_size != 0 && !dlx__heap_next(p->heap)))
        dlx__publisher_look_ahead(p);
    if (dlx_unlikely(!p->daemon.has_succeeded &&
                     dlx__writer_head(&p->core) >= p->daemon.base + p->retain))
        dlx__publisher_succeed(p);
}

/* Fill the report of the last message, if the caller asked for one (`ret` is not NULL). */
void dlx__publish_report(const struct dlx_publisher *p, uint64_t copied_bytes, uint32_t n_copied,
                         uint32_t n_copied_views, struct dlx_publish_report *ret);

#endif
