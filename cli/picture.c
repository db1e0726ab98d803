/* SPDX-License-Identifier: Apache-2.0 */

/* Pictures of tensors: which items a pixel averages, and which colour the average has. */

#include "cli/picture.h"
#include "cli/dtype.h"
#include "cli/tensor.h"
#include "cli/value.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifndef DLX_NO_PNG
#include <png.h>
#endif

/* A heat map keeps so many rows and columns, if the tensor has them. */
enum { HEAT_MIN = 16, CHANNELS_MAX = 4 };

/* So many positions of a tensor are read, at most. */
#define POSITIONS UINT64_C(2000000)

/* ---- shapes ---------------------------------------------------------------------------------- */

/* A tensor as rows, columns and channels. Strides count values, which are lanes of items. */
struct plane {
    uint64_t height, width;
    uint32_t n_channels;
    int64_t row, column, channel; /* strides */
    bool has_channel;             /* the shape has a size for the channel */
    DLDataType dtype;             /* of one lane */
    const uint8_t *data;
};

static bool is_floating(DLDataType dtype)
{
    return dtype.code == kDLFloat || dtype.code == kDLBfloat;
}

static void set_plane(struct plane *p, const int64_t *shape, const int64_t *strides, int rows,
                      int columns)
{
    p->height = (uint64_t)shape[rows];
    p->width = (uint64_t)shape[columns];
    p->row = strides[rows];
    p->column = strides[columns];
}

/* Sizes and strides in values, with the lanes as a last size. Returns how many there are. */
static int32_t expand_shape(const DLTensor *t, int64_t shape[DTYPE_NDIM_MAX + 1],
                            int64_t strides[DTYPE_NDIM_MAX + 1])
{
    int32_t n = t->ndim;
    int64_t step = t->dtype.lanes;
    bool compact = tensor_is_compact(t);
    shape[n] = t->dtype.lanes;
    strides[n] = 1;
    for (int32_t i = n - 1; i >= 0; i--) {
        shape[i] = t->shape[i];
        strides[i] = compact ? step : shape[i] > 1 ? t->strides[i] * t->dtype.lanes : 0;
        step *= t->shape[i];
    }
    return t->dtype.lanes > 1 ? n + 1 : n;
}

static enum picture_kind find_plane(const DLTensor *t, struct plane *p)
{
    int64_t all_shape[DTYPE_NDIM_MAX + 1], all_strides[DTYPE_NDIM_MAX + 1];
    int64_t *shape = all_shape, *strides = all_strides;
    uint64_t n_items = 0, size = 0;
    double number = 0;
    *p = (struct plane){.n_channels = 1, .dtype = t->dtype};
    p->dtype.lanes = 1;
    if (!tensor_size(t, &n_items, &size) || n_items == 0 ||
        !value_number(p->dtype, (uint64_t[4]){0}, 0, &number))
        return PICTURE_NONE;
    int32_t n = expand_shape(t, shape, strides);
    for (; n > 2 && shape[0] == 1; n--) {
        shape++;
        strides++;
        p->has_channel = true;
    }
    if (n == 3 && shape[2] == 1) {
        n--;
        p->has_channel = true;
    }
    bool floating = is_floating(p->dtype),
         has_range = p->dtype.code == kDLBool || floating ||
                     (p->dtype.code == kDLUInt && p->dtype.bits == 8);
    if (n == 2) {
        set_plane(p, shape, strides, 0, 1);
        return has_range && (p->has_channel || !floating) ? PICTURE_IMAGE : PICTURE_HEAT;
    }
    p->n_channels = 3;
    if (n != 3 || !has_range)
        return PICTURE_NONE;
    if (shape[2] == 3 || shape[2] == 4) {
        set_plane(p, shape, strides, 0, 1);
        p->n_channels = (uint32_t)shape[2];
        p->channel = strides[2];
        return PICTURE_IMAGE;
    }
    if (shape[0] != 3)
        return PICTURE_NONE;
    set_plane(p, shape, strides, 1, 2);
    p->channel = strides[0];
    return PICTURE_IMAGE;
}

