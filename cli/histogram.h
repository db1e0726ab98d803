/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_HISTOGRAM_H
#define CLI_HISTOGRAM_H

/** How the values of a tensor are spread. */

#include "cli/error.h"
#include <dlx/dlx.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define HISTOGRAM_BINS_MAX 64U

struct histogram {
    double min, max, mean; /**< of the finite values; NaN if there are none */
    uint64_t n, n_read;    /**< values of the tensor, and how many of them were read */
    uint64_t n_nan, n_inf; /**< of those */
    bool integers;         /**< the type has no fractions */
    uint32_t n_bins;       /**< 0: no value is finite */
    double width;          /**< of a bin; the last one includes its upper end */
    uint64_t bins[HISTOGRAM_BINS_MAX];
};

/**
 * Count the values of a tensor that the host can read, at most 2 million of them, evenly spaced, in
 * up to `n_bins` bins of the same width. Bins of integers are whole numbers wide. Complex numbers
 * count by their magnitude. Returns 0; DLX_E_INVALID: it cannot be read, has no values, or its
 * values are no numbers.
 */
int histogram_count(struct histogram *h, const DLTensor *t, uint32_t n_bins, struct cli_error *e);

/** Print a line for each bin: where it begins, a bar, and how many values it has. `blocks`: bars
 *  are drawn by eighths of a block, else by '#'. */
void histogram_print(FILE *file, const struct histogram *h, unsigned columns, bool blocks);

#endif
