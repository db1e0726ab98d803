/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/lib/malloc.h"
#include "common/error.h"
#include "gpu/imports.h"
#include "gpu/lib/idle.h"
#include <inttypes.h>
#include <pthread.h>

struct allocation {
    struct dlx_gpu_idle idle; /* the first member */
    struct allocation *next;
    struct dlx_gpu_memory memory;
};

/* The allocations that are not freed. An allocator has few segments. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation *allocations;

static int allocate(const struct dlx_gpu_ops *ops, int32_t device, uint64_t size,
                    struct dlx_gpu_memory *ret)
{
    struct dlx_gpu_handle handle;
    int r = ops->create(device, size, &handle);
    if (r < 0)
        return r;
    r = dlx__gpu_open_new(ops, &handle, device, ret);
    dlx__gpu_handle_deinit(&handle);
    return r;
}

static int allocate_or_trim(int32_t device_type, int32_t device, uint64_t size,
                            struct dlx_gpu_memory *ret)
{
    const struct dlx_gpu_api *api = NULL;
    const struct dlx_gpu_ops *ops = NULL;
    uint64_t bytes = 0;
    if (size == 0 || size > INT64_MAX)
        return dlx__fail(DLX_E_INVALID, "an allocation of GPU memory cannot have %" PRIu64 " bytes",
                         size);
    int r = dlx__gpu_is_forked() ? dlx__gpu_fail_forked() : dlx__gpu_api(device_type, &api);
    if (r == 0)
        r = dlx__gpu_ops(api->own_kind, &ops);
    if (r == 0)
        r = allocate(ops, device, size, ret);
    if (r != DLX_E_NO_MEMORY || !ops || dlx__gpu_imports_trim(&bytes) < 0 || bytes == 0)
        return r;
    dlx__error_clear();
    return allocate(ops, device, size, ret);
}

int dlx__gpu_malloc(int32_t device_type, int32_t device, uint64_t size, void **ret)
{
    struct allocation *a = calloc(1, sizeof *a);
    if (!a)
        return dlx__fail(DLX_E_NO_MEMORY, "state of an allocation of GPU memory");
    int r = allocate_or_trim(device_type, device, size, &a->memory);
    /* An allocator's other GPUs use its segments, too. */
    if (r == 0 && a->memory.ops->allow_peers) {
        r = a->memory.ops->allow_peers(&a->memory);
        if (r < 0)
            a->memory.ops->close(&a->memory);
    }
    if (r < 0) {
        free(a);
        return r;
    }
    *ret = a->memory.base;
    (void)pthread_mutex_lock(&lock);
    a->next = allocations;
    allocations = a;
    (void)pthread_mutex_unlock(&lock);
    return 0;
}

static struct allocation *take_out(const void *memory)
{
    (void)pthread_mutex_lock(&lock);
    struct allocation **at = &allocations;
    while (*at && (*at)->memory.base != memory)
        at = &(*at)->next;
    struct allocation *a = *at;
    if (a)
        *at = a->next;
    (void)pthread_mutex_unlock(&lock);
    return a;
}

static void close_allocation(struct dlx_gpu_idle *idle, int result)
{
    struct allocation *a = (struct allocation *)(void *)idle;
    (void)result;
    a->memory.ops->close(&a->memory);
    free(a);
}

/* If no thread can be had where the driver does not wait, the memory stays until the process ends:
 * work may use it. */
void dlx__gpu_free(void *memory)
{
    struct allocation *a = memory && !dlx__gpu_is_forked() ? take_out(memory) : NULL;
    if (!a)
        return;
    const struct dlx_gpu_work work =
        dlx__gpu_work_now(a->memory.ops->device_type, a->memory.device);
    int r = dlx__gpu_work_wait(&work);
    if (dlx__gpu_has_ended(r))
        close_allocation(&a->idle, r);
    else
        (void)dlx__gpu_when_idle(&a->idle, &work, close_allocation);
    dlx__error_clear();
}
