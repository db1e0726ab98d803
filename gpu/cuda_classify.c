/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a framework's pointer points to. One call asks the driver for everything; for memory that
 * was mapped piece by piece there is one more for each piece.
 *
 * Neither addresses nor the bytes of handles identify an allocation: an address is used again, and
 * the bytes of two exports of the same memory differ. A BUFFER_ID does, and a retained handle.
 */
#include "common/error.h"
#include "gpu/cuda_driver.h"

#define FD_HANDLE     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define FABRIC_HANDLE CU_MEM_HANDLE_TYPE_FABRIC

/* All fields are 0 if the address is not memory of CUDA. */
struct attributes {
    uint64_t memory_type;
    uint64_t context;
    uint64_t is_managed;
    uint64_t device;
    uint64_t pool;
    uint64_t is_ipc_capable;
    uint64_t handle_types;
    uint64_t buffer_id;
    uint64_t range_start;
    uint64_t range_size;
    uint64_t mapping_start;
    uint64_t mapping_size;
};

/* The driver writes 1, 4 or 8 bytes of each value, and the rest stays 0: a little-endian word is
 * right. */
static int cuda_classify_get_attributes(const struct dlx_cuda *cu, CUdeviceptr at,
                                        struct attributes *ret)
{
    CUpointer_attribute which[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,          CU_POINTER_ATTRIBUTE_CONTEXT,
        CU_POINTER_ATTRIBUTE_IS_MANAGED,           CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,       CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, CU_POINTER_ATTRIBUTE_BUFFER_ID,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,     CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,    CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
    };
    *ret = (struct attributes){0};
    void *data[] = {
        &ret->memory_type, &ret->context,        &ret->is_managed,    &ret->device,
        &ret->pool,        &ret->is_ipc_capable, &ret->handle_types,  &ret->buffer_id,
        &ret->range_start, &ret->range_size,     &ret->mapping_start, &ret->mapping_size,
    };
    _Static_assert(DLX_ARRAY_SIZE(which) == DLX_ARRAY_SIZE(data), "in the same order");
    CUresult result = cu->cuPointerGetAttributes(DLX_ARRAY_SIZE(which), which, data, at);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "cuPointerGetAttributes");
    return 0;
}

static int cuda_classify_refuse(const char *why)
{
    return dlx__fail(DLX_E_DEVICE, "this memory cannot be shared between processes: %s", why);
}

/* The memory allows no kind of handle that this library can use. The settings of PyTorch are named;
 * docs/GPU.md has those of other libraries, too. */
static int refuse_handle_types(const struct attributes *a, bool is_pool)
{
    const char *why =
        a->handle_types & FABRIC_HANDLE
            ? "it allows only fabric handles, which need an IMEX channel and do not keep memory "
              "(PyTorch: set expandable_segments:False for it)"
        : is_pool ? "its memory pool was created without CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR "
                    "(PyTorch: set backend:native instead of backend:cudaMallocAsync)"
                  : "its virtual memory was created without "
                    "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR (PyTorch: unset "
                    "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC)";
    return dlx__fail(DLX_E_DEVICE,
                     "this memory cannot be shared between processes: %s; `stage` copies it; "
                     "docs/GPU.md has the settings of other libraries",
                     why);
}

static bool covers(uint64_t start, uint64_t size, uint64_t at, uint64_t at_size)
{
    return at >= start && at - start < size && at_size <= size - (at - start);
}

static int found_range(const struct attributes *a, uint64_t at, uint64_t size,
                       struct dlx_gpu_memory *memory)
{
    if (!covers(a->range_start, a->range_size, at, size))
        return cuda_classify_refuse("it reaches beyond its allocation");
    int r = dlx__gpu_memory_pieces(memory, 1);
    if (r < 0)
        return r;
    memory->base = (void *)(uintptr_t)a->range_start;
    memory->size = a->range_size;
    memory->pieces[0] = (struct dlx_gpu_piece){.identity = a->buffer_id, .size = a->range_size};
    return 0;
}

/* Add a piece, and take over its handle. */
static int add_piece(const struct dlx_cuda *cu, const struct attributes *a,
                     struct dlx_gpu_memory *memory)
{
    CUmemGenericAllocationHandle handle;
    if (!(a->handle_types & FD_HANDLE))
        return refuse_handle_types(a, false);
    if (memory->n_pieces == DLX_GPU_CHUNKS_MAX)
        return dlx__fail(DLX_E_LIMIT, "a tensor lies in more than %u chunks of GPU memory",
                         DLX_GPU_CHUNKS_MAX);
    CUresult result = cu->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)a->mapping_start);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "cuMemRetainAllocationHandle");
    struct dlx_gpu_piece *pieces =
        reallocarray(memory->pieces, memory->n_pieces + 1, sizeof *pieces);
    if (!pieces) {
        (void)cu->cuMemRelease(handle);
        return dlx__fail(DLX_E_NO_MEMORY, "no memory for a chunk of GPU memory");
    }
    memory->pieces = pieces;
    pieces[memory->n_pieces++] =
        (struct dlx_gpu_piece){.identity = handle, .size = a->mapping_size};
    memory->size += a->mapping_size;
    return 0;
}

/* The range of an expandable segment is a reservation, most of which is empty: so this goes from
 * mapping to mapping. */
