/* SPDX-License-Identifier: Apache-2.0 */
/* Received tensors on GPUs are released when the work on the streams that were named is done, and
 * no call waits for that. */
#include "tests/gpu/harness_gpu_stream.h"

#if DLX_TEST_HAS_GPU
#include "tests/harness/fork.h"

#define N       16
#define WORK_NS UINT64_C(300000000) /* so long that what does not wait is seen */

static struct dlx_test_gpu_gate gate;

/* The publisher of another process publishes `n` tensors of others' memory, and stays. */
static void publish_some(int sock)
{
    dlx_test_gpu_await(sock);
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    ok(dlx_publisher_wait(x.p, 1, PATIENCE));
    for (int i = 0; i < dlx_test_gpu_variant; i++)
        ok(dlx_publish(x.p, dlx_test_gpu_tensor(0, 1, N, 7), NULL, NULL));
    dlx_test_gpu_turn(sock);
    if (dlx_test_gpu_variant > 1)
        dlx_test_gpu_wait_deleted(&x, (uint32_t)dlx_test_gpu_variant - 1);
}

/* The tensor of the next message, which the stream uses. */
static DLManagedTensorVersioned *take_used_on(struct dlx_test_gpu_end *x, CUstream stream)
{
    DLManagedTensorVersioned *t = dlx_test_gpu_take_tensor(x);
    ok(dlx_tensor_used_on(t, stream));
    return t;
}

static uint64_t n_waits(const struct dlx_test_gpu_end *x)
{
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(x->s);
    ck_assert_uint_eq(stats.gpu_errors, 0);
    return stats.gpu_waits;
}

GPU_TEST(a_deleter_returns_while_work_on_its_streams_goes_on, DLX_TEST_GPU_EVENTS)
{
    dlx_test_gpu_variant = 1;
    auto_gpu_end x = dlx_test_gpu_subscribe_to(publish_some, NULL);
    CUstream busy = dlx_test_gpu_stream(), idle = dlx_test_gpu_stream();
    DLManagedTensorVersioned *t = dlx_test_gpu_take_tensor(&x);
    CUdeviceptr copy, at = dlx_test_gpu_address(t);
    CU_OK(cu.cuMemAlloc(&copy, N * sizeof(uint32_t)));
    ok(dlx_tensor_used_on(t, idle));
    ok(dlx_tensor_used_on(t, busy));
    dlx_test_gpu_gate_shut(&gate, busy);
    CU_OK(cu.cuMemcpyDtoDAsync(copy, at, N * sizeof(uint32_t), busy));
    t->deleter(t);
    CU_FAILS(cu.cuStreamQuery(busy), CUDA_ERROR_NOT_READY);
    dlx_test_gpu_wait_held(x.s, 1);
    dlx_test_gpu_check_count(STANDIN_IPC_MAPPINGS, 1);
    dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_wait_held(x.s, 0);
    CU_OK(cu.cuStreamQuery(busy));
    ck_assert_uint_eq(dlx_test_gpu_word(copy), 7);
    ck_assert_uint_eq(n_waits(&x), 0);
    dlx_test_gpu_check_count(STANDIN_UNMAPPED_IN_USE, 0);
    CU_OK(cu.cuMemFree(copy));
}

GPU_TEST(a_tensor_whose_work_is_done_is_released_at_once, 0)
{
    dlx_test_gpu_variant = 1;
    auto_gpu_end x = dlx_test_gpu_subscribe_to(publish_some, NULL);
    CUstream stream = dlx_test_gpu_stream();
    DLManagedTensorVersioned *t = take_used_on(&x, stream);
    t->deleter(t);
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(x.s);
    ck_assert_uint_eq(stats.n_held, 0);
    ck_assert_uint_eq(stats.gpu_waits, dlx_test_gpu_stream_waits());
}

/* The memory is its publisher's again when the stream is done with it, and not before. */
GPU_TEST(memory_is_not_used_again_while_a_stream_uses_it, DLX_TEST_GPU_EVENTS)
{
    auto_gpu_end x = dlx_test_gpu_both(NULL);
    CUstream stream = dlx_test_gpu_stream();
    ok(dlx_publish(x.p, dlx_test_gpu_tensor(0, 1, N, 7), NULL, NULL));
    DLManagedTensorVersioned *t = take_used_on(&x, stream);
    dlx_test_gpu_gate_shut(&gate, stream);
    t->deleter(t);
    for (int i = 0; i < 8; i++) { /* the newest message would stay in any case */
        dlx_test_stream_publish(x.p, 4, 1);
        dlx_message_unref(dlx_test_stream_next(x.s));
        ok(dlx_publisher_wait(x.p, 0, 0));
    }
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 0);
    dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_wait_deleted(&x, 1);
    CU_OK(cu.cuStreamQuery(stream));
}

