/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A camera that films photographs: decodes them once, then publishes frames of a film that pans
 * over them. Each frame is drawn straight into shared memory: nothing is copied on its way to
 * anybody.
 */

#include "film.h"
#include "picture.h"
#include "util.h"

#include <stdio.h>
#include <stdlib.h>

struct options {
    const char *topic;
    const char *report;
    uint32_t width;
    uint32_t height;
    uint32_t rate;
    uint32_t seconds;
    uint32_t n_subscribers;
};

static void film_to_topic(struct film *film, struct dlx_publisher *p, const struct options *o)
{
    const int64_t shape[] = {o->height, o->width, 3};
    const struct dlx_tensor_spec spec = {
        .size = sizeof spec,
        .dtype = {.code = kDLUInt, .bits = 8, .lanes = 1},
        .ndim = 3,
        .shape = shape,
    };
    uint64_t n_frames = (uint64_t)o->rate * o->seconds;
    uint64_t start_ns = ex_now_ns();

    for (uint64_t i = 0; i < n_frames && !ex_stopped(); i++) {
        DLManagedTensorVersioned *frame;
        ex_check(dlx_alloc(p, &spec, &frame), "allocating a frame");
        film_draw(film, (double)i / o->rate, frame->dl_tensor.data);
        ex_sleep_until_ns(start_ns + i * 1000000000u / o->rate);
        ex_check(dlx_publish(p, frame, NULL, NULL), "publishing a frame");
    }
    FILE *report = ex_report_open(o->report);
    ex_report_publisher(report, p, (double)(ex_now_ns() - start_ns) / 1e9);
    ex_report_close(report);
}

int main(int argc, char **argv)
{
    struct options o = {
        .topic = "cam/front", .width = 1280, .height = 720, .rate = 30, .seconds = 10};

    const struct ex_option options[] = {
        {"topic", "where to publish", &o.topic, NULL, 0},
        {"report", "file for the counters", &o.report, NULL, 0},
        {"width", "pixels of a frame", NULL, &o.width, 8192},
        {"height", "pixels of a frame", NULL, &o.height, 8192},
        {"rate", "frames a second", NULL, &o.rate, 1000},
        {"seconds", "length of the film", NULL, &o.seconds, 86400},
        {"subscribers", "wait for so many first", NULL, &o.n_subscribers, 1000},
        {NULL, NULL, NULL, NULL, 0},
    };
    int first = ex_parse(argc, argv, "[OPTION VALUE]... PHOTO...", options, 1);
    ex_catch_signals();

    size_t n_photos = (size_t)(argc - first);
    struct picture *photos = ex_malloc(n_photos, sizeof *photos);
    for (size_t i = 0; i < n_photos; i++) {
        const char *path = argv[first + (int)i];
        const char *why = picture_load(&photos[i], path);
        if (why)
            ex_fail("%s: %s", path, why);
    }
    struct film *film;
    film_new(&film, photos, n_photos, o.width, o.height, (double)o.seconds / (double)n_photos);

    struct dlx_client *c;
    struct dlx_publisher *p;
    ex_check(dlx_connect(NULL, &c), "connecting");
    ex_check(dlx_publisher_new(c, o.topic, NULL, &p), o.topic);
    if (o.n_subscribers)
        ex_check(dlx_publisher_wait(p, o.n_subscribers, INT64_C(10000000000)),
                 "waiting for subscribers");
    printf("camera: a film that pans over %zu photographs, %ux%u RGB, %u frames/s, on %s\n",
           n_photos, o.width, o.height, o.rate, o.topic);
    fflush(stdout);
    film_to_topic(film, p, &o);

    dlx_publisher_unref(p);
    dlx_client_unref(c);
    film_free(film);
    for (size_t i = 0; i < n_photos; i++)
        picture_deinit(&photos[i]);
    free(photos);
    return 0;
}
