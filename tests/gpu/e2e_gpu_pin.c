/* SPDX-License-Identifier: Apache-2.0 */

/* dlx_subscribe_args.pin: arenas on the CPU are registered with the driver of a GPU. */

#include "tests/gpu/harness_gpu_stream.h"

#if DLX_TEST_HAS_GPU
#include "client/subscribe/subscription.h"
#include "tests/harness/fork.h"
#include <dlpack/dlpack.h>

#define MIB  (INT64_C(1) << 20)
#define N(n) ((n)*MIB / 8) /* elements of dlx_test_stream_publish() */

static const struct dlx_publisher_args one = {.size = sizeof one, .history = 1};
static struct dlx_subscribe_args pinned; /* by the setup: on the first GPU */

/* The driver has to be able to pin what is mapped read-only: the stand-in is told to. */
static void allow(bool may)
{
    if (!dlx_test_gpu_is_standin())
        return;
    standin.standin_set_attribute(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, may);
}

static struct dlx_subscription_stats stats_of(const struct dlx_test_pair *x)
{
    return dlx_test_stream_subscription_stats(x->s);
}

static struct dlx_message *take_passed(struct dlx_test_pair *x, int64_t n, int64_t value)
{
    dlx_test_stream_publish(x->p, n, value);
    struct dlx_message *m = dlx_test_stream_next(x->s);
    dlx_test_stream_check(m, n, value);
    return m;
}

static void pass(struct dlx_test_pair *x, int64_t n, int64_t value)
{
    dlx_message_unref(take_passed(x, n, value));
}

/* 20 MiB, 22 MiB, ...: each needs an arena of its own, and the ones before go back. */
static void pass_growing(struct dlx_test_pair *x)
{
    for (int64_t mib = 10; mib < 24; mib += 2)
        pass(x, N(mib), mib);
}

/* The subscription has heard of all that its publisher has added and dropped, and has pinned it. */
static void check_pinned(struct dlx_test_pair *x)
{
    struct dlx_publisher_stats p = dlx_test_stream_stats(x->p);
    uint64_t until = dlx__deadline(PATIENCE);
    while (x->s->links[0]->n_arenas != p.n_arenas) {
        ck_assert_uint_lt(dlx__now_ns(), until);
        dlx__subscription_read_notifications(x->s);
    }
    ck_assert_uint_eq(stats_of(x).pinned_bytes, p.arena_bytes);
    ck_assert_uint_eq(stats_of(x).pin_failures, 0);
    ck_assert_uint_eq(standin.standin_count(STANDIN_REGISTERED), p.n_arenas);
}

static void check_nothing_left(void)
{
    ck_assert_uint_eq(standin.standin_count(STANDIN_REGISTERED), 0);
    dlx_test_gpu_check_count(STANDIN_CONTEXTS, 0);
}

/* A pair that leaves nothing registered. */
#define auto_pinned DLX_TEST_AUTO(end_pinned) struct dlx_test_pair
static void end_pinned(struct dlx_test_pair *x)
{
    dlx_test_pair_end(x);
    check_nothing_left();
}

static void check_no_current_context(void)
{
    CUcontext current = NULL;
    CU_OK(cu.cuCtxGetCurrent(&current));
    ck_assert_ptr_null(current);
}

static struct dlx_event next_event(struct dlx_subscription *s)
{
    struct dlx_event e = {.size = sizeof e};
    ok(dlx_subscription_next_event(s, &e));
    return e;
}

/* Its publisher has joined, and its memory is not pinned, for a reason with these words. */
static void check_unpinned(struct dlx_subscription *s, const char *words)
{
    struct dlx_event joined = next_event(s), e = next_event(s);
    ck_assert_uint_eq(joined.kind, DLX_EVENT_JOINED);
    ck_assert_uint_eq(e.kind, DLX_EVENT_UNPINNED);
    ck_assert_str_eq(e.topic, "test/a");
    ck_assert_uint_eq(e.link, joined.link);
    ck_assert_uint_eq(e.publisher, joined.publisher);
    ck_assert_uint_ne(e.publisher, 0);
    contains(e.reason, words);
}

static void check_no_event(struct dlx_subscription *s)
{
    struct dlx_event e = {.size = sizeof e};
    ck_assert_int_eq(dlx_subscription_next_event(s, &e), DLX_E_EMPTY);
}

