/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_GPU_ARENA_H
#define DLX_TESTS_HARNESS_GPU_ARENA_H

#include "gpu/backend.h"
#include "gpu/exports.h"

/* An arena as gpu/lib/arena.h makes it, in a process that is its own keeper. */
int dlx_test_gpu_arena(struct dlx_gpu_exports *exports, int32_t device_type, int32_t device,
                       uint64_t size, struct dlx_gpu_export **ret);

#endif
