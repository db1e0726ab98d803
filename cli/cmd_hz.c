/* SPDX-License-Identifier: Apache-2.0 */

/* dlxctl hz: rate, jitter and age of messages. measure.c receives and times them. */

#include "cli/measure.h"
#include "cli/output.h"
#include <math.h>
#include <stdio.h>

/* Jitter is dropped first, then bytes a second. */
static void hz_line(const struct rate_summary *r, unsigned n_dropped, char text[MEASURE_LINE_SIZE])
{
    char mean[HUMAN_SIZE], p50[HUMAN_SIZE], p99[HUMAN_SIZE], number[HUMAN_SIZE];
    char jitter[HUMAN_SIZE + 16] = "", bytes[HUMAN_SIZE + 16] = "";
    human_number(r->mean_hz, mean);
    human_ns((int64_t)r->jitter_ns, number);
    if (n_dropped < 1)
        (void)snprintf(jitter, sizeof jitter, "  jitter %s", number);
    human_bytes((uint64_t)r->bytes_per_s, number);
    if (n_dropped < 2)
        (void)snprintf(bytes, sizeof bytes, "  %s/s", number);
    human_ns(r->age_p50_ns, p50);
    human_ns(r->age_p99_ns, p99);
    (void)snprintf(text, MEASURE_LINE_SIZE, "%s/s%s%s  age p50 %s p99 %s", mean, jitter, bytes, p50,
                   p99);
}

static void hz_print(const struct rate_summary *r)
{
    char a[HUMAN_SIZE], b[HUMAN_SIZE], c[HUMAN_SIZE], d[HUMAN_SIZE];
    if (r->n_timed > 1) {
        human_number(r->mean_hz, a);
        human_number(r->min_hz, b);
        human_number(r->max_hz, c);
        human_ns((int64_t)r->jitter_ns, d);
        printf("  rate  mean %s/s  min %s/s  max %s/s  jitter %s\n", a, b, c, d);
        human_bytes((uint64_t)r->bytes_per_s, a);
        printf("  data  %s/s\n", a);
    }
    if (r->n_timed > 0) {
        human_ns(r->age_p50_ns, a);
        human_ns(r->age_p99_ns, b);
        human_ns(r->age_max_ns, c);
        printf("  age   p50 %s  p99 %s  max %s\n", a, b, c);
    }
}

static json_t *hz_json(const struct rate_summary *r)
{
    json_t *rate =
        r->n_timed < 2
            ? json_null()
            : json_pack("{s:f, s:f, s:o, s:f, s:f}", "mean_hz", r->mean_hz, "min_hz", r->min_hz,
                        "max_hz", isfinite(r->max_hz) ? json_real(r->max_hz) : json_null(),
                        "jitter_ns", r->jitter_ns, "bytes_per_s", r->bytes_per_s);
    json_t *age = r->n_timed == 0
                      ? json_null()
                      : json_pack("{s:I, s:I, s:I}", "p50_ns", (json_int_t)r->age_p50_ns, "p99_ns",
                                  (json_int_t)r->age_p99_ns, "max_ns", (json_int_t)r->age_max_ns);
    return json_pack("{s:o, s:o}", "rate", rate, "age", age);
}

int cmd_hz(struct cli *cli, int argc, char **argv)
{
    static const struct measure measure = {
        .doc =
            "Measure how often messages arrive, how evenly, how old they are when they do, and how "
            "many were lost. On a terminal a line is rewritten each second; the summary comes at "
            "the end.\vThe age is from the publisher's time stamp to the moment this program has "
            "the message: it includes waking this program up. With a PATTERN "
            "the summary tells of all topics together, then of each. " CLI_PATTERN_HELP,
        .of_window = "rate, data and age",
        .of_time = "rate, data and age",
        .line = hz_line,
        .print = hz_print,
        .json = hz_json,
    };
    return measure_run(cli, &measure, argc, argv);
}
