/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/backend.h"
#include "common/error.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

int dlx__gpu_open_new(const struct dlx_gpu_ops *ops, const struct dlx_gpu_handle *handle,
                      int32_t device, struct dlx_gpu_memory *ret)
{
    struct dlx_gpu_memory memory;
    int r = ops->open(handle, device, device, DLX_GPU_READ_WRITE, NULL, &memory);
    if (r < 0)
        return r;
    r = ops->clear(&memory);
    if (r < 0)
        ops->close(&memory);
    else
        *ret = memory;
    return r;
}

int dlx__gpu_memory_pieces(struct dlx_gpu_memory *memory, uint32_t n)
{
    memory->pieces = calloc(n, sizeof *memory->pieces);
    if (!memory->pieces)
        return dlx__fail(DLX_E_NO_MEMORY, "no memory for %u chunks of GPU memory", n);
    memory->n_pieces = n;
    return 0;
}

static atomic_bool is_forked;
static pthread_once_t watch_once = PTHREAD_ONCE_INIT;

static void in_child(void)
{
    atomic_store_explicit(&is_forked, true, memory_order_relaxed);
}

static void watch(void)
{
    (void)pthread_atfork(NULL, NULL, in_child);
}

void dlx__gpu_watch_forks(void)
{
    (void)pthread_once(&watch_once, watch);
}

bool dlx__gpu_is_forked(void)
{
    return atomic_load_explicit(&is_forked, memory_order_relaxed);
}

int dlx__gpu_fail_forked(void)
{
    return dlx__fail(DLX_E_FORKED,
                     "a forked child cannot use the GPUs that its parent has used: fork before the "
                     "first use of a GPU, or start the child with exec (Python: the spawn method)");
}
