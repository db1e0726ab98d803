/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_RING_ENTRY_H
#define DLX_RING_ENTRY_H

/* Packing and unpacking of the words of a ring entry. layout.h draws them. The ring writer stores
 * word 0, the time. Word 1 and the lower half of word 2 locate the payload and differ between the
 * messages of a stream; the other words describe the tensor or manifest. */

#include "ring/layout.h"
#include <dlpack/dlpack.h>

static inline uint32_t dlx__entry_arena(const uint64_t *words)
{
    return (uint32_t)words[2];
}

static inline uint64_t dlx__entry_offset(const uint64_t *words)
{
    return words[1];
}

static inline uint16_t dlx__entry_kind(const uint64_t *words)
{
    return (uint16_t)(words[3] >> 48);
}

static inline void dlx__entry_set_place(uint64_t *words, uint32_t arena, uint64_t offset)
{
    words[1] = offset;
    words[2] = (words[2] & ~(uint64_t)UINT32_MAX) | arena;
}

/* The description of a message without its time and location, taken from the entry of an earlier
 * message. */
struct dlx_entry_form {
    uint64_t words[DLX_SHM_ENTRY_WORDS - 2]; /* from word 2 on; its arena is ignored */
    uint64_t is_none; /* 1: matches no message, whatever the words are; else 0 */
};

static inline bool dlx__entry_is_like(const uint64_t *words, const struct dlx_entry_form *form)
{
    return ((words[2] ^ form->words[0]) >> 32 | (words[3] ^ form->words[1]) |
            (words[4] ^ form->words[2]) | (words[5] ^ form->words[3]) |
            (words[6] ^ form->words[4]) | form->is_none) == 0;
}

/* Packs a row-major CPU tensor. Returns false if the entry has no room for it, so that it needs a
 * manifest. ndim is at least 0. */
static inline bool dlx__entry_pack_tensor(uint64_t *words, uint32_t arena, uint64_t offset,
                                          DLDataType dtype, bool padded, int32_t ndim,
                                          const int64_t *shape)
{
    uint32_t dims[DLX_SHM_NDIM_ENTRY] = {0};
    uint64_t all = 0;
    if (ndim > (int32_t)DLX_SHM_NDIM_ENTRY)
        return false;
    for (int32_t i = 0; i < ndim; i++) {
        all |= (uint64_t)shape[i];
        dims[i] = (uint32_t)shape[i];
    }
    if (all > UINT32_MAX)
        return false;
    words[1] = offset;
    words[2] = arena | (uint64_t)dtype.code << 32 | (uint64_t)dtype.bits << 40 |
               (uint64_t)dtype.lanes << 48;
    words[3] = dims[0] | (uint64_t)ndim << 32 |
               (uint64_t)(padded ? DLX_SHM_RECORD_PADDED : 0) << 40 |
               (uint64_t)DLX_SHM_KIND_TENSOR << 48;
    for (uint32_t i = 0; i < 3; i++)
        words[4 + i] = dims[1 + 2 * i] | (uint64_t)dims[2 + 2 * i] << 32;
    return true;
}

static inline void dlx__entry_pack_manifest(uint64_t *words, uint32_t arena, uint64_t offset,
                                            uint64_t size, uint32_t n_tensors)
{
    words[1] = offset;
    words[2] = arena;
    words[3] = (uint64_t)DLX_SHM_KIND_MANIFEST << 48;
    words[4] = size;
    words[5] = n_tensors;
    words[6] = 0;
}

/* Marks a packed manifest as one with tensors on GPUs. */
static inline void dlx__entry_set_gpu(uint64_t *words)
{
    words[3] = (uint64_t)DLX_SHM_KIND_MANIFEST_GPU << 48;
}

static inline bool dlx__entry_is_manifest(const uint64_t *words)
{
    uint16_t kind = dlx__entry_kind(words);
    return kind == DLX_SHM_KIND_MANIFEST || kind == DLX_SHM_KIND_MANIFEST_GPU;
}

/* Unpacks the description of a tensor, without its location. A peer wrote the words: this function
 * checks ndim and flags and nothing else. Returns false if one of them is invalid. `ret_shape` has
 * room for DLX_SHM_NDIM_ENTRY sizes. */
static inline bool dlx__entry_unpack_tensor(const uint64_t *words, DLDataType *ret_dtype,
                                            bool *ret_padded, int32_t *ret_ndim, int64_t *ret_shape)
{
    uint32_t ndim = (uint8_t)(words[3] >> 32), flags = (uint8_t)(words[3] >> 40);
    if (ndim > DLX_SHM_NDIM_ENTRY || (flags & ~(uint32_t)DLX_SHM_RECORD_PADDED))
        return false;
    const uint32_t dims[DLX_SHM_NDIM_ENTRY] = {
        (uint32_t)words[3],         (uint32_t)words[4],         (uint32_t)(words[4] >> 32),
        (uint32_t)words[5],         (uint32_t)(words[5] >> 32), (uint32_t)words[6],
        (uint32_t)(words[6] >> 32),
    };
    *ret_dtype = (DLDataType){(uint8_t)(words[2] >> 32), (uint8_t)(words[2] >> 40),
                              (uint16_t)(words[2] >> 48)};
    *ret_padded = flags & DLX_SHM_RECORD_PADDED;
    *ret_ndim = (int32_t)ndim;
    for (uint32_t i = 0; i < ndim; i++)
        ret_shape[i] = dims[i];
    return true;
}

#endif
