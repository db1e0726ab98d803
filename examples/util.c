/* SPDX-License-Identifier: Apache-2.0 */
#include "util.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static volatile sig_atomic_t stopped;

void ex_fail(const char *format, ...)
{
    va_list args;

    fprintf(stderr, "%s: ", program_invocation_short_name);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

void ex_check(int r, const char *what)
{
    if (r == DLX_OK)
        return;
    const char *words = dlx_errmsg();
    ex_fail("%s: %s", what, words[0] ? words : dlx_strerror(r));
}

static void on_signal(int signal_number)
{
    (void)signal_number;
    stopped = 1;
}

void ex_catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

bool ex_stopped(void)
{
    return stopped != 0;
}

void ex_check_cpu(const DLTensor *t, const char *topic)
{
    if (t->device.device_type != kDLCPU)
        ex_fail("%s carries tensors on a GPU (DLPack device type %d), which this program does not "
                "read: publish them in memory of the CPU",
                topic, (int)t->device.device_type);
}

uint64_t ex_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void ex_sleep_until_ns(uint64_t monotonic_ns)
{
    struct timespec t = {
        .tv_sec = (time_t)(monotonic_ns / 1000000000u),
        .tv_nsec = (long)(monotonic_ns % 1000000000u),
    };

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR && !stopped)
        continue;
}

void *ex_malloc(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size ? size : 1);

    if (!p)
        ex_fail("out of memory: %zu x %zu bytes", n, size);
    return p;
}

static void print_usage(FILE *f, const char *usage, const struct ex_option *options)
{
    fprintf(f, "usage: %s %s\n", program_invocation_short_name, usage);
    for (const struct ex_option *o = options; o->name; o++) {
        fprintf(f, "  --%-12s %s", o->name, o->help);
        if (o->number)
            fprintf(f, " (%" PRIu32 ")", *o->number);
        else if (*o->text)
            fprintf(f, " (%s)", *o->text);
        fputc('\n', f);
    }
}

static void bad_usage(const char *usage, const struct ex_option *options)
{
    print_usage(stderr, usage, options);
    exit(2);
}

int ex_parse(int argc, char **argv, const char *usage, const struct ex_option *options,
             int n_arguments)
{
    int i = 1;

    for (; i < argc && !strncmp(argv[i], "--", 2); i++) {
        const struct ex_option *o = options;
        if (!strcmp(argv[i], "--help")) {
            print_usage(stdout, usage, options);
            exit(0);
        }
        while (o->name && strcmp(o->name, argv[i] + 2))
            o++;
        if (!o->name || i + 1 == argc)
            bad_usage(usage, options);
        const char *value = argv[++i];
        if (o->text) {
            *o->text = value;
            continue;
        }
        char *end;
        errno = 0;
        unsigned long number = strtoul(value, &end, 10);
        if (errno || end == value || *end || number < 1 || number > o->max)
            ex_fail("--%s takes a number from 1 to %" PRIu32 ", not '%s'", o->name, o->max, value);
        *o->number = (uint32_t)number;
    }
    if (argc - i < n_arguments)
        bad_usage(usage, options);
    return i;
}

void ex_latency_add(struct ex_latency *l, uint64_t ns)
{
    if (l->n == l->n_allocated) {
        size_t n_wanted = l->n_allocated ? l->n_allocated * 2 : 1024;
        uint64_t *grown = realloc(l->ns, n_wanted * sizeof *grown);
        if (!grown)
            ex_fail("out of memory: %zu latencies", n_wanted);
        l->ns = grown;
        l->n_allocated = n_wanted;
    }
    l->ns[l->n++] = ns;
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

double ex_latency_us(struct ex_latency *l, double p)
{
    if (!l->n)
        return 0;
    qsort(l->ns, l->n, sizeof *l->ns, compare);
    size_t i = (size_t)((double)(l->n - 1) * p / 100 + 0.5);
    return (double)l->ns[i] / 1e3;
}

void ex_latency_deinit(struct ex_latency *l)
{
    free(l->ns);
    memset(l, 0, sizeof *l);
}

FILE *ex_report_open(const char *path)
{
    if (!path)
        return stdout;
    FILE *f = fopen(path, "we");
    if (!f)
        ex_fail("%s: %s", path, strerror(errno));
    return f;
}

void ex_report_close(FILE *f)
{
    if (f == stdout ? fflush(f) : fclose(f))
        ex_fail("writing the report: %s", strerror(errno));
}

void ex_report_publisher(FILE *f, struct dlx_publisher *p, double seconds)
{
    struct dlx_publisher_stats stats = {.size = sizeof stats};

    ex_check(dlx_publisher_get_stats(p, &stats), "publisher statistics");
    fprintf(f, "published=%" PRIu64 "\n", stats.published);
    fprintf(f, "published_bytes=%" PRIu64 "\n", stats.published_bytes);
    fprintf(f, "copied_bytes=%" PRIu64 "\n", stats.copied_bytes);
    fprintf(f, "arena_bytes=%" PRIu64 "\n", stats.arena_bytes);
    fprintf(f, "publish_rate=%.1f\n", seconds > 0 ? (double)stats.published / seconds : 0);
}

void ex_report_subscription(FILE *f, struct dlx_subscription *s, double seconds,
                            struct ex_latency *l)
{
    struct dlx_subscription_stats stats = {.size = sizeof stats};

    ex_check(dlx_subscription_get_stats(s, &stats), "subscription statistics");
    fprintf(f, "taken=%" PRIu64 "\n", stats.taken);
    fprintf(f, "lost=%" PRIu64 "\n", stats.lost);
    fprintf(f, "skipped=%" PRIu64 "\n", stats.skipped);
    fprintf(f, "take_rate=%.1f\n", seconds > 0 ? (double)stats.taken / seconds : 0);
    fprintf(f, "latency_p50_us=%.1f\n", ex_latency_us(l, 50));
    fprintf(f, "latency_p99_us=%.1f\n", ex_latency_us(l, 99));
}
