/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_MEASURE_H
#define CLI_MEASURE_H

/** The commands that receive for a while and then sum up: hz and bw differ in the figures. */

#include "cli/cli.h"
#include "cli/rate.h"
#include "cli/stream.h"

#define MEASURE_LINE_SIZE 256
#define MEASURE_DROPS     2

struct measure {
    const char *doc;       /**< for --help */
    const char *of_window; /**< which of the figures are about the last messages only */
    const char *of_time;   /**< which of them leave out messages published before the start */
    /** The line that is shown meanwhile, without topic and losses. `n_dropped` of its fields are
     *  left out, the least important first: at most MEASURE_DROPS. */
    void (*line)(const struct rate_summary *r, unsigned n_dropped, char text[MEASURE_LINE_SIZE]);
    /** The summary's lines on stdout, after the one with messages, bytes and time. */
    void (*print)(const struct rate_summary *r);
    /** The summary as an object, to be added to the common one; NULL: out of memory. */
    json_t *(*json)(const struct rate_summary *r);
};

/** Returns the exit status. */
int measure_run(struct cli *cli, const struct measure *measure, int argc, char **argv);

#endif