/* A subscriber that runs ahead of its GPU waits in dlx_take(), if it may. */
GPU_TEST(a_take_waits_for_room_that_a_stream_will_make, DLX_TEST_GPU_EVENTS)
{
    dlx_test_gpu_variant = 2;
    auto_gpu_end x = dlx_test_gpu_subscribe_to(publish_some, SUBSCRIBE(.max_held = 1));
    CUstream stream = dlx_test_gpu_stream();
    struct dlx_message *m;
    DLManagedTensorVersioned *t = dlx_test_gpu_take_tensor(&x);
    fails(dlx_take(x.s, PATIENCE, &m), DLX_E_TOO_MANY_HELD, "max_held"); /* no release makes room */
    ok(dlx_tensor_used_on(t, stream));
    dlx_test_gpu_gate_shut(&gate, stream);
    dlx_test_gpu_spin(stream, 0, WORK_NS);
    t->deleter(t);
    fails(dlx_take(x.s, 0, &m), DLX_E_TOO_MANY_HELD, "max_held");
    fails(dlx_take(x.s, SECOND / 50, &m), DLX_E_TOO_MANY_HELD, "max_held");
    dlx_test_gpu_gate_open(&gate);
    t = dlx_test_gpu_take_tensor(&x);
    CU_OK(cu.cuStreamQuery(stream));
    t->deleter(t);
}

/* 0: it has deleted the tensor before; 1: it does so afterwards. */
GPU_LOOP_TEST(a_subscription_ends_when_the_work_is_done, 0, 2, 0)
{
    dlx_test_gpu_variant = 1;
    auto_gpu_end x = dlx_test_gpu_subscribe_to(publish_some, NULL);
    CUstream stream = dlx_test_gpu_stream();
    DLManagedTensorVersioned *t = take_used_on(&x, stream);
    dlx_test_gpu_spin(stream, 0, WORK_NS);
    if (_i == 0)
        t->deleter(t);
    x.s = dlx_subscription_unref(x.s);
    if (_i == 1)
        t->deleter(t);
    CU_OK(cu.cuStreamQuery(stream));
    dlx_test_gpu_check_count(STANDIN_IPC_MAPPINGS, 0);
    dlx_test_gpu_check_count(STANDIN_UNMAPPED_IN_USE, 0);
}

/* The publisher has left: the release is the last that refers to the link. */
GPU_TEST(a_release_ends_the_link_of_a_publisher_that_has_left, DLX_TEST_GPU_EVENTS)
{
    struct dlx_test_gpu_end x = dlx_test_gpu_both(NULL);
    struct dlx_message *m;
    CUstream stream = dlx_test_gpu_stream();
    ok(dlx_publish(x.p, dlx_test_gpu_alloc(x.p, N, 7), NULL, NULL));
    DLManagedTensorVersioned *t = dlx_test_gpu_take_tensor(&x);
    x.p = dlx_publisher_unref(x.p);
    fails(dlx_take(x.s, PATIENCE, &m), DLX_E_PUBLISHER_GONE, "left");
    ok(dlx_tensor_used_on(t, stream));
    dlx_test_gpu_gate_shut(&gate, stream);
    t->deleter(t);
    dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_end(&x);
    CU_OK(cu.cuStreamQuery(stream));
}

/* A publisher and a subscriber of this process that may hold `n` messages, which are taken. */
static struct dlx_test_gpu_end take_many(DLManagedTensorVersioned **ret, int n)
{
    struct dlx_test_gpu_end x = dlx_test_gpu_publisher(PUBLISHER(.depth = (uint32_t)n));
    ok(dlx_subscribe(x.c, "gpu/a", SUBSCRIBE(.max_held = (uint32_t)n), &x.s));
    for (int i = 0; i < n; i++) {
        ok(dlx_publish(x.p, dlx_test_gpu_alloc(x.p, N, 7), NULL, NULL));
        ret[i] = dlx_test_gpu_take_tensor(&x);
    }
    return x;
}

