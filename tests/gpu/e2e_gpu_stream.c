/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that wait until received tensors are ready, while no CPU does. */
#include "tests/gpu/harness_gpu_stream.h"

#if DLX_TEST_HAS_GPU
#include "client/subscribe/subscription.h"

#define N       DLX_TEST_GPU_PAIR_N
#define WORK_NS UINT64_C(300000000) /* so long that what does not wait is seen */

static struct dlx_test_gpu_gate gate;

GPU_TEST(take_and_release_return_while_the_publisher_s_work_goes_on, DLX_TEST_GPU_GATES)
{
    auto_gpu_pair pair = dlx_test_gpu_pair_new();
    DLManagedTensorVersioned said, *t;
    dlx_test_gpu_publish_behind(pair.x.p, pair.from, &gate, 0);
    struct dlx_message *m = dlx_test_stream_next(pair.x.s);
    ok(dlx_message_tensor_describe(m, 0, &said));
    ck_assert_int_eq(said.dl_tensor.device.device_type, dlx_test_gpu_type());
    ck_assert_ptr_null(said.dl_tensor.data);
    ck_assert_ptr_null(said.deleter);
    ck_assert_int_eq(dlx_message_status(m), 0); /* no stream waits */
    ok(dlx_message_tensor_on(m, 0, pair.to, &t));
    ck_assert_uint_eq(said.flags, t->flags);
    ck_assert_int_eq(dlx_message_status(m), 1);
    ck_assert_int_eq(dlx_tensor_status(t), 1);
    dlx_message_unref(m);
    CU_OK(cu.cuMemcpyDtoDAsync(pair.copy, dlx_test_gpu_address(t), N * sizeof(uint32_t), pair.to));
    t->deleter(t);
    CU_FAILS(cu.cuStreamQuery(pair.from), CUDA_ERROR_NOT_READY);
    CU_FAILS(cu.cuStreamQuery(pair.to), CUDA_ERROR_NOT_READY);
    dlx_test_gpu_wait_held(pair.x.s, 1);
    dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_sync(pair.to);
    ck_assert_uint_eq(dlx_test_gpu_word(pair.copy), 7);
    dlx_test_gpu_wait_held(pair.x.s, 0);
    struct dlx_subscription_stats stats = dlx_test_gpu_stats(&pair.x);
    ck_assert_uint_eq(stats.gpu_waits, 0);
    ck_assert_uint_eq(stats.gpu_late, 0);
}

GPU_TEST(a_stream_does_not_wait_for_a_tensor_that_is_ready, 0)
{
    auto_gpu_pair pair = dlx_test_gpu_pair_new();
    dlx_test_gpu_publish_behind(pair.x.p, pair.from, NULL, 0);
    struct dlx_message *m = dlx_test_stream_next(pair.x.s);
    DLManagedTensorVersioned *t;
    ok(dlx_message_tensor(m, 0, &t)); /* waits */
    ck_assert_int_eq(dlx_tensor_status(t), 0);
    t->deleter(t);
    ok(dlx_message_tensor_on(m, 0, pair.to, &t));
    ck_assert_int_eq(dlx_tensor_status(t), 0);
    dlx_test_gpu_check_calls("cuStreamWaitValue32", 0);
    t->deleter(t);
    dlx_message_unref(m);
    dlx_test_gpu_wait_held(pair.x.s, 0);
    ck_assert_uint_eq(dlx_test_gpu_stats(&pair.x).gpu_waits,
                      1 + dlx_test_gpu_stream_waits()); /* of the first deleter */
    fails(dlx_message_tensor_on(NULL, 0, NULL, &t), DLX_E_INVALID, "NULL");
    fails(dlx_tensor_status(NULL), DLX_E_INVALID, "dlx_tensor_status");
}

