/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpu/gpu.h"
#include "client/base/args.h"
#include "client/base/fork.h"
#include "common/error.h"
#include "gpu_build.h"
#include "ring/tensor.h"
#include <dlx/gpu.h>
#include <string.h>

_Static_assert(sizeof DLX_GPU_BUILD <= DLX_GPU_BUILD_SIZE, "the name of a build");

#pragma weak dlx__gpu_find

int (*dlx__gpu_finder)(const struct dlx_gpu_library **ret) = dlx__gpu_find;
const struct dlx_gpu_library *_Atomic dlx__gpu_loaded;

/* No lock, so that a fork by another thread leaves none that is taken: threads that find the
 * library at the same time find the same one. */
int dlx__gpu_load(void)
{
    const struct dlx_gpu_library *library = NULL;
    if (atomic_load_explicit(&dlx__gpu_loaded, memory_order_acquire))
        return 0;
    int r = dlx__gpu_finder ? dlx__gpu_finder(&library)
                            : dlx__fail(DLX_E_DEVICE,
                                        "this program has libdlx without its part for GPUs: link "
                                        "it with libdlx-gpu.a, too (pkg-config --static dlx-gpu)");
    if (r == 0)
        atomic_store_explicit(&dlx__gpu_loaded, library, memory_order_release);
    return r;
}

int dlx__gpu_load_for(DLDevice device)
{
    if (dlx__device_is_gpu((int32_t)device.device_type))
        return dlx__gpu_load();
    return dlx__fail(
        DLX_E_DEVICE,
        "device type %d is no GPU that can be shared: only CUDA (%d) and ROCm (%d) are, "
        "copy others to the CPU",
        (int)device.device_type, kDLCUDA, kDLROCM);
}

int dlx__gpu_check(const struct dlx_gpu_library *library, const char *name)
{
    if (strncmp(library->build, DLX_GPU_BUILD, sizeof library->build) != 0)
        return dlx__fail(DLX_E_DEVICE,
                         "%s is of build %.*s, and this libdlx of build %s: install both of one "
                         "release (Debian: libdlx0 and libdlx0-gpu), and restart the program",
                         name, DLX_GPU_BUILD_SIZE - 1, library->build, DLX_GPU_BUILD);
    if (library->core != dlx__gpu_check)
        return dlx__fail(DLX_E_DEVICE,
                         "%s calls another libdlx of this process than the one that loads it: a "
                         "program may have only one, shared or static",
                         name);
    return 0;
}

/* ---- memory of CUDA, in the form in which libraries call an allocator that they are given ---- */

void *dlx_cuda_malloc(size_t size, int device, void *stream)
{
    void *memory = NULL;
    (void)stream; /* the memory is ready on every stream */
    int r = dlx__gpu_load();
    if (r == 0)
        r = atomic_load_explicit(&dlx__gpu_loaded, memory_order_acquire)
                ->malloc(kDLCUDA, device, size, &memory);
    return r == 0 ? memory : NULL;
}

void dlx_cuda_free(void *memory, size_t size, int device, void *stream)
{
    const struct dlx_gpu_library *library =
        atomic_load_explicit(&dlx__gpu_loaded, memory_order_acquire);
    (void)size;
    (void)device;
    (void)stream; /* other streams may use the memory: all of the GPU is waited for */
    if (library)  /* else nothing was allocated */
        library->free(memory);
    dlx__error_clear();
}

int dlx_gpu_trim(uint64_t *ret)
{
    const struct dlx_gpu_library *library =
        atomic_load_explicit(&dlx__gpu_loaded, memory_order_acquire);
    uint64_t bytes = 0;
    dlx__error_clear();
    int r = library ? library->trim(&bytes) : 0; /* not loaded: nothing is open */
    if (r == 0 && ret)
        *ret = bytes;
    return r;
}

/* ---- ranges ---------------------------------------------------------------------------------- */

int dlx_gpu_range_new(struct dlx_gpu_range **ret)
{
    uint64_t generation;
    dlx__error_clear();
    if (!ret)
        return DLX_NAME_NULL(0, "dlx_gpu_range_new", {"ret", ret});
    int r = dlx__fork_init(&generation);
    if (r == 0)
        r = dlx__gpu_load();
    return r < 0 ? r
                 : atomic_load_explicit(&dlx__gpu_loaded, memory_order_acquire)
                       ->range_new(generation, ret);
}

struct dlx_gpu_range *dlx_gpu_range_unref(struct dlx_gpu_range *range)
{
    if (range)
        atomic_load_explicit(&dlx__gpu_loaded, memory_order_acquire)->range_unref(range);
    return NULL;
}
