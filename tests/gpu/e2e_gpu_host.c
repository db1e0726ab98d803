/* SPDX-License-Identifier: Apache-2.0 */
/* Received tensors that are copied to the host: dlx_message_copy_to_host(). */
#include "tests/gpu/harness_gpu_stream.h"

#if DLX_TEST_HAS_GPU

#define N 16

static void check_words(const uint32_t *words, uint32_t n, uint32_t value)
{
    for (uint32_t i = 0; i < n; i++)
        ck_assert_uint_eq(words[i], value);
}

/* The next message, whose tensor i is N times this value. */
static void expect_on_host(struct dlx_test_gpu_end *x, uint32_t i, uint32_t value)
{
    uint32_t words[N + 1] = {[N] = 99};
    struct dlx_message *m = dlx_test_stream_next(x->s);
    ok(dlx_message_copy_to_host(m, i, words, sizeof words));
    check_words(words, N, value);
    ck_assert_uint_eq(words[N], 99);
    dlx_message_unref(m);
}

static void publish_seven_and_eight(int sock)
{
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    dlx_test_gpu_tell(sock);
    ok(dlx_publisher_wait(x.p, 1, PATIENCE));
    ok(dlx_publish(x.p, dlx_test_gpu_alloc(x.p, N, 7), NULL, NULL));
    ok(dlx_publish(x.p, dlx_test_gpu_tensor(0, 1, N, 8), NULL, NULL));
    dlx_test_gpu_await(sock);
}

/* Memory of dlx_alloc(), and of cudaMalloc. */
GPU_TEST(tensors_of_another_process_are_copied_to_the_host, 0)
{
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(publish_seven_and_eight);
    dlx_test_gpu_await(peer.sock);
    auto_gpu_end x = dlx_test_gpu_subscriber(NULL);
    expect_on_host(&x, 0, 7);
    expect_on_host(&x, 0, 8);
    dlx_test_gpu_wait_held(x.s, 0);
    dlx_test_gpu_tell(peer.sock);
    dlx_test_gpu_join(&peer);
}

GPU_TEST(a_view_comes_without_what_lies_between_its_elements, 0)
{
    uint32_t words[N];
    auto_gpu_end x = dlx_test_gpu_both(NULL);
    DLManagedTensorVersioned *all = dlx_test_gpu_tensor(0, 1, (int64_t)2 * N, 0);
    CUdeviceptr at = dlx_test_gpu_address(all);
    for (uint32_t i = 0; i < 2 * N; i++)
        dlx_test_gpu_fill(at + i * sizeof(uint32_t), sizeof(uint32_t), i % 2 == 0 ? i / 2 : 99);
    ok(dlx_publish(x.p, dlx_test_gpu_view(all, 4, N / 4, 2), NULL, NULL));
    struct dlx_message *m = dlx_test_stream_next(x.s);
    fails(dlx_message_copy_to_host(m, 0, words, sizeof words - 1), DLX_E_INVALID,
          "has 64 bytes, and the memory for them 63");
    ok(dlx_message_copy_to_host(m, 0, words, sizeof words));
    for (uint32_t i = 0; i < N; i++)
        ck_assert_uint_eq(words[i], i);
    dlx_message_unref(m);
    dlx_publisher_unref(dlx_steal(x.p));
    all->deleter(all);
}

GPU_TEST(the_copy_waits_for_the_publisher_s_stream, 0)
{
    auto_gpu_end x = dlx_test_gpu_both(NULL);
    CUstream stream = dlx_test_gpu_stream();
    DLManagedTensorVersioned *t = dlx_test_gpu_alloc(x.p, N, 1);
    dlx_test_gpu_spin(stream, 0, 100000000);
    CU_OK(cu.cuMemsetD32Async(dlx_test_gpu_address(t), 9, N, stream));
    ok(dlx_publish(x.p, t, PUBLISH(.stream = stream), NULL));
    expect_on_host(&x, 0, 9);
}

GPU_TEST(every_tensor_of_a_set_can_be_copied, 0)
{
    uint32_t words[N];
    int64_t numbers[4];
    auto_gpu_end x = dlx_test_gpu_both(NULL);
    struct dlx_item items[] = {{"cpu", dlx_test_stream_alloc(x.p, 4, 5)},
                               {"gpu", dlx_test_gpu_alloc(x.p, N, 8)},
                               {"empty", dlx_test_gpu_tensor_at(0, 0, N)}};
    ok(dlx_publish_set(x.p, items, 3, NULL, NULL, NULL));
    struct dlx_message *m = dlx_test_stream_next(x.s);
    ok(dlx_message_copy_to_host(m, 0, numbers, sizeof numbers));
    ck_assert_mem_eq(numbers, dlx_message_tensor_peek(m, 0)->data, sizeof numbers);
    ok(dlx_message_copy_to_host(m, 1, words, sizeof words));
    check_words(words, N, 8);
    ok(dlx_message_copy_to_host(m, 2, NULL, 0));
    fails(dlx_message_copy_to_host(m, 3, words, sizeof words), DLX_E_INVALID,
          "tensor 3 of a message of 3");
    fails(dlx_message_copy_to_host(m, 1, NULL, 64), DLX_E_INVALID, "to is NULL");
    fails(dlx_message_copy_to_host(NULL, 1, words, 64), DLX_E_INVALID, "message is NULL");
    dlx_message_unref(m);
}

/* The reason is the driver's, and the message goes back all the same. */
GPU_TEST(a_copy_that_fails_is_told_by_name, DLX_TEST_GPU_FAILURES)
{
    uint32_t words[N];
    auto_gpu_end x = dlx_test_gpu_both(NULL);
    ok(dlx_publish(x.p, dlx_test_gpu_alloc(x.p, N, 7), NULL, NULL));
    struct dlx_message *m = dlx_test_stream_next(x.s);
    ck_assert(standin.standin_fail_here("cuMemcpyDtoHAsync", 1, CUDA_ERROR_OUT_OF_MEMORY));
    fails(dlx_message_copy_to_host(m, 0, words, sizeof words), DLX_E_NO_MEMORY,
          "tensor 0: cannot copy");
    ck_assert_uint_gt(standin.standin_fail_clear(), 0);
    ok(dlx_message_copy_to_host(m, 0, words, sizeof words));
    check_words(words, N, 7);
    dlx_message_unref(m);
    dlx_test_gpu_wait_held(x.s, 0);
}

/* No work of the process on the GPU uses a tensor that was copied. */
GPU_TEST(the_release_after_a_copy_waits_for_no_other_work, DLX_TEST_GPU_EVENTS)
{
    struct dlx_test_gpu_gate gate;
    auto_gpu_end x = dlx_test_gpu_both(NULL);
    CUstream busy = dlx_test_gpu_stream();
    ok(dlx_publish(x.p, dlx_test_gpu_alloc(x.p, N, 7), NULL, NULL));
    dlx_test_gpu_gate_shut(&gate, busy);
    uint64_t waits = dlx_test_gpu_stats(&x).gpu_waits;
    expect_on_host(&x, 0, 7);
    dlx_test_gpu_wait_held(x.s, 0);
    ck_assert_uint_eq(dlx_test_gpu_stats(&x).gpu_waits, waits);
    dlx_test_gpu_gate_open(&gate);
}

#endif

GPU_MAIN(dlx_test_gpu_stream_case("host"))
