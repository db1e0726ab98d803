/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of dlx_alloc() on GPUs when their publisher, their subscribers or the daemon have
 * gone. */
#include "tests/gpu/harness_gpu_stream.h"

#if DLX_TEST_HAS_GPU
#include "tests/harness/store.h"

#define N 16

static void publish(struct dlx_publisher *p, uint32_t value)
{
    ok(dlx_publish(p, dlx_test_gpu_alloc(p, N, value), PUBLISH(.strict = true), NULL));
}

/* A peer publishes 1 and 2, says so, and then does nothing until the test's word. */
static void publish_two(int sock)
{
    dlx_test_gpu_await(sock);
    auto_gpu_end x = dlx_test_gpu_publisher(&dlx_test_retain_2);
    for (uint32_t i = 1; i <= 2; i++)
        publish(x.p, i);
    dlx_test_gpu_wait_ready(&x, 2);
    dlx_test_gpu_turn(sock);
}

static void newcomer_gets_both(void)
{
    auto_gpu_end x = dlx_test_gpu_subscriber(NULL);
    dlx_test_gpu_expect(&x, 0, N, 1);
    dlx_test_gpu_expect(&x, 0, N, 2);
}

enum end { ENDS, IS_KILLED, IS_STOPPED };

GPU_LOOP_TEST(retained_tensors_are_there_whatever_their_publisher_does, ENDS, IS_STOPPED + 1, 0)
{
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(publish_two);
    dlx_test_gpu_turn(peer.sock);
    if (_i == IS_KILLED) {
        dlx_test_gpu_kill(&peer);
    } else if (_i == IS_STOPPED) {
        ck_assert_int_eq(kill(peer.pid, SIGSTOP), 0);
    } else {
        dlx_test_gpu_tell(peer.sock);
        dlx_test_gpu_join(&peer);
    }
    for (int i = 0; i < 2; i++)
        newcomer_gets_both();
    if (_i == IS_STOPPED) {
        ck_assert_int_eq(kill(peer.pid, SIGCONT), 0);
        dlx_test_gpu_tell(peer.sock);
        dlx_test_gpu_join(&peer);
    }
}

static void publish_one_and_end(int sock)
{
    dlx_test_gpu_await(sock);
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    ok(dlx_publisher_wait(x.p, 1, PATIENCE));
    publish(x.p, 3);
}

GPU_TEST(messages_left_when_the_publisher_ended_can_still_be_taken, 0)
{
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(publish_one_and_end);
    struct dlx_message *m;
    auto_gpu_end x = dlx_test_gpu_subscriber(NULL);
    dlx_test_gpu_tell(peer.sock);
    dlx_test_gpu_join(&peer);
    dlx_test_gpu_expect(&x, 0, N, 3);
    ck_assert_int_eq(dlx_take(x.s, PATIENCE, &m), DLX_E_PUBLISHER_GONE);
}

/* Memory of others ends with its process, and its messages with it. */
GPU_TEST(a_message_that_also_has_memory_of_others_is_not_retained, 0)
{
    auto_gpu_end x = dlx_test_gpu_publisher(&dlx_test_retain_2);
    struct dlx_message *m = NULL;
    struct dlx_item items[] = {{"own", dlx_test_gpu_alloc(x.p, N, 1)},
                               {"other", dlx_test_gpu_tensor(0, 1, N, 2)}};
    ok(dlx_publish_set(x.p, items, 2, NULL, NULL, NULL));
    dlx_publisher_unref(dlx_steal(x.p));
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 1);
    ck_assert_int_eq(dlx_get(x.c, "gpu/a", 0, &m), DLX_E_EMPTY);
}

static struct dlx_test_gpu_gate gate;

static void take_and_hold(int sock)
{
    struct dlx_test_gpu_end x = dlx_test_gpu_subscribe(sock, NULL);
    DLManagedTensorVersioned *t = dlx_test_gpu_take_tensor(&x);
    dlx_test_gpu_check(t, N, 1);
    if (dlx_test_gpu_variant == 1) { /* a stream uses it when it is deleted */
        CUstream stream = dlx_test_gpu_stream();
        ok(dlx_tensor_used_on(t, stream));
        dlx_test_gpu_gate_shut(&gate, stream);
        t->deleter(t);
        dlx_test_gpu_wait_held(x.s, 1);
    }
    dlx_test_gpu_turn(sock); /* to be killed */
}

