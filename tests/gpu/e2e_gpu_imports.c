/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a publisher's GPU that a subscriber has open and does not use. */
#include "tests/gpu/harness_gpu_stream.h"

#if DLX_TEST_HAS_GPU
#include <dlx/gpu.h>

#define N     16
#define LARGE ((int64_t)DLX_TEST_GPU_CHUNK / 4) /* elements: an arena of their own */

static void publish(struct dlx_publisher *p, int64_t n, uint32_t value)
{
    ok(dlx_publish(p, dlx_test_gpu_alloc(p, n, value), NULL, NULL));
}

/* Another subscription of the process leaves while this one uses the same arena. */
static void subscribe_twice(int sock)
{
    auto_gpu_end x = dlx_test_gpu_subscribe(sock, NULL);
    struct dlx_test_gpu_end other = {.c = x.c};
    DLManagedTensorVersioned *t = dlx_test_gpu_take_tensor(&x);
    ok(dlx_subscribe(x.c, "gpu/a", SUBSCRIBE(.history = 1), &other.s));
    dlx_test_gpu_expect(&other, 0, N, 1);
    dlx_subscription_unref(other.s);
    t->deleter(t);
    dlx_test_gpu_tell(sock);
    dlx_test_gpu_expect(&x, 0, N, 2);
    dlx_test_gpu_check_calls("cuMemImportFromShareableHandle", 1);
}

GPU_TEST(a_subscription_that_leaves_does_not_close_what_another_one_uses, DLX_TEST_GPU_COUNTS)
{
    auto_gpu_end x = dlx_test_gpu_publish_to(subscribe_twice, PUBLISHER(.history = 1));
    publish(x.p, N, 1);
    dlx_test_gpu_await(x.peer.sock);
    publish(x.p, N, 2);
}

/* Takes a tensor on the GPU and one on the CPU, and waits for the next one, in one call or (1) in
 * many that do not wait. */
static void survive(int sock)
{
    auto_gpu_end x = dlx_test_gpu_subscribe(sock, NULL);
    struct dlx_message *m = NULL;
    dlx_test_gpu_expect(&x, 0, N, 1);
    dlx_test_stream_expect(x.s, 4, 2);
    dlx_test_gpu_check_count(STANDIN_MAPPINGS, 1); /* it is idle */
    dlx_test_gpu_tell(sock);
    if (dlx_test_gpu_variant == 1)
        eventually(dlx_take(x.s, 0, &m) == 0);
    else
        ok(dlx_take(x.s, PATIENCE, &m));
    dlx_message_unref(m);
}

static void be_killed(int sock)
{
    auto_gpu_end x = dlx_test_gpu_subscribe(sock, NULL);
    dlx_test_gpu_await(sock);
}

/* Whatever a dead subscriber could read is freed, and the memory is nobody's then. */
GPU_LOOP_TEST(a_subscriber_closes_at_once_what_its_publisher_frees, 0, 2, DLX_TEST_GPU_COUNTS)
{
    dlx_test_gpu_variant = _i;
    struct dlx_test_gpu_peer victim = dlx_test_gpu_start(be_killed);
    struct dlx_test_gpu_end x = dlx_test_gpu_publish_to(survive, NULL);
    dlx_test_gpu_turn(victim.sock);
    ok(dlx_publisher_wait(x.p, 2, PATIENCE));
    DLManagedTensorVersioned *t = dlx_test_gpu_alloc(x.p, LARGE, 1);
    ok(dlx_publish(x.p, t, PUBLISH(.share = true), NULL));
    dlx_test_stream_publish(x.p, 4, 2);
    dlx_test_gpu_await(x.peer.sock);
    dlx_test_gpu_kill(&victim);
    eventually(dlx_publisher_wait(x.p, 2, 0) == DLX_E_TIMEOUT);
    t->deleter(t);
    t = dlx_test_gpu_alloc_empty(x.p, N);
    eventually(standin.standin_count_of(x.peer.pid, STANDIN_MAPPINGS) == 0);
    ok(dlx_publish(x.p, t, NULL, NULL));
    dlx_test_gpu_end(&x);
}