/* Of a set, a stream waits once. A tensor on the CPU is ready. */
GPU_TEST(a_stream_waits_once_for_all_tensors_of_a_message, DLX_TEST_GPU_GATES)
{
    auto_gpu_pair pair = dlx_test_gpu_pair_new();
    DLManagedTensorVersioned *t[4];
    struct dlx_item items[] = {{"a", dlx_test_gpu_alloc(pair.x.p, N, 7)},
                               {"b", dlx_test_gpu_alloc(pair.x.p, N, 7)},
                               {"c", dlx_test_stream_alloc(pair.x.p, 4, 3)}};
    dlx_test_gpu_gate_shut(&gate, pair.from);
    ok(dlx_publish_set(pair.x.p, items, 3, NULL, PUBLISH(.stream = pair.from), NULL));
    auto_message *m = dlx_test_stream_next(pair.x.s);
    for (uint32_t i = 0; i < 3; i++)
        ok(dlx_message_tensor_on(m, i, pair.to, &t[i]));
    ok(dlx_message_tensor_on(m, 0, pair.to, &t[3]));
    ck_assert_int_eq(dlx_tensor_status(t[1]), 1);
    ck_assert_int_eq(dlx_tensor_status(t[2]), 0);
    dlx_test_gpu_check_calls("cuStreamWaitValue32", 5); /* four were the trial */
    dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_sync(pair.to);
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_int_eq(dlx_tensor_status(t[i]), 0);
        t[i]->deleter(t[i]);
    }
}

