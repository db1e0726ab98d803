/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that cannot wait until received tensors are ready: the CPU does, and that is counted. */
#include "tests/gpu/harness_gpu_stream.h"

#if DLX_TEST_HAS_GPU
#include "client/subscribe/subscription.h"
#include "gpu/cuda_driver.h"
#include "gpu/lib/receive.h"
#include <sched.h>

#define N DLX_TEST_GPU_PAIR_N

static struct dlx_test_gpu_gate gate;

/* A thread that opens the gate: when the CPU waits, which is counted, or when opener_end() is
 * called, since it has not waited. */
struct opener {
    pthread_t thread;
    const struct dlx_subscriber_link *subscriber_link;
    uint64_t n_waits; /* before */
    atomic_bool is_over;
};

/* The first message with tensors on GPUs begins what counts. */
static uint64_t count_waits(const struct dlx_subscriber_link *subscriber_link)
{
    const struct dlx_gpu_link *gpu = atomic_load(&subscriber_link->gpu);
    return gpu ? atomic_load(&gpu->receiver->n_waits) : 0;
}

static bool has_waited(const struct opener *opener)
{
    return count_waits(opener->subscriber_link) > opener->n_waits;
}

static void *open_gate(void *arg)
{
    struct opener *opener = arg;
    uint64_t end = dlx__now_ns() + (uint64_t)PATIENCE;
    while (!has_waited(opener) && !atomic_load(&opener->is_over) && dlx__now_ns() < end)
        (void)sched_yield();
    dlx_test_gpu_gate_open(&gate);
    return NULL;
}

static void opener_begin(struct opener *opener, const struct dlx_test_gpu_pair *pair)
{
    opener->subscriber_link = pair->x.s->links[0];
    opener->n_waits = count_waits(opener->subscriber_link);
    atomic_init(&opener->is_over, false);
    ck_assert_int_eq(pthread_create(&opener->thread, NULL, open_gate, opener), 0);
}

/* The gate is open. Has the CPU waited? */
static bool opener_end(struct opener *opener)
{
    bool waited = has_waited(opener);
    atomic_store(&opener->is_over, true);
    ck_assert_int_eq(pthread_join(opener->thread, NULL), 0);
    return waited;
}

GPU_TEST(a_stream_that_is_captured_is_refused_untouched, DLX_TEST_GPU_GATES)
{
    auto_gpu_pair pair = dlx_test_gpu_pair_new();
    DLManagedTensorVersioned *t;
    dlx_test_gpu_publish_behind(pair.x.p, pair.from, &gate, 0);
    struct dlx_message *m = dlx_test_stream_next(pair.x.s);
    CU_OK(cu.cuStreamBeginCapture(pair.to, CU_STREAM_CAPTURE_MODE_GLOBAL));
    fails(dlx_message_tensor_on(m, 0, pair.to, &t), DLX_E_INVALID, "captured");
    CUstream other = dlx_test_gpu_stream();
    ok(dlx_message_tensor_on(m, 0, other, &t)); /* also the trial is no part of the capture */
    ck_assert_int_eq(dlx_tensor_status(t), 1);
    dlx_test_gpu_end_capture(pair.to);
    dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_sync(other);
    t->deleter(t);
    dlx_message_unref(m);
    ck_assert_uint_eq(dlx_test_gpu_stats(&pair.x).gpu_waits, 0);
}

/* Takes what is not ready, while the next call of that name fails, if it is not NULL. Returns
 * whether that waited. */
static bool take_waits(struct dlx_test_gpu_pair *pair, CUstream stream, const char *fail)
{
    struct opener opener;
    dlx_test_gpu_publish_behind(pair->x.p, pair->from, &gate, 0);
    opener_begin(&opener, pair);
    if (fail)
        ck_assert(standin.standin_fail(fail, 1, 1, CUDA_ERROR_NOT_SUPPORTED));
    uint64_t begin = dlx__now_ns();
    DLManagedTensorVersioned *t = dlx_test_gpu_take_on(&pair->x, stream);
    ck_assert_uint_lt(dlx__now_ns() - begin, PATIENCE); /* not for all work on the GPU */
    if (fail)
        standin.standin_fail_clear();
    bool waited = has_waited(&opener);
    if (waited)
        CU_OK(cu.cuStreamQuery(pair->from));
    ck_assert(opener_end(&opener) == waited);
    dlx_test_gpu_sync(stream);
    ck_assert_int_eq(dlx_tensor_status(t), 0);
    dlx_test_gpu_check(t, N, 7);
    t->deleter(t);
    dlx_test_gpu_wait_held(pair->x.s, 0);
    return waited;
}

