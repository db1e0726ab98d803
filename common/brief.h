/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_BRIEF_H
#define DLX_COMMON_BRIEF_H

/*
 * The brief: what the newest message is, packed into the rest of the cache line that `head` is on, so that
 * a subscriber that keeps up needs no second line. Everything else finds the message in its slot, which is
 * always there as well.
 *
 *     word 0 | slot: u32, and the number of the message that the words are written for: its low u32
 *     word 1 | time_ns
 *     word 2 | offset in the arena
 *     word 3 | arena: u32, dtype: code u8, bits u8, lanes u16
 *     word 4 | shape[0]: u32, ndim: u8, record flags: u8, 1: u16 (0: this message has no brief)
 *     word 5 | shape[1], shape[2]: u32
 *     word 6 | shape[3], shape[4]: u32
 *
 * It is a sequence lock whose two counters are word 0 (stored first) and head (stored last).
 */

#include "common/shm.h"
#include <dlpack/dlpack.h>

#define DLX_BRIEF_NDIM 5U

struct dlx_brief {
    uint64_t words[DLX_SHM_BRIEF_WORDS];
};

/* The brief of message n in this slot. One without VALID if the message does not fit. */
static inline struct dlx_brief dlx__brief_pack(const struct dlx_shm_slot *slot, uint32_t index,
                                               uint64_t n)
{
    const struct dlx_shm_record *record = &slot->record;
    struct dlx_brief brief = {.words = {[0] = index | n << 32}};
    uint32_t dims[DLX_BRIEF_NDIM] = {0};
    if (slot->n_tensors != 1 || slot->flags != 0 || !(record->flags & DLX_SHM_RECORD_ROW_MAJOR) ||
        record->ndim > DLX_BRIEF_NDIM || record->device_type != kDLCPU || record->device_id != 0)
        return brief;
    uint64_t all = 0;
    for (uint32_t i = 0; i < record->ndim; i++) {
        all |= (uint64_t)slot->shape[i];
        dims[i] = (uint32_t)slot->shape[i];
    }
    if (all > UINT32_MAX)
        return brief;
    brief.words[1] = slot->time_ns;
    brief.words[2] = record->offset;
    brief.words[3] = record->arena | (uint64_t)record->dtype_code << 32 |
                     (uint64_t)record->dtype_bits << 40 | (uint64_t)record->dtype_lanes << 48;
    brief.words[4] =
        dims[0] | (uint64_t)record->ndim << 32 | (uint64_t)record->flags << 40 | UINT64_C(1) << 48;
    brief.words[5] = dims[1] | (uint64_t)dims[2] << 32;
    brief.words[6] = dims[3] | (uint64_t)dims[4] << 32;
    return brief;
}

/* Was it written for message n, and does it hold it? Only then the rest means anything. */
static inline bool dlx__brief_is_of(const struct dlx_brief *brief, uint64_t n)
{
    return brief->words[0] >> 32 == (uint32_t)n && brief->words[4] >> 48 == 1;
}

/* Record (but for its size) and shape. A peer wrote it: ndim is checked here, nothing else. */
static inline bool dlx__brief_unpack(const struct dlx_brief *brief, struct dlx_shm_record *ret,
                                     int64_t *ret_shape)
{
    const uint64_t *w = brief->words;
    uint32_t dims[DLX_BRIEF_NDIM] = {(uint32_t)w[4], (uint32_t)w[5], (uint32_t)(w[5] >> 32),
                                     (uint32_t)w[6], (uint32_t)(w[6] >> 32)};
    *ret = (struct dlx_shm_record){.arena = (uint32_t)w[3],
                                   .dtype_code = (uint8_t)(w[3] >> 32),
                                   .dtype_bits = (uint8_t)(w[3] >> 40),
                                   .dtype_lanes = (uint16_t)(w[3] >> 48),
                                   .device_type = kDLCPU,
                                   .ndim = (uint8_t)(w[4] >> 32),
                                   .flags = (uint8_t)(w[4] >> 40),
                                   .offset = w[2]};
    if (ret->ndim > DLX_BRIEF_NDIM)
        return false;
    for (uint32_t i = 0; i < ret->ndim; i++)
        ret_shape[i] = dims[i];
    return true;
}

#endif
