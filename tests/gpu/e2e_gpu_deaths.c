/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors on GPUs when processes die, drivers fail and daemons are replaced. */
#include "tests/gpu/harness_gpu_stream.h"

#if DLX_TEST_HAS_GPU

#define N 16

static void hold(int sock)
{
    auto_gpu_end x = dlx_test_gpu_subscribe(sock, NULL);
    DLManagedTensorVersioned *t;
    struct dlx_message *m = dlx_test_stream_next(x.s);
    ok(dlx_message_tensor(m, 0, &t));
    dlx_test_gpu_check(t, N, 7);
    dlx_test_gpu_turn(sock);
    t->deleter(t);
    dlx_message_unref(m);
    dlx_test_gpu_tell(sock);
}

/* Message 1 is held by the peer, and 2 is the newest one. */
static struct dlx_test_gpu_end publish_to_holder(void)
{
    struct dlx_test_gpu_end x = dlx_test_gpu_publish_to(hold, NULL);
    ok(dlx_publish(x.p, dlx_test_gpu_tensor(0, 1, N, 7), NULL, NULL));
    dlx_test_gpu_await(x.peer.sock);
    return x;
}

GPU_TEST(a_tensor_is_deleted_when_the_process_that_holds_it_is_killed, 0)
{
    struct dlx_test_gpu_end x = publish_to_holder();
    ok(dlx_publish(x.p, dlx_test_gpu_tensor(0, 1, N, 8), NULL, NULL));
    ok(dlx_publisher_wait(x.p, 0, 0));
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 0);
    dlx_test_gpu_kill(&x.peer);
    dlx_test_gpu_n_freed_open = 1;
    dlx_test_gpu_wait_deleted(&x, 1);
    dlx_test_gpu_end(&x);
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 2);
}

GPU_TEST(a_publisher_that_ends_does_not_free_what_is_held, 0)
{
    struct dlx_test_gpu_end x = publish_to_holder();
    DLManagedTensorVersioned *mine = dlx_test_gpu_tensor(0, 1, N, 9);
    ok(dlx_publish(x.p, mine, PUBLISH(.share = true), NULL));
    dlx_publisher_unref(dlx_steal(x.p));
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 0);
    mine->deleter(mine);
    dlx_test_gpu_turn(x.peer.sock);
    dlx_test_gpu_end(&x);
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 1);
}

GPU_TEST(a_publisher_that_ends_waits_for_those_who_hold, 0)
{
    auto_gpu_end x = publish_to_holder();
    dlx_test_gpu_tell(x.peer.sock);
    dlx_publisher_unref(dlx_steal(x.p));
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 1);
}

GPU_TEST(a_publisher_that_ends_leaves_no_tensor_on_a_gpu_retained, 0)
{
    auto_gpu_end x = dlx_test_gpu_publisher(PUBLISHER(.retain = 1));
    struct dlx_message *m = NULL;
    ok(dlx_publish(x.p, dlx_test_gpu_tensor(0, 1, N, 7), NULL, NULL));
    dlx_publisher_unref(dlx_steal(x.p));
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 1);
    ck_assert_int_eq(dlx_get(x.c, "gpu/a", 0, &m), DLX_E_EMPTY);
}

/* The context of the subscriber is lost: it releases all the same, and that is counted. */
static void lose_context(int sock)
{
    struct dlx_test_gpu_end x = dlx_test_gpu_subscribe(sock, NULL);
    DLManagedTensorVersioned *t;
    struct dlx_message *m = dlx_test_stream_next(x.s);
    ok(dlx_message_tensor(m, 0, &t));
    dlx_test_gpu_lose_context();
    dlx_message_unref(m);
    t->deleter(t);
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(x.s);
    ck_assert_uint_eq(stats.gpu_errors, 1);
    ck_assert_uint_eq(stats.n_held, 0);
    dlx_test_gpu_tell(sock);
    dlx_test_stream_expect(x.s, 4, 3); /* the CPU's messages go on */
    dlx_subscription_unref(x.s);
    dlx_client_unref(x.c);
}

GPU_TEST(a_lost_context_releases_and_is_counted, 0)
{
    auto_gpu_end x = dlx_test_gpu_publish_to(lose_context, NULL);
    ok(dlx_publish(x.p, dlx_test_gpu_tensor(0, 1, N, 7), NULL, NULL));
    dlx_test_gpu_await(x.peer.sock);
    dlx_test_gpu_n_freed_open = 1;
    dlx_test_stream_publish(x.p, 4, 3);
    dlx_test_gpu_wait_deleted(&x, 1);
}

static void publish_two(int sock)
{
    dlx_test_gpu_await(sock);
    auto_gpu_end x = dlx_test_gpu_publisher(PUBLISHER(.history = 2, .retain = 2));
    for (uint32_t i = 1; i <= 2; i++) {
        struct dlx_item items[] = {{"gpu", dlx_test_gpu_tensor(0, 1, N, i)},
                                   {"cpu", dlx_test_stream_alloc(x.p, 4, i)}};
        ok(dlx_publish_set(x.p, items, 2, NULL, NULL, NULL));
    }
    dlx_test_gpu_turn(sock);
}