/* Why memory that is mapped read-only is not pinned: CUDA is asked for a flag, HIP has none. */
static const char *no_flag(void)
{
    return dlx_test_gpu_is_hip() ? "hipHostRegister" : "mapped read-only";
}

#define PIN_NEEDS      (DLX_TEST_GPU_COUNTS | DLX_TEST_GPU_CHOICE)
#define PIN_TEST(name) GPU_TEST(name, PIN_NEEDS)

PIN_TEST(each_arena_is_registered_once_and_unregistered_at_the_end)
{
    struct dlx_test_pair x = dlx_test_pair_make(&one, &pinned);
    for (int64_t i = 0; i < 20; i++) {
        auto_message *m = take_passed(&x, N(1), i);
        ck_assert_int_eq(dlx_message_tensor_peek(m, 0)->device.device_type, kDLCPU);
    }
    uint32_t n_arenas = dlx_test_stream_stats(x.p).n_arenas;
    ck_assert_uint_gt(n_arenas, 0);
    check_pinned(&x);
    ck_assert_uint_eq(standin.standin_calls("cuMemHostRegister"), n_arenas);
    check_no_current_context();
    ck_assert_uint_eq(next_event(x.s).kind, DLX_EVENT_JOINED);
    check_no_event(x.s);
    dlx_test_pair_end(&x);
    ck_assert_uint_eq(standin.standin_calls("cuMemHostUnregister"), n_arenas);
    check_nothing_left();
}

PIN_TEST(arenas_that_come_and_go_while_streaming_are_registered_and_unregistered)
{
    struct dlx_test_pair x = dlx_test_pair_make(&one, &pinned);
    pass_growing(&x);
    check_pinned(&x);
    ck_assert_uint_gt(standin.standin_calls("cuMemHostUnregister"), 0);
    dlx_test_pair_end(&x);
    ck_assert_uint_eq(standin.standin_calls("cuMemHostUnregister"),
                      standin.standin_calls("cuMemHostRegister"));
    check_nothing_left();
}

/* Each subscription has mappings of its own. */
PIN_TEST(two_subscriptions_of_a_process_register_what_each_has_mapped)
{
    auto_pinned x = dlx_test_pair_make(&one, &pinned);
    struct dlx_subscription *other = dlx_test_stream_subscribe(x.c, "test/a", &pinned);
    pass(&x, N(1), 1);
    dlx_message_unref(dlx_test_stream_next(other));
    ck_assert_uint_eq(dlx_test_stream_subscription_stats(other).pinned_bytes,
                      stats_of(&x).pinned_bytes);
    ck_assert_uint_eq(standin.standin_count(STANDIN_REGISTERED),
                      2 * dlx_test_stream_stats(x.p).n_arenas);
    dlx_subscription_unref(other);
    check_pinned(&x);
}

/* The copy is queued, and the stream gets to it when all else is gone but the message. */
PIN_TEST(a_message_that_is_held_stays_pinned_when_its_subscription_has_left)
{
    struct dlx_test_pair x = dlx_test_pair_make(&one, &pinned);
    struct dlx_message *m = take_passed(&x, N(1), 7);
    const void *data = dlx_message_tensor_peek(m, 0)->data;
    CUdeviceptr copy, on_device;
    int64_t got[2];
    (void)dlx_test_gpu_context(0);
    CU_OK(cu.cuMemAlloc(&copy, (size_t)MIB));
    CUstream stream = dlx_test_gpu_stream();
    dlx_test_pair_end(&x);
    ck_assert_uint_gt(standin.standin_count(STANDIN_REGISTERED), 0);
    CU_OK(cu.cuMemHostGetDevicePointer(&on_device, (void *)(uintptr_t)data, 0));
    CU_OK(cu.cuMemcpyHtoDAsync(copy, data, (size_t)MIB, stream));
    CU_OK(cu.cuStreamSynchronize(stream));
    CU_OK(cu.cuMemcpyDtoH(got, copy + (CUdeviceptr)MIB - sizeof got, sizeof got));
    ck_assert_int_eq(got[1], 7 + N(1) - 1);
    dlx_message_unref(m);
    ck_assert_uint_eq(standin.standin_count(STANDIN_REGISTERED), 0);
    CU_OK(cu.cuMemFree(copy));
}

