/* SPDX-License-Identifier: Apache-2.0 */
#include "ring/manifest.h"
#include "common/error.h"
#include <inttypes.h>
#include <string.h>

/* The distance, in items, of prefetches of shapes and names, which may lie anywhere. */
#define AHEAD 8U

#define GPU_HEADER sizeof(struct dlx_shm_manifest_gpu)

uint32_t dlx__manifest_n_dims(const struct dlx_shm_record *record)
{
    return record->flags & DLX_SHM_RECORD_ROW_MAJOR ? record->ndim : 2 * record->ndim;
}

uint64_t dlx__manifest_lay_out(const struct dlx_manifest_item *items, uint32_t n_items,
                               uint32_t meta_size, struct dlx_shm_manifest *ret)
{
    uint64_t dims = 0, names = 0;
    uint32_t n_allocations = 0;
    if (n_items == 0 || n_items > DLX_SHM_TENSORS_MAX || meta_size > DLX_SHM_META_MAX)
        return UINT64_MAX;
    for (uint32_t i = 0; i < n_items; i++) {
        if (items[i].record.ndim > DLX_SHM_NDIM_MAX || items[i].name_size > DLX_SHM_NAME_MAX)
            return UINT64_MAX;
        dims += dlx__manifest_n_dims(&items[i].record);
        names += items[i].name_size;
        n_allocations = DLX_MAX(n_allocations, items[i].allocation);
    }
    if (n_allocations > n_items)
        return UINT64_MAX;
    *ret = (struct dlx_shm_manifest){.n_tensors = n_items, .meta_size = meta_size};
    ret->dims_offset = sizeof *ret + n_items * sizeof(struct dlx_shm_manifest_entry);
    ret->dims_size = dims * sizeof(int64_t);
    ret->names_offset = ret->dims_offset + ret->dims_size;
    ret->names_size = names;
    ret->meta_offset = ret->names_offset + names;
    ret->gpu_offset = ret->meta_offset + meta_size;
    if (n_allocations == 0)
        return ret->gpu_offset;
    ret->gpu_offset = (ret->gpu_offset + 7) / 8 * 8;
    ret->gpu_size = GPU_HEADER + (uint64_t)n_allocations * DLX_SHM_ALLOCATION_SIZE;
    return ret->gpu_offset + ret->gpu_size;
}

uint8_t *dlx__manifest_allocation(void *manifest, uint32_t i)
{
    const struct dlx_shm_manifest *h = manifest;
    return (uint8_t *)manifest + h->gpu_offset + GPU_HEADER + (size_t)i * DLX_SHM_ALLOCATION_SIZE;
}

struct dlx_shm_manifest_gpu *dlx__manifest_gpu(void *manifest)
{
    const struct dlx_shm_manifest *h = manifest;
    return (void *)((uint8_t *)manifest + h->gpu_offset);
}

uint64_t dlx__manifest_size_max(uint32_t n_tensors)
{
    uint64_t one = sizeof(struct dlx_shm_manifest_entry) + DLX_SHM_NAME_MAX +
                   2 * DLX_SHM_NDIM_MAX * sizeof(int64_t) + DLX_SHM_ALLOCATION_SIZE;
    return sizeof(struct dlx_shm_manifest) + n_tensors * one + DLX_SHM_META_MAX + GPU_HEADER +
           DLX_SHM_ALIGN;
}

void dlx__manifest_write(void *dst, const struct dlx_shm_manifest *header,
                         const struct dlx_manifest_item *items, const void *meta)
{
    struct dlx_shm_manifest_entry *entries =
        (struct dlx_shm_manifest_entry *)((struct dlx_shm_manifest *)dst + 1);
    int64_t *dims = (int64_t *)((uint8_t *)dst + header->dims_offset);
    char *names = (char *)dst + header->names_offset;
    uint32_t dim = 0, name = 0;
    memcpy(dst, header, sizeof *header);
    for (uint32_t i = 0; i < header->n_tensors; i++) {
        const struct dlx_manifest_item *item = &items[i];
        uint32_t ndim = item->record.ndim;
        if (i + AHEAD < header->n_tensors) {
            __builtin_prefetch(items[i + AHEAD].shape);
            __builtin_prefetch(items[i + AHEAD].name);
        }
        entries[i] = (struct dlx_shm_manifest_entry){.record = item->record,
                                                     .dims_first = dim,
                                                     .name_offset = name,
                                                     .name_size = item->name_size,
                                                     .allocation = item->allocation};
        for (uint32_t k = 0; k < ndim; k++)
            dims[dim++] = item->shape[k];
        for (uint32_t k = 0; k < ndim && !(item->record.flags & DLX_SHM_RECORD_ROW_MAJOR); k++)
            dims[dim++] = item->strides[k];
        if (item->name_size > 0)
            memcpy(names + name, item->name, item->name_size);
        name += item->name_size;
    }
    if (header->meta_size > 0)
        memcpy((uint8_t *)dst + header->meta_offset, meta, header->meta_size);
}

