/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and fills, word operations of streams, functions and kernels: what is enqueued. */
#include "tests/gpu/standin/machine.h"
#include <stdlib.h>
#include <string.h>

static bool is_device(CUdeviceptr address)
{
    const struct range *r = range_find(address);
    return r != NULL;
}

/* Device memory, and host memory that the device can reach, is used in place. */
static bool is_pinned_host(const void *p)
{
    const struct range *r;
    LIST_FOREACH(r, &state.ranges, link)
    if (r->host && (const char *)p >= (char *)r->host &&
        (const char *)p < (char *)r->host + r->size)
        return true;
    return false;
}

/* Whether a pageable source was copied: the caller may change it at once, as with the driver. */
static bool stage(struct op *op)
{
    if (!op->host_src || is_pinned_host(op->host_src))
        return true;
    op->staged = malloc(op->size);
    if (op->staged)
        memcpy(op->staged, op->host_src, op->size);
    return op->staged != NULL;
}

static CUresult copy(const struct call *call, CUstream handle, const struct op *what, bool waits)
{
    struct stream *s;
    CUresult code = stream_of(call, handle, &s);
    if (code != CUDA_SUCCESS)
        return code;
    if (what->size == 0)
        return CUDA_SUCCESS;
    if ((what->dst && !is_device(what->dst)) || (what->src && !is_device(what->src)) ||
        (!what->dst && !what->host_dst) || (what->kind == OP_COPY && !what->src && !what->host_src))
        return CUDA_ERROR_INVALID_VALUE;
    if (waits && (code = capture_refuse(s, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)) != CUDA_SUCCESS)
        return code;
    struct op *op = op_new(what->kind);
    if (op) {
        *op = *what;
        if (!waits && !stage(op)) {
            op_free(op);
            op = NULL;
        }
    }
    code = stream_enqueue(s, op);
    return code == CUDA_SUCCESS && waits ? stream_drain(s) : code;
}

/* A pageable destination is complete on return, as with the driver. */
static CUresult copy_async(const struct call *call, CUstream handle, const struct op *what)
{
    struct stream *s;
    CUresult code = stream_of(call, handle, &s);
    bool waits = code == CUDA_SUCCESS && what->host_dst && !is_pinned_host(what->host_dst) &&
                 s->capture == CU_STREAM_CAPTURE_STATUS_NONE;
    return code == CUDA_SUCCESS ? copy(call, handle, what, waits) : code;
}

#define TO_DEVICE(to, from, n)                                                                     \
    &(struct op)                                                                                   \
    {                                                                                              \
        .kind = OP_COPY, .dst = (to), .host_src = (from), .size = (n)                              \
    }
#define TO_HOST(to, from, n)                                                                       \
    &(struct op)                                                                                   \
    {                                                                                              \
        .kind = OP_COPY, .host_dst = (to), .src = (from), .size = (n)                              \
    }
#define ON_DEVICE(to, from, n)                                                                     \
    &(struct op)                                                                                   \
    {                                                                                              \
        .kind = OP_COPY, .dst = (to), .src = (from), .size = (n)                                   \
    }
#define FILL(to, v, n)                                                                             \
    &(struct op)                                                                                   \
    {                                                                                              \
        .kind = OP_FILL, .dst = (to), .value = (v), .width = 4, .size = (n)*4                      \
    }

CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr dst, const void *src, size_t size)
{
    ENTER(cuMemcpyHtoD);
    return copy(&call, NULL, TO_DEVICE(dst, src, size), true);
}

CUresult CUDAAPI cuMemcpyDtoH(void *dst, CUdeviceptr src, size_t size)
{
    ENTER(cuMemcpyDtoH);
    return copy(&call, NULL, TO_HOST(dst, src, size), true);
}

CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr dst, const void *src, size_t size, CUstream stream)
{
    ENTER(cuMemcpyHtoDAsync);
    return copy_async(&call, stream, TO_DEVICE(dst, src, size));
}

CUresult CUDAAPI cuMemcpyDtoHAsync(void *dst, CUdeviceptr src, size_t size, CUstream stream)
{
    ENTER(cuMemcpyDtoHAsync);
    return copy_async(&call, stream, TO_HOST(dst, src, size));
}

CUresult CUDAAPI cuMemcpyDtoDAsync(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream)
{
    ENTER(cuMemcpyDtoDAsync);
    return copy_async(&call, stream, ON_DEVICE(dst, src, size));
}

CUresult CUDAAPI cuMemsetD32(CUdeviceptr dst, unsigned value, size_t n)
{
    ENTER(cuMemsetD32);
    return copy(&call, NULL, FILL(dst, value, n), false);
}

CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr dst, unsigned value, size_t n, CUstream stream)
{
    ENTER(cuMemsetD32Async);
    return copy(&call, stream, FILL(dst, value, n), false);
}

/* -- words, functions, kernels ----------------------------------------------------------------- */

static CUresult enqueue(const struct call *call, CUstream handle, const struct op *what)
{
    struct stream *s;
    CUresult code = stream_of(call, handle, &s);
    struct op *op = code == CUDA_SUCCESS ? op_new(what->kind) : NULL;
    if (op)
        *op = *what;
    return code == CUDA_SUCCESS ? stream_enqueue(s, op) : code;
}

static CUresult word(const struct call *call, CUstream stream, const struct op *what)
{
    const unsigned known = what->kind == OP_WAIT_VALUE
                               ? 3u | CU_STREAM_WAIT_VALUE_FLUSH
                               : (unsigned)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER;
    if (what->dst % what->width != 0 || !is_device(what->dst) || (what->flags & ~known) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (what->flags & CU_STREAM_WAIT_VALUE_FLUSH)
        return CUDA_ERROR_NOT_SUPPORTED;
    return enqueue(call, stream, what);
}

#define WORD(k, w, to, v, f)                                                                       \
    &(struct op)                                                                                   \
    {                                                                                              \
        .kind = (k), .width = (w), .dst = (to), .value = (v), .flags = (f)                         \
    }

CUresult CUDAAPI cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                     unsigned flags)
{
    ENTER(cuStreamWaitValue32);
    return word(&call, stream, WORD(OP_WAIT_VALUE, 4, address, value, flags));
}

CUresult CUDAAPI cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                     unsigned flags)
{
    ENTER(cuStreamWaitValue64);
    return word(&call, stream, WORD(OP_WAIT_VALUE, 8, address, value, flags));
}

CUresult CUDAAPI cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                      unsigned flags)
{
    ENTER(cuStreamWriteValue64);
    return word(&call, stream, WORD(OP_WRITE_VALUE, 8, address, value, flags));
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream stream, CUhostFn function, void *arg)
{
    ENTER(cuLaunchHostFunc);
    if (!function)
        return CUDA_ERROR_INVALID_VALUE;
    return enqueue(&call, stream,
                   &(struct op){.kind = OP_HOST_FUNCTION, .function = function, .arg = arg});
}

CUresult standin_launch(CUstream stream, standin_kernel *kernel, void *arg)
{
    ENTER(standin_launch);
    if (!kernel)
        return CUDA_ERROR_INVALID_VALUE;
    return enqueue(&call, stream, &(struct op){.kind = OP_KERNEL, .kernel = kernel, .arg = arg});
}