static int walk(const struct dlx_cuda *cu, const struct attributes *first, uint64_t at,
                uint64_t size, struct dlx_gpu_memory *memory)
{
    struct attributes a = *first;
    uint64_t start = first->mapping_start;
    memory->base = (void *)(uintptr_t)start;
    for (;;) {
        uint64_t here = start + memory->size;
        if (a.mapping_size == 0 || (memory->n_pieces > 0 && a.mapping_start != here) ||
            (memory->n_pieces == 0 && !covers(start, a.mapping_size, at, 1)))
            return cuda_classify_refuse("part of it is not mapped");
        if ((int32_t)a.device != memory->device)
            return cuda_classify_refuse("it lies on several GPUs");
        int r = add_piece(cu, &a, memory);
        if (r < 0)
            return r;
        if (covers(start, memory->size, at, size))
            return 0;
        r = cuda_classify_get_attributes(cu, start + memory->size, &a);
        if (r < 0)
            return r;
    }
}

/* Memory of cuMemCreate that says nothing of handles is still memory of cuMemCreate. */
static bool is_vmm(const struct dlx_cuda *cu, uint64_t at)
{
    CUmemGenericAllocationHandle handle;
    if (cu->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)at) != CUDA_SUCCESS)
        return false;
    (void)cu->cuMemRelease(handle);
    return true;
}

static int cuda_classify_classify(const struct dlx_cuda *cu, const struct attributes *a,
                                  uint64_t at, uint64_t size, struct dlx_gpu_memory *memory)
{
    if (a->memory_type == 0)
        return cuda_classify_refuse("CUDA does not know it: it may be ordinary host memory");
    if (a->is_managed)
        return cuda_classify_refuse("it is managed (unified) memory");
    if (a->memory_type == CU_MEMORYTYPE_HOST)
        return cuda_classify_refuse("it is host memory");
    if ((int32_t)a->device != memory->device)
        return dlx__fail(DLX_E_INVALID,
                         "the tensor says CUDA device %d, its memory is on device %d",
                         memory->device, (int32_t)a->device);
    if (a->pool) {
        memory->ops = &dlx__cuda_pool_ops;
        memory->pool = (void *)(uintptr_t)a->pool;
        return a->handle_types & FD_HANDLE ? found_range(a, at, size, memory)
                                           : refuse_handle_types(a, true);
    }
    if (a->is_ipc_capable) {
        memory->ops = &dlx__cuda_ipc_ops;
        memory->context = (void *)(uintptr_t)a->context;
        return found_range(a, at, size, memory);
    }
    if (a->handle_types != 0 || is_vmm(cu, at))
        return walk(cu, a, at, size, memory);
    return cuda_classify_refuse(
        "the driver does not allow it (as under WSL, on Jetson, in protected PCIe mode)");
}

/* This goes from mapping to mapping, as walk() does. */
static bool is_mapped(const struct dlx_cuda *cu, struct attributes a, uint64_t at, uint64_t size)
{
    uint64_t start = a.mapping_start, mapped = 0;
    while (a.mapping_size > 0 && a.mapping_start == start + mapped) {
        mapped += a.mapping_size;
        if (covers(start, mapped, at, size))
            return true;
        if (cuda_classify_get_attributes(cu, start + mapped, &a) < 0)
            return false;
    }
    return false;
}

int dlx__cuda_check_range(int32_t device, const void *ptr, uint64_t size)
{
    static const char no[] = "the GPU cannot copy this memory";
    const struct dlx_cuda *cu;
    struct attributes a;
    uint64_t at = (uintptr_t)ptr;
    CUdevice dev;
    int r = dlx__cuda(&cu);
    if (r == 0)
        r = dlx__cuda_device(cu, device, &dev);
    if (r == 0)
        r = cuda_classify_get_attributes(cu, dlx__cuda_ptr(ptr), &a);
    if (r < 0)
        return r;
    if (a.memory_type == 0 || (a.memory_type == CU_MEMORYTYPE_HOST && !a.is_managed))
        return dlx__fail(DLX_E_DEVICE, "%s: it is not on a GPU", no);
    bool is_whole = a.range_size == 0 || covers(a.range_start, a.range_size, at, size);
    if (is_whole && a.mapping_size > 0 && !a.pool && !a.is_ipc_capable && !a.is_managed)
        is_whole = is_mapped(cu, a, at, size);
    return is_whole ? 0 : dlx__fail(DLX_E_DEVICE, "%s: it reaches beyond its allocation", no);
}

int dlx__cuda_classify(int32_t device, const void *ptr, uint64_t size, struct dlx_gpu_memory *ret)
{
    const struct dlx_cuda *cu;
    struct attributes a;
    struct dlx_gpu_memory memory = {.ops = &dlx__cuda_vmm_ops, .device = device};
    uint64_t at = (uintptr_t)ptr;
    int r = dlx__cuda(&cu);
    if (r == 0)
        r = cuda_classify_get_attributes(cu, dlx__cuda_ptr(ptr), &a);
    if (r == 0)
        r = cuda_classify_classify(cu, &a, at, DLX_MAX(size, UINT64_C(1)), &memory);
    if (r < 0)
        memory.ops->forget(&memory);
    else
        *ret = memory;
    return r;
}
