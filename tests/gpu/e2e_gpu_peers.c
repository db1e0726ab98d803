/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of one GPU that another GPU of the process uses. */
#include "tests/gpu/harness_gpu_stream.h"

#if DLX_TEST_HAS_GPU
#include <dlx/gpu.h>

#define N 16

static struct dlx_subscribe_args for_device_1 = {.size = sizeof for_device_1}; /* by setup() */

/* 0: memory of cudaMalloc; 1: of dlx_alloc(). */
static void publish_sevens(struct dlx_test_gpu_end *x)
{
    DLManagedTensorVersioned *t = dlx_test_gpu_variant == 0 ? dlx_test_gpu_tensor(64, 1, N, 7)
                                                            : dlx_test_gpu_alloc(x->p, N, 7);
    ok(dlx_publish(x->p, t, NULL, NULL));
}

static void use_on_device_1(int sock)
{
    auto_gpu_end x = dlx_test_gpu_subscribe_on(sock, 1, &for_device_1);
    DLManagedTensorVersioned *t = dlx_test_gpu_take_tensor(&x);
    CUstream stream = dlx_test_gpu_stream();
    ck_assert_int_eq(t->dl_tensor.device.device_id, 1);
    dlx_test_gpu_check(t, N, 7);
    ok(dlx_tensor_used_on(t, stream));
    t->deleter(t);
    ck_assert_uint_eq(dlx_test_gpu_stats(&x).gpu_waits, dlx_test_gpu_stream_waits());
    ck_assert_uint_eq(dlx_test_gpu_stats(&x).gpu_errors, 0);
    dlx_test_gpu_check_no_context(0, 0);
}

GPU_LOOP_TEST(a_gpu_uses_tensors_of_another_one_that_its_subscription_names, 0, 2, DLX_TEST_GPU_TWO)
{
    dlx_test_gpu_variant = _i;
    auto_gpu_end x = dlx_test_gpu_publish_to(use_on_device_1, NULL);
    publish_sevens(&x);
    dlx_test_gpu_join(&x.peer);
}

/* The GPU that has the memory reads it, too: copies between the two may run on either. */
static void copy_on_device_0(int sock)
{
    auto_gpu_end x = dlx_test_gpu_subscribe_on(sock, 0, &for_device_1);
    DLManagedTensorVersioned *t = dlx_test_gpu_take_tensor(&x);
    ck_assert_int_eq(t->dl_tensor.device.device_id, 1);
    dlx_test_gpu_check(t, N, 7);
    t->deleter(t);
}

GPU_TEST(a_tensor_for_another_gpu_is_used_by_its_own_too, DLX_TEST_GPU_TWO)
{
    dlx_test_gpu_variant = 1;
    auto_gpu_end x = dlx_test_gpu_publish_to(copy_on_device_0, NULL);
    publish_sevens(&x);
    dlx_test_gpu_join(&x.peer);
}

static void have_no_access(int sock)
{
    auto_gpu_end x = dlx_test_gpu_subscribe_on(sock, 1, &for_device_1);
    standin.standin_part_peers(true);
    auto_message *m = dlx_test_stream_next(x.s);
    auto_tensor *t = NULL;
    fails(dlx_message_tensor(m, 0, &t), DLX_E_DEVICE,
          "device 1 has no peer access to memory of device 0");
    standin.standin_part_peers(false);
}

GPU_LOOP_TEST(a_gpu_without_access_to_the_memory_of_another_one_says_so, 0, 2,
              DLX_TEST_GPU_TWO | DLX_TEST_GPU_CHOICE)
{
    dlx_test_gpu_variant = _i;
    auto_gpu_end x = dlx_test_gpu_publish_to(have_no_access, NULL);
    publish_sevens(&x);
    dlx_test_gpu_join(&x.peer);
}

GPU_TEST(tensors_of_the_process_itself_stay_on_their_gpu, DLX_TEST_GPU_TWO)
{
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    ok(dlx_subscribe(x.c, "gpu/a", &for_device_1, &x.s));
    ok(dlx_publish(x.p, dlx_test_gpu_alloc(x.p, N, 7), NULL, NULL));
    DLManagedTensorVersioned *t = dlx_test_gpu_take_tensor(&x);
    ck_assert_int_eq(t->dl_tensor.device.device_id, 0);
    dlx_test_gpu_check(t, N, 7);
    t->deleter(t);
}

GPU_TEST(a_subscription_for_a_gpu_that_is_not_there_is_refused, 0)
{
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    struct dlx_subscribe_args args = {.size = sizeof args,
                                      .device = {(DLDeviceType)dlx_test_gpu_type(), 99}};
    fails(dlx_subscribe(x.c, "gpu/a", &args, &x.s), DLX_E_DEVICE, " device 99");
    args.device = (DLDevice){kDLCPU, 0};
    fails(dlx_subscribe(x.c, "gpu/a", &args, &x.s), DLX_E_DEVICE, "device type 1 is no GPU");
}

static void fill_on(int device, void *memory, CUresult expected)
{
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)memory;
    (void)dlx_test_gpu_context(device);
    ck_assert_int_eq(cu.cuMemsetD32(at, 7, N), expected);
    if (expected == CUDA_SUCCESS)
        ck_assert_uint_eq(dlx_test_gpu_word(at + (N - 1) * sizeof(uint32_t)), 7);
}

/* As PyTorch does with segments of a pool, of tensors that are copied between GPUs. */
GPU_TEST(memory_for_other_allocators_is_used_by_every_gpu_that_can_reach_it, DLX_TEST_GPU_TWO)
{
    void *memory = dlx_cuda_malloc(DLX_TEST_GPU_CHUNK, 0, NULL);
    ck_assert_ptr_nonnull(memory);
    dlx_test_gpu_check_no_context(1, 1);
    fill_on(1, memory, CUDA_SUCCESS);
    fill_on(0, memory, CUDA_SUCCESS);
    dlx_cuda_free(memory, DLX_TEST_GPU_CHUNK, 0, NULL);
}

GPU_TEST(memory_for_other_allocators_is_had_where_no_other_gpu_can_reach_it,
         DLX_TEST_GPU_TWO | DLX_TEST_GPU_CHOICE)
{
    standin.standin_part_peers(true);
    void *memory = dlx_cuda_malloc(DLX_TEST_GPU_CHUNK, 1, NULL);
    ck_assert_ptr_nonnull(memory);
    fill_on(1, memory, CUDA_SUCCESS);
    dlx_cuda_free(memory, DLX_TEST_GPU_CHUNK, 1, NULL);
    standin.standin_part_peers(false);
}

static void setup(void)
{
    for_device_1.device = (DLDevice){(DLDeviceType)dlx_test_gpu_type(), 1};
}

static TCase *peers_case(void)
{
    TCase *tc = dlx_test_gpu_stream_case("peers");
    tcase_add_checked_fixture(tc, setup, NULL);
    return tc;
}

#endif

GPU_MAIN(peers_case())
