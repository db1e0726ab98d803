/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_RING_MANIFEST_H
#define DLX_RING_MANIFEST_H

/* The table of tensors of a message that does not fit into a ring entry: one with several tensors,
 * names, metadata, strides or more than DLX_SHM_NDIM_ENTRY dimensions. struct dlx_shm_manifest has
 * the layout. */

#include "ring/layout.h"

/* So much of a manifest is prefetched: the whole of most. */
#define DLX_MANIFEST_AHEAD (6U * DLX_CACHELINE)

struct dlx_manifest_item {
    struct dlx_shm_record record;
    const int64_t *shape;   /* record.ndim sizes */
    const int64_t *strides; /* likewise; ignored if ROW_MAJOR */
    const char *name;       /* NULL: none */
    uint32_t name_size;
    uint32_t allocation; /* of a tensor on a GPU: 1 is the first; 0: none */
};

/* Fills in the header of a manifest of these items. Each allocation, counted from 1, belongs to at
 * least one item. Returns the size of the manifest in bytes, or UINT64_MAX if there are too many
 * items or an item is too large. */
uint64_t dlx__manifest_lay_out(const struct dlx_manifest_item *items, uint32_t n_items,
                               uint32_t meta_size, struct dlx_shm_manifest *ret);

/* The largest size in bytes of a manifest of `n_tensors` tensors, rounded up like a payload. */
uint64_t dlx__manifest_size_max(uint32_t n_tensors);

/* Writes everything but the allocations to `dst`, which is aligned to 8 and has the size that
 * dlx__manifest_lay_out() returned for these items and this header. */
void dlx__manifest_write(void *dst, const struct dlx_shm_manifest *header,
                         const struct dlx_manifest_item *items, const void *meta);

/* The address of the description of allocation `i`, counted from 0, in a manifest that was written.
 */
dlx_for_gpu uint8_t *dlx__manifest_allocation(void *manifest, uint32_t i);
/* The address of the header of the part about GPUs. */
dlx_for_gpu struct dlx_shm_manifest_gpu *dlx__manifest_gpu(void *manifest);

/* A manifest whose header was copied and checked. The peer may still write to everything else. */
struct dlx_manifest {
    struct dlx_shm_manifest header;
    const struct dlx_shm_manifest_entry *entries;
    const int64_t *dims;
    const char *names;
    const void *meta;
    const struct dlx_shm_manifest_gpu *gpu; /* NULL without allocations; may change at any time */
    uint32_t n_allocations;
    const uint8_t *allocations; /* DLX_SHM_ALLOCATION_SIZE bytes each */
};

/* Checks `data`, aligned to 8. Returns 0, or DLX_E_BAD_PEER with the reason. */
int dlx__manifest_open(const void *data, uint64_t size, uint32_t n_tensors,
                       struct dlx_manifest *ret);

/* Copies the record of item `i`. Its shape, strides and name (not terminated by NUL) stay in the
 * manifest, where the peer may change them, so the caller loads them once. Returns 0, or
 * DLX_E_BAD_PEER with the reason. dlx__record_check() checks the record against its arena. */
int dlx__manifest_item(const struct dlx_manifest *manifest, uint32_t i,
                       struct dlx_manifest_item *ret);

/* The number of sizes and strides that the record has in the manifest. */
uint32_t dlx__manifest_n_dims(const struct dlx_shm_record *record);

#endif
