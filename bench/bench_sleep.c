/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A subscriber that sleeps for each message, for counting its system calls under `strace -f`. It
 * does not spin; the publisher sends one message at a time, when the subscriber sleeps. The
 * subscriber is the process that calls getppid(): as it is forked, so that its code is mapped, then
 * right before and right after its --n takes, and nowhere else.
 */

#include "measure_dlx.h"

#include <unistd.h>

static void subscriber(const char *topic, size_t n_warmup, size_t n, double *sleeps)
{
    const struct dlx_subscribe_args args = {.size = sizeof args, .spin_ns = DLX_SPIN_NEVER};
    struct dlx_client *c = bm_connect();
    struct dlx_subscription *s;
    uint64_t before = 0;

    bm_check(dlx_subscribe(c, topic, &args, &s), topic);
    for (size_t i = 0; i < n_warmup + n; i++) {
        if (i == n_warmup) {
            before = bm_subscription_stats(s).sleeps;
            getppid();
        }
        dlx_message_unref(bm_take(s));
    }
    getppid();
    *sleeps = (double)(bm_subscription_stats(s).sleeps - before);
    dlx_subscription_unref(s);
    dlx_client_unref(c);
}

int main(int argc, char **argv)
{
    char topic[64];
    int64_t shape[1];
    DLManagedTensorVersioned *t;
    struct dlx_publisher *p;

    bm_init(argc, argv);
    size_t n = (size_t)bm_long("n", 200), n_warmup = (size_t)bm_long("warmup", 200);
    const struct dlx_tensor_spec spec = bm_bytes(shape, 64);
    double *sleeps = bm_shared(sizeof *sleeps);
    bm_topic("sleep", getpid(), topic);
    pid_t pid = bm_fork();
    if (!pid) {
        bm_pin(1);
        subscriber(topic, n_warmup, n, sleeps);
        _exit(0);
    }
    bm_pin(0);
    struct dlx_client *c = bm_connect();
    bm_check(dlx_publisher_new(c, topic, NULL, &p), topic);
    bm_check(dlx_publisher_wait(p, 1, INT64_C(10000000000)), "waiting for the subscriber");
    for (size_t i = 0; i < n_warmup + n; i++) {
        bm_await_sleep(pid);
        bm_check(dlx_alloc(p, &spec, &t), "dlx_alloc");
        bm_check(dlx_publish(p, t, NULL, NULL), "dlx_publish");
    }
    bm_wait(pid);
    bm_json_begin();
    bm_json_number("n", (double)n);
    bm_json_number("sleeps_per_take", *sleeps / (double)n);
    bm_json_end();
    dlx_publisher_unref(p);
    dlx_client_unref(c);
    return 0;
}
