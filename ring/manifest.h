/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_RING_MANIFEST_H
#define DLX_RING_MANIFEST_H

/*
 * The table of tensors of a message that does not fit into a ring entry: several tensors, names, metadata, strides,
 * more than DLX_SHM_NDIM_ENTRY dimensions. Layout: struct dlx_shm_manifest.
 */

#include "ring/layout.h"

struct dlx_manifest_item {
    struct dlx_shm_record record;
    const int64_t *shape;   /* record.ndim sizes */
    const int64_t *strides; /* likewise; not looked at if ROW_MAJOR */
    const char *name;       /* NULL: none */
    uint32_t name_size;
    uint32_t allocation; /* of a tensor on a GPU: 1 for the first; 0: none */
};

/* The header of a manifest of these items, each of whose allocations, from 1 on, is an item's.
 * Returns its bytes; UINT64_MAX if there are too many items or too long ones. */
uint64_t dlx__manifest_lay_out(const struct dlx_manifest_item *items, uint32_t n_items,
                               uint32_t meta_size, struct dlx_shm_manifest *ret);

/* What a manifest of so many tensors has at most, rounded up as a block is. */
uint64_t dlx__manifest_size_max(uint32_t n_tensors);

/* Write all but the allocations to `dst`, which has the bytes of dlx__manifest_lay_out(items, ...,
 * header) and is aligned to 8. */
void dlx__manifest_write(void *dst, const struct dlx_shm_manifest *header,
                         const struct dlx_manifest_item *items, const void *meta);

/* Where in `manifest`, which was written, the description of allocation `i` belongs, from 0 on. */
uint8_t *dlx__manifest_allocation(void *manifest, uint32_t i);
/* Where what is before them belongs. */
struct dlx_shm_manifest_gpu *dlx__manifest_gpu(void *manifest);

/* A manifest whose header was checked, where it lies: a peer may still write all but the header. */
struct dlx_manifest {
    struct dlx_shm_manifest header;
    const struct dlx_shm_manifest_entry *entries;
    const int64_t *dims;
    const char *names;
    const void *meta;
    const struct dlx_shm_manifest_gpu *gpu; /* if there are allocations; may change */
    uint32_t n_allocations;
    const uint8_t *allocations; /* DLX_SHM_ALLOCATION_SIZE bytes each */
};

/* Look at `data`, aligned to 8. Returns 0, or DLX_E_BAD_PEER with the reason. */
int dlx__manifest_open(const void *data, uint64_t size, uint32_t n_tensors,
                       struct dlx_manifest *ret);

/*
 * Item `i`: a private copy of its record; shape, strides and name, which is not terminated, are inside the manifest,
 * where they may change: to be loaded once. Returns 0, or DLX_E_BAD_PEER with the reason. The record is not checked
 * against arenas: dlx__record_check().
 */
int dlx__manifest_item(const struct dlx_manifest *manifest, uint32_t i,
                       struct dlx_manifest_item *ret);

/* How many numbers its shape and strides have in the manifest. */
uint32_t dlx__manifest_n_dims(const struct dlx_shm_record *record);

#endif