/* 0: its subscriber has taken the messages; 1: they come from what the daemon retains. */
GPU_LOOP_TEST(memory_of_a_publisher_that_was_killed_cannot_be_opened, 0, 2, 0)
{
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(publish_two);
    auto_gpu_end x = {.c = dlx_test_stream_connect()};
    struct dlx_message *m[2];
    DLManagedTensorVersioned *t, *open = NULL;
    (void)dlx_test_gpu_context(0);
    if (_i == 0)
        ok(dlx_subscribe(x.c, "gpu/a", NULL, &x.s));
    dlx_test_gpu_turn(peer.sock);
    if (_i == 0) {
        for (int i = 0; i < 2; i++)
            m[i] = dlx_test_stream_next(x.s);
        ok(dlx_message_tensor(m[0], 0, &open)); /* stays mapped */
    }
    dlx_test_gpu_kill(&peer);
    if (_i == 1) {
        ok(dlx_subscribe(x.c, "gpu/a", NULL, &x.s));
        for (int i = 0; i < 2; i++)
            m[i] = dlx_test_stream_next(x.s);
    }
    fails(dlx_message_tensor(m[1], 0, &t), DLX_E_PUBLISHER_GONE, "publisher");
    ok(dlx_message_tensor(m[1], 1, &t));
    ck_assert_int_eq(((int64_t *)t->dl_tensor.data)[0], 2);
    t->deleter(t);
    if (open)
        open->deleter(open);
    dlx_test_stream_unref_messages(m, 2);
}

static struct dlx_test_gpu_end own;
static DLManagedTensorVersioned *tensor;

/* Publishes a tensor whose end cannot be left to a thread: the call waits. */
static int publish_shared(void)
{
    uint64_t n_waits = dlx_test_stream_stats(own.p).gpu_waits;
    int r = dlx_publish(own.p, tensor, PUBLISH(.share = true), NULL);
    return r < 0 ? r
                 : dlx_test_stream_stats(own.p).gpu_waits > n_waits + dlx_test_gpu_stream_waits();
}

/* The next message lets the shared one go. */
static void publish_other(void)
{
    dlx_test_stream_publish(own.p, 4, 1);
    dlx_test_gpu_wait_written(own.p);
}

GPU_TEST(a_publish_that_fails_leaves_nothing, DLX_TEST_GPU_FAILURES)
{
    own = dlx_test_gpu_publisher(NULL);
    tensor = dlx_test_gpu_tensor(0, 1, N, 1);
    ok(publish_shared());
    publish_other();
    ck_assert_uint_gt(dlx_test_gpu_fail_each(publish_shared, publish_other), 0);
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 0);
    tensor->deleter(tensor);
    dlx_test_gpu_end(&own);
}

static struct dlx_message *taken;
static DLManagedTensorVersioned *opened;

static int open_taken(void)
{
    return dlx_message_tensor(taken, 0, &opened);
}

/* A message keeps its allocation open: releases it, and takes it again. */
static void release_and_take(void)
{
    opened->deleter(opened);
    dlx_message_unref(taken);
    dlx_subscription_unref(own.s);
    ok(dlx_subscribe(own.c, "gpu/a", SUBSCRIBE(.history = 1), &own.s));
    taken = dlx_test_stream_next(own.s);
}

GPU_TEST(an_open_that_fails_leaves_nothing, DLX_TEST_GPU_FAILURES)
{
    own = dlx_test_gpu_subscribe_to(publish_two, NULL);
    taken = dlx_test_stream_next(own.s);
    ck_assert_uint_gt(dlx_test_gpu_fail_each(open_taken, release_and_take), 0);
    dlx_message_unref(taken);
    dlx_test_gpu_end(&own);
}

GPU_TEST(a_retained_tensor_goes_along_to_another_daemon_and_is_deleted_once, 0)
{
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(dlx_test_gpu_expect_sevens);
    struct dlx_test_gpu_end x = dlx_test_gpu_publisher(PUBLISHER(.retain = 1));
    ok(dlx_publish(x.p, dlx_test_gpu_tensor(0, 1, N, 7), NULL, NULL));
    dlx_test_stream_restart();
    struct dlx_client *probe = dlx_test_stream_connect();
    ok(dlx_publisher_wait(x.p, 0, 0));
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 0);
    dlx_test_gpu_tell(peer.sock);
    struct pollfd said = {.fd = peer.sock, .events = POLLIN};
    eventually(dlx_publisher_wait(x.p, 0, 0) == 0 && poll(&said, 1, 1) == 1);
    dlx_test_gpu_join(&peer);
    dlx_test_stream_publish(x.p, 4, 1);
    dlx_test_gpu_wait_deleted(&x, 1);
    dlx_client_unref(probe);
    dlx_test_gpu_end(&x);
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 1);
}

#endif

GPU_MAIN(dlx_test_gpu_stream_case("deaths"))