enum picture_kind picture_kind_of(const DLTensor *t)
{
    struct plane p;
    return find_plane(t, &p);
}

/* ---- items ----------------------------------------------------------------------------------- */

/* The value that lies `at` values behind the first one. The types that images have come first. */
static double value_at(const struct plane *p, int64_t at)
{
    double number = (double)NAN;
    float f;
    uint16_t half;
    unsigned bits = p->dtype.bits;
    if (bits == 8 && p->dtype.code == kDLUInt)
        return p->data[at];
    if (bits == 32 && p->dtype.code == kDLFloat) {
        memcpy(&f, p->data + at * 4, sizeof f);
        return (double)f;
    }
    if (bits == 16 && p->dtype.code == kDLFloat) {
        memcpy(&half, p->data + at * 2, sizeof half);
        return value_half(half);
    }
    if (bits % 8 == 0)
        (void)value_number(p->dtype, p->data + at * (bits / 8), 0, &number);
    else
        (void)value_number(p->dtype, p->data, (uint64_t)at, &number); /* compact: at >= 0 */
    return number;
}

/* The items of a row or column of the tensor that are read, and the pixel that each belongs to. */
struct axis {
    uint64_t *at;
    uint32_t *pixel;
    size_t n;
};

static void axis_deinit(struct axis *a)
{
    free(a->at);
    free(a->pixel);
}

/* Up to n_each of the items below each pixel. */
static int axis_init(struct axis *a, uint64_t n_items, uint32_t n_pixels, uint64_t n_each)
{
    uint64_t quotient = n_items / n_pixels, rest = n_items % n_pixels;
    if (n_each > quotient + 1)
        n_each = quotient + 1;
    *a = (struct axis){.at = calloc(n_pixels * n_each, sizeof *a->at),
                       .pixel = calloc(n_pixels * n_each, sizeof *a->pixel)};
    if (!a->at || !a->pixel)
        return DLX_E_NO_MEMORY;
    for (uint32_t i = 0; i < n_pixels; i++) {
        uint64_t first = i * quotient + i * rest / n_pixels;
        uint64_t n = (i + 1) * quotient + (i + 1) * rest / n_pixels - first;
        uint64_t n_read = n < n_each ? n : n_each;
        for (uint64_t k = 0; k < n_read; k++) {
            a->at[a->n] = first + k * (n / n_read) + k * (n % n_read) / n_read;
            a->pixel[a->n++] = i;
        }
    }
    return 0;
}

/* ---- averages -------------------------------------------------------------------------------- */

/* One channel of a pixel, while its items are added up. */
struct sum {
    double total; /* of finite values, each times its weight */
    double weight;
    uint32_t n, n_nan, n_above, n_below; /* items, NaN, infinity, -infinity */
};

struct averaging {
    struct plane plane;
    struct picture *picture;
    struct axis rows, columns;
    struct sum *sums; /* of a row of pixels */
    double *values;   /* of all pixels */
};

static void add(struct sum *s, double value, double weight)
{
    s->n++;
    if (isfinite(value)) {
        s->total += value * weight;
        s->weight += weight;
    } else if (isnan(value)) {
        s->n_nan++;
    } else if (value > 0) {
        s->n_above++;
    } else {
        s->n_below++;
    }
}

static double average(const struct sum *s)
{
    if (2 * s->n_nan >= s->n)
        return (double)NAN;
    if (s->weight > 0)
        return s->total / s->weight;
    if (s->n_above + s->n_below > 0)
        return s->n_above >= s->n_below ? (double)INFINITY : (double)-INFINITY;
    return 0; /* all of it is transparent */
}

/* What alpha 255 or 1 is. */
static double alpha_max(const struct plane *p)
{
    return p->dtype.code == kDLUInt ? 255 : 1;
}

