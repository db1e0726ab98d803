/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of a producer and of a consumer, in two processes. A kernel is a fixed amount of work,
 * and stamps itself by the clock of the GPU, which is the same for both.
 */
#include "tests/gpu/harness_gpu.h"

#if DLX_TEST_HAS_GPU
#include "tests/gpu/bench/gpu_bench.h"
#include <math.h>

/* The first messages open memory and try what streams can do, once: they are not part of it. */
#define N_WARMUP UINT64_C(4)
/* Messages that are on their way, so that none is dropped. */
#define N_AHEAD 2
/* Clocks of two processors of a GPU may be that far apart, by one step of the clock. */
#define CLOCK_STEP_NS 2000.0

struct shared {
    struct bm_meeting meeting;
    _Atomic uint64_t n_published, n_taken; /* messages whose kernels are queued */
    struct dlx_test_gpu_stamps stamps[];   /* the producer's, then the consumer's */
};

enum order {
    BY_LIBDLX,
    /* The producer's stream writes a word for which the consumer's stream waits: no CPU is between
     * them. Nobody writes it when the producer has died. */
    BY_WORD,
    UNORDERED, /* the consumer waits for the CPU of the producer only */
};

struct options {
    enum order order;
    uint64_t *word; /* a page that both processes have */
    uint32_t n_blocks;
    uint64_t n_steps, n_consumer_steps;
    uint64_t n_measured, n; /* messages, without and with the warm-up */
    double hz;              /* 0: as many as the GPU takes */
};