/* On any driver: what it pins it knows, and what it does not pin has a reason. */
GPU_TEST(a_received_tensor_is_copied_to_the_gpu_pinned_or_with_a_reason, 0)
{
    struct dlx_test_pair x = dlx_test_pair_make(&one, &pinned);
    CUdeviceptr copy, on_device;
    int64_t got[2];
    (void)dlx_test_gpu_context(0);
    CU_OK(cu.cuMemAlloc(&copy, 24 * (size_t)MIB));
    for (int64_t mib = 10; mib < 24; mib += 2) {
        auto_message *m = take_passed(&x, N(mib), mib);
        const void *data = dlx_message_tensor_peek(m, 0)->data;
        size_t size = (size_t)(mib * MIB);
        if (stats_of(&x).pin_failures == 0)
            CU_OK(cu.cuMemHostGetDevicePointer(&on_device, (void *)(uintptr_t)data, 0));
        CU_OK(cu.cuMemcpyHtoD(copy, data, size));
        CU_OK(cu.cuMemcpyDtoH(got, copy + size - sizeof got, sizeof got));
        ck_assert_int_eq(got[1], mib + N(mib) - 1);
    }
    ck_assert_uint_eq(next_event(x.s).kind, DLX_EVENT_JOINED);
    if (stats_of(&x).pin_failures > 0) {
        ck_assert(!dlx_test_gpu_is_standin());
        struct dlx_event e = next_event(x.s);
        ck_assert_uint_eq(e.kind, DLX_EVENT_UNPINNED);
        ck_assert_str_ne(e.reason, "");
        dlx_test_gpu_unchecked(e.reason);
    } else {
        ck_assert_uint_gt(stats_of(&x).pinned_bytes, 0);
    }
    check_no_event(x.s);
    dlx_test_pair_end(&x);
    CU_OK(cu.cuMemFree(copy));
}

PIN_TEST(links_of_a_later_daemon_are_pinned_too)
{
    auto_pinned x = dlx_test_pair_make(&one, &pinned);
    pass(&x, 10, 1);
    uint64_t n = standin.standin_calls("cuMemHostRegister"), until = dlx__deadline(PATIENCE);
    dlx_test_stream_restart();
    while (standin.standin_calls("cuMemHostRegister") == n) {
        struct dlx_message *m;
        ck_assert_uint_lt(dlx__now_ns(), until);
        dlx_test_stream_publish(x.p, 10, 2);
        while (dlx_take(x.s, 0, &m) == 0)
            dlx_message_unref(m);
    }
    ck_assert_uint_gt(stats_of(&x).pinned_bytes, 0);
    ck_assert_uint_eq(stats_of(&x).pin_failures, 0);
}

PIN_TEST(nothing_is_registered_unasked)
{
    struct dlx_test_pair x = dlx_test_pair_make(&one, NULL);
    struct dlx_subscribe_args old = {.size = offsetof(struct dlx_subscribe_args, pin),
                                     .pin = pinned.pin}; /* a caller of before */
    struct dlx_subscription *s = dlx_test_stream_subscribe(x.c, "test/a", &old);
    pass(&x, N(1), 1);
    ck_assert_uint_eq(
        stats_of(&x).pinned_bytes + dlx_test_stream_subscription_stats(s).pinned_bytes, 0);
    dlx_subscription_unref(s);
    dlx_test_pair_end(&x);
    ck_assert_uint_eq(standin.standin_calls("cuInit"), 0);
}

PIN_TEST(only_the_named_device_gets_a_context)
{
    struct dlx_test_pair x = dlx_test_pair_make(&one, SUBSCRIBE(.pin = dlx_test_gpu_device(1)));
    pass(&x, N(1), 1);
    check_pinned(&x);
    check_no_current_context();
    dlx_test_pair_end(&x);
    ck_assert_uint_eq(standin.standin_contexts_made(0), 0);
    ck_assert_uint_eq(standin.standin_contexts_made(1), 1);
    check_nothing_left();
}

