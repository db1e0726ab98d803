/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that wait until received tensors are ready, while no CPU does. */
#include "tests/harness_gpu_machine.h"
#include "tests/harness_run.h"
#include <stdio.h>

#if DLX_TEST_HAS_GPU
#include "tests/harness_gpu_stream.h"
#include <sched.h>
#include <string.h>

#define N       16
#define WORK_NS UINT64_C(300000000) /* so long that what does not wait is seen */

static struct dlx_test_gpu_gate gate;

static CUstream new_stream(void)
{
    CUstream stream;
    CU_OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static CUdeviceptr address(const DLManagedTensorVersioned *t)
{
    return (CUdeviceptr)(uintptr_t)t->dl_tensor.data;
}

/* A tensor that `stream` fills with 7, behind the gate and work of `work_ns`, is published at once. */
static void publish_this(struct dlx_publisher *p, DLManagedTensorVersioned *t, CUstream stream,
                         struct dlx_test_gpu_gate *shut_gate, uint64_t work_ns)
{
    struct dlx_publish_args args = {.size = sizeof args, .stream = stream};
    if (shut_gate)
        dlx_test_gpu_gate_shut(shut_gate, stream);
    if (work_ns > 0)
        dlx_test_gpu_spin(stream, 0, work_ns);
    CU_OK(cu.cuMemsetD32Async(address(t), 7, N, stream));
    ok(dlx_publish(p, t, &args));
}

/* The tensor is made before, since that waits for the device. */
static void publish_behind(struct dlx_publisher *p, CUstream stream,
                           struct dlx_test_gpu_gate *shut_gate, uint64_t work_ns)
{
    publish_this(p, dlx_test_gpu_alloc(p, N, 0), stream, shut_gate, work_ns);
}

static DLManagedTensorVersioned *take_on(struct dlx_test_gpu_end *x, CUstream stream)
{
    DLManagedTensorVersioned *t;
    struct dlx_message *m = dlx_test_gpu_take(x);
    ok(dlx_message_tensor_on(m, 0, stream, &t));
    dlx_message_unref(m);
    return t;
}

static struct dlx_subscription_stats stats_of(const struct dlx_test_gpu_end *x)
{
    struct dlx_subscription_stats stats = {.size = sizeof stats};
    ok(dlx_subscription_get_stats(x->s, &stats));
    return stats;
}

/* Both ends in this process. The streams: of the publisher, which is held, and of the consumer. */
struct pair {
    struct dlx_test_gpu_end x;
    CUstream from, to;
    CUdeviceptr copy;
};

static struct pair pair_new(void)
{
    struct pair pair = {.x = dlx_test_gpu_publisher(NULL)};
    ok(dlx_subscribe(pair.x.c, "gpu/a", NULL, &pair.x.s));
    pair.from = new_stream();
    pair.to = new_stream();
    CU_OK(cu.cuMemAlloc(&pair.copy, N * sizeof(uint32_t)));
    CU_OK(cu.cuMemsetD32(pair.copy, 0, N));
    return pair;
}

static void pair_end(struct pair *pair)
{
    CU_OK(cu.cuMemFree(pair->copy));
    CU_OK(cu.cuStreamDestroy(pair->from));
    CU_OK(cu.cuStreamDestroy(pair->to));
    dlx_test_gpu_end(&pair->x);
}

/* ---- order --------------------------------------------------------------------------------- */

START_TEST(take_and_release_return_while_the_publisher_s_work_goes_on)
{
    struct pair pair = pair_new();
    publish_behind(pair.x.p, pair.from, &gate, 0);
    DLManagedTensorVersioned *t = take_on(&pair.x, pair.to);
    ck_assert_int_eq(dlx_tensor_status(t), 1);
    CU_OK(cu.cuMemcpyDtoDAsync(pair.copy, address(t), N * sizeof(uint32_t), pair.to));
    t->deleter(t);
    CU_FAILS(cu.cuStreamQuery(pair.from), CUDA_ERROR_NOT_READY);
    CU_FAILS(cu.cuStreamQuery(pair.to), CUDA_ERROR_NOT_READY);
    dlx_test_gpu_wait_held(pair.x.s, 1);
    dlx_test_gpu_gate_open(&gate);
    CU_OK(cu.cuStreamSynchronize(pair.to));
    ck_assert_uint_eq(dlx_test_gpu_word(pair.copy), 7);
    dlx_test_gpu_wait_held(pair.x.s, 0);
    struct dlx_subscription_stats stats = stats_of(&pair.x);
    ck_assert_uint_eq(stats.gpu_waits, 0);
    ck_assert_uint_eq(stats.gpu_late, 0);
    pair_end(&pair);
}
END_TEST

START_TEST(a_stream_does_not_wait_for_a_tensor_that_is_ready)
{
    struct pair pair = pair_new();
    publish_behind(pair.x.p, pair.from, NULL, 0);
    struct dlx_message *m = dlx_test_gpu_take(&pair.x);
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
    ck_assert_uint_eq(stats_of(&pair.x).gpu_waits, 1); /* of the first deleter */
    fails(dlx_message_tensor_on(NULL, 0, NULL, &t), DLX_E_INVALID, "NULL");
    fails(dlx_tensor_status(NULL), DLX_E_INVALID, "dlx_tensor_status");
    pair_end(&pair);
}
END_TEST

/* Of a set, a stream waits once. A tensor on the CPU is ready. */
START_TEST(a_stream_waits_once_for_all_tensors_of_a_message)
{
    struct pair pair = pair_new();
    DLManagedTensorVersioned *t[4];
    struct dlx_item items[] = {{"a", dlx_test_gpu_alloc(pair.x.p, N, 7)},
                               {"b", dlx_test_gpu_alloc(pair.x.p, N, 7)},
                               {"c", dlx_test_stream_alloc(pair.x.p, 4, 3)}};
    struct dlx_publish_args args = {.size = sizeof args, .stream = pair.from};
    dlx_test_gpu_gate_shut(&gate, pair.from);
    ok(dlx_publish_set(pair.x.p, items, 3, NULL, &args));
    struct dlx_message *m = dlx_test_gpu_take(&pair.x);
    for (uint32_t i = 0; i < 3; i++)
        ok(dlx_message_tensor_on(m, i, pair.to, &t[i]));
    ok(dlx_message_tensor_on(m, 0, pair.to, &t[3]));
    ck_assert_int_eq(dlx_tensor_status(t[1]), 1);
    ck_assert_int_eq(dlx_tensor_status(t[2]), 0);
    dlx_test_gpu_check_calls("cuStreamWaitValue32", 2); /* one was a trial */
    dlx_test_gpu_gate_open(&gate);
    CU_OK(cu.cuStreamSynchronize(pair.to));
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_int_eq(dlx_tensor_status(t[i]), 0);
        t[i]->deleter(t[i]);
    }
    dlx_message_unref(m);
    pair_end(&pair);
}
END_TEST

