/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights that a trainer hands to an engine, bucket by bucket, twice: when the engine starts, and
 * when it swaps them. Ours: the trainer writes each bucket into new memory of dlx_alloc_set(), and
 * the engine uses it in place of the former one, whose memory is the next bucket's. Packed buckets,
 * as checkpoint-engine has them: the trainer writes into one of two buffers that the engine has
 * open by a CUDA IPC handle, and the engine copies each tensor out. The time is what the hand-over
 * takes, without the time in which the trainer writes.
 */
#include "tests/gpu/harness_gpu.h"

#if DLX_TEST_HAS_GPU
#include "tests/gpu/bench/gpu_bench.h"

#define N_BUFFERS 2U
#define N_PASSES  2U

struct shared {
    struct bm_meeting meeting;
    _Atomic uint64_t n_written, n_used; /* buckets */
    CUipcMemHandle handles[N_BUFFERS];
    size_t n_free; /* the least of all samples */
};

struct options {
    uint64_t n_buckets;
    uint32_t n;  /* tensors of a bucket */
    size_t size; /* of a tensor */
};

struct result {
    uint64_t hand_over_ns[N_PASSES]; /* to attach, and to swap */
    uint64_t written_ns;             /* of the present pass */
};

/* The trainer writes the tensors of a bucket: this time is its own. */
static void write_bucket(const struct options *o, CUstream stream, const CUdeviceptr *at,
                         uint64_t bucket, struct result *result)
{
    uint64_t start_ns = bm_now_ns();
    for (uint32_t i = 0; i < o->n; i++)
        DRIVER(cu.cuMemsetD32Async(at[i], (uint32_t)bucket, o->size / 4, stream));
    DRIVER(cu.cuStreamSynchronize(stream));
    result->written_ns += bm_now_ns() - start_ns;
}

/* Both processes have their contexts, and neither has weights. */
static void meet_for_baseline(struct shared *shared)
{
    bm_meet(&shared->meeting);
    bm_meet(&shared->meeting);
}

static size_t measure_baseline(struct shared *shared)
{
    bm_meet(&shared->meeting);
    shared->n_free = dlx_test_gpu_free_memory();
    bm_meet(&shared->meeting);
    return shared->n_free;
}

static void sample(struct shared *shared, struct result *result)
{
    uint64_t start_ns = bm_now_ns();
    shared->n_free = DLX_MIN(shared->n_free, dlx_test_gpu_free_memory());
    result->written_ns += bm_now_ns() - start_ns;
}

/* The first word of each tensor is the number of its bucket. */
static void check_bucket(const struct options *o, const CUdeviceptr *at, uint64_t bucket)
{
    for (uint32_t i = 0; i < o->n; i++) {
        uint32_t word;
        DRIVER(cu.cuMemcpyDtoH(&word, at[i], sizeof word));
        if (word != (uint32_t)bucket)
            bm_fail("tensor %u of bucket %llu is of bucket %u", i, (unsigned long long)bucket,
                    word);
    }
}

static void *new_array(uint64_t n, size_t size)
{
    void *array = calloc(n, size);
    if (!array)
        bm_fail("out of memory");
    return array;
}

static CUdeviceptr address_of(const DLManagedTensorVersioned *tensor)
{
    return (CUdeviceptr)(uintptr_t)tensor->dl_tensor.data;
}

/* ---- ours ------------------------------------------------------------------------------------ */

static void train_ours(const struct options *o, const char *topic, struct shared *shared,
                       struct result *result)
{
    struct gpu_bench_end end = {.client = NULL};
    DLManagedTensorVersioned **tensors = new_array(o->n, sizeof *tensors);
    CUdeviceptr *at = new_array(o->n, sizeof *at);
    struct dlx_item *items = new_array(o->n, sizeof *items);
    CUstream stream = gpu_bench_stream();
    const struct dlx_publish_args args = {.size = sizeof args, .stream = stream};
    gpu_bench_publisher(&end, topic, (uint32_t)o->n_buckets + 1, &shared->meeting);
    for (uint64_t pass = 0; pass < N_PASSES; pass++) {
        uint64_t start_ns = bm_now_ns();
        result->written_ns = 0;
        for (uint64_t i = 0; i < o->n_buckets; i++) {
            uint64_t bucket = pass * o->n_buckets + i;
            gpu_bench_alloc_set(end.p, o->n, o->size, tensors);
            for (uint32_t k = 0; k < o->n; k++) {
                at[k] = address_of(tensors[k]);
                items[k] = (struct dlx_item){.tensor = tensors[k]};
            }
            write_bucket(o, stream, at, bucket, result);
            sample(shared, result);
            bm_check(dlx_publish_set(end.p, items, o->n, NULL, &args, NULL), "dlx_publish_set");
            gpu_bench_await(&shared->n_used, bucket + 1);
        }
        result->hand_over_ns[pass] = bm_now_ns() - start_ns - result->written_ns;
    }
    gpu_bench_end(&end);
    free(items);
    free(at);
    free(tensors);
}

