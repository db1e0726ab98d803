/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Does a worker sleep while a message waits? One publisher with a group of workers, a process each.
 * Messages come at random times (Poisson), and their work takes a random time that is slept, not
 * computed. `idle_share` is the share of the run in which at least one message waited and at least
 * one worker was in dlx_take(), from the time stamps of publish, take and done, where the time of
 * the call itself counts, too. `idle_p50_ns` and `idle_max_ns` are how long such a time takes: the
 * kernel needs some to wake a worker.
 *
 * With `--bare 1` it is a queue that does nothing else than wake: an eventfd that counts, which the
 * workers read, and an array. That is how long the kernel takes.
 *
 *   --workers N            workers (4)
 *   --load PERCENT         of the time of all workers that the work takes (70)
 *   --seed N               of the random numbers
 */

#include "measure_dlx.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS_MAX = 64 };
static const double LEAST_MS = 0.1, MOST_MS = 10;

/* When a message was published and taken, and when its worker had asked for it. */
struct claim {
    uint64_t published_ns, asked_ns, taken_ns;
};

struct bare_message {
    uint64_t published_ns;
    double ms; /* of work; below 0: the worker ends */
};
struct bare {
    int count; /* eventfd */
    _Atomic uint64_t n_taken;
    struct bare_message messages[];
};

struct worker {
    _Atomic uint64_t n;
    uint64_t n_sleeps;
    struct claim *claims; /* shared */
};

static double random_share(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return ((double)(*state >> 11) + 0.5) / (double)(UINT64_C(1) << 53);
}

/* Log-uniform between the two. */
static double random_work_ms(uint64_t *state)
{
    return LEAST_MS * pow(MOST_MS / LEAST_MS, random_share(state));
}

static void sleep_until(uint64_t ns)
{
    struct timespec until = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        continue;
}

/* Works until the publisher has left and all is done. */
static void work(const char *topic, struct worker *w, struct bm_meeting *meeting)
{
    const struct dlx_subscribe_args args = {
        .size = sizeof args, .group = "bench", .n_publishers = 1};
    struct dlx_client *c = bm_connect();
    struct dlx_subscription *s;
    struct dlx_message *m;
    int r;

    bm_check(dlx_subscribe(c, topic, &args, &s), topic);
    bm_meet(meeting);
    for (;;) {
        uint64_t asked_ns = bm_now_ns();
        r = dlx_take(s, INT64_C(30000000000), &m);
        if (r)
            break;
        uint64_t now = bm_now_ns(), n = atomic_load(&w->n);
        w->claims[n] = (struct claim){dlx_message_monotonic_ns(m), asked_ns, now};
        const double *ms = dlx_message_tensor_peek(m, 0)->data;
        sleep_until(now + (uint64_t)(*ms * 1e6));
        bm_check(dlx_message_done(m), "dlx_message_done");
        dlx_message_unref(m);
        atomic_store(&w->n, n + 1);
    }
    if (r != DLX_E_PUBLISHER_GONE)
        bm_check(r, "dlx_take");
    w->n_sleeps = bm_subscription_stats(s).sleeps;
    dlx_subscription_unref(s);
    dlx_client_unref(c);
}

static void work_bare(struct bare *bare, struct worker *w)
{
    for (;;) {
        uint64_t asked_ns = bm_now_ns(), one, n = atomic_load(&w->n);
        if (read(bare->count, &one, sizeof one) != sizeof one)
            bm_fail("read of an eventfd: %m");
        const struct bare_message *m = &bare->messages[atomic_fetch_add(&bare->n_taken, 1)];
        uint64_t now = bm_now_ns();
        if (m->ms < 0)
            return;
        w->claims[n] = (struct claim){m->published_ns, asked_ns, now};
        sleep_until(now + (uint64_t)(m->ms * 1e6));
        atomic_store(&w->n, n + 1);
    }
}

/* ---- what the stamps say --------------------------------------------------------------------- */

/* From then on so many messages more wait, and so many workers more are in a take. */
struct step {
    uint64_t ns;
    int waiting, asking;
};

static int by_time(const void *a, const void *b)
{
    const struct step *x = a, *y = b;
    return (x->ns > y->ns) - (x->ns < y->ns);
}

struct idle {
    uint64_t sum_ns;
    double p50_ns, max_ns; /* of the times on end */
};

/* The times in which a message waited and a worker was in a take. */
static struct idle find_idle(const struct worker *workers, uint32_t n_workers, uint64_t n)
{
    struct step *steps = calloc(4 * n + 1, sizeof *steps);
    double *times = calloc(4 * n + 1, sizeof *times);
    size_t n_steps = 0, n_times = 0;
    struct idle idle = {0};
    int waiting = 0, asking = 0;