PIN_TEST(an_arena_is_registered_while_a_stream_is_captured)
{
    struct dlx_test_pair x = dlx_test_pair_make(&one, &pinned);
    (void)dlx_test_gpu_context(0);
    CUstream stream = dlx_test_gpu_stream();
    CU_OK(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    pass_growing(&x);
    check_pinned(&x);
    ck_assert_uint_gt(standin.standin_calls("cuMemHostUnregister"), 0);
    dlx_test_pair_end(&x);
    dlx_test_gpu_end_capture(stream);
    ck_assert_uint_eq(standin.standin_count(STANDIN_REGISTERED), 0);
}

PIN_TEST(without_read_only_registration_messages_come_unpinned_and_that_is_said_once)
{
    allow(false);
    auto_pinned x = dlx_test_pair_make(&one, &pinned);
    pass_growing(&x);
    ck_assert_uint_eq(stats_of(&x).pinned_bytes, 0);
    ck_assert_uint_gt(stats_of(&x).pin_failures, 1);
    ck_assert_uint_eq(stats_of(&x).lost, 0);
    if (!dlx_test_gpu_is_hip())
        ck_assert_uint_eq(standin.standin_calls("cuMemHostRegister"), 0);
    check_unpinned(x.s, no_flag());
    check_no_event(x.s);
}

PIN_TEST(unpinned_memory_is_told_after_its_publisher_has_joined)
{
    allow(false);
    auto_pair x = {.c = dlx_test_stream_connect()};
    ok(dlx_publisher_new(x.c, "test/a", &one, &x.p));
    dlx_test_stream_publish(x.p, N(1), 1);
    ok(dlx_subscribe(x.c, "test/a", &pinned, &x.s));
    ck_assert_uint_eq(stats_of(&x).pin_failures, 1);
    check_unpinned(x.s, no_flag());
}

GPU_TEST(a_device_with_the_page_tables_of_the_cpu_needs_no_flag, PIN_NEEDS | DLX_TEST_GPU_FLAGS)
{
    allow(false);
    standin.standin_set_attribute(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
                                  1);
    auto_pinned x = dlx_test_pair_make(&one, &pinned);
    pass(&x, N(1), 1);
    check_pinned(&x);
}

PIN_TEST(an_arena_that_cannot_be_registered_is_read_and_the_others_are_registered)
{
    auto_pinned x = dlx_test_pair_make(&one, &pinned);
    pass(&x, N(1), 1);
    uint64_t before = stats_of(&x).pinned_bytes;
    ck_assert(standin.standin_fail("cuMemHostRegister", 1, 1, CUDA_ERROR_OUT_OF_MEMORY));
    auto_message *m = take_passed(&x, N(12), 2);
    ck_assert_uint_eq(stats_of(&x).pinned_bytes, before);
    ck_assert_uint_eq(stats_of(&x).pin_failures, 1);
    auto_message *later = take_passed(&x, N(14), 3);
    ck_assert_uint_gt(stats_of(&x).pinned_bytes, before);
    ck_assert_uint_eq(stats_of(&x).pin_failures, 1);
    check_unpinned(x.s, "HostRegister: CUDA_ERROR_OUT_OF_MEMORY");
}

/* The driver would take for it what is mapped there next. */
PIN_TEST(an_arena_that_cannot_be_unregistered_stays_mapped)
{
    struct dlx_test_pair x = dlx_test_pair_make(&one, &pinned);
    struct dlx_message *m = take_passed(&x, N(1), 5);
    const int64_t *data = dlx_message_tensor_peek(m, 0)->data;
    (void)dlx_test_gpu_context(0); /* else all of it ends with the last context */
    ck_assert(standin.standin_fail("cuMemHostUnregister", 1, 1, CUDA_ERROR_UNKNOWN));
    dlx_message_unref(m);
    dlx_test_pair_end(&x);
    ck_assert_uint_eq(standin.standin_count(STANDIN_REGISTERED), 1);
    ck_assert_int_eq(data[N(1) - 1], 5 + N(1) - 1);
}

/* Another library has reset the device, or unregistered the arena: that is as good. */
PIN_TEST(an_arena_that_is_not_registered_any_more_is_unmapped)
{
    struct dlx_test_pair x = dlx_test_pair_make(&one, &pinned);
    pass(&x, N(1), 5);
    const struct dlx_subscriber_link_arena *arena = &x.s->links[0]->arenas[0];
    void *map = (void *)(uintptr_t)arena->map;
    (void)dlx_test_gpu_context(0);
    CU_OK(cu.cuMemHostUnregister(map));
    dlx_test_pair_end(&x);
    ck_assert_uint_eq(standin.standin_count(STANDIN_REGISTERED), 0);
    ck_assert_int_eq(madvise(map, 4096, MADV_NORMAL), -1);
}

/* Of these names: what fails to undo something leaves it. */
static const char *const makers[] = {"cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent",
                                     "cuDeviceGetAttribute", "cuMemHostRegister"};

/* Subscribe and take while call number k of that name fails: either there is no subscription, or it
 * gets what is published. Returns whether there were so many calls. */
static bool try_failing(const char *name, uint64_t k, uint64_t *n_refused, uint64_t *n_failures)
{
    struct dlx_test_pair x = {.c = dlx_test_stream_connect()};
    ok(dlx_publisher_new(x.c, "test/a", &one, &x.p));
    dlx_test_stream_publish(x.p, N(1), 1);
    ck_assert(standin.standin_fail(name, k, 1, CUDA_ERROR_OUT_OF_MEMORY));
    int r = dlx_subscribe(x.c, "test/a", &pinned, &x.s);
    if (r == 0) {
        for (int64_t i = 0; i < 5; i++)
            pass(&x, N(1), i);
        ck_assert_uint_eq(stats_of(&x).lost, 0);
        ck_assert_uint_le(stats_of(&x).pin_failures, 1);
        *n_failures += stats_of(&x).pin_failures;
    } else {
        ck_assert_msg(r == DLX_E_NO_MEMORY, "%d: %s", r, dlx_errmsg());
        (*n_refused)++;
    }
    bool has_failed = standin.standin_fail_clear() > 0;
    dlx_test_pair_end(&x);
    check_nothing_left();
    return has_failed;
}

PIN_TEST(no_failing_call_of_the_driver_costs_a_message)
{
    uint64_t n_refused = 0, n_failures = 0, n_tries = 0;
    for (size_t i = 0; i < DLX_ARRAY_SIZE(makers); i++)
        for (uint64_t k = 1; try_failing(makers[i], k, &n_refused, &n_failures); k++)
            n_tries++;
    /* HIP's runtime makes no call of the driver to see that a device is there. */
    ck_assert_uint_ge(n_refused, dlx_test_gpu_is_hip() ? 0 : 3);
    ck_assert_uint_ge(n_failures, dlx_test_gpu_is_hip() ? 2 : 5);
    ck_assert_uint_eq(n_refused + n_failures, n_tries);
}

PIN_TEST(a_device_that_cannot_be_had_is_refused)
{
    struct dlx_subscribe_args args = {.size = sizeof args, .pin = dlx_test_gpu_device(99)};
    struct dlx_subscription *s = NULL;
    auto_pinned x = dlx_test_pair_make(&one, NULL);
    fails(dlx_subscribe(x.c, "test/a", &args, &s), DLX_E_DEVICE, "device 99");
    fails(dlx_subscribe(x.c, "test/a", &args, &s), DLX_E_DEVICE, "test/a");
    args.pin = (DLDevice){kDLCPU, 0};
    fails(dlx_subscribe(x.c, "test/a", &args, &s), DLX_E_DEVICE, "device type 1 is no GPU");
    ck_assert_ptr_null(s);
}

PIN_TEST(a_forked_child_unregisters_nothing)
{
    struct dlx_test_pair x = dlx_test_pair_make(&one, &pinned);
    struct dlx_message *m = take_passed(&x, N(1), 5);
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        struct dlx_subscription *s;
        dlx_message_unref(m);
        dlx_test_pair_end(&x);
        x.c = dlx_test_stream_connect();
        fails(dlx_subscribe(x.c, "test/a", &pinned, &s), DLX_E_FORKED, "forked child");
        dlx_client_unref(x.c);
        _exit(0);
    }
    dlx_test_fork_join(pid);
    ck_assert_uint_eq(standin.standin_count_of(pid, STANDIN_CALLS_MADE), 0);
    ck_assert_uint_eq(standin.standin_count_of(pid, STANDIN_CALLS_AFTER_FORK), 0);
    check_pinned(&x);
    dlx_message_unref(m);
    dlx_test_pair_end(&x);
    check_nothing_left();
}

static void setup(void)
{
    pinned = (struct dlx_subscribe_args){.size = sizeof pinned, .pin = dlx_test_gpu_device(0)};
    allow(true);
}

static TCase *pin_case(void)
{
    TCase *tc = dlx_test_gpu_stream_case("pin");
    tcase_add_checked_fixture(tc, setup, NULL);
    return tc;
}

#endif

GPU_MAIN(pin_case())
