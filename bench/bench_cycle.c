/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A message of --size bytes (64) from allocation to release, --n times over in one process,
 * untimed: for callgrind, which counts instructions whatever else the machine does. --subscribers N
 * take each of them in turn. --batch K of them go through dlx_publish_n() and dlx_take_n() at a
 * time (1: through dlx_publish() and dlx_take()).
 */

#include "measure_dlx.h"

#include <stdlib.h>
#include <unistd.h>

enum { BATCH_MAX = 256 };

/* In functions of their own, so that callgrind tells them apart. */
static __attribute__((noinline)) void
cycle_publish(struct dlx_publisher *p, const struct dlx_tensor_spec *spec, uint32_t batch)
{
    DLManagedTensorVersioned *t[BATCH_MAX];

    for (uint32_t i = 0; i < batch; i++)
        bm_check(dlx_alloc(p, spec, &t[i]), "dlx_alloc");
    if (batch == 1)
        bm_check(dlx_publish(p, t[0], NULL, NULL), "dlx_publish");
    else
        bm_check(dlx_publish_n(p, t, batch, NULL, NULL, NULL), "dlx_publish_n");
}

static __attribute__((noinline)) void cycle_take(struct dlx_subscription *s,
                                                 DLManagedTensorVersioned **t, uint32_t batch)
{
    struct dlx_message *m[BATCH_MAX];
    uint32_t n = 1;

    if (batch == 1)
        bm_check(dlx_take(s, 0, &m[0]), "dlx_take");
    else
        bm_check(dlx_take_n(s, batch, 0, m, &n), "dlx_take_n");
    if (n != batch)
        bm_fail("%u messages came instead of %u", n, batch);
    for (uint32_t i = 0; i < batch; i++) {
        bm_check(dlx_message_tensor(m[i], 0, &t[i]), "dlx_message_tensor");
        dlx_message_unref(m[i]);
    }
}

static __attribute__((noinline)) void cycle_release(DLManagedTensorVersioned *t)
{
    t->deleter(t);
}

int main(int argc, char **argv)
{
    char topic[64];
    int64_t shape[1];
    struct dlx_tensor_spec spec;
    struct dlx_publisher *p;

    bm_init(argc, argv);
    size_t n = (size_t)bm_long("n", 5000), n_subscribers = (size_t)bm_long("subscribers", 1);
    uint32_t batch = (uint32_t)bm_long("batch", 1);
    if (!batch || batch > BATCH_MAX)
        bm_fail("--batch takes 1 to %d", BATCH_MAX);
    const struct dlx_publisher_args publisher_args = {
        .size = sizeof publisher_args,
        .depth = batch > 1 ? 2 * batch : 0,
    };
    const struct dlx_subscribe_args subscribe_args = {
        .size = sizeof subscribe_args,
        .max_held = batch > 1 ? 2 * batch : 0,
    };
    spec = bm_bytes(shape, (size_t)bm_long("size", 64));
    struct dlx_subscription **s = calloc(n_subscribers, sizeof(struct dlx_subscription *));
    if (!s)
        bm_fail("out of memory");
    struct dlx_client *c = bm_connect();
    bm_check(dlx_publisher_new(c, bm_topic("cycle", getpid(), topic), &publisher_args, &p), topic);
    for (size_t i = 0; i < n_subscribers; i++) {
        bm_check(dlx_subscribe(c, topic, &subscribe_args, &s[i]), topic);
        bm_check(dlx_publisher_wait(p, (uint32_t)i + 1, INT64_C(10000000000)),
                 "waiting for the subscriber");
    }
    for (size_t i = 0; i < n; i += batch) {
        cycle_publish(p, &spec, batch);
        for (size_t k = 0; k < n_subscribers; k++) {
            DLManagedTensorVersioned *t[BATCH_MAX];
            cycle_take(s[k], t, batch);
            for (uint32_t j = 0; j < batch; j++)
                cycle_release(t[j]);
        }
    }
    bm_json_begin();
    bm_json_number("n", (double)n);
    bm_json_end();
    for (size_t i = 0; i < n_subscribers; i++)
        dlx_subscription_unref(s[i]);
    dlx_publisher_unref(p);
    dlx_client_unref(c);
    free(s);
    return 0;
}