static void serve_ours(const struct options *o, const char *topic, struct shared *shared)
{
    struct gpu_bench_end end = {.client = NULL};
    DLManagedTensorVersioned **weights = new_array(o->n_buckets * o->n, sizeof *weights);
    CUdeviceptr *at = new_array(o->n, sizeof *at);
    CUstream stream = gpu_bench_stream();
    gpu_bench_subscriber(&end, topic, (uint32_t)o->n_buckets + 1, &shared->meeting);
    for (uint64_t bucket = 0; bucket < N_PASSES * o->n_buckets; bucket++) {
        DLManagedTensorVersioned **mine = weights + bucket % o->n_buckets * o->n;
        struct dlx_message *m = bm_take(end.s);
        for (uint32_t i = 0; i < o->n; i++) {
            DLManagedTensorVersioned *former = mine[i];
            bm_check(dlx_message_tensor_on(m, i, stream, &mine[i]), "dlx_message_tensor_on");
            at[i] = address_of(mine[i]);
            if (former)
                former->deleter(former);
        }
        dlx_message_unref(m);
        if (bucket % o->n_buckets == 0)
            check_bucket(o, at, bucket);
        atomic_store(&shared->n_used, bucket + 1);
    }
    for (uint64_t i = 0; i < o->n_buckets * o->n; i++)
        weights[i]->deleter(weights[i]);
    free(at);
    free(weights);
    gpu_bench_end(&end);
}

/* ---- packed buckets -------------------------------------------------------------------------- */

static void places_in(const struct options *o, CUdeviceptr bucket, CUdeviceptr *ret)
{
    for (uint32_t i = 0; i < o->n; i++)
        ret[i] = bucket + i * o->size;
}

static void train_buckets(const struct options *o, struct shared *shared, struct result *result)
{
    CUdeviceptr buffers[N_BUFFERS], *at = new_array(o->n, sizeof *at);
    CUstream stream = gpu_bench_stream();
    for (uint32_t i = 0; i < N_BUFFERS; i++) {
        DRIVER(cu.cuMemAlloc(&buffers[i], o->n * o->size));
        DRIVER(cu.cuIpcGetMemHandle(&shared->handles[i], buffers[i]));
    }
    bm_meet(&shared->meeting);
    for (uint64_t pass = 0; pass < N_PASSES; pass++) {
        uint64_t start_ns = bm_now_ns();
        result->written_ns = 0;
        for (uint64_t i = 0; i < o->n_buckets; i++) {
            uint64_t bucket = pass * o->n_buckets + i;
            if (bucket >= N_BUFFERS)
                gpu_bench_await(&shared->n_used, bucket + 1 - N_BUFFERS);
            places_in(o, buffers[bucket % N_BUFFERS], at);
            write_bucket(o, stream, at, bucket, result);
            sample(shared, result);
            atomic_store(&shared->n_written, bucket + 1);
        }
        gpu_bench_await(&shared->n_used, (pass + 1) * o->n_buckets);
        result->hand_over_ns[pass] = bm_now_ns() - start_ns - result->written_ns;
    }
    free(at);
}

static void serve_buckets(const struct options *o, struct shared *shared)
{
    CUdeviceptr buffers[N_BUFFERS], *weights = new_array(o->n_buckets, sizeof *weights);
    CUdeviceptr *at = new_array(o->n, sizeof *at);
    CUstream stream = gpu_bench_stream();
    for (uint64_t i = 0; i < o->n_buckets; i++)
        DRIVER(cu.cuMemAlloc(&weights[i], o->n * o->size));
    bm_meet(&shared->meeting);
    for (uint32_t i = 0; i < N_BUFFERS; i++)
        DRIVER(cu.cuIpcOpenMemHandle(&buffers[i], shared->handles[i],
                                     CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    for (uint64_t bucket = 0; bucket < N_PASSES * o->n_buckets; bucket++) {
        CUdeviceptr from = buffers[bucket % N_BUFFERS], to = weights[bucket % o->n_buckets];
        gpu_bench_await(&shared->n_written, bucket + 1);
        for (uint32_t i = 0; i < o->n; i++)
            DRIVER(cu.cuMemcpyDtoDAsync(to + i * o->size, from + i * o->size, o->size, stream));
        DRIVER(cu.cuStreamSynchronize(stream));
        places_in(o, to, at);
        if (bucket % o->n_buckets == 0)
            check_bucket(o, at, bucket);
        atomic_store(&shared->n_used, bucket + 1);
    }
    free(at);
    free(weights);
}

void gpu_bench_weights(void)
{
    char topic[64];
    size_t size = (size_t)bm_long("size", 1L << 34), bucket = (size_t)bm_long("bucket", 1L << 28);
    bool is_ours = !strcmp(bm_text("how", "ours"), "ours");
    struct options o = {.n_buckets = size / bucket, .n = (uint32_t)bm_long("n", 16)};
    o.size = bucket / o.n;
    struct result result = {.written_ns = 0};
    struct shared *shared = bm_shared(sizeof *shared);
    bm_topic("weights", getpid(), topic);
    pid_t pid = gpu_bench_fork();
    if (!pid) {
        gpu_bench_context();
        meet_for_baseline(shared);
        is_ours ? serve_ours(&o, topic, shared) : serve_buckets(&o, shared);
        _exit(0);
    }
    gpu_bench_context();
    size_t before = measure_baseline(shared);
    is_ours ? train_ours(&o, topic, shared, &result) : train_buckets(&o, shared, &result);
    bm_wait(pid);
    bm_json_begin();
    bm_json_number("attach_ns", (double)result.hand_over_ns[0]);
    bm_json_number("swap_ns", (double)result.hand_over_ns[1]);
    bm_json_number("peak", (double)(before - shared->n_free) / (double)(o.n_buckets * bucket));
    bm_json_end();
}

#endif
