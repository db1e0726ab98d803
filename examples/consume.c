/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Stands where a network would: takes batches, measures how bright each image is and how much edge
 * is in it, and holds some of the batches to the end, when it draws them on one sheet. Holding
 * costs nothing but the memory: the tensors stay where the publisher wrote them.
 */

#include "picture.h"
#include "resize.h"
#include "util.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define HELD_MAX    12
#define IMAGES_MAX  4 /* of one batch that are drawn */
#define GAP         8
#define TITLE_SIDE  40
#define CAPTION     32
#define TENSOR_SIDE 1024

struct held {
    DLManagedTensorVersioned *tensor;
    uint64_t seq;
    uint64_t latency_ns;
};

struct work {
    const char *from;
    struct held held[HELD_MAX];
    uint32_t n_held;
    uint32_t n_wanted;
    uint64_t every_ns;
    uint64_t held_at_ns;
    struct ex_latency latency;
    uint64_t n_images;
    double brightest, most_edges;
    uint64_t brightest_seq, most_edges_seq;
};

static bool is_batch(const DLTensor *t)
{
    if (t->ndim != 4 || t->dtype.code != kDLFloat || t->dtype.bits != 32 || t->dtype.lanes != 1)
        return false;
    const int64_t *s = t->shape, *d = t->strides;
    return s[0] >= 1 && s[0] <= 1024 && s[1] == 3 && s[2] >= 3 && s[2] <= TENSOR_SIDE &&
           s[3] == s[2] && d[3] == 1 && d[2] == s[3] && d[1] == s[2] * s[3] && d[0] == 3 * d[1];
}

/* Brightness of a pixel, 0 to 1, from its normalised channels. */
static float luminance(const float *image, size_t plane, size_t i)
{
    return 0.299f * (image[i] * imagenet_std[0] + imagenet_mean[0]) +
           0.587f * (image[plane + i] * imagenet_std[1] + imagenet_mean[1]) +
           0.114f * (image[2 * plane + i] * imagenet_std[2] + imagenet_mean[2]);
}

struct measure {
    double mean;
    double edges;
};

/* Mean brightness and mean gradient (Sobel). Draws the gradient when `ret_picture` is not NULL. */
static struct measure measure_image(const float *image, uint32_t side, struct picture *ret_picture)
{
    size_t plane = (size_t)side * side;
    float *grey = ex_malloc(plane, sizeof *grey);
    struct measure m = {0, 0};

    for (size_t i = 0; i < plane; i++) {
        grey[i] = luminance(image, plane, i);
        m.mean += (double)grey[i];
    }
    for (uint32_t y = 1; y + 1 < side; y++) {
        for (uint32_t x = 1; x + 1 < side; x++) {
            const float *p = grey + (size_t)y * side + x;
            const float *up = p - side, *down = p + side;
            float gx = up[1] + 2 * p[1] + down[1] - up[-1] - 2 * p[-1] - down[-1];
            float gy = down[-1] + 2 * down[0] + down[1] - up[-1] - 2 * up[0] - up[1];
            float gradient = sqrtf(gx * gx + gy * gy);
            m.edges += (double)gradient;
            if (ret_picture) {
                float shade = fminf(255, gradient * 190);
                uint8_t *rgb = ret_picture->rgb + ((size_t)y * side + x) * 3;
                rgb[0] = (uint8_t)(shade * 0.55f);
                rgb[1] = (uint8_t)shade;
                rgb[2] = (uint8_t)(shade * 0.9f);
            }
        }
    }
    m.mean /= (double)plane;
    m.edges /= (double)plane;
    free(grey);
    return m;
}

/* Undo the normalisation. */
static void draw_image(const float *image, uint32_t side, struct picture *ret)
{
    size_t plane = (size_t)side * side;

    for (size_t i = 0; i < plane; i++) {
        for (uint32_t c = 0; c < 3; c++) {
            float value = (image[c * plane + i] * imagenet_std[c] + imagenet_mean[c]) * 255 + 0.5f;
            ret->rgb[i * 3 + c] = (uint8_t)fminf(255, fmaxf(0, value));
        }
    }
}

static void draw_row(struct picture *sheet, uint32_t top, const struct held *h)
{
    static const uint8_t white[3] = {235, 235, 235};
    const DLTensor *t = &h->tensor->dl_tensor;
    uint32_t side = (uint32_t)t->shape[2];
    uint32_t n = t->shape[0] < IMAGES_MAX ? (uint32_t)t->shape[0] : IMAGES_MAX;
    struct picture tile;
    char caption[160];
    struct measure m = {0, 0};

    picture_init(&tile, side, side);
    for (uint32_t i = 0; i < n; i++) {
        draw_image((const float *)t->data + (size_t)i * 3 * side * side, side, &tile);
        picture_paste(sheet, &tile, GAP + i * (side + GAP), top);
    }
    picture_fill(&tile, 0, 0, side, side, (const uint8_t[3]){0, 0, 0});
    m = measure_image((const float *)t->data + (size_t)(n - 1) * 3 * side * side, side, &tile);
    picture_paste(sheet, &tile, GAP + n * (side + GAP), top);
    snprintf(caption, sizeof caption,
             "batch %" PRIu64 ":  taken %.0f us after it was published  mean %.2f  edges %.2f",
             h->seq, (double)h->latency_ns / 1e3, m.mean, m.edges);
    picture_text(sheet, GAP, top + side + 6, 2, white, caption);
    picture_deinit(&tile);
}

