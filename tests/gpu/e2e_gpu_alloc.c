/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors that dlx_alloc() makes on GPUs, and other memory that is shared by descriptors. */
#include "tests/gpu/harness_gpu_stream.h"
#include "tests/harness/keeper.h"
#include <dlx/gpu.h>

#if DLX_TEST_HAS_GPU

#define N      16
#define DEVICE ((DLDevice){(DLDeviceType)dlx_test_gpu_type(), 0})

static void publish(struct dlx_publisher *p, int64_t n, uint32_t value)
{
    ok(dlx_publish(p, dlx_test_gpu_alloc(p, n, value), PUBLISH(.strict = true), NULL));
}

static void take(struct dlx_test_gpu_end *x, int64_t n, uint32_t value)
{
    auto_tensor *t = dlx_test_gpu_take_tensor(x);
    ck_assert_int_eq(t->dl_tensor.shape[0], n);
    dlx_test_gpu_check(t, n, value);
}

GPU_LOOP_TEST(a_tensor_is_on_the_device_aligned_and_cleared_at_first, 0, 2, DLX_TEST_GPU_TWO)
{
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    int64_t shape[] = {3, 5};
    struct dlx_tensor_spec spec =
        dlx_test_gpu_spec(shape, 2, (DLDevice){(DLDeviceType)dlx_test_gpu_type(), _i});
    DLManagedTensorVersioned *t[2];
    (void)dlx_test_gpu_context(_i);
    for (int i = 0; i < 2; i++) {
        ok(dlx_alloc(x.p, &spec, &t[i]));
        ck_assert_int_eq(t[i]->dl_tensor.device.device_type, (DLDeviceType)dlx_test_gpu_type());
        ck_assert_int_eq(t[i]->dl_tensor.device.device_id, _i);
        ck_assert_int_eq(t[i]->dl_tensor.shape[1], 5);
        ck_assert_int_eq(t[i]->dl_tensor.strides[0], 5);
        ck_assert_uint_eq(dlx_test_gpu_address(t[i]) % 256, 0);
        ck_assert_uint_eq(dlx_test_gpu_word(dlx_test_gpu_address(t[i]) + 56), 0);
    }
    dlx_test_gpu_check_calls("cuMemImportFromShareableHandle", 1); /* they share an arena */
    if (_i == 0)
        dlx_test_gpu_check_no_context(1, 1);
    struct dlx_publisher_stats stats = dlx_test_stream_stats(x.p);
    ck_assert_uint_eq(stats.gpu_arena_bytes, DLX_TEST_GPU_CHUNK);
    ck_assert_uint_eq(stats.arena_bytes, 0);
    for (int i = 0; i < 2; i++)
        t[i]->deleter(t[i]);
}

GPU_TEST(a_set_waits_for_the_default_stream_of_each_of_its_devices,
         DLX_TEST_GPU_TWO | DLX_TEST_GPU_EVENTS)
{
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    int64_t n = N;
    struct dlx_item items[] = {{.name = "first"}, {.name = "second"}};
    for (int i = 0; i < 2; i++) {
        struct dlx_tensor_spec spec =
            dlx_test_gpu_spec(&n, 1, (DLDevice){(DLDeviceType)dlx_test_gpu_type(), i});
        (void)dlx_test_gpu_context(i);
        ok(dlx_alloc(x.p, &spec, &items[i].tensor));
    }
    ok(dlx_publish_set(x.p, items, 2, NULL, NULL, NULL));
    dlx_test_gpu_check_calls("cuEventRecord", 2);
}

#define LARGE ((int64_t)DLX_TEST_GPU_CHUNK / 4) /* elements: they need an arena of their own */

static void take_two_late(int sock)
{
    auto_gpu_end x = dlx_test_gpu_subscribe(sock, SUBSCRIBE(.history = 2));
    auto_tensor *first = dlx_test_gpu_take_tensor(&x), *second = dlx_test_gpu_take_tensor(&x);
    ck_assert_int_eq(first->dl_tensor.shape[0], N);
    ck_assert_int_eq(second->dl_tensor.shape[0], LARGE);
}

