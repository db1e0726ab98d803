/* SPDX-License-Identifier: Apache-2.0 */
/* One message, a state dict, a pipeline: each between two processes. */
#include "tests/gpu/harness_gpu.h"

#if DLX_TEST_HAS_GPU
#include "tests/gpu/bench/gpu_bench.h"
#include <dlx/gpu.h>

struct shared {
    struct bm_meeting meeting;
    _Atomic uint64_t done;
    _Atomic uint64_t usable_ns, took_ns;
    size_t n_handles;
    CUipcMemHandle handles[];
};

/* ---- handoff: publish to usable on the consumer's stream ----------------------------------- */

static CUstream own_stream(void)
{
    CUstream stream;
    DRIVER(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

/* The stream has no other work: when it is done, it has passed its wait for the tensor. */
static void await_stream(CUstream stream)
{
    CUresult result;
    do
        result = cu.cuStreamQuery(stream);
    while (result == CUDA_ERROR_NOT_READY);
    DRIVER(result);
}

/* `stream` is NULL for tensors on the CPU. */
static void take_and_stamp(struct gpu_bench_end *end, CUstream stream, struct shared *shared)
{
    DLManagedTensorVersioned *t;
    struct dlx_message *m = bm_take(end->s);
    bm_check(dlx_message_tensor_on(m, 0, stream, &t), "dlx_message_tensor_on");
    if (stream)
        await_stream(stream);
    atomic_store(&shared->usable_ns, bm_now_ns());
    dlx_message_unref(m);
    t->deleter(t);
}

void gpu_bench_handoff(void)
{
    char topic[64];
    const char *memory = bm_text("memory", "ipc");
    size_t size = (size_t)bm_long("size", 1024), n = (size_t)bm_long("n", 500);
    bool is_cpu = !strcmp(memory, "cpu"), is_ipc = !strcmp(memory, "ipc");
    const size_t n_warmup = 20;
    struct gpu_bench_end end = {.client = NULL};
    struct gpu_bench_tensor own;
    struct dlx_publish_args args = {.size = sizeof args, .share = is_ipc, .strict = true};
    struct shared *shared = bm_shared(sizeof *shared);
    bm_topic("handoff", getpid(), topic);
    pid_t pid = gpu_bench_fork();
    if (!pid) {
        CUstream stream = NULL;
        bm_pin(1);
        if (!is_cpu) {
            gpu_bench_context();
            stream = own_stream();
        }
        gpu_bench_subscriber(&end, topic, &shared->meeting);
        for (uint64_t i = 1; i <= n_warmup + n; i++) {
            take_and_stamp(&end, stream, shared);
            atomic_store(&shared->done, i);
        }
        gpu_bench_end(&end);
        _exit(0);
    }
    bm_pin(0);
    CUdeviceptr at = 0;
    if (!is_cpu)
        gpu_bench_context();
    if (is_ipc) {
        DRIVER(cu.cuMemAlloc(&at, size));
        gpu_bench_tensor_init(&own, at, size);
    }
    gpu_bench_publisher(&end, topic, &shared->meeting);
    double *ns = calloc(n, sizeof *ns);
    int64_t shape[1];
    struct dlx_tensor_spec spec = bm_bytes(shape, size);
    for (uint64_t i = 1; i <= n_warmup + n; i++) {
        DLManagedTensorVersioned *t = &own.tensor;
        if (is_cpu)
            bm_check(dlx_alloc(end.p, &spec, &t), "dlx_alloc");
        else if (!is_ipc)
            t = gpu_bench_alloc(end.p, size);
        uint64_t start_ns = bm_now_ns();
        bm_check(dlx_publish(end.p, t, &args, NULL), "dlx_publish");
        gpu_bench_await(&shared->done, i);
        if (i > n_warmup)
            ns[i - n_warmup - 1] = (double)(atomic_load(&shared->usable_ns) - start_ns);
    }
    struct bm_summary summary = bm_summary_of(ns, n);
    gpu_bench_end(&end);
    bm_wait(pid);
    free(ns);
    bm_json_begin();
    bm_json_text("memory", memory);
    bm_json_number("size", (double)size);
    bm_json_summary(&summary);
    bm_json_end();
}

/* ---- statedict: n tensors usable in a second process --------------------------------------- */

static void statedict_ours(uint32_t n, size_t size, const char *topic, struct shared *shared)
{
    struct gpu_bench_end end = {.client = NULL};
    DLManagedTensorVersioned **tensors = calloc(n, sizeof(void *));
    struct dlx_item *items = calloc(n, sizeof *items);
    char(*names)[16] = calloc(n, sizeof *names);
    if (!tensors || !items || !names)
        bm_fail("out of memory");
    gpu_bench_context();
    gpu_bench_publisher(&end, topic, &shared->meeting);
    gpu_bench_alloc_set(end.p, n, size, tensors);
    for (uint32_t i = 0; i < n; i++) {
        (void)snprintf(names[i], sizeof names[i], "w%u", i);
        items[i] = (struct dlx_item){.name = names[i], .tensor = tensors[i]};
    }
    bm_check(dlx_publish_set(end.p, items, n, NULL, NULL, NULL), "dlx_publish_set");
    gpu_bench_await(&shared->done, 1);
    gpu_bench_end(&end);
    free(names);
    free(items);
    free(tensors);
}

static double attach_ours(uint32_t n, const char *topic, struct shared *shared)
{
    struct gpu_bench_end end = {.client = NULL};
    gpu_bench_context();
    gpu_bench_subscriber(&end, topic, &shared->meeting);
    DLManagedTensorVersioned **tensors = calloc(n, sizeof(void *));
    struct dlx_message *m = bm_take(end.s);
    uint64_t start_ns = bm_now_ns();
    for (uint32_t i = 0; i < n; i++)
        bm_check(dlx_message_tensor(m, i, &tensors[i]), "dlx_message_tensor");
    double ns = (double)(bm_now_ns() - start_ns);
    for (uint32_t i = 0; i < n; i++)
        tensors[i]->deleter(tensors[i]);
    free(tensors);
    dlx_message_unref(m);
    gpu_bench_end(&end);
    return ns;
}

static void statedict_handles(uint32_t n, size_t size, struct shared *shared)
{
    gpu_bench_context();
    for (uint32_t i = 0; i < n; i++) {
        CUdeviceptr at;
        DRIVER(cu.cuMemAlloc(&at, size));
        DRIVER(cu.cuIpcGetMemHandle(&shared->handles[i], at));
    }
    bm_meet(&shared->meeting);
    gpu_bench_await(&shared->done, 1);
}

static double attach_handles(uint32_t n, struct shared *shared)
{
    CUdeviceptr at;
    gpu_bench_context();
    bm_meet(&shared->meeting);
    uint64_t start_ns = bm_now_ns();
    for (uint32_t i = 0; i < n; i++)
        DRIVER(cu.cuIpcOpenMemHandle(&at, shared->handles[i], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    return (double)(bm_now_ns() - start_ns);
}

void gpu_bench_statedict(void)
{
    char topic[64];
    uint32_t n = (uint32_t)bm_long("n", 20000);
    size_t size = (size_t)bm_long("size", 1717986); /* 32 GiB in all */
    bool is_ours = !strcmp(bm_text("how", "ours"), "ours");
    struct shared *shared = bm_shared(sizeof *shared + n * sizeof shared->handles[0]);
    bm_topic("statedict", getpid(), topic);
    pid_t pid = gpu_bench_fork();
    if (!pid) {
        double ns = is_ours ? attach_ours(n, topic, shared) : attach_handles(n, shared);
        atomic_store(&shared->took_ns, (uint64_t)ns);
        atomic_store(&shared->done, 1);
        _exit(0);
    }
    if (is_ours)
        statedict_ours(n, size, topic, shared);
    else
        statedict_handles(n, size, shared);
    bm_wait(pid);
    bm_json_begin();
    bm_json_number("attach_ns", (double)atomic_load(&shared->took_ns));
    bm_json_end();
}

/* ---- overlap: kernels of two processes in a pipeline, and of one ---------------------------- */

#define KERNEL_NS UINT64_C(1000000)
/* The first messages open memory and try what streams can do, once: they are not part of it. */
#define OVERLAP_WARMUP 4

static double overlap_in_one(uint64_t n)
{
    CUevent ready;
    gpu_bench_context();
    CUstream out = own_stream(), in = own_stream();
    DRIVER(cu.cuEventCreate(&ready, CU_EVENT_DISABLE_TIMING));
    uint64_t start_ns = bm_now_ns();
    for (uint64_t i = 0; i < n; i++) {
        dlx_test_gpu_spin(out, 0, KERNEL_NS);
        DRIVER(cu.cuEventRecord(ready, out));
        DRIVER(cu.cuStreamWaitEvent(in, ready, 0));
        dlx_test_gpu_spin(in, 0, KERNEL_NS);
    }
    DRIVER(cu.cuStreamSynchronize(in));
    return (double)(bm_now_ns() - start_ns);
}

static void overlap_consume(uint64_t n, const char *topic, struct shared *shared)
{
    struct gpu_bench_end end = {.client = NULL};
    gpu_bench_context();
    CUstream stream = own_stream();
    gpu_bench_subscriber(&end, topic, &shared->meeting);
    for (uint64_t i = 1; i <= n; i++) {
        DLManagedTensorVersioned *t;
        struct dlx_message *m = bm_take(end.s);
        bm_check(dlx_message_tensor_on(m, 0, stream, &t), "dlx_message_tensor_on");
        dlx_message_unref(m);
        dlx_test_gpu_spin(stream, 0, KERNEL_NS);
        t->deleter(t);
        if (i == OVERLAP_WARMUP)
            DRIVER(cu.cuStreamSynchronize(stream));
        atomic_store(&shared->done, i);
    }
    DRIVER(cu.cuStreamSynchronize(stream));
    atomic_store(&shared->usable_ns, bm_now_ns());
    atomic_store(&shared->done, n + 1);
    gpu_bench_end(&end);
}

static double overlap_ours(uint64_t n)
{
    char topic[64];
    struct gpu_bench_end end = {.client = NULL};
    struct gpu_bench_tensor own;
    CUdeviceptr at;
    struct dlx_publish_args args = {.size = sizeof args, .share = true};
    struct shared *shared = bm_shared(sizeof *shared);
    bm_topic("overlap", getpid(), topic);
    pid_t pid = gpu_bench_fork();
    if (!pid) {
        overlap_consume(OVERLAP_WARMUP + n, topic, shared);
        _exit(0);
    }
    gpu_bench_context();
    DRIVER(cu.cuMemAlloc(&at, 1 << 20));
    gpu_bench_tensor_init(&own, at, 1 << 20);
    CUstream stream = own_stream();
    args.stream = stream;
    gpu_bench_publisher(&end, topic, &shared->meeting);
    uint64_t start_ns = 0;
    for (uint64_t i = 1; i <= OVERLAP_WARMUP + n; i++) {
        dlx_test_gpu_spin(stream, 0, KERNEL_NS);
        bm_check(dlx_publish(end.p, &own.tensor, &args, NULL), "dlx_publish");
        if (i > 2) /* two in flight, so that none is dropped */
            gpu_bench_await(&shared->done, i - 2);
        if (i == OVERLAP_WARMUP) {
            gpu_bench_await(&shared->done, i);
            start_ns = bm_now_ns();
        }
    }
    gpu_bench_await(&shared->done, OVERLAP_WARMUP + n + 1);
    double ns = (double)(atomic_load(&shared->usable_ns) - start_ns);
    gpu_bench_end(&end);
    bm_wait(pid);
    return ns;
}

void gpu_bench_overlap(void)
{
    uint64_t n = (uint64_t)bm_long("n", 200);
    double ns = !strcmp(bm_text("how", "ours"), "ours") ? overlap_ours(n) : overlap_in_one(n);
    bm_json_begin();
    bm_json_number("ns", ns);
    bm_json_end();
}

#endif
