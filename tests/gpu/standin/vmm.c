/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory management: no call here needs a context. */
#include "tests/gpu/standin/vmm.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static CUresult prop_check(const CUmemAllocationProp *prop)
{
    if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED; /* memory of the host: not simulated */
    CHECK_DEVICE(prop->location.id);
    if (prop->allocFlags.gpuDirectRDMACapable &&
        device_attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) == 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    /* Where a test says that there are fabric handles, memory may allow them; none is made. */
    unsigned types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (device_attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED) != 0)
        types |= CU_MEM_HANDLE_TYPE_FABRIC;
    return (prop->requestedHandleTypes & ~types) == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

/* A handle that still has a reference: what cuMemRelease released last is dead, mapped or not. */
static struct vmm_handle *handle_of(CUmemGenericAllocationHandle handle)
{
    struct vmm_handle *h;
    LIST_FIND(h, &state.handles, (uintptr_t)h == handle && h->refs > 0);
    return h;
}

static void handle_drop(struct vmm_handle *h)
{
    if (h->refs > 0 || h->mappings > 0)
        return;
    LIST_REMOVE(h, link);
    backing_unref(h->backing);
    free(h);
}

static CUresult handle_new(CUmemGenericAllocationHandle *ret, struct backing *take_backing)
{
    struct vmm_handle *h = take_backing ? calloc(1, sizeof *h) : NULL;
    if (!h) {
        backing_unref(take_backing);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    h->backing = take_backing;
    h->refs = 1;
    LIST_INSERT_HEAD(&state.handles, h, link);
    count_add(STANDIN_HANDLES, 1);
    *ret = (uintptr_t)h;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAllocationGranularity(size_t *ret, const CUmemAllocationProp *prop,
                                               CUmemAllocationGranularity_flags option)
{
    ENTER(cuMemGetAllocationGranularity);
    if (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
        option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult code = prop_check(prop);
    if (code == CUDA_SUCCESS)
        *ret = GRANULARITY;
    return code;
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *ret, size_t size,
                             const CUmemAllocationProp *prop, unsigned long long flags)
{
    ENTER(cuMemCreate);
    if (flags != 0 || size == 0 || size % GRANULARITY != 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult code = prop_check(prop);
    if (code != CUDA_SUCCESS)
        return code;
    struct label label = {.kind = LABEL_VMM, .size = size, .prop = *prop};
    struct backing *backing;
    code = backing_new(&backing, prop->location.id, &label, size);
    return code == CUDA_SUCCESS ? handle_new(ret, backing) : code;
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle)
{
    ENTER(cuMemRelease);
    struct vmm_handle *h = handle_of(handle);
    if (!h)
        return CUDA_ERROR_INVALID_VALUE;
    h->refs--;
    count_add(STANDIN_HANDLES, -1);
    handle_drop(h);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *ret, void *address)
{
    ENTER(cuMemRetainAllocationHandle);
    const struct range *range = range_find((CUdeviceptr)(uintptr_t)address);
    if (!range || range->kind != RANGE_VMM)
        return CUDA_ERROR_INVALID_VALUE;
    range->handle->refs++;
    count_add(STANDIN_HANDLES, 1);
    *ret = (uintptr_t)range->handle;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemExportToShareableHandle(void *ret, CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType type,
                                              unsigned long long flags)
{
    ENTER(cuMemExportToShareableHandle);
    const struct vmm_handle *h = handle_of(handle);
    return h ? backing_export(h->backing, type, flags, ret) : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *ret, void *os_handle,
                                                CUmemAllocationHandleType type)
{
    ENTER(cuMemImportFromShareableHandle);
    struct label label;
    int device, fd = (int)(intptr_t)os_handle;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult code = label_read(fd, LABEL_VMM, &label, &device);
    return code == CUDA_SUCCESS ? handle_new(ret, backing_of_fd(fd, device, &label)) : code;
}

static struct reservation *reservation_of(CUdeviceptr base, size_t size)
{
    struct reservation *r;
    LIST_FIND(r, &state.reservations,
              base >= r->base && size <= r->size && base - r->base <= r->size - size);
    return r;
}

/* The next mapping that begins in [base, end), or NULL. */
static struct range *mapping_from(CUdeviceptr base, CUdeviceptr end)
{
    struct range *r, *first = NULL;
    LIST_FOREACH(r, &state.ranges, link)
    if (r->kind == RANGE_VMM && r->base >= base && r->base < end &&
        (!first || r->base < first->base))
        first = r;
    return first;
}

/* Whether whole mappings, without gaps, are all of it. */
static bool is_whole_mappings(CUdeviceptr base, size_t size)
{
    CUdeviceptr at = base, end = base + size;
    while (at < end) {
        const struct range *r = range_find(at);
        if (!r || r->kind != RANGE_VMM || r->base != at || r->size > end - at)
            return false;
        at += r->size;
    }
    return size > 0;
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr *ret, size_t size, size_t alignment,
                                     CUdeviceptr hint, unsigned long long flags)
{
    ENTER(cuMemAddressReserve);
    (void)hint; /* a wish only */
    if (flags != 0 || size == 0 || size % GRANULARITY != 0 || (alignment & (alignment - 1)) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct reservation *r = calloc(1, sizeof *r);
    CUdeviceptr base =
        r ? addresses_reserve(size, alignment > GRANULARITY ? alignment : GRANULARITY) : 0;
    if (base == 0) {
        free(r);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *r = (struct reservation){.base = base, .size = size};
    LIST_INSERT_HEAD(&state.reservations, r, link);
    count_add(STANDIN_RESERVATIONS, 1);
    *ret = base;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr base, size_t size)
{
    ENTER(cuMemAddressFree);
    struct reservation *r = reservation_of(base, size);
    if (!r || r->base != base || r->size != size || mapping_from(base, base + size))
        return CUDA_ERROR_INVALID_VALUE;
    addresses_free(base, size);
    LIST_REMOVE(r, link);
    free(r);
    count_add(STANDIN_RESERVATIONS, -1);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemMap(CUdeviceptr base, size_t size, size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    ENTER(cuMemMap);
    struct vmm_handle *h = handle_of(handle);
    struct reservation *r = reservation_of(base, size);
    if (!h || !r || flags != 0 || offset != 0 || base % GRANULARITY != 0 ||
        size != h->backing->size || mapping_from(base, base + size) || range_find(base))
        return CUDA_ERROR_INVALID_VALUE;
    struct range *range = range_new(RANGE_VMM, base, size, h->backing->fd, 0);
    if (!range)
        return CUDA_ERROR_OUT_OF_MEMORY;
    range->device = h->backing->device;
    range->backing = backing_ref(h->backing);
    range->handle = h;
    range->reservation = r;
    h->mappings++;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr base, size_t size)
{
    ENTER(cuMemUnmap);
    if (!is_whole_mappings(base, size))
        return CUDA_ERROR_INVALID_VALUE;
    for (struct range *r; (r = mapping_from(base, base + size));) {
        struct vmm_handle *h = r->handle;
        range_remove(r);
        h->mappings--;
        handle_drop(h);
    }
    return CUDA_SUCCESS;
}

/*
 * The stand-in's own view has the widest access that a device has: what goes past the checks
 * faults.
 */
static CUresult range_protect(struct range *r)
{
    int prot = PROT_NONE;
    for (int i = 0; i < state.n_devices; i++) {
        if (r->access[i] != CU_MEM_ACCESS_FLAGS_PROT_NONE)
            prot |= PROT_READ;
        if (r->access[i] == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            prot |= PROT_WRITE;
    }
    return mprotect(r->shadow, r->size, prot) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static bool access_is_valid(const CUmemAccessDesc *access)
{
    return access->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
           device_is_valid(access->location.id) &&
           (access->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ||
            access->flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
            access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr base, size_t size, const CUmemAccessDesc *access,
                                size_t count)
{
    ENTER(cuMemSetAccess);
    if (!access || count == 0 || !is_whole_mappings(base, size))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!access_is_valid(&access[i]))
            return CUDA_ERROR_INVALID_VALUE;
    for (CUdeviceptr at = base; at < base + size;) {
        struct range *r = range_find(at);
        for (size_t i = 0; i < count; i++)
            if (!device_reaches(access[i].location.id, r->device))
                return CUDA_ERROR_NOT_SUPPORTED;
        for (size_t i = 0; i < count; i++)
            r->access[access[i].location.id] = access[i].flags;
        CUresult code = range_protect(r);
        if (code != CUDA_SUCCESS)
            return code;
        at += r->size;
    }
    return CUDA_SUCCESS;
}
