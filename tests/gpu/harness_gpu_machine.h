/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_GPU_MACHINE_H
#define DLX_TESTS_HARNESS_GPU_MACHINE_H

/*
 * A machine with GPUs, one of the stand-in driver for each test unless DLX_TEST_GPU_DRIVER is set,
 * and memory on it as frameworks allocate it. Anything that a test leaves there, in descriptors or
 * in the driver, fails it.
 */

#include "tests/gpu/harness_gpu_driver.h"
#include "tests/gpu/harness_gpu_kernel.h"
#include "tests/gpu/harness_gpu_peer.h"

#if DLX_TEST_HAS_GPU

#define DLX_TEST_GPU_MIB (UINT64_C(1) << 20)

/* A test case with these fixtures: two GPUs of 1 GiB of the stand-in, or those of the machine, of
 * which dlx_test_gpu_context() makes one usable by the test itself. */
TCase *dlx_test_gpu_case(const char *name);

/* How often this test's process frees memory that the stand-in counts as open in another one: 0.
 * The stand-in counts what a killed process had open, and what a lost context cannot close. */
extern uint64_t dlx_test_gpu_n_freed_open;
/* How many captures this test invalidates: 0. */
extern uint64_t dlx_test_gpu_n_captures_broken;

void dlx_test_gpu_fill(CUdeviceptr at, uint64_t size, uint32_t word);
uint32_t dlx_test_gpu_word(CUdeviceptr at);
/* The stream is still captured, and is not any more then. */
void dlx_test_gpu_end_capture(CUstream stream);

/* Mappings of cuMemCreate side by side at the start of a reservation, as an expandable segment. */
struct dlx_test_gpu_segment {
    CUdeviceptr base;
    uint64_t reserved;
    uint32_t n;
    uint64_t chunk_size;
    CUmemGenericAllocationHandle handles[1024];
};
void dlx_test_gpu_segment_make(struct dlx_test_gpu_segment *ret, uint32_t n, uint64_t chunk_size,
                               CUmemAllocationHandleType type);
/* Replace a chunk by another one. */
void dlx_test_gpu_segment_remap(struct dlx_test_gpu_segment *segment, uint32_t i);
void dlx_test_gpu_segment_free(struct dlx_test_gpu_segment *segment);

/* A pool, and an allocation of it. */
CUdeviceptr dlx_test_gpu_pool_make(uint64_t size, CUmemAllocationHandleType type,
                                   CUmemoryPool *ret_pool);
void dlx_test_gpu_pool_free(CUmemoryPool pool, CUdeviceptr at);

/* The objects in the driver now, open descriptors, the current context: equal before and after an
 * operation that undoes itself. */
struct dlx_test_gpu_state {
    CUcontext current;
    uint64_t counts[STANDIN_LAST_LIVE + 1]; /* of the stand-in */
    size_t n_fds;
    size_t n_free; /* memory, which the stand-in's counts make superfluous; 0: no context */
};
struct dlx_test_gpu_state dlx_test_gpu_state_now(void);
void dlx_test_gpu_state_check(const struct dlx_test_gpu_state *before);

/*
 * Call `fn` with each of its calls of the driver failing once: it is to return the error and leave
 * everything as it was, or 1 if it got there in another way. `undo` undoes what succeeds. Returns
 * how many calls failed.
 */
uint32_t dlx_test_gpu_fail_each(int (*fn)(void), void (*undo)(void));

#endif

#endif
