/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A message of --size bytes (64) from allocation to release, --n times over in one process, untimed: for callgrind,
 * which counts instructions whatever else the machine does. --subscribers N take each of them in turn.
 */

#include "measure_dlx.h"

#include <stdlib.h>
#include <unistd.h>

/* In functions of their own, so that callgrind tells them apart. */
static __attribute__((noinline)) void cycle_publish(struct dlx_publisher *p,
                                                    const struct dlx_tensor_spec *spec)
{
    DLManagedTensorVersioned *t;

    bm_check(dlx_alloc(p, spec, &t), "dlx_alloc");
    bm_check(dlx_publish(p, t, NULL), "dlx_publish");
}

static __attribute__((noinline)) DLManagedTensorVersioned *cycle_take(struct dlx_subscription *s)
{
    struct dlx_message *m;
    DLManagedTensorVersioned *t;

    bm_check(dlx_take(s, 0, &m), "dlx_take");
    bm_check(dlx_message_tensor(m, 0, &t), "dlx_message_tensor");
    dlx_message_unref(m);
    return t;
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
    spec = bm_bytes(shape, (size_t)bm_long("size", 64));
    struct dlx_subscription **s = calloc(n_subscribers, sizeof(struct dlx_subscription *));
    if (!s)
        bm_fail("out of memory");
    struct dlx_client *c = bm_connect();
    bm_check(dlx_publisher_new(c, bm_topic("cycle", getpid(), topic), NULL, &p), topic);
    for (size_t i = 0; i < n_subscribers; i++) {
        bm_check(dlx_subscribe(c, topic, NULL, &s[i]), topic);
        bm_check(dlx_publisher_wait(p, (uint32_t)i + 1, INT64_C(10000000000)),
                 "waiting for the subscriber");
    }
    for (size_t i = 0; i < n; i++) {
        cycle_publish(p, &spec);
        for (size_t k = 0; k < n_subscribers; k++)
            cycle_release(cycle_take(s[k]));
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
