/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_GPU_BENCH_H
#define DLX_TESTS_GPU_BENCH_H

/*
 * The measurements of `make bench-gpu`: each --what once, one JSON object. bench/run-gpu
 * alternates, repeats and compares. The program is in tests/ for the driver's loader and the
 * kernels of the harness.
 */

#include "bench/measure_dlx.h"
#include "tests/gpu/harness_gpu_driver.h"
#include "tests/gpu/harness_gpu_kernel.h"
#include <dlpack/dlpack.h>

/* Ends the program, naming the call, if it failed. */
void gpu_bench_check(CUresult result, const char *call);
#define DRIVER(call) gpu_bench_check((call), #call)

/* bm_fork(), for a child that uses the harness: see tests/harness/fork.h. */
pid_t gpu_bench_fork(void);

/* cuInit, and a context of device 0 that is current. */
void gpu_bench_context(void);
CUstream gpu_bench_stream(void);

/* A tensor of bytes at an address; its deleter does nothing: the caller keeps the memory. */
struct gpu_bench_tensor {
    DLManagedTensorVersioned tensor;
    int64_t shape[1], strides[1];
};
void gpu_bench_tensor_init(struct gpu_bench_tensor *ret, CUdeviceptr at, size_t size);

/* dlx_alloc() of bytes on GPU 0; ends the program with the library's text while it cannot. */
DLManagedTensorVersioned *gpu_bench_alloc(struct dlx_publisher *p, size_t size);
void gpu_bench_alloc_set(struct dlx_publisher *p, uint32_t n, size_t size,
                         DLManagedTensorVersioned **ret);

/* A publisher and a subscriber, in two processes, each with this `max_held` (0: the default). */
struct gpu_bench_end {
    struct dlx_client *client;
    struct dlx_publisher *p;
    struct dlx_subscription *s;
};
void gpu_bench_publisher(struct gpu_bench_end *ret, const char *topic, uint32_t max_held,
                         struct bm_meeting *meeting);
void gpu_bench_subscriber(struct gpu_bench_end *ret, const char *topic, uint32_t max_held,
                          struct bm_meeting *meeting);
void gpu_bench_end(struct gpu_bench_end *end);

/* The next message; NULL: there is none, and the run is over. */
struct dlx_message *gpu_bench_take(struct dlx_subscription *s, _Atomic bool *is_over);

/* Until `word` is at least `value`; 60 s at most. */
void gpu_bench_await(_Atomic uint64_t *word, uint64_t value);

void gpu_bench_handoff(void);
void gpu_bench_statedict(void);
void gpu_bench_steps(void);
void gpu_bench_pipeline(void);
void gpu_bench_beside(void);
void gpu_bench_weights(void);
void gpu_bench_reuse(void);
void gpu_bench_crashes(void);
void gpu_bench_footprint(void);
void gpu_bench_kills(void);
void gpu_bench_threads(void);

#endif
