/* SPDX-License-Identifier: Apache-2.0 */
#include "ring/tensor.h"
#include "common/error.h"
#include <inttypes.h>
#include <string.h>

/* ---- sizes --------------------------------------------------------------------------------- */

/* Bits from one element to the next. */
static uint64_t element_bits(DLDataType dtype, bool padded)
{
    uint64_t bits = (uint64_t)dtype.bits * dtype.lanes;
    return padded ? (bits + 7) / 8 * 8 : bits;
}

static int check_dims(DLDataType dtype, int32_t ndim, const int64_t *shape)
{
    if (dtype.bits == 0 || dtype.lanes == 0)
        return dlx__fail(DLX_E_SHAPE, "data type code %u has %u bits and %u lanes", dtype.code,
                         dtype.bits, dtype.lanes);
    if (ndim < 0 || ndim > (int32_t)DLX_SHM_NDIM_MAX)
        return dlx__fail(DLX_E_SHAPE, "%d dimensions must be at most %u", ndim, DLX_SHM_NDIM_MAX);
    if (ndim > 0 && !shape)
        return dlx__fail(DLX_E_SHAPE, "shape is NULL with %d dimensions", ndim);
    for (int32_t i = 0; i < ndim; i++)
        if (shape[i] < 0)
            return dlx__fail(DLX_E_SHAPE, "dimension %d has size %" PRId64, i, shape[i]);
    return 0;
}

static bool has_elements(int32_t ndim, const int64_t *shape)
{
    for (int32_t i = 0; i < ndim; i++)
        if (shape[i] == 0)
            return false;
    return true;
}

/* Computes the bytes of `n` elements. Returns false if there are more than INT64_MAX. */
static bool size_in_bytes(uint64_t n, uint64_t bits, uint64_t *ret)
{
    uint64_t total, bytes;
    if (bits % 8 == 0) {
        if (__builtin_mul_overflow(n, bits / 8, &bytes))
            return false;
    } else {
        if (__builtin_mul_overflow(n, bits, &total) || __builtin_add_overflow(total, 7U, &total))
            return false;
        bytes = total / 8;
    }
    if (bytes > INT64_MAX)
        return false;
    *ret = bytes;
    return true;
}

int dlx__tensor_size_any(DLDataType dtype, bool padded, int32_t ndim, const int64_t *shape,
                         uint64_t *ret_size)
{
    int r = check_dims(dtype, ndim, shape);
    if (r < 0)
        return r;
    uint64_t n = 1;
    bool fits = true;
    for (int32_t i = 0; i < ndim; i++)
        fits &= !__builtin_mul_overflow(n, (uint64_t)shape[i], &n);
    if (dlx_likely(fits && size_in_bytes(n, element_bits(dtype, padded), ret_size)))
        return 0;
    if (has_elements(ndim, shape))
        return dlx__fail(DLX_E_SHAPE, "a tensor of this shape has more than 2^63-1 bytes");
    *ret_size = 0; /* a dimension of size 0 followed the overflow */
    return 0;
}

bool dlx__tensor_is_row_major(int32_t ndim, const int64_t *shape, const int64_t *strides)
{
    if (!strides || !has_elements(ndim, shape))
        return true;
    int64_t expected = 1;
    /* then no stride is large enough: only dimensions of size 1 may precede */
    bool overflow = false;
    for (int32_t i = ndim; i-- > 0;) {
        if (shape[i] == 1)
            continue;
        if (overflow || strides[i] != expected)
            return false;
        overflow = __builtin_mul_overflow(expected, shape[i], &expected);
    }
    return true;
}

bool dlx__tensor_strides_follow(int32_t ndim, const int64_t *shape, const int64_t *strides)
{
    int64_t row_major[DLX_SHM_NDIM_MAX];
    bool is_negative = false, are_same = true;
    if (!strides)
        return true;
    dlx__tensor_row_major(ndim, shape, row_major);
    for (int32_t i = 0; i < ndim; i++) {
        is_negative |= strides[i] < 0;
        are_same &= strides[i] == row_major[i];
    }
    return are_same || (is_negative && dlx__tensor_is_row_major(ndim, shape, strides));
}

int dlx__tensor_extent(DLDataType dtype, bool padded, int32_t ndim, const int64_t *shape,
                       const int64_t *strides, uint64_t *ret_size)
{
    int r = check_dims(dtype, ndim, shape);
    if (r < 0)
        return r;
    if (!has_elements(ndim, shape)) {
        *ret_size = 0;
        return 0;
    }
    uint64_t last = 0; /* index of the last element */
    for (int32_t i = 0; i < ndim; i++) {
        uint64_t span;
        if (strides[i] < 0)
            return dlx__fail(DLX_E_SHAPE, "dimension %d has stride %" PRId64, i, strides[i]);
        if (__builtin_mul_overflow((uint64_t)(shape[i] - 1), (uint64_t)strides[i], &span) ||
            __builtin_add_overflow(last, span, &last))
            return dlx__fail(DLX_E_SHAPE, "strides span more than 2^63-1 bytes");
    }
    if (last == UINT64_MAX || !size_in_bytes(last + 1, element_bits(dtype, padded), ret_size))
        return dlx__fail(DLX_E_SHAPE, "strides span more than 2^63-1 bytes");
    return 0;
}

