/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors on GPUs that cannot be passed on, and are copied because `stage` asks for it. */
#include "tests/gpu/harness_gpu_stream.h"

#if DLX_TEST_HAS_GPU

#define N 16

static struct dlx_publish_report report;
static const struct dlx_publish_args stage = {.size = sizeof stage, .stage = true};
#define STAGE_ON(of) PUBLISH(.stage = true, .stream = (of))
static const struct dlx_publish_args strict = {
    .size = sizeof strict, .stage = true, .strict = true};

static void begin(void)
{
    report = (struct dlx_publish_report){.size = sizeof report};
}

static uint64_t n_waits(const struct dlx_test_gpu_end *x)
{
    return dlx_test_stream_stats(x->p).gpu_waits;
}

/* A publisher, and a subscriber of the same topic in the same process. */
static struct dlx_test_gpu_end both(void)
{
    begin();
    return dlx_test_gpu_both(NULL);
}

enum memory { MANAGED, VIRTUAL, POOL, N_MEMORY };

/* Why it cannot be shared: HIP's runtime says less. */
static const char *reason(enum memory memory)
{
    static const char *const of_cuda[] = {"managed", "its virtual memory was created without",
                                          "its memory pool was created without"};
    static const char *const of_hip[] = {"managed", "in several chunks", "as that of pools"};
    return dlx_test_gpu_is_hip() ? of_hip[memory] : of_cuda[memory];
}

static struct dlx_test_gpu_segment segment;
static CUmemoryPool pool;

static CUdeviceptr make(enum memory memory)
{
    CUdeviceptr at = 0;
    if (memory == MANAGED)
        CU_OK(cu.cuMemAllocManaged(&at, 4096, CU_MEM_ATTACH_GLOBAL));
    if (memory == POOL)
        at = dlx_test_gpu_pool_make(4096, CU_MEM_HANDLE_TYPE_NONE, &pool);
    if (memory == VIRTUAL) { /* across two mappings */
        dlx_test_gpu_segment_make(&segment, 2, DLX_TEST_GPU_CHUNK, CU_MEM_HANDLE_TYPE_NONE);
        at = segment.base + DLX_TEST_GPU_CHUNK - N * sizeof(uint32_t) / 2;
    }
    dlx_test_gpu_fill(at, N * sizeof(uint32_t), 7);
    return at;
}

static void end_memory(enum memory memory, CUdeviceptr at)
{
    if (memory == MANAGED)
        CU_OK(cu.cuMemFree(at));
    if (memory == POOL)
        dlx_test_gpu_pool_free(pool, at);
    if (memory == VIRTUAL)
        dlx_test_gpu_segment_free(&segment);
}

GPU_LOOP_TEST(memory_that_cannot_be_shared_is_copied_when_that_is_asked_for, 0, N_MEMORY, 0)
{
    begin();
    auto_gpu_end x = dlx_test_gpu_publish_to(dlx_test_gpu_expect_sevens, NULL);
    CUdeviceptr at = make((enum memory)_i);
    DLManagedTensorVersioned *t = dlx_test_gpu_tensor_at(at, 2, N / 2);
    fails(dlx_publish(x.p, t, NULL, NULL), DLX_E_DEVICE, reason((enum memory)_i));
    fails(dlx_publish(x.p, t, &strict, NULL), DLX_E_WOULD_COPY, reason((enum memory)_i));
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 0);
    uint64_t waits = n_waits(&x);
    ok(dlx_publish(x.p, t, &stage, &report));
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 1); /* it is done with it */
    dlx_test_gpu_fill(at, N * sizeof(uint32_t), 8);
    end_memory((enum memory)_i, at);
    ck_assert_uint_eq(report.n_copied, 1);
    ck_assert_uint_eq(report.copied_bytes, N * sizeof(uint32_t));
    ck_assert_uint_eq(n_waits(&x), waits + 1 + dlx_test_gpu_stream_waits());
}