/* Streams wait each for its own message, and the later one can be ready first. */
START_TEST(of_two_streams_the_one_that_waits_for_less_goes_on_first)
{
    struct pair pair = pair_new();
    struct dlx_test_gpu_end other = {.c = pair.x.c};
    CUstream second = new_stream();
    ok(dlx_publisher_new(pair.x.c, "gpu/b", NULL, &other.p));
    ok(dlx_subscribe(pair.x.c, "gpu/*", NULL, &other.s));
    DLManagedTensorVersioned *of_other = dlx_test_gpu_alloc(other.p, N, 0);
    publish_behind(pair.x.p, pair.from, &gate, 0);
    DLManagedTensorVersioned *t = take_on(&other, pair.to);
    struct dlx_test_gpu_gate other_gate;
    CUstream other_from = new_stream();
    publish_this(other.p, of_other, other_from, &other_gate, 0);
    DLManagedTensorVersioned *u = take_on(&other, second);
    ck_assert_int_eq(dlx_tensor_status(u), 1);
    dlx_test_gpu_gate_open(&other_gate);
    CU_OK(cu.cuStreamSynchronize(second));
    ck_assert_int_eq(dlx_tensor_status(u), 0);
    ck_assert_int_eq(dlx_tensor_status(t), 1);
    dlx_test_gpu_gate_open(&gate);
    CU_OK(cu.cuStreamSynchronize(pair.to));
    ck_assert_int_eq(dlx_tensor_status(t), 0);
    t->deleter(t);
    u->deleter(u);
    dlx_message_unref(dlx_test_gpu_take(&pair.x));
    CU_OK(cu.cuStreamDestroy(second));
    CU_OK(cu.cuStreamDestroy(other_from));
    dlx_subscription_unref(other.s);
    dlx_publisher_unref(other.p);
    pair_end(&pair);
}
END_TEST

