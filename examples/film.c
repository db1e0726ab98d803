/* SPDX-License-Identifier: Apache-2.0 */
#include "film.h"

#include "util.h"

#include <math.h>
#include <stdlib.h>

/* Weights of the bilinear filter are 1/256ths. */
#define ONE 256u

struct film {
    const struct picture *photos;
    size_t n_photos;
    uint32_t width;
    uint32_t height;
    double seconds_per_photo;
    uint32_t *left;   /* for each column of the frame: where its left neighbour begins, in bytes */
    uint32_t *weight; /* and how much its right neighbour counts */
    uint16_t *row;    /* two rows of the photograph, blended */
};

void film_new(struct film **ret, const struct picture *photos, size_t n_photos, uint32_t width,
              uint32_t height, double seconds_per_photo)
{
    struct film *f = ex_malloc(1, sizeof *f);
    uint32_t widest = 1;

    for (size_t i = 0; i < n_photos; i++)
        if (photos[i].width > widest)
            widest = photos[i].width;
    f->photos = photos;
    f->n_photos = n_photos;
    f->width = width;
    f->height = height;
    f->seconds_per_photo = seconds_per_photo;
    f->left = ex_malloc(width, sizeof *f->left);
    f->weight = ex_malloc(width, sizeof *f->weight);
    f->row = ex_malloc((size_t)widest + 1, 3 * sizeof *f->row);
    *ret = f;
}

struct film *film_free(struct film *f)
{
    if (f) {
        free(f->left);
        free(f->weight);
        free(f->row);
        free(f);
    }
    return NULL;
}

struct view {
    double x, y, width, height; /* the part of the photograph that is shown, in its pixels */
};

/* From one side to the other and from far to near, in a direction of its own for each photograph.
 */
static struct view view_at(const struct film *f, const struct picture *photo, size_t n, double t)
{
    double aspect = (double)f->width / f->height;
    double width = photo->width, height = photo->height;
    struct view v;

    if (width > height * aspect)
        width = height * aspect;
    else
        height = width / aspect;
    double smooth = t * t * (3 - 2 * t);
    double zoom = n % 2 ? 0.78 + 0.2 * smooth : 0.98 - 0.2 * smooth;
    v.width = width * zoom;
    v.height = height * zoom;
    double across = n % 4 < 2 ? smooth : 1 - smooth;
    double down = n % 3 == 0 ? 1 - smooth : n % 3 == 1 ? smooth : 0.5;
    v.x = (photo->width - v.width) * across;
    v.y = (photo->height - v.height) * down;
    return v;
}

static uint32_t clamp(double value, uint32_t max)
{
    if (value <= 0)
        return 0;
    return value < max ? (uint32_t)value : max;
}

static void blend_rows(const struct film *f, const struct picture *photo, double y)
{
    double floor_y = floor(y);
    uint32_t upper = clamp(floor_y, photo->height - 1);
    uint32_t lower = clamp(floor_y + 1, photo->height - 1);
    uint32_t weight = (uint32_t)((y - floor_y) * ONE);
    const uint8_t *a = photo->rgb + (size_t)upper * photo->width * 3;
    const uint8_t *b = photo->rgb + (size_t)lower * photo->width * 3;
    uint32_t n = photo->width * 3;

    for (uint32_t i = 0; i < n; i++)
        f->row[i] = (uint16_t)(a[i] * (ONE - weight) + b[i] * weight);
    for (uint32_t i = n; i < n + 3; i++)
        f->row[i] = f->row[i - 3]; /* the right neighbour of the last pixel */
}

void film_draw(struct film *f, double seconds, uint8_t *rgb)
{
    double position = seconds / f->seconds_per_photo;
    size_t n = (size_t)position;
    const struct picture *photo = &f->photos[n % f->n_photos];
    struct view v = view_at(f, photo, n, position - floor(position));

    for (uint32_t x = 0; x < f->width; x++) {
        double at = v.x + (x + 0.5) * v.width / f->width - 0.5;
        double floor_at = floor(at);
        f->left[x] = clamp(floor_at, photo->width - 1) * 3;
        f->weight[x] = at < 0 ? 0 : (uint32_t)((at - floor_at) * ONE);
    }
    for (uint32_t y = 0; y < f->height; y++) {
        blend_rows(f, photo, v.y + (y + 0.5) * v.height / f->height - 0.5);
        for (uint32_t x = 0; x < f->width; x++, rgb += 3) {
            const uint16_t *p = f->row + f->left[x];
            uint32_t right = f->weight[x], left = ONE - right;
            for (uint32_t i = 0; i < 3; i++)
                rgb[i] = (uint8_t)((p[i] * left + p[i + 3] * right) >> 16);
        }
    }
}
