/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that belongs to a context: cuMemAlloc, managed memory, and memory of the host. */
#include "tests/gpu/standin/vmm.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void range_count(const struct range *range)
{
    enum standin_counter counter;
    if (range_is_counted(range->kind, &counter))
        count_add(counter, 1);
}

/* -- device memory ----------------------------------------------------------------------------- */

CUresult CUDAAPI cuMemAlloc(CUdeviceptr *ret, size_t size)
{
    ENTER(cuMemAlloc);
    if (size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct label label = {.kind = LABEL_LEGACY, .size = (size + PAGE - 1) & ~(PAGE - 1)};
    struct backing *backing;
    CUresult code = backing_new(&backing, call.context->device, &label, label.size);
    if (code != CUDA_SUCCESS)
        return code;
    struct range *range = range_new(RANGE_ALLOC, 0, size, backing->fd, 0);
    if (!range) {
        backing_unref(backing);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    range->backing = backing;
    range->context = call.context;
    range->device = call.context->device;
    range_count(range);
    *ret = range->base;
    return CUDA_SUCCESS;
}

/* Memory that the CPU may use at the address that the device uses. */
static CUresult shared_alloc(struct context *context, enum range_kind kind, size_t size, void **ret)
{
    size_t whole = (size + PAGE - 1) & ~(PAGE - 1);
    if (size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    void *p = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct range *range =
        p == MAP_FAILED ? NULL : range_new(kind, (CUdeviceptr)(uintptr_t)p, size, -1, 0);
    if (!range) {
        if (p != MAP_FAILED)
            munmap(p, whole);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    range->shadow = p;
    range->host = p;
    range->owns_shadow = true; /* and these are the addresses */
    range->context = context;
    range->device = context->device;
    range_count(range);
    *ret = p;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *ret, size_t size, unsigned flags)
{
    ENTER(cuMemAllocManaged);
    void *p = NULL;
    if ((flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult code = shared_alloc(call.context, RANGE_MANAGED, size, &p);
    if (code == CUDA_SUCCESS)
        *ret = (CUdeviceptr)(uintptr_t)p;
    return code;
}

CUresult CUDAAPI cuMemHostAlloc(void **ret, size_t size, unsigned flags)
{
    ENTER(cuMemHostAlloc);
    (void)flags;
    return shared_alloc(call.context, RANGE_HOST, size, ret);
}

/* The driver waits for the work of the context before it frees memory. */
static CUresult free_base(struct context *context, CUdeviceptr address, bool is_host)
{
    struct range *range = range_find(address);
    bool fits = range && range->base == address &&
                (is_host ? range->kind == RANGE_HOST
                         : range->kind == RANGE_ALLOC || range->kind == RANGE_MANAGED ||
                               range->kind == RANGE_POOL || range->kind == RANGE_POOL_IMPORT);
    if (!fits)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult code = context_drain(context);
    range = range_find(address); /* the lock was given up */
    if (code == CUDA_SUCCESS && range)
        range_remove(range);
    return code;
}

CUresult CUDAAPI cuMemFree(CUdeviceptr address)
{
    ENTER(cuMemFree);
    return address == 0 ? CUDA_SUCCESS : free_base(call.context, address, false);
}

CUresult CUDAAPI cuMemFreeHost(void *p)
{
    ENTER(cuMemFreeHost);
    return free_base(call.context, (CUdeviceptr)(uintptr_t)p, true);
}

/* -- registered memory of the host ------------------------------------------------------------- */

/* Whether all of it is mapped, and writable; and the file that its end is of, 0: none. */
static bool host_is_mapped(const char *start, const char *end, bool *ret_writable,
                           unsigned long *ret_inode)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512], mode[8];
    unsigned long long from, to;
    const char *reached = start;
    *ret_writable = true;
    while (maps && reached < end && fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%llx-%llx %7s %*s %*s %lu", &from, &to, mode, ret_inode) != 4 ||
            (uintptr_t)to <= (uintptr_t)reached)
            continue;
        if ((uintptr_t)from > (uintptr_t)reached || mode[0] != 'r')
            break;
        *ret_writable = *ret_writable && mode[1] == 'w';
        reached = (const char *)(uintptr_t)to;
    }
    if (maps)
        (void)fclose(maps);
    return reached >= end;
}

static struct range *registered_at(const void *p)
{
    struct range *r;
    LIST_FOREACH(r, &state.ranges, link)
    if ((r->kind == RANGE_REGISTERED || r->kind == RANGE_HOST) &&
        (const char *)p >= (char *)r->host && (const char *)p < (char *)r->host + r->size)
        return r;
    return NULL;
}

/* Whether some of these bytes are registered. */
static bool overlaps_registered(const char *p, size_t size)
{
    const struct range *r;
    LIST_FOREACH(r, &state.ranges, link)
    if ((r->kind == RANGE_REGISTERED || r->kind == RANGE_HOST) && p < (char *)r->host + r->size &&
        (const char *)r->host < p + size)
        return true;
    return false;
}

/* Memory that the CPU may only read: it takes the flag, or a device that uses the CPU's tables. */
static bool may_register_read_only(unsigned flags)
{
    return (flags & CU_MEMHOSTREGISTER_READ_ONLY) ||
           device_attribute(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
}

CUresult CUDAAPI cuMemHostRegister(void *p, size_t size, unsigned flags)
{
    ENTER(cuMemHostRegister);
    const unsigned known = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                           CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
    bool is_writable;
    unsigned long inode = 0;
    if (!p || size == 0 || (flags & ~known) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (overlaps_registered(p, size))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (flags & CU_MEMHOSTREGISTER_READ_ONLY &&
        !device_attribute(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!host_is_mapped(p, (char *)p + size, &is_writable, &inode) ||
        (!is_writable && !may_register_read_only(flags)))
        return CUDA_ERROR_INVALID_VALUE;
    CUdeviceptr base = addresses_reserve((size + 2 * PAGE - 1) & ~(PAGE - 1), PAGE);
    struct range *range =
        base ? range_new(RANGE_REGISTERED, base + (uintptr_t)p % PAGE, size, -1, 0) : NULL;
    if (!range)
        return CUDA_ERROR_OUT_OF_MEMORY;
    range->owns_addresses = true;
    range->shadow = p;
    range->host = p;
    range->context = call.context;
    range->device = call.context->device;
    range->is_read_only = !is_writable || (flags & CU_MEMHOSTREGISTER_READ_ONLY) != 0;
    range->inode = inode;
    range_count(range);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemHostUnregister(void *p)
{
    ENTER(cuMemHostUnregister);
    struct range *range = registered_at(p);
    if (!range || range->kind != RANGE_REGISTERED)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    if (range->host != p)
        return CUDA_ERROR_INVALID_VALUE;
    bool is_writable;
    unsigned long inode = 0;
    if (!host_is_mapped(p, (char *)p + range->size, &is_writable, &inode) || inode != range->inode)
        count_add(STANDIN_UNMAPPED_REGISTERED, 1);
    CUresult code = context_drain(call.context);
    range = registered_at(p);
    if (code == CUDA_SUCCESS && range)
        range_remove(range);
    return code;
}

CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr *ret, void *p, unsigned flags)
{
    ENTER(cuMemHostGetDevicePointer);
    const struct range *range = registered_at(p);
    if (flags != 0 || !range)
        return CUDA_ERROR_INVALID_VALUE;
    *ret = range->base + (CUdeviceptr)((char *)p - (char *)range->host);
    return CUDA_SUCCESS;
}