/* The weight of a colour is its alpha, since what is transparent has no colour. All weights of a
 * pixel together are less than 1, so that no sum of finite values is infinite. */
static void sum_row(struct averaging *a, uint64_t row)
{
    const struct plane *p = &a->plane;
    double share = ldexp(1, -24), full = alpha_max(p);
    for (size_t i = 0; i < a->columns.n; i++) {
        int64_t at = (int64_t)row * p->row + (int64_t)a->columns.at[i] * p->column;
        struct sum *s = &a->sums[(size_t)a->columns.pixel[i] * p->n_channels];
        double weight = share;
        if (p->n_channels == 4) {
            double alpha = value_at(p, at + 3 * p->channel);
            add(&s[3], alpha, share);
            weight *= alpha > 0 ? fmin(alpha, full) / full : 0;
        }
        uint32_t n = p->n_channels < 3 ? 1 : 3;
        for (uint32_t c = 0; c < n; c++)
            add(&s[c], value_at(p, at + c * p->channel), weight);
    }
}

/* The row of pixels is complete. */
static void end_row(struct averaging *a, uint32_t pixel_row)
{
    struct picture *p = a->picture;
    uint32_t n_channels = a->plane.n_channels;
    size_t n = (size_t)p->width * n_channels;
    double *values = a->values + pixel_row * n;
    for (size_t i = 0; i < n; i++) {
        values[i] = average(&a->sums[i]);
        p->n_nan += a->sums[i].n_nan;
        if (i % n_channels == 3 || !isfinite(values[i]))
            continue;
        p->min = fmin(p->min, values[i]); /* of NaN and a number, the number */
        p->max = fmax(p->max, values[i]);
    }
    memset(a->sums, 0, n * sizeof *a->sums);
}

static void read_plane(struct averaging *a)
{
    for (size_t i = 0; i < a->rows.n; i++) {
        sum_row(a, a->rows.at[i]);
        if (i + 1 == a->rows.n || a->rows.pixel[i + 1] != a->rows.pixel[i])
            end_row(a, a->rows.pixel[i]);
    }
}

/* ---- colours --------------------------------------------------------------------------------- */

/* Where a value is between two others: from 0 to 1. Halves, since differences may be infinite. */
static double place_between(double value, double min, double max)
{
    double range = max / 2 - min / 2, place = value / 2 - min / 2;
    if (!(range > 0))
        return isinf(value) && value > 0 ? 1 : 0;
    return fmin(fmax(place / range, 0), 1);
}

static uint8_t to_byte(double part)
{
    return (uint8_t)lrint(part * 255);
}

/* Viridis at each tenth, and between them on a straight line. */
static void heat_colour(double place, uint8_t rgb[3])
{
    static const uint8_t viridis[11][3] = {
        {0x44, 0x01, 0x54}, {0x48, 0x24, 0x75}, {0x41, 0x44, 0x87}, {0x35, 0x5f, 0x8d},
        {0x2a, 0x78, 0x8e}, {0x21, 0x91, 0x8c}, {0x22, 0xa8, 0x84}, {0x44, 0xbf, 0x70},
        {0x7a, 0xd1, 0x51}, {0xbd, 0xdf, 0x26}, {0xfd, 0xe7, 0x25}};
    int i = place < 1 ? (int)(place * 10) : 9;
    double part = place * 10 - i;
    for (int c = 0; c < 3; c++)
        rgb[c] = (uint8_t)lrint(viridis[i][c] + part * (viridis[i + 1][c] - viridis[i][c]));
}

/* The range that black and white, or the ends of the colours, have. */
static void find_range(const struct averaging *a, double *ret_min, double *ret_max)
{
    struct picture *p = a->picture;
    *ret_min = 0;
    *ret_max = alpha_max(&a->plane);
    p->is_stretched = p->kind == PICTURE_IMAGE && (p->min < *ret_min || p->max > *ret_max);
    if (p->kind == PICTURE_HEAT || p->is_stretched) {
        *ret_min = p->min;
        *ret_max = p->max;
    }
}