GPU_TEST(a_view_is_copied_with_its_strides, 0)
{
    auto_gpu_end x = both();
    CUdeviceptr at = make(MANAGED);
    for (uint32_t i = 0; i < 2 * N; i++)
        dlx_test_gpu_fill(at + i * sizeof(uint32_t), sizeof(uint32_t), i % 2 == 0 ? 7 : 1);
    DLManagedTensorVersioned *all = dlx_test_gpu_tensor_at(at, 1, (int64_t)2 * N);
    DLManagedTensorVersioned *t = dlx_test_gpu_view(all, 4, N / 4, 2);
    ok(dlx_publish(x.p, t, &stage, &report));
    ck_assert_uint_eq(report.copied_bytes, (2 * N - 1) * sizeof(uint32_t));
    all->deleter(all);
    end_memory(MANAGED, at);
    dlx_test_gpu_expect(&x, 0, N, 7);
}

/* The publisher's own process gets the copy, too: the original is the caller's. */
GPU_TEST(a_shared_tensor_stays_the_caller_s_to_write, 0)
{
    auto_gpu_end x = both();
    CUdeviceptr at = make(MANAGED);
    DLManagedTensorVersioned *t = dlx_test_gpu_tensor_at(at, 1, N);
    ok(dlx_publish(x.p, t, PUBLISH(.stage = true, .share = true), NULL));
    dlx_test_gpu_fill(at, N * sizeof(uint32_t), 8);
    ok(dlx_publish(x.p, t, PUBLISH(.stage = true, .share = true), NULL));
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 0);
    ck_assert_uint_eq(t->flags & DLPACK_FLAG_BITMASK_READ_ONLY, 0);
    t->deleter(t);
    end_memory(MANAGED, at);
    dlx_test_gpu_expect(&x, 0, N, 7);
    dlx_test_gpu_expect(&x, 0, N, 8);
}

GPU_TEST(memory_that_can_be_shared_is_not_copied, 0)
{
    auto_gpu_end x = both();
    ok(dlx_publish(x.p, dlx_test_gpu_tensor(0, 1, N, 7), &strict, NULL));
    ok(dlx_publish(x.p, dlx_test_gpu_alloc(x.p, N, 8), &stage, &report));
    ck_assert_uint_eq(report.n_copied, 0);
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 0);
    dlx_test_gpu_expect(&x, 0, N, 7);
    dlx_test_gpu_expect(&x, 0, N, 8);
    dlx_publisher_unref(dlx_steal(x.p));
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 1);
}

GPU_TEST(of_a_set_only_what_has_to_be_is_copied, 0)
{
    auto_gpu_end x = both();
    CUdeviceptr at = make(POOL);
    struct dlx_item items[] = {{"cpu", dlx_test_stream_alloc(x.p, 4, 1)},
                               {"staged", dlx_test_gpu_tensor_at(at, 1, N)},
                               {"ours", dlx_test_gpu_alloc(x.p, N, 8)},
                               {"others", dlx_test_gpu_tensor(0, 1, N, 9)}};
    fails(dlx_publish_set(x.p, items, 4, NULL, NULL, NULL), DLX_E_DEVICE, "tensor 1 (\"staged\")");
    ok(dlx_publish_set(x.p, items, 4, NULL, &stage, &report));
    ck_assert_uint_eq(report.n_copied, 1);
    ck_assert_uint_eq(report.copied_bytes, N * sizeof(uint32_t));
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 1);
    end_memory(POOL, at);
    struct dlx_message *m = dlx_test_stream_next(x.s);
    for (uint32_t i = 1; i < 4; i++) {
        auto_tensor *t = NULL;
        ok(dlx_message_tensor(m, i, &t));
        dlx_test_gpu_check(t, N, 6 + i);
    }
    dlx_message_unref(m);
    dlx_publisher_unref(dlx_steal(x.p));
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 2);
}

