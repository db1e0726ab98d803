/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU memory that is in use after consumers of a stream have crashed, beyond what it was
 * before: the arenas of a publisher are used no more when a consumer was killed, since its kernels
 * may still run, and the consumers that are left may have them open. A process that only starts the
 * others, and uses no GPU, kills one of three consumers again and again.
 */
#include "tests/gpu/harness_gpu.h"

#if DLX_TEST_HAS_GPU
#include "tests/gpu/bench/gpu_bench.h"
#include <stdlib.h>

#define N_CONSUMERS 3U
#define MIB         (1 << 20)
/* Messages of a consumer before it is killed, and of the others after that. */
#define N_MESSAGES UINT64_C(8)

struct shared {
    _Atomic uint64_t n_taken[N_CONSUMERS]; /* by the consumer that is there now */
    _Atomic uint64_t n_asked, n_answered;  /* looks at the free memory */
    _Atomic uint64_t n_free;
    _Atomic bool is_over;
};

static void produce(size_t size, const char *topic, struct shared *shared)
{
    struct dlx_publisher *p;
    gpu_bench_context();
    struct dlx_client *client = bm_connect();
    CUstream stream = gpu_bench_stream();
    const struct dlx_publish_args args = {.size = sizeof args, .stream = stream};
    bm_check(dlx_publisher_new(client, topic, NULL, &p), topic);
    while (!atomic_load(&shared->is_over)) {
        DLManagedTensorVersioned *t = gpu_bench_alloc(p, size);
        dlx_test_gpu_spin(stream, (CUdeviceptr)(uintptr_t)t->dl_tensor.data, 1000000);
        bm_check(dlx_publish(p, t, &args, NULL), "dlx_publish");
        DRIVER(cu.cuStreamSynchronize(stream));
        if (atomic_load(&shared->n_asked) > atomic_load(&shared->n_answered)) {
            atomic_store(&shared->n_free, dlx_test_gpu_free_memory());
            atomic_fetch_add(&shared->n_answered, 1);
        }
    }
    dlx_publisher_unref(p);
    dlx_client_unref(client);
}

static void consume(uint32_t which, const char *topic, struct shared *shared)
{
    struct dlx_subscription *s;
    gpu_bench_context();
    CUstream stream = gpu_bench_stream();
    struct dlx_client *client = bm_connect();
    bm_check(dlx_subscribe(client, topic, NULL, &s), topic);
    atomic_store(&shared->n_taken[which], 0);
    struct dlx_message *m;
    while ((m = gpu_bench_take(s, &shared->is_over))) {
        DLManagedTensorVersioned *t;
        bm_check(dlx_message_tensor_on(m, 0, stream, &t), "dlx_message_tensor_on");
        dlx_message_unref(m);
        dlx_test_gpu_spin(stream, 0, 1000000);
        t->deleter(t);
        DRIVER(cu.cuStreamSynchronize(stream));
        atomic_fetch_add(&shared->n_taken[which], 1);
    }
    dlx_subscription_unref(s);
    dlx_client_unref(client);
}

static pid_t start_consumer(uint32_t which, const char *topic, struct shared *shared)
{
    atomic_store(&shared->n_taken[which], 0);
    pid_t pid = gpu_bench_fork();
    if (pid == 0) {
        consume(which, topic, shared);
        _exit(0);
    }
    return pid;
}

static void await_messages(struct shared *shared)
{
    for (uint32_t i = 0; i < N_CONSUMERS; i++)
        gpu_bench_await(&shared->n_taken[i], atomic_load(&shared->n_taken[i]) + N_MESSAGES);
}

static double free_mib(struct shared *shared)
{
    uint64_t n = atomic_fetch_add(&shared->n_asked, 1) + 1;
    gpu_bench_await(&shared->n_answered, n);
    return (double)atomic_load(&shared->n_free) / MIB;
}

void gpu_bench_crashes(void)
{
    char topic[64];
    size_t size = (size_t)bm_long("size", 1L << 33);
    long n = bm_long("n", 5);
    struct shared *shared = bm_shared(sizeof *shared);
    pid_t consumers[N_CONSUMERS], producer;
    bm_topic("crashes", getpid(), topic);
    if ((producer = gpu_bench_fork()) == 0) {
        produce(size, topic, shared);
        _exit(0);
    }
    for (uint32_t i = 0; i < N_CONSUMERS; i++)
        consumers[i] = start_consumer(i, topic, shared);
    await_messages(shared);
    double before = free_mib(shared);
    for (long i = 0; i < n; i++) {
        pid_t *killed = &consumers[(uint32_t)i % N_CONSUMERS];
        bm_check_errno(kill(*killed, SIGKILL), "kill");
        bm_check_errno(waitpid(*killed, NULL, 0), "waitpid");
        *killed = start_consumer((uint32_t)i % N_CONSUMERS, topic, shared);
        await_messages(shared);
    }
    double after = free_mib(shared);
    atomic_store(&shared->is_over, true);
    bm_wait(producer);
    for (uint32_t i = 0; i < N_CONSUMERS; i++)
        bm_wait(consumers[i]);
    bm_json_begin();
    bm_json_number("arenas", (before - after) * MIB / (double)size);
    bm_json_end();
}

#endif
