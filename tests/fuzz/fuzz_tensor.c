/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: tensors as a user gives them, and records and entries as a peer wrote them: sizes,
 * spans, order, compaction, and where a tensor that the user changed lies. Everything is worked out
 * a second time, with 128 bits and one element at a time.
 */
#include "client/heap/heap.h"
#include "client/publish/make.h"
#include "common/error.h"
#include "ring/entry.h"
#include "ring/tensor.h"
#include "tests/fuzz/harness_fuzz.h"
#include <string.h>

#define SMALL_BYTES 1024U
#define ARENA_SIZE  8192U

__extension__ typedef unsigned __int128 wide;

/* Enough to see that something is too large, and no overflow when two are added. */
#define TOO_LARGE ((wide)1 << 120)

struct input {
    DLTensor t;
    bool padded;
    int64_t shape[128];
    int64_t strides[128];
};

static wide times(wide a, wide b)
{
    return a != 0 && b > TOO_LARGE / a ? TOO_LARGE : a * b;
}

static wide plus(wide a, wide b)
{
    return a + b > TOO_LARGE ? TOO_LARGE : a + b;
}

static void read_input(struct dlx_fuzz *f, struct input *in)
{
    static const uint8_t bits[] = {8, 16, 32, 64, 1, 2, 4, 6, 128, 0, 255, 12};
    static const uint16_t lanes[] = {1, 1, 1, 2, 3, 4, 0, 65535};
    uint32_t flags = dlx_fuzz_choose(f, 256);
    uint32_t ndim = dlx_fuzz_choose(f, 256);
    memset(in, 0, sizeof *in);
    in->padded = flags & 1;
    in->t.dtype = (DLDataType){.code = (uint8_t)dlx_fuzz_choose(f, 20),
                               .bits = bits[dlx_fuzz_choose(f, DLX_ARRAY_SIZE(bits))],
                               .lanes = lanes[dlx_fuzz_choose(f, DLX_ARRAY_SIZE(lanes))]};
    in->t.device = (DLDevice){kDLCPU, 0};
    /* mostly few; and those at the limits */
    in->t.ndim = ndim < 0xd0 ? (int32_t)(ndim % 10) : (int32_t)(ndim - 0xd0) + 55;
    if (ndim == 0xff)
        in->t.ndim = -1;
    for (int32_t i = 0; i < in->t.ndim; i++)
        in->shape[i] = (int64_t)dlx_fuzz_number(f);
    in->t.shape = flags & 2 && flags & 4 && flags & 8 ? NULL : in->shape;
    if (flags & 16)
        return;
    for (int32_t i = 0; i < in->t.ndim; i++)
        in->strides[i] = (int64_t)dlx_fuzz_number(f);
    in->t.strides = in->strides;
}

static bool are_dims_possible(const struct input *in)
{
    const DLTensor *t = &in->t;
    bool possible = t->dtype.bits > 0 && t->dtype.lanes > 0 && t->ndim >= 0 && t->ndim <= 64 &&
                    (t->ndim == 0 || t->shape);
    for (int32_t i = 0; possible && i < t->ndim; i++)
        possible = t->shape[i] >= 0;
    return possible;
}

static wide bits_of(const struct input *in)
{
    wide bits = (wide)in->t.dtype.bits * in->t.dtype.lanes;
    return in->padded ? (bits + 7) / 8 * 8 : bits;
}

static wide n_elements(const struct input *in)
{
    wide n = 1;
    for (int32_t i = 0; i < in->t.ndim; i++)
        if (in->t.shape[i] == 0)
            return 0;
    for (int32_t i = 0; i < in->t.ndim; i++)
        n = times(n, (wide)in->t.shape[i]);
    return n;
}

/* Types of less than a byte are counted in bits, in 64 bits: 2^61 bytes are too many then, and
 * never mind. */
static wide bytes_of(const struct input *in, wide n)
{
    wide bits = times(n, bits_of(in));
    return n > UINT64_MAX || (bits_of(in) % 8 != 0 && bits + 7 > UINT64_MAX) ? TOO_LARGE
                                                                             : (bits + 7) / 8;
}

