/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_PUBLISH_H
#define DLX_CLIENT_PUBLISH_H

/* The steps of publishing, for one tensor (publish.c) and for sets (publish_set.c). */

#include "client/publisher.h"
#include "common/manifest.h"

/* dlx__publish_place() of one that is not as dlx_alloc() gave it. */
int dlx__publish_place_slowly(const DLTensor *t, const struct dlx_block *own, bool padded,
                              struct dlx_shm_record *ret);

/*
 * Fill the record of a tensor. Returns 0: it can be read where it lies, in its block `own` (NULL: it has
 * none). Returns 1: it is to be copied; arena and offset are not known yet. DLX_E_DEVICE, DLX_E_SHAPE.
 */
static inline int dlx__publish_place(const DLTensor *t, const struct dlx_block *own, bool padded,
                                     struct dlx_shm_record *ret)
{
    if (dlx_unlikely(!own || !dlx__block_is_unchanged(own, padded) || dlx__block_is_frozen(own)))
        return dlx__publish_place_slowly(t, own, padded, ret);
    *ret = (struct dlx_shm_record){
        .arena = dlx__block_arena_id(own),
        .dtype_code = own->dtype.code,
        .dtype_bits = own->dtype.bits,
        .dtype_lanes = own->dtype.lanes,
        .device_type = kDLCPU,
        .ndim = (uint32_t)own->ndim,
        .flags = DLX_SHM_RECORD_ROW_MAJOR,
        .offset = own->offset,
        .size = own->payload_size,
    };
    return 0;
}

/* Copy it to `at` in the block, row-major, and complete the record. Returns 0; DLX_E_SHAPE. */
int dlx__publish_copy(const struct dlx_block *block, uint64_t at, const DLTensor *t,
                      struct dlx_shm_record *record);

/* DLX_E_WOULD_COPY, with why: it was received with the message (NULL: it was not), or its block. `what` names the
 * tensor. */
int dlx__publish_fail_would_copy(const struct dlx_publisher *p, const char *what,
                                 const struct dlx_block *own, const struct dlx_message *received);

/* dlx__publish_slot() when none is free, or when there is more to do first. */
int dlx__publish_slot_slowly(struct dlx_publisher *p, int64_t timeout_ns, uint32_t *ret_slot);

/* A slot, waiting for one if the publisher blocks. Returns 0; DLX_E_FULL, DLX_E_TIMEOUT, DLX_E_INTERRUPTED. */
static inline int dlx__publish_slot(struct dlx_publisher *p, int64_t timeout_ns, uint32_t *ret_slot)
{
    if (dlx_unlikely(p->core.n_free == 0 || p->core.pressure >= DLX_PUB_PRESSURE || p->rejoining))
        return dlx__publish_slot_slowly(p, timeout_ns, ret_slot);
    *ret_slot = p->core.free[p->core.free_first];
    return 0;
}

/* A block with a manifest. `meta` may be NULL. Errors as of dlx__publisher_block(). */
int dlx__publish_manifest(struct dlx_publisher *p, const struct dlx_manifest_item *items,
                          uint32_t n_items, const struct dlx_bytes *meta, struct dlx_block **ret);

void dlx__publish_fill_manifest(struct dlx_shm_slot *slot, const struct dlx_block *manifest,
                                uint32_t n_tensors, uint64_t time_ns);

/* Is this tensor, which is not copied, to be in the slot by a reference? Either it stays the caller's, or other
 * slots refer to it. */
bool dlx__publish_shares(const struct dlx_block *own, const struct dlx_publish_args *args);

/* Its message is out: whose is the tensor now? */
void dlx__publish_handed_over(struct dlx_block *own, const struct dlx_publish_args *args);

/* The slot is filled: make it the next message, and count it. `blocks`, a list by `next`, come back when the
 * slot does. Returns the message's number. */
uint64_t dlx__publish_commit(struct dlx_publisher *p, uint32_t slot, struct dlx_block *blocks,
                             uint64_t bytes, uint64_t copied_bytes, bool copied);

#endif
