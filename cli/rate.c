/* SPDX-License-Identifier: Apache-2.0 */

/* Times, ages and sizes of the newest messages: rates, means and percentiles. */

#include "cli/rate.h"
#include <dlx/error.h>
#include <math.h>
#include <stdlib.h>

struct sample {
    int64_t now_ns, age_ns; /* now_ns UNTIMED: neither is known */
    uint64_t bytes;
};

#define UNTIMED INT64_MIN

struct rate {
    struct sample *samples; /* a ring, which grows until it is as large as the window */
    int64_t *ages;          /* to sort */
    size_t window, n_allocated, next;
    uint64_t n, bytes;
};

int rate_new(struct rate **ret, size_t window)
{
    struct rate *r = calloc(1, sizeof *r);
    if (!r)
        return DLX_E_NO_MEMORY;
    r->window = window;
    *ret = r;
    return 0;
}

struct rate *rate_free(struct rate *r)
{
    if (!r)
        return NULL;
    free(r->samples);
    free(r->ages);
    free(r);
    return NULL;
}

static int grow(struct rate *r)
{
    size_t n = r->n_allocated ? r->n_allocated * 2 : 64;
    n = n < r->window ? n : r->window;
    struct sample *samples = reallocarray(r->samples, n, sizeof *samples);
    if (samples)
        r->samples = samples;
    int64_t *ages = reallocarray(r->ages, n, sizeof *ages);
    if (ages)
        r->ages = ages;
    if (!samples || !ages)
        return DLX_E_NO_MEMORY;
    r->n_allocated = n;
    return 0;
}

int rate_add(struct rate *r, int64_t now_ns, int64_t age_ns, uint64_t bytes)
{
    if (r->next == r->n_allocated && grow(r) < 0)
        return DLX_E_NO_MEMORY;
    r->samples[r->next] = (struct sample){now_ns, age_ns, bytes};
    r->next = (r->next + 1) % r->window;
    r->n++;
    r->bytes += bytes;
    return 0;
}

int rate_add_untimed(struct rate *r, uint64_t bytes)
{
    return rate_add(r, UNTIMED, 0, bytes);
}

static int compare_numbers(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The smallest age that at least `percent` of the ages do not exceed. */
static int64_t percentile(const int64_t *sorted, size_t n, unsigned percent)
{
    size_t rank = (n * percent + 99) / 100;
    return sorted[rank ? rank - 1 : 0];
}

struct rate_summary rate_summarize(struct rate *r, size_t last)
{
    size_t n = r->n < r->window ? (size_t)r->n : r->window;
    n = n < last ? n : last;
    struct rate_summary s = {.n_messages = r->n, .n_bytes = r->bytes, .n_window = n};
    if (n == 0)
        return s;
    size_t first = (size_t)((r->n - n) % r->window);
    double shortest = INFINITY, longest = 0, mean = 0, squares = 0, bytes = 0;
    const struct sample *before = NULL; /* the timed one */
    size_t n_timed = 0;
    s.bytes_min = UINT64_MAX;
    for (size_t i = 0; i < n; i++) {
        const struct sample *now = &r->samples[(first + i) % r->window];
        s.bytes_min = now->bytes < s.bytes_min ? now->bytes : s.bytes_min;
        s.bytes_max = now->bytes > s.bytes_max ? now->bytes : s.bytes_max;
        s.bytes_mean += ((double)now->bytes - s.bytes_mean) / (double)(i + 1);
        if (now->now_ns == UNTIMED)
            continue;
        const struct sample *last_timed = before;
        before = now;
        r->ages[n_timed++] = now->age_ns;
        if (!last_timed)
            continue;
        double interval = (double)(now->now_ns - last_timed->now_ns), delta = interval - mean;
        mean += delta / (double)(n_timed - 1); /* Welford's method */
        squares += delta * (interval - mean);
        shortest = interval < shortest ? interval : shortest;
        longest = interval > longest ? interval : longest;
        bytes += (double)now->bytes;
    }
    s.n_timed = n_timed;
    if (n_timed == 0)
        return s;
    qsort(r->ages, n_timed, sizeof *r->ages, compare_numbers);
    s.age_p50_ns = percentile(r->ages, n_timed, 50);
    s.age_p99_ns = percentile(r->ages, n_timed, 99);
    s.age_max_ns = r->ages[n_timed - 1];
    if (n_timed > 1 && mean > 0) {
        s.mean_hz = 1e9 / mean;
        s.min_hz = 1e9 / longest;
        s.max_hz = shortest > 0 ? 1e9 / shortest : INFINITY;
        s.jitter_ns = sqrt(squares / (double)(n_timed - 1));
        s.bytes_per_s = bytes / (mean * (double)(n_timed - 1)) * 1e9;
    }
    return s;
}