START_TEST(a_late_subscriber_s_stream_waits_for_a_retained_message)
{
    const struct dlx_publisher_args retain = {.size = sizeof retain, .retain = 1};
    struct dlx_test_gpu_end x = dlx_test_gpu_publisher(&retain);
    CUstream from = new_stream(), to = new_stream();
    publish_behind(x.p, from, &gate, 0);
    ok(dlx_subscribe(x.c, "gpu/a", NULL, &x.s));
    DLManagedTensorVersioned *t = take_on(&x, to);
    ck_assert_int_eq(dlx_tensor_status(t), 1);
    dlx_test_gpu_gate_open(&gate);
    CU_OK(cu.cuStreamSynchronize(to));
    ck_assert_int_eq(dlx_tensor_status(t), 0);
    dlx_test_gpu_check(t, N, 7);
    t->deleter(t);
    CU_OK(cu.cuStreamDestroy(from));
    CU_OK(cu.cuStreamDestroy(to));
    dlx_test_gpu_end(&x);
}
END_TEST

START_TEST(a_subscription_ends_when_no_stream_waits_any_more)
{
    struct pair pair = pair_new();
    publish_behind(pair.x.p, pair.from, NULL, WORK_NS);
    DLManagedTensorVersioned *t = take_on(&pair.x, pair.to);
    ck_assert_int_eq(dlx_tensor_status(t), 1);
    pair.x.s = dlx_subscription_unref(pair.x.s);
    ck_assert_int_eq(dlx_tensor_status(t), 0);
    CU_OK(cu.cuStreamQuery(pair.from));
    t->deleter(t);
    pair_end(&pair);
}
END_TEST

/* ---- two processes in a cycle -------------------------------------------------------------- */

#define ROUNDS 6U

struct end_of_cycle {
    struct dlx_client *c;
    struct dlx_publisher *p;
    struct dlx_subscription *s;
    CUstream stream;
};

static struct end_of_cycle cycle_begin(const char *to, const char *from)
{
    const struct dlx_publisher_args deep = {.size = sizeof deep, .depth = 4 * ROUNDS};
    struct end_of_cycle end = {.c = dlx_test_stream_connect()};
    (void)dlx_test_gpu_context(0);
    ok(dlx_publisher_new(end.c, to, &deep, &end.p));
    ok(dlx_subscribe(end.c, from, NULL, &end.s));
    ok(dlx_publisher_wait(end.p, 1, PATIENCE));
    end.stream = new_stream();
    return end;
}

/* What came, one place further, behind `first`. */
static void cycle_pass_on(struct end_of_cycle *end, uint32_t first, CUdeviceptr keep)
{
    struct dlx_publish_args args = {.size = sizeof args, .stream = end->stream};
    struct dlx_message *m;
    DLManagedTensorVersioned *got, *next = dlx_test_gpu_alloc_empty(end->p, N);
    ok(dlx_take(end->s, PATIENCE, &m));
    ok(dlx_message_tensor_on(m, 0, end->stream, &got));
    dlx_message_unref(m);
    CU_OK(cu.cuMemsetD32Async(address(next), first, 1, end->stream));
    CU_OK(cu.cuMemcpyDtoDAsync(address(next) + sizeof first, address(got), (N - 1) * sizeof first,
                               end->stream));
    CU_OK(cu.cuMemcpyDtoDAsync(keep, address(next), N * sizeof first, end->stream));
    ok(dlx_publish(end->p, next, &args));
    got->deleter(got);
}