/* ---- streams that would hold up others ------------------------------------------------------- */

enum { ONE_QUEUE, LAZY };

static void set_environment(int what)
{
    ck_assert_int_eq(setenv(what == LAZY ? "CUDA_MODULE_LOADING" : "CUDA_DEVICE_MAX_CONNECTIONS",
                            what == LAZY ? "LAZY" : "1", 1),
                     0);
}

static void publish_until_told(int sock)
{
    dlx_test_gpu_await(sock);
    struct dlx_test_gpu_end x = dlx_test_gpu_publisher(NULL);
    CUstream stream = dlx_test_gpu_stream();
    ok(dlx_publisher_wait(x.p, 1, PATIENCE));
    dlx_test_gpu_publish_behind(x.p, stream, &gate, 0);
    dlx_test_gpu_turn(sock);
    dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_await(sock);
    dlx_test_gpu_end(&x);
}

/* A thread of the program that uses a stream of its own while a tensor is waited for. */
struct beside {
    pthread_t thread;
    int publisher; /* is told to go on */
    const struct dlx_subscriber_link *link;
    CUcontext context;
    CUstream stream;
    atomic_bool is_taken; /* and the stream waits, not the CPU */
    atomic_bool is_done, is_told;
};

static void tell_publisher(struct beside *beside)
{
    if (!atomic_exchange(&beside->is_told, true))
        dlx_test_gpu_tell(beside->publisher);
}

static void *work_beside(void *arg)
{
    struct beside *beside = arg;
    CU_OK(cu.cuCtxSetCurrent(beside->context));
    eventually(count_waits(beside->link) > 0 || atomic_load(&beside->is_taken));
    dlx_test_gpu_spin(beside->stream, 0, 1000);
    dlx_test_gpu_sync(beside->stream);
    atomic_store(&beside->is_done, true);
    tell_publisher(beside);
    return NULL;
}

static void check_waited(struct dlx_test_gpu_end *x, const char *why)
{
    struct dlx_event event = {.size = sizeof event};
    ck_assert_uint_eq(dlx_test_gpu_stats(x).gpu_waits, 1);
    do
        ok(dlx_subscription_next_event(x->s, &event));
    while (event.kind != DLX_EVENT_CPU_WAITED);
    ck_assert_str_eq(event.topic, "gpu/a");
    ck_assert_msg(strstr(event.reason, why) != NULL, "%s", event.reason);
    while (dlx_subscription_next_event(x->s, &event) == 0)
        ck_assert_int_ne(event.kind, DLX_EVENT_CPU_WAITED);
}

/* With one hardware queue, or with kernels that are loaded with their first launch, a stream that
 * waits would hold up the other one, and its thread. */
static void check_others_go_on(struct dlx_test_gpu_end *x, const char *why)
{
    struct dlx_message *m = dlx_test_stream_next(x->s);
    struct beside beside = {
        .publisher = x->peer.sock, .link = m->link, .stream = dlx_test_gpu_stream()};
    CUstream to = dlx_test_gpu_stream();
    DLManagedTensorVersioned *t;
    CU_OK(cu.cuCtxGetCurrent(&beside.context));
    ck_assert_int_eq(pthread_create(&beside.thread, NULL, work_beside, &beside), 0);
    ok(dlx_message_tensor_on(m, 0, to, &t));
    atomic_store(&beside.is_taken, true);
    dlx_message_unref(m);
    for (uint64_t end = dlx__now_ns() + 10 * (uint64_t)SECOND;
         !atomic_load(&beside.is_done) && dlx__now_ns() < end;)
        (void)sched_yield();
    bool went_on = atomic_load(&beside.is_done);
    tell_publisher(&beside);
    ck_assert_int_eq(pthread_join(beside.thread, NULL), 0);
    dlx_test_gpu_sync(to);
    ck_assert(went_on);
    ck_assert_int_eq(dlx_tensor_status(t), 0);
    dlx_test_gpu_check(t, N, 7);
    check_waited(x, why);
    t->deleter(t);
    dlx_test_gpu_wait_held(x->s, 0);
}

