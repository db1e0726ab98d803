/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that wait for words which streams of their publisher write (gpu/lib/words.h). */
#include "tests/gpu/harness_gpu_stream.h"

#if DLX_TEST_HAS_GPU
#include "client/subscribe/subscription.h"
#include "client/publish/publisher.h"
#include "gpu/lib/share.h"

#define N DLX_TEST_GPU_PAIR_N
/* More messages than there are words. */
#define MANY    2500
#define SIZE    8                  /* of their tensors */
#define WORK_NS UINT64_C(20000000) /* so long that a message is published meanwhile */

static struct dlx_test_gpu_gate gate;

/* The first message asks for the page; the publisher answers with the next one, once its thread
 * that serves readers has heard of it. */
static void pass_one(struct dlx_test_gpu_pair *pair)
{
    dlx_test_gpu_publish_behind(pair->x.p, pair->from, &gate, 0);
    DLManagedTensorVersioned *t = dlx_test_gpu_take_on(&pair->x, pair->to);
    dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_sync(pair->to);
    t->deleter(t);
    dlx_test_gpu_wait_held(pair->x.s, 0);
}

/* The subscription has asked for its page. */
static struct dlx_test_gpu_pair asked_pair_new(void)
{
    ck_assert_int_eq(setenv("DLX_GPU_WORDS", "1", 1), 0);
    struct dlx_test_gpu_pair pair = dlx_test_gpu_pair_new();
    pass_one(&pair);
    return pair;
}

/* Both ends map it. */
static bool has_page(struct dlx_test_gpu_pair *pair)
{
    char line[500];
    int n = 0;
    pass_one(pair);
    FILE *maps = fopen("/proc/self/maps", "re");
    ck_assert_ptr_nonnull(maps);
    while (fgets(line, sizeof line, maps))
        n += strstr(line, "memfd:dlx-words") != NULL;
    (void)fclose(maps);
    return n == 2;
}

/* Words of later messages are for this subscription. */
static struct dlx_test_gpu_pair words_pair_new(void)
{
    struct dlx_test_gpu_pair pair = asked_pair_new();
    eventually(has_page(&pair));
    return pair;
}

/* Publishes behind the gate, and takes for the subscriber's stream, which copies the tensor. */
static DLManagedTensorVersioned *pass_behind(struct dlx_test_gpu_pair *pair)
{
    dlx_test_gpu_publish_behind(pair->x.p, pair->from, &gate, 0);
    DLManagedTensorVersioned *t = dlx_test_gpu_take_on(&pair->x, pair->to);
    CU_OK(
        cu.cuMemcpyDtoDAsync(pair->copy, dlx_test_gpu_address(t), N * sizeof(uint32_t), pair->to));
    return t;
}

/* While the publisher's thread cannot say that the message is ready, the subscriber's stream goes
 * on: with a word of the publisher's stream, and not without. */
GPU_LOOP_TEST(a_stream_goes_on_before_any_thread_says_so, 0, 2, 0)
{
    auto_gpu_pair pair = _i == 0 ? words_pair_new() : dlx_test_gpu_pair_new();
    if (_i == 1)
        pass_one(&pair);
    uint64_t n_words = dlx_test_gpu_calls("cuStreamWriteValue32");
    DLManagedTensorVersioned *t = pass_behind(&pair);
    pthread_mutex_t *thread = &pair.x.p->gpu->order.lock;
    ck_assert_int_eq(pthread_mutex_lock(thread), 0);
    CU_FAILS(cu.cuStreamQuery(pair.to), CUDA_ERROR_NOT_READY);
    dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_sync(pair.from);
    if (_i == 0)
        dlx_test_gpu_sync(pair.to);
    else
        CU_FAILS(cu.cuStreamQuery(pair.to), CUDA_ERROR_NOT_READY);
    ck_assert_int_eq(dlx_tensor_status(t), 1);
    ck_assert_int_eq(pthread_mutex_unlock(thread), 0);
    dlx_test_gpu_sync(pair.to);
    ck_assert_uint_eq(dlx_test_gpu_word(pair.copy), 7);
    eventually(dlx_tensor_status(t) == 0);
    t->deleter(t);
    dlx_test_gpu_wait_held(pair.x.s, 0);
    ck_assert_uint_eq(dlx_test_gpu_stats(&pair.x).gpu_waits, 0);
    dlx_test_gpu_check_calls("cuStreamWriteValue32", _i == 0 ? n_words + 1 : 0);
}