/* The next arena tells the publisher, which has the descriptors. */
GPU_TEST(memory_that_a_lost_keeper_had_is_served_by_its_publisher_after_the_next_arena, 0)
{
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(take_two_late);
    struct dlx_test_gpu_end x = dlx_test_gpu_publisher(PUBLISHER(.history = 2));
    publish(x.p, N, 1);
    ck_assert_int_eq(kill(dlx_test_keeper_find(dlx_test_stream_daemon.path), SIGKILL), 0);
    publish(x.p, LARGE, 2);
    dlx_test_gpu_tell(peer.sock);
    dlx_test_gpu_join(&peer);
    dlx_test_gpu_end(&x);
}

GPU_TEST(a_device_that_is_not_there_is_refused, 0)
{
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    int64_t n = N;
    auto_tensor *t = NULL;
    struct dlx_tensor_spec spec =
        dlx_test_gpu_spec(&n, 1, (DLDevice){(DLDeviceType)dlx_test_gpu_type(), 7});
    fails(dlx_alloc(x.p, &spec, &t), DLX_E_DEVICE, "7");
    spec.device = (DLDevice){kDLCPU, 3};
    fails(dlx_alloc(x.p, &spec, &t), DLX_E_DEVICE, "CPU device 3");
    spec.device = (DLDevice){kDLMetal, 0};
    fails(dlx_alloc(x.p, &spec, &t), DLX_E_DEVICE, "8");
    struct dlx_tensor_spec set[] = {dlx_test_gpu_spec(&n, 1, DEVICE), spec};
    DLManagedTensorVersioned *ts[2];
    fails(dlx_alloc_set(x.p, set, 2, ts), DLX_E_DEVICE, "tensor 1");
    spec.device = (DLDevice){kDLCPU, 0};
    ok(dlx_alloc(x.p, &spec, &t));
    ck_assert_int_eq(t->dl_tensor.device.device_type, kDLCPU);
}

GPU_TEST(more_than_the_device_has_is_refused_and_leaves_nothing, DLX_TEST_GPU_CHOICE)
{
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    int64_t n = INT64_C(1) << 28; /* 1 GiB, all of it */
    const struct dlx_tensor_spec spec = dlx_test_gpu_spec(&n, 1, DEVICE);
    auto_tensor *t = dlx_test_gpu_alloc_empty(x.p, N), *big = NULL;
    struct dlx_test_gpu_state before = dlx_test_gpu_state_now();
    fails(dlx_alloc(x.p, &spec, &big), DLX_E_NO_MEMORY, "gpu/a");
    fails(dlx_alloc(x.p, &spec, &big), DLX_E_NO_MEMORY, "no memory for 1.0 GiB on ");
    dlx_test_gpu_state_check(&before);
}

