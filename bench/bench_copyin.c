/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Publishing a tensor that lies in private memory copies it once. How fast, next to a plain
 * memcpy() of the same bytes into a warm shared mapping: the two take turns. The publisher copies
 * into several places in turn (it keeps its history), so memcpy() is measured twice: into one
 * place, which the cache may hold, and into as many places as the publisher's arenas have.
 */

#include "measure_dlx.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TARGETS_MAX 64

static void keep(DLManagedTensorVersioned *t)
{
    (void)t; /* the same tensor is published again and again */
}

static void stamp_memcpy(double *ret_ns, void *target, const void *source, size_t size)
{
    uint64_t t0 = bm_now_ns();
    memcpy(target, source, size);
    __asm__ volatile("" ::: "memory");
    *ret_ns = (double)(bm_now_ns() - t0);
}

int main(int argc, char **argv)
{
    char topic[64];
    struct dlx_publisher *p;

    bm_init(argc, argv);
    size_t size = (size_t)bm_long("size", 64 << 20), n = (size_t)bm_long("n", 20);
    size_t n_warmup = (size_t)bm_long("warmup", 10);
    bm_pin(0);
    char *source = aligned_alloc(4096, size);
    double *copyin = malloc(n * sizeof(double));
    double *one = malloc(n * sizeof(double));
    double *many = malloc(n * sizeof(double));
    if (!source || !copyin || !one || !many)
        bm_fail("out of memory");
    memset(source, 1, size);

    struct dlx_client *c = bm_connect();
    bm_check(dlx_publisher_new(c, bm_topic("copyin", getpid(), topic), NULL, &p), topic);
    int64_t shape[] = {(int64_t)size}, strides[] = {1};
    DLManagedTensorVersioned tensor = {
        .version = {.major = DLPACK_MAJOR_VERSION, .minor = 0},
        .deleter = keep,
        .dl_tensor = {.data = source,
                      .device = {.device_type = kDLCPU},
                      .ndim = 1,
                      .dtype = {.code = kDLUInt, .bits = 8, .lanes = 1},
                      .shape = shape,
                      .strides = strides},
    };
    for (size_t i = 0; i < n_warmup; i++)
        bm_check(dlx_publish(p, &tensor, NULL, NULL), "dlx_publish");
    size_t n_targets = (size_t)(bm_publisher_stats(p).arena_bytes / size);
    if (n_targets < 1)
        n_targets = 1;
    if (n_targets > TARGETS_MAX)
        n_targets = TARGETS_MAX;
    char *targets[TARGETS_MAX];
    for (size_t i = 0; i < n_targets; i++)
        memset(targets[i] = bm_shared(size), 1, size);
    for (size_t i = 0; i < n; i++) {
        uint64_t t0 = bm_now_ns();
        bm_check(dlx_publish(p, &tensor, NULL, NULL), "dlx_publish");
        copyin[i] = (double)(bm_now_ns() - t0);
        stamp_memcpy(&one[i], targets[0], source, size);
        stamp_memcpy(&many[i], targets[i % n_targets], source, size);
    }
    struct dlx_publisher_stats stats = bm_publisher_stats(p);
    bm_json_begin();
    bm_json_number("size", (double)size);
    bm_json_number("copyin_gb_per_s", (double)size / bm_summary_of(copyin, n).p50_ns);
    bm_json_number("memcpy_gb_per_s", (double)size / bm_summary_of(one, n).p50_ns);
    bm_json_number("memcpy_rotating_gb_per_s", (double)size / bm_summary_of(many, n).p50_ns);
    bm_json_number("targets", (double)n_targets);
    bm_json_number("copied_bytes_per_message",
                   (double)stats.copied_bytes / (double)stats.published);
    bm_json_end();
    dlx_publisher_unref(p);
    dlx_client_unref(c);
    free(source);
    free(copyin);
    free(one);
    free(many);
    return 0;
}
