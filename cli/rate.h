/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_RATE_H
#define CLI_RATE_H

/** Intervals, sizes and ages of the last messages, and their summary. Pure, no clock. */

#include <stddef.h>
#include <stdint.h>

struct rate;

struct rate_summary {
    uint64_t n_messages; /**< in all */
    uint64_t n_bytes;    /**< likewise */
    uint64_t n_window;   /**< the last ones, that all below is about */
    uint64_t n_timed;    /**< of them: those that rates and ages are about */
    double mean_hz;      /**< 0 with fewer than two timed ones, like all of the next four */
    double min_hz, max_hz;
    double jitter_ns; /**< standard deviation of the intervals */
    double bytes_per_s;
    uint64_t bytes_min, bytes_max; /**< of a message; 0 without one, like all that follow */
    double bytes_mean;
    int64_t age_p50_ns, age_p99_ns, age_max_ns;
};

/** Returns 0 or DLX_E_NO_MEMORY. */
int rate_new(struct rate **ret, size_t window);
struct rate *rate_free(struct rate *r);

/** A message of so many bytes came at `now_ns`, so old. Returns 0 or DLX_E_NO_MEMORY. */
int rate_add(struct rate *r, int64_t now_ns, int64_t age_ns, uint64_t bytes);

/** A message came that was published before the measurement: it counts for sizes, but not for rates
 *  and ages. Returns 0 or DLX_E_NO_MEMORY. */
int rate_add_untimed(struct rate *r, uint64_t bytes);

/** Over the last `last` messages of the window; the time that it takes grows with their number. */
struct rate_summary rate_summarize(struct rate *r, size_t last);
#define RATE_WINDOW SIZE_MAX /**< all of the window */

#endif
