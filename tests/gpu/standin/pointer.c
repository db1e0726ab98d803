/* SPDX-License-Identifier: Apache-2.0 */
/* What pointers say about themselves. */
#include "tests/gpu/standin/vmm.h"
#include <string.h>

/* An attribute's value: any of the types that attributes have. */
union value {
    uint64_t u64;
    unsigned u32;
    int i32;
    unsigned char flag;
    void *p;
};

static uint64_t allowed_types(const struct range *r)
{
    return r->backing && (r->kind == RANGE_VMM || r->kind == RANGE_POOL)
               ? r->backing->prop.requestedHandleTypes
               : CU_MEM_HANDLE_TYPE_NONE;
}

/* The size of the attribute's type, or 0 for an attribute that is not known. */
static size_t read_attribute(CUpointer_attribute attribute, const struct range *r, union value *ret)
{
    bool is_host = r->kind == RANGE_HOST || r->kind == RANGE_REGISTERED;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        ret->p = r->context;
        return sizeof ret->p;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        ret->u32 = is_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return sizeof ret->u32;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        ret->u64 = r->buffer_id;
        return sizeof ret->u64;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        ret->flag = r->kind == RANGE_MANAGED;
        return sizeof(unsigned);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        ret->i32 = r->device;
        return sizeof ret->i32;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        ret->flag = r->kind == RANGE_ALLOC;
        return sizeof(unsigned);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        ret->u64 = r->reservation ? r->reservation->base : r->base;
        return sizeof ret->u64;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        ret->u64 = r->reservation ? r->reservation->size : r->size;
        return sizeof ret->u64;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        ret->u64 = allowed_types(r);
        return sizeof ret->u64;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        ret->p = r->pool;
        return sizeof ret->p;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        ret->u64 = r->size;
        return sizeof ret->u64;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        ret->u64 = r->base;
        return sizeof ret->u64;
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
    union value value = {.u64 = 0};
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
        union value value = {.u64 = 0};
        size_t size = read_attribute(attributes[i], r ? r : &none, &value);
        if (size == 0 || !ret[i])
            return CUDA_ERROR_INVALID_VALUE;
        if (!r) {
            value.u64 = 0;
            if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
                value.i32 = -2;
        }
        memcpy(ret[i], &value, size);
    }
    return CUDA_SUCCESS;
}