    if (!steps || !times)
        bm_fail("no memory");
    for (uint32_t w = 0; w < n_workers; w++)
        for (uint64_t i = 0; i < atomic_load(&workers[w].n); i++) {
            const struct claim *claim = &workers[w].claims[i];
            steps[n_steps++] = (struct step){claim->published_ns, 1, 0};
            steps[n_steps++] = (struct step){claim->asked_ns, 0, 1};
            steps[n_steps++] = (struct step){claim->taken_ns, -1, -1};
        }
    qsort(steps, n_steps, sizeof *steps, by_time);
    for (size_t i = 0; i < n_steps; i++) {
        bool was_idle = waiting > 0 && asking > 0;
        if (was_idle) {
            uint64_t ns = steps[i].ns - steps[i - 1].ns;
            idle.sum_ns += ns;
            times[n_times] += (double)ns;
        }
        waiting += steps[i].waiting;
        asking += steps[i].asking;
        if (was_idle && (waiting == 0 || asking == 0)) {
            idle.max_ns = fmax(idle.max_ns, times[n_times]);
            n_times++;
        }
    }
    idle.p50_ns = bm_summary_of(times, n_times).p50_ns;
    free(times);
    free(steps);
    return idle;
}

int main(int argc, char **argv)
{
    char topic[64];
    int64_t shape[1];

    bm_init(argc, argv);
    uint64_t n = (uint64_t)bm_long("n", 5000), state = (uint64_t)bm_long("seed", 1);
    uint32_t n_workers = (uint32_t)bm_long("workers", 4);
    double load = (double)bm_long("load", 70) / 100;
    if (n_workers < 1 || n_workers > WORKERS_MAX || load <= 0 || load >= 1)
        bm_fail("--workers takes 1 to %d, --load 1 to 99", WORKERS_MAX);
    double mean_ms = (MOST_MS - LEAST_MS) / log(MOST_MS / LEAST_MS);
    double gap_ms = mean_ms / (load * n_workers);
    struct worker *workers = bm_shared(n_workers * sizeof *workers);
    struct bare *bare = NULL;
    if (bm_long("bare", 0)) {
        bare = bm_shared(sizeof *bare + (n + n_workers) * sizeof bare->messages[0]);
        bare->count = eventfd(0, EFD_SEMAPHORE);
    }
    struct bm_meeting *meetings = bm_shared(n_workers * sizeof *meetings);
    pid_t pids[WORKERS_MAX];
    bm_topic("queue", getpid(), topic);
    for (uint32_t w = 0; w < n_workers; w++) {
        workers[w].claims = bm_shared(n * sizeof(struct claim));
        pids[w] = bm_fork();
        if (!pids[w]) {
            if (bare)
                work_bare(bare, &workers[w]);
            else
                work(topic, &workers[w], &meetings[w]);
            _exit(0);
        }
    }
    struct dlx_client *c = bm_connect();
    struct dlx_publisher *p;
    const struct dlx_publisher_args args = {.size = sizeof args,
                                            .groups = (const char *const[]){"bench"},
                                            .n_groups = 1,
                                            .depth = 1024};
    const struct dlx_tensor_spec spec = bm_bytes(shape, sizeof(double));
    bm_check(dlx_publisher_new(c, topic, &args, &p), topic);
    for (uint32_t w = 0; w < n_workers && !bare; w++)
        bm_meet(&meetings[w]);
    if (!bare)
        bm_check(dlx_publisher_wait(p, n_workers, INT64_C(10000000000)), "waiting for the workers");
    uint64_t start_ns = bm_now_ns();
    double due_ms = 0, work_ms = 0;
    for (uint64_t i = 0; i < n; i++) {
        DLManagedTensorVersioned *t;
        due_ms -= gap_ms * log(random_share(&state));
        sleep_until(start_ns + (uint64_t)(due_ms * 1e6));
        double ms = random_work_ms(&state);
        work_ms += ms;
        if (bare) {
            bare->messages[i] = (struct bare_message){bm_now_ns(), ms};
            (void)eventfd_write(bare->count, 1);
            continue;
        }
        bm_check(dlx_alloc(p, &spec, &t), "dlx_alloc");
        *(double *)t->dl_tensor.data = ms;
        bm_check(dlx_publish(p, t, NULL, NULL), "dlx_publish");
    }
    for (uint64_t i = n; bare && i < n + n_workers; i++) {
        bare->messages[i].ms = -1;
        (void)eventfd_write(bare->count, 1);
    }
    bm_check(dlx_publisher_drain(p, INT64_C(30000000000)), "dlx_publisher_drain");
    uint64_t run_ns = bm_now_ns() - start_ns;
    struct dlx_publisher_stats stats = bm_publisher_stats(p);
    dlx_publisher_unref(p);
    dlx_client_unref(c);
    uint64_t n_done = 0, n_sleeps = 0;
    for (uint32_t w = 0; w < n_workers; w++) {
        bm_wait(pids[w]);
        n_done += atomic_load(&workers[w].n);
        n_sleeps += workers[w].n_sleeps;
    }
    bm_json_begin();
    bm_json_number("n", (double)n);
    bm_json_number("workers", n_workers);
    bm_json_number("done", (double)n_done);
    bm_json_number("load", work_ms * 1e6 / ((double)run_ns * n_workers));
    struct idle idle = find_idle(workers, n_workers, n_done);
    bm_json_number("idle_share", (double)idle.sum_ns / (double)run_ns);
    bm_json_number("idle_p50_ns", idle.p50_ns);
    bm_json_number("idle_max_ns", idle.max_ns);
    bm_json_number("sleeps_per_message", (double)n_sleeps / (double)n);
    bm_json_number("bells", (double)stats.bells);
    bm_json_number("seconds", (double)run_ns * 1e-9);
    bm_json_end();
    return 0;
}
