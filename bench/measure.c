/* SPDX-License-Identifier: Apache-2.0 */
#include "measure.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int n_arguments;
static char **arguments;
static bool is_first_value;

void bm_init(int argc, char **argv)
{
    n_arguments = argc;
    arguments = argv;
    if (argc % 2 == 0)
        bm_fail("arguments are pairs: --name value");
    setvbuf(stdout, NULL, _IOLBF, 0);
}

const char *bm_text(const char *name, const char *fallback)
{
    for (int i = 1; i + 1 < n_arguments; i += 2)
        if (!strncmp(arguments[i], "--", 2) && !strcmp(arguments[i] + 2, name))
            return arguments[i + 1];
    return fallback;
}

long bm_long(const char *name, long fallback)
{
    const char *text = bm_text(name, NULL);

    if (!text)
        return fallback;
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end)
        bm_fail("--%s takes a number, not '%s'", name, text);
    return value;
}

void bm_fail(const char *format, ...)
{
    va_list args;

    fprintf(stderr, "%s: ", program_invocation_short_name);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

void bm_check_errno(long r, const char *what)
{
    if (r < 0)
        bm_fail("%s: %s", what, strerror(errno));
}

void bm_pin(int which)
{
    const char *cpus = bm_text("cpus", NULL);
    cpu_set_t set;
    int cpu[2];

    if (!cpus)
        return;
    if (sscanf(cpus, "%d,%d", &cpu[0], &cpu[1]) != 2 || cpu[0] < 0 || cpu[1] < 0)
        bm_fail("--cpus takes A,B, not '%s'", cpus);
    CPU_ZERO(&set);
    CPU_SET((unsigned)cpu[which], &set);
    bm_check_errno(sched_setaffinity(0, sizeof set, &set), "sched_setaffinity");
}

pid_t bm_fork(void)
{
    pid_t parent = getpid();
    pid_t pid = fork();

    bm_check_errno(pid, "fork");
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
    }
    return pid;
}

void bm_wait(pid_t pid)
{
    int status;

    bm_check_errno(waitpid(pid, &status, 0), "waitpid");
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        bm_fail("the other process failed (status %#x)", (unsigned)status);
}

void bm_meet(struct bm_meeting *m)
{
    uint64_t deadline_ns = bm_now_ns() + UINT64_C(60000000000);

    /* The first to come waits until the second has; meetings can be held again and again. */
    int n = atomic_fetch_add(&m->n_arrived, 1) + 1;
    while (n % 2 && atomic_load(&m->n_arrived) == n) {
        if (bm_now_ns() > deadline_ns)
            bm_fail("the other process does not come");
        usleep(100);
    }
}

void bm_await_sleep(pid_t pid)
{
    uint64_t deadline_ns = bm_now_ns() + 100000000;
    char path[32], state = 0;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    while (state != 'S' && bm_now_ns() < deadline_ns) {
        FILE *f = fopen(path, "re");
        if (!f || fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
            bm_fail("%s cannot be read", path);
        fclose(f);
    }
}

void *bm_shared(size_t size)
{
    void *p =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

    bm_check_errno(p == MAP_FAILED ? -1 : 0, "mmap");
    return p;
}

uint64_t bm_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void bm_series_init(struct bm_series *s, size_t n_max)
{
    s->n = 0;
    s->n_max = n_max;
    s->ticks = malloc((n_max + 1) * sizeof *s->ticks);
    if (!s->ticks)
        bm_fail("out of memory: %zu stamps", n_max);
    memset(s->ticks, 0xff, (n_max + 1) * sizeof *s->ticks); /* its page faults, now */
}

void bm_series_start(struct bm_series *s)
{
    s->n = 0;
    s->start_ns = bm_now_ns();
    bm_series_stamp(s);
}

struct bm_summary bm_series_end(struct bm_series *s, double divide_by)
{
    uint64_t end_ticks = bm_ticks();
    double elapsed_ns = (double)(bm_now_ns() - s->start_ns);
    double ns_per_tick = elapsed_ns / (double)(end_ticks - s->ticks[0]);
    size_t n = s->n - 1;
    double *ns = malloc((n + 1) * sizeof *ns);

    if (!ns || !n)
        bm_fail("nothing was measured");
    for (size_t i = 0; i < n; i++)
        ns[i] = (double)(s->ticks[i + 1] - s->ticks[i]) * ns_per_tick / divide_by;
    struct bm_summary summary = bm_summary_of(ns, n);
    free(ns);
    free(s->ticks);
    memset(s, 0, sizeof *s);
    return summary;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double percentile(const double *sorted, size_t n, double p)
{
    return sorted[(size_t)((double)(n - 1) * p / 100 + 0.5)];
}

struct bm_summary bm_summary_of(double *ns, size_t n)
{
    struct bm_summary s = {.n = n};

    if (!n)
        bm_fail("nothing was measured");
    qsort(ns, n, sizeof *ns, compare);
    for (size_t i = 0; i < n; i++)
        s.mean_ns += ns[i] / (double)n;
    s.min_ns = ns[0];
    s.p50_ns = percentile(ns, n, 50);
    s.p99_ns = percentile(ns, n, 99);
    s.p999_ns = percentile(ns, n, 99.9);
    return s;
}

void bm_json_begin(void)
{
    putchar('{');
    is_first_value = true;
}

static void json_name(const char *name)
{
    printf("%s\"%s\": ", is_first_value ? "" : ", ", name);
    is_first_value = false;
}

void bm_json_number(const char *name, double value)
{
    json_name(name);
    printf("%.10g", value);
}

void bm_json_text(const char *name, const char *value)
{
    json_name(name);
    printf("\"%s\"", value);
}

void bm_json_summary(const struct bm_summary *s)
{
    bm_json_number("p50_ns", s->p50_ns);
    bm_json_number("p99_ns", s->p99_ns);
    bm_json_number("p999_ns", s->p999_ns);
    bm_json_number("min_ns", s->min_ns);
    bm_json_number("mean_ns", s->mean_ns);
    bm_json_number("n", (double)s->n);
}

void bm_json_end(void)
{
    puts("}");
    fflush(stdout);
}
