/* SPDX-License-Identifier: Apache-2.0 */
/*
 *   --what handoff     --memory cpu | ipc | arena  --size BYTES  --n N
 *   --what statedict   --how ours | ipc  --size BYTES (a tensor)  --n TENSORS
 *   --what steps       --blocks one | full
 *   --what pipeline    --how ours | word | unordered  --blocks N  --steps N  --consumer-steps N
 *                      --hz HZ  --n MESSAGES
 *   --what beside      --how waiting | alone  --blocks N  --steps N  --n KERNELS
 *   --what weights     --how ours | buckets  --size BYTES  --bucket BYTES  --n TENSORS of a bucket
 *   --what reuse       --size BYTES  --n MESSAGES  --kills N
 *   --what footprint   --dlpackd FILE
 *   --what crashes     --size BYTES of an arena  --n KILLS of a consumer of three
 *   --what kills       --n KILLS of each kind
 *   --what threads     --how ours | asks  --publishers N  --hz HZ  --pause NS  --n MESSAGES
 */
#include "tests/gpu/harness_gpu.h"

#if DLX_TEST_HAS_GPU
#include "tests/gpu/bench/gpu_bench.h"
#include "tests/harness/fork.h"
#include <sched.h>

void gpu_bench_check(CUresult result, const char *call)
{
    const char *name = NULL;
    if (result == CUDA_SUCCESS)
        return;
    (void)cu.cuGetErrorName(result, &name);
    bm_fail("%s: %s", call, name ? name : "an error without a name");
}

void gpu_bench_context(void)
{
    CUcontext context;
    DRIVER(cu.cuInit(0));
    DRIVER(cu.cuDevicePrimaryCtxRetain(&context, 0));
    DRIVER(cu.cuCtxSetCurrent(context));
    dlx_test_gpu_kernels_load();
}