GPU_LOOP_TEST(other_streams_go_on_while_a_publisher_is_waited_for, ONE_QUEUE, LAZY + 1,
              DLX_TEST_GPU_GATES)
{
    set_environment(_i);
    auto_gpu_end x = dlx_test_gpu_subscribe_to(publish_until_told, NULL);
    check_others_go_on(&x,
                       _i == LAZY ? "CUDA_MODULE_LOADING=EAGER" : "CUDA_DEVICE_MAX_CONNECTIONS=1");
}

/* The variable is set when 0: libdlx, 1: the program initialises the driver, and not any more when
 * a stream is to wait. In the second case a trial finds out. */
GPU_LOOP_TEST(the_number_of_queues_is_that_which_the_driver_has_read, 0, 2, DLX_TEST_GPU_GATES)
{
    const struct dlx_cuda *driver;
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(publish_until_told);
    set_environment(ONE_QUEUE);
    if (_i == 0)
        ok(dlx__cuda(&driver));
    else
        (void)dlx_test_gpu_context(0);
    ck_assert_int_eq(unsetenv("CUDA_DEVICE_MAX_CONNECTIONS"), 0);
    auto_gpu_end x = dlx_test_gpu_subscriber(NULL);
    x.peer = peer;
    x.is_awaited = true;
    dlx_test_gpu_turn(peer.sock);
    check_others_go_on(&x, "CUDA_DEVICE_MAX_CONNECTIONS=1");
}

static const char *const numbers[] = {"2", "10", "many", ""};

GPU_LOOP_TEST(streams_wait_where_there_are_several_queues, 0, (int)DLX_ARRAY_SIZE(numbers),
              DLX_TEST_GPU_GATES)
{
    ck_assert_int_eq(setenv("CUDA_DEVICE_MAX_CONNECTIONS", numbers[_i], 1), 0);
    auto_gpu_pair pair = dlx_test_gpu_pair_new();
    ck_assert(!take_waits(&pair, pair.to, NULL));
}

/* 1: and there is one hardware queue, of which it says nothing. */
GPU_LOOP_TEST(streams_wait_where_the_program_says_that_its_kernels_are_loaded, 0, 2,
              DLX_TEST_GPU_GATES)
{
    struct opener opener;
    set_environment(LAZY);
    if (_i == 1)
        set_environment(ONE_QUEUE);
    auto_gpu_pair pair = dlx_test_gpu_pair_new();
    dlx_subscription_unref(pair.x.s);
    ok(dlx_subscribe(pair.x.c, "gpu/a", SUBSCRIBE(.kernels_loaded = true), &pair.x.s));
    dlx_test_gpu_publish_behind(pair.x.p, pair.from, &gate, 0);
    opener_begin(&opener, &pair);
    DLManagedTensorVersioned *t = dlx_test_gpu_take_on(&pair.x, pair.to);
    ck_assert_int_eq(opener_end(&opener), _i == 1);
    dlx_test_gpu_sync(pair.to);
    ck_assert_int_eq(dlx_tensor_status(t), 0);
    ck_assert_uint_eq(dlx_test_gpu_stats(&pair.x).gpu_waits, (uint64_t)_i);
    t->deleter(t);
    dlx_test_gpu_wait_held(pair.x.s, 0);
}

/* No stream was named, so the deleter waits. */
GPU_TEST(a_wait_for_a_gpu_counts_after_the_link_was_left, DLX_TEST_GPU_EVENTS)
{
    auto_gpu_pair pair = dlx_test_gpu_pair_new();
    DLManagedTensorVersioned *t;
    dlx_test_gpu_publish_behind(pair.x.p, pair.from, &gate, 0);
    dlx_test_gpu_gate_open(&gate);
    struct dlx_message *m = dlx_test_stream_next(pair.x.s);
    ok(dlx_message_tensor(m, 0, &t));
    dlx_message_unref(m);
    dlx__subscription_detach(pair.x.s, pair.x.s->links[0]);
    t->deleter(t);
    ck_assert_uint_eq(dlx_test_gpu_stats(&pair.x).gpu_waits, 1);
}

