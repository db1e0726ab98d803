/* SPDX-License-Identifier: Apache-2.0 */
/* Waits for the GPU that the driver refuses: in host functions, while a stream is captured, and
 * without memory. The work goes on, so no memory is used again before it has ended. */
#include "tests/gpu/harness_gpu_stream.h"

#if DLX_TEST_HAS_GPU
#include <dlx/gpu.h>

#define N       16
#define WORK_NS UINT64_C(300000000) /* so long that what does not wait is seen */

/* The next waits for all work on the GPU fail, and those that follow do not. */
static void refuse_waits(void)
{
    ck_assert(standin.standin_fail("cuCtxSynchronize", 1, 3, CUDA_ERROR_OUT_OF_MEMORY));
}

static void CUDA_CB delete_tensor(void *arg)
{
    DLManagedTensorVersioned *t = arg;
    t->deleter(t);
}

static DLManagedTensorVersioned *take_one(struct dlx_test_gpu_end *x)
{
    ok(dlx_publish(x->p, dlx_test_gpu_alloc(x->p, N, 7), NULL, NULL));
    return dlx_test_gpu_take_tensor(x);
}

/* It is held, and released when the work is done. */
static void check_released_late(struct dlx_test_gpu_end *x, CUstream stream)
{
    dlx_test_gpu_wait_held(x->s, 0);
    CU_OK(cu.cuStreamQuery(stream));
    ck_assert_uint_eq(dlx_test_gpu_stats(x).gpu_errors, 0);
}

GPU_TEST(a_tensor_that_is_deleted_in_a_host_function_is_held_until_its_work_is_done, 0)
{
    auto_gpu_end x = dlx_test_gpu_both(NULL);
    CUstream stream = dlx_test_gpu_stream(), other = dlx_test_gpu_stream();
    DLManagedTensorVersioned *t = take_one(&x);
    dlx_test_gpu_spin(stream, 0, WORK_NS);
    CU_OK(cu.cuLaunchHostFunc(other, delete_tensor, t));
    dlx_test_gpu_sync(other);
    ck_assert_uint_eq(dlx_test_gpu_stats(&x).n_held, 1);
    check_released_late(&x, stream);
}

