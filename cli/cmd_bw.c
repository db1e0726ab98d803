/* SPDX-License-Identifier: Apache-2.0 */

/* dlxctl bw: bytes a second and sizes of messages. measure.c receives and times them. */

#include "cli/measure.h"
#include "cli/output.h"
#include <stdio.h>

/* The smallest and the largest size are dropped first, then messages a second. */
static void bw_line(const struct rate_summary *r, unsigned n_dropped, char text[MEASURE_LINE_SIZE])
{
    char bytes[HUMAN_SIZE], number[HUMAN_SIZE], min[HUMAN_SIZE], mean[HUMAN_SIZE], max[HUMAN_SIZE];
    char limits[2 * HUMAN_SIZE + 16] = "", rate[HUMAN_SIZE + 16] = "";
    human_bytes((uint64_t)r->bytes_per_s, bytes);
    human_number(r->mean_hz, number);
    if (n_dropped < 2)
        (void)snprintf(rate, sizeof rate, "  %s messages/s", number);
    human_bytes(r->bytes_min, min);
    human_bytes(r->bytes_max, max);
    if (n_dropped < 1)
        (void)snprintf(limits, sizeof limits, " min %s max %s", min, max);
    human_bytes((uint64_t)r->bytes_mean, mean);
    (void)snprintf(text, MEASURE_LINE_SIZE, "%s/s%s  size mean %s%s", bytes, rate, mean, limits);
}

static void bw_print(const struct rate_summary *r)
{
    char a[HUMAN_SIZE], b[HUMAN_SIZE], c[HUMAN_SIZE];
    if (r->n_timed > 1) {
        human_bytes((uint64_t)r->bytes_per_s, a);
        human_number(r->mean_hz, b);
        printf("  data  %s/s, %s messages/s\n", a, b);
    }
    if (r->n_window > 0) {
        human_bytes((uint64_t)r->bytes_mean, a);
        human_bytes(r->bytes_min, b);
        human_bytes(r->bytes_max, c);
        printf("  size  mean %s  min %s  max %s\n", a, b, c);
    }
}

static json_t *bw_json(const struct rate_summary *r)
{
    json_t *rate = r->n_timed < 2 ? json_null()
                                  : json_pack("{s:f, s:f}", "mean_hz", r->mean_hz, "bytes_per_s",
                                              r->bytes_per_s);
    json_t *size = r->n_window == 0 ? json_null()
                                    : json_pack("{s:f, s:o, s:o}", "mean_bytes", r->bytes_mean,
                                                "min_bytes", output_json_u64(r->bytes_min),
                                                "max_bytes", output_json_u64(r->bytes_max));
    return json_pack("{s:o, s:o}", "rate", rate, "size", size);
}

int cmd_bw(struct cli *cli, int argc, char **argv)
{
    static const struct measure measure = {
        .doc =
            "Measure how many bytes and messages arrive a second, how large the messages are, and "
            "how many were lost. On a terminal a line is rewritten each second; the summary comes "
            "at the end.\vBytes are those of the tensors, of all tensors of a set. This program "
            "does not read them: the messages tell their sizes. With a PATTERN the summary tells "
            "of all topics together, then of each. " CLI_PATTERN_HELP,
        .of_window = "data and size",
        .of_time = "data",
        .line = bw_line,
        .print = bw_print,
        .json = bw_json,
    };
    return measure_run(cli, &measure, argc, argv);
}