static void publish_two_arenas(int sock)
{
    dlx_test_gpu_await(sock);
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    ok(dlx_publisher_wait(x.p, 1, PATIENCE));
    DLManagedTensorVersioned *first = dlx_test_gpu_alloc(x.p, LARGE, 1);
    DLManagedTensorVersioned *second = dlx_test_gpu_alloc(x.p, LARGE, 2);
    CU_OK(cu.cuCtxSynchronize()); /* both are ready if this process is killed */
    ok(dlx_publish(x.p, first, NULL, NULL));
    ok(dlx_publish(x.p, second, NULL, NULL));
    dlx_test_gpu_turn(sock);
}

/* 1: the subscription leaves, and the message is still held. */
GPU_LOOP_TEST(a_message_that_is_held_does_not_keep_other_memory_of_its_publisher, 0, 2,
              DLX_TEST_GPU_COUNTS)
{
    struct dlx_test_gpu_end x = dlx_test_gpu_subscribe_to(publish_two_arenas, NULL);
    struct dlx_message *m;
    dlx_test_gpu_expect(&x, 0, N, 1);
    DLManagedTensorVersioned *t = dlx_test_gpu_take_tensor(&x);
    dlx_test_gpu_check_count(STANDIN_MAPPINGS, 2);
    if (_i == 0) {
        dlx_test_gpu_kill(&x.peer);
        ck_assert_int_eq(dlx_take(x.s, PATIENCE, &m), DLX_E_PUBLISHER_GONE);
    } else {
        dlx_subscription_unref(dlx_steal(x.s));
    }
    dlx_test_gpu_check_count(STANDIN_MAPPINGS, 1);
    dlx_test_gpu_check(t, N, 2);
    t->deleter(t);
    dlx_test_gpu_check_count(STANDIN_MAPPINGS, 0);
    dlx_test_gpu_end(&x);
}

/* There is no room for the arena at first. */
GPU_TEST(an_allocation_that_finds_no_memory_closes_what_is_not_used, DLX_TEST_GPU_COUNTS)
{
    struct dlx_test_gpu_end x = dlx_test_gpu_subscribe_to(publish_two_arenas, NULL);
    struct dlx_publisher *p = dlx_test_stream_publisher(x.c, "gpu/b", NULL);
    dlx_test_gpu_expect(&x, 0, N, 1);
    dlx_test_gpu_check_count(STANDIN_MAPPINGS, 1);
    ck_assert(standin.standin_fail("cuMemMap", 1, 1, CUDA_ERROR_OUT_OF_MEMORY));
    auto_tensor *t = dlx_test_gpu_alloc(p, N, 1);
    ck_assert_uint_eq(standin.standin_fail_clear(), 1);
    dlx_test_gpu_check_count(STANDIN_MAPPINGS, 1); /* its own */
    ck_assert_uint_eq(dlx_test_stream_stats(p).gpu_waits, 0);
    dlx_publisher_unref(p);
    t->deleter(dlx_steal(t));
    dlx_message_unref(dlx_test_stream_next(x.s));
    dlx_test_gpu_end(&x);
}

GPU_TEST(a_program_has_memory_closed_that_it_does_not_use, DLX_TEST_GPU_COUNTS)
{
    uint64_t bytes = 1;
    ok(dlx_gpu_trim(&bytes)); /* nothing of a GPU was used yet */
    ck_assert_uint_eq(bytes, 0);
    auto_gpu_end x = dlx_test_gpu_subscribe_to(publish_two_arenas, NULL);
    dlx_test_gpu_expect(&x, 0, N, 1);
    auto_tensor *t = dlx_test_gpu_take_tensor(&x);
    ok(dlx_gpu_trim(&bytes));
    ck_assert_uint_eq(bytes, DLX_TEST_GPU_CHUNK);
    dlx_test_gpu_check_count(STANDIN_MAPPINGS, 1);
    dlx_test_gpu_check(t, N, 2);
    ok(dlx_gpu_trim(NULL));
}

#endif

GPU_MAIN(dlx_test_gpu_stream_case("imports"))
