/* SPDX-License-Identifier: Apache-2.0 */

/* Histograms of tensors, as text. */

#include "cli/histogram.h"
#include "cli/output.h"
#include "cli/tensor.h"
#include "cli/value.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* So many values are read, at most. */
#define VALUES_MAX UINT64_C(2000000)

/* ---- counting -------------------------------------------------------------------------------- */

struct reading {
    const DLTensor *tensor;
    bool compact;
    uint64_t n, n_read;
};

/* Value `i` of those that are read. */
static double value_of(const struct reading *r, uint64_t i)
{
    double number = (double)NAN;
    uint64_t at = i * (r->n / r->n_read) + i * (r->n % r->n_read) / r->n_read;
    const DLTensor *t = r->tensor;
    if (r->compact)
        (void)value_number(t->dtype, tensor_data(t), at, &number);
    else
        (void)value_number(t->dtype, tensor_item(t, at / t->dtype.lanes), at % t->dtype.lanes,
                           &number);
    return number;
}

static void find_ends(struct histogram *h, const struct reading *r)
{
    uint64_t n_finite = 0;
    h->min = h->max = h->mean = (double)NAN;
    for (uint64_t i = 0; i < r->n_read; i++) {
        double value = value_of(r, i);
        if (isnan(value)) {
            h->n_nan++;
        } else if (isinf(value)) {
            h->n_inf++;
        } else {
            h->min = fmin(h->min, value); /* of NaN and a number, the number */
            h->max = fmax(h->max, value);
            h->mean = n_finite++ == 0 ? value : h->mean + (value - h->mean) / (double)n_finite;
        }
    }
}

static void set_bins(struct histogram *h, uint32_t n_bins)
{
    if (n_bins > HISTOGRAM_BINS_MAX)
        n_bins = HISTOGRAM_BINS_MAX;
    if (isnan(h->min))
        return;
    h->n_bins = h->max > h->min ? n_bins : 1;
    /* halves, since the difference may be infinite */
    h->width = (h->max / 2 - h->min / 2) / h->n_bins * 2;
    if (h->integers && h->n_bins > 1) {
        h->width = ceil((h->max - h->min + 1) / n_bins);
        h->n_bins = (uint32_t)fmin(floor((h->max - h->min) / h->width) + 1, n_bins);
    }
}

static void fill_bins(struct histogram *h, const struct reading *r)
{
    for (uint64_t i = 0; h->n_bins > 0 && i < r->n_read; i++) {
        double value = value_of(r, i);
        if (!isfinite(value))
            continue;
        double bin = h->width > 0 ? (value / 2 - h->min / 2) / (h->width / 2) : 0;
        h->bins[(size_t)fmin(fmax(bin, 0), h->n_bins - 1)]++;
    }
}

int histogram_count(struct histogram *h, const DLTensor *t, uint32_t n_bins, struct cli_error *e)
{
    struct reading r = {.tensor = t, .compact = tensor_is_compact(t)};
    uint64_t size = 0;
    double number = 0;
    *h = (struct histogram){.integers = t->dtype.code == kDLInt || t->dtype.code == kDLUInt ||
                                        t->dtype.code == kDLBool};
    if (!value_number(t->dtype, (uint64_t[4]){0}, 0, &number))
        return cli_fail(e, DLX_E_INVALID, "its values are not numbers");
    if (!tensor_is_readable(t) || !tensor_size(t, &r.n, &size))
        return cli_fail(e, DLX_E_INVALID, "it is not readable here");
    r.n *= t->dtype.lanes; /* fits: bytes do */
    if (r.n == 0)
        return cli_fail(e, DLX_E_INVALID, "it has no values");
    r.n_read = r.n < VALUES_MAX ? r.n : VALUES_MAX;
    h->n = r.n;
    h->n_read = r.n_read;
    find_ends(h, &r);
    set_bins(h, n_bins);
    fill_bins(h, &r);
    return 0;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Where a bin begins. */
static int bin_label(const struct histogram *h, uint32_t i, char text[HUMAN_SIZE])
{
    double value = h->min + i * h->width;
    return snprintf(text, HUMAN_SIZE, h->integers ? "%.15g" : "%.4g", value == 0 ? 0 : value);
}

static void print_bar(FILE *file, double columns, bool blocks)
{
    static const char *const eighths[] = {"",       "\u258f", "\u258e", "\u258d",
                                          "\u258c", "\u258b", "\u258a", "\u2589"};
    unsigned whole = (unsigned)columns;
    for (unsigned i = 0; i < whole; i++)
        (void)fputs(blocks ? "\u2588" : "#", file);
    if (blocks)
        (void)fputs(eighths[(size_t)((columns - whole) * 8)], file);
}

void histogram_print(FILE *file, const struct histogram *h, unsigned columns, bool blocks)
{
    char label[HUMAN_SIZE], count[HUMAN_SIZE];
    int label_width = 0, count_width = 0;
    uint64_t most = 1;
    for (uint32_t i = 0; i < h->n_bins; i++) {
        int width = bin_label(h, i, label);
        label_width = width > label_width ? width : label_width;
        most = h->bins[i] > most ? h->bins[i] : most;
    }
    count_width = snprintf(count, sizeof count, "%" PRIu64, most);
    int bar = (int)columns - label_width - count_width - 3;
    for (uint32_t i = 0; i < h->n_bins; i++) {
        (void)bin_label(h, i, label);
        (void)fprintf(file, "%*s %*" PRIu64 " ", label_width, label, count_width, h->bins[i]);
        if (bar > 0 && h->bins[i] > 0) /* one that is not empty is seen */
            print_bar(file, fmax((double)h->bins[i] / (double)most * bar, blocks ? 0.125 : 1),
                      blocks);
        (void)fputc('\n', file);
    }
}
