/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory that is not back: what the daemon holds of its own, and what killed processes
 * leave. */
#include "tests/gpu/harness_gpu.h"

#if DLX_TEST_HAS_GPU
#include "tests/gpu/bench/gpu_bench.h"
#include <sys/prctl.h>
#include <time.h>

#define MIB       ((size_t)1 << 20)
#define TENSOR    (64 * MIB)
#define SECOND_NS UINT64_C(1000000000)

struct shared {
    struct bm_meeting meeting;
    _Atomic uint64_t asked, answered, n_free; /* the observer's */
    _Atomic uint64_t is_ready;                /* of a process that is to be killed */
};

static void end_process(pid_t pid, int signal)
{
    bm_check_errno(kill(pid, signal), "kill");
    bm_check_errno(waitpid(pid, NULL, 0), "waitpid");
}

/* A part of the measurement: the memory that is free after that time. */
static void let_time_pass(uint64_t ns)
{
    struct timespec t = {.tv_sec = (time_t)(ns / SECOND_NS), .tv_nsec = (long)(ns % SECOND_NS)};
    (void)nanosleep(&t, NULL); /* lint-allow: sleep: the row says "after 1 s" */
}

static double mib(uint64_t before, uint64_t after)
{
    return ((double)before - (double)after) / (double)MIB;
}

/* Returns where the tensor of its message is, in memory of dlx_alloc(). */
static CUdeviceptr publish_one(struct gpu_bench_end *end, const char *topic, uint32_t retain)
{
    const struct dlx_publisher_args args = {.size = sizeof args, .history = 1, .retain = retain};
    end->client = bm_connect();
    bm_check(dlx_publisher_new(end->client, topic, &args, &end->p), topic);
    DLManagedTensorVersioned *t = gpu_bench_alloc(end->p, TENSOR);
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)t->dl_tensor.data;
    bm_check(dlx_publish(end->p, t, NULL, NULL), "dlx_publish");
    return at;
}

static DLManagedTensorVersioned *take_newest(struct gpu_bench_end *end, const char *topic)
{
    const struct dlx_subscribe_args args = {.size = sizeof args, .history = 1};
    DLManagedTensorVersioned *t;
    if (!end->client)
        end->client = bm_connect();
    bm_check(dlx_subscribe(end->client, topic, &args, &end->s), topic);
    struct dlx_message *m = bm_take(end->s);
    bm_check(dlx_message_tensor(m, 0, &t), "dlx_message_tensor");
    dlx_message_unref(m);
    return t;
}

static pid_t start_daemon(void)
{
    const char *program = bm_text("dlpackd", "build/dlpackd"), *socket = getenv("DLX_SOCKET");
    const struct dlx_connect_args args = {.size = sizeof args, .wait_ns = 10 * SECOND_NS};
    struct dlx_client *client;
    if (!socket || access(socket, F_OK) == 0)
        bm_fail("DLX_SOCKET has to name a socket that is not there");
    pid_t pid = fork();
    bm_check_errno(pid, "fork");
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)execl(program, "dlpackd", "--foreground", "--socket", socket, NULL);
        _exit(127);
    }
    bm_check(dlx_connect(&args, &client), program); /* its file is there before it listens */
    dlx_client_unref(client);
    return pid;
}

/* A message to another process while this one looks at what is free before, and after the end of
 * all but the daemon and the keeper, which have what the publisher retained. */
