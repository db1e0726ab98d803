/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The daemon's core and its clients in one process, in an order that a seed decides, beside a model
 * of what must hold: tests/daemon/sim_daemon/README.md.
 *
 * SIM_SEEDS=n runs so many seeds, SIM_SEED=s only that one.
 */

#include "tests/daemon/sim_daemon/sim.h"
#include "tests/harness/random.h"
#include <stdarg.h>

#ifdef DLX_SANITIZE
#define N_SEEDS 300
#else
#define N_SEEDS 2000
#endif

struct world w;
static bool verbose; /* SIM_VERBOSE=1: everything that happens */

void sim_fail(const char *file, int line, const char *what, const char *fmt, ...)
{
    va_list ap;
    fprintf(stderr, "seed %ju, step %ju: %s:%d: %s: ", w.seed, w.steps, file, line, what);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\nrun it again: SIM_SEED=%ju build/tests/sim_daemon\n", w.seed);
    (void)signal(SIGABRT, SIG_DFL);
    abort();
}

/* One of the daemon's assertions, or worse: raised by this thread, which holds no lock of stdio. */
static void on_crash(int signum)
{
    (void)signal(signum, SIG_DFL);
    fprintf( // NOLINT(bugprone-signal-handler): as above
        stderr, "seed %ju, step %ju: signal %d\n", w.seed, w.steps, signum);
    (void)raise(signum);
}

void sim_say(const char *fmt, ...)
{
    va_list ap;
    if (!verbose)
        return;
    fprintf(stderr, "%ju %ju ms: ", w.steps, (w.now / 1000000));
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

uint32_t rnd(uint32_t below)
{
    return (uint32_t)(dlx_test_splitmix64(&w.random) % below);
}

static uint64_t totals[DLX_ARRAY_SIZE(w.counts)];
static uint64_t n_steps, n_fired;

static void run_seed(uint64_t seed)
{
    memset(&w, 0, sizeof w);
    w.seed = w.random = seed;
    /* Most seeds have something special. */
    w.fault_one_in = one_in(2) ? 0 : 20 + rnd(200);
    w.refuse_one_in = one_in(2) ? 0 : 10 + rnd(100);
    w.small_sockets = one_in(3);
    w.store = one_in(2);
    w.with_groups = !one_in(3);
    w.names_workers = one_in(2);
    w.max_fds = one_in(3) ? 4 + rnd(20) : 100000;
    w.max[DLXD_BYTES] = one_in(6) ? 100000 + rnd(200000) : 1U << 28;
    w.max_all = one_in(8) ? 200000 + rnd(300000) : 1U << 29;
    w.max[DLXD_CONNECTIONS] = one_in(8) ? 1 + rnd(3) : 100;
    w.max[DLXD_OBJECTS] = one_in(8) ? 2 + rnd(8) : 1000;
    w.max[DLXD_LINKS] = one_in(8) ? 1 + rnd(10) : 1000;
    w.max[DLXD_PATTERNS] = one_in(8) ? rnd(3) : 100;
    w.max[DLXD_PENDING_JOINS] = one_in(8) ? rnd(3) : 1000;
    w.max[DLXD_FAILED] = 1000;
    w.max[DLXD_IN_FLIGHT] = UINT64_MAX;
    w.max[DLXD_STORE_ENTRIES] = w.max[DLXD_REQUESTS] = UINT64_MAX;
    w.max[DLXD_RETAINED_BYTES] = seed % 7 == 0 ? 50000 + seed % 1000 * 200 : UINT64_MAX;
    life_begin();
    for (uint32_t i = 200 + rnd(200); i > 0; i--)
        step();
    life_end();
    n_steps += w.steps;
    n_fired += w.fired;
    for (size_t i = 0; i < DLX_ARRAY_SIZE(totals); i++)
        totals[i] += w.counts[i];
}

TEST(every_schedule_keeps_the_promises)
{
    const char *one = getenv("SIM_SEED");
    const char *many = getenv("SIM_SEEDS");
    uint64_t n = many ? strtoull(many, NULL, 0) : N_SEEDS;
    int n_fds = sim_count_fds();
    verbose = getenv("SIM_VERBOSE") && one;
    (void)signal(SIGABRT, on_crash);
#ifndef DLX_SANITIZE
    (void)signal(SIGSEGV, on_crash);
#endif
    if (one)
        run_seed(strtoull(one, NULL, 0));
    for (uint64_t i = 1; !one && i <= n; i++)
        run_seed(i);
    ck_assert_int_eq(sim_count_fds(), n_fds);
    if (getenv("SIM_VERBOSE"))
        fprintf(stderr,
                "%ju steps, %ju requests (%ju answers, %ju errors, %ju undone), %ju packets, "
                "%ju links added, %ju waited, %ju of them withdrawn, %ju failed, "
                "%ju spares given, %ju publishers had to wait, %ju waits for a lack, "
                "%ju former pages, %ju claims pages, %ju groups listed, %ju upgrades, %ju queues "
                "taken from workers, "
                "%ju daemons more, %ju refusals\n",
                n_steps, totals[0], totals[3], totals[2], totals[1], totals[5], totals[6],
                totals[7], totals[14], totals[4], totals[16], totals[17], totals[18], totals[19],
                totals[20], totals[21], totals[22], totals[23], totals[8], n_fired);
}

int main(void)
{
#if defined(__SANITIZE_THREAD__)
    puts("SKIP: the simulation is single-threaded: nothing for thread sanitizer to see");
    return 0;
#endif
    TCase *tcase = tcase_create("schedules");
    tcase_set_timeout(tcase, 600);
    return dlx_test_run_case(tcase);
}