static void cycle_end(struct end_of_cycle *end)
{
    struct dlx_subscription_stats stats = {.size = sizeof stats};
    dlx_test_gpu_wait_held(end->s, 0);
    ok(dlx_subscription_get_stats(end->s, &stats));
    ck_assert_uint_eq(stats.gpu_waits, 0);
    ck_assert_uint_eq(stats.gpu_late, 0);
    CU_OK(cu.cuStreamDestroy(end->stream));
    dlx_subscription_unref(end->s);
    dlx_publisher_unref(end->p);
    dlx_client_unref(end->c);
}

static void be_the_other(int sock)
{
    char byte;
    CUdeviceptr keep;
    struct end_of_cycle end = cycle_begin("gpu/back", "gpu/forth");
    CU_OK(cu.cuMemAlloc(&keep, N * sizeof(uint32_t)));
    for (uint32_t i = 0; i < ROUNDS; i++)
        cycle_pass_on(&end, 2 * i + 1, keep);
    dlx_test_gpu_send(sock, "", 1, -1);
    (void)dlx_test_gpu_receive(sock, &byte, 1);
    CU_OK(cu.cuStreamSynchronize(end.stream));
    CU_OK(cu.cuMemFree(keep));
    cycle_end(&end);
}

/* All of it is queued before any of it begins. */
START_TEST(two_processes_pass_tensors_round_and_round_without_waiting)
{
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(be_the_other);
    struct end_of_cycle end = cycle_begin("gpu/forth", "gpu/back");
    struct dlx_publish_args args = {.size = sizeof args, .stream = end.stream};
    DLManagedTensorVersioned *first = dlx_test_gpu_alloc(end.p, N, 99);
    CUdeviceptr keep;
    char byte;
    CU_OK(cu.cuMemAlloc(&keep, N * sizeof(uint32_t)));
    dlx_test_gpu_gate_shut(&gate, end.stream);
    CU_OK(cu.cuMemsetD32Async(address(first), 0, 1, end.stream));
    ok(dlx_publish(end.p, first, &args));
    for (uint32_t i = 1; i <= ROUNDS; i++)
        cycle_pass_on(&end, 2 * i, keep);
    (void)dlx_test_gpu_receive(peer.sock, &byte, 1);
    CU_FAILS(cu.cuStreamQuery(end.stream), CUDA_ERROR_NOT_READY);
    dlx_test_gpu_gate_open(&gate);
    CU_OK(cu.cuStreamSynchronize(end.stream));
    for (uint32_t i = 0; i <= 2 * ROUNDS; i++)
        ck_assert_uint_eq(dlx_test_gpu_word(keep + i * sizeof i), 2 * ROUNDS - i);
    ck_assert_uint_eq(dlx_test_gpu_word(keep + (2 * ROUNDS + 1) * sizeof(uint32_t)), 99);
    dlx_test_gpu_send(peer.sock, "", 1, -1);
    CU_OK(cu.cuMemFree(keep));
    dlx_test_gpu_wait_held(end.s, 0);
    dlx_test_gpu_join(&peer);
    cycle_end(&end);
}
END_TEST

/* ---- publishers that are not ready --------------------------------------------------------- */

static void publish_and_stay(int sock)
{
    char byte;
    (void)dlx_test_gpu_receive(sock, &byte, 1);
    struct dlx_test_gpu_end x = dlx_test_gpu_publisher(NULL);
    CUstream stream = new_stream();
    ok(dlx_publisher_wait(x.p, 1, PATIENCE));
    publish_behind(x.p, stream, &gate, 0);
    dlx_test_gpu_send(sock, "", 1, -1);
    (void)dlx_test_gpu_receive(sock, &byte, 1);
    if (dlx_test_gpu_variant == 1)
        dlx_test_gpu_lose_context();
    (void)dlx_test_gpu_receive(sock, &byte, 1); /* to be killed */
}