/* An arena that nothing is in makes room. */
GPU_TEST(a_full_device_gives_up_what_is_not_used, DLX_TEST_GPU_CHOICE)
{
    static struct dlx_test_gpu_segment others; /* all but 64 MiB of 1 GiB */
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    const int64_t half = INT64_C(10) << 20; /* 40 MiB */
    dlx_test_gpu_segment_make(&others, 1, 960 * DLX_TEST_GPU_MIB,
                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    DLManagedTensorVersioned *t = dlx_test_gpu_alloc_empty(x.p, half);
    t->deleter(t);
    t = dlx_test_gpu_alloc_empty(x.p, half + 1024);
    dlx_test_gpu_check_count(STANDIN_MAPPINGS, 2);
    t->deleter(t);
    dlx_test_gpu_segment_free(&others);
}

/* Its descriptor is in the keeper, and subscribers may have it open: both close it soon after they
 * were told. */
GPU_TEST(an_allocation_waits_until_what_was_freed_is_closed_elsewhere, DLX_TEST_GPU_FAILURES)
{
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    DLManagedTensorVersioned *t = dlx_test_gpu_alloc_empty(x.p, LARGE);
    t->deleter(t);
    ck_assert(standin.standin_fail("cuMemMap", 1, 5, CUDA_ERROR_OUT_OF_MEMORY));
    auto_tensor *larger = dlx_test_gpu_alloc_empty(x.p, 2 * LARGE);
    ck_assert_uint_eq(standin.standin_fail_clear(), 5);
    dlx_test_gpu_check_count(STANDIN_MAPPINGS, 1);
    ck_assert_uint_ge(dlx_test_stream_stats(x.p).gpu_waits, 1);
}

static struct dlx_test_gpu_end own;
static DLManagedTensorVersioned *made;

static int alloc_one(void)
{
    int64_t n = INT64_C(1) << 20;
    const struct dlx_tensor_spec spec = dlx_test_gpu_spec(&n, 1, DEVICE);
    return dlx_alloc(own.p, &spec, &made);
}

static void end_publisher(void)
{
    made->deleter(made);
    own.p = dlx_publisher_unref(own.p);
    ok(dlx_publisher_new(own.c, "gpu/a", NULL, &own.p));
}

GPU_TEST(an_allocation_that_fails_leaves_nothing, DLX_TEST_GPU_FAILURES)
{
    own = dlx_test_gpu_publisher(NULL);
    ck_assert_uint_gt(dlx_test_gpu_fail_each(alloc_one, end_publisher), 0);
    dlx_test_gpu_end(&own);
}

GPU_TEST(a_tensor_outlives_its_publisher_in_its_own_process, 0)
{
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    auto_tensor *t = dlx_test_gpu_alloc(x.p, N, 5);
    dlx_publisher_unref(dlx_steal(x.p));
    dlx_test_gpu_check(t, N, 5);
}

/* Work that uses it is still queued when its tensor is deleted. */
GPU_TEST(memory_of_a_deleted_tensor_is_used_again_when_the_work_on_it_is_done, 0)
{
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    auto_tensor *t = dlx_test_gpu_alloc_empty(x.p, N);
    CUdeviceptr at = dlx_test_gpu_address(t);
    CUstream stream = dlx_test_gpu_stream();
    dlx_test_gpu_spin(stream, at, 100000000);
    t->deleter(t);
    t = dlx_test_gpu_alloc_empty(x.p, N);
    ck_assert_uint_eq(dlx_test_gpu_address(t), at);
    CU_OK(cu.cuStreamQuery(stream)); /* it is done */
}

/* An allocator frees memory without a word about the work that uses it: the call waits. */
GPU_TEST(memory_of_an_allocator_is_freed_when_the_work_on_it_is_done, 0)
{
    (void)dlx_test_gpu_context(0);
    void *memory = dlx_cuda_malloc(DLX_TEST_GPU_CHUNK, 0, NULL);
    ck_assert_msg(memory, "%s", dlx__error_message());
    CUstream stream = dlx_test_gpu_stream();
    dlx_test_gpu_spin(stream, (CUdeviceptr)(uintptr_t)memory, 100000000);
    dlx_cuda_free(memory, DLX_TEST_GPU_CHUNK, 0, NULL);
    CU_OK(cu.cuStreamQuery(stream)); /* it is done */
}

static void take_two(int sock)
{
    auto_gpu_end x = dlx_test_gpu_subscribe(sock, NULL);
    take(&x, N, 1);
    dlx_test_gpu_tell(sock);
    take(&x, N, 2);
    dlx_test_gpu_check_calls("cuMemImportFromShareableHandle", 1); /* one arena */
    dlx_test_gpu_check_no_context(1, 1);
}

GPU_TEST(a_tensor_is_taken_by_another_process_without_a_copy, 0)
{
    auto_gpu_end x = dlx_test_gpu_publish_to(take_two, NULL);
    publish(x.p, N, 1);
    dlx_test_gpu_await(x.peer.sock);
    publish(x.p, N, 2);
    dlx_test_gpu_join(&x.peer);
    struct dlx_publisher_stats stats = dlx_test_stream_stats(x.p);
    ck_assert_uint_eq(stats.copied, 0);
    ck_assert_uint_eq(stats.published_bytes, 2 * N * sizeof(uint32_t));
}

static void take_all(int sock)
{
    auto_gpu_end x = dlx_test_gpu_subscribe(sock, SUBSCRIBE(.reliable = true));
    for (uint32_t i = 0; i < 100; i++)
        take(&x, N, i);
}

GPU_TEST(a_stream_goes_round_in_one_arena, 0)
{
    auto_gpu_end x = dlx_test_gpu_publish_to(take_all, PUBLISHER(.on_full = DLX_ON_FULL_BLOCK));
    for (uint32_t i = 0; i < 100; i++)
        ok(dlx_publish(x.p, dlx_test_gpu_alloc(x.p, N, i), PUBLISH(.timeout_ns = PATIENCE), NULL));
    dlx_test_gpu_check_calls("cuMemImportFromShareableHandle", 1);
}

static void take_dict(int sock)
{
    auto_gpu_end x = dlx_test_gpu_subscribe(sock, NULL);
    struct dlx_message *m = dlx_test_stream_next(x.s);
    uint32_t n = dlx_message_n_tensors(m);
    for (uint32_t i = 0; i < n; i++) {
        auto_tensor *t = NULL;
        ok(dlx_message_tensor(m, i, &t));
        if (i == n - 1)
            ck_assert_int_eq(((uint32_t *)t->dl_tensor.data)[0], 99);
        else
            dlx_test_gpu_check(t, N, i);
    }
    dlx_message_unref(m);
    dlx_test_gpu_check_calls("cuMemImportFromShareableHandle", 1);
}

/* A state dict: one arena, one descriptor, one import, and a tensor on the CPU beside them. */
GPU_TEST(a_set_lies_in_one_allocation, 0)
{
    enum { MANY = 300 };
    const int64_t shape[] = {N};
    struct dlx_tensor_spec specs[MANY];
    struct dlx_item items[MANY];
    DLManagedTensorVersioned *t[MANY];
    char names[MANY][16];
    auto_gpu_end x = dlx_test_gpu_publish_to(take_dict, NULL);
    for (int i = 0; i < MANY; i++)
        specs[i] = dlx_test_gpu_spec(shape, 1, i == MANY - 1 ? (DLDevice){kDLCPU, 0} : DEVICE);
    ok(dlx_alloc_set(x.p, specs, MANY, t));
    for (uint32_t i = 0; i < MANY; i++) {
        (void)snprintf(names[i], sizeof names[i], "layer%u", i);
        items[i] = (struct dlx_item){names[i], t[i]};
        if (i < MANY - 1)
            CU_OK(cu.cuMemsetD32(dlx_test_gpu_address(t[i]), i, N));
    }
    *(uint32_t *)t[MANY - 1]->dl_tensor.data = 99;
    ok(dlx_publish_set(x.p, items, MANY, NULL, PUBLISH(.strict = true), NULL));
    dlx_test_gpu_check_calls("cuMemImportFromShareableHandle", 1);
}

GPU_TEST(a_tensor_that_was_published_is_not_the_caller_s_any_more, 0)
{
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    DLManagedTensorVersioned *t = dlx_test_gpu_alloc(x.p, N, 1);
    ok(dlx_publish(x.p, t, NULL, NULL));
    fails(dlx_publish(x.p, t, NULL, NULL), DLX_E_INVALID, "published or deleted before");
    t->deleter(t); /* does nothing, and is counted nowhere that hurts */
    publish(x.p, N, 2);
}

GPU_TEST(a_shared_tensor_stays_the_caller_s_and_is_in_several_messages, 0)
{
    auto_gpu_end x = dlx_test_gpu_both(NULL);
    auto_tensor *t = dlx_test_gpu_alloc(x.p, N, 4), *other = NULL;
    CUdeviceptr at = dlx_test_gpu_address(t);
    for (int i = 0; i < 3; i++)
        ok(dlx_publish(x.p, t, PUBLISH(.share = true), NULL));
    ck_assert_uint_eq(t->flags & DLPACK_FLAG_BITMASK_READ_ONLY, DLPACK_FLAG_BITMASK_READ_ONLY);
    for (int i = 0; i < 3; i++)
        take(&x, N, 4);
    dlx_test_stream_publish(x.p, 4, 1);
    dlx_message_unref(dlx_test_stream_next(x.s));
    ok(dlx_publisher_wait(x.p, 0, 0));
    other = dlx_test_gpu_alloc_empty(x.p, N); /* no message has it, but its owner */
    ck_assert_uint_ne(dlx_test_gpu_address(other), at);
}

GPU_TEST(a_view_of_it_is_published_and_what_was_moved_out_is_refused, 0)
{
    auto_gpu_end x = dlx_test_gpu_both(NULL);
    auto_tensor *t = dlx_test_gpu_alloc(x.p, 4 * N, 4);
    CU_OK(cu.cuMemsetD32(dlx_test_gpu_address(t) + N * sizeof(uint32_t), 9, N));
    t->dl_tensor.shape[0] = N;
    t->dl_tensor.byte_offset = N * sizeof(uint32_t);
    ok(dlx_publish(x.p, t, NULL, NULL));
    take(&x, N, 9);
    t = dlx_test_gpu_alloc(x.p, N, 4);
    t->dl_tensor.byte_offset = 256;
    fails(dlx_publish(x.p, t, NULL, NULL), DLX_E_DEVICE, "moved out");
    t->dl_tensor.byte_offset = 0;
    t->dl_tensor.data = (uint8_t *)t->dl_tensor.data - 4;
    fails(dlx_publish(x.p, t, NULL, NULL), DLX_E_DEVICE, "moved out");
}

/* More chunks than one message of a socket carries descriptors. */
GPU_TEST(a_tensor_across_an_expandable_segment_is_taken, DLX_TEST_GPU_CHUNKS)
{
    enum { CHUNKS = 260 };
    static struct dlx_test_gpu_segment segment;
    auto_gpu_end x = dlx_test_gpu_publish_to(dlx_test_gpu_expect_sevens, NULL);
    dlx_test_gpu_segment_make(&segment, CHUNKS, 2 * DLX_TEST_GPU_MIB,
                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CU_OK(cu.cuMemsetD32(segment.base, 7, N));
    const int64_t n = CHUNKS * 2 * (int64_t)DLX_TEST_GPU_MIB / 4;
    DLManagedTensorVersioned *t = dlx_test_gpu_tensor_at(segment.base, 1, n);
    DLManagedTensorVersioned *all = dlx_test_gpu_tensor_at(segment.base, 1, n);
    t->dl_tensor.ndim = 1;
    t->dl_tensor.shape[0] = N;
    t->dl_tensor.strides = NULL;
    struct dlx_item items[] = {{"a", t}, {"all", all}};
    ok(dlx_publish_set(x.p, items, 2, NULL, NULL, NULL));
    dlx_test_gpu_join(&x.peer);
    dlx_publisher_unref(dlx_steal(x.p));
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 2);
    dlx_test_gpu_segment_free(&segment);
}

GPU_TEST(a_tensor_of_a_pool_is_taken, DLX_TEST_GPU_POOLS)
{
    CUmemoryPool pool;
    auto_gpu_end x = dlx_test_gpu_publish_to(dlx_test_gpu_expect_sevens, NULL);
    CUdeviceptr at = dlx_test_gpu_pool_make(4096, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, &pool);
    CU_OK(cu.cuMemsetD32(at, 7, N));
    ok(dlx_publish(x.p, dlx_test_gpu_tensor_at(at, N, 1), NULL, NULL));
    dlx_test_gpu_join(&x.peer);
    dlx_publisher_unref(dlx_steal(x.p));
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 1);
    dlx_test_gpu_pool_free(pool, at);
}