GPU_TEST(a_release_does_not_wait_for_the_streams_of_others, DLX_TEST_GPU_EVENTS)
{
    DLManagedTensorVersioned *t[4];
    auto_gpu_end x = take_many(t, 4);
    CUstream slow = dlx_test_gpu_stream(), quick = dlx_test_gpu_stream();
    dlx_test_gpu_gate_shut(&gate, slow);
    for (int i = 0; i < 4; i++) {
        CUstream stream = i % 2 == 0 ? slow : quick;
        ok(dlx_tensor_used_on(t[i], stream));
        if (stream == quick)
            dlx_test_gpu_spin(quick, 0, WORK_NS / 10);
        t[i]->deleter(t[i]);
    }
    dlx_test_gpu_wait_held(x.s, 2);
    CU_FAILS(cu.cuStreamQuery(slow), CUDA_ERROR_NOT_READY);
    dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_wait_held(x.s, 0);
    ck_assert_uint_eq(n_waits(&x), 0);
}

/* Some releases share a thread. The last ones end first. */
GPU_TEST(releases_on_more_streams_than_there_are_threads_all_end, DLX_TEST_GPU_EVENTS)
{
    enum { N_STREAMS = 12 };
    static struct dlx_test_gpu_gate gates[N_STREAMS];
    DLManagedTensorVersioned *t[N_STREAMS];
    CUstream streams[N_STREAMS];
    auto_gpu_end x = take_many(t, N_STREAMS);
    for (int i = 0; i < N_STREAMS; i++) {
        streams[i] = dlx_test_gpu_stream();
        ok(dlx_tensor_used_on(t[i], streams[i]));
        dlx_test_gpu_gate_shut(&gates[i], streams[i]);
        t[i]->deleter(t[i]);
    }
    dlx_test_gpu_wait_held(x.s, N_STREAMS);
    for (int i = N_STREAMS; i-- > 0;)
        dlx_test_gpu_gate_open(&gates[i]);
    dlx_test_gpu_wait_held(x.s, 0);
    ck_assert_uint_eq(n_waits(&x), 0);
}

#define N_PINNED INT64_C(4096)
#define PINNED   ((size_t)N_PINNED * sizeof(int64_t))

/* A message of 4096 numbers from `value` on. The driver may refuse to pin: then no copy waits. */
static struct dlx_test_pair pinned_pair(int64_t value, struct dlx_message **ret)
{
    if (dlx_test_gpu_is_standin())
        standin.standin_set_attribute(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1);
    (void)dlx_test_gpu_context(0);
    struct dlx_test_pair x = dlx_test_pair_make(NULL, SUBSCRIBE(.pin = dlx_test_gpu_device(0)));
    dlx_test_stream_publish(x.p, N_PINNED, value);
    ok(dlx_take(x.s, PATIENCE, ret));
    return x;
}

static struct dlx_subscription_stats pinned_stats(const struct dlx_test_pair *x)
{
    return dlx_test_stream_subscription_stats(x->s);
}

/* Publish and take another message; where it lies. */
static const void *pass_another(struct dlx_test_pair *x)
{
    dlx_test_stream_publish(x->p, N_PINNED, 0);
    auto_message *m = dlx_test_stream_next(x->s);
    return dlx_message_tensor_peek(m, 0)->data;
}

GPU_TEST(pinned_memory_is_not_written_again_before_a_copy_from_it_is_done, DLX_TEST_GPU_EVENTS)
{
    struct dlx_message *m;
    DLManagedTensorVersioned *t;
    struct dlx_test_pair x = pinned_pair(5, &m);
    bool is_pinned = pinned_stats(&x).pin_failures == 0;
    CUstream stream = dlx_test_gpu_stream();
    CUdeviceptr copy;
    int64_t got[2];
    CU_OK(cu.cuMemAlloc(&copy, PINNED));
    if (!is_pinned)
        dlx_test_gpu_unchecked("copies from memory that this driver does not pin");
    ok(dlx_message_tensor(m, 0, &t));
    dlx_message_unref(m);
    const void *data = t->dl_tensor.data;
    ok(dlx_tensor_used_on(t, stream));
    ok(dlx_tensor_used_on(t, stream));
    if (is_pinned)
        dlx_test_gpu_gate_shut(&gate, stream);
    CU_OK(cu.cuMemcpyHtoDAsync(copy, data, PINNED, stream));
    t->deleter(t);
    for (int i = 0; i < 20 && is_pinned; i++)
        ck_assert_ptr_ne(pass_another(&x), data);
    dlx_test_gpu_wait_held(x.s, is_pinned ? 1 : 0);
    if (is_pinned)
        dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_sync(stream);
    dlx_test_gpu_wait_held(x.s, 0);
    CU_OK(cu.cuMemcpyDtoH(got, copy + PINNED - sizeof got, sizeof got));
    ck_assert_int_eq(got[1], 5 + N_PINNED - 1);
    eventually(pass_another(&x) == data);
    ck_assert_uint_eq(pinned_stats(&x).gpu_waits, 0);
    CU_OK(cu.cuMemFree(copy));
    dlx_test_pair_end(&x);
    dlx_test_gpu_check_count(STANDIN_EVENTS, 0);
}

