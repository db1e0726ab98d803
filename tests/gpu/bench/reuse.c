/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is memory used again too early, or read too early? A producer poisons each tensor that it
 * allocates, and writes it on a stream that is late; consumers let a stream wait for it, read it
 * late on that stream, and drop it at once. A kernel compares every word. Consumers are killed and
 * replaced meanwhile. No process that starts others has used a GPU.
 */
#include "tests/gpu/harness_gpu.h"

#if DLX_TEST_HAS_GPU
#include "tests/gpu/bench/gpu_bench.h"
#include <dlx/message.h>

#define N_CONSUMERS 3U
#define POISON      UINT32_C(0xFFFFFFFF) /* the seed of a pattern that no message has */
#define LATE_NS     UINT64_C(300000)     /* the most by which a stream is late */
/* A killed consumer has not told of so many messages. */
#define UNTOLD_MAX 64U

struct shared {
    _Atomic uint64_t n_published;
    _Atomic uint64_t n_ready; /* consumers that have subscribed, those that were killed with them */
    _Atomic uint64_t n_read, n_wrong; /* messages, words */
    _Atomic bool is_over;
};

/* xorshift: the same delays for the same seed. */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void produce(uint64_t n, uint64_t n_words, const char *topic, struct shared *shared)
{
    uint64_t random = 1;
    gpu_bench_context();
    CUstream stream = gpu_bench_stream();
    struct dlx_client *client = bm_connect();
    struct dlx_publisher *p;
    bm_check(dlx_publisher_new(client, topic, NULL, &p), topic);
    const struct dlx_publish_args args = {.size = sizeof args, .stream = stream};
    gpu_bench_await(&shared->n_ready, N_CONSUMERS);
    for (uint64_t seq = 1; seq <= n; seq++) {
        DLManagedTensorVersioned *t = gpu_bench_alloc(p, n_words * sizeof(uint32_t));
        CUdeviceptr at = (CUdeviceptr)(uintptr_t)t->dl_tensor.data;
        dlx_test_gpu_store(stream, at, n_words, POISON);
        dlx_test_gpu_spin(stream, 0, next_random(&random) % LATE_NS);
        dlx_test_gpu_store(stream, at, n_words, (uint32_t)seq);
        bm_check(dlx_publish(p, t, &args, NULL), "dlx_publish");
        atomic_store(&shared->n_published, seq);
    }
    atomic_store(&shared->is_over, true);
    dlx_publisher_unref(p);
    dlx_client_unref(client);
}

static const uint64_t none;

static void tell(struct shared *shared, CUstream stream, CUdeviceptr n_wrong, uint64_t *n_untold)
{
    uint64_t wrong;
    DRIVER(cu.cuStreamSynchronize(stream));
    DRIVER(cu.cuMemcpyDtoH(&wrong, n_wrong, sizeof wrong));
    DRIVER(cu.cuMemcpyHtoD(n_wrong, &none, sizeof none));
    atomic_fetch_add(&shared->n_wrong, wrong);
    atomic_fetch_add(&shared->n_read, *n_untold);
    *n_untold = 0;
}

static void consume(uint64_t n_words, uint64_t seed, const char *topic, struct shared *shared)
{
    uint64_t random = seed, n_untold = 0;
    CUdeviceptr n_wrong;
    struct dlx_subscription *s;
    gpu_bench_context();
    CUstream stream = gpu_bench_stream();
    DRIVER(cu.cuMemAlloc(&n_wrong, sizeof(uint64_t)));
    DRIVER(cu.cuMemcpyHtoD(n_wrong, &none, sizeof none));
    struct dlx_client *client = bm_connect();
    bm_check(dlx_subscribe(client, topic, NULL, &s), topic);
    atomic_fetch_add(&shared->n_ready, 1);
    struct dlx_message *m;
    while ((m = gpu_bench_take(s, &shared->is_over))) {
        DLManagedTensorVersioned *t;
        uint32_t seq = (uint32_t)dlx_message_seq(m);
        bm_check(dlx_message_tensor_on(m, 0, stream, &t), "dlx_message_tensor_on");
        dlx_message_unref(m);
        dlx_test_gpu_spin(stream, 0, next_random(&random) % LATE_NS);
        dlx_test_gpu_compare(stream, (CUdeviceptr)(uintptr_t)t->dl_tensor.data, n_words, seq,
                             n_wrong);
        t->deleter(t);
        if (++n_untold == UNTOLD_MAX)
            tell(shared, stream, n_wrong, &n_untold);
    }
    tell(shared, stream, n_wrong, &n_untold);
    dlx_subscription_unref(s);
    dlx_client_unref(client);
}

void gpu_bench_reuse(void)
{
    char topic[64];
    uint64_t n = (uint64_t)bm_long("n", 100000), n_kills = (uint64_t)bm_long("kills", 20);
    uint64_t n_words = (uint64_t)bm_long("size", 65536) / sizeof(uint32_t), random = 7;
    struct shared *shared = bm_shared(sizeof *shared);
    pid_t consumers[N_CONSUMERS], producer;
    bm_topic("reuse", getpid(), topic);
    if ((producer = gpu_bench_fork()) == 0) {
        produce(n, n_words, topic, shared);
        _exit(0);
    }
    for (uint64_t i = 0; i < N_CONSUMERS + n_kills; i++) {
        pid_t *consumer = &consumers[i];
        if (i >= N_CONSUMERS) {
            consumer = &consumers[next_random(&random) % N_CONSUMERS];
            gpu_bench_await(&shared->n_ready, i);
            gpu_bench_await(&shared->n_published, n * (i - N_CONSUMERS + 1) / (n_kills + 1));
            bm_check_errno(kill(*consumer, SIGKILL), "kill");
            bm_check_errno(waitpid(*consumer, NULL, 0), "waitpid");
        }
        if ((*consumer = gpu_bench_fork()) == 0) {
            consume(n_words, i + 1, topic, shared);
            _exit(0);
        }
    }
    bm_wait(producer);
    for (uint32_t i = 0; i < N_CONSUMERS; i++)
        bm_wait(consumers[i]);
    bm_json_begin();
    bm_json_number("n_wrong", (double)atomic_load(&shared->n_wrong));
    bm_json_number("n_read", (double)atomic_load(&shared->n_read));
    bm_json_end();
}

#endif
