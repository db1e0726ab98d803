/* SPDX-License-Identifier: Apache-2.0 */
/* One message, and a state dict, between two processes. */
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

/* ---- handoff: publish on a busy stream to usable on the consumer's stream ------------------- */

/* The producer's stream is busy for so long, which is longer than a message takes. */
#define BUSY_NS UINT64_C(200000)

/* A tensor is usable when work for it can be queued. `stream` is NULL for tensors on the CPU. */
static void take_and_stamp(struct gpu_bench_end *end, CUstream stream, struct shared *shared)
{
    DLManagedTensorVersioned *t;
    struct dlx_message *m = bm_take(end->s);
    bm_check(dlx_message_tensor_on(m, 0, stream, &t), "dlx_message_tensor_on");
    atomic_store(&shared->usable_ns, bm_now_ns());
    dlx_message_unref(m);
    t->deleter(t);
    if (stream)
        DRIVER(cu.cuStreamSynchronize(stream));
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
            stream = gpu_bench_stream();
        }
        gpu_bench_subscriber(&end, topic, 0, &shared->meeting);
        for (uint64_t i = 1; i <= n_warmup + n; i++) {
            take_and_stamp(&end, stream, shared);
            atomic_store(&shared->done, i);
        }
        gpu_bench_end(&end);
        _exit(0);
    }
    bm_pin(0);
    CUdeviceptr at = 0;
    if (!is_cpu) {
        gpu_bench_context();
        args.stream = gpu_bench_stream();
    }
    if (is_ipc) {
        DRIVER(cu.cuMemAlloc(&at, size));
        gpu_bench_tensor_init(&own, at, size);
    }
    gpu_bench_publisher(&end, topic, 0, &shared->meeting);
    double *ns = calloc(n, sizeof *ns);
    int64_t shape[1];
    struct dlx_tensor_spec spec = bm_bytes(shape, size);
    for (uint64_t i = 1; i <= n_warmup + n; i++) {
        DLManagedTensorVersioned *t = &own.tensor;
        if (is_cpu)
            bm_check(dlx_alloc(end.p, &spec, &t), "dlx_alloc");
        else if (!is_ipc)
            t = gpu_bench_alloc(end.p, size);
        if (args.stream)
            dlx_test_gpu_spin(args.stream, 0, BUSY_NS);
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
    gpu_bench_publisher(&end, topic, 0, &shared->meeting);
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
    gpu_bench_subscriber(&end, topic, 0, &shared->meeting);
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

#endif
