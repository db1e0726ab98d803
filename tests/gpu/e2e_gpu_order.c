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

GPU_TEST(publish_does_not_wait_and_a_reader_does, DLX_TEST_GPU_EVENTS)
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
GPU_TEST(a_tensor_that_is_not_ready_in_time_can_be_asked_for_again, DLX_TEST_GPU_EVENTS)
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
GPU_TEST(the_arena_of_a_message_that_is_not_ready_stays_though_its_publisher_dropped_it,
         DLX_TEST_GPU_EVENTS)
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

#define LARGE ((int64_t)DLX_TEST_GPU_CHUNK / 4) /* elements: they need an arena of their own */

/* A publisher that keeps nothing behind publishes on while its GPU is busy. 0: tensors of
 * dlx_alloc(); 1: of another library. */
GPU_LOOP_TEST(publishing_does_not_wait_for_messages_that_nobody_needs_any_more, 0, 2,
              DLX_TEST_GPU_EVENTS)
{
    auto_gpu_end x = dlx_test_gpu_publisher(PUBLISHER(.depth = 1));
    DLManagedTensorVersioned *t[4];
    CUstream stream = dlx_test_gpu_stream();
    for (int i = 0; i < 4; i++)
        t[i] = _i == 0 ? dlx_test_gpu_alloc_empty(x.p, N) : dlx_test_gpu_tensor(0, 1, N, 7);
    dlx_test_gpu_spin(stream, 0, WORK_NS);
    for (int i = 0; i < 4; i++)
        ok(dlx_publish(x.p, t[i], PUBLISH(.stream = stream), NULL));
    ok(dlx_publisher_wait(x.p, 0, 0));
    CU_FAILS(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    ck_assert_uint_eq(dlx_test_stream_stats(x.p).gpu_waits, 0);
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 0);
    dlx_test_gpu_sync(stream);
    if (_i == 1)
        dlx_test_gpu_wait_deleted(&x, 3); /* the newest message stays */
}

/* Two messages, each with an arena of its own, are published on a stream that is busy. Nobody needs
 * the first one, whose memory is returned. */