/* ---- compaction ---------------------------------------------------------------------------- */

/* Copies one run of the innermost dimension. Elements are whole bytes. */
static void copy_run(uint8_t *dst, const uint8_t *src, int64_t n, int64_t stride, size_t size)
{
#define COPY_AS(bytes)                                                                             \
    case bytes:                                                                                    \
        for (int64_t i = 0; i < n; i++)                                                            \
            memcpy(dst + (size_t)i * bytes, src + i * stride * bytes, bytes);                      \
        return
    switch (size) {
        COPY_AS(1);
        COPY_AS(2);
        COPY_AS(4);
        COPY_AS(8);
        COPY_AS(16);
    default:
        for (int64_t i = 0; i < n; i++)
            memcpy(dst + (size_t)i * size, src + i * stride * (int64_t)size, size);
    }
#undef COPY_AS
}

static void copy_bits(uint8_t *dst, uint64_t dst_bit, const uint8_t *src, int64_t src_bit,
                      uint64_t bits)
{
    for (uint64_t b = 0; b < bits; b++, dst_bit++, src_bit++) {
        /* Arithmetic shift: a negative bit index lies before src. */
        unsigned bit = ((unsigned)src[src_bit >> 3] >> (unsigned)(src_bit & 7)) & 1U;
        uint8_t mask = (uint8_t)(1U << (dst_bit & 7));
        dst[dst_bit >> 3] = (uint8_t)((dst[dst_bit >> 3] & ~mask) | (bit ? mask : 0));
    }
}

/* Merges neighbouring dimensions that one stride covers, and drops those of size 1. */
static int32_t merge_dims(int32_t ndim, const int64_t *shape, const int64_t *strides,
                          int64_t *ret_shape, int64_t *ret_strides)
{
    int32_t n = 0;
    for (int32_t i = 0; i < ndim; i++) {
        int64_t whole;
        if (shape[i] == 1)
            continue;
        if (n > 0 && !__builtin_mul_overflow(shape[i], strides[i], &whole) &&
            ret_strides[n - 1] == whole) {
            ret_shape[n - 1] *= shape[i];
            ret_strides[n - 1] = strides[i];
        } else {
            ret_shape[n] = shape[i];
            ret_strides[n++] = strides[i];
        }
    }
    if (n == 0) {
        ret_shape[0] = 1;
        ret_strides[0] = 1;
        n = 1;
    }
    return n;
}

/* Checks that the offset of every element, in bits, fits into 63 bits. Counts negative strides by
 * their absolute value. */
static int check_span(const DLTensor *src, uint64_t bits)
{
    uint64_t last = 0, total;
    for (int32_t i = 0; i < src->ndim; i++) {
        uint64_t size =
            src->strides[i] < 0 ? 0U - (uint64_t)src->strides[i] : (uint64_t)src->strides[i];
        uint64_t span;
        if (__builtin_mul_overflow((uint64_t)(src->shape[i] - 1), size, &span) ||
            __builtin_add_overflow(last, span, &last))
            return dlx__fail(DLX_E_SHAPE, "strides span more than 2^63-1 bits");
    }
    if (__builtin_add_overflow(last, 1U, &last) || __builtin_mul_overflow(last, bits, &total) ||
        total > INT64_MAX)
        return dlx__fail(DLX_E_SHAPE, "strides span more than 2^63-1 bits");
    return 0;
}

static void compact(uint8_t *dst, const uint8_t *src, uint64_t bits, int32_t ndim,
                    const int64_t *shape, const int64_t *strides)
{
    int64_t index[DLX_SHM_NDIM_MAX] = {0};
    int64_t at = 0; /* the element at index[], relative to element 0 */
    int64_t run = shape[ndim - 1], step = strides[ndim - 1];
    uint64_t done = 0;
    for (;;) {
        if (bits % 8 == 0) {
            size_t size = (size_t)(bits / 8);
            const uint8_t *from = src + at * (int64_t)size;
            if (step == 1)
                memcpy(dst + done * size, from, (size_t)run * size);
            else
                copy_run(dst + done * size, from, run, step, size);
        } else {
            for (int64_t i = 0; i < run; i++)
                copy_bits(dst, (done + (uint64_t)i) * bits, src, (at + i * step) * (int64_t)bits,
                          bits);
        }
        done += (uint64_t)run;
        int32_t d = ndim - 2;
        for (; d >= 0; d--) {
            at += strides[d];
            if (++index[d] < shape[d])
                break;
            at -= strides[d] * shape[d];
            index[d] = 0;
        }
        if (d < 0)
            return;
    }
}