CUstream gpu_bench_stream(void)
{
    CUstream stream;
    DRIVER(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static void keep(DLManagedTensorVersioned *tensor)
{
    (void)tensor;
}

void gpu_bench_tensor_init(struct gpu_bench_tensor *ret, CUdeviceptr at, size_t size)
{
    ret->shape[0] = (int64_t)size;
    ret->strides[0] = 1;
    ret->tensor = (DLManagedTensorVersioned){.version = {DLPACK_MAJOR_VERSION, 0},
                                             .deleter = keep,
                                             .dl_tensor = {.data = (void *)(uintptr_t)at,
                                                           .device = {kDLCUDA, 0},
                                                           .ndim = 1,
                                                           .dtype = {kDLUInt, 8, 1},
                                                           .shape = ret->shape,
                                                           .strides = ret->strides}};
}

static struct dlx_tensor_spec spec_of(int64_t shape[static 1], size_t size)
{
    struct dlx_tensor_spec spec = bm_bytes(shape, size);
    spec.device = (DLDevice){kDLCUDA, 0};
    return spec;
}

DLManagedTensorVersioned *gpu_bench_alloc(struct dlx_publisher *p, size_t size)
{
    int64_t shape[1];
    const struct dlx_tensor_spec spec = spec_of(shape, size);
    DLManagedTensorVersioned *t = NULL;
    bm_check(dlx_alloc(p, &spec, &t), "not available: dlx_alloc on a GPU");
    return t;
}

void gpu_bench_alloc_set(struct dlx_publisher *p, uint32_t n, size_t size,
                         DLManagedTensorVersioned **ret)
{
    int64_t shape[1];
    struct dlx_tensor_spec *specs = calloc(n, sizeof *specs);
    if (!specs)
        bm_fail("out of memory");
    for (uint32_t i = 0; i < n; i++)
        specs[i] = spec_of(shape, size);
    bm_check(dlx_alloc_set(p, specs, n, ret), "not available: dlx_alloc_set on a GPU");
    free(specs);
}

void gpu_bench_publisher(struct gpu_bench_end *ret, const char *topic, uint32_t max_held,
                         struct bm_meeting *meeting)
{
    const struct dlx_publisher_args args = {.size = sizeof args, .max_held = max_held};
    ret->client = bm_connect();
    bm_check(dlx_publisher_new(ret->client, topic, &args, &ret->p), topic);
    bm_meet(meeting);
    bm_check(dlx_publisher_wait(ret->p, 1, INT64_C(30000000000)), "waiting for the subscriber");
    bm_meet(meeting);
}

void gpu_bench_subscriber(struct gpu_bench_end *ret, const char *topic, uint32_t max_held,
                          struct bm_meeting *meeting)
{
    const struct dlx_subscribe_args args = {
        .size = sizeof args, .max_held = max_held, .spin_ns = DLX_SPIN_ALWAYS};
    ret->client = bm_connect();
    bm_meet(meeting);
    bm_check(dlx_subscribe(ret->client, topic, &args, &ret->s), topic);
    bm_meet(meeting);
}

void gpu_bench_end(struct gpu_bench_end *end)
{
    dlx_subscription_unref(end->s);
    dlx_publisher_unref(end->p);
    dlx_client_unref(end->client);
}

void gpu_bench_await(_Atomic uint64_t *word, uint64_t value)
{
    uint64_t end_ns = bm_now_ns() + UINT64_C(60000000000);
    while (atomic_load(word) < value) {
        if (bm_now_ns() > end_ns)
            bm_fail("the other process does not go on");
        (void)sched_yield();
    }
}

/* Nothing came, or no stream has got to the end of a release. */
static bool is_late(int r)
{
    return r == DLX_E_TIMEOUT || r == DLX_E_TOO_MANY_HELD;
}

struct dlx_message *gpu_bench_take(struct dlx_subscription *s, _Atomic bool *is_over)
{
    struct dlx_message *m = NULL;
    int r = DLX_E_TIMEOUT;
    while (is_late(r) && !atomic_load(is_over))
        r = dlx_take(s, INT64_C(100000000), &m);
    if (!is_late(r))
        bm_check(r, "dlx_take");
    return m;
}

pid_t gpu_bench_fork(void)
{
    pid_t pid = bm_fork();
    if (pid == 0)
        dlx_test_fork_silence();
    return pid;
}

static void (*measure)(void);

/* The harness asserts, which Check allows in a test alone. */
START_TEST(measurement)
{
    dlx_test_gpu_load();
    measure();
}
END_TEST

static int run(void)
{
    Suite *suite = suite_create("gpu_bench");
    TCase *tc = tcase_create("gpu_bench");
    tcase_add_test(tc, measurement);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_SILENT);
    int n_failed = srunner_ntests_failed(runner);
    TestResult **failures = srunner_failures(runner);
    if (n_failed > 0)
        bm_fail("%s", tr_msg(failures[0]));
    free(failures);
    srunner_free(runner);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*measure)(void);
    } all[] = {
        {"handoff", gpu_bench_handoff},     {"statedict", gpu_bench_statedict},
        {"steps", gpu_bench_steps},         {"pipeline", gpu_bench_pipeline},
        {"beside", gpu_bench_beside},       {"weights", gpu_bench_weights},
        {"reuse", gpu_bench_reuse},         {"crashes", gpu_bench_crashes},
        {"footprint", gpu_bench_footprint}, {"kills", gpu_bench_kills},
        {"threads", gpu_bench_threads},
    };
    bm_init(argc, argv);
    const char *what = bm_text("what", "");
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (strcmp(all[i].name, what) == 0)
            measure = all[i].measure;
    if (!measure)
        bm_fail("--what takes handoff, statedict, steps, pipeline, beside, weights, reuse, "
                "crashes, footprint, kills or threads");
    return run();
}

#else

int main(void)
{
    (void)fprintf(stderr, "not available: no cuda.h: built without the harness for GPUs\n");
    return 1;
}

#endif