static bool inside(uint64_t offset, uint64_t size, uint64_t whole)
{
    uint64_t end;
    return !__builtin_add_overflow(offset, size, &end) && end <= whole;
}

/* Checks the part about GPUs, which has between one allocation and one for each tensor. */
static bool is_gpu_part(uint64_t offset, uint64_t size, uint32_t n_tensors, uint64_t whole)
{
    return size == 0 || (offset % 8 == 0 && inside(offset, size, whole) && size > GPU_HEADER &&
                         (size - GPU_HEADER) % DLX_SHM_ALLOCATION_SIZE == 0 &&
                         (size - GPU_HEADER) / DLX_SHM_ALLOCATION_SIZE <= n_tensors);
}

int dlx__manifest_open(const void *data, uint64_t size, uint32_t n_tensors,
                       struct dlx_manifest *ret)
{
    if (size < sizeof ret->header)
        return dlx__fail(DLX_E_BAD_PEER, "manifest of %" PRIu64 " bytes", size);
    memcpy(&ret->header, data, sizeof ret->header);
    __asm__ volatile("" ::: "memory"); /* from here on, only the private copy is read */
    const struct dlx_shm_manifest *h = &ret->header;
    if (n_tensors == 0 || n_tensors > DLX_SHM_TENSORS_MAX || h->n_tensors != n_tensors)
        return dlx__fail(DLX_E_BAD_PEER, "manifest of %u tensors in a message of %u", h->n_tensors,
                         n_tensors);
    uint64_t table = n_tensors * sizeof(struct dlx_shm_manifest_entry);
    if (!inside(sizeof *h, table, size) || h->dims_offset % sizeof(int64_t) != 0 ||
        !inside(h->dims_offset, h->dims_size, size) ||
        !inside(h->names_offset, h->names_size, size) || h->meta_size > DLX_SHM_META_MAX ||
        !inside(h->meta_offset, h->meta_size, size) ||
        !is_gpu_part(h->gpu_offset, h->gpu_size, n_tensors, size))
        return dlx__fail(DLX_E_BAD_PEER, "manifest with parts outside its %" PRIu64 " bytes", size);
    const uint8_t *bytes = data;
    ret->entries = (const struct dlx_shm_manifest_entry *)(bytes + sizeof *h);
    ret->dims = (const int64_t *)(bytes + h->dims_offset);
    ret->names = (const char *)bytes + h->names_offset;
    ret->meta = bytes + h->meta_offset;
    ret->n_allocations = 0;
    if (dlx_unlikely(h->gpu_size > 0)) {
        ret->gpu = (const void *)(bytes + h->gpu_offset);
        ret->allocations = bytes + h->gpu_offset + GPU_HEADER;
        ret->n_allocations = (uint32_t)((h->gpu_size - GPU_HEADER) / DLX_SHM_ALLOCATION_SIZE);
    }
    return 0;
}

int dlx__manifest_item(const struct dlx_manifest *manifest, uint32_t i,
                       struct dlx_manifest_item *ret)
{
    const struct dlx_shm_manifest *h = &manifest->header;
    struct dlx_shm_manifest_entry e;
    memcpy(&e, &manifest->entries[i], sizeof e);
    __asm__ volatile("" ::: "memory");
    if (e.record.ndim > DLX_SHM_NDIM_MAX ||
        !inside(e.dims_first, dlx__manifest_n_dims(&e.record), h->dims_size / sizeof(int64_t)) ||
        e.name_size > DLX_SHM_NAME_MAX || !inside(e.name_offset, e.name_size, h->names_size))
        return dlx__fail(DLX_E_BAD_PEER,
                         "manifest entry %u: %u dimensions or a name outside the manifest", i,
                         e.record.ndim);
    if (e.allocation > manifest->n_allocations)
        return dlx__fail(DLX_E_BAD_PEER, "manifest entry %u: allocation %u of %u", i, e.allocation,
                         manifest->n_allocations);
    bool row_major = e.record.flags & DLX_SHM_RECORD_ROW_MAJOR;
    const int64_t *dims = manifest->dims + e.dims_first;
    *ret = (struct dlx_manifest_item){
        .record = e.record,
        .shape = dims,
        .strides = row_major ? NULL : dims + e.record.ndim,
        .name = manifest->names + e.name_offset,
        .name_size = e.name_size,
        .allocation = e.allocation,
    };
    return 0;
}
