/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Messages a second from one publisher to one subscription, every one delivered: the publisher never
 * drops and the subscription is reliable. 64 bytes are written and read each time. From the first
 * publish to the last take; the sequence numbers are checked.
 *
 *   --full spin | block    what the publisher does when it is ahead: try again, or wait in dlx_publish()
 *   --slots N              slots of the ring (0: the library's default)
 *   --held N               messages that the subscription may hold (0: the library's default)
 */

#include "measure_dlx.h"

#include <string.h>
#include <unistd.h>

struct result {
    _Atomic uint64_t n_taken;
    _Atomic uint64_t end_ns;
    uint64_t n_sleeps;
    uint64_t n_gathers;
};

static void subscriber(const char *topic, uint64_t n, struct result *result)
{
    const struct dlx_subscribe_args args = {
        .size = sizeof args,
        .reliable = true,
        .max_held = (uint32_t)bm_long("held", 0),
        .spin_ns = DLX_SPIN_ALWAYS,
    };
    struct dlx_client *c = bm_connect();
    struct dlx_subscription *s;
    uint64_t sum = 0;

    bm_check(dlx_subscribe(c, topic, &args, &s), topic);
    for (uint64_t i = 1; i <= n; i++) {
        struct dlx_message *m = bm_take(s);
        if (dlx_message_seq(m) != i)
            bm_fail("message %llu came instead of %llu", (unsigned long long)dlx_message_seq(m),
                    (unsigned long long)i);
        const uint64_t *words = dlx_message_peek(m, 0)->data;
        for (int k = 0; k < 8; k++)
            sum += words[k];
        dlx_message_unref(m);
    }
    atomic_store(&result->end_ns, bm_now_ns());
    struct dlx_subscription_stats stats = bm_subscription_stats(s);
    result->n_sleeps = stats.sleeps;
    result->n_gathers = stats.gathers;
    atomic_store(&result->n_taken, n);
    if (sum != 8 * (n * (n + 1) / 2))
        bm_fail("wrong payload");
    dlx_subscription_unref(s);
    dlx_client_unref(c);
}

int main(int argc, char **argv)
{
    char topic[64];
    int64_t shape[1];

    bm_init(argc, argv);
    uint64_t n = (uint64_t)bm_long("n", 2000000);
    const char *full = bm_text("full", "spin");
    bool is_blocking = !strcmp(full, "block");
    struct result *result = bm_shared(sizeof *result);
    bm_topic("rate", getpid(), topic);
    pid_t pid = bm_fork();
    if (!pid) {
        bm_pin(1);
        subscriber(topic, n, result);
        _exit(0);
    }
    bm_pin(0);
    struct dlx_client *c = bm_connect();
    struct dlx_publisher *p;
    const struct dlx_publisher_args args = {
        .size = sizeof args,
        .on_full = DLX_ON_FULL_BLOCK,
        .n_slots = (uint32_t)bm_long("slots", 0),
    };
    const struct dlx_publish_args publish_args = {
        .size = sizeof publish_args,
        .timeout_ns = is_blocking ? INT64_C(30000000000) : 0,
    };
    const struct dlx_tensor_spec spec = bm_bytes(shape, 64);
    bm_check(dlx_publisher_new(c, topic, &args, &p), topic);
    bm_check(dlx_publisher_wait(p, 1, INT64_C(10000000000)), "waiting for the subscriber");
    uint64_t start_ns = bm_now_ns();
    for (uint64_t i = 1; i <= n; i++) {
        DLManagedTensorVersioned *t;
        int r;
        bm_check(dlx_alloc(p, &spec, &t), "dlx_alloc");
        uint64_t *words = t->dl_tensor.data;
        for (int k = 0; k < 8; k++)
            words[k] = i;
        do
            r = dlx_publish(p, t, &publish_args);
        while (r == DLX_E_FULL);
        bm_check(r, "dlx_publish");
    }
    bm_wait(pid);
    struct dlx_publisher_stats stats = bm_publisher_stats(p);
    bm_json_begin();
    bm_json_text("full", full);
    bm_json_number("n", (double)n);
    bm_json_number("per_s", (double)n * 1e9 / (double)(atomic_load(&result->end_ns) - start_ns));
    bm_json_number("delivered", (double)atomic_load(&result->n_taken));
    bm_json_number("publisher_waits", (double)stats.blocked);
    bm_json_number("publisher_full", (double)stats.full);
    bm_json_number("bells", (double)stats.bells);
    bm_json_number("subscriber_sleeps", (double)result->n_sleeps);
    bm_json_number("subscriber_gathers", (double)result->n_gathers);
    bm_json_end();
    dlx_publisher_unref(p);
    dlx_client_unref(c);
    return 0;
}
