/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What a message of 64 bytes costs, published and taken in one process, while --publishers N
 * publish on the topic in turn: the subscription looks after a link to each of them.
 */

#include "measure_dlx.h"

#include <stdlib.h>
#include <unistd.h>

#define CHUNK 32 /* messages a stamp */

int main(int argc, char **argv)
{
    char topic[64];
    int64_t shape[1];
    const struct dlx_tensor_spec spec = bm_bytes(shape, 64);
    struct dlx_subscription *s;
    struct bm_series series;

    bm_init(argc, argv);
    size_t n = (size_t)bm_long("n", 5000), n_warmup = n / 10, next = 0;
    size_t n_publishers = (size_t)bm_long("publishers", 1);
    struct dlx_publisher **p = calloc(n_publishers, sizeof(struct dlx_publisher *));
    if (!p || !n_publishers)
        bm_fail("out of memory");
    bm_pin(0);
    struct dlx_client *c = bm_connect();
    bm_topic("publishers", getpid(), topic);
    for (size_t i = 0; i < n_publishers; i++)
        bm_check(dlx_publisher_new(c, topic, NULL, &p[i]), topic);
    bm_check(dlx_subscribe(c, topic, NULL, &s), topic);
    for (size_t i = 0; i < n_publishers; i++)
        bm_check(dlx_publisher_wait(p[i], 1, INT64_C(10000000000)), "waiting for the subscriber");
    bm_series_init(&series, n);
    for (size_t i = 0; i <= n_warmup + n; i++) {
        if (i == n_warmup)
            bm_series_start(&series);
        else if (i > n_warmup)
            bm_series_stamp(&series);
        for (int k = 0; k < CHUNK; k++) {
            DLManagedTensorVersioned *t;
            bm_check(dlx_alloc(p[next], &spec, &t), "dlx_alloc");
            bm_check(dlx_publish(p[next], t, NULL, NULL), "dlx_publish");
            dlx_message_unref(bm_take(s));
            next = next + 1 < n_publishers ? next + 1 : 0;
        }
    }
    struct bm_summary summary = bm_series_end(&series, CHUNK);
    bm_json_begin();
    bm_json_number("publishers", (double)n_publishers);
    bm_json_summary(&summary);
    bm_json_end();
    dlx_subscription_unref(s);
    for (size_t i = 0; i < n_publishers; i++)
        dlx_publisher_unref(p[i]);
    dlx_client_unref(c);
    free(p);
    return 0;
}
