/* SPDX-License-Identifier: Apache-2.0 */
/* Pools: stream-ordered memory. A pool is one sparse memfd, of which its allocations are parts. */
#include "tests/gpu/standin/ipc.h"
#include "tests/gpu/standin/vmm.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct pool {
    LIST_ENTRY(pool) link;
    struct backing *backing;
    uint64_t id;
    bool is_imported, is_destroyed;
    int n_live; /* allocations, or imported pointers */
    CUdeviceptr base;
    char *shadow;
    CUmemAccess_flags access[MAX_DEVICES];
};

static struct pool *pool_of(CUmemoryPool handle)
{
    struct pool *p;
    LIST_FIND(p, &state.pools, (CUmemoryPool)p == handle && !p->is_destroyed);
    return p;
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
    if (range->kind == RANGE_POOL)
        memory_give(range->device, range->size);
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

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *ret, const CUmemPoolProps *props)
{
    ENTER(cuMemPoolCreate);
    struct pool *p;
    if (!props || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        (props->handleTypes != CU_MEM_HANDLE_TYPE_NONE &&
         props->handleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        return CUDA_ERROR_NOT_SUPPORTED;
    CHECK_DEVICE(props->location.id);
    CUresult code = pool_new(&p, props->location.id, props->handleTypes);
    if (code != CUDA_SUCCESS)
        return code;
    count_add(STANDIN_POOLS, 1);
    *ret = (CUmemoryPool)p;
    return CUDA_SUCCESS;
}

/* The pool's memory lives until the last allocation is freed. */
CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool handle)
{
    ENTER(cuMemPoolDestroy);
    struct pool *p = pool_of(handle);
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    p->is_destroyed = true;
    count_add(STANDIN_POOLS, -1);
    pool_free(p);
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
            !device_reaches(a->location.id, p->backing->device) ||
            (is_own && !p->is_imported && a->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
            return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; i++)
        p->access[access[i].location.id] = access[i].flags;
    return CUDA_SUCCESS;
}

/* The first place that is free, by offset; the capacity if there is none. Whole pages, as an
 * importer maps each allocation alone. */
static size_t find_place(const struct pool *p, size_t size)
{
    const struct range *r;
    size_t at = 0;
    bool moved = true;
    while (moved) {
        moved = false;
        LIST_FOREACH(r, &state.ranges, link)
        {
            size_t end = r->pool_offset + whole_pages(r->size);
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
    *ret = r->base;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *ret, size_t size, CUmemoryPool handle,
                                         CUstream stream)
{
    ENTER(cuMemAllocFromPoolAsync);
    FIND_STREAM(stream);
    struct pool *p = pool_of(handle);
    if (size == 0 || !p || p->is_imported)
        return CUDA_ERROR_INVALID_VALUE;
    return pool_alloc(p, size, ret);
}

CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    ENTER(cuMemFreeAsync);
    FIND_STREAM(stream);
    struct range *r = range_find(address);
    if (!r || r->base != address || r->is_freeing ||
        (r->kind != RANGE_POOL && r->kind != RANGE_POOL_IMPORT))
        return CUDA_ERROR_INVALID_VALUE;
    struct op *op = op_new(OP_FREE);
    if (op)
        op->range = r;
    bool is_captured = s->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    CUresult code = stream_enqueue(s, op);
    r->is_freeing = code == CUDA_SUCCESS && !is_captured;
    return code;
}

CUresult CUDAAPI cuMemPoolExportToShareableHandle(void *ret, CUmemoryPool handle,
                                                  CUmemAllocationHandleType type,
                                                  unsigned long long flags)
{
    ENTER(cuMemPoolExportToShareableHandle);
    const struct pool *p = pool_of(handle);
    if (!p || p->is_imported)
        return CUDA_ERROR_INVALID_VALUE;
    return backing_export(p->backing, type, flags, ret);
}

CUresult CUDAAPI cuMemPoolImportFromShareableHandle(CUmemoryPool *ret, void *os_handle,
                                                    CUmemAllocationHandleType type,
                                                    unsigned long long flags)
{
    ENTER(cuMemPoolImportFromShareableHandle);
    struct label label;
    int device, fd = (int)(intptr_t)os_handle;
    if (flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
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
    if (!r || r->kind != RANGE_POOL || r->base != address || r->is_freeing ||
        r->backing->prop.requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult code = share_publish(r, r->pool->id, ret);
    /* Two exports of one pointer differ, as nothing promises that they do not. */
    static unsigned n_exports;
    ret->reserved[sizeof ret->reserved - 1] = (unsigned char)++n_exports;
    return code;
}

/* An import of a pointer that is imported already is not counted: the first one that is freed ends
 * all of them. */
static struct range *imported_before(const struct share_name *name)
{
    struct range *r;
    LIST_FIND(r, &state.ranges, r->kind == RANGE_POOL_IMPORT && r->share_id == name->id);
    return r;
}

CUresult CUDAAPI cuMemPoolImportPointer(CUdeviceptr *ret, CUmemoryPool handle,
                                        CUmemPoolPtrExportData *data)
{
    ENTER(cuMemPoolImportPointer);
    struct pool *p = pool_of(handle);
    struct share share;
    struct share_name name;
    if (!data || !p || !p->is_imported)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult code = share_import(data, p->id, &share, &name);
    if (code != CUDA_SUCCESS)
        return code;
    struct range *r = imported_before(&name);
    if (r) {
        share_close(name.id, name.slot);
        *ret = r->base;
        return CUDA_SUCCESS;
    }
    r = range_new(RANGE_POOL_IMPORT, 0, share.size, p->backing->fd, share.offset);
    if (!r) {
        share_close(name.id, name.slot);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    r->pool = p;
    r->device = p->backing->device;
    r->backing = backing_ref(p->backing);
    r->share = name.slot;
    r->share_id = name.id;
    p->n_live++;
    *ret = r->base;
    return CUDA_SUCCESS;
}