static void publish_seven(int sock)
{
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    dlx_test_gpu_tell(sock);
    ok(dlx_publisher_wait(x.p, 1, PATIENCE));
    for (int i = 0; i < 2; i++)
        ok(dlx_publish(x.p,
                       i == 0 ? dlx_test_gpu_alloc(x.p, N, 7) : dlx_test_gpu_tensor(0, 1, N, 8),
                       NULL, NULL));
    dlx_test_gpu_await(sock);
}

/* Memory of dlx_alloc(), and of cudaMalloc. The copy stays when the original is gone. */
GPU_TEST(a_received_tensor_is_passed_on_as_a_copy, 0)
{
    DLManagedTensorVersioned *t;
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(publish_seven);
    dlx_test_gpu_await(peer.sock);
    begin();
    auto_gpu_end x = dlx_test_gpu_subscriber(NULL);
    ok(dlx_publisher_new(x.c, "gpu/b", NULL, &x.p));
    auto_subscription *s = dlx_test_stream_subscribe(x.c, "gpu/b", NULL);
    CUstream stream = dlx_test_gpu_stream();
    for (uint32_t i = 0; i < 2; i++) {
        struct dlx_message *m = dlx_test_stream_next(x.s);
        ok(dlx_message_tensor_on(m, 0, stream, &t));
        dlx_message_unref(m);
        fails(dlx_publish(x.p, t, NULL, NULL), DLX_E_DEVICE, "received");
        fails(dlx_publish(x.p, t, &strict, NULL), DLX_E_WOULD_COPY, "received");
        ok(dlx_publish(x.p, t, STAGE_ON(stream), &report));
        ck_assert_uint_eq(report.n_copied, 1);
    }
    dlx_test_gpu_wait_held(x.s, 0);
    dlx_test_gpu_tell(peer.sock);
    dlx_test_gpu_join(&peer);
    struct dlx_test_gpu_end to = {.c = x.c, .s = s};
    dlx_test_gpu_expect(&to, 0, N, 7);
    dlx_test_gpu_expect(&to, 0, N, 8);
}

GPU_TEST(the_copy_has_the_last_writes_of_the_stream, 0)
{
    auto_gpu_end x = both();
    CUdeviceptr at = make(POOL);
    CUstream stream = dlx_test_gpu_stream();
    dlx_test_gpu_spin(stream, 0, 100000000);
    CU_OK(cu.cuMemsetD32Async(at, 9, N, stream));
    ok(dlx_publish(x.p, dlx_test_gpu_tensor_at(at, 1, N), STAGE_ON(stream), &report));
    CU_OK(cu.cuStreamQuery(stream)); /* it was waited for */
    dlx_test_gpu_expect(&x, 0, N, 9);
    end_memory(POOL, at);
}