static struct dlx_test_gpu_end subscribe_to(struct dlx_test_gpu_peer *peer)
{
    char byte;
    struct dlx_test_gpu_end x = {.c = dlx_test_stream_connect()};
    (void)dlx_test_gpu_context(0);
    ok(dlx_subscribe(x.c, "gpu/a", NULL, &x.s));
    dlx_test_gpu_send(peer->sock, "", 1, -1);
    (void)dlx_test_gpu_receive(peer->sock, &byte, 1);
    return x;
}

/* The stream goes on, and who asks learns why; the event comes in the end. */
static void check_late(struct dlx_test_gpu_end *x, CUstream stream, DLManagedTensorVersioned *t,
                       int code, const char *text)
{
    struct dlx_event event = {.size = sizeof event};
    CU_OK(cu.cuStreamSynchronize(stream));
    fails(dlx_tensor_status(t), code, text);
    ck_assert_uint_eq(stats_of(x).gpu_late, 1);
    do
        ok(dlx_subscription_next_event(x->s, &event));
    while (event.kind != DLX_EVENT_LATE);
    ck_assert_str_eq(event.topic, "gpu/a");
    ck_assert_str_eq(event.reason, dlx_strerror(code));
    while (dlx_subscription_next_event(x->s, &event) == 0)
        ck_assert_int_ne(event.kind, DLX_EVENT_LATE);
}

/* 0: it is killed; 1: its GPU fails. */
START_TEST(a_stream_goes_on_when_the_publisher_cannot_write_any_more)
{
    dlx_test_gpu_variant = _i;
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(publish_and_stay);
    struct dlx_test_gpu_end x = subscribe_to(&peer);
    CUstream stream = new_stream();
    DLManagedTensorVersioned *t = take_on(&x, stream);
    ck_assert_int_eq(dlx_tensor_status(t), 1);
    if (_i == 0)
        dlx_test_gpu_kill(&peer);
    else
        dlx_test_gpu_send(peer.sock, "", 1, -1);
    check_late(&x, stream, t, _i == 0 ? DLX_E_PUBLISHER_GONE : DLX_E_DEVICE,
               _i == 0 ? "gone" : "error of the publisher's GPU");
    t->deleter(t);
    if (_i == 1)
        dlx_test_gpu_kill(&peer); /* what its context lost is not to be looked for */
    CU_OK(cu.cuStreamDestroy(stream));
    dlx_test_gpu_end(&x);
}
END_TEST

START_TEST(a_stream_goes_on_when_the_publisher_takes_too_long)
{
    const struct dlx_connect_args quick = {
        .size = sizeof quick, .socket = dlx_test_stream_daemon.path, .timeout_ns = SECOND / 20};
    struct dlx_test_gpu_end x = dlx_test_gpu_publisher(NULL);
    CUstream from = new_stream(), to = new_stream();
    struct dlx_client *c;
    DLManagedTensorVersioned *t, *again;
    ok(dlx_connect(&c, &quick));
    ok(dlx_subscribe(c, "gpu/a", NULL, &x.s));
    publish_behind(x.p, from, &gate, 0);
    struct dlx_message *m = dlx_test_gpu_take(&x);
    ok(dlx_message_tensor_on(m, 0, to, &t));
    check_late(&x, to, t, DLX_E_TIMEOUT, "has not written it");
    ok(dlx_message_tensor_on(m, 0, to, &again)); /* once more, it waits anew */
    dlx_test_gpu_gate_open(&gate);
    CU_OK(cu.cuStreamSynchronize(from));
    CU_OK(cu.cuStreamSynchronize(to));
    again->deleter(again);
    ok(dlx_message_tensor_on(m, 0, to, &again));
    ck_assert_int_eq(dlx_tensor_status(again), 0);
    dlx_test_gpu_check(again, N, 7);
    again->deleter(again);
    t->deleter(t);
    dlx_message_unref(m);
    CU_OK(cu.cuStreamDestroy(from));
    CU_OK(cu.cuStreamDestroy(to));
    x.s = dlx_subscription_unref(x.s);
    dlx_client_unref(c);
    dlx_test_gpu_end(&x);
}
END_TEST

/* ---- streams that cannot wait -------------------------------------------------------------- */

