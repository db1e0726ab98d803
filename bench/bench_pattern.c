/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What a take costs of a subscription to a pattern, with --topics N topics that match it, each with
 * a publisher in this process. --active of them publish: 1, or all in turn. Each time 16 messages
 * of 64 bytes are published, and then dlx_take() and dlx_message_unref() of all of them are timed
 * as one sample.
 */

#include "measure_dlx.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

enum { CHUNK = 16 }; /* as many as a publisher and a subscription have room for by default */

static void publish(struct dlx_publisher *p, const struct dlx_tensor_spec *spec)
{
    DLManagedTensorVersioned *t;

    bm_check(dlx_alloc(p, spec, &t), "dlx_alloc");
    bm_check(dlx_publish(p, t, NULL, NULL), "dlx_publish");
}

static void raise_limit(void)
{
    struct rlimit limit;

    bm_check_errno(getrlimit(RLIMIT_NOFILE, &limit), "getrlimit");
    limit.rlim_cur = limit.rlim_max;
    bm_check_errno(setrlimit(RLIMIT_NOFILE, &limit), "setrlimit");
}

int main(int argc, char **argv)
{
    char topic[64], name[96];
    int64_t shape[1];
    struct dlx_subscription *s;

    bm_init(argc, argv);
    size_t n_topics = (size_t)bm_long("topics", 4000), n = (size_t)bm_long("n", 4000);
    size_t n_active = (size_t)bm_long("active", 1), n_warmup = n_active + 100;
    const struct dlx_tensor_spec spec = bm_bytes(shape, 64);
    raise_limit();
    bm_pin(0);
    struct dlx_publisher **p = calloc(n_topics, sizeof(struct dlx_publisher *));
    double *ns = calloc(n, sizeof *ns);
    if (!p || !ns || !n_active || n_active > n_topics)
        bm_fail("--active takes 1 to --topics, or there is too little memory");
    struct dlx_client *c = bm_connect();
    bm_topic("pattern", getpid(), topic);
    for (size_t i = 0; i < n_topics; i++) {
        (void)snprintf(name, sizeof name, "%s/%zu", topic, i);
        bm_check(dlx_publisher_new(c, name, NULL, &p[i]), name);
    }
    (void)snprintf(name, sizeof name, "%s/*", topic);
    bm_check(dlx_subscribe(c, name, NULL, &s), name);
    for (size_t i = 0; i < n_topics; i++)
        bm_check(dlx_publisher_wait(p[i], 1, INT64_C(10000000000)), "waiting for the subscriber");
    uint64_t start_ns = bm_now_ns(), start = bm_ticks();
    for (size_t i = 0; i < n_warmup + n; i++) {
        /* The publishing topics are spread over the others. */
        for (size_t k = 0; k < CHUNK; k++)
            publish(p[(i * CHUNK + k) % n_active * (n_topics / n_active)], &spec);
        uint64_t before = bm_ticks();
        for (size_t k = 0; k < CHUNK; k++)
            dlx_message_unref(bm_take(s)); /* the first one waits for an arena */
        if (i >= n_warmup)
            ns[i - n_warmup] = (double)(bm_ticks() - before);
    }
    double scale = (double)(bm_now_ns() - start_ns) / (double)(bm_ticks() - start) / CHUNK;
    for (size_t i = 0; i < n; i++)
        ns[i] *= scale;
    struct bm_summary summary = bm_summary_of(ns, n);
    bm_json_begin();
    bm_json_number("topics", (double)n_topics);
    bm_json_number("active", (double)n_active);
    bm_json_summary(&summary);
    bm_json_number("taken", (double)bm_subscription_stats(s).taken);
    bm_json_end();
    dlx_subscription_unref(s);
    for (size_t i = 0; i < n_topics; i++)
        dlx_publisher_unref(p[i]);
    dlx_client_unref(c);
    free(p);
    free(ns);
    return 0;
}
