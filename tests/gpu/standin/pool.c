/* SPDX-License-Identifier: Apache-2.0 */
/* Pools: stream-ordered memory. A pool is one sparse memfd, of which its allocations are parts. */
#include "tests/gpu/standin/ipc.h"
#include "tests/gpu/standin/vmm.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ALIGNMENT PAGE /* of allocations: an importer maps each of them alone */

struct pool {
    LIST_ENTRY(pool) link;
    struct backing *backing;
    uint64_t id;
    bool is_imported, is_default, is_destroyed;
    int n_live; /* allocations, or imported pointers */
    CUdeviceptr base;
    char *shadow;
    CUmemAccess_flags access[MAX_DEVICES];
    uint64_t threshold, used, used_high;
    int reuse[3];
};

static struct pool *default_pools[MAX_DEVICES], *current_pools[MAX_DEVICES];

static struct pool *pool_of(CUmemoryPool handle)
{
    struct pool *p;
    LIST_FOREACH(p, &state.pools, link)
    if ((CUmemoryPool)p == handle && !p->is_destroyed)
        return p;
    return NULL;
}

CUmemAccess_flags pool_access(const struct pool *pool, int device)
{
    return pool->access[device];
}

static void pool_free(struct pool *pool)
{
    if (!pool->is_destroyed || pool->n_live > 0)
        return;
    LIST_REMOVE(pool, link);
    if (pool->shadow)
        munmap(pool->shadow, pool->backing->size);
    if (pool->base)
        addresses_free(pool->base, pool->backing->size);
    backing_unref(pool->backing);
    free(pool);
}

void pool_give_back(struct range *range)
{
    struct pool *pool = range->pool;
    pool->n_live--;
    if (range->kind == RANGE_POOL) {
        pool->used -= range->size;
        memory_give(range->device, range->size);
    }
    pool_free(pool);
}

static struct pool *pool_add(struct backing *take_backing, uint64_t id)
{
    struct pool *p = take_backing ? calloc(1, sizeof *p) : NULL;
    if (!p) {
        backing_unref(take_backing);
        return NULL;
    }
    p->backing = take_backing;
    p->id = id;
    p->access[take_backing->device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    p->reuse[0] = p->reuse[1] = p->reuse[2] = 1;
    LIST_INSERT_HEAD(&state.pools, p, link);
    return p;
}

static CUresult pool_new(struct pool **ret, int device, CUmemAllocationHandleType types)
{
    struct label label = {.kind = LABEL_POOL, .size = machine->memory & ~(uint64_t)(PAGE - 1)};
    struct backing *backing;
    machine_lock();
    label.pool_id = ++machine->last_id;
    machine_unlock();
    label.prop.requestedHandleTypes = types;
    label.prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    label.prop.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    CUresult code = backing_new(&backing, device, &label, 0);
    if (code != CUDA_SUCCESS)
        return code;
    struct pool *p = pool_add(backing, label.pool_id);
    if (!p)
        return CUDA_ERROR_OUT_OF_MEMORY;
    void *shadow = mmap(NULL, backing->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                        backing->fd, 0);
    p->shadow = shadow == MAP_FAILED ? NULL : shadow;
    p->base = addresses_reserve(backing->size, GRANULARITY);
    if (!p->shadow || !p->base) {
        p->is_destroyed = true;
        pool_free(p);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ret = p;
    return CUDA_SUCCESS;
}

/* -- pools ------------------------------------------------------------------------------------- */

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *ret, const CUmemPoolProps *props)
{
    ENTER(cuMemPoolCreate);
    struct pool *p;
    if (!ret || !props || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        (props->handleTypes != CU_MEM_HANDLE_TYPE_NONE &&
         props->handleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!device_is_valid(props->location.id))
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult code = pool_new(&p, props->location.id, props->handleTypes);
    if (code != CUDA_SUCCESS)
        return code;
    count_add(STANDIN_POOLS, 1);
    *ret = (CUmemoryPool)p;
    return CUDA_SUCCESS;
}

/* Its memory lives until the last allocation is freed. */
CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool handle)
{
    ENTER(cuMemPoolDestroy);
    struct pool *p = pool_of(handle);
    if (!p || p->is_default)
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < state.n_devices; i++)
        if (current_pools[i] == p)
            current_pools[i] = default_pools[i];
    p->is_destroyed = true;
    count_add(STANDIN_POOLS, -1);
    pool_free(p);
    return CUDA_SUCCESS;
}

static CUresult default_pool(int device, struct pool **ret)
{
    CUresult code = CUDA_SUCCESS;
    if (!default_pools[device])
        code = pool_new(&default_pools[device], device, CU_MEM_HANDLE_TYPE_NONE);
    if (code != CUDA_SUCCESS)
        return code;
    default_pools[device]->is_default = true;
    *ret = default_pools[device];
    return CUDA_SUCCESS;
}

