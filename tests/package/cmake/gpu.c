/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the part of the library for GPUs is there. */
#include <dlx/dlx.h>
#include <dlx/gpu.h>
#include <stdio.h>

int main(void)
{
    void *memory = dlx_cuda_malloc(1, 0, NULL);
    printf("%s\n", memory ? "memory" : dlx_errmsg());
    dlx_cuda_free(memory, 1, 0, NULL);
    return 0;
}
