/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_HANDLE_H
#define DLX_GPU_HANDLE_H

/*
 * The description of one allocation of GPU memory that another process can open. It names no
 * pointer and no ordinal: both differ between processes. One description serves every tensor in the
 * allocation; where a tensor begins is said in its message.
 *
 * The description travels as bytes and file descriptors, in one message or several: the kernel
 * carries at most 253 descriptors in a message, and memory that a framework composed of small
 * chunks can have more. All parts repeat the fixed fields, and come in order.
 *
 *     0  u8  version (1)            24  u64 allocation id        52  u32 chunks in all
 *     1  u8  kind                   32  u64 bytes in all         56  64 bytes, as the kind says
 *     2  u16 chunks in this part    40  u64 0, reserved         120  u64 size of each chunk
 *     4  u32 0, reserved            48  u32 first chunk              in this part
 *     8  16 bytes, UUID of the GPU
 *
 * Numbers are little-endian. Nothing that a peer sends is trusted: dlx__gpu_handle_decode().
 */

#include "common/packet.h"

/* X(name, number on the wire, text) */
#define DLX_GPU_KINDS(X)                                                                           \
    X(CUDA_VMM, 1, "cuda_vmm")   /* chunks of cuMemCreate: a descriptor each */                    \
    X(CUDA_POOL, 2, "cuda_pool") /* of a CUmemoryPool: its descriptor, and where in the pool */    \
    X(CUDA_IPC, 3, "cuda_ipc")   /* of cudaMalloc: a CUipcMemHandle, no descriptor */              \
    X(HIP_IPC, 4, "hip_ipc")     /* of hipMalloc: a hipIpcMemHandle_t, no descriptor */            \
    X(HIP_VMM, 5, "hip_vmm")     /* chunks of hipMemCreate: a descriptor each */

enum dlx_gpu_kind {
#define DLX_GPU_KIND_ENUM(name, number, text) DLX_GPU_##name = number,
    DLX_GPU_KINDS(DLX_GPU_KIND_ENUM)
#undef DLX_GPU_KIND_ENUM
        DLX_GPU_KINDS_END
};

#define DLX_GPU_HEADER_SIZE 120U
#define DLX_GPU_BYTES_MAX   (DLX_GPU_HEADER_SIZE + 8U * DLX_PACKET_FDS_MAX)
/* 16 GiB of the smallest chunks, or 160 GiB of the 20 MiB that PyTorch takes. */
#define DLX_GPU_CHUNKS_MAX 8192U

struct dlx_gpu_uuid {
    uint8_t bytes[16];
};

/* "GPU-01234567-89ab-cdef-0123-456789abcdef", as nvidia-smi writes it. */
#define DLX_GPU_UUID_TEXT 41U
void dlx__gpu_uuid_text(const struct dlx_gpu_uuid *uuid, char ret[DLX_GPU_UUID_TEXT]);

struct dlx_gpu_chunk {
    uint64_t size;
    int fd; /* the handle's own; -1: not here yet */
};

/* A handle that is all zero is empty. */
struct dlx_gpu_handle {
    enum dlx_gpu_kind kind;
    struct dlx_gpu_uuid device;
    uint64_t id; /* of the allocation, at its publisher, never used again; not 0 */
    uint64_t size;
    uint8_t token[64];
    uint32_t n_chunks;
    uint32_t n_received; /* chunks that are here: all but of a handle that is being decoded */
    struct dlx_gpu_chunk *chunks; /* NULL in an outline */
};

const char *dlx__gpu_kind_text(uint32_t kind); /* "kind 9" is NULL */

/* Room for `n` chunks without descriptors. 0 or DLX_E_NO_MEMORY. */
int dlx__gpu_handle_reserve(struct dlx_gpu_handle *handle, uint32_t n);
/* A copy of a complete handle, with descriptors of its own. 0; DLX_E_NO_MEMORY, and what dup(2)
 * fails with. */
int dlx__gpu_handle_copy(const struct dlx_gpu_handle *handle, struct dlx_gpu_handle *ret);
/* Close the descriptors; all zero again. */
void dlx__gpu_handle_deinit(struct dlx_gpu_handle *handle);

/*
 * The part that begins with chunk `first`, of `n_most` chunks at most: DLX_PACKET_FDS_MAX or less.
 * Returns its size; the descriptors stay the handle's. The next part begins with
 * first + *ret_n_fds, if the handle has as many chunks.
 */
size_t dlx__gpu_handle_encode_part(const struct dlx_gpu_handle *handle, uint32_t first,
                                   uint32_t n_most, uint8_t ret[DLX_GPU_BYTES_MAX],
                                   int ret_borrow_fds[DLX_PACKET_FDS_MAX], size_t *ret_n_fds);
static inline size_t dlx__gpu_handle_encode(const struct dlx_gpu_handle *handle, uint32_t first,
                                            uint8_t ret[DLX_GPU_BYTES_MAX],
                                            int ret_borrow_fds[DLX_PACKET_FDS_MAX],
                                            size_t *ret_n_fds)
{
    return dlx__gpu_handle_encode_part(handle, first, DLX_PACKET_FDS_MAX, ret, ret_borrow_fds,
                                       ret_n_fds);
}

/*
 * Add a part to a handle, which is all zero before the first one. The descriptors become the
 * handle's, and -1 in `take_fds`. DLX_E_PROTOCOL (the message says which field), DLX_E_VERSION (a
 * kind or version that this library does not know), DLX_E_NO_MEMORY: nothing has changed.
 */
int dlx__gpu_handle_decode(struct dlx_gpu_handle *handle, const uint8_t *data, size_t size,
                           int *take_fds, size_t n_fds);

/*
 * The fixed fields alone, as messages carry them: who does not have the memory open yet asks for
 * the parts. Decoded, it is complete if the kind has no descriptors. Errors as of
 * dlx__gpu_handle_decode().
 */
void dlx__gpu_handle_encode_outline(const struct dlx_gpu_handle *handle,
                                    uint8_t ret[DLX_GPU_HEADER_SIZE]);
int dlx__gpu_handle_decode_outline(struct dlx_gpu_handle *ret,
                                   const uint8_t data[DLX_GPU_HEADER_SIZE]);

/* Are these of the same allocation, alike in all fixed fields? */
bool dlx__gpu_handle_is_same(const struct dlx_gpu_handle *a, const struct dlx_gpu_handle *b);

/* Have all parts been added? */
static inline bool dlx__gpu_handle_is_complete(const struct dlx_gpu_handle *handle)
{
    return handle->id != 0 && handle->n_received == handle->n_chunks;
}

#endif