void gpu_bench_footprint(void)
{
    char topic[64];
    struct shared *shared = bm_shared(sizeof *shared);
    bm_topic("footprint", getpid(), topic);
    pid_t pids[2];
    for (int i = 0; i < 2; i++) {
        pids[i] = gpu_bench_fork();
        if (pids[i] != 0)
            continue;
        struct gpu_bench_end end = {.client = NULL};
        gpu_bench_await(&shared->asked, (uint64_t)i + 1);
        gpu_bench_context();
        if (i == 0) {
            (void)publish_one(&end, topic, 1);
            atomic_store(&shared->asked, 2);
            gpu_bench_await(&shared->answered, 1);
        } else {
            DLManagedTensorVersioned *t = take_newest(&end, topic);
            t->deleter(t);
            atomic_store(&shared->answered, 1);
        }
        gpu_bench_end(&end);
        _exit(0);
    }
    gpu_bench_context();
    size_t before = dlx_test_gpu_free_memory();
    pid_t daemon = start_daemon();
    atomic_store(&shared->asked, 1);
    bm_wait(pids[0]);
    bm_wait(pids[1]);
    let_time_pass(SECOND_NS);
    size_t after = dlx_test_gpu_free_memory();
    end_process(daemon, SIGTERM);
    bm_json_begin();
    bm_json_number("mib", mib(before, after + TENSOR)); /* the stand-in counts no descriptors */
    bm_json_end();
}

static void observe(struct shared *shared)
{
    gpu_bench_context();
    for (uint64_t i = 1;; i++) {
        while (atomic_load(&shared->asked) < i)
            (void)usleep(1000); /* lint-allow: sleep: it must not spin while others are timed */
        atomic_store(&shared->n_free, dlx_test_gpu_free_memory());
        atomic_store(&shared->answered, i);
    }
}

static uint64_t free_now(struct shared *shared)
{
    uint64_t i = atomic_fetch_add(&shared->asked, 1) + 1;
    gpu_bench_await(&shared->answered, i);
    return atomic_load(&shared->n_free);
}

/* Both run a kernel of 60 s in the tensor's memory, and wait for their end. */
static void be_killed(struct shared *shared, bool is_producer, const char *topic, const char *other)
{
    struct gpu_bench_end end = {.client = NULL};
    CUdeviceptr at;
    gpu_bench_context();
    CUstream stream = gpu_bench_stream();
    if (is_producer)
        at = publish_one(&end, topic, 0);
    else
        at = (CUdeviceptr)(uintptr_t)take_newest(&end, other)->dl_tensor.data;
    dlx_test_gpu_spin(stream, at, 60 * SECOND_NS);
    atomic_store(&shared->is_ready, 1);
    for (;;)
        (void)pause();
}

static void kill_one(struct shared *shared, bool is_producer, const char *topic, const char *other)
{
    atomic_store(&shared->is_ready, 0);
    pid_t pid = gpu_bench_fork();
    if (!pid)
        be_killed(shared, is_producer, topic, other);
    gpu_bench_await(&shared->is_ready, 1);
    end_process(pid, SIGKILL);
}

void gpu_bench_kills(void)
{
    char topic[64], other[64];
    long n = bm_long("n", 100);
    struct shared *shared = bm_shared(sizeof *shared);
    bm_topic("killed", getpid(), topic);
    bm_topic("living", getpid(), other);
    pid_t observer = gpu_bench_fork();
    if (!observer)
        observe(shared);
    pid_t living = gpu_bench_fork();
    if (!living) {
        struct gpu_bench_end end = {.client = NULL};
        gpu_bench_context();
        (void)publish_one(&end, other, 0);
        atomic_store(&shared->is_ready, 1);
        for (;;) {
            (void)dlx_publisher_wait(end.p, 0, 0);
            (void)usleep(1000); /* lint-allow: sleep: it must not spin while others are timed */
        }
    }
    gpu_bench_await(&shared->is_ready, 1);
    kill_one(shared, true, topic, other); /* warm up: the driver keeps some memory of its own */
    kill_one(shared, false, topic, other);
    let_time_pass(2 * SECOND_NS);
    uint64_t before = free_now(shared);
    for (long i = 0; i < n; i++) {
        kill_one(shared, true, topic, other);
        kill_one(shared, false, topic, other);
    }
    let_time_pass(SECOND_NS);
    uint64_t after = free_now(shared);
    end_process(living, SIGKILL);
    end_process(observer, SIGKILL);
    bm_json_begin();
    bm_json_number("mib", mib(before, after));
    bm_json_number("n_kills", 2 * (double)n);
    bm_json_end();
}

#endif
