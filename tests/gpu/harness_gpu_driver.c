/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/harness_gpu_driver.h"

#if DLX_TEST_HAS_GPU
#include "tests/harness/fds.h"
#include "tests/gpu/harness_gpu_kernel.h"
#include <sched.h>

bool dlx_test_gpu_is_standin(void)
{
    return !getenv("DLX_TEST_GPU_DRIVER");
}

/* tools/check-gpu has asked the driver, so that no process here has to before it forks. */
static int n_devices(void)
{
    const char *n = getenv("DLX_TEST_GPU_DEVICES");
    if (dlx_test_gpu_is_standin())
        return 2;
    return n ? atoi(n) : 1;
}

static const struct {
    enum dlx_test_gpu_need need;
    const char *why;
} lacks_of_hip[] = {
    {DLX_TEST_GPU_EVENTS, "the HIP backend has no events: calls wait for streams"},
    {DLX_TEST_GPU_GATES, "streams of HIP do not wait for the CPU"},
    {DLX_TEST_GPU_POOLS, "the HIP backend shares no memory of pools"},
    {DLX_TEST_GPU_CHUNKS, "the HIP backend shares memory of one chunk"},
    {DLX_TEST_GPU_CONTEXTS, "HIP's runtime has one context for each device"},
    {DLX_TEST_GPU_FLAGS, "HIP has no such attribute of a device, kind of handle, or call"},
    {DLX_TEST_GPU_FORKS, "HIP's runtime does not say that its process was forked"},
    {DLX_TEST_GPU_MALLOC, "dlx_cuda_malloc() is for CUDA"},
};

static const char *why_not(unsigned needs)
{
    bool is_driver = !dlx_test_gpu_is_standin();
    if (is_driver && (needs & DLX_TEST_GPU_FAILURES))
        return "needs calls of the driver that fail on demand";
    if (is_driver && (needs & DLX_TEST_GPU_COUNTS))
        return "needs the stand-in's counts";
    if (is_driver && (needs & DLX_TEST_GPU_CHOICE))
        return "needs a GPU with attributes or a UUID of its choice";
    for (size_t i = 0; dlx_test_gpu_is_hip() && i < DLX_ARRAY_SIZE(lacks_of_hip); i++)
        if (needs & lacks_of_hip[i].need)
            return lacks_of_hip[i].why;
    if ((needs & DLX_TEST_GPU_TWO) && n_devices() < 2)
        return "needs two GPUs";
#ifdef __SANITIZE_THREAD__
    if (needs & DLX_TEST_GPU_ADDRESSES)
        return "maps of thread sanitizer take the addresses that are freed";
#endif
    return NULL;
}

static TCase *skipped_case(void)
{
    return tcase_create("skipped");
}

static void pass(int i)
{
    (void)i;
}

void dlx_test_gpu_add(const TTest *test, int from, int to, unsigned needs)
{
    static const TTest skipped = {"skipped", pass, __FILE__, __LINE__};
    const char *why = why_not(needs);
    for (int i = from; why && i < to; i++)
        (void)printf("SKIP: %s: %s\n", test->name, why);
    if (!why)
        dlx_test_add(test, from, to);
    else if (dlx_test_gpu_is_standin()) /* tools/run-tests takes it for one of Check's tests */
        dlx_test_add_to(skipped_case, &skipped, from, to);
}

double dlx_test_gpu_timeout(double standin_s)
{
    return dlx_test_gpu_is_standin() ? standin_s : 40;
}

void dlx_test_gpu_unchecked(const char *what)
{
    (void)dprintf(STDOUT_FILENO, "NOTE: not checked: %s\n", what);
}

uint64_t dlx_test_gpu_calls(const char *name)
{
    return dlx_test_gpu_is_standin() ? standin.standin_calls(name) : 0;
}

void dlx_test_gpu_check_calls(const char *name, uint64_t n)
{
    if (dlx_test_gpu_is_standin())
        ck_assert_msg(standin.standin_calls(name) == n, "%s was called %llu times, not %llu", name,
                      (unsigned long long)standin.standin_calls(name), (unsigned long long)n);
    else
        dlx_test_gpu_unchecked("how often calls of the driver are made");
}

bool dlx_test_gpu_is_counted(enum standin_counter counter)
{
    return !dlx_test_gpu_is_hip() || counter != STANDIN_CONTEXTS;
}

void dlx_test_gpu_check_count(enum standin_counter counter, uint64_t n)
{
    if (!dlx_test_gpu_is_counted(counter))
        return;
    if (dlx_test_gpu_is_standin())
        ck_assert_msg(standin.standin_count(counter) == n, "%s: %llu, not %llu",
                      standin.standin_count_name(counter),
                      (unsigned long long)standin.standin_count(counter), (unsigned long long)n);
    else
        dlx_test_gpu_unchecked("how many objects of the driver exist");
}

void dlx_test_gpu_check_no_context(int device, int device_of_machine)
{
    unsigned flags;
    int is_active = 1;
    if (dlx_test_gpu_is_standin()) {
        ck_assert_uint_eq(standin.standin_contexts_made(device_of_machine), 0);
        return;
    }
    if (device >= n_devices())
        return; /* there is no such device */
    CU_OK(cu.cuDevicePrimaryCtxGetState(device, &flags, &is_active));
    ck_assert_msg(!is_active, "device %d has a context", device);
}

size_t dlx_test_gpu_n_fds(void)
{
    return dlx_test_gpu_is_standin() ? (size_t)standin.standin_open_fds() : dlx_test_fds_count();
}

void dlx_test_gpu_check_n_fds(size_t n)
{
    size_t now = dlx_test_gpu_n_fds();
    size_t more = dlx_test_gpu_is_standin() ? 0 : DLX_TEST_GPU_FDS_SLACK;
    ck_assert_msg(now >= n && now <= n + more, "%zu descriptors, not %zu", now, n);
}

/* How long a driver may take for the memory of a process that died: a story has less than 40 s. */
#define BACK_NS UINT64_C(10000000000)

size_t dlx_test_gpu_free_memory(void)
{
    CUcontext current = NULL;
    size_t n_free, total;
    if (cu.cuCtxGetCurrent(&current) != CUDA_SUCCESS || !current)
        return 0;
    return cu.cuMemGetInfo(&n_free, &total) == CUDA_SUCCESS ? n_free : 0;
}

void dlx_test_gpu_check_free_memory(size_t before)
{
    size_t slack = dlx_test_gpu_is_standin() ? 0 : DLX_TEST_GPU_SLACK, now;
    uint64_t end = dlx__now_ns() + BACK_NS;
    while ((now = dlx_test_gpu_free_memory()) + slack < before && dlx__now_ns() < end)
        (void)sched_yield();
    ck_assert_msg(now + slack >= before, "%zu bytes were free before, now %zu", before, now);
    ck_assert_msg(!dlx_test_gpu_is_standin() || now == before, "%zu bytes were free, now %zu",
                  before, now);
}

void dlx_test_gpu_lose_context(void)
{
    if (dlx_test_gpu_has_ptx()) {
        dlx_test_gpu_store(NULL, 64, 1, 0); /* no memory is there */
        ck_assert_int_ne(cu.cuCtxSynchronize(), CUDA_SUCCESS);
    } else {
        CU_OK(standin.standin_poison(CUDA_ERROR_LAUNCH_FAILED));
    }
}

#endif