static void paint(const struct averaging *a)
{
    static const uint8_t magenta[3] = {0xff, 0, 0xff};
    const struct picture *p = a->picture;
    uint32_t n_values = a->plane.n_channels;
    double min, max;
    find_range(a, &min, &max);
    for (size_t i = 0; i < (size_t)p->width * p->height; i++) {
        const double *values = a->values + i * n_values;
        uint8_t *pixel = p->pixels + i * p->n_channels;
        bool has_nan = false;
        for (uint32_t c = 0; c < 3; c++) {
            double value = values[n_values < 3 ? 0 : c];
            has_nan = has_nan || isnan(value);
            pixel[c] = to_byte(place_between(isnan(value) ? min : value, min, max));
        }
        if (has_nan)
            memcpy(pixel, magenta, sizeof magenta);
        else if (p->kind == PICTURE_HEAT)
            heat_colour(place_between(values[0], min, max), pixel);
        if (n_values == 4)
            pixel[3] = has_nan || isnan(values[3])
                           ? 0xff
                           : to_byte(place_between(values[3], 0, alpha_max(&a->plane)));
    }
}

/* ---- pictures -------------------------------------------------------------------------------- */

/* The tensor's size, made smaller until it fits. */
static void set_size(struct picture *p, const struct plane *plane, uint32_t width, uint32_t height)
{
    double w = (double)plane->width, h = (double)plane->height;
    double scale = fmin(fmin(width / w, height / h), 1);
    double least = p->kind == PICTURE_HEAT ? HEAT_MIN : 1;
    p->width = (uint32_t)fmin(fmax(round(w * scale), fmin(least, w)), width);
    p->height = (uint32_t)fmin(fmax(round(h * scale), fmin(least, h)), height);
}

static int average_and_paint(struct averaging *a)
{
    struct picture *p = a->picture;
    size_t n_values = (size_t)p->width * a->plane.n_channels;
    uint64_t n_pixels = (uint64_t)p->width * p->height, n_each = 1;
    while ((n_each + 1) * (n_each + 1) * n_pixels <= POSITIONS)
        n_each++;
    a->sums = calloc(n_values, sizeof *a->sums);
    a->values = calloc(n_values * p->height, sizeof *a->values);
    p->pixels = calloc(n_pixels, p->n_channels);
    if (!a->sums || !a->values || !p->pixels ||
        axis_init(&a->rows, a->plane.height, p->height, n_each) < 0 ||
        axis_init(&a->columns, a->plane.width, p->width, n_each) < 0)
        return DLX_E_NO_MEMORY;
    read_plane(a);
    paint(a);
    return 0;
}

int picture_draw(struct picture *p, const DLTensor *t, uint32_t width, uint32_t height,
                 struct cli_error *e)
{
    struct averaging a = {.picture = p};
    char shape[SHAPE_NAME_SIZE];
    *p = (struct picture){.kind = find_plane(t, &a.plane),
                          .n_channels = a.plane.n_channels == 4 ? 4 : 3,
                          .min = (double)NAN,
                          .max = (double)NAN};
    if (p->kind == PICTURE_NONE) {
        shape_name(t->shape, t->ndim, shape);
        return cli_fail(e, DLX_E_INVALID,
                        "a tensor of shape %.200s has no picture: it is neither image-shaped nor "
                        "of two dimensions",
                        shape);
    }
    if (!tensor_is_readable(t) || (a.plane.dtype.bits % 8 != 0 && !tensor_is_compact(t)))
        return cli_fail(e, DLX_E_INVALID, "the tensor is not readable here");
    a.plane.data = tensor_data(t);
    set_size(p, &a.plane, width, height);
    int code = average_and_paint(&a);
    axis_deinit(&a.rows);
    axis_deinit(&a.columns);
    free(a.sums);
    free(a.values);
    if (code < 0) {
        picture_deinit(p);
        return cli_fail(e, code, "out of memory");
    }
    return 0;
}