static void draw_sheet(const struct work *w, const char *path)
{
    static const uint8_t dark[3] = {24, 26, 30};
    static const uint8_t yellow[3] = {250, 200, 90};
    const DLTensor *t = &w->held[0].tensor->dl_tensor;
    uint32_t side = (uint32_t)t->shape[2];
    uint32_t n = t->shape[0] < IMAGES_MAX ? (uint32_t)t->shape[0] : IMAGES_MAX;
    uint32_t row = side + CAPTION + GAP;
    struct picture sheet;
    char title[160];

    picture_init(&sheet, (n + 1) * (side + GAP) + GAP, TITLE_SIDE + w->n_held * row);
    picture_fill(&sheet, 0, 0, sheet.width, sheet.height, dark);
    snprintf(title, sizeof title, "%s: %" PRId64 " x 3 x %u x %u float32, and edges", w->from,
             t->shape[0], side, side);
    picture_text(&sheet, GAP, 10, 3, yellow, title);
    for (uint32_t i = 0; i < w->n_held; i++)
        draw_row(&sheet, TITLE_SIDE + i * row, &w->held[i]);
    const char *why = picture_save(sheet.rgb, sheet.width, sheet.height, path);
    if (why)
        ex_fail("%s: %s", path, why);
    picture_deinit(&sheet);
}

static void look_at(struct work *w, struct dlx_message *m, uint64_t now_ns)
{
    const DLTensor *t = dlx_message_tensor_peek(m, 0);
    uint64_t latency_ns = now_ns - dlx_message_monotonic_ns(m);
    DLManagedTensorVersioned *tensor;

    ex_latency_add(&w->latency, latency_ns);
    ex_check_cpu(t, w->from);
    if (!is_batch(t))
        ex_fail("%s does not carry float32 NCHW batches of squares", w->from);
    size_t image_size = (size_t)t->shape[2] * (size_t)t->shape[3] * 3;
    for (int64_t i = 0; i < t->shape[0]; i++, w->n_images++) {
        const float *image = (const float *)t->data + (size_t)i * image_size;
        struct measure measured = measure_image(image, (uint32_t)t->shape[2], NULL);
        if (measured.mean > w->brightest) {
            w->brightest = measured.mean;
            w->brightest_seq = dlx_message_seq(m);
        }
        if (measured.edges > w->most_edges) {
            w->most_edges = measured.edges;
            w->most_edges_seq = dlx_message_seq(m);
        }
    }
    ex_check(dlx_message_tensor(m, 0, &tensor), "making a tensor");
    bool same_shape = !w->n_held || w->held[0].tensor->dl_tensor.shape[2] == t->shape[2];
    if (same_shape && w->n_held < w->n_wanted && now_ns >= w->held_at_ns + w->every_ns) {
        w->held[w->n_held++] = (struct held){tensor, dlx_message_seq(m), latency_ns};
        w->held_at_ns = now_ns;
    } else {
        tensor->deleter(tensor);
    }
}

int main(int argc, char **argv)
{
    struct work w = {.from = "batch/front", .n_wanted = 6};
    const char *sheet = "batches.png", *report_path = NULL;
    uint32_t every_ms = 1000;
    const struct ex_option options[] = {
        {"from", "topic of the batches", &w.from, NULL, 0},
        {"sheet", "PNG file to write", &sheet, NULL, 0},
        {"rows", "batches to draw", NULL, &w.n_wanted, HELD_MAX},
        {"every", "ms between them", NULL, &every_ms, 3600000},
        {"report", "file for the counters", &report_path, NULL, 0},
        {NULL, NULL, NULL, NULL, 0},
    };
    struct dlx_client *c;
    struct dlx_subscription *s;
    uint64_t start_ns = 0, end_ns = 0;

    ex_parse(argc, argv, "[OPTION VALUE]...", options, 0);
    ex_catch_signals();
    w.every_ns = (uint64_t)every_ms * 1000000u;
    ex_check(dlx_connect(NULL, &c), "connecting");
    ex_check(dlx_subscribe(c, w.from, NULL, &s), w.from);
    while (!ex_stopped()) {
        struct dlx_message *m;
        int r = dlx_take(s, INT64_C(15000000000), &m);
        end_ns = ex_now_ns();
        if (r == DLX_E_PUBLISHER_GONE || r == DLX_E_INTERRUPTED)
            break;
        ex_check(r, "taking a batch");
        if (!start_ns)
            start_ns = end_ns;
        look_at(&w, m, end_ns);
        dlx_message_unref(m);
    }
    FILE *report = ex_report_open(report_path);
    ex_report_subscription(report, s, (double)(end_ns - start_ns) / 1e9, &w.latency);
    fprintf(report, "images=%" PRIu64 "\n", w.n_images);
    fprintf(report, "brightest=%.2f\nbrightest_batch=%" PRIu64 "\n", w.brightest, w.brightest_seq);
    fprintf(report, "most_edges=%.2f\nmost_edges_batch=%" PRIu64 "\n", w.most_edges,
            w.most_edges_seq);
    ex_report_close(report);

    /* The publisher is gone; what is held is not. */
    dlx_subscription_unref(s);
    dlx_client_unref(c);
    if (!w.n_held)
        ex_fail("no batch came");
    draw_sheet(&w, sheet);
    for (uint32_t i = 0; i < w.n_held; i++)
        w.held[i].tensor->deleter(w.held[i].tensor);
    ex_latency_deinit(&w.latency);
    return 0;
}
