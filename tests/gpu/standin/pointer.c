/* SPDX-License-Identifier: Apache-2.0 */
/* The attributes of pointers. */
#include "tests/gpu/standin/vmm.h"
#include <string.h>

static uint64_t allowed_types(const struct range *r)
{
    return r->backing && (r->kind == RANGE_VMM || r->kind == RANGE_POOL)
               ? r->backing->prop.requestedHandleTypes
               : CU_MEM_HANDLE_TYPE_NONE;
}

static bool is_for_rdma(const struct range *r)
{
    return r->kind == RANGE_ALLOC ||
           (r->kind == RANGE_VMM && r->backing && r->backing->prop.allocFlags.gpuDirectRDMACapable);
}

static bool is_host(const struct range *r)
{
    return r->kind == RANGE_HOST || r->kind == RANGE_REGISTERED;
}

/* Each attribute, its type, and its value for memory of the range r. */
#define ATTRIBUTES(X)                                                                              \
    X(CONTEXT, struct context *, r->context)                                                       \
    X(MEMORY_TYPE, unsigned, is_host(r) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE)               \
    X(BUFFER_ID, uint64_t, r->buffer_id)                                                           \
    X(IS_MANAGED, unsigned, r->kind == RANGE_MANAGED)                                              \
    X(DEVICE_ORDINAL, int, r->device)                                                              \
    X(IS_LEGACY_CUDA_IPC_CAPABLE, unsigned, r->kind == RANGE_ALLOC)                                \
    X(IS_GPU_DIRECT_RDMA_CAPABLE, bool, is_for_rdma(r))                                            \
    X(RANGE_START_ADDR, uint64_t, r->reservation ? r->reservation->base : r->base)                 \
    X(RANGE_SIZE, uint64_t, r->reservation ? r->reservation->size : r->size)                       \
    X(ALLOWED_HANDLE_TYPES, uint64_t, allowed_types(r))                                            \
    X(MEMPOOL_HANDLE, struct pool *, r->pool)                                                      \
    X(MAPPING_SIZE, uint64_t, r->size)                                                             \
    X(MAPPING_BASE_ADDR, uint64_t, r->base)

/* The size of the attribute's type, at most that of `ret`, or 0 for one that is not known. */
static size_t read_attribute(CUpointer_attribute attribute, const struct range *r, uint64_t *ret)
{
    switch (attribute) {
#define X(name, type, value)                                                                       \
    case CU_POINTER_ATTRIBUTE_##name:                                                              \
        memcpy(ret, &(type){value}, sizeof(type));                                                 \
        return sizeof(type);
        ATTRIBUTES(X)
#undef X
    default:
        return 0;
    }
}

/* Registered memory is known by the CPU's address, too. */
static const struct range *range_at(CUdeviceptr address)
{
    const struct range *r = range_find(address);
    if (!r)
        LIST_FIND(r, &state.ranges,
                  r->kind == RANGE_REGISTERED && address >= (uintptr_t)r->host &&
                      address - (uintptr_t)r->host < r->size);
    return r;
}

CUresult CUDAAPI cuPointerGetAttribute(void *ret, CUpointer_attribute attribute,
                                       CUdeviceptr address)
{
    ENTER(cuPointerGetAttribute);
    const struct range *r = range_at(address);
    uint64_t value = 0;
    size_t size = ret && r ? read_attribute(attribute, r, &value) : 0;
    if (size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(ret, &value, size);
    return CUDA_SUCCESS;
}

/* A pointer that is not the driver's has the value 0 of each attribute; the ordinal is -2. */
CUresult CUDAAPI cuPointerGetAttributes(unsigned n, CUpointer_attribute *attributes, void **ret,
                                        CUdeviceptr address)
{
    ENTER(cuPointerGetAttributes);
    static const struct range none;
    const struct range *r = range_at(address);
    if (n == 0 || !attributes || !ret)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < n; i++) {
        uint64_t value = 0;
        size_t size = read_attribute(attributes[i], r ? r : &none, &value);
        if (size == 0 || !ret[i])
            return CUDA_ERROR_INVALID_VALUE;
        if (!r) {
            value = 0;
            if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
                memcpy(&value, &(int){-2}, sizeof(int));
        }
        memcpy(ret[i], &value, size);
    }
    return CUDA_SUCCESS;
}
