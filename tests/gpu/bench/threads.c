/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who waits for the events of all publishers of a process: a thread of each, which the driver wakes
 * (gpu/lib/order.h), or one thread for all, which asks for them again and again? Decision 45.
 */
#include "tests/gpu/harness_gpu.h"

#if DLX_TEST_HAS_GPU
#include "gpu/backend.h"
#include "gpu/lib/order.h"
#include "gpu/lib/thread.h"
#include "tests/gpu/bench/gpu_bench.h"
#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define N_MAX   64 /* publishers */
#define WORK_NS UINT64_C(100000)
#define IS_OVER UINT32_MAX /* no more messages, and all are known to be reached */

struct message {
    struct dlx_gpu_job job;
    struct dlx_gpu_event event;
    uint64_t launched_ns, raised_ns;
};

static struct message *messages;
static uint32_t n_publishers, n_messages;
static dlx_atomic_u32 n_submitted; /* a futex */
static _Atomic uint64_t n_raised, n_asked;

static void raise_word(struct dlx_gpu_job *job, int result)
{
    struct message *m = (struct message *)(void *)job;
    bm_check(result, "the event of a message");
    m->raised_ns = bm_now_ns();
    atomic_fetch_add(&n_raised, 1);
}

/* ---- one thread for all ---------------------------------------------------------------------- */

static bool is_reached(struct message *m)
{
    atomic_fetch_add_explicit(&n_asked, 1, memory_order_relaxed);
    if (m->event.event && m->event.api->event_wait(&m->event, false) == 1)
        return false;
    dlx__gpu_event_end(&m->event);
    return true;
}

/* Message i is of publisher i % n_publishers. */
static void *ask(void *arg)
{
    const struct timespec pause = {.tv_nsec = *(const long *)arg};
    uint32_t next[N_MAX], n_reached = 0;
    (void)prctl(PR_SET_TIMERSLACK, 1UL);
    for (uint32_t k = 0; k < n_publishers; k++)
        next[k] = k;
    for (;;) {
        uint32_t n = dlx_load32_acquire(&n_submitted), before = n_reached;
        if (n == IS_OVER)
            return NULL;
        if (n == n_reached) {
            (void)syscall(SYS_futex, &n_submitted, FUTEX_WAIT_PRIVATE, n, NULL, NULL, 0);
            continue;
        }
        for (uint32_t k = 0; k < n_publishers; k++)
            for (; next[k] < n && is_reached(&messages[next[k]]); next[k] += n_publishers) {
                raise_word(&messages[next[k]].job, 0);
                n_reached++;
            }
        if (n_reached == before)
            (void)nanosleep(&pause, NULL); /* lint-allow: sleep: it is what is measured */
    }
}

/* ---- the publishers -------------------------------------------------------------------------- */

static void submit(uint32_t n)
{
    dlx_store32_release(&n_submitted, n);
    (void)syscall(SYS_futex, &n_submitted, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void publish(uint32_t i, CUstream stream, struct dlx_gpu_order *order)
{
    struct message *m = &messages[i];
    bool waited;
    m->launched_ns = bm_now_ns();
    dlx_test_gpu_spin(stream, 0, WORK_NS);
    int r = dlx__gpu_event_record(kDLCUDA, 0, stream, &m->event, &waited);
    bm_check(DLX_MIN(r, 0), "recording an event");
    m->job = (struct dlx_gpu_job){
        .events = &m->event, .n_events = (uint32_t)r, .done = raise_word}; /* 0: it is reached */
    submit(i + 1);
    if (order)
        (void)dlx__gpu_order_add(order, &m->job);
}

static double cpu_ns(const pthread_t *threads, uint32_t n)
{
    double ret = 0;
    for (uint32_t i = 0; i < n; i++) {
        clockid_t id;
        struct timespec t;
        if (pthread_getcpuclockid(threads[i], &id) != 0 || clock_gettime(id, &t) != 0)
            bm_fail("the time of a thread cannot be read");
        ret += (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
    }
    return ret;
}

/* How long after its launch, without its own time, a kernel's event is known. */
static void report(double took_ns, double used_ns, uint64_t asked)
{
    uint32_t n = n_messages - n_publishers;
    double *late = calloc(n, sizeof *late);
    if (!late)
        bm_fail("out of memory");
    for (uint32_t i = 0; i < n; i++) {
        const struct message *m = &messages[n_publishers + i];
        late[i] = (double)(m->raised_ns - m->launched_ns) - (double)WORK_NS;
    }
    struct bm_summary summary = bm_summary_of(late, n);
    bm_json_begin();
    bm_json_number("cpu_ns", used_ns / n);
    bm_json_number("asked_per_s", (double)asked / took_ns * 1e9);
    bm_json_summary(&summary);
    bm_json_end();
    free(late);
}

void gpu_bench_threads(void)
{
    static struct dlx_gpu_order orders[N_MAX];
    CUstream streams[N_MAX];
    pthread_t threads[N_MAX];
    long pause_ns = bm_long("pause", 50000);
    double hz = (double)bm_long("hz", 1000);
    bool is_ours = !strcmp(bm_text("how", "ours"), "ours");
    n_publishers = (uint32_t)DLX_MIN(bm_long("publishers", 32), (long)N_MAX);
    n_messages = n_publishers + (uint32_t)bm_long("n", 1000);
    messages = calloc(n_messages, sizeof *messages);
    if (!messages)
        bm_fail("out of memory");
    gpu_bench_context();
    for (uint32_t i = 0; i < n_publishers; i++)
        streams[i] = gpu_bench_stream();
    if (!is_ours && !dlx__gpu_thread_start(&threads[0], ask, &pause_ns))
        bm_fail("no thread can be started");
    for (uint32_t i = 0; i < n_publishers; i++)
        publish(i, streams[i], is_ours ? &orders[i] : NULL);
    gpu_bench_await(&n_raised, n_publishers);
    for (uint32_t i = 0; is_ours && i < n_publishers; i++)
        threads[i] = orders[i].thread;
    uint32_t n_threads = is_ours ? n_publishers : 1;
    double used_ns = cpu_ns(threads, n_threads);
    uint64_t asked = atomic_load(&n_asked), start_ns = bm_now_ns();
    for (uint32_t i = n_publishers; i < n_messages; i++) {
        while ((double)(bm_now_ns() - start_ns) < (double)(i - n_publishers) * 1e9 / hz)
            ;
        publish(i, streams[i % n_publishers], is_ours ? &orders[i % n_publishers] : NULL);
    }
    gpu_bench_await(&n_raised, n_messages);
    report((double)(bm_now_ns() - start_ns), cpu_ns(threads, n_threads) - used_ns,
           atomic_load(&n_asked) - asked);
    for (uint32_t i = 0; is_ours && i < n_publishers; i++)
        dlx__gpu_order_end(&orders[i]);
    submit(IS_OVER);
    if (!is_ours)
        (void)pthread_join(threads[0], NULL);
    free(messages);
}

#endif