static void expect_sevens_of_two_topics(int sock)
{
    auto_gpu_end x = dlx_test_gpu_subscribe(sock, NULL);
    struct dlx_subscription *other;
    ok(dlx_subscribe(x.c, "gpu/b", SUBSCRIBE(.history = 1), &other));
    DLManagedTensorVersioned *first = dlx_test_gpu_take_tensor(&x), *second;
    struct dlx_message *m = dlx_test_stream_next(other);
    ok(dlx_message_tensor(m, 0, &second));
    dlx_message_unref(m);
    first->deleter(first);
    dlx_test_gpu_check(second, N, 7);
    second->deleter(second);
    dlx_subscription_unref(other);
    dlx_test_gpu_check_count(STANDIN_POOL_IMPORTS, 0);
}

GPU_TEST(a_tensor_of_a_pool_is_taken_from_two_topics, DLX_TEST_GPU_POOLS)
{
    CUmemoryPool pool;
    struct dlx_publisher *other;
    auto_gpu_end x = dlx_test_gpu_publish_to(expect_sevens_of_two_topics, NULL);
    ok(dlx_publisher_new(x.c, "gpu/b", PUBLISHER(.history = 1), &other));
    CUdeviceptr at = dlx_test_gpu_pool_make(4096, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, &pool);
    CU_OK(cu.cuMemsetD32(at, 7, N));
    ok(dlx_publish(other, dlx_test_gpu_tensor_at(at, N, 1), NULL, NULL));
    ok(dlx_publish(x.p, dlx_test_gpu_tensor_at(at, N, 1), NULL, NULL));
    dlx_test_gpu_join(&x.peer);
    dlx_publisher_unref(dlx_steal(x.p));
    dlx_publisher_unref(other);
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 2);
    dlx_test_gpu_pool_free(pool, at);
}

#endif

GPU_MAIN(dlx_test_gpu_stream_case("alloc"))