int dlx__tensor_compact(void *dst, const DLTensor *src, bool padded)
{
    uint64_t size;
    int64_t shape[DLX_SHM_NDIM_MAX], strides[DLX_SHM_NDIM_MAX];
    int r = dlx__tensor_size(src->dtype, padded, src->ndim, src->shape, &size);
    if (r < 0)
        return r;
    if (size == 0)
        return 0;
    if (!src->data)
        return dlx__fail(DLX_E_SHAPE,
                         "data is NULL with %" PRIu64
                         " bytes of elements: the tensor has no memory, "
                         "but stands for values that are elsewhere or do not exist",
                         size);
    const uint8_t *data = (const uint8_t *)src->data + src->byte_offset;
    if (dlx__tensor_is_row_major(src->ndim, src->shape, src->strides)) {
        memcpy(dst, data, (size_t)size);
        return 0;
    }
    uint64_t bits = element_bits(src->dtype, padded);
    r = check_span(src, bits);
    if (r < 0)
        return r;
    if (bits % 8 != 0)
        memset(dst, 0, (size_t)size); /* clears the unused bits of the last byte */
    int32_t ndim = merge_dims(src->ndim, src->shape, src->strides, shape, strides);
    compact(dst, data, bits, ndim, shape, strides);
    return 0;
}

/* ---- what a peer says ---------------------------------------------------------------------- */

/* Checks everything but the location. */
static int check_form(const struct dlx_shm_record *record, const int64_t *shape,
                      const int64_t *strides)
{
    DLDataType dtype = {record->dtype_code, record->dtype_bits, record->dtype_lanes};
    bool padded = record->flags & DLX_SHM_RECORD_PADDED;
    uint64_t need;
    if (record->ndim > DLX_SHM_NDIM_MAX)
        return dlx__fail(DLX_E_BAD_PEER, "tensor of %u dimensions", record->ndim);
    int r = record->flags & DLX_SHM_RECORD_ROW_MAJOR
                ? dlx__tensor_size(dtype, padded, (int32_t)record->ndim, shape, &need)
                : dlx__tensor_extent(dtype, padded, (int32_t)record->ndim, shape, strides, &need);
    if (r < 0)
        return dlx__fail_prefix(DLX_E_BAD_PEER, "tensor with an impossible shape");
    if (need > record->size)
        return dlx__fail(DLX_E_BAD_PEER,
                         "tensor of %" PRIu64 " bytes claims %" PRIu64 " bytes of memory", need,
                         record->size);
    return 0;
}

int dlx__record_check_any(const struct dlx_shm_record *record, const int64_t *shape,
                          const int64_t *strides, uint64_t arena_size)
{
    uint64_t end;
    if (record->flags & ~DLX_SHM_RECORD_FLAGS_ALL)
        return dlx__fail(DLX_E_BAD_PEER, "tensor with unknown flags %#x", record->flags);
    if (record->device_type != kDLCPU || record->device_id != 0)
        return dlx__fail(DLX_E_BAD_PEER, "tensor in shared memory claims device %d:%d",
                         record->device_type, record->device_id);
    int r = check_form(record, shape, strides);
    if (r < 0 || record->size == 0)
        return r;
    if (record->offset % DLX_SHM_ALIGN != 0)
        return dlx__fail(DLX_E_BAD_PEER, "tensor at offset %" PRIu64 ", not aligned to %u",
                         record->offset, DLX_SHM_ALIGN);
    if (__builtin_add_overflow(record->offset, record->size, &end) || end > arena_size)
        return dlx__fail(DLX_E_BAD_PEER,
                         "tensor at offset %" PRIu64 " of %" PRIu64
                         " bytes is not inside arena %u of %" PRIu64 " bytes",
                         record->offset, record->size, record->arena, arena_size);
    return 0;
}

int dlx__record_check_gpu(const struct dlx_shm_record *record, const int64_t *shape,
                          const int64_t *strides, uint64_t size)
{
    uint64_t end;
    if (record->flags & ~DLX_SHM_RECORD_FLAGS_ALL)
        return dlx__fail(DLX_E_BAD_PEER, "tensor with unknown flags %#x", record->flags);
    if (record->arena != 0 || record->device_id != 0)
        return dlx__fail(DLX_E_BAD_PEER, "tensor on a GPU claims arena %u, or device %d:%d",
                         record->arena, record->device_type, record->device_id);
    int r = check_form(record, shape, strides);
    if (r < 0 || record->size == 0)
        return r;
    if (__builtin_add_overflow(record->offset, record->size, &end) || end > size)
        return dlx__fail(DLX_E_BAD_PEER,
                         "tensor at offset %" PRIu64 " of %" PRIu64
                         " bytes is not inside its allocation of %" PRIu64 " bytes on a GPU",
                         record->offset, record->size, size);
    return 0;
}
