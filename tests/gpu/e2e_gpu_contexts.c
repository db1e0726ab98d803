/* SPDX-License-Identifier: Apache-2.0 */
/* Work on streams of another GPU than the tensor's, and of contexts that the program has made
 * itself, as PyCUDA does. */
#include "tests/gpu/harness_gpu_stream.h"

#if DLX_TEST_HAS_GPU
#include <dlx/gpu.h>

#define N       16
#define BYTES   (N * sizeof(uint32_t))
#define WORK_NS UINT64_C(300000000) /* so long that what does not wait is seen */

static DLManagedTensorVersioned *alloc_on(struct dlx_publisher *p, int device)
{
    int64_t n = N;
    DLManagedTensorVersioned *t;
    struct dlx_tensor_spec spec = dlx_test_gpu_spec(&n, 1, dlx_test_gpu_device(device));
    ok(dlx_alloc(p, &spec, &t));
    return t;
}

/* ---- two GPUs ------------------------------------------------------------------------------ */

/* 0: the first tensor is on the GPU of the stream; 1: on the other one; 2: none is. */
GPU_LOOP_TEST(a_set_is_published_at_once_whichever_gpu_its_stream_is_of, 0, 3,
              DLX_TEST_GPU_TWO | DLX_TEST_GPU_EVENTS)
{
    auto_gpu_end x = dlx_test_gpu_both(NULL);
    (void)dlx_test_gpu_context(1); /* the other one works, too */
    (void)dlx_test_gpu_context(0);
    CUstream stream = dlx_test_gpu_stream();
    struct dlx_item items[] = {{"a", alloc_on(x.p, _i == 0 ? 0 : 1)},
                               {"b", alloc_on(x.p, _i == 1 ? 0 : 1)}};
    dlx_test_gpu_spin(stream, 0, WORK_NS);
    for (int i = 0; i < 2; i++)
        if (items[i].tensor->dl_tensor.device.device_id == 0)
            CU_OK(cu.cuMemsetD32Async(dlx_test_gpu_address(items[i].tensor), 7, N, stream));
    ok(dlx_publish_set(x.p, items, 2, NULL, PUBLISH(.stream = stream), NULL));
    CU_FAILS(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    ck_assert_uint_eq(dlx_test_stream_stats(x.p).gpu_waits, 0);
    dlx_test_gpu_check_calls("cuEventRecord", 1);
    auto_message *m = dlx_test_stream_next(x.s);
    for (uint32_t i = 0; i < 2; i++) {
        DLManagedTensorVersioned *t;
        ok(dlx_message_tensor(m, i, &t)); /* waits */
        CU_OK(cu.cuStreamQuery(stream));
        if (t->dl_tensor.device.device_id == 0)
            dlx_test_gpu_check(t, N, 7);
        t->deleter(t);
    }
}

/* As a copy to the memory of the other GPU. */
GPU_TEST(a_deleter_does_not_wait_for_a_stream_of_another_gpu,
         DLX_TEST_GPU_TWO | DLX_TEST_GPU_EVENTS)
{
    auto_gpu_end x = dlx_test_gpu_both(NULL);
    ok(dlx_publish(x.p, dlx_test_gpu_alloc(x.p, N, 7), NULL, NULL));
    DLManagedTensorVersioned *t = dlx_test_gpu_take_tensor(&x);
    (void)dlx_test_gpu_context(1);
    CUstream stream = dlx_test_gpu_stream();
    (void)dlx_test_gpu_context(0);
    ok(dlx_tensor_used_on(t, stream));
    dlx_test_gpu_spin(stream, 0, WORK_NS);
    t->deleter(t);
    CU_FAILS(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    dlx_test_gpu_wait_held(x.s, 1);
    dlx_test_gpu_wait_held(x.s, 0);
    CU_OK(cu.cuStreamQuery(stream));
    ck_assert_uint_eq(dlx_test_gpu_stats(&x).gpu_waits, 0);
}

/* A stream of the other GPU might not reach the memory that is copied. */
GPU_TEST(a_copy_follows_the_work_on_a_stream_of_another_gpu, DLX_TEST_GPU_TWO)
{
    auto_gpu_end x = dlx_test_gpu_both(NULL);
    CUmemoryPool pool;
    (void)dlx_test_gpu_context(1);
    CUstream stream = dlx_test_gpu_stream();
    dlx_test_gpu_spin(stream, 0, WORK_NS);
    (void)dlx_test_gpu_context(0);
    CUdeviceptr at = dlx_test_gpu_pool_make(BYTES, CU_MEM_HANDLE_TYPE_NONE, &pool);
    dlx_test_gpu_fill(at, BYTES, 7);
    ok(dlx_publish(x.p, dlx_test_gpu_tensor_at(at, 1, N), PUBLISH(.stage = true, .stream = stream),
                   NULL));
    CU_OK(cu.cuStreamQuery(stream));
    dlx_test_gpu_expect(&x, 0, N, 7);
    dlx_test_gpu_pool_free(pool, at);
}

/* ---- contexts of the program's own ---------------------------------------------------------- */

/* The primary context of the GPU works, too: libdlx alone may have made it. */
static struct dlx_test_gpu_end both_in(CUcontext *ret_own, CUstream *ret_stream)
{
    struct dlx_test_gpu_end x = dlx_test_gpu_both(NULL);
    *ret_own = dlx_test_gpu_own_context(0);
    *ret_stream = dlx_test_gpu_stream();
    return x;
}

static void end_both(struct dlx_test_gpu_end *x, CUcontext own)
{
    dlx_test_gpu_end(x);
    CU_OK(cu.cuCtxDestroy(own));
}

GPU_TEST(a_deleter_waits_for_the_context_of_its_thread, DLX_TEST_GPU_CONTEXTS)
{
    CUcontext own;
    CUstream stream;
    struct dlx_test_gpu_end x = both_in(&own, &stream);
    ok(dlx_publish(x.p, dlx_test_gpu_alloc(x.p, N, 7), NULL, NULL));
    DLManagedTensorVersioned *t = dlx_test_gpu_take_tensor(&x);
    dlx_test_gpu_spin(stream, 0, WORK_NS);
    t->deleter(t);
    CU_OK(cu.cuStreamQuery(stream));
    dlx_test_gpu_wait_held(x.s, 0);
    ck_assert_uint_eq(dlx_test_gpu_stats(&x).gpu_waits, 1);
    end_both(&x, own);
}

/* Its events would end with the context, which nobody but the program can keep. */
GPU_TEST(a_stream_of_a_context_that_is_not_primary_is_waited_for_and_counted, DLX_TEST_GPU_CONTEXTS)
{
    CUcontext own;
    CUstream stream;
    struct dlx_test_gpu_end x = both_in(&own, &stream);
    ok(dlx_publish(x.p, dlx_test_gpu_alloc(x.p, N, 7), PUBLISH(.stream = stream), NULL));
    ck_assert_uint_eq(dlx_test_stream_stats(x.p).gpu_waits, 0); /* it had nothing to do */
    DLManagedTensorVersioned *t = dlx_test_gpu_take_tensor(&x);
    ok(dlx_tensor_used_on(t, stream));
    dlx_test_gpu_spin(stream, 0, WORK_NS);
    t->deleter(t);
    CU_OK(cu.cuStreamQuery(stream));
    ck_assert_uint_eq(dlx_test_gpu_stats(&x).gpu_waits, 1);
    dlx_test_gpu_wait_held(x.s, 0);
    t = dlx_test_gpu_alloc(x.p, N, 0);
    dlx_test_gpu_spin(stream, 0, WORK_NS);
    ok(dlx_publish(x.p, t, PUBLISH(.stream = stream), NULL));
    CU_OK(cu.cuStreamQuery(stream));
    ck_assert_uint_eq(dlx_test_stream_stats(x.p).gpu_waits, 1);
    end_both(&x, own);
}

/* 0: what is published lies in memory of dlx_alloc(); 1: it is copied, as `stage` asks. */
GPU_LOOP_TEST(the_default_stream_is_that_of_the_current_context, 0, 2, DLX_TEST_GPU_CONTEXTS)
{
    CUcontext own;
    CUstream stream;
    CUmemoryPool pool = NULL;
    struct dlx_test_gpu_end x = both_in(&own, &stream);
    CUdeviceptr at = _i == 1 ? dlx_test_gpu_pool_make(BYTES, CU_MEM_HANDLE_TYPE_NONE, &pool) : 0;
    DLManagedTensorVersioned *t =
        _i == 1 ? dlx_test_gpu_tensor_at(at, 1, N) : dlx_test_gpu_alloc(x.p, N, 0);
    dlx_test_gpu_spin(NULL, 0, WORK_NS);
    CU_OK(cu.cuMemsetD32Async(dlx_test_gpu_address(t), 7, N, NULL));
    ok(dlx_publish(x.p, t, PUBLISH(.stage = _i == 1), NULL));
    dlx_test_gpu_expect(&x, 0, N, 7);
    /* The copy is waited for, too. */
    ck_assert_uint_eq(dlx_test_stream_stats(x.p).gpu_waits, _i == 1 ? 2 : 1);
    if (_i == 1)
        dlx_test_gpu_pool_free(pool, at);
    end_both(&x, own);
}

GPU_TEST(memory_of_a_deleted_tensor_is_used_again_after_the_work_of_the_current_context,
         DLX_TEST_GPU_CONTEXTS)
{
    CUcontext own;
    CUstream stream;
    struct dlx_test_gpu_end x = both_in(&own, &stream);
    DLManagedTensorVersioned *t = dlx_test_gpu_alloc(x.p, N, 0);
    CUdeviceptr at = dlx_test_gpu_address(t);
    dlx_test_gpu_spin(stream, 0, WORK_NS);
    t->deleter(t);
    t = dlx_test_gpu_alloc_empty(x.p, N);
    if (dlx_test_gpu_address(t) == at)
        CU_OK(cu.cuStreamQuery(stream));
    t->deleter(t);
    end_both(&x, own);
}

GPU_TEST(dlx_cuda_free_waits_for_the_context_of_its_thread, DLX_TEST_GPU_MALLOC)
{
    CUcontext own;
    CUstream stream;
    struct dlx_test_gpu_end x = both_in(&own, &stream);
    void *memory = dlx_cuda_malloc(BYTES, 0, NULL);
    ck_assert_ptr_nonnull(memory);
    dlx_test_gpu_spin(stream, 0, WORK_NS);
    CU_OK(cu.cuMemsetD32Async((CUdeviceptr)(uintptr_t)memory, 7, N, stream));
    dlx_cuda_free(memory, BYTES, 0, NULL);
    CU_OK(cu.cuStreamQuery(stream));
    end_both(&x, own);
}

#endif

GPU_MAIN(dlx_test_gpu_stream_case("gpu contexts"))
