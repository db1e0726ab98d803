/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_TRACE_REPORT_H
#define CLI_TRACE_REPORT_H

/** What a trace has counted, by topic, in text and as JSON. */

#include "cli/trace.h"
#include "cli/trace_names.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/** A program that ended, or executed another one, while it held messages. */
struct trace_exit {
    uint32_t pid;
    char program[64]; /**< of the daemon's list, or as the kernel calls it */
    char topic[TRACE_TOPIC_SIZE];
    uint64_t n;      /**< messages of the topic that it held */
    int64_t held_ns; /**< the oldest of them; -1: since before the trace */
    bool is_exec;
};

struct trace_report;

/** NULL: out of memory. */
struct trace_report *trace_report_new(void);
struct trace_report *trace_report_free(struct trace_report *r);

/** Returns 0 or DLX_E_NO_MEMORY. */
int trace_report_add_exit(struct trace_report *r, const struct trace_exit *exit);

/** "camera (pid 12) ended while it held 2 messages of cam/front, the oldest for 1.2 s". */
void trace_report_print_exit(const struct trace_exit *exit, FILE *file);

/** Counts what belongs to these topics. `topic` is of `userdata`: is it one that was asked for?
 *  Called once, at the end. Returns 0 or DLX_E_NO_MEMORY. */
typedef bool (*trace_report_wants_fn)(const char *topic, void *userdata);
int trace_report_fill(struct trace_report *r, const struct trace *t,
                      const struct trace_names *names, trace_report_wants_fn wants, void *userdata);

/** Was anything counted? */
bool trace_report_is_empty(const struct trace_report *r);

int trace_report_print(const struct trace_report *r, FILE *file);
/** NULL: out of memory. */
json_t *trace_report_json(const struct trace_report *r, int64_t duration_ns);

#endif
