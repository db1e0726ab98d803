/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_MALLOC_H
#define DLX_GPU_MALLOC_H

/*
 * Memory of GPUs by its address, for allocators of other libraries. It is of a kind that can be
 * exported, but no publisher knows of it before a tensor in it is published. Then it is exported
 * like memory of a framework (gpu/exports.h).
 *
 * Calls are safe from any thread.
 */

#include "gpu/gpu.h"

/*
 * At least `size` bytes, zeroed, that start an allocation of their own. If there is no memory, idle
 * imports are closed first. DLX_E_INVALID (0 bytes, or too many), DLX_E_NO_MEMORY, DLX_E_DEVICE,
 * DLX_E_FORKED, and what the driver fails with.
 */
int dlx__gpu_malloc(int32_t device_type, int32_t device, uint64_t size, void **ret);

/*
 * Unmap it, when all work of this process on its GPU is done; if the driver does not wait, as in a
 * host function, a thread unmaps it later (gpu/lib/idle.h). The memory itself stays for as long
 * as an export, a descriptor or another process has it. NULL, and what dlx__gpu_malloc() did not
 * return, are left alone, as is all memory in a forked child.
 */
void dlx__gpu_free(void *memory);

#endif
