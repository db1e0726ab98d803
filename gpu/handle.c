/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/handle.h"
#include "common/bytes.h"
#include "common/error.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define VERSION 1

/* Offsets: see gpu/handle.h. */
enum {
    AT_VERSION = 0,
    AT_KIND = 1,
    AT_N_HERE = 2,
    AT_ZERO32 = 4,
    AT_DEVICE = 8,
    AT_ID = 24,
    AT_SIZE = 32,
    AT_ZERO64 = 40,
    AT_FIRST = 48,
    AT_N_CHUNKS = 52,
    AT_TOKEN = 56,
};
_Static_assert(AT_TOKEN + 64 == DLX_GPU_HEADER_SIZE, "layout");
_Static_assert(DLX_GPU_BYTES_MAX <= DLX_PACKET_SIZE_MAX, "a part fits in a packet");

const char *dlx__gpu_kind_text(uint32_t kind)
{
    switch (kind) {
#define TEXT(name, number, text)                                                                   \
    case number:                                                                                   \
        return text;
        DLX_GPU_KINDS(TEXT)
#undef TEXT
    default:
        return NULL;
    }
}

void dlx__gpu_uuid_text(const struct dlx_gpu_uuid *uuid, char ret[DLX_GPU_UUID_TEXT])
{
    const uint8_t *b = uuid->bytes;
    (void)snprintf(ret, DLX_GPU_UUID_TEXT,
                   "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                   b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
                   b[14], b[15]);
}

int dlx__gpu_handle_reserve(struct dlx_gpu_handle *handle, uint32_t n)
{
    if (n == 0)
        return 0;
    struct dlx_gpu_chunk *chunks = calloc(n, sizeof *chunks);
    if (!chunks)
        return dlx__fail(DLX_E_NO_MEMORY, "no memory for %u chunks of GPU memory", n);
    for (uint32_t i = 0; i < n; i++)
        chunks[i].fd = -1;
    handle->chunks = chunks;
    handle->n_chunks = n;
    return 0;
}

int dlx__gpu_handle_copy(const struct dlx_gpu_handle *handle, struct dlx_gpu_handle *ret)
{
    struct dlx_gpu_handle copy = *handle;
    int r = dlx__gpu_handle_reserve(&copy, handle->n_chunks);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < handle->n_chunks; i++) {
        const struct dlx_gpu_chunk *chunk = &handle->chunks[i];
        copy.chunks[i] =
            (struct dlx_gpu_chunk){.size = chunk->size, .fd = fcntl(chunk->fd, F_DUPFD_CLOEXEC, 0)};
        if (copy.chunks[i].fd < 0) {
            r = dlx__fail_errno("fcntl(F_DUPFD_CLOEXEC) of chunk %u of %u", i + 1, copy.n_chunks);
            copy.n_chunks = i;
            dlx__gpu_handle_deinit(&copy);
            return r;
        }
    }
    *ret = copy;
    return 0;
}

void dlx__gpu_handle_deinit(struct dlx_gpu_handle *handle)
{
    for (uint32_t i = 0; handle->chunks && i < handle->n_chunks; i++)
        dlx__close(handle->chunks[i].fd);
    free(handle->chunks);
    *handle = (struct dlx_gpu_handle){0};
}

void dlx__gpu_handle_encode_outline(const struct dlx_gpu_handle *handle,
                                    uint8_t ret[DLX_GPU_HEADER_SIZE])
{
    memset(ret, 0, DLX_GPU_HEADER_SIZE);
    ret[AT_VERSION] = VERSION;
    ret[AT_KIND] = (uint8_t)handle->kind;
    memcpy(ret + AT_DEVICE, handle->device.bytes, sizeof handle->device.bytes);
    dlx__put64(ret + AT_ID, handle->id);
    dlx__put64(ret + AT_SIZE, handle->size);
    dlx__put32(ret + AT_N_CHUNKS, handle->n_chunks);
    memcpy(ret + AT_TOKEN, handle->token, sizeof handle->token);
}

size_t dlx__gpu_handle_encode_part(const struct dlx_gpu_handle *handle, uint32_t first,
                                   uint32_t n_most, uint8_t ret[DLX_GPU_BYTES_MAX],
                                   int ret_borrow_fds[DLX_PACKET_FDS_MAX], size_t *ret_n_fds)
{
    uint32_t n = DLX_MIN(handle->n_chunks - first, n_most);
    dlx__gpu_handle_encode_outline(handle, ret);
    dlx__put16(ret + AT_N_HERE, (uint16_t)n);
    dlx__put32(ret + AT_FIRST, first);
    for (uint32_t i = 0; i < n; i++) {
        dlx__put64(ret + DLX_GPU_HEADER_SIZE + (size_t)8 * i, handle->chunks[first + i].size);
        ret_borrow_fds[i] = handle->chunks[first + i].fd;
    }
    *ret_n_fds = n;
    return DLX_GPU_HEADER_SIZE + (size_t)8 * n;
}

/* How many chunks a handle of this kind may have. */
static bool is_possible_n_chunks(enum dlx_gpu_kind kind, uint32_t n)
{
    switch (kind) {
    case DLX_GPU_CUDA_VMM:
    case DLX_GPU_HIP_VMM:
        return n >= 1 && n <= DLX_GPU_CHUNKS_MAX;
    case DLX_GPU_CUDA_POOL:
        return n == 1;
    default:
        return n == 0;
    }
}