/* All calls of the driver that are made meanwhile are about other streams. */
GPU_TEST(a_stream_that_is_captured_is_left_alone, 0)
{
    auto_gpu_pair pair = dlx_test_gpu_pair_new();
    CUstream captured = dlx_test_gpu_stream();
    DLManagedTensorVersioned *t = dlx_test_gpu_alloc(pair.x.p, N, 0);
    CU_OK(cu.cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
    dlx_test_gpu_publish_this(pair.x.p, t, pair.from, NULL, WORK_NS);
    t = dlx_test_gpu_take_on(&pair.x, pair.to);
    CU_OK(cu.cuMemcpyDtoDAsync(pair.copy, dlx_test_gpu_address(t), N * sizeof(uint32_t), pair.to));
    t->deleter(t);
    dlx_test_gpu_wait_held(pair.x.s, 0);
    dlx_test_gpu_end_capture(captured);
    ck_assert_uint_eq(dlx_test_gpu_word(pair.copy), 7);
}

/* Streams wait each for its own message, and the later one can be ready first. */
GPU_TEST(of_two_streams_the_one_that_waits_for_less_goes_on_first, DLX_TEST_GPU_GATES)
{
    auto_gpu_pair pair = dlx_test_gpu_pair_new();
    struct dlx_test_gpu_end other = {.c = pair.x.c};
    CUstream second = dlx_test_gpu_stream();
    ok(dlx_publisher_new(pair.x.c, "gpu/b", NULL, &other.p));
    ok(dlx_subscribe(pair.x.c, "gpu/*", NULL, &other.s));
    DLManagedTensorVersioned *of_other = dlx_test_gpu_alloc(other.p, N, 0);
    dlx_test_gpu_publish_behind(pair.x.p, pair.from, &gate, 0);
    DLManagedTensorVersioned *t = dlx_test_gpu_take_on(&other, pair.to);
    /* Not behind a gate: one thread of the driver runs the host functions of all streams. */
    dlx_test_gpu_publish_this(other.p, of_other, dlx_test_gpu_stream(), NULL, WORK_NS);
    DLManagedTensorVersioned *u = dlx_test_gpu_take_on(&other, second);
    ck_assert_int_eq(dlx_tensor_status(u), 1);
    dlx_test_gpu_sync(second);
    ck_assert_int_eq(dlx_tensor_status(u), 0);
    ck_assert_int_eq(dlx_tensor_status(t), 1);
    dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_sync(pair.to);
    ck_assert_int_eq(dlx_tensor_status(t), 0);
    t->deleter(t);
    u->deleter(u);
    dlx_message_unref(dlx_test_stream_next(pair.x.s));
    dlx_subscription_unref(other.s);
    dlx_publisher_unref(other.p);
}

GPU_TEST(a_late_subscriber_s_stream_waits_for_a_retained_message, DLX_TEST_GPU_GATES)
{
    auto_gpu_end x = dlx_test_gpu_publisher(PUBLISHER(.retain = 1));
    CUstream from = dlx_test_gpu_stream(), to = dlx_test_gpu_stream();
    dlx_test_gpu_publish_behind(x.p, from, &gate, 0);
    ok(dlx_subscribe(x.c, "gpu/a", NULL, &x.s));
    auto_tensor *t = dlx_test_gpu_take_on(&x, to);
    ck_assert_int_eq(dlx_tensor_status(t), 1);
    dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_sync(to);
    ck_assert_int_eq(dlx_tensor_status(t), 0);
    dlx_test_gpu_check(t, N, 7);
}

GPU_TEST(a_subscription_ends_when_no_stream_waits_any_more, DLX_TEST_GPU_GATES)
{
    auto_gpu_pair pair = dlx_test_gpu_pair_new();
    dlx_test_gpu_publish_behind(pair.x.p, pair.from, NULL, WORK_NS);
    auto_tensor *t = dlx_test_gpu_take_on(&pair.x, pair.to);
    ck_assert_int_eq(dlx_tensor_status(t), 1);
    pair.x.s = dlx_subscription_unref(pair.x.s);
    ck_assert_int_eq(dlx_tensor_status(t), 0);
    CU_OK(cu.cuStreamQuery(pair.from));
    dlx_test_gpu_sync(pair.to); /* or all that follows would wait for it */
}

#define ROUNDS 6U

struct end_of_cycle {
    struct dlx_test_gpu_end x;
    CUstream stream;
};

static struct end_of_cycle cycle_begin(const char *to, const char *from)
{
    struct end_of_cycle end = {.x.c = dlx_test_stream_connect()};
    (void)dlx_test_gpu_context(0);
    ok(dlx_publisher_new(end.x.c, to, PUBLISHER(.depth = 4 * ROUNDS), &end.x.p));
    ok(dlx_subscribe(end.x.c, from, NULL, &end.x.s));
    ok(dlx_publisher_wait(end.x.p, 1, PATIENCE));
    end.stream = dlx_test_gpu_stream();
    return end;
}

/* Publishes the received elements one place further, behind `first`. */
static void cycle_pass_on(struct end_of_cycle *end, uint32_t first, CUdeviceptr keep)
{
    DLManagedTensorVersioned *got, *next = dlx_test_gpu_alloc_empty(end->x.p, N);
    struct dlx_message *m = dlx_test_stream_next(end->x.s);
    ok(dlx_message_tensor_on(m, 0, end->stream, &got));
    dlx_message_unref(m);
    CU_OK(cu.cuMemsetD32Async(dlx_test_gpu_address(next), first, 1, end->stream));
    CU_OK(cu.cuMemcpyDtoDAsync(dlx_test_gpu_address(next) + sizeof first, dlx_test_gpu_address(got),
                               (N - 1) * sizeof first, end->stream));
    CU_OK(cu.cuMemcpyDtoDAsync(keep, dlx_test_gpu_address(next), N * sizeof first, end->stream));
    ok(dlx_publish(end->x.p, next, PUBLISH(.stream = end->stream), NULL));
    got->deleter(got);
}

static void cycle_end(struct end_of_cycle *end)
{
    dlx_test_gpu_wait_held(end->x.s, 0);
    struct dlx_subscription_stats stats = dlx_test_gpu_stats(&end->x);
    ck_assert_uint_eq(stats.gpu_waits, 0);
    ck_assert_uint_eq(stats.gpu_late, 0);
    dlx_test_gpu_end(&end->x);
}

static void be_the_other(int sock)
{
    CUdeviceptr keep;
    struct end_of_cycle end = cycle_begin("gpu/back", "gpu/forth");
    CU_OK(cu.cuMemAlloc(&keep, N * sizeof(uint32_t)));
    for (uint32_t i = 0; i < ROUNDS; i++)
        cycle_pass_on(&end, 2 * i + 1, keep);
    dlx_test_gpu_turn(sock);
    dlx_test_gpu_sync(end.stream);
    CU_OK(cu.cuMemFree(keep));
    cycle_end(&end);
}

/* All of it is queued before any of it begins. */
GPU_TEST(two_processes_pass_tensors_round_and_round_without_waiting, DLX_TEST_GPU_GATES)
{
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(be_the_other);
    struct end_of_cycle end = cycle_begin("gpu/forth", "gpu/back");
    DLManagedTensorVersioned *first = dlx_test_gpu_alloc(end.x.p, N, 99);
    CUdeviceptr keep;
    CU_OK(cu.cuMemAlloc(&keep, N * sizeof(uint32_t)));
    dlx_test_gpu_gate_shut(&gate, end.stream);
    CU_OK(cu.cuMemsetD32Async(dlx_test_gpu_address(first), 0, 1, end.stream));
    ok(dlx_publish(end.x.p, first, PUBLISH(.stream = end.stream), NULL));
    for (uint32_t i = 1; i <= ROUNDS; i++)
        cycle_pass_on(&end, 2 * i, keep);
    dlx_test_gpu_await(peer.sock);
    CU_FAILS(cu.cuStreamQuery(end.stream), CUDA_ERROR_NOT_READY);
    dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_sync(end.stream);
    for (uint32_t i = 0; i <= 2 * ROUNDS; i++)
        ck_assert_uint_eq(dlx_test_gpu_word(keep + i * sizeof i), 2 * ROUNDS - i);
    ck_assert_uint_eq(dlx_test_gpu_word(keep + (2 * ROUNDS + 1) * sizeof(uint32_t)), 99);
    dlx_test_gpu_tell(peer.sock);
    CU_OK(cu.cuMemFree(keep));
    dlx_test_gpu_wait_held(end.x.s, 0);
    dlx_test_gpu_join(&peer);
    cycle_end(&end);
}

static void publish_and_stay(int sock)
{
    dlx_test_gpu_await(sock);
    struct dlx_test_gpu_end x = dlx_test_gpu_publisher(NULL);
    CUstream stream = dlx_test_gpu_stream();
    ok(dlx_publisher_wait(x.p, 1, PATIENCE));
    dlx_test_gpu_publish_behind(x.p, stream, &gate, 0);
    dlx_test_gpu_turn(sock);
    if (dlx_test_gpu_variant == 1)
        dlx_test_gpu_lose_context();
    dlx_test_gpu_await(sock); /* to be killed */
}

/* The stream goes on, and who asks learns why; the event comes in the end. */
static void check_late(struct dlx_test_gpu_end *x, CUstream stream, DLManagedTensorVersioned *t,
                       int code, const char *text, const char *reason)
{
    struct dlx_event event = {.size = sizeof event};
    dlx_test_gpu_sync(stream);
    fails(dlx_tensor_status(t), code, text);
    ck_assert_uint_eq(dlx_test_gpu_stats(x).gpu_late, 1);
    do
        ok(dlx_subscription_next_event(x->s, &event));
    while (event.kind != DLX_EVENT_LATE);
    ck_assert_str_eq(event.topic, "gpu/a");
    ck_assert_str_eq(event.reason, reason);
    while (dlx_subscription_next_event(x->s, &event) == 0)
        ck_assert_int_ne(event.kind, DLX_EVENT_LATE);
}

/* 0: it is killed; 1: its GPU fails. */
GPU_LOOP_TEST(a_stream_goes_on_when_the_publisher_cannot_write_any_more, 0, 2, DLX_TEST_GPU_GATES)
{
    dlx_test_gpu_variant = _i;
    auto_gpu_end x = dlx_test_gpu_subscribe_to(publish_and_stay, NULL);
    CUstream stream = dlx_test_gpu_stream();
    DLManagedTensorVersioned *t = dlx_test_gpu_take_on(&x, stream);
    ck_assert_int_eq(dlx_tensor_status(t), 1);
    if (_i == 0)
        dlx_test_gpu_kill(&x.peer);
    else
        dlx_test_gpu_tell(x.peer.sock);
    int code = _i == 0 ? DLX_E_PUBLISHER_GONE : DLX_E_DEVICE;
    check_late(&x, stream, t, code, _i == 0 ? "gone" : "error of the publisher's GPU",
               dlx_strerror(code));
    t->deleter(t);
    if (_i == 1)
        dlx_test_gpu_kill(&x.peer); /* what its context lost is not to be looked for */
}

GPU_TEST(a_stream_goes_on_when_the_publisher_takes_too_long, DLX_TEST_GPU_GATES)
{
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    CUstream from = dlx_test_gpu_stream(), to = dlx_test_gpu_stream();
    DLManagedTensorVersioned *t, *again;
    ok(dlx_subscribe(x.c, "gpu/a", SUBSCRIBE(.stream_timeout_ns = SECOND / 20), &x.s));
    dlx_test_gpu_publish_behind(x.p, from, &gate, 0);
    struct dlx_message *m = dlx_test_stream_next(x.s);
    ok(dlx_message_tensor_on(m, 0, to, &t));
    check_late(&x, to, t, DLX_E_TIMEOUT,
               "has not written it within 0.05 s: see stream_timeout_ns of dlx_subscribe_args",
               "not ready within 0.05 s: see stream_timeout_ns of dlx_subscribe_args");
    ok(dlx_message_tensor_on(m, 0, to, &again)); /* once more, it waits anew */
    dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_sync(from);
    dlx_test_gpu_sync(to);
    again->deleter(again);
    ok(dlx_message_tensor_on(m, 0, to, &again));
    ck_assert_int_eq(dlx_tensor_status(again), 0);
    dlx_test_gpu_check(again, N, 7);
    again->deleter(again);
    t->deleter(t);
    dlx_message_unref(m);
    x.s = dlx_subscription_unref(x.s);
}

/* The CPU has waited for the publisher as long as calls may, five times, and the stream waits. */
GPU_TEST(a_stream_waits_without_a_limit_for_a_publisher_of_its_user, DLX_TEST_GPU_GATES)
{
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    CUstream from = dlx_test_gpu_stream(), to = dlx_test_gpu_stream();
    auto_client *c = NULL;
    DLManagedTensorVersioned *t, *none;
    ok(dlx_connect(CONNECT(.timeout_ns = SECOND / 20), &c));
    ok(dlx_subscribe(c, "gpu/a", NULL, &x.s));
    dlx_test_gpu_publish_behind(x.p, from, &gate, 0);
    struct dlx_message *m = dlx_test_stream_next(x.s);
    ok(dlx_message_tensor_on(m, 0, to, &t));
    for (int i = 0; i < 5; i++)
        fails(dlx_message_tensor(m, 0, &none), DLX_E_TIMEOUT, "the time of dlx_connect_args");
    ck_assert_int_eq(dlx_tensor_status(t), 1);
    dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_sync(to);
    ck_assert_int_eq(dlx_tensor_status(t), 0);
    ck_assert_uint_eq(dlx_test_gpu_stats(&x).gpu_late, 0);
    dlx_test_gpu_check(t, N, 7);
    t->deleter(t);
    dlx_message_unref(m);
    x.s = dlx_subscription_unref(x.s);
}

/* As if the daemon had said so, in e2e_gpu_keep_users. */
GPU_TEST(a_stream_waits_5_s_for_a_publisher_of_another_user, DLX_TEST_GPU_GATES)
{
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    CUstream from = dlx_test_gpu_stream(), to = dlx_test_gpu_stream();
    auto_client *c = NULL;
    ok(dlx_connect(CONNECT(.timeout_ns = 6 * SECOND), &c));
    ok(dlx_subscribe(c, "gpu/a", NULL, &x.s));
    x.s->links[0]->stream_wait_ns = DLX_STREAM_OTHER_USER_NS;
    dlx_test_gpu_publish_behind(x.p, from, &gate, 0);
    struct dlx_message *m = dlx_test_stream_next(x.s);
    DLManagedTensorVersioned *t, *none;
    ok(dlx_message_tensor_on(m, 0, to, &t));
    fails(dlx_message_tensor(m, 0, &none), DLX_E_TIMEOUT, "the time of dlx_connect_args");
    check_late(&x, to, t, DLX_E_TIMEOUT, "within 5 s, the default for other users",
               "not ready within 5 s, the default for other users: see stream_timeout_ns");
    dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_sync(to);
    t->deleter(t);
    dlx_message_unref(m);
    x.s = dlx_subscription_unref(x.s);
}

GPU_TEST(a_subscription_that_ends_lets_streams_go_on_when_a_call_would_end, DLX_TEST_GPU_GATES)
{
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    CUstream from = dlx_test_gpu_stream(), to = dlx_test_gpu_stream();
    auto_client *c = NULL;
    ok(dlx_connect(CONNECT(.timeout_ns = SECOND / 20), &c));
    ok(dlx_subscribe(c, "gpu/a", NULL, &x.s));
    dlx_test_gpu_publish_behind(x.p, from, &gate, 0);
    auto_tensor *t = dlx_test_gpu_take_on(&x, to);
    x.s = dlx_subscription_unref(x.s);
    fails(dlx_tensor_status(t), DLX_E_TIMEOUT, "within 0.05 s of the end of its subscription");
    dlx_test_gpu_sync(to);
    dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_sync(from);
}

#endif

GPU_MAIN(dlx_test_gpu_stream_case("stream"))
