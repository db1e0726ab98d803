/* SPDX-License-Identifier: Apache-2.0 */
#include "resize.h"

#include "util.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const float imagenet_mean[3] = {0.485f, 0.456f, 0.406f};
const float imagenet_std[3] = {0.229f, 0.224f, 0.225f};

struct resize {
    uint32_t width; /* of the frame */
    uint32_t side;
    uint32_t square; /* side of the part that is used */
    uint32_t x0, y0; /* where it begins */
    uint32_t n_taps;
    uint32_t *first; /* side: the first source pixel of each target pixel */
    float *weights;  /* side x n_taps, zero where a tap is not needed; each row sums to 1 */
    float *narrow;   /* square x side x 3: rows after the horizontal pass */
};

void resize_new(struct resize **ret, uint32_t width, uint32_t height, uint32_t side)
{
    struct resize *r = ex_malloc(1, sizeof *r);

    r->width = width;
    r->side = side;
    r->square = width < height ? width : height;
    r->x0 = (width - r->square) / 2;
    r->y0 = (height - r->square) / 2;
    double step = (double)r->square / side;
    double reach = step > 1 ? step : 1;
    r->n_taps = (uint32_t)ceil(reach) * 2 + 1;
    if (r->n_taps > r->square)
        r->n_taps = r->square;
    r->first = ex_malloc(side, sizeof *r->first);
    r->weights = ex_malloc((size_t)side * r->n_taps, sizeof *r->weights);
    r->narrow = ex_malloc((size_t)r->square * side, 3 * sizeof *r->narrow);
    for (uint32_t i = 0; i < side; i++) {
        double centre = (i + 0.5) * step, sum = 0;
        double first = fmax(0, floor(centre - reach));
        r->first[i] = (uint32_t)fmin(first, r->square - r->n_taps);
        float *weights = r->weights + (size_t)i * r->n_taps;
        for (uint32_t k = 0; k < r->n_taps; k++) {
            double distance = fabs(r->first[i] + k + 0.5 - centre) / reach;
            weights[k] = (float)fmax(0, 1 - distance);
            sum += (double)weights[k];
        }
        for (uint32_t k = 0; k < r->n_taps; k++)
            weights[k] = (float)((double)weights[k] / sum);
    }
    *ret = r;
}

struct resize *resize_free(struct resize *r)
{
    if (r) {
        free(r->first);
        free(r->weights);
        free(r->narrow);
        free(r);
    }
    return NULL;
}

static void narrow_row(const struct resize *r, const uint8_t *rgb, float *out)
{
    for (uint32_t x = 0; x < r->side; x++, out += 3) {
        const uint8_t *in = rgb + (size_t)r->first[x] * 3;
        const float *weights = r->weights + (size_t)x * r->n_taps;
        float red = 0, green = 0, blue = 0;
        for (uint32_t k = 0; k < r->n_taps; k++, in += 3) {
            red += weights[k] * in[0];
            green += weights[k] * in[1];
            blue += weights[k] * in[2];
        }
        out[0] = red;
        out[1] = green;
        out[2] = blue;
    }
}

void resize_run(struct resize *r, const uint8_t *rgb, float *planes)
{
    size_t row = (size_t)r->side * 3, plane = (size_t)r->side * r->side;

    for (uint32_t y = 0; y < r->square; y++)
        narrow_row(r, rgb + ((size_t)(r->y0 + y) * r->width + r->x0) * 3, r->narrow + y * row);
    for (uint32_t y = 0; y < r->side; y++) {
        const float *weights = r->weights + (size_t)y * r->n_taps;
        for (uint32_t channel = 0; channel < 3; channel++) {
            float scale = 1 / (255 * imagenet_std[channel]);
            float shift = -imagenet_mean[channel] / imagenet_std[channel];
            float *out = planes + channel * plane + (size_t)y * r->side;
            const float *in = r->narrow + r->first[y] * row + channel;
            for (uint32_t x = 0; x < r->side; x++) {
                float sum = 0;
                for (uint32_t k = 0; k < r->n_taps; k++)
                    sum += weights[k] * in[k * row + x * 3];
                out[x] = sum * scale + shift;
            }
        }
    }
}