static const char *const trial_calls[] = {"cuMemHostRegister", "cuMemHostGetDevicePointer",
                                          "cuStreamCreate", "cuStreamWaitValue32"};

/* The calls of the trial fail. The library makes it once. */
GPU_LOOP_TEST(where_streams_cannot_wait_the_cpu_does_and_that_is_counted, 0,
              (int)DLX_ARRAY_SIZE(trial_calls), DLX_TEST_GPU_FAILURES | DLX_TEST_GPU_GATES)
{
    auto_gpu_pair pair = dlx_test_gpu_pair_new();
    ck_assert(take_waits(&pair, pair.to, trial_calls[_i]));
    uint64_t n_calls = dlx_test_gpu_calls(trial_calls[_i]);
    ck_assert(take_waits(&pair, pair.to, NULL));
    dlx_test_gpu_check_calls(trial_calls[_i], n_calls);
    ck_assert_uint_eq(dlx_test_gpu_stats(&pair.x).gpu_late, 0);
}

/* All other streams would wait, too. */
GPU_LOOP_TEST(the_legacy_default_stream_does_not_wait, 0, 2, DLX_TEST_GPU_GATES)
{
    auto_gpu_pair pair = dlx_test_gpu_pair_new();
    ck_assert(take_waits(&pair, _i == 0 ? NULL : CU_STREAM_LEGACY, NULL));
    dlx_test_gpu_check_calls("cuStreamWaitValue32", 0);
}

/* Of the words that streams of a context wait for. */
#define N_WORDS 1023

/* In turns, two streams wait anew each time. When all words are used the CPU waits; later they are
 * used again. */
GPU_TEST(more_waits_than_there_are_words_are_left_to_the_cpu, DLX_TEST_GPU_GATES)
{
    static DLManagedTensorVersioned *t[N_WORDS + 1];
    auto_gpu_pair pair = dlx_test_gpu_pair_new();
    CUstream streams[] = {pair.to, dlx_test_gpu_stream()};
    struct opener opener;
    dlx_test_gpu_publish_behind(pair.x.p, pair.from, &gate, 0);
    struct dlx_message *m = dlx_test_stream_next(pair.x.s);
    for (uint32_t i = 0; i < N_WORDS; i++)
        ok(dlx_message_tensor_on(m, 0, streams[i % 2], &t[i]));
    ck_assert_int_eq(dlx_tensor_status(t[N_WORDS - 1]), 1);
    ck_assert_uint_eq(dlx_test_gpu_stats(&pair.x).gpu_waits, 0);
    opener_begin(&opener, &pair);
    ok(dlx_message_tensor_on(m, 0, streams[1], &t[N_WORDS]));
    ck_assert(opener_end(&opener));
    ck_assert_uint_eq(dlx_test_gpu_stats(&pair.x).gpu_waits, 1);
    for (int i = 0; i < 2; i++)
        dlx_test_gpu_sync(streams[i]);
    for (uint32_t i = 0; i <= N_WORDS; i++) {
        ck_assert_int_eq(dlx_tensor_status(t[i]), 0);
        t[i]->deleter(t[i]);
    }
    dlx_message_unref(m);
    dlx_test_gpu_publish_behind(pair.x.p, pair.from, &gate, 0);
    t[0] = dlx_test_gpu_take_on(&pair.x, pair.to);
    ck_assert_int_eq(dlx_tensor_status(t[0]), 1);
    dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_sync(pair.to);
    t[0]->deleter(t[0]);
    dlx_test_gpu_wait_held(pair.x.s, 0);
    ck_assert_uint_eq(dlx_test_gpu_stats(&pair.x).gpu_waits, 1);
    ck_assert_uint_eq(dlx_test_gpu_stats(&pair.x).gpu_late, 0);
}

/* The stream of the trial never goes on, so whatever waits for all work on the device would never
 * end: the tensors are there before. */