GPU_TEST(a_stream_that_is_captured_is_refused_untouched, 0)
{
    auto_gpu_end x = both();
    CUdeviceptr at = make(POOL);
    CUstream stream = dlx_test_gpu_stream();
    DLManagedTensorVersioned *t = dlx_test_gpu_tensor_at(at, 1, N);
    CU_OK(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    fails(dlx_publish(x.p, t, STAGE_ON(stream), &report), DLX_E_INVALID, "captured");
    dlx_test_gpu_end_capture(stream);
    ok(dlx_publish(x.p, t, STAGE_ON(stream), &report));
    dlx_test_gpu_expect(&x, 0, N, 7);
    end_memory(POOL, at);
}

/* To try would be an error of the GPU, which ends all its work. */
GPU_TEST(memory_that_the_gpu_cannot_read_is_refused_with_the_reason, 0)
{
    static uint32_t ordinary[N];
    void *pinned;
    auto_gpu_end x = both();
    CUdeviceptr at = make(VIRTUAL), managed = make(MANAGED);
    DLManagedTensorVersioned *t = dlx_test_gpu_tensor_at((CUdeviceptr)(uintptr_t)ordinary, 1, N);
    fails(dlx_publish(x.p, t, &stage, &report), DLX_E_DEVICE, "not on a GPU");
    t->deleter(t);
    CU_OK(cu.cuMemHostAlloc(&pinned, N * sizeof(uint32_t), 0));
    t = dlx_test_gpu_tensor_at((CUdeviceptr)(uintptr_t)pinned, 1, N);
    fails(dlx_publish(x.p, t, &stage, &report), DLX_E_DEVICE, "not on a GPU");
    t->deleter(t);
    CU_OK(cu.cuMemFreeHost(pinned));
    t = dlx_test_gpu_tensor_at(at, (int64_t)1 << 10, (int64_t)1 << 10); /* unmapped further on */
    fails(dlx_publish(x.p, t, &stage, &report), DLX_E_DEVICE, "beyond its allocation");
    t->deleter(t);
    t = dlx_test_gpu_tensor_at(managed, (int64_t)1 << 20, (int64_t)1 << 20);
    fails(dlx_publish(x.p, t, &stage, &report), DLX_E_DEVICE, "beyond its allocation");
    t->dl_tensor.device.device_id = 99;
    fails(dlx_publish(x.p, t, &stage, &report), DLX_E_DEVICE, "99");
    t->deleter(t);
    ok(dlx_publish(x.p, dlx_test_gpu_tensor_at(at, 1, N), &stage, &report));
    dlx_test_gpu_expect(&x, 0, N, 7);
    end_memory(MANAGED, managed);
    end_memory(VIRTUAL, at);
}

GPU_TEST(a_tensor_without_elements_needs_no_copy, 0)
{
    auto_gpu_end x = both();
    DLManagedTensorVersioned *t = dlx_test_gpu_tensor_at(0, 0, N);
    ok(dlx_publish(x.p, t, &stage, &report));
    ck_assert_uint_eq(report.copied_bytes, 0);
    t = dlx_test_gpu_take_tensor(&x);
    ck_assert_int_eq(t->dl_tensor.shape[0], 0);
    ok(dlx_publish(x.p, t, &stage, &report)); /* a received one */
}

static struct dlx_test_gpu_end own;
static CUdeviceptr memory_;
static int64_t n_staged; /* so many that its arena has no room for more of them */

/* A stream that gets no event is waited for: one wait more than that for the copy. */
static int publish_staged(void)
{
    DLManagedTensorVersioned *t = dlx_test_gpu_tensor_at(memory_, 1, n_staged);
    struct dlx_item item = {"a", t};
    uint64_t waits = n_waits(&own);
    int r = dlx_publish_set(own.p, &item, 1, NULL, PUBLISH(.stage = true, .share = true), NULL);
    t->deleter(t);
    return r < 0 ? r : n_waits(&own) > waits + 1 + dlx_test_gpu_stream_waits();
}

static void publish_other(void)
{
    dlx_test_stream_publish(own.p, 4, 1);
    dlx_test_gpu_wait_written(own.p);
}

GPU_TEST(a_copy_that_fails_leaves_nothing, DLX_TEST_GPU_FAILURES)
{
    own = dlx_test_gpu_publisher(PUBLISHER(.history = 1));
    n_staged = (int64_t)(DLX_TEST_GPU_CHUNK / sizeof(uint32_t)) * 3 / 4;
    CU_OK(
        cu.cuMemAllocManaged(&memory_, (size_t)n_staged * sizeof(uint32_t), CU_MEM_ATTACH_GLOBAL));
    ok(publish_staged()); /* its arena stays */
    publish_other();
    uint64_t bytes = dlx_test_stream_stats(own.p).gpu_arena_bytes;
    ck_assert_uint_lt(bytes, 2 * (uint64_t)n_staged * sizeof(uint32_t));
    ck_assert_uint_gt(dlx_test_gpu_fail_each(publish_staged, publish_other), 0);
    ck_assert_uint_eq(dlx_test_stream_stats(own.p).gpu_arena_bytes, bytes);
    end_memory(MANAGED, memory_);
    dlx_test_gpu_end(&own);
}

#endif

GPU_MAIN(dlx_test_gpu_stream_case("stage"))