/* Strides of 0 make a tensor of any size from a few bytes. */
#define PICTURE_COPY_MAX (UINT64_C(1) << 30)

int picture_host_tensor(struct dlx_message *m, uint32_t i, DLTensor *ret, void **ret_copy,
                        struct cli_error *e)
{
    const DLTensor *t = dlx_message_tensor_peek(m, i);
    uint64_t n_items = 0, size = 0;
    *ret_copy = NULL;
    if (!t)
        return cli_fail(e, DLX_E_INVALID, "the message has %u tensor%s: there is no tensor %u",
                        dlx_message_n_tensors(m), dlx_message_n_tensors(m) == 1 ? "" : "s", i);
    *ret = *t;
    if (!tensor_size(t, &n_items, &size))
        return cli_fail(e, DLX_E_INVALID, "the tensor's size overflows");
    if (tensor_is_readable(t) || size == 0)
        return 0;
    if (size > PICTURE_COPY_MAX)
        return cli_fail(e, DLX_E_LIMIT,
                        "the tensor has %llu bytes, and at most %llu are copied from a GPU for a "
                        "picture",
                        (unsigned long long)size, (unsigned long long)PICTURE_COPY_MAX);
    void *copy = malloc(size);
    if (!copy)
        return cli_fail(e, DLX_E_NO_MEMORY, "out of memory: no %llu bytes for a copy",
                        (unsigned long long)size);
    int code = dlx_message_copy_to_host(m, i, copy, size);
    if (code < 0) {
        const char *words = dlx_errmsg();
        free(copy);
        return cli_fail(e, code, "%s", words && *words ? words : dlx_strerror(code));
    }
    ret->device = (DLDevice){kDLCPU, 0};
    ret->data = copy;
    ret->byte_offset = 0;
    ret->strides = NULL;
    *ret_copy = copy;
    return 0;
}

int picture_draw_message(struct picture *p, struct dlx_message *m, uint32_t i, uint32_t width,
                         uint32_t height, struct cli_error *e)
{
    DLTensor t;
    void *copy = NULL;
    *p = (struct picture){0};
    int code = picture_host_tensor(m, i, &t, &copy, e);
    if (code == 0)
        code = picture_draw(p, &t, width, height, e);
    free(copy);
    return code;
}

void picture_deinit(struct picture *p)
{
    free(p->pixels);
    *p = (struct picture){0};
}

/* ---- PNG ------------------------------------------------------------------------------------- */

#ifdef DLX_NO_PNG

int picture_png(const struct picture *p, uint8_t **ret_data, size_t *ret_size, struct cli_error *e)
{
    (void)p, (void)ret_data, (void)ret_size;
    return cli_fail(e, DLX_E_INVALID,
                    "this dlxctl was built without libpng, so it makes no PNG pictures: build it "
                    "where libpng-dev is installed");
}

#else

int picture_png(const struct picture *p, uint8_t **ret_data, size_t *ret_size, struct cli_error *e)
{
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = p->width,
                       .height = p->height,
                       .format = p->n_channels == 4 ? PNG_FORMAT_RGBA : PNG_FORMAT_RGB,
                       .flags = PNG_IMAGE_FLAG_FAST};
    size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
    uint8_t *data = malloc(size);
    if (!data)
        return cli_fail(e, DLX_E_NO_MEMORY, "out of memory");
    if (!png_image_write_to_memory(&image, data, &size, 0, p->pixels, 0, NULL)) {
        free(data);
        return cli_fail(e, DLX_E_SYSTEM, "libpng: %s", image.message);
    }
    uint8_t *less = realloc(data, size);
    *ret_data = less ? less : data;
    *ret_size = size;
    return 0;
}

#endif