/* Of a set, too, the stream waits once; another stream waits for the thread. */
GPU_TEST(a_message_has_its_word_for_one_stream_alone, 0)
{
    auto_gpu_pair pair = words_pair_new();
    CUstream second = dlx_test_gpu_stream();
    dlx_test_gpu_publish_behind(pair.x.p, pair.from, &gate, 0);
    auto_message *m = dlx_test_stream_next(pair.x.s);
    DLManagedTensorVersioned *t[2];
    ok(dlx_message_tensor_on(m, 0, pair.to, &t[0]));
    ok(dlx_message_tensor_on(m, 0, second, &t[1]));
    pthread_mutex_t *thread = &pair.x.p->gpu->order.lock;
    ck_assert_int_eq(pthread_mutex_lock(thread), 0);
    dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_sync(pair.to);
    CU_FAILS(cu.cuStreamQuery(second), CUDA_ERROR_NOT_READY);
    ck_assert_int_eq(pthread_mutex_unlock(thread), 0);
    dlx_test_gpu_sync(second);
    for (int i = 0; i < 2; i++)
        t[i]->deleter(t[i]);
}

/* A subscription that is tired of waiting lets its own streams go on, and no others. */
GPU_TEST(a_subscription_with_a_limit_concerns_no_other, 0)
{
    auto_gpu_pair pair = words_pair_new();
    struct dlx_test_gpu_end hasty = {.c = pair.x.c};
    CUstream stream = dlx_test_gpu_stream();
    DLManagedTensorVersioned *t[2];
    ok(dlx_subscribe(pair.x.c, "gpu/a", SUBSCRIBE(.stream_timeout_ns = SECOND / 20), &hasty.s));
    dlx_test_gpu_publish_behind(pair.x.p, pair.from, &gate, 0);
    t[0] = dlx_test_gpu_take_on(&pair.x, pair.to);
    t[1] = dlx_test_gpu_take_on(&hasty, stream);
    dlx_test_gpu_sync(stream);
    fails(dlx_tensor_status(t[1]), DLX_E_TIMEOUT, "stream_timeout_ns");
    CU_FAILS(cu.cuStreamQuery(pair.to), CUDA_ERROR_NOT_READY);
    ck_assert_int_eq(dlx_tensor_status(t[0]), 1);
    dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_sync(pair.to);
    for (int i = 0; i < 2; i++)
        t[i]->deleter(t[i]);
    dlx_subscription_unref(hasty.s);
}

/* It was published before the subscription had a page: its word is not written there. */
GPU_TEST(a_message_that_was_there_first_is_waited_for_by_the_thread, DLX_TEST_GPU_COUNTS)
{
    auto_gpu_pair pair = words_pair_new();
    struct dlx_test_gpu_end late = {.c = pair.x.c};
    CUstream other = dlx_test_gpu_stream(), waits = dlx_test_gpu_stream();
    DLManagedTensorVersioned *t[3];
    ok(dlx_subscribe(pair.x.c, "gpu/a", NULL, &late.s));
    dlx_test_gpu_publish_behind(pair.x.p, pair.from, &gate, 0);
    struct dlx_message *m = dlx_test_stream_next(late.s);
    ok(dlx_message_tensor_on(m, 0, pair.to, &t[0])); /* asks for the page */
    for (bool has_come = false; !has_come;) {
        uint64_t n_words = dlx_test_gpu_calls("cuStreamWriteValue32");
        dlx_test_gpu_publish_this(pair.x.p, dlx_test_gpu_alloc_empty(pair.x.p, N), other, NULL,
                                  WORK_NS);
        has_come = dlx_test_gpu_calls("cuStreamWriteValue32") - n_words == 2;
        if (!has_come)
            dlx_message_unref(dlx_test_stream_next(late.s));
    }
    t[1] = dlx_test_gpu_take_on(&late, other);
    ok(dlx_message_tensor_on(m, 0, waits, &t[2]));
    dlx_test_gpu_sync(other);
    CU_FAILS(cu.cuStreamQuery(waits), CUDA_ERROR_NOT_READY);
    ck_assert_int_eq(dlx_tensor_status(t[2]), 1);
    dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_sync(waits);
    ck_assert_int_eq(dlx_tensor_status(t[2]), 0);
    dlx_message_unref(m);
    for (int i = 0; i < 3; i++)
        t[i]->deleter(t[i]);
    dlx_subscription_unref(late.s);
    for (int i = 0; i < 2; i++)
        dlx_message_unref(dlx_test_stream_next(pair.x.s));
}

/* Words come again, on two streams of which either may be the later one, and each tensor is read
 * when it is written. */
GPU_TEST(each_of_many_messages_is_read_when_it_is_written, 0)
{
    auto_gpu_pair pair = words_pair_new();
    const CUstream from[] = {pair.from, dlx_test_gpu_stream()};
    CUdeviceptr copies;
    CU_OK(cu.cuMemAlloc(&copies, MANY * sizeof(uint32_t)));
    for (uint32_t i = 0; i < MANY; i++) {
        DLManagedTensorVersioned *t = dlx_test_gpu_alloc_empty(pair.x.p, SIZE);
        CU_OK(cu.cuMemsetD32Async(dlx_test_gpu_address(t), i, SIZE, from[i % 2]));
        ok(dlx_publish(pair.x.p, t, PUBLISH(.stream = from[i % 2]), NULL));
        t = dlx_test_gpu_take_on(&pair.x, pair.to);
        CU_OK(cu.cuMemcpyDtoDAsync(copies + i * sizeof i, dlx_test_gpu_address(t), sizeof i,
                                   pair.to));
        t->deleter(t);
    }
    dlx_test_gpu_sync(pair.to);
    for (uint32_t i = 0; i < MANY; i++)
        ck_assert_uint_eq(dlx_test_gpu_word(copies + i * sizeof i), i);
    CU_OK(cu.cuMemFree(copies));
    dlx_test_gpu_wait_held(pair.x.s, 0);
}

