/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A viewer that only ever wants the newest frame, and writes one of them to a PNG file. Writing
 * takes a while: what the camera films meanwhile is skipped, and counted, and nobody waits.
 */

#include "picture.h"
#include "util.h"

#include <inttypes.h>
#include <stdio.h>

static void write_snapshot(const DLTensor *t, const char *topic, const char *path)
{
    ex_check_cpu(t, topic);
    if (t->ndim != 3 || t->dtype.code != kDLUInt || t->dtype.bits != 8 || t->dtype.lanes != 1 ||
        t->shape[2] != 3 || t->shape[0] < 1 || t->shape[0] > 8192 || t->shape[1] < 1 ||
        t->shape[1] > 8192 || t->strides[2] != 1 || t->strides[1] != 3 ||
        t->strides[0] != t->shape[1] * 3)
        ex_fail("the topic does not carry RGB frames");
    const char *why = picture_save(t->data, (uint32_t)t->shape[1], (uint32_t)t->shape[0], path);
    if (why)
        ex_fail("%s: %s", path, why);
}

int main(int argc, char **argv)
{
    const char *from = "cam/front", *snapshot = "frame.png", *report_path = NULL;
    uint32_t at_ms = 2000;
    const struct ex_option options[] = {
        {"from", "topic of the frames", &from, NULL, 0},
        {"snapshot", "PNG file to write", &snapshot, NULL, 0},
        {"at", "when, in ms after the first frame", NULL, &at_ms, 86400000},
        {"report", "file for the counters", &report_path, NULL, 0},
        {NULL, NULL, NULL, NULL, 0},
    };
    struct dlx_client *c;
    struct dlx_subscription *s;
    struct ex_latency latency = {.ns = NULL};
    uint64_t start_ns = 0, end_ns = 0;
    bool is_written = false;

    ex_parse(argc, argv, "[OPTION VALUE]...", options, 0);
    ex_catch_signals();
    const struct dlx_subscribe_args args = {.size = sizeof args, .mode = DLX_MODE_LATEST};
    ex_check(dlx_connect(NULL, &c), "connecting");
    ex_check(dlx_subscribe(c, from, &args, &s), from);
    while (!ex_stopped()) {
        struct dlx_message *m;
        int r = dlx_take(s, INT64_C(15000000000), &m);
        end_ns = ex_now_ns();
        if (r == DLX_E_PUBLISHER_GONE || r == DLX_E_INTERRUPTED)
            break;
        ex_check(r, "taking a frame");
        if (!start_ns)
            start_ns = end_ns;
        ex_latency_add(&latency, end_ns - dlx_message_monotonic_ns(m));
        if (!is_written && end_ns - start_ns >= (uint64_t)at_ms * 1000000u) {
            write_snapshot(dlx_message_tensor_peek(m, 0), from, snapshot);
            printf("viewer: frame %" PRIu64 " of %s is in %s\n", dlx_message_seq(m), from,
                   snapshot);
            is_written = true;
        }
        dlx_message_unref(m);
    }
    FILE *report = ex_report_open(report_path);
    ex_report_subscription(report, s, (double)(end_ns - start_ns) / 1e9, &latency);
    ex_report_close(report);
    ex_latency_deinit(&latency);
    dlx_subscription_unref(s);
    dlx_client_unref(c);
    return is_written ? 0 : 1;
}