/* Its kernels may still run: what it could see is freed, and never used again. */
static void check_not_used_again(bool is_release_under_way)
{
    dlx_test_gpu_variant = is_release_under_way;
    auto_gpu_end x = dlx_test_gpu_publish_to(take_and_hold, NULL);
    DLManagedTensorVersioned *held = dlx_test_gpu_alloc(x.p, N, 1), *kept, *t;
    uintptr_t first = (uintptr_t)held->dl_tensor.data;
    kept = dlx_test_gpu_alloc(x.p, N, 2);
    ok(dlx_publish(x.p, held, NULL, NULL));
    dlx_test_gpu_await(x.peer.sock);
    dlx_test_gpu_kill(&x.peer);
    publish(x.p, 4);
    eventually(dlx_publisher_wait(x.p, 0, 0) == 0 && dlx_test_stream_stats(x.p).n_subscribers == 0);
    publish(x.p, 5); /* 4 was published by the same arena, and goes */
    ok(dlx_publisher_wait(x.p, 0, 0));
    for (int i = 0; i < 3; i++) {
        t = dlx_test_gpu_alloc(x.p, N, 3);
        uintptr_t at = (uintptr_t)t->dl_tensor.data;
        ck_assert_msg(at < first || at >= first + DLX_TEST_GPU_CHUNK, "the arena is used again");
        t->deleter(t);
    }
    ok(dlx_publish(x.p, kept, NULL, NULL)); /* what the caller has of it is good */
}

GPU_TEST(memory_of_a_tensor_that_a_killed_subscriber_had_is_not_used_again, 0)
{
    check_not_used_again(false);
}

GPU_TEST(memory_whose_release_a_killed_subscriber_had_under_way_is_not_used_again,
         DLX_TEST_GPU_EVENTS)
{
    check_not_used_again(true);
}

static void take_and_leave(int sock)
{
    auto_gpu_end x = dlx_test_gpu_subscribe(sock, NULL);
    DLManagedTensorVersioned *t = dlx_test_gpu_take_tensor(&x);
    t->deleter(t);
    dlx_test_gpu_wait_held(x.s, 0);
}

/* Its process ends before the publisher looks. Nothing that it could see was in use. */
GPU_TEST(memory_of_a_subscriber_that_left_and_ended_is_used_again, 0)
{
    auto_gpu_end x = dlx_test_gpu_publish_to(take_and_leave, NULL);
    auto_tensor *kept = dlx_test_gpu_alloc(x.p, N, 2);
    uintptr_t first = (uintptr_t)kept->dl_tensor.data & ~(uintptr_t)(DLX_TEST_GPU_CHUNK - 1);
    publish(x.p, 1);
    dlx_test_gpu_join(&x.peer);
    eventually(dlx_test_stream_stats(x.p).n_subscribers == 0);
    auto_tensor *t = dlx_test_gpu_alloc(x.p, N, 3);
    uintptr_t at = (uintptr_t)t->dl_tensor.data;
    ck_assert_msg(at >= first && at < first + DLX_TEST_GPU_CHUNK, "the arena is not used again");
    dlx_test_gpu_check_count(STANDIN_MAPPINGS, 1);
}

static void publish_after_restart(int sock)
{
    dlx_test_gpu_await(sock);
    auto_gpu_end x = dlx_test_gpu_publisher(&dlx_test_retain_2);
    for (uint32_t i = 1; i <= 2; i++) {
        publish(x.p, i);
        dlx_test_gpu_wait_ready(&x, (int)i);
        dlx_test_gpu_turn(sock);
    }
}

/* The publisher goes along to the next daemon, which did not hear of its memory. */
GPU_TEST(a_subscriber_of_the_next_daemon_gets_what_was_published_before_and_after, 0)
{
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(publish_after_restart);
    dlx_test_gpu_turn(peer.sock);
    dlx_test_stream_restart();
    dlx_test_gpu_turn(peer.sock);
    newcomer_gets_both();
    dlx_test_gpu_tell(peer.sock);
    dlx_test_gpu_join(&peer);
}

/* Neither publisher nor daemon is left, but what a manager keeps of messages, and the keeper of
 * memory. */
GPU_LOOP_TEST(retained_tensors_outlive_their_publisher_and_the_daemon, ENDS, IS_KILLED + 1, 0)
{
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(publish_two); /* before there are threads */
    dlx_test_store_begin(DLX_TEST_STORE_MANY);
    dlx_test_gpu_turn(peer.sock);
    if (_i == IS_KILLED) {
        dlx_test_gpu_kill(&peer);
    } else {
        dlx_test_gpu_tell(peer.sock);
        dlx_test_gpu_join(&peer);
    }
    dlx_test_store_restart();
    newcomer_gets_both();
    dlx_test_store_drop("gpu/a");
    dlx_test_store_end();
}

#endif

GPU_MAIN(dlx_test_gpu_stream_case("retain"))
