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

/*
 * Runs for `ns`, and counts up in the word at `at` meanwhile, unless that is 0. Under a
 * sanitizer or valgrind, which slow down the caller that looks whether the kernel still runs, the
 * kernel runs four times as long.
 */
void dlx_test_gpu_spin(CUstream stream, CUdeviceptr at, uint64_t ns);

/*
 * A fixed amount of work, however long it takes: `n_steps` steps of each thread of `n_blocks`
 * blocks. `stamps` is memory of the GPU, for the times of its own clock at which the first thread
 * began and the last one ended; several kernels may have the same.
 */
struct dlx_test_gpu_stamps {
    uint64_t begin_ns; /* before: DLX_TEST_GPU_NO_BEGIN */
    uint64_t end_ns;   /* before: 0 */
    uint64_t unused;
};
#define DLX_TEST_GPU_NO_BEGIN     UINT64_MAX
#define DLX_TEST_GPU_WORK_THREADS 256 /* of a block */
void dlx_test_gpu_work(CUstream stream, uint32_t n_blocks, uint64_t n_steps, CUdeviceptr stamps);

/* Word i of `n` becomes dlx_test_gpu_pattern(i, seed). */
void dlx_test_gpu_store(CUstream stream, CUdeviceptr at, uint64_t n, uint32_t seed);
static inline uint32_t dlx_test_gpu_pattern(uint64_t i, uint32_t seed)
{
    return (uint32_t)i * UINT32_C(0x9E3779B1) ^ seed;
}

/* Adds to the u64 at `result` how many of these words are others. */
void dlx_test_gpu_compare(CUstream stream, CUdeviceptr at, uint64_t n, uint32_t seed,
                          CUdeviceptr result);

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
