/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The step before a network: takes RGB frames, crops, resizes and normalises them, and publishes
 * float32 batches in NCHW. Frames are read where the camera wrote them, batches are written where
 * their consumer reads them.
 */

#include "resize.h"
#include "util.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct options {
    const char *from;
    const char *to;
    const char *report;
    uint32_t side;
    uint32_t n_images;
    uint32_t n_subscribers;
};

struct work {
    const struct options *options;
    struct dlx_subscription *frames;
    struct dlx_publisher *batches;
    struct resize *resize;
    int64_t width, height; /* of the frames that `resize` was made for */
    DLManagedTensorVersioned *batch;
    uint32_t n_filled;
    struct ex_latency latency;
};

static bool is_rgb(const DLTensor *t)
{
    return t->ndim == 3 && t->dtype.code == kDLUInt && t->dtype.bits == 8 && t->dtype.lanes == 1 &&
           t->shape[2] == 3 && t->shape[0] > 0 && t->shape[0] <= 8192 && t->shape[1] > 0 &&
           t->shape[1] <= 8192 && t->strides[2] == 1 && t->strides[1] == 3 &&
           t->strides[0] == t->shape[1] * 3;
}

static void add_frame(struct work *w, const DLTensor *frame)
{
    const struct options *o = w->options;
    const int64_t shape[] = {o->n_images, 3, o->side, o->side};
    const struct dlx_tensor_spec spec = {
        .size = sizeof spec,
        .dtype = {.code = kDLFloat, .bits = 32, .lanes = 1},
        .ndim = 4,
        .shape = shape,
    };

    if (frame->shape[0] != w->height || frame->shape[1] != w->width) {
        resize_free(w->resize);
        w->height = frame->shape[0];
        w->width = frame->shape[1];
        resize_new(&w->resize, (uint32_t)w->width, (uint32_t)w->height, o->side);
    }
    if (!w->batch)
        ex_check(dlx_alloc(w->batches, &spec, &w->batch), "allocating a batch");
    float *image = (float *)w->batch->dl_tensor.data + (size_t)w->n_filled * 3 * o->side * o->side;
    resize_run(w->resize, frame->data, image);
    if (++w->n_filled == o->n_images) {
        ex_check(dlx_publish(w->batches, w->batch, NULL, NULL), "publishing a batch");
        w->batch = NULL;
        w->n_filled = 0;
    }
}

static void work_run(struct work *w)
{
    uint64_t start_ns = 0, end_ns = 0;

    while (!ex_stopped()) {
        struct dlx_message *m;
        int r = dlx_take(w->frames, INT64_C(15000000000), &m);
        end_ns = ex_now_ns();
        if (r == DLX_E_PUBLISHER_GONE || r == DLX_E_INTERRUPTED)
            break;
        ex_check(r, "taking a frame");
        if (!start_ns)
            start_ns = end_ns;
        ex_latency_add(&w->latency, end_ns - dlx_message_monotonic_ns(m));
        const DLTensor *frame = dlx_message_tensor_peek(m, 0);
        ex_check_cpu(frame, w->options->from);
        if (!is_rgb(frame))
            ex_fail("%s does not carry RGB frames", w->options->from);
        add_frame(w, frame);
        dlx_message_unref(m);
    }
    double seconds = (double)(end_ns - start_ns) / 1e9;
    FILE *report = ex_report_open(w->options->report);
    ex_report_subscription(report, w->frames, seconds, &w->latency);
    ex_report_publisher(report, w->batches, seconds);
    ex_report_close(report);
}

int main(int argc, char **argv)
{
    struct options o = {.from = "cam/front", .to = "batch/front", .side = 224, .n_images = 4};
    const struct ex_option options[] = {
        {"from", "topic of the frames", &o.from, NULL, 0},
        {"to", "topic of the batches", &o.to, NULL, 0},
        {"report", "file for the counters", &o.report, NULL, 0},
        {"side", "pixels of an image", NULL, &o.side, 4096},
        {"images", "images of a batch", NULL, &o.n_images, 1024},
        {"subscribers", "wait for so many first", NULL, &o.n_subscribers, 1000},
        {NULL, NULL, NULL, NULL, 0},
    };
    struct work w = {.options = &o};
    struct dlx_client *c;

    ex_parse(argc, argv, "[OPTION VALUE]...", options, 0);
    ex_catch_signals();
    ex_check(dlx_connect(NULL, &c), "connecting");
    ex_check(dlx_publisher_new(c, o.to, NULL, &w.batches), o.to);
    if (o.n_subscribers)
        ex_check(dlx_publisher_wait(w.batches, o.n_subscribers, INT64_C(10000000000)),
                 "waiting for subscribers");
    ex_check(dlx_subscribe(c, o.from, NULL, &w.frames), o.from);
    printf("preprocess: %s to %" PRIu32 " x 3 x %" PRIu32 " x %" PRIu32 " float32 on %s\n", o.from,
           o.n_images, o.side, o.side, o.to);
    fflush(stdout);
    work_run(&w);

    if (w.batch)
        w.batch->deleter(w.batch); /* a batch that was never completed */
    resize_free(w.resize);
    ex_latency_deinit(&w.latency);
    dlx_subscription_unref(w.frames);
    dlx_publisher_unref(w.batches);
    dlx_client_unref(c);
    return 0;
}
