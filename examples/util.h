/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_EXAMPLES_UTIL_H
#define DLX_EXAMPLES_UTIL_H

/* What the programs of the demo share: how they end, how they measure and how they report. */

#include <dlx/dlx.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/** Print "PROGRAM: text" and end with status 1. */
void ex_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/** Nothing when `r` is 0; else print what failed, in libdlx's words, and end with status 1. */
void ex_check(int r, const char *what);

/** Let SIGINT and SIGTERM end the program's loop: ex_stopped() says whether one came. */
void ex_catch_signals(void);
bool ex_stopped(void);

uint64_t ex_now_ns(void);
void ex_sleep_until_ns(uint64_t monotonic_ns);

void *ex_malloc(size_t n, size_t size);

/** Nothing if the CPU can read the tensor's memory; else say that `topic` is on a GPU, and end with
 * status 1. */
void ex_check_cpu(const DLTensor *t, const char *topic);

/** One option of the command line: `--name`, with its help, and where its value goes. */
struct ex_option {
    const char *name;
    const char *help;
    const char **text; /**< either any text */
    uint32_t *number;  /**< or a number from 1 to `max` */
    uint32_t max;
};

/**
 * Read the options, the last of which has no name; returns the index of the first argument after
 * them. Prints the usage and ends the program on --help (status 0) and on a mistake (status 2), and
 * having fewer than `n_arguments` is one.
 */
int ex_parse(int argc, char **argv, const char *usage, const struct ex_option *options,
             int n_arguments);

/** One-way latencies of one hop, all of them. Start with zeroes. */
struct ex_latency {
    uint64_t *ns;
    size_t n;
    size_t n_allocated;
};

void ex_latency_add(struct ex_latency *l, uint64_t ns);

/** Percentile `p` (0 to 100) in microseconds, 0 when there is none. Sorts. */
double ex_latency_us(struct ex_latency *l, double p);
void ex_latency_deinit(struct ex_latency *l);

/** "key=value" lines for demo.sh; path NULL: standard output. */
FILE *ex_report_open(const char *path);
void ex_report_close(FILE *f);

/** The lines of a publisher and of a subscription, from libdlx's own counters. */
void ex_report_publisher(FILE *f, struct dlx_publisher *p, double seconds);
void ex_report_subscription(FILE *f, struct dlx_subscription *s, double seconds,
                            struct ex_latency *l);

#endif