/* Its user does not know that the copy was queued, nor where. */
GPU_TEST(memory_that_any_stream_may_use_is_released_when_all_of_them_are_done, DLX_TEST_GPU_CHOICE)
{
    struct dlx_message *m;
    DLManagedTensorVersioned *t;
    struct dlx_test_pair x = pinned_pair(5, &m);
    CUstream stream = dlx_test_gpu_stream();
    CUdeviceptr copy;
    int64_t got[2];
    CU_OK(cu.cuMemAlloc(&copy, PINNED));
    ok(dlx_message_tensor(m, 0, &t));
    dlx_message_unref(m);
    const void *data = t->dl_tensor.data;
    ok(dlx_tensor_used_on(t, dlx_test_gpu_stream()));
    ok(dlx_tensor_used_on(t, DLX_STREAM_ALL));
    dlx_test_gpu_gate_shut(&gate, stream);
    CU_OK(cu.cuMemcpyHtoDAsync(copy, data, PINNED, stream));
    t->deleter(t);
    for (int i = 0; i < 20; i++)
        ck_assert_ptr_ne(pass_another(&x), data);
    dlx_test_gpu_wait_held(x.s, 1);
    dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_wait_held(x.s, 0);
    CU_OK(cu.cuStreamQuery(stream));
    CU_OK(cu.cuMemcpyDtoH(got, copy + PINNED - sizeof got, sizeof got));
    ck_assert_int_eq(got[1], 5 + N_PINNED - 1);
    ck_assert_uint_eq(pinned_stats(&x).gpu_waits, 0);
    CU_OK(cu.cuMemFree(copy));
    dlx_test_pair_end(&x);
}

/* A stream that is named takes the place of all of them, and so does none. */
GPU_LOOP_TEST(memory_that_other_streams_do_not_use_is_released_without_them, 0, 2,
              DLX_TEST_GPU_CHOICE)
{
    struct dlx_message *m;
    DLManagedTensorVersioned *t;
    auto_pair x = pinned_pair(5, &m);
    CUstream busy = dlx_test_gpu_stream(), idle = dlx_test_gpu_stream();
    ok(dlx_message_tensor(m, 0, &t));
    dlx_message_unref(m);
    ok(dlx_tensor_used_on(t, DLX_STREAM_ALL));
    ok(dlx_tensor_used_on(t, _i == 0 ? idle : DLX_STREAM_NONE));
    dlx_test_gpu_gate_shut(&gate, busy);
    t->deleter(t);
    ck_assert_uint_eq(pinned_stats(&x).n_held, 0);
    ck_assert_uint_eq(pinned_stats(&x).gpu_waits, _i == 0 ? dlx_test_gpu_stream_waits() : 0);
    dlx_test_gpu_gate_open(&gate);
}

/* A set on the CPU; two streams use its first tensor, none its second. */
GPU_TEST(a_set_in_pinned_memory_is_released_when_all_its_streams_are_done, DLX_TEST_GPU_EVENTS)
{
    struct dlx_message *m;
    auto_pair x = pinned_pair(5, &m);
    DLManagedTensorVersioned *t[2];
    CUstream streams[] = {dlx_test_gpu_stream(), dlx_test_gpu_stream()};
    dlx_message_unref(m);
    struct dlx_item items[] = {{"a", dlx_test_stream_alloc(x.p, 4, 1)},
                               {"b", dlx_test_stream_alloc(x.p, 4, 2)}};
    ok(dlx_publish_set(x.p, items, 2, NULL, NULL, NULL));
    ok(dlx_take(x.s, PATIENCE, &m));
    for (uint32_t i = 0; i < 2; i++) {
        ok(dlx_message_tensor(m, i, &t[i]));
        ok(dlx_tensor_used_on(t[0], streams[i]));
    }
    dlx_message_unref(m);
    dlx_test_gpu_gate_shut(&gate, streams[1]);
    t[1]->deleter(t[1]);
    t[0]->deleter(t[0]);
    dlx_test_gpu_wait_held(x.s, 1);
    dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_wait_held(x.s, 0);
    CU_OK(cu.cuStreamQuery(streams[1]));
    ck_assert_uint_eq(pinned_stats(&x).gpu_waits, 0);
}

