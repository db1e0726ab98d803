/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of a process that has nothing to do with libdlx, while a stream of another process waits
 * for a publisher whose work does not end: does the wait take anything from the GPU?
 */
#include "tests/gpu/harness_gpu.h"

#if DLX_TEST_HAS_GPU
#include "tests/gpu/bench/gpu_bench.h"

struct shared {
    struct bm_meeting meeting;
    _Atomic uint64_t is_waiting, is_over;
};

/* On a thread of the driver: the stream goes on when the kernels beside have ended. */
static void CUDA_CB hold_back(void *data)
{
    struct shared *shared = data;
    gpu_bench_await(&shared->is_over, 1);
}

static void publish_late(const char *topic, struct shared *shared)
{
    struct gpu_bench_end end = {.client = NULL};
    gpu_bench_context();
    CUstream stream = gpu_bench_stream();
    const struct dlx_publish_args args = {.size = sizeof args, .stream = stream};
    gpu_bench_publisher(&end, topic, 0, &shared->meeting);
    DLManagedTensorVersioned *t = gpu_bench_alloc(end.p, 1 << 20);
    DRIVER(cu.cuLaunchHostFunc(stream, hold_back, shared));
    bm_check(dlx_publish(end.p, t, &args, NULL), "dlx_publish");
    gpu_bench_await(&shared->is_over, 1);
    gpu_bench_end(&end);
}

static void wait_on_stream(const char *topic, struct shared *shared)
{
    struct gpu_bench_end end = {.client = NULL};
    DLManagedTensorVersioned *t;
    gpu_bench_context();
    CUstream stream = gpu_bench_stream();
    gpu_bench_subscriber(&end, topic, 0, &shared->meeting);
    struct dlx_message *m = bm_take(end.s);
    bm_check(dlx_message_tensor_on(m, 0, stream, &t), "dlx_message_tensor_on");
    dlx_message_unref(m);
    dlx_test_gpu_spin(stream, 0, 1000);
    if (cu.cuStreamQuery(stream) != CUDA_ERROR_NOT_READY)
        bm_fail("the stream does not wait");
    atomic_store(&shared->is_waiting, 1);
    DRIVER(cu.cuStreamSynchronize(stream));
    t->deleter(t);
    gpu_bench_end(&end);
}

static double compute(uint32_t n_blocks, uint64_t n_steps, uint64_t n)
{
    struct dlx_test_gpu_stamps got = {.begin_ns = DLX_TEST_GPU_NO_BEGIN};
    CUdeviceptr at;
    gpu_bench_context();
    CUstream stream = gpu_bench_stream();
    DRIVER(cu.cuMemAlloc(&at, sizeof got));
    DRIVER(cu.cuMemcpyHtoD(at, &got, sizeof got));
    for (uint64_t i = 0; i < n; i++)
        dlx_test_gpu_work(stream, n_blocks, n_steps, at);
    DRIVER(cu.cuStreamSynchronize(stream));
    DRIVER(cu.cuMemcpyDtoH(&got, at, sizeof got));
    return (double)(got.end_ns - got.begin_ns);
}

void gpu_bench_beside(void)
{
    static void (*const roles[])(const char *, struct shared *) = {publish_late, wait_on_stream};
    char topic[64];
    pid_t pids[2];
    bool is_alone = strcmp(bm_text("how", "waiting"), "waiting") != 0;
    struct shared *shared = bm_shared(sizeof *shared);
    bm_topic("beside", getpid(), topic);
    for (int i = 0; !is_alone && i < 2; i++) {
        pids[i] = gpu_bench_fork();
        if (pids[i] == 0) {
            roles[i](topic, shared);
            _exit(0);
        }
    }
    if (!is_alone)
        gpu_bench_await(&shared->is_waiting, 1);
    double ns = compute((uint32_t)bm_long("blocks", 1), (uint64_t)bm_long("steps", 1000),
                        (uint64_t)bm_long("n", 200));
    atomic_store(&shared->is_over, 1);
    for (int i = 0; !is_alone && i < 2; i++)
        bm_wait(pids[i]);
    bm_json_begin();
    bm_json_number("ns", ns);
    bm_json_end();
}

#endif
