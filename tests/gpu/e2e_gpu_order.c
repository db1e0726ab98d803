/* SPDX-License-Identifier: Apache-2.0 */
/* When tensors on GPUs are ready: who waits, and who does not. */
#include "tests/gpu/harness_gpu_stream.h"

#if DLX_TEST_HAS_GPU
#include "client/control/call.h"
#include "client/message/subscriber_link.h"
#include "client/publish/publisher.h"
#include "client/subscribe/subscription.h"

#define N       16
#define WORK_NS UINT64_C(300000000) /* so long that what does not wait is seen */

/* Queue work that takes a while, then the value; publish at once. The stream is still busy. */
static CUstream publish_early(struct dlx_publisher *p, uint64_t work_ns, uint32_t value)
{
    CUstream stream = dlx_test_gpu_stream();
    DLManagedTensorVersioned *t = dlx_test_gpu_alloc(p, N, 0);
    dlx_test_gpu_spin(stream, 0, work_ns);
    CU_OK(cu.cuMemsetD32Async(dlx_test_gpu_address(t), value, N, stream));
    ok(dlx_publish(p, t, PUBLISH(.stream = stream), NULL));
    return stream;
}

GPU_TEST(publish_does_not_wait_and_a_reader_does, 0)
{
    auto_gpu_end x = dlx_test_gpu_publish_to(dlx_test_gpu_expect_sevens, NULL);
    CUstream stream = publish_early(x.p, WORK_NS, 7);
    CU_FAILS(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    struct dlx_publisher_stats stats = dlx_test_stream_stats(x.p);
    ck_assert_uint_eq(stats.published, 1);
    ck_assert_uint_eq(stats.gpu_waits, 0);
}

/* The message is there to be taken, and only its tensor is not ready: a caller that asks again gets
 * it. */
GPU_TEST(a_tensor_that_is_not_ready_in_time_can_be_asked_for_again, 0)
{
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    auto_client *c = NULL;
    DLManagedTensorVersioned *t;
    ok(dlx_connect(CONNECT(.timeout_ns = SECOND / 20), &c));
    ok(dlx_subscribe(c, "gpu/a", NULL, &x.s));
    CUstream stream = publish_early(x.p, WORK_NS, 7);
    struct dlx_message *m = dlx_test_stream_next(x.s);
    fails(dlx_message_tensor(m, 0, &t), DLX_E_TIMEOUT, "has not written it");
    CU_OK(cu.cuStreamSynchronize(stream));
    ok(dlx_message_tensor(m, 0, &t));
    dlx_test_gpu_check(t, N, 7);
    t->deleter(t);
    dlx_message_unref(m);
    x.s = dlx_subscription_unref(x.s);
}

/* An honest publisher does not drop the arena, which has the word that says whether the tensor is
 * ready. */
GPU_TEST(the_arena_of_a_message_that_is_not_ready_stays_though_its_publisher_dropped_it, 0)
{
    auto_gpu_end x = dlx_test_gpu_both(NULL);
    struct dlx_message *none;
    (void)publish_early(x.p, WORK_NS, 7);
    auto_message *m = dlx_test_stream_next(x.s);
    auto_tensor *t = NULL;
    const struct dlx_subscriber_link *subscriber_link = x.s->links[0];
    ok(dlx__call_arena_drop(x.c, x.p->id, 1, false));
    for (uint64_t end = dlx__now_ns() + (uint64_t)PATIENCE;
         subscriber_link->n_arenas > 0 && subscriber_link->arenas[0].until == UINT64_MAX;) {
        ck_assert_int_eq(dlx_take(x.s, SECOND / 1000, &none), DLX_E_TIMEOUT);
        ck_assert_uint_lt(dlx__now_ns(), end);
    }
    ok(dlx_message_tensor(m, 0, &t));
    dlx_test_gpu_check(t, N, 7);
}

/* A publisher that keeps nothing behind publishes on while its GPU is busy: what goes is waited
 * for before its memory is used again. */
GPU_TEST(memory_of_a_message_is_used_again_when_it_is_written, 0)
{
    auto_gpu_end x = dlx_test_gpu_publisher(PUBLISHER(.depth = 1));
    CUstream first = publish_early(x.p, WORK_NS, 1);
    (void)publish_early(x.p, 0, 2);
    ok(dlx_publisher_wait(x.p, 0, 0)); /* lets message 1 go */
    CU_OK(cu.cuStreamQuery(first));
}

GPU_TEST(a_publisher_ends_when_its_work_is_done_and_what_it_left_is_ready, 0)
{
    auto_gpu_end x = dlx_test_gpu_publisher(PUBLISHER(.retain = 1));
    CUstream stream = publish_early(x.p, WORK_NS, 7);
    dlx_publisher_unref(dlx_steal(x.p));
    CU_OK(cu.cuStreamQuery(stream));
    ok(dlx_subscribe(x.c, "gpu/a", NULL, &x.s));
    dlx_test_gpu_expect(&x, 0, N, 7);
}

/* A message that is copied to the control block for the next daemon is whole. */
GPU_TEST(a_message_goes_along_to_another_daemon_when_it_is_ready, 0)
{
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(dlx_test_gpu_expect_sevens);
    auto_gpu_end x = dlx_test_gpu_publisher(PUBLISHER(.retain = 1));
    (void)publish_early(x.p, WORK_NS, 7);
    dlx_test_stream_restart();
    auto_client *probe = dlx_test_stream_connect();
    ok(dlx_publisher_wait(x.p, 0, 0));
    dlx_test_gpu_tell(peer.sock);
    struct pollfd said = {.fd = peer.sock, .events = POLLIN};
    eventually(dlx_publisher_wait(x.p, 0, 0) == 0 && poll(&said, 1, 1) == 1);
    dlx_test_gpu_join(&peer);
}

static void publish_and_stay(int sock)
{
    dlx_test_gpu_await(sock);
    struct dlx_test_gpu_end x = dlx_test_gpu_publisher(NULL);
    ok(dlx_publisher_wait(x.p, 1, PATIENCE));
    (void)publish_early(x.p, 1000 * WORK_NS, 7);
    dlx_test_gpu_turn(sock);
}

GPU_TEST(a_reader_does_not_wait_for_a_publisher_that_was_killed, 0)
{
    auto_gpu_end x = dlx_test_gpu_subscribe_to(publish_and_stay, NULL);
    DLManagedTensorVersioned *t;
    auto_message *m = dlx_test_stream_next(x.s);
    dlx_test_gpu_kill(&x.peer);
    fails(dlx_message_tensor(m, 0, &t), DLX_E_PUBLISHER_GONE, "before its GPU had written it");
}

/* The messages that waited for the work are of no use, and the stream of messages goes on. */
static void fail_while_published(int sock)
{
    dlx_test_gpu_await(sock);
    struct dlx_test_gpu_end x = dlx_test_gpu_publisher(NULL);
    ok(dlx_publisher_wait(x.p, 1, PATIENCE));
    (void)publish_early(x.p, WORK_NS, 7);
    dlx_test_gpu_lose_context();
    dlx_test_stream_publish(x.p, 4, 3);
    dlx_test_gpu_turn(sock);
}

GPU_TEST(an_error_of_the_publisher_s_gpu_fails_what_waited_for_it, 0)
{
    auto_gpu_end x = dlx_test_gpu_subscribe_to(fail_while_published, NULL);
    DLManagedTensorVersioned *t;
    struct dlx_message *m = dlx_test_stream_next(x.s);
    fails(dlx_message_tensor(m, 0, &t), DLX_E_DEVICE, "error of the publisher's GPU");
    dlx_message_unref(m);
    dlx_test_stream_expect(x.s, 4, 3);
    dlx_test_gpu_kill(&x.peer); /* what its context lost is not to be looked for */
}

#endif

GPU_MAIN(dlx_test_gpu_stream_case("order"))