static CUdeviceptr publish_two_early(struct dlx_publisher *p, CUstream stream)
{
    DLManagedTensorVersioned *t[] = {dlx_test_gpu_alloc_empty(p, LARGE),
                                     dlx_test_gpu_alloc_empty(p, LARGE)};
    CUdeviceptr first = dlx_test_gpu_address(t[0]);
    dlx_test_gpu_spin(stream, 0, WORK_NS);
    for (int i = 0; i < 2; i++)
        ok(dlx_publish(p, t[i], PUBLISH(.stream = stream), NULL));
    CU_FAILS(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    return first;
}

/* More memory than that would be taken for each message that the GPU is behind. */
GPU_TEST(memory_that_is_still_written_is_waited_for_and_counted_before_more_is_taken,
         DLX_TEST_GPU_EVENTS)
{
    auto_gpu_end x = dlx_test_gpu_publisher(PUBLISHER(.depth = 1));
    CUstream stream = dlx_test_gpu_stream();
    CUdeviceptr first = publish_two_early(x.p, stream);
    DLManagedTensorVersioned *t = dlx_test_gpu_alloc_empty(x.p, LARGE);
    CU_OK(cu.cuStreamQuery(stream));
    ck_assert_uint_eq(dlx_test_gpu_address(t), first);
    struct dlx_publisher_stats stats = dlx_test_stream_stats(x.p);
    ck_assert_uint_eq(stats.gpu_waits, 1);
    ck_assert_uint_eq(stats.gpu_arena_bytes, 2 * DLX_TEST_GPU_CHUNK);
    t->deleter(t);
}

/* As the GPU may itself wait for the caller. */
GPU_TEST(memory_that_is_still_written_is_not_waited_for_longer_than_a_request_may_take,
         DLX_TEST_GPU_EVENTS)
{
    static struct dlx_test_gpu_gate gate;
    struct dlx_test_gpu_end x = {.c = NULL};
    ok(dlx_connect(CONNECT(.timeout_ns = 2 * SECOND), &x.c));
    (void)dlx_test_gpu_context(0);
    ok(dlx_publisher_new(x.c, "gpu/a", PUBLISHER(.depth = 1), &x.p));
    CUstream stream = dlx_test_gpu_stream();
    dlx_test_gpu_gate_shut(&gate, stream);
    CUdeviceptr first = publish_two_early(x.p, stream);
    DLManagedTensorVersioned *t = dlx_test_gpu_alloc_empty(x.p, LARGE);
    CU_FAILS(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    ck_assert_uint_ne(dlx_test_gpu_address(t), first);
    ck_assert_uint_eq(dlx_test_stream_stats(x.p).gpu_waits, 1);
    dlx_test_gpu_gate_open(&gate);
    t->deleter(t);
    dlx_test_gpu_end(&x);
}

/* The time of the call is over at once, or when the memory is written. */
GPU_LOOP_TEST(a_copy_waits_for_memory_that_is_still_written_as_long_as_its_call_may, 0, 2,
              DLX_TEST_GPU_EVENTS)
{
    static struct dlx_test_gpu_gate gate;
    auto_gpu_end x = dlx_test_gpu_publisher(PUBLISHER(.depth = 1));
    CUmemoryPool pool;
    CUdeviceptr from = dlx_test_gpu_pool_make(LARGE * 4, CU_MEM_HANDLE_TYPE_NONE, &pool);
    CUstream stream = dlx_test_gpu_stream(), idle = dlx_test_gpu_stream();
    if (_i == 0)
        dlx_test_gpu_gate_shut(&gate, stream);
    (void)publish_two_early(x.p, stream);
    ok(dlx_publish(x.p, dlx_test_gpu_tensor_at(from, 1, LARGE),
                   PUBLISH(.stage = true, .stream = idle, .timeout_ns = _i == 0 ? 0 : PATIENCE),
                   NULL));
    CU_FAILS(cu.cuStreamQuery(stream), _i == 0 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
    /* The copy is waited for, too. */
    struct dlx_publisher_stats stats = dlx_test_stream_stats(x.p);
    ck_assert_uint_eq(stats.gpu_waits, _i == 0 ? 1 : 2);
    ck_assert_uint_eq(stats.gpu_arena_bytes, (_i == 0 ? 3 : 2) * DLX_TEST_GPU_CHUNK);
    if (_i == 0)
        dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_sync(stream);
    dlx_test_gpu_pool_free(pool, from);
}

static void take_one_and_stay(int sock)
{
    struct dlx_test_gpu_end x = dlx_test_gpu_subscribe(sock, NULL);
    auto_tensor *t = dlx_test_gpu_take_tensor(&x);
    dlx_test_gpu_turn(sock);
}

/* What a subscriber that died could read is freed when all work on the GPU is done. */
GPU_TEST(publishing_does_not_wait_for_memory_that_a_dead_subscriber_could_read, 0)
{
    auto_gpu_end x = dlx_test_gpu_publish_to(take_one_and_stay, PUBLISHER(.depth = 1));
    CUstream stream = dlx_test_gpu_stream();
    ok(dlx_publish(x.p, dlx_test_gpu_alloc(x.p, LARGE, 7), NULL, NULL));
    dlx_test_gpu_await(x.peer.sock);
    dlx_test_gpu_kill(&x.peer);
    eventually(dlx_publisher_wait(x.p, 0, 0) == 0 && dlx_test_stream_stats(x.p).n_subscribers == 0);
    dlx_test_gpu_check_count(STANDIN_MAPPINGS, 1); /* the newest message has it */
    dlx_test_gpu_spin(stream, 0, WORK_NS);
    for (int i = 0; i < 2; i++) { /* lets the first message go */
        dlx_test_stream_publish(x.p, 4, 1);
        ok(dlx_publisher_wait(x.p, 0, 0));
    }
    dlx_test_gpu_check_count(STANDIN_MAPPINGS, 1);
    CU_FAILS(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    ck_assert_uint_eq(dlx_test_stream_stats(x.p).gpu_waits, dlx_test_gpu_stream_waits());
    /* A thread that has not looked at the first message yet leaves it to a later call. */
    if (dlx_test_gpu_is_standin())
        eventually(dlx_publisher_wait(x.p, 0, 0) == 0 &&
                   standin.standin_count(STANDIN_MAPPINGS) == 0);
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

GPU_TEST(a_reader_does_not_wait_for_a_publisher_that_was_killed, DLX_TEST_GPU_EVENTS)
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

GPU_TEST(an_error_of_the_publisher_s_gpu_fails_what_waited_for_it, DLX_TEST_GPU_EVENTS)
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
