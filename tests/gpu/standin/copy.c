/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and fills, word operations of streams, functions and kernels: what is enqueued. */
#include "tests/gpu/standin/machine.h"
#include <stdlib.h>
#include <string.h>

/* Device memory, and host memory that the device can reach, is used in place. */
static bool is_pinned_host(const void *p)
{
    const struct range *r;
    LIST_FIND(r, &state.ranges,
              r->host && (const char *)p >= (char *)r->host &&
                  (const char *)p < (char *)r->host + r->size);
    return r != NULL;
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
    if ((what->dst && !range_find(what->dst)) || (what->src && !range_find(what->src)) ||
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

#define OP(of_kind, ...)                                                                           \
    &(struct op)                                                                                   \
    {                                                                                              \
        .kind = (of_kind), __VA_ARGS__                                                             \
    }

CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr dst, const void *src, size_t size)
{
    ENTER(cuMemcpyHtoD);
    return copy(&call, NULL, OP(OP_COPY, .dst = dst, .host_src = src, .size = size), true);
}

CUresult CUDAAPI cuMemcpyDtoH(void *dst, CUdeviceptr src, size_t size)
{
    ENTER(cuMemcpyDtoH);
    return copy(&call, NULL, OP(OP_COPY, .host_dst = dst, .src = src, .size = size), true);
}

CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr dst, const void *src, size_t size, CUstream stream)
{
    ENTER(cuMemcpyHtoDAsync);
    return copy_async(&call, stream, OP(OP_COPY, .dst = dst, .host_src = src, .size = size));
}

CUresult CUDAAPI cuMemcpyDtoHAsync(void *dst, CUdeviceptr src, size_t size, CUstream stream)
{
    ENTER(cuMemcpyDtoHAsync);
    return copy_async(&call, stream, OP(OP_COPY, .host_dst = dst, .src = src, .size = size));
}

CUresult CUDAAPI cuMemcpyDtoDAsync(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream)
{
    ENTER(cuMemcpyDtoDAsync);
    return copy_async(&call, stream, OP(OP_COPY, .dst = dst, .src = src, .size = size));
}

static CUresult fill(const struct call *call, CUstream stream, CUdeviceptr dst, unsigned value,
                     size_t n)
{
    return copy(call, stream, OP(OP_FILL, .dst = dst, .value = value, .width = 4, .size = 4 * n),
                false);
}

CUresult CUDAAPI cuMemsetD32(CUdeviceptr dst, unsigned value, size_t n)
{
    ENTER(cuMemsetD32);
    return fill(&call, NULL, dst, value, n);
}

CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr dst, unsigned value, size_t n, CUstream stream)
{
    ENTER(cuMemsetD32Async);
    return fill(&call, stream, dst, value, n);
}

static CUresult enqueue(const struct call *call, CUstream handle, const struct op *what)
{
    struct stream *s;
    CUresult code = stream_of(call, handle, &s);
    struct op *op = code == CUDA_SUCCESS ? op_new(what->kind) : NULL;
    if (op)
        *op = *what;
    return code == CUDA_SUCCESS ? stream_enqueue(s, op) : code;
}

static CUresult word(const struct call *call, CUstream stream, enum op_kind kind, unsigned width,
                     CUdeviceptr address, uint64_t value, unsigned flags)
{
    const unsigned known = kind == OP_WAIT_VALUE
                               ? 3u | CU_STREAM_WAIT_VALUE_FLUSH
                               : (unsigned)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER;
    if (address % width != 0 || !range_find(address) || (flags & ~known) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (flags & CU_STREAM_WAIT_VALUE_FLUSH)
        return CUDA_ERROR_NOT_SUPPORTED;
    return enqueue(call, stream,
                   OP(kind, .width = width, .dst = address, .value = value, .flags = flags));
}

CUresult CUDAAPI cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                     unsigned flags)
{
    ENTER(cuStreamWaitValue32);
    return word(&call, stream, OP_WAIT_VALUE, 4, address, value, flags);
}

CUresult CUDAAPI cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                     unsigned flags)
{
    ENTER(cuStreamWaitValue64);
    return word(&call, stream, OP_WAIT_VALUE, 8, address, value, flags);
}

CUresult CUDAAPI cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                      unsigned flags)
{
    ENTER(cuStreamWriteValue32);
    return word(&call, stream, OP_WRITE_VALUE, 4, address, value, flags);
}

CUresult CUDAAPI cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                      unsigned flags)
{
    ENTER(cuStreamWriteValue64);
    return word(&call, stream, OP_WRITE_VALUE, 8, address, value, flags);
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream stream, CUhostFn function, void *arg)
{
    ENTER(cuLaunchHostFunc);
    if (!function)
        return CUDA_ERROR_INVALID_VALUE;
    return enqueue(&call, stream, OP(OP_HOST_FUNCTION, .function = function, .arg = arg));
}

/* With its first launch, and when all work of the context has ended. */
static CUresult kernel_load(struct context *context, standin_kernel *kernel)
{
    for (int i = 0; i < context->n_loaded; i++)
        if (context->loaded[i] == kernel)
            return CUDA_SUCCESS;
    CUresult code = context_drain(context);
    if (code == CUDA_SUCCESS &&
        context->n_loaded < (int)(sizeof context->loaded / sizeof *context->loaded))
        context->loaded[context->n_loaded++] = kernel;
    return code;
}

CUresult standin_launch(CUstream stream, standin_kernel *kernel, void *arg)
{
    ENTER(standin_launch);
    if (!kernel)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult loaded = state.is_lazy ? kernel_load(call.context, kernel) : CUDA_SUCCESS;
    if (loaded != CUDA_SUCCESS)
        return loaded;
    return enqueue(&call, stream, OP(OP_KERNEL, .kernel = kernel, .arg = arg));
}
