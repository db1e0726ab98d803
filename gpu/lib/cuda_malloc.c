/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of CUDA in the form in which libraries call an allocator that they are given. */
#include "common/error.h"
#include "gpu/malloc.h"
#include <dlx/gpu.h>

void *dlx_cuda_malloc(size_t size, int device, void *stream)
{
    void *memory = NULL;
    (void)stream; /* it is ready on every stream */
    return dlx__gpu_malloc(kDLCUDA, device, size, &memory) == 0 ? memory : NULL;
}

void dlx_cuda_free(void *memory, size_t size, int device, void *stream)
{
    (void)size;
    (void)device;
    (void)stream; /* others may use it, too: all of the GPU is waited for */
    dlx__gpu_free(memory);
    dlx__error_clear();
}