GPU_TEST(a_trial_that_does_not_end_is_given_up_and_made_once,
         DLX_TEST_GPU_FAILURES | DLX_TEST_GPU_GATES)
{
    auto_gpu_pair pair = dlx_test_gpu_pair_new();
    DLManagedTensorVersioned *t[2];
    struct opener opener;
    for (int i = 0; i < 2; i++)
        t[i] = dlx_test_gpu_alloc(pair.x.p, N, 0);
    standin.standin_stick_waits(true);
    for (uint64_t i = 0; i < 2; i++) {
        uint64_t begin = dlx__now_ns();
        dlx_test_gpu_publish_this(pair.x.p, t[i], pair.from, &gate, 0);
        opener_begin(&opener, &pair);
        t[i] = dlx_test_gpu_take_on(&pair.x, pair.to);
        ck_assert(opener_end(&opener));
        uint64_t took = dlx__now_ns() - begin;
        ck_assert_uint_lt(took, PATIENCE);
        ck_assert(i > 0 || took >= SECOND);
        CU_OK(cu.cuStreamQuery(pair.from));
        CU_OK(cu.cuStreamQuery(pair.to)); /* it was not touched */
        ck_assert_int_eq(dlx_tensor_status(t[i]), 0);
        ck_assert_uint_eq(dlx_test_gpu_stats(&pair.x).gpu_waits, i + 1);
        dlx_test_gpu_check_calls("cuStreamWaitValue32", 4); /* of the trial */
        t[i]->deleter(t[i]);
    }
    dlx_test_gpu_wait_held(pair.x.s, 0);
    standin.standin_stick_waits(false);
}

static struct dlx_test_gpu_pair own;
static DLManagedTensorVersioned *tensor;
static struct dlx_message *message;

GPU_TEST(a_call_of_the_driver_that_fails_leaves_nothing, DLX_TEST_GPU_FAILURES | DLX_TEST_GPU_GATES)
{
    static const char *const calls[] = {
        "cuDeviceGet",      "cuDevicePrimaryCtxGetState", "cuDevicePrimaryCtxRetain",
        "cuCtxPushCurrent", "cuStreamIsCapturing",        "cuStreamGetCtx",
        "cuCtxGetId",       "cuModuleGetLoadingMode",     "cuStreamWaitValue32",
    };
    struct opener opener;
    own = dlx_test_gpu_pair_new();
    ck_assert(!take_waits(&own, own.to, NULL)); /* the trial */
    for (size_t i = 0; i < DLX_ARRAY_SIZE(calls); i++) {
        for (uint64_t k = 1;; k++) {
            struct dlx_test_gpu_state before = dlx_test_gpu_state_now();
            tensor = dlx_test_gpu_tensor(0, 1, N, 0);
            uint64_t n_waits = standin.standin_calls("cuEventSynchronize");
            uint32_t n_deleted = dlx_test_gpu_n_deleted();
            dlx_test_gpu_publish_this(own.x.p, tensor, own.from, &gate, 0);
            /* From then on the publisher's thread makes no calls that may fail. */
            eventually(standin.standin_calls("cuEventSynchronize") > n_waits);
            message = dlx_test_stream_next(own.x.s);
            opener_begin(&opener, &own);
            ck_assert(standin.standin_fail_here(calls[i], k, CUDA_ERROR_OUT_OF_MEMORY));
            ok(dlx_message_tensor_on(message, 0, own.to, &tensor));
            bool failed = standin.standin_fail_clear() > 0;
            ck_assert(opener_end(&opener) == failed);
            dlx_test_gpu_sync(own.to);
            ck_assert_int_eq(dlx_tensor_status(tensor), 0);
            tensor->deleter(tensor);
            dlx_message_unref(message);
            dlx_test_gpu_wait_held(own.x.s, 0);
            dlx_test_stream_publish(own.x.p, 4, 3); /* lets it go */
            dlx_message_unref(dlx_test_stream_next(own.x.s));
            dlx_test_gpu_wait_deleted(&own.x, n_deleted + 1);
            dlx_test_gpu_state_check(&before);
            if (!failed) {
                ck_assert_msg(k > 1, "%s was not called", calls[i]);
                break;
            }
        }
    }
    dlx_test_gpu_pair_end(&own);
}

#endif

GPU_MAIN(dlx_test_gpu_stream_case("gates"))