GPU_TEST(memory_that_is_not_pinned_is_used_on_no_stream, 0)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    dlx_test_stream_publish(x.p, 4, 1);
    auto_message *m = dlx_test_stream_next(x.s);
    auto_tensor *t = NULL;
    ok(dlx_message_tensor(m, 0, &t));
    fails(dlx_tensor_used_on(t, NULL), DLX_E_DEVICE, "has no `pin`");
    fails(dlx_message_tensor_on(m, 0, DLX_STREAM_ALL, &t), DLX_E_INVALID, "dlx_tensor_used_on");
}

/* One release is under way, and another one would be: the child leaves both to its parent. */
GPU_TEST(a_forked_child_releases_nothing_and_its_parent_still_does, DLX_TEST_GPU_EVENTS)
{
    DLManagedTensorVersioned *t[2];
    auto_gpu_end x = take_many(t, 2);
    CUstream stream = dlx_test_gpu_stream();
    for (int i = 0; i < 2; i++)
        ok(dlx_tensor_used_on(t[i], stream));
    dlx_test_gpu_gate_shut(&gate, stream);
    t[0]->deleter(t[0]);
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        t[1]->deleter(t[1]);
        dlx_subscription_unref(x.s);
        dlx_publisher_unref(x.p);
        dlx_client_unref(x.c);
        _exit(0);
    }
    dlx_test_fork_join(pid);
    if (dlx_test_gpu_is_standin())
        ck_assert_uint_eq(standin.standin_count_of(pid, STANDIN_CALLS_AFTER_FORK), 0);
    dlx_test_gpu_wait_held(x.s, 2);
    t[1]->deleter(t[1]);
    dlx_test_gpu_wait_held(x.s, 2);
    dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_wait_held(x.s, 0);
    CU_OK(cu.cuStreamQuery(stream));
}

static struct dlx_test_gpu_end own;
static CUstream own_stream;

/* Returns 1 if the release waited, or found another way. */
static int use_and_release(void)
{
    uint64_t before = n_waits(&own);
    ok(dlx_publish(own.p, dlx_test_gpu_tensor(0, 1, N, 7), NULL, NULL));
    DLManagedTensorVersioned *t = take_used_on(&own, own_stream);
    dlx_test_gpu_gate_shut(&gate, own_stream);
    dlx_test_gpu_gate_open(&gate);
    t->deleter(t);
    dlx_test_gpu_wait_held(own.s, 0);
    CU_OK(cu.cuStreamQuery(own_stream));
    return n_waits(&own) > before;
}

/* The release of memory of this process needs no call but those for its events. */
GPU_TEST(a_release_that_gets_no_event_waits_and_is_counted,
         DLX_TEST_GPU_FAILURES | DLX_TEST_GPU_EVENTS)
{
    static const char *const calls[] = {"cuEventCreate", "cuEventRecord",
                                        "cuDevicePrimaryCtxRetain", "cuStreamIsCapturing",
                                        "cuCtxPushCurrent"};
    own = dlx_test_gpu_both(NULL);
    own_stream = dlx_test_gpu_stream();
    ck_assert_int_eq(use_and_release(), 0);
    DLManagedTensorVersioned *t;
    for (size_t i = 0; i < DLX_ARRAY_SIZE(calls); i++) {
        ok(dlx_publish(own.p, dlx_test_gpu_tensor(0, 1, N, 7), NULL, NULL));
        t = take_used_on(&own, own_stream);
        dlx_test_gpu_spin(own_stream, 0, WORK_NS);
        ck_assert(standin.standin_fail(calls[i], 1, 1, CUDA_ERROR_OUT_OF_MEMORY));
        t->deleter(t);
        standin.standin_fail_clear();
        CU_OK(cu.cuStreamQuery(own_stream));
        ck_assert_uint_eq(n_waits(&own), i + 1);
        dlx_test_gpu_check_count(STANDIN_EVENTS, 0);
    }
    /* The thread cannot wait for the event: it waits for the device. */
    ok(dlx_publish(own.p, dlx_test_gpu_tensor(0, 1, N, 7), NULL, NULL));
    t = take_used_on(&own, own_stream);
    dlx_test_gpu_gate_shut(&gate, own_stream);
    ck_assert(standin.standin_fail("cuEventSynchronize", 1, 1, CUDA_ERROR_OUT_OF_MEMORY));
    t->deleter(t);
    dlx_test_gpu_wait_held(own.s, 1);
    dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_wait_held(own.s, 0);
    CU_OK(cu.cuStreamQuery(own_stream));
    standin.standin_fail_clear();
    ck_assert_uint_eq(n_waits(&own), DLX_ARRAY_SIZE(calls));
    dlx_test_gpu_end(&own);
    dlx_test_gpu_check_count(STANDIN_EVENTS, 0);
}