GPU_TEST(a_tensor_that_is_deleted_during_a_capture_is_held_until_its_work_is_done, 0)
{
    auto_gpu_end x = dlx_test_gpu_both(NULL);
    CUgraph graph;
    CUstream stream = dlx_test_gpu_stream(), captured = dlx_test_gpu_stream();
    DLManagedTensorVersioned *t = take_one(&x);
    dlx_test_gpu_spin(stream, 0, WORK_NS);
    CU_OK(cu.cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
    t->deleter(t);
    ck_assert_uint_eq(dlx_test_gpu_stats(&x).n_held, 1);
    CU_FAILS(cu.cuStreamEndCapture(captured, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    dlx_test_gpu_n_captures_broken = 1;
    check_released_late(&x, stream);
}

/* 0: with the tensor's stream named; 1: without one. */
GPU_LOOP_TEST(a_release_that_the_driver_does_not_wait_for_is_tried_again, 0, 2,
              DLX_TEST_GPU_FAILURES)
{
    auto_gpu_end x = dlx_test_gpu_both(NULL);
    CUstream stream = dlx_test_gpu_stream();
    DLManagedTensorVersioned *t = take_one(&x);
    if (_i == 0)
        ok(dlx_tensor_used_on(t, stream));
    dlx_test_gpu_spin(stream, 0, WORK_NS);
    refuse_waits();
    ck_assert(
        standin.standin_fail(dlx_test_gpu_is_hip() ? "cuStreamSynchronize" : "cuEventSynchronize",
                             1, 3, CUDA_ERROR_OUT_OF_MEMORY));
    t->deleter(t);
    ck_assert_uint_eq(dlx_test_gpu_stats(&x).n_held, 1);
    check_released_late(&x, stream);
    ck_assert_uint_ge(standin.standin_fail_clear(), 3);
}

/* No end of a subscription waits for a driver that does not wait. */
GPU_TEST(a_release_that_is_tried_again_outlives_its_subscription, DLX_TEST_GPU_FAILURES)
{
    auto_gpu_end x = dlx_test_gpu_both(NULL);
    CUstream stream = dlx_test_gpu_stream();
    DLManagedTensorVersioned *t = take_one(&x);
    dlx_test_gpu_spin(stream, 0, WORK_NS);
    ck_assert(standin.standin_fail("cuCtxSynchronize", 1, UINT64_MAX, CUDA_ERROR_OUT_OF_MEMORY));
    t->deleter(t);
    x.s = dlx_subscription_unref(x.s);
    CU_FAILS(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    standin.standin_fail_clear();
}

GPU_TEST(a_message_whose_event_is_not_waited_for_at_once_is_ready_when_it_is_written,
         DLX_TEST_GPU_FAILURES | DLX_TEST_GPU_EVENTS)
{
    auto_gpu_end x = dlx_test_gpu_both(NULL);
    CUstream stream = dlx_test_gpu_stream();
    DLManagedTensorVersioned *t = dlx_test_gpu_alloc(x.p, N, 0);
    dlx_test_gpu_spin(stream, 0, WORK_NS);
    CU_OK(cu.cuMemsetD32Async(dlx_test_gpu_address(t), 7, N, stream));
    ck_assert(standin.standin_fail("cuEventSynchronize", 1, 3, CUDA_ERROR_OUT_OF_MEMORY));
    ok(dlx_publish(x.p, t, PUBLISH(.stream = stream), NULL));
    dlx_test_gpu_expect(&x, 0, N, 7);
    ck_assert_uint_eq(standin.standin_fail_clear(), 3);
}

GPU_TEST(memory_of_dlx_cuda_free_stays_until_its_work_is_done,
         DLX_TEST_GPU_FAILURES | DLX_TEST_GPU_MALLOC)
{
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    CUstream stream = dlx_test_gpu_stream();
    void *memory = dlx_cuda_malloc(N, 0, NULL);
    ck_assert_ptr_nonnull(memory);
    dlx_test_gpu_spin(stream, (CUdeviceptr)(uintptr_t)memory, WORK_NS);
    refuse_waits();
    dlx_cuda_free(memory, N, 0, NULL);
    dlx_test_gpu_check_count(STANDIN_MAPPINGS, 1);
    eventually(standin.standin_count(STANDIN_MAPPINGS) == 0);
    CU_OK(cu.cuStreamQuery(stream));
    ck_assert_uint_eq(standin.standin_fail_clear(), 3);
}

/* 0: the tensor was deleted; 1: its arena goes, too, with its publisher. */
GPU_LOOP_TEST(memory_of_a_deleted_tensor_stays_until_its_work_is_done, 0, 2, DLX_TEST_GPU_FAILURES)
{
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    CUstream stream = dlx_test_gpu_stream();
    DLManagedTensorVersioned *t = dlx_test_gpu_alloc_empty(x.p, N);
    CUdeviceptr at = dlx_test_gpu_address(t);
    dlx_test_gpu_spin(stream, at, WORK_NS);
    refuse_waits();
    t->deleter(t);
    if (_i == 0) {
        t = dlx_test_gpu_alloc_empty(x.p, N);
        if (dlx_test_gpu_address(t) == at)
            CU_OK(cu.cuStreamQuery(stream));
        ck_assert_uint_eq(dlx_test_stream_stats(x.p).gpu_waits, 1);
        t->deleter(t);
    } else {
        x.p = dlx_publisher_unref(x.p);
        eventually(standin.standin_count(STANDIN_HANDLES) == 0);
        CU_OK(cu.cuStreamQuery(stream));
    }
    ck_assert_uint_eq(standin.standin_fail_clear(), 3);
}

/* The copy goes on, so its memory is not the next tensor's. */
GPU_TEST(memory_of_a_copy_that_is_not_waited_for_stays_until_the_copy_is_done,
         DLX_TEST_GPU_FAILURES)
{
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    CUstream stream = dlx_test_gpu_stream();
    CUmemoryPool pool;
    CUdeviceptr from = dlx_test_gpu_pool_make(N * 4, CU_MEM_HANDLE_TYPE_NONE, &pool);
    DLManagedTensorVersioned *copied = dlx_test_gpu_tensor_at(from, 1, N), *t;
    DLManagedTensorVersioned *first = dlx_test_gpu_alloc_empty(x.p, N); /* makes an arena */
    dlx_test_gpu_fill(from, N * 4, 7);
    dlx_test_gpu_spin(stream, 0, WORK_NS);
    refuse_waits();
    /* The HIP backend waits for the stream twice before it copies. */
    ck_assert(standin.standin_fail("cuStreamSynchronize", dlx_test_gpu_is_hip() ? 3 : 1, 1,
                                   CUDA_ERROR_OUT_OF_MEMORY));
    fails(dlx_publish(x.p, copied, PUBLISH(.stage = true, .stream = stream), NULL), DLX_E_NO_MEMORY,
          "cannot copy");
    t = dlx_test_gpu_alloc_empty(x.p, N);
    CU_OK(cu.cuStreamQuery(stream)); /* the memory that is left was waited for */
    ck_assert_uint_eq(standin.standin_fail_clear(), 4);
    t->deleter(t);
    first->deleter(first);
    copied->deleter(copied);
    dlx_test_gpu_pool_free(pool, from);
}

#endif

GPU_MAIN(dlx_test_gpu_stream_case("gpu refusals"))