static int fail_field(const char *field)
{
    return dlx__fail(DLX_E_PROTOCOL, "a description of GPU memory has a wrong %s", field);
}

/* Check each fixed field by itself. */
static int decode_header(const uint8_t *data, size_t size, size_t n_fds, struct dlx_gpu_handle *ret,
                         uint32_t *ret_first)
{
    if (size < DLX_GPU_HEADER_SIZE || size > DLX_GPU_BYTES_MAX)
        return fail_field("size");
    if (data[AT_VERSION] != VERSION)
        return dlx__fail(DLX_E_VERSION,
                         "the publisher describes GPU memory in version %u, this library in %u",
                         data[AT_VERSION], VERSION);
    if (!dlx__gpu_kind_text(data[AT_KIND]))
        return dlx__fail(DLX_E_VERSION,
                         "the publisher shares GPU memory as kind %u, which this library does "
                         "not know (it knows 1 to %u)",
                         data[AT_KIND], DLX_GPU_KINDS_END - 1);
    *ret = (struct dlx_gpu_handle){.kind = data[AT_KIND],
                                   .id = dlx__get64(data + AT_ID),
                                   .size = dlx__get64(data + AT_SIZE),
                                   .n_chunks = dlx__get32(data + AT_N_CHUNKS)};
    memcpy(ret->device.bytes, data + AT_DEVICE, sizeof ret->device.bytes);
    memcpy(ret->token, data + AT_TOKEN, sizeof ret->token);
    *ret_first = dlx__get32(data + AT_FIRST);
    uint32_t n_here = dlx__get16(data + AT_N_HERE);
    if (n_here > DLX_PACKET_FDS_MAX || size != DLX_GPU_HEADER_SIZE + (size_t)8 * n_here)
        return fail_field("number of chunks for its size");
    if (n_here != n_fds)
        return fail_field("number of file descriptors");
    if (dlx__get32(data + AT_ZERO32) != 0 || dlx__get64(data + AT_ZERO64) != 0)
        return fail_field("reserved field");
    if (ret->id == 0)
        return fail_field("allocation id");
    if (ret->size == 0 || ret->size > INT64_MAX)
        return fail_field("number of bytes");
    if (!is_possible_n_chunks(ret->kind, ret->n_chunks))
        return fail_field("number of chunks for its kind");
    if (*ret_first > ret->n_chunks || n_here > ret->n_chunks - *ret_first)
        return fail_field("range of chunks");
    return 0;
}

bool dlx__gpu_handle_is_same(const struct dlx_gpu_handle *a, const struct dlx_gpu_handle *b)
{
    return a->kind == b->kind && a->id == b->id && a->size == b->size &&
           a->n_chunks == b->n_chunks &&
           memcmp(a->device.bytes, b->device.bytes, sizeof a->device.bytes) == 0 &&
           memcmp(a->token, b->token, sizeof a->token) == 0;
}

/* The sizes of this part, with those that came before, may not exceed the whole, and make it up at
 * the end. */
static int check_sizes(const struct dlx_gpu_handle *handle, const struct dlx_gpu_handle *part,
                       const uint8_t *sizes, size_t n)
{
    uint64_t left = part->size;
    for (uint32_t i = 0; i < handle->n_received; i++)
        left -= handle->chunks[i].size;
    for (size_t i = 0; i < n; i++) {
        uint64_t size = dlx__get64(sizes + 8 * i);
        if (size == 0 || size > left)
            return fail_field("size of a chunk");
        left -= size;
    }
    if (part->n_chunks > 0 && handle->n_received + n == part->n_chunks && left != 0)
        return fail_field("sum of the sizes of its chunks");
    return 0;
}

int dlx__gpu_handle_decode(struct dlx_gpu_handle *handle, const uint8_t *data, size_t size,
                           int *take_fds, size_t n_fds)
{
    struct dlx_gpu_handle part;
    uint32_t first = 0;
    int r = decode_header(data, size, n_fds, &part, &first);
    if (r < 0)
        return r;
    bool is_first = handle->id == 0;
    if (n_fds == 0 && part.n_chunks > 0)
        return fail_field("range of chunks");
    if (first != handle->n_received)
        return fail_field("order of parts");
    if (!is_first &&
        (dlx__gpu_handle_is_complete(handle) || !dlx__gpu_handle_is_same(handle, &part)))
        return fail_field("part: it belongs to another one");
    r = check_sizes(handle, &part, data + DLX_GPU_HEADER_SIZE, n_fds);
    if (r == 0 && is_first)
        r = dlx__gpu_handle_reserve(&part, part.n_chunks);
    if (r < 0)
        return r;
    if (is_first)
        *handle = part;
    for (size_t i = 0; i < n_fds; i++) {
        struct dlx_gpu_chunk *chunk = &handle->chunks[first + i];
        chunk->size = dlx__get64(data + DLX_GPU_HEADER_SIZE + 8 * i);
        chunk->fd = dlx__steal_fd(&take_fds[i]);
    }
    handle->n_received += (uint32_t)n_fds;
    return 0;
}

int dlx__gpu_handle_decode_outline(struct dlx_gpu_handle *ret,
                                   const uint8_t data[DLX_GPU_HEADER_SIZE])
{
    struct dlx_gpu_handle outline;
    uint32_t first;
    int r = decode_header(data, DLX_GPU_HEADER_SIZE, 0, &outline, &first);
    if (r == 0 && first != 0)
        r = fail_field("range of chunks");
    if (r == 0)
        *ret = outline;
    return r;
}