/* Those that cuda.h says end the context: gpu/cuda_load.c. */
static const CUresult ends[] = {
    (CUresult)226,
    CUDA_ERROR_ILLEGAL_ADDRESS,
    CUDA_ERROR_LAUNCH_TIMEOUT,
    CUDA_ERROR_ASSERT,
    CUDA_ERROR_HARDWARE_STACK_ERROR,
    CUDA_ERROR_ILLEGAL_INSTRUCTION,
    CUDA_ERROR_MISALIGNED_ADDRESS,
    CUDA_ERROR_INVALID_ADDRESS_SPACE,
    CUDA_ERROR_INVALID_PC,
    CUDA_ERROR_LAUNCH_FAILED,
    (CUresult)721,
    CUDA_ERROR_MPS_CLIENT_TERMINATED,
    CUDA_ERROR_EXTERNAL_DEVICE,
};

static void lose_context_while_releasing(int sock)
{
    struct dlx_test_gpu_end x = dlx_test_gpu_both(NULL);
    CUstream stream = dlx_test_gpu_stream();
    ok(dlx_publish(x.p, dlx_test_gpu_alloc(x.p, N, 7), NULL, NULL));
    DLManagedTensorVersioned *t = take_used_on(&x, stream);
    dlx_test_gpu_gate_shut(&gate, stream);
    t->deleter(t);
    dlx_test_gpu_wait_held(x.s, 1);
    CU_OK(standin.standin_poison(ends[dlx_test_gpu_variant]));
    dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_wait_held(x.s, 0);
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(x.s);
    ck_assert_uint_eq(stats.gpu_errors, 1);
    ck_assert_uint_eq(stats.gpu_waits, 0);
    dlx_test_gpu_turn(sock);
}

GPU_LOOP_TEST(an_error_of_the_gpu_releases_and_is_counted, 0, (int)DLX_ARRAY_SIZE(ends),
              DLX_TEST_GPU_FAILURES | DLX_TEST_GPU_EVENTS)
{
    dlx_test_gpu_variant = _i;
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(lose_context_while_releasing);
    dlx_test_gpu_await(peer.sock);
    dlx_test_gpu_kill(&peer); /* what its context lost is not to be looked for */
}

/* Those that CUDA and HIP have: gpu/hip_wait.c. */
static const CUresult ends_of_both[] = {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_TIMEOUT,
                                        CUDA_ERROR_ASSERT, CUDA_ERROR_LAUNCH_FAILED};

static void lose_context_before_releasing(int sock)
{
    struct dlx_test_gpu_end x = dlx_test_gpu_both(NULL);
    ok(dlx_publish(x.p, dlx_test_gpu_alloc(x.p, N, 7), NULL, NULL));
    DLManagedTensorVersioned *t = dlx_test_gpu_take_tensor(&x);
    CU_OK(standin.standin_poison(ends_of_both[dlx_test_gpu_variant]));
    t->deleter(t);
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(x.s);
    ck_assert_uint_eq(stats.n_held, 0);
    ck_assert_uint_eq(stats.gpu_errors, 1);
    ck_assert_uint_eq(stats.gpu_waits, 1);
    dlx_test_gpu_turn(sock);
}

GPU_LOOP_TEST(an_error_of_the_gpu_ends_the_wait_for_all_its_work, 0,
              (int)DLX_ARRAY_SIZE(ends_of_both), DLX_TEST_GPU_FAILURES)
{
    dlx_test_gpu_variant = _i;
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(lose_context_before_releasing);
    dlx_test_gpu_await(peer.sock);
    dlx_test_gpu_kill(&peer); /* what its context lost is not to be looked for */
}

#endif

GPU_MAIN(dlx_test_gpu_stream_case("release"))
