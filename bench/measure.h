/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_BENCH_MEASURE_H
#define DLX_BENCH_MEASURE_H

/*
 * What the benchmark programs share. Each program measures one thing once and prints one flat JSON
 * object; bench/run alternates programs, repeats them and compares.
 */

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* ---- program ------------------------------------------------------------------------------- */

/** Remember the arguments ("--name value" pairs) and line-buffer the output. Call it first. */
void bm_init(int argc, char **argv);

/** The value of an option, or its default. */
long bm_long(const char *name, long fallback);
const char *bm_text(const char *name, const char *fallback);

void bm_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/** Ends the program, naming `what` and errno, if `r` is negative. */
void bm_check_errno(long r, const char *what);

/** Run this process on the first (0) or second (1) of the CPUs `--cpus A,B`. */
void bm_pin(int which);

/** Fork; the child dies with its parent. Returns as fork() does. */
pid_t bm_fork(void);

/** Wait for a child that must end with status 0. */
void bm_wait(pid_t pid);

/**
 * A place where the two processes wait for each other, in memory of bm_shared(): before
 * dlx_subscribe(), say, for the publisher, which is then attached when it returns.
 */
struct bm_meeting {
    _Atomic int n_arrived;
};
void bm_meet(struct bm_meeting *m);

/** Wait until the main thread of a process sleeps, 100 ms at most: then what it waits for cannot
 * come before it waits. */
void bm_await_sleep(pid_t pid);

/** A zeroed page-aligned anonymous mapping that parent and children share. */
void *bm_shared(size_t size);

/* ---- time ---------------------------------------------------------------------------------- */

uint64_t bm_now_ns(void);

/** The time stamp counter where there is one (about 10 ns a reading), else bm_now_ns(). */
static inline uint64_t bm_ticks(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t t;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(t));
    return t;
#else
    return bm_now_ns();
#endif
}

/**
 * A series of stamps, a pair of neighbours a sample. Allocated and touched beforehand, calibrated
 * against CLOCK_MONOTONIC over the whole series.
 */
struct bm_series {
    uint64_t *ticks;
    size_t n;
    size_t n_max;
    uint64_t start_ns;
};

void bm_series_init(struct bm_series *s, size_t n_max);

/** Call it where the measured run begins: it takes the first stamp. */
void bm_series_start(struct bm_series *s);

static inline void bm_series_stamp(struct bm_series *s)
{
    s->ticks[s->n++] = bm_ticks();
}

struct bm_summary {
    double p50_ns, p99_ns, p999_ns, min_ns, mean_ns;
    size_t n;
};

/** Summary of the differences between neighbours, each divided by `divide_by`. Frees the series. */
struct bm_summary bm_series_end(struct bm_series *s, double divide_by);

/** Summary of plain values in nanoseconds; sorts them. */
struct bm_summary bm_summary_of(double *ns, size_t n);

/* ---- output -------------------------------------------------------------------------------- */

/** One object on one line: begin, any number of values, end. */
void bm_json_begin(void);
void bm_json_number(const char *name, double value);
void bm_json_text(const char *name, const char *value);
void bm_json_summary(const struct bm_summary *s);
void bm_json_end(void);

#endif