/* As many blocks as the GPU runs at once. */
static uint32_t full_gpu(void)
{
    int n_processors = 0, n_threads = 0;
    DRIVER(cu.cuDeviceGetAttribute(&n_processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
    DRIVER(
        cu.cuDeviceGetAttribute(&n_threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 0));
    return (uint32_t)DLX_MAX(1, n_processors * (n_threads / DLX_TEST_GPU_WORK_THREADS));
}

static CUdeviceptr register_word(const struct options *o)
{
    CUdeviceptr at = 0;
    if (o->order != BY_WORD)
        return 0;
    DRIVER(cu.cuMemHostRegister(o->word, DLX_PAGE, CU_MEMHOSTREGISTER_DEVICEMAP));
    DRIVER(cu.cuMemHostGetDevicePointer(&at, o->word, 0));
    return at;
}

static CUdeviceptr stamps_new(uint64_t n)
{
    struct dlx_test_gpu_stamps *all = calloc(n, sizeof *all);
    CUdeviceptr at;
    if (!all)
        bm_fail("out of memory");
    for (uint64_t i = 0; i < n; i++)
        all[i].begin_ns = DLX_TEST_GPU_NO_BEGIN;
    DRIVER(cu.cuMemAlloc(&at, n * sizeof *all));
    DRIVER(cu.cuMemcpyHtoD(at, all, n * sizeof *all));
    free(all);
    return at;
}

static CUdeviceptr stamp_of(CUdeviceptr stamps, uint64_t i)
{
    return stamps + i * sizeof(struct dlx_test_gpu_stamps);
}

/* ---- how long a step takes ------------------------------------------------------------------- */

static double run_alone(CUstream stream, uint32_t n_blocks, uint64_t n_steps)
{
    struct dlx_test_gpu_stamps got;
    CUdeviceptr at = stamps_new(1);
    dlx_test_gpu_work(stream, n_blocks, n_steps, at);
    DRIVER(cu.cuStreamSynchronize(stream));
    DRIVER(cu.cuMemcpyDtoH(&got, at, sizeof got));
    DRIVER(cu.cuMemFree(at));
    return (double)(got.end_ns - got.begin_ns);
}

void gpu_bench_steps(void)
{
    double ns = 0;
    uint64_t n_steps = 1000;
    gpu_bench_context();
    CUstream stream = gpu_bench_stream();
    uint32_t n_blocks = strcmp(bm_text("blocks", "one"), "one") ? full_gpu() : 1;
    while (ns < 2e6) { /* long beside a step of the clock */
        n_steps *= 2;
        ns = run_alone(stream, n_blocks, n_steps);
    }
    for (int i = 0; i < 10; i++)
        ns = fmin(ns, run_alone(stream, n_blocks, n_steps));
    bm_json_begin();
    bm_json_number("ns", ns / (double)n_steps);
    bm_json_number("n_blocks", n_blocks);
    bm_json_end();
}

/* ---- the pipeline ---------------------------------------------------------------------------- */

static void stamps_end(CUstream stream, CUdeviceptr stamps, uint64_t n,
                       struct dlx_test_gpu_stamps *ret)
{
    DRIVER(cu.cuStreamSynchronize(stream));
    DRIVER(cu.cuMemcpyDtoH(ret, stamps, n * sizeof *ret));
}

static void consume(const struct options *o, const char *topic, struct shared *shared)
{
    struct gpu_bench_end end = {.client = NULL};
    bm_pin(1);
    gpu_bench_context();
    CUstream stream = gpu_bench_stream();
    CUdeviceptr stamps = stamps_new(o->n);
    CUdeviceptr word = register_word(o);
    gpu_bench_subscriber(&end, topic, 0, &shared->meeting);
    for (uint64_t i = 0; i < o->n; i++) {
        DLManagedTensorVersioned *t = NULL;
        if (o->order == BY_LIBDLX) {
            struct dlx_message *m = bm_take(end.s);
            bm_check(dlx_message_tensor_on(m, 0, stream, &t), "dlx_message_tensor_on");
            dlx_message_unref(m);
        } else {
            gpu_bench_await(&shared->n_published, i + 1);
        }
        if (word)
            DRIVER(cu.cuStreamWaitValue64(stream, word, i + 1, CU_STREAM_WAIT_VALUE_GEQ));
        dlx_test_gpu_work(stream, o->n_blocks, o->n_consumer_steps, stamp_of(stamps, i));
        if (t)
            t->deleter(t);
        if (i + 1 == N_WARMUP)
            DRIVER(cu.cuStreamSynchronize(stream));
        atomic_store(&shared->n_taken, i + 1);
    }
    stamps_end(stream, stamps, o->n, shared->stamps + o->n);
    gpu_bench_end(&end);
}

static void await_turn(const struct options *o, uint64_t start_ns, uint64_t i)
{
    if (o->hz > 0)
        while ((double)(bm_now_ns() - start_ns) < (double)i * 1e9 / o->hz)
            ;
}

static void produce(const struct options *o, const char *topic, struct shared *shared)
{
    struct gpu_bench_end end = {.client = NULL};
    struct gpu_bench_tensor own;
    CUdeviceptr at;
    bm_pin(0);
    gpu_bench_context();
    DRIVER(cu.cuMemAlloc(&at, 1 << 20));
    gpu_bench_tensor_init(&own, at, 1 << 20);
    CUstream stream = gpu_bench_stream();
    CUdeviceptr stamps = stamps_new(o->n);
    struct dlx_publish_args args = {.size = sizeof args, .share = true, .stream = stream};
    CUdeviceptr word = register_word(o);
    gpu_bench_publisher(&end, topic, 0, &shared->meeting);
    uint64_t start_ns = bm_now_ns();
    for (uint64_t i = 0; i < o->n; i++) {
        await_turn(o, start_ns, i);
        dlx_test_gpu_work(stream, o->n_blocks, o->n_steps, stamp_of(stamps, i));
        if (word)
            DRIVER(cu.cuStreamWriteValue64(stream, word, i + 1, CU_STREAM_WRITE_VALUE_DEFAULT));
        if (o->order == BY_LIBDLX)
            bm_check(dlx_publish(end.p, &own.tensor, &args, NULL), "dlx_publish");
        atomic_store(&shared->n_published, i + 1);
        if (i + 1 == N_WARMUP)
            gpu_bench_await(&shared->n_taken, i + 1);
        else if (i + 1 > N_AHEAD)
            gpu_bench_await(&shared->n_taken, i + 1 - N_AHEAD);
    }
    stamps_end(stream, stamps, o->n, shared->stamps);
    gpu_bench_end(&end);
}

/* From the first kernel's begin to the last one's end, and from each of the producer's to the
 * consumer's that belongs to it. */
static void report(const struct options *o, const struct shared *shared)
{
    const struct dlx_test_gpu_stamps *produced = shared->stamps, *consumed = produced + o->n;
    uint64_t begin_ns = UINT64_MAX, end_ns = 0;
    double *gaps = calloc(o->n_measured, sizeof *gaps);
    if (!gaps)
        bm_fail("out of memory");
    for (uint64_t i = N_WARMUP; i < o->n; i++) {
        double gap = (double)consumed[i].begin_ns - (double)produced[i].end_ns;
        if (o->order != UNORDERED && gap < -CLOCK_STEP_NS)
            bm_fail("kernel %llu of the consumer began %.0f ns before the producer's had ended",
                    (unsigned long long)i, -gap);
        gaps[i - N_WARMUP] = gap;
        begin_ns = DLX_MIN(begin_ns, DLX_MIN(produced[i].begin_ns, consumed[i].begin_ns));
        end_ns = DLX_MAX(end_ns, DLX_MAX(produced[i].end_ns, consumed[i].end_ns));
    }
    struct bm_summary summary = bm_summary_of(gaps, o->n_measured);
    bm_json_begin();
    bm_json_number("ns", (double)(end_ns - begin_ns));
    bm_json_summary(&summary); /* of the gaps */
    bm_json_end();
    free(gaps);
}

void gpu_bench_pipeline(void)
{
    char topic[64];
    uint64_t n = (uint64_t)DLX_MAX(1L, bm_long("n", 200));
    const char *how = bm_text("how", "ours");
    bool is_ours = !strcmp(how, "ours") || !strcmp(how, "words");
    (void)setenv("DLX_GPU_WORDS", strcmp(how, "words") ? "0" : "1", 1);
    struct options o = {.order = is_ours                ? BY_LIBDLX
                                 : !strcmp(how, "word") ? BY_WORD
                                                        : UNORDERED,
                        .word = bm_shared(DLX_PAGE),
                        .n_blocks = (uint32_t)bm_long("blocks", 1),
                        .n_steps = (uint64_t)bm_long("steps", 1000),
                        .n_measured = n,
                        .n = N_WARMUP + n,
                        .hz = (double)bm_long("hz", 0)};
    o.n_consumer_steps = (uint64_t)bm_long("consumer-steps", (long)o.n_steps);
    struct shared *shared = bm_shared(sizeof *shared + 2 * o.n * sizeof shared->stamps[0]);
    bm_topic("pipeline", getpid(), topic);
    pid_t pid = gpu_bench_fork();
    if (!pid) {
        consume(&o, topic, shared);
        _exit(0);
    }
    produce(&o, topic, shared);
    bm_wait(pid);
    report(&o, shared);
}

#endif