/* ---- deaths ---------------------------------------------------------------------------------- */

static void publish_and_stay(int sock)
{
    ck_assert_int_eq(setenv("DLX_GPU_WORDS", "1", 1), 0);
    dlx_test_gpu_await(sock);
    struct dlx_test_gpu_end x = dlx_test_gpu_publisher(NULL);
    CUstream stream = dlx_test_gpu_stream();
    ok(dlx_publisher_wait(x.p, 1, PATIENCE));
    for (int i = 0; i < 2; i++) {
        dlx_test_gpu_publish_behind(x.p, stream, &gate, 0);
        dlx_test_gpu_turn(sock); /* the last time, it is killed */
        dlx_test_gpu_gate_open(&gate);
    }
}

GPU_TEST(a_stream_that_waits_for_a_word_of_a_dead_publisher_goes_on, 0)
{
    auto_gpu_end x = dlx_test_gpu_subscribe_to(publish_and_stay, NULL);
    CUstream stream = dlx_test_gpu_stream();
    DLManagedTensorVersioned *t = dlx_test_gpu_take_on(&x, stream);
    dlx_test_gpu_tell(x.peer.sock);
    dlx_test_gpu_sync(stream);
    t->deleter(t);
    dlx_test_gpu_await(x.peer.sock);
    t = dlx_test_gpu_take_on(&x, stream);
    ck_assert_int_eq(dlx_tensor_status(t), 1);
    dlx_test_gpu_kill(&x.peer);
    dlx_test_gpu_sync(stream);
    fails(dlx_tensor_status(t), DLX_E_PUBLISHER_GONE, "gone");
    t->deleter(t);
}

/* The publisher gives the pages of subscriptions that have ended back. */
GPU_TEST(a_subscription_that_ends_leaves_no_page, DLX_TEST_GPU_COUNTS)
{
    auto_gpu_pair pair = words_pair_new();
    DLManagedTensorVersioned *t = pass_behind(&pair);
    dlx_test_gpu_gate_open(&gate);
    dlx_test_gpu_sync(pair.to);
    t->deleter(t);
    dlx_test_gpu_wait_held(pair.x.s, 0);
    ck_assert_uint_eq(dlx_test_gpu_calls("cuMemHostUnregister"), 0);
    pair.x.s = dlx_subscription_unref(pair.x.s);
    eventually(dlx_test_gpu_calls("cuMemHostUnregister") == 1);
    for (int i = 0; i < 64; i++) {
        dlx_test_gpu_publish_behind(pair.x.p, pair.from, &gate, 0);
        dlx_test_gpu_gate_open(&gate);
        dlx_test_gpu_sync(pair.from);
    }
    eventually(dlx_test_gpu_calls("cuMemHostUnregister") == 2);
    ok(dlx_subscribe(pair.x.c, "gpu/a", NULL, &pair.x.s)); /* for the end of the pair */
}

/* ---- failures -------------------------------------------------------------------------------- */

static const char *const calls[] = {"cuMemHostRegister", "cuMemHostGetDevicePointer",
                                    "cuStreamWriteValue32", "cuEventRecord"};

/* A call of the publisher or of the subscriber fails: the stream goes on when the thread says so.
 */
GPU_LOOP_TEST(a_word_that_cannot_be_had_is_done_without, 0, (int)DLX_ARRAY_SIZE(calls),
              DLX_TEST_GPU_FAILURES)
{
    auto_gpu_pair pair = asked_pair_new();
    for (int i = 0; i < 4; i++) {
        /* Of cuEventRecord the second one is behind the word. */
        ck_assert(standin.standin_fail(calls[_i], _i == 3 ? 2 : 1, 1, CUDA_ERROR_NOT_SUPPORTED));
        DLManagedTensorVersioned *t = pass_behind(&pair);
        standin.standin_fail_clear();
        dlx_test_gpu_gate_open(&gate);
        dlx_test_gpu_sync(pair.to);
        ck_assert_uint_eq(dlx_test_gpu_word(pair.copy), 7);
        CU_OK(cu.cuMemsetD32(pair.copy, 0, N));
        eventually(dlx_tensor_status(t) == 0);
        t->deleter(t);
        dlx_test_gpu_wait_held(pair.x.s, 0);
    }
    ck_assert_uint_eq(dlx_test_gpu_stats(&pair.x).gpu_late, 0);
}

#endif

GPU_MAIN(dlx_test_gpu_stream_case("words"))