/* Elements from the lowest to the highest, if no stride is negative. */
static wide span_of(const struct input *in, const int64_t *strides)
{
    wide last = 0;
    for (int32_t i = 0; i < in->t.ndim; i++) {
        if (strides[i] < 0)
            return TOO_LARGE;
        last = plus(last, times((wide)(in->t.shape[i] - 1), (wide)strides[i]));
    }
    return last + 1;
}

/* The element that comes as number `n` in row-major order: how far from element 0? */
static int64_t place_of(const struct input *in, uint64_t n)
{
    __int128 at = 0;
    for (int32_t i = in->t.ndim; i-- > 0;) {
        at += (__int128)(n % (uint64_t)in->t.shape[i]) * in->t.strides[i];
        n /= (uint64_t)in->t.shape[i];
    }
    return (int64_t)at;
}

static void check_sizes(const struct input *in, bool possible, wide bytes)
{
    const DLTensor *t = &in->t;
    int64_t strides[DLX_SHM_NDIM_MAX];
    uint64_t size = 0, extent = 0;
    int r = dlx__tensor_size(t->dtype, in->padded, t->ndim, t->shape, &size);
    REQUIRE((r == 0) == (possible && bytes <= INT64_MAX));
    REQUIRE(r == 0 || r == DLX_E_SHAPE);
    if (r < 0)
        return;
    REQUIRE(size == bytes);
    dlx__tensor_row_major(t->ndim, t->shape, strides);
    REQUIRE(dlx__tensor_is_row_major(t->ndim, t->shape, strides));
    REQUIRE(dlx__tensor_strides_follow(t->ndim, t->shape, strides));
    REQUIRE(dlx__tensor_extent(t->dtype, in->padded, t->ndim, t->shape, strides, &extent) == 0);
    REQUIRE(extent == size);
}

static void check_extent(const struct input *in, bool possible, wide n)
{
    uint64_t extent = 0;
    int r = dlx__tensor_extent(in->t.dtype, in->padded, in->t.ndim, in->t.shape, in->t.strides,
                               &extent);
    wide span = !possible ? TOO_LARGE : n == 0 ? 0 : span_of(in, in->t.strides);
    wide bytes = span == TOO_LARGE ? TOO_LARGE : bytes_of(in, span);
    REQUIRE((r == 0) == (possible && bytes <= INT64_MAX));
    REQUIRE(r < 0 || extent == bytes);
}

static void check_order(const struct input *in, uint64_t n)
{
    bool row_major = true;
    for (uint64_t i = 0; i < n && row_major; i++)
        row_major = place_of(in, i) == (int64_t)i;
    REQUIRE(dlx__tensor_is_row_major(in->t.ndim, in->t.shape, in->t.strides) == row_major);
}

/* Of a tensor whose elements are few and near each other: the copy is that of one bit after the
 * other. */
static void check_copy(struct dlx_fuzz *f, struct input *in, uint64_t n, uint64_t size)
{
    int64_t low = 0, high = 0;
    uint64_t bits = (uint64_t)bits_of(in);
    for (int32_t i = 0; i < in->t.ndim && in->t.strides; i++) {
        __int128 reach = (__int128)(in->t.shape[i] - 1) * in->t.strides[i];
        if (reach > SMALL_BYTES || reach < -(int64_t)SMALL_BYTES)
            return;
        low += reach < 0 ? (int64_t)reach : 0;
        high += reach > 0 ? (int64_t)reach : 0;
    }
    if (!in->t.strides)
        high = (int64_t)n - 1;
    /* Whole bytes before element 0, whatever its width. */
    uint64_t before = ((uint64_t)-low * bits + 7) / 8,
             after = ((uint64_t)(high + 1) * bits + 7) / 8;
    if (before + after > 16 * SMALL_BYTES)
        return;
    uint8_t *memory = malloc(before + after), *copy = malloc(size);
    REQUIRE(memory && copy);
    for (uint64_t i = 0; i < before + after; i++)
        memory[i] = (uint8_t)(i * 37 + (i >> 8) + 11);
    in->t.byte_offset = dlx_fuzz_choose(f, 256);
    in->t.data = (void *)((uintptr_t)memory + before - in->t.byte_offset);
    REQUIRE(dlx__tensor_compact(copy, &in->t, in->padded) == 0);
    for (uint64_t i = 0; i < n; i++) {
        int64_t from = (in->t.strides ? place_of(in, i) : (int64_t)i) * (int64_t)bits;
        for (uint64_t b = 0; b < bits; b++) {
            uint64_t at = before * 8 + (uint64_t)(from + (int64_t)b), to = i * bits + b;
            REQUIRE((memory[at / 8] >> (at % 8) & 1) == (copy[to / 8] >> (to % 8) & 1));
        }
    }
    free(memory);
    free(copy);
}

