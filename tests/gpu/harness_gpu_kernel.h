/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_GPU_KERNEL_H
#define DLX_TESTS_HARNESS_GPU_KERNEL_H

/*
 * Kernels of tests: PTX on NVIDIA's driver, which compiles it itself; C functions on the stand-in,
 * which runs no PTX. Each is enqueued on a stream of the current context.
 */

#include "tests/gpu/harness_gpu.h"

#if DLX_TEST_HAS_GPU

/* Does the driver that was loaded compile PTX? */
bool dlx_test_gpu_has_ptx(void);

/* Compiles them for the current context: else the first launch does that, for some milliseconds. */
void dlx_test_gpu_kernels_load(void);

/* Runs for `ns`, and counts up in the word at `at` meanwhile, unless that is 0. */
void dlx_test_gpu_spin(CUstream stream, CUdeviceptr at, uint64_t ns);

/* Word i of `n` becomes dlx_test_gpu_pattern(i, seed). */
void dlx_test_gpu_store(CUstream stream, CUdeviceptr at, uint64_t n, uint32_t seed);
static inline uint32_t dlx_test_gpu_pattern(uint64_t i, uint32_t seed)
{
    return (uint32_t)i * UINT32_C(0x9E3779B1) ^ seed;
}

/* How many of `n` words have this value: word i is in row i / columns, and strides are in words. */
#define DLX_TEST_GPU_LOOK_MAX 64 /* words: a kernel of the stand-in loads no more */
struct dlx_test_gpu_view_of {
    CUdeviceptr at;
    uint64_t n, columns;
    int64_t row_stride, column_stride;
};
uint64_t dlx_test_gpu_look(const struct dlx_test_gpu_view_of *view, uint32_t value);

#endif

#endif
