/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in driver's streams, events, captures and kernels, and what tests can make them do. */
#include "tests/gpu/harness_gpu.h"

#if DLX_TEST_HAS_GPU
#include <semaphore.h>
#include <stdatomic.h>

static CUstream a, b;
static CUdeviceptr memory;

/* All tests use two streams and some memory. */
static void start_streams(void)
{
    (void)dlx_test_gpu_context(0);
    CU_OK(cu.cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    CU_OK(cu.cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    CU_OK(cu.cuMemAlloc(&memory, 4096));
    CU_OK(cu.cuMemsetD32(memory, 0, 1024));
    CU_OK(cu.cuCtxSynchronize());
}

static uint64_t word_at(CUdeviceptr p)
{
    uint64_t value = 0;
    CU_OK(cu.cuMemcpyDtoH(&value, p, sizeof value));
    return value;
}

/* A stream that wrongly does not wait would be done within this time. */
static void stays_busy(CUstream stream)
{
    for (uint64_t end = dlx__now_ns() + UINT64_C(20000000); dlx__now_ns() < end;)
        CU_FAILS(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
}

/* A kernel that says that it runs, and runs until it is let go; then it stores a word. */
struct gate {
    sem_t runs, may_end;
    CUdeviceptr address;
    uint64_t value;
};

static void gate_kernel(void *arg)
{
    struct gate *gate = arg;
    uint64_t *word = standin.standin_store(gate->address, sizeof *word);
    (void)sem_post(&gate->runs);
    (void)sem_wait(&gate->may_end);
    if (word)
        *word = gate->value;
}

static void run_gate(struct gate *gate, CUstream stream, CUdeviceptr address, uint64_t value)
{
    *gate = (struct gate){.address = address, .value = value};
    ck_assert_int_eq(sem_init(&gate->runs, 0, 0), 0);
    ck_assert_int_eq(sem_init(&gate->may_end, 0, 0), 0);
    CU_OK(standin.standin_launch(stream, gate_kernel, gate));
    ck_assert_int_eq(sem_wait(&gate->runs), 0);
}

static void open_gate(struct gate *gate)
{
    ck_assert_int_eq(sem_post(&gate->may_end), 0);
}

TEST(streams_run_on_their_own)
{
    struct gate gate;
    run_gate(&gate, a, memory, 7);
    stays_busy(a);
    CU_OK(cu.cuStreamWriteValue64(b, memory + 8, 1, 0));
    CU_OK(cu.cuStreamSynchronize(b)); /* while a still runs */
    stays_busy(a);
    open_gate(&gate);
    CU_OK(cu.cuStreamSynchronize(a));
    CU_OK(cu.cuStreamQuery(a));
    ck_assert_uint_eq(word_at(memory), 7);
}

TEST(the_legacy_stream_and_blocking_ones_wait)
{
    struct gate gate;
    CUstream blocking;
    CU_OK(cu.cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    run_gate(&gate, blocking, memory, 7);
    CU_OK(cu.cuMemcpyDtoDAsync(memory + 8, memory, 8, NULL));
    stays_busy(NULL);
    open_gate(&gate);
    CU_OK(cu.cuStreamSynchronize(NULL));
    ck_assert_uint_eq(word_at(memory + 8), 7);

    run_gate(&gate, NULL, memory, 8); /* and they wait for it */
    CU_OK(cu.cuStreamWriteValue64(blocking, memory + 16, 1, 0));
    stays_busy(blocking);
    CU_OK(cu.cuStreamWriteValue64(a, memory + 16, 1, 0));
    CU_OK(cu.cuStreamSynchronize(a)); /* those that do not block do not */
    open_gate(&gate);
    CU_OK(cu.cuStreamSynchronize(blocking));
    CU_OK(cu.cuStreamDestroy(blocking));
}

TEST(a_stream_that_is_destroyed_ends_its_work)
{
    struct gate gate;
    run_gate(&gate, a, memory, 9);
    CU_OK(cu.cuStreamDestroy(a));
    CU_FAILS(cu.cuStreamQuery(a), CUDA_ERROR_INVALID_HANDLE);
    open_gate(&gate);
    CU_OK(cu.cuCtxSynchronize());
    ck_assert_uint_eq(word_at(memory), 9);
}

TEST(copies_from_pageable_memory_are_staged)
{
    struct gate gate;
    uint64_t value = 5;
    run_gate(&gate, a, memory, 1);
    CU_OK(cu.cuMemcpyHtoDAsync(memory + 8, &value, sizeof value, a));
    value = 6;
    open_gate(&gate);
    CU_OK(cu.cuStreamSynchronize(a));
    ck_assert_uint_eq(word_at(memory + 8), 5);
}

static void store_out_of_range(void *arg)
{
    (void)arg;
    ck_assert_ptr_null(standin.standin_store(memory + 4000, 200));
}

TEST(a_kernel_past_the_end_of_memory)
{
    CU_OK(standin.standin_launch(a, store_out_of_range, NULL));
    CU_FAILS(cu.cuStreamSynchronize(a), CUDA_ERROR_ILLEGAL_ADDRESS);
    CU_FAILS(cu.cuStreamSynchronize(b), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST(unmapping_does_not_wait_and_is_noticed)
{
    struct gate gate;
    CUmemGenericAllocationHandle handle = dlx_test_gpu_create(DLX_TEST_GPU_CHUNK);
    CUdeviceptr p =
        dlx_test_gpu_map(handle, DLX_TEST_GPU_CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    run_gate(&gate, a, p, 1);
    CU_OK(cu.cuMemUnmap(p, DLX_TEST_GPU_CHUNK)); /* the kernel still runs */
    ck_assert_uint_eq(standin.standin_count(STANDIN_UNMAPPED_IN_USE), 1);
    open_gate(&gate);
    CU_OK(cu.cuStreamSynchronize(a));
    CU_OK(cu.cuMemsetD32Async(memory, 0, 1, a));
    CU_FAILS(cu.cuMemsetD32Async(p, 0, 1, a), CUDA_ERROR_INVALID_VALUE);
    CU_OK(cu.cuMemAddressFree(p, DLX_TEST_GPU_CHUNK));
    CU_OK(cu.cuMemRelease(handle));
}

TEST(waits_compare_cyclically)
{
    const uint64_t last = UINT64_MAX;
    CU_OK(cu.cuStreamWaitValue64(a, memory, last - 1, CU_STREAM_WAIT_VALUE_EQ));
    CU_OK(cu.cuStreamWaitValue64(b, memory, 1, CU_STREAM_WAIT_VALUE_GEQ));
    CU_OK(cu.cuStreamWriteValue64(NULL, memory, last, 0)); /* 2 before 1 */
    CU_OK(cu.cuStreamSynchronize(NULL));
    stays_busy(b);
    CU_OK(cu.cuStreamWriteValue64(NULL, memory, 3, 0));
    CU_OK(cu.cuStreamSynchronize(b));
    stays_busy(a);
    CU_OK(cu.cuStreamWriteValue64(NULL, memory, last - 1, 0));
    CU_OK(cu.cuStreamSynchronize(a));
    CU_FAILS(cu.cuStreamWaitValue64(a, memory + 4, 1, 0), CUDA_ERROR_INVALID_VALUE);
    CU_FAILS(cu.cuStreamWriteValue64(a, 64, 1, 0), CUDA_ERROR_INVALID_VALUE);
    CU_OK(cu.cuStreamWaitValue32(b, memory + 4, 1, CU_STREAM_WAIT_VALUE_AND));
    CU_OK(cu.cuStreamWriteValue64(a, memory, UINT64_C(3) << 32, 0));
    CU_OK(cu.cuCtxSynchronize());
}

TEST(a_wait_without_a_writer_hangs_until_the_context_fails)
{
    CU_OK(cu.cuStreamWaitValue64(a, memory, 1, CU_STREAM_WAIT_VALUE_GEQ));
    stays_busy(a);
    CU_OK(standin.standin_poison(CUDA_ERROR_LAUNCH_FAILED));
    CU_FAILS(cu.cuStreamSynchronize(a), CUDA_ERROR_LAUNCH_FAILED);
}

TEST(events_order_streams)
{
    struct gate gate;
    CUevent event;
    CU_OK(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU_OK(cu.cuEventQuery(event)); /* never recorded */
    CU_OK(cu.cuStreamWaitEvent(b, event, 0));
    CU_OK(cu.cuStreamSynchronize(b));
    run_gate(&gate, a, memory, 3);
    CU_OK(cu.cuEventRecord(event, a));
    CU_FAILS(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
    CU_OK(cu.cuStreamWaitEvent(b, event, 0));
    CU_OK(cu.cuMemcpyDtoDAsync(memory + 8, memory, 8, b));
    CU_OK(cu.cuEventDestroy(event)); /* what waits for it still waits */
    CU_FAILS(cu.cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
    stays_busy(b);
    open_gate(&gate);
    CU_OK(cu.cuStreamSynchronize(b));
    ck_assert_uint_eq(word_at(memory + 8), 3);
}

static _Atomic int n_ran;
static _Atomic int code_in_callback;

static void host_function(void *arg)
{
    CUcontext context;
    (void)arg;
    atomic_store(&code_in_callback, (int)cu.cuCtxGetCurrent(&context));
    atomic_fetch_add(&n_ran, 1);
}

TEST(host_functions_may_not_call_the_driver)
{
    CU_OK(cu.cuLaunchHostFunc(a, host_function, NULL));
    CU_OK(cu.cuStreamSynchronize(a));
    ck_assert_int_eq(n_ran, 1);
    ck_assert_int_eq(code_in_callback, CUDA_ERROR_NOT_PERMITTED);
    ck_assert_uint_eq(standin.standin_count(STANDIN_CALLS_IN_CALLBACK), 1);
}

TEST(host_functions_do_not_run_after_an_error)
{
    struct gate gate;
    run_gate(&gate, a, memory, 1);
    CU_OK(cu.cuLaunchHostFunc(a, host_function, NULL));
    CU_OK(standin.standin_poison(CUDA_ERROR_ILLEGAL_ADDRESS));
    open_gate(&gate);
    CU_FAILS(cu.cuStreamSynchronize(a), CUDA_ERROR_ILLEGAL_ADDRESS);
    CU_OK(cu.cuDevicePrimaryCtxRelease(0)); /* waits for the streams' threads */
    ck_assert_int_eq(n_ran, 0);
    (void)dlx_test_gpu_context(0);
}

static CUstreamCaptureStatus capture_of(CUstream stream)
{
    CUstreamCaptureStatus status;
    CU_OK(cu.cuStreamIsCapturing(stream, &status));
    return status;
}

TEST(captured_work_does_not_run)
{
    CUgraph graph;
    CU_FAILS(cu.cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL),
             CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CU_OK(cu.cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU_FAILS(cu.cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_ERROR_ILLEGAL_STATE);
    ck_assert_int_eq(capture_of(a), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    ck_assert_int_eq(capture_of(b), CU_STREAM_CAPTURE_STATUS_NONE);
    CU_OK(cu.cuStreamWriteValue64(a, memory, 1, 0));
    CU_OK(cu.cuStreamEndCapture(a, &graph));
    ck_assert_ptr_nonnull(graph);
    CU_OK(cu.cuGraphDestroy(graph));
    CU_OK(cu.cuStreamSynchronize(a));
    ck_assert_uint_eq(word_at(memory), 0);
    ck_assert_uint_eq(standin.standin_count(STANDIN_CAPTURES_BROKEN), 0);
}

static void capture_is_broken(CUstream stream)
{
    CUgraph graph;
    ck_assert_int_eq(capture_of(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    CU_FAILS(cu.cuStreamWriteValue64(stream, memory, 1, 0), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CU_FAILS(cu.cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    ck_assert_ptr_null(graph);
    CU_OK(cu.cuStreamSynchronize(stream));
}

TEST(waiting_breaks_a_capture)
{
    CUevent event;
    CUstream blocking;
    CU_OK(cu.cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU_FAILS(cu.cuStreamSynchronize(a), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    capture_is_broken(a);
    CU_OK(cu.cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU_FAILS(cu.cuStreamQuery(a), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    capture_is_broken(a);

    CU_OK(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU_OK(cu.cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU_OK(cu.cuEventRecord(event, a));
    CU_FAILS(cu.cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
    capture_is_broken(a);
    CU_OK(cu.cuEventQuery(event));
    CU_OK(cu.cuEventDestroy(event));

    CU_OK(cu.cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    CU_OK(cu.cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU_FAILS(cu.cuMemsetD32(memory, 0, 2), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    capture_is_broken(blocking);
    CU_OK(cu.cuStreamDestroy(blocking));
    ck_assert_uint_eq(standin.standin_count(STANDIN_CAPTURES_BROKEN), 4);
}

TEST(unsafe_calls_break_a_global_capture)
{
    CUdeviceptr p;
    CUgraph graph;
    CU_OK(cu.cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU_FAILS(cu.cuMemAlloc(&p, 8), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    capture_is_broken(a);
    CU_OK(cu.cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CU_OK(cu.cuThreadExchangeStreamCaptureMode(&mode));
    CU_OK(cu.cuMemAlloc(&p, 8));
    CU_OK(cu.cuThreadExchangeStreamCaptureMode(&mode));
    CU_OK(cu.cuStreamEndCapture(a, &graph));
    CU_OK(cu.cuGraphDestroy(graph));
    CU_OK(cu.cuMemFree(p));
}

TEST(calls_fail_on_demand)
{
    CUdeviceptr p[4];
    ck_assert(!standin.standin_fail("cuNothing", 1, 1, CUDA_ERROR_UNKNOWN));
    ck_assert(standin.standin_fail("cuMemAlloc", 2, 2, CUDA_ERROR_OUT_OF_MEMORY));
    CU_OK(cu.cuMemAlloc(&p[0], 8));
    CU_FAILS(cu.cuMemAlloc(&p[1], 8), CUDA_ERROR_OUT_OF_MEMORY);
    CU_FAILS(cu.cuMemAlloc(&p[1], 8), CUDA_ERROR_OUT_OF_MEMORY);
    CU_OK(cu.cuMemAlloc(&p[1], 8));
    uint64_t before = standin.standin_calls("cuMemAlloc");
    ck_assert(standin.standin_fail(NULL, 3, 1, CUDA_ERROR_UNKNOWN));
    CU_OK(cu.cuMemAlloc(&p[2], 8));
    CU_OK(cu.cuMemFree(p[2]));
    CU_FAILS(cu.cuMemAlloc(&p[2], 8), CUDA_ERROR_UNKNOWN);
    ck_assert_uint_eq(standin.standin_calls("cuMemAlloc"), before + 2);
    ck_assert_uint_eq(standin.standin_fail_clear(), 3);
    ck_assert_uint_eq(standin.standin_fail_clear(), 0);
    CU_OK(cu.cuMemFree(p[0]));
    CU_OK(cu.cuMemFree(p[1]));
}

static void *get_count(void *unused)
{
    int n;
    CU_OK(cu.cuDeviceGetCount(&n));
    return unused;
}

TEST(calls_of_other_threads_do_not_count_as_calls_here)
{
    int n;
    pthread_t other;
    ck_assert(standin.standin_fail_here("cuDeviceGetCount", 2, CUDA_ERROR_UNKNOWN));
    CU_OK(cu.cuDeviceGetCount(&n));
    ck_assert_int_eq(pthread_create(&other, NULL, get_count, NULL), 0);
    ck_assert_int_eq(pthread_join(other, NULL), 0);
    CU_FAILS(cu.cuDeviceGetCount(&n), CUDA_ERROR_UNKNOWN);
    ck_assert_uint_eq(standin.standin_fail_clear(), 1);
}

TEST(calls_are_delayed_on_demand)
{
    int n;
    const uint64_t delay_ns = 30000000;
    uint64_t before = dlx__now_ns();
    ck_assert(standin.standin_delay("cuDeviceGetCount", delay_ns));
    CU_OK(cu.cuDeviceGetCount(&n));
    ck_assert_uint_ge(dlx__now_ns() - before, delay_ns);
}

TEST(waiting_calls_are_counted)
{
    uint64_t before = standin.standin_count(STANDIN_SYNC_CALLS);
    CU_OK(cu.cuStreamWriteValue64(a, memory, 1, 0));
    CU_OK(cu.cuStreamQuery(b));
    ck_assert_uint_eq(standin.standin_count(STANDIN_SYNC_CALLS), before);
    CU_OK(cu.cuStreamSynchronize(a));
    (void)word_at(memory);
    ck_assert_uint_eq(standin.standin_count(STANDIN_SYNC_CALLS), before + 2);
}

int main(void)
{
    TCase *tests = dlx_test_gpu_standin_case("streams");
    tcase_add_checked_fixture(tests, start_streams, NULL);
    return dlx_test_run_case(tests);
}

#else
DLX_TEST_GPU_SKIP_MAIN("the stand-in for NVIDIA's driver was not built")
#endif