static void check_record(struct dlx_fuzz *f, const struct input *in)
{
    uint32_t flags = dlx_fuzz_choose(f, 16);
    bool row_major = flags & DLX_SHM_RECORD_ROW_MAJOR;
    uint64_t arena_size = dlx_fuzz_number(f);
    uint64_t slack = dlx_fuzz_number(f), offset = dlx_fuzz_number(f);
    if (!row_major && !in->t.strides)
        return;
    struct dlx_shm_record record = {
        .arena = 1,
        .dtype_code = in->t.dtype.code,
        .dtype_bits = in->t.dtype.bits,
        .dtype_lanes = in->t.dtype.lanes,
        .device_type = dlx_fuzz_choose(f, 8) == 7 ? kDLCUDA : kDLCPU,
        .ndim = (uint32_t)in->t.ndim,
        .flags = (flags & ~(uint32_t)DLX_SHM_RECORD_PADDED) |
                 (in->padded ? (uint32_t)DLX_SHM_RECORD_PADDED : 0U),
        .offset = offset < 64 ? offset * DLX_SHM_ALIGN : offset,
    };
    bool possible = are_dims_possible(in);
    wide n = possible ? n_elements(in) : 0, need = 0;
    if (record.ndim <= 64 && in->t.ndim > 0 && !in->t.shape)
        return; /* a record always has a shape */
    if (possible)
        need = row_major ? bytes_of(in, n) : n == 0 ? 0 : bytes_of(in, span_of(in, in->t.strides));
    record.size = need <= INT64_MAX ? (uint64_t)need + slack - 1 : slack;
    bool fits = possible && need <= INT64_MAX && need <= record.size &&
                !(record.flags & ~DLX_SHM_RECORD_FLAGS_ALL) && record.device_type == kDLCPU &&
                (record.size == 0 || (record.offset % DLX_SHM_ALIGN == 0 &&
                                      (wide)record.offset + record.size <= arena_size));
    int r = dlx__record_check(&record, in->t.shape, in->t.strides, arena_size);
    REQUIRE(r == (fits ? 0 : DLX_E_BAD_PEER));
}

/* An entry gives back each tensor that it has room for. */
static void check_entry(struct dlx_fuzz *f, const struct input *in)
{
    uint64_t words[DLX_SHM_ENTRY_WORDS] = {0}, offset = dlx_fuzz_number(f);
    uint32_t arena = (uint32_t)dlx_fuzz_number(f);
    int64_t shape[DLX_SHM_NDIM_ENTRY];
    DLDataType dtype;
    bool padded;
    int32_t ndim;
    if (in->t.ndim < 0)
        return;
    bool fits = in->t.ndim <= (int32_t)DLX_SHM_NDIM_ENTRY;
    for (int32_t i = 0; fits && i < in->t.ndim; i++)
        fits = in->shape[i] >= 0 && in->shape[i] <= UINT32_MAX;
    REQUIRE(dlx__entry_pack_tensor(words, arena, offset, in->t.dtype, in->padded, in->t.ndim,
                                   in->shape) == fits);
    if (fits) {
        REQUIRE(dlx__entry_arena(words) == arena && dlx__entry_offset(words) == offset &&
                dlx__entry_kind(words) == DLX_SHM_KIND_TENSOR);
        REQUIRE(dlx__entry_unpack_tensor(words, &dtype, &padded, &ndim, shape));
        REQUIRE(memcmp(&dtype, &in->t.dtype, sizeof dtype) == 0 && padded == in->padded);
        REQUIRE(ndim == in->t.ndim && memcmp(shape, in->shape, (size_t)ndim * sizeof *shape) == 0);
    }
    for (uint32_t i = 0; i < DLX_SHM_ENTRY_WORDS; i++)
        words[i] = dlx_fuzz_number(f);
    if (dlx__entry_unpack_tensor(words, &dtype, &padded, &ndim, shape))
        REQUIRE(ndim >= 0 && ndim <= (int32_t)DLX_SHM_NDIM_ENTRY);
}

