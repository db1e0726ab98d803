/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that belongs to a context: cuMemAlloc, managed memory, and memory of the host. */
#include "tests/gpu/standin/vmm.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

CUresult CUDAAPI cuMemAlloc(CUdeviceptr *ret, size_t size)
{
    ENTER(cuMemAlloc);
    if (size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct label label = {.kind = LABEL_LEGACY, .size = whole_pages(size)};
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
    *ret = range->base;
    return CUDA_SUCCESS;
}

/* Memory that the CPU may use at the address that the device uses. */
static CUresult shared_alloc(struct context *context, enum range_kind kind, size_t size, void **ret)
{
    if (size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    void *p =
        mmap(NULL, whole_pages(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct range *range =
        p == MAP_FAILED ? NULL : range_new(kind, (CUdeviceptr)(uintptr_t)p, size, -1, 0);
    if (!range) {
        if (p != MAP_FAILED)
            munmap(p, whole_pages(size));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    range->shadow = p;
    range->host = p;
    range->owns_shadow = true; /* and these are the addresses */
    range->context = context;
    range->device = context->device;
    *ret = p;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *ret, size_t size, unsigned flags)
{
    ENTER(cuMemAllocManaged);
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    void *p = NULL;
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

static CUresult free_base(struct context *context, CUdeviceptr address, bool is_host)
{
    const struct range *range = range_find(address);
    bool fits = range && range->base == address &&
                (is_host ? range->kind == RANGE_HOST
                         : range->kind == RANGE_ALLOC || range->kind == RANGE_MANAGED ||
                               range->kind == RANGE_POOL || range->kind == RANGE_POOL_IMPORT);
    return fits ? range_free(context, address) : CUDA_ERROR_INVALID_VALUE;
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

/* Memory of the host that the device can reach, of which some of these bytes are. */
static struct range *registered_at(const void *p, size_t size)
{
    struct range *r;
    LIST_FIND(r, &state.ranges,
              (r->kind == RANGE_REGISTERED || r->kind == RANGE_HOST) &&
                  (char *)r->host < (const char *)p + size &&
                  (const char *)p < (char *)r->host + r->size);
    return r;
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
    if (registered_at(p, size))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (flags & CU_MEMHOSTREGISTER_READ_ONLY &&
        !device_attribute(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!host_is_mapped(p, (char *)p + size, &is_writable, &inode) ||
        (!is_writable && !may_register_read_only(flags)))
        return CUDA_ERROR_INVALID_VALUE;
    CUdeviceptr base = addresses_reserve(whole_pages(size + PAGE), PAGE);
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
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemHostUnregister(void *p)
{
    ENTER(cuMemHostUnregister);
    const struct range *range = registered_at(p, 1);
    if (!range || range->kind != RANGE_REGISTERED)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    if (range->host != p)
        return CUDA_ERROR_INVALID_VALUE;
    bool is_writable;
    unsigned long inode = 0;
    if (!host_is_mapped(p, (char *)p + range->size, &is_writable, &inode) || inode != range->inode)
        count_add(STANDIN_UNMAPPED_REGISTERED, 1);
    return range_free(call.context, range->base);
}

CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr *ret, void *p, unsigned flags)
{
    ENTER(cuMemHostGetDevicePointer);
    const struct range *range = registered_at(p, 1);
    if (flags != 0 || !range)
        return CUDA_ERROR_INVALID_VALUE;
    *ret = range->base + (CUdeviceptr)((char *)p - (char *)range->host);
    return CUDA_SUCCESS;
}