START_TEST(a_stream_that_is_captured_is_refused_untouched)
{
    struct pair pair = pair_new();
    CUstreamCaptureStatus status;
    CUgraph graph;
    DLManagedTensorVersioned *t;
    publish_behind(pair.x.p, pair.from, &gate, 0);
    struct dlx_message *m = dlx_test_gpu_take(&pair.x);
    CU_OK(cu.cuStreamBeginCapture(pair.to, CU_STREAM_CAPTURE_MODE_GLOBAL));
    fails(dlx_message_tensor_on(m, 0, pair.to, &t), DLX_E_INVALID, "captured");
    CUstream other = new_stream();
    ok(dlx_message_tensor_on(m, 0, other, &t)); /* also the trial is no part of the capture */
    ck_assert_int_eq(dlx_tensor_status(t), 1);
    CU_OK(cu.cuStreamIsCapturing(pair.to, &status));
    ck_assert_int_eq(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CU_OK(cu.cuStreamEndCapture(pair.to, &graph));
    CU_OK(cu.cuGraphDestroy(graph));
    dlx_test_gpu_gate_open(&gate);
    CU_OK(cu.cuStreamSynchronize(other));
    t->deleter(t);
    dlx_message_unref(m);
    CU_OK(cu.cuStreamDestroy(other));
    ck_assert_uint_eq(stats_of(&pair.x).gpu_waits, 0);
    pair_end(&pair);
}
END_TEST

/* Takes what is not ready, while the next call of that name fails, if it is not NULL. Returns whether
 * that waited. */
static bool take_waits(struct pair *pair, CUstream stream, const char *fail)
{
    uint64_t before = stats_of(&pair->x).gpu_waits;
    publish_behind(pair->x.p, pair->from, NULL, WORK_NS / 10);
    if (fail)
        ck_assert(standin.standin_fail(fail, 1, 1, CUDA_ERROR_NOT_SUPPORTED));
    DLManagedTensorVersioned *t = take_on(&pair->x, stream);
    if (fail)
        standin.standin_fail_clear();
    bool waited = stats_of(&pair->x).gpu_waits > before;
    if (waited)
        CU_OK(cu.cuStreamQuery(pair->from));
    CU_OK(cu.cuStreamSynchronize(stream));
    ck_assert_int_eq(dlx_tensor_status(t), 0);
    dlx_test_gpu_check(t, N, 7);
    t->deleter(t);
    dlx_test_gpu_wait_held(pair->x.s, 0);
    return waited;
}

static const char *const trial_calls[] = {"cuMemHostRegister", "cuMemHostGetDevicePointer",
                                          "cuStreamCreate", "cuStreamWaitValue32"};

/* The calls of the trial fail. It is made once. */
START_TEST(where_streams_cannot_wait_the_cpu_does_and_that_is_counted)
{
    struct pair pair = pair_new();
    ck_assert(take_waits(&pair, pair.to, trial_calls[_i]));
    uint64_t n_calls = dlx_test_gpu_calls(trial_calls[_i]);
    ck_assert(take_waits(&pair, pair.to, NULL));
    dlx_test_gpu_check_calls(trial_calls[_i], n_calls);
    ck_assert_uint_eq(stats_of(&pair.x).gpu_late, 0);
    pair_end(&pair);
}
END_TEST

/* All other streams would wait, too. */
START_TEST(the_legacy_default_stream_does_not_wait)
{
    struct pair pair = pair_new();
    ck_assert(take_waits(&pair, _i == 0 ? NULL : CU_STREAM_LEGACY, NULL));
    dlx_test_gpu_check_calls("cuStreamWaitValue32", 0);
    pair_end(&pair);
}
END_TEST

static struct pair own;
static DLManagedTensorVersioned *tensor;
static struct dlx_message *message;

START_TEST(a_call_of_the_driver_that_fails_leaves_nothing)
{
    static const char *const calls[] = {
        "cuDeviceGet",      "cuDevicePrimaryCtxGetState", "cuDevicePrimaryCtxRetain",
        "cuCtxPushCurrent", "cuStreamIsCapturing",        "cuStreamGetCtx",
        "cuCtxGetId",       "cuStreamWaitValue32",
    };
    own = pair_new();
    ck_assert(!take_waits(&own, own.to, NULL)); /* the trial */
    for (size_t i = 0; i < DLX_ARRAY_SIZE(calls); i++) {
        for (uint64_t k = 1;; k++) {
            struct dlx_test_gpu_state before = dlx_test_gpu_state_now();
            uint64_t waits = stats_of(&own.x).gpu_waits;
            tensor = dlx_test_gpu_tensor(0, 1, N, 0);
            uint64_t n_waits = standin.standin_calls("cuEventSynchronize");
            publish_this(own.x.p, tensor, own.from, NULL, WORK_NS / 10);
            /* From then on the publisher's thread makes no calls that may fail. */
            uint64_t until = dlx__now_ns() + WORK_NS;
            while (standin.standin_calls("cuEventSynchronize") == n_waits && dlx__now_ns() < until)
                (void)sched_yield();
            message = dlx_test_gpu_take(&own.x);
            ck_assert(standin.standin_fail_here(calls[i], k, CUDA_ERROR_OUT_OF_MEMORY));
            ok(dlx_message_tensor_on(message, 0, own.to, &tensor));
            bool failed = standin.standin_fail_clear() > 0;
            ck_assert_uint_eq(stats_of(&own.x).gpu_waits, waits + failed);
            CU_OK(cu.cuStreamSynchronize(own.to));
            ck_assert_int_eq(dlx_tensor_status(tensor), 0);
            tensor->deleter(tensor);
            dlx_message_unref(message);
            dlx_test_gpu_wait_held(own.x.s, 0);
            dlx_test_stream_publish(own.x.p, 4, 3); /* lets it go */
            dlx_message_unref(dlx_test_gpu_take(&own.x));
            ok(dlx_publisher_wait(own.x.p, 0, 0));
            dlx_test_gpu_state_check(&before);
            if (!failed) {
                ck_assert_msg(k > 1, "%s was not called", calls[i]);
                break;
            }
        }
    }
    pair_end(&own);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu_stream");
    TCase *tc = dlx_test_gpu_stream_case("stream");
    dlx_test_gpu_add(tc, take_and_release_return_while_the_publisher_s_work_goes_on, 0);
    dlx_test_gpu_add(tc, a_stream_does_not_wait_for_a_tensor_that_is_ready, 0);
    dlx_test_gpu_add(tc, a_stream_waits_once_for_all_tensors_of_a_message, 0);
    dlx_test_gpu_add(tc, of_two_streams_the_one_that_waits_for_less_goes_on_first, 0);
    dlx_test_gpu_add(tc, a_late_subscriber_s_stream_waits_for_a_retained_message, 0);
    dlx_test_gpu_add(tc, a_subscription_ends_when_no_stream_waits_any_more, 0);
    dlx_test_gpu_add(tc, two_processes_pass_tensors_round_and_round_without_waiting, 0);
    dlx_test_gpu_add_loop(tc, a_stream_goes_on_when_the_publisher_cannot_write_any_more, 0, 2, 0);
    dlx_test_gpu_add(tc, a_stream_goes_on_when_the_publisher_takes_too_long, 0);
    dlx_test_gpu_add(tc, a_stream_that_is_captured_is_refused_untouched, 0);
    dlx_test_gpu_add_loop(tc, where_streams_cannot_wait_the_cpu_does_and_that_is_counted, 0,
                          (int)DLX_ARRAY_SIZE(trial_calls), DLX_TEST_GPU_FAILURES);
    dlx_test_gpu_add_loop(tc, the_legacy_default_stream_does_not_wait, 0, 2, 0);
    dlx_test_gpu_add(tc, a_call_of_the_driver_that_fails_leaves_nothing, DLX_TEST_GPU_FAILURES);
    suite_add_tcase(suite, tc);
    return dlx_test_run(suite);
}

#else

int main(void)
{
    (void)printf("SKIP: no cuda.h: the stand-in for NVIDIA's driver was not built\n");
    return 77;
}

#endif