/* The user changed what dlx_alloc() gave: it is published where it lies only if all of it lies in
 * its block. */
static void check_place(struct dlx_fuzz *f, struct input *in)
{
    struct dlx_heap *heap;
    struct dlx_block *block;
    struct dlx_shm_record record;
    REQUIRE(dlx__heap_new(&heap, dlx_fuzz_generation, false) == 0);
    REQUIRE(dlx__heap_add(heap, 7, dlx_fuzz_map(ARENA_SIZE), ARENA_SIZE) == 0);
    int64_t n = (int64_t)dlx_fuzz_choose(f, 256) * 8;
    REQUIRE(dlx__heap_take(heap, (uint64_t)n, &block) == 0);
    REQUIRE(dlx__block_export(block, (DLDataType){kDLUInt, 8, 1}, 1, &n, (uint64_t)n) == 0);
    DLTensor t = in->t;
    uint8_t *data = dlx__block_data(block);
    t.data = (void *)((uintptr_t)data + dlx_fuzz_number(f) - dlx_fuzz_choose(f, 2) * 256U);
    t.byte_offset = dlx_fuzz_number(f);
    int64_t row_major[DLX_SHM_NDIM_MAX];
    if (!t.strides && t.ndim >= 0 && t.ndim <= (int32_t)DLX_SHM_NDIM_MAX && t.shape) {
        dlx__tensor_row_major(t.ndim, t.shape, row_major);
        t.strides = row_major;
    }
    DLTensor own = block->tensor.dl_tensor;
    if (t.strides)
        block->tensor.dl_tensor = t;
    int r = dlx__publish_place(&block->tensor.dl_tensor, block, in->padded, &record);
    REQUIRE(r == 0 || r == 1 || r == DLX_E_SHAPE || r == DLX_E_DEVICE);
    if (r == 0 && record.size > 0) {
        REQUIRE(record.arena == 7 && record.offset >= block->offset &&
                record.offset + record.size <= block->offset + block->size);
        REQUIRE(dlx__record_check(&record, block->tensor.dl_tensor.shape,
                                  block->tensor.dl_tensor.strides, ARENA_SIZE) == 0);
        REQUIRE((uintptr_t)block->tensor.dl_tensor.data + block->tensor.dl_tensor.byte_offset ==
                (uintptr_t)data + record.offset - block->offset);
    }
    block->tensor.dl_tensor = own;
    block->tensor.deleter(&block->tensor);
    dlx__heap_close(heap);
}

void dlx_fuzz_one(struct dlx_fuzz *f)
{
    static struct input in;
    uint32_t what = dlx_fuzz_choose(f, 4);
    read_input(f, &in);
    bool possible = are_dims_possible(&in);
    wide n = possible ? n_elements(&in) : 0, bytes = possible ? bytes_of(&in, n) : 0;
    if (what == 0) {
        check_sizes(&in, possible, bytes);
        if (in.t.strides)
            check_extent(&in, possible, n);
        if (possible && n <= SMALL_BYTES && in.t.strides)
            check_order(&in, (uint64_t)n);
    } else if (what == 1 && possible && n > 0 && bytes <= SMALL_BYTES) {
        check_copy(f, &in, (uint64_t)n, (uint64_t)bytes);
    } else if (what == 2) {
        check_record(f, &in);
        check_entry(f, &in);
    } else if (what == 3) {
        check_place(f, &in);
    }
}