static CUresult current_pool(int device, struct pool **ret)
{
    *ret = current_pools[device];
    return *ret ? CUDA_SUCCESS : default_pool(device, ret);
}

CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool *ret, CUdevice device)
{
    ENTER(cuDeviceGetDefaultMemPool);
    struct pool *p;
    if (!ret || !device_is_valid(device))
        return ret ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    CUresult code = default_pool(device, &p);
    if (code == CUDA_SUCCESS)
        *ret = (CUmemoryPool)p;
    return code;
}

CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool *ret, CUdevice device)
{
    ENTER(cuDeviceGetMemPool);
    struct pool *p;
    if (!ret || !device_is_valid(device))
        return ret ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    CUresult code = current_pool(device, &p);
    if (code == CUDA_SUCCESS)
        *ret = (CUmemoryPool)p;
    return code;
}

CUresult CUDAAPI cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle)
{
    ENTER(cuDeviceSetMemPool);
    struct pool *p = pool_of(handle);
    if (!device_is_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!p || p->is_imported || p->backing->device != device)
        return CUDA_ERROR_INVALID_VALUE;
    current_pools[device] = p;
    return CUDA_SUCCESS;
}

/* What the attribute is kept in; size of its type. NULL: there is no such attribute. */
static void *attribute_of(struct pool *p, CUmemPool_attribute attribute, size_t *ret_size)
{
    *ret_size = sizeof(uint64_t);
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *ret_size = sizeof(int);
        return &p->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        return &p->threshold;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        return &p->used;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        return &p->used_high;
    default:
        return NULL;
    }
}

CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                       void *ret)
{
    ENTER(cuMemPoolGetAttribute);
    struct pool *p = pool_of(handle);
    size_t size;
    const void *value = p ? attribute_of(p, attribute, &size) : NULL;
    if (!value || !ret)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(ret, value, size);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                       void *value)
{
    ENTER(cuMemPoolSetAttribute);
    struct pool *p = pool_of(handle);
    size_t size;
    void *kept = p ? attribute_of(p, attribute, &size) : NULL;
    if (!kept || !value || kept == &p->used)
        return CUDA_ERROR_INVALID_VALUE;
    if (kept == &p->used_high)
        p->used_high = p->used; /* it can only be set to 0: counting begins anew */
    else
        memcpy(kept, value, size);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *access,
                                    size_t count)
{
    ENTER(cuMemPoolSetAccess);
    struct pool *p = pool_of(handle);
    if (!p || !access)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        const CUmemAccessDesc *a = &access[i];
        bool is_own = a->location.id == p->backing->device;
        if (a->location.type != CU_MEM_LOCATION_TYPE_DEVICE || !device_is_valid(a->location.id) ||
            (is_own && !p->is_imported && a->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
            return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; i++)
        p->access[access[i].location.id] = access[i].flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolGetAccess(CUmemAccess_flags *ret, CUmemoryPool handle,
                                    CUmemLocation *location)
{
    ENTER(cuMemPoolGetAccess);
    const struct pool *p = pool_of(handle);
    if (!ret || !p || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
        !device_is_valid(location->id))
        return CUDA_ERROR_INVALID_VALUE;
    *ret = p->access[location->id];
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
    ENTER(cuMemPoolTrimTo);
    (void)keep; /* nothing is kept that is not in use */
    return pool_of(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* -- allocations ------------------------------------------------------------------------------- */

/* The first place that is free, by offset; the capacity if there is none. */
static size_t find_place(const struct pool *p, size_t size)
{
    const struct range *r;
    size_t at = 0;
    bool moved = true;
    while (moved) {
        moved = false;
        LIST_FOREACH(r, &state.ranges, link)
        {
            size_t end = r->pool_offset + ((r->size + ALIGNMENT - 1) & ~(ALIGNMENT - 1));
            if (r->kind != RANGE_POOL || r->pool != p || end <= at || r->pool_offset >= at + size)
                continue;
            at = end;
            moved = true;
        }
    }
    return size <= p->backing->size && at <= p->backing->size - size ? at : p->backing->size;
}

static CUresult pool_alloc(struct pool *p, size_t size, CUdeviceptr *ret)
{
    size_t at = find_place(p, size);
    if (at == p->backing->size || !memory_take(p->backing->device, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct range *r = range_new(RANGE_POOL, p->base + at, size, -1, 0);
    if (!r) {
        memory_give(p->backing->device, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    r->shadow = p->shadow + at;
    r->pool = p;
    r->pool_offset = at;
    r->device = p->backing->device;
    r->backing = backing_ref(p->backing);
    p->n_live++;
    p->used += size;
    if (p->used > p->used_high)
        p->used_high = p->used;
    count_add(STANDIN_ALLOCATIONS, 1);
    *ret = r->base;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *ret, size_t size, CUmemoryPool handle,
                                         CUstream stream)
{
    ENTER(cuMemAllocFromPoolAsync);
    struct pool *p = pool_of(handle);
    struct stream *s;
    CUresult code = stream_of(&call, stream, &s);
    if (code != CUDA_SUCCESS)
        return code;
    if (!ret || size == 0 || !p || p->is_imported)
        return CUDA_ERROR_INVALID_VALUE;
    return pool_alloc(p, size, ret);
}

CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr *ret, size_t size, CUstream stream)
{
    ENTER(cuMemAllocAsync);
    struct pool *p;
    struct stream *s;
    CUresult code = stream_of(&call, stream, &s);
    if (code == CUDA_SUCCESS)
        code = current_pool(call.context->device, &p);
    if (code != CUDA_SUCCESS)
        return code;
    return ret && size > 0 ? pool_alloc(p, size, ret) : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    ENTER(cuMemFreeAsync);
    struct range *r = range_find(address);
    struct stream *s;
    CUresult code = stream_of(&call, stream, &s);
    if (code != CUDA_SUCCESS)
        return code;
    if (!r || r->base != address || r->is_freeing ||
        (r->kind != RANGE_POOL && r->kind != RANGE_POOL_IMPORT))
        return CUDA_ERROR_INVALID_VALUE;
    struct op *op = op_new(OP_FREE);
    if (op)
        op->range = r;
    bool is_captured = s->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    code = stream_enqueue(s, op);
    r->is_freeing = code == CUDA_SUCCESS && !is_captured;
    return code;
}

/* -- between processes ------------------------------------------------------------------------- */

CUresult CUDAAPI cuMemPoolExportToShareableHandle(void *ret, CUmemoryPool handle,
                                                  CUmemAllocationHandleType type,
                                                  unsigned long long flags)
{
    ENTER(cuMemPoolExportToShareableHandle);
    const struct pool *p = pool_of(handle);
    if (!ret || !p || p->is_imported || flags != 0 ||
        type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        p->backing->prop.requestedHandleTypes != type)
        return CUDA_ERROR_INVALID_VALUE;
    int fd = fcntl(p->backing->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    count_add(STANDIN_FDS_EXPORTED, 1);
    memcpy(ret, &fd, sizeof fd);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolImportFromShareableHandle(CUmemoryPool *ret, void *os_handle,
                                                    CUmemAllocationHandleType type,
                                                    unsigned long long flags)
{
    ENTER(cuMemPoolImportFromShareableHandle);
    struct label label;
    int device, fd = (int)(intptr_t)os_handle;
    if (!ret || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult code = label_read(fd, LABEL_POOL, &label, &device);
    if (code != CUDA_SUCCESS)
        return code;
    struct pool *p = pool_add(backing_of_fd(fd, device, &label), label.pool_id);
    if (!p)
        return CUDA_ERROR_OUT_OF_MEMORY;
    p->is_imported = true;
    count_add(STANDIN_POOLS, 1);
    *ret = (CUmemoryPool)p;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolExportPointer(CUmemPoolPtrExportData *ret, CUdeviceptr address)
{
    ENTER(cuMemPoolExportPointer);
    struct range *r = range_find(address);
    if (!ret || !r || r->kind != RANGE_POOL || r->base != address || r->is_freeing ||
        r->backing->prop.requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE)
        return CUDA_ERROR_INVALID_VALUE;
    return share_publish(r, r->pool->id, ret);
}

CUresult CUDAAPI cuMemPoolImportPointer(CUdeviceptr *ret, CUmemoryPool handle,
                                        CUmemPoolPtrExportData *data)
{
    ENTER(cuMemPoolImportPointer);
    struct pool *p = pool_of(handle);
    struct share share;
    struct share_name name;
    if (!ret || !data || !p || !p->is_imported)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult code = share_import(data, p->id, &share, &name);
    if (code != CUDA_SUCCESS)
        return code;
    struct range *r = range_new(RANGE_POOL_IMPORT, 0, share.size, p->backing->fd, share.offset);
    if (!r) {
        share_close(&(struct range){.share = name.slot, .share_id = name.id});
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    r->pool = p;
    r->device = p->backing->device;
    r->backing = backing_ref(p->backing);
    r->share = name.slot;
    r->share_id = name.id;
    p->n_live++;
    count_add(STANDIN_POOL_IMPORTS, 1);
    *ret = r->base;
    return CUDA_SUCCESS;
}
