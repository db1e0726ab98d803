/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What a publish (with its dlx_alloc) of 64 bytes costs the publisher while --subscribers N are
 * attached and none of them is asleep.
 *
 *   --active 0    they take nothing: their lines stay in the publisher's cache
 *   --active 1    one process on the other CPU takes from all of them in turn, as fast as it can
 */

#include "measure_dlx.h"

#include <stdlib.h>
#include <unistd.h>

#define CHUNK 32 /* publishes a stamp */

struct shared {
    struct bm_meeting meeting;
    _Atomic int stop;
};

static void subscribers(const char *topic, size_t n, bool is_active, struct shared *shared)
{
    const struct dlx_subscribe_args args = {.size = sizeof args, .spin_ns = DLX_SPIN_ALWAYS};
    struct dlx_client *c = bm_connect();
    struct dlx_subscription **s = calloc(n, sizeof(struct dlx_subscription *));

    if (!s)
        bm_fail("out of memory");
    bm_meet(&shared->meeting);
    for (size_t i = 0; i < n; i++)
        bm_check(dlx_subscribe(c, topic, &args, &s[i]), topic);
    while (!atomic_load(&shared->stop)) {
        if (!is_active)
            usleep(1000);
        for (size_t i = 0; is_active && i < n; i++) {
            struct dlx_message *m;
            int r = dlx_take(s[i], 0, &m);
            if (r == DLX_E_EMPTY)
                continue;
            bm_check(r, "dlx_take");
            dlx_message_unref(m);
        }
    }
    for (size_t i = 0; i < n; i++)
        dlx_subscription_unref(s[i]);
    free(s);
    dlx_client_unref(c);
}

int main(int argc, char **argv)
{
    char topic[64];
    int64_t shape[1];
    struct bm_series series;
    struct dlx_publisher *p;

    bm_init(argc, argv);
    size_t n_subscribers = (size_t)bm_long("subscribers", 1);
    size_t n = (size_t)bm_long("n", 20000), n_warmup = n / 10;
    bool is_active = bm_long("active", 0) != 0;
    struct shared *shared = bm_shared(sizeof *shared);
    bm_topic("fanout", getpid(), topic);
    pid_t pid = n_subscribers ? bm_fork() : -1;
    if (!pid) {
        bm_pin(1);
        subscribers(topic, n_subscribers, is_active, shared);
        _exit(0);
    }
    bm_pin(0);
    struct dlx_client *c = bm_connect();
    bm_check(dlx_publisher_new(c, topic, NULL, &p), topic);
    if (n_subscribers)
        bm_meet(&shared->meeting);
    /* Each call picks up those who joined: so many at once would not fit into the queue for
     * them. */
    for (uint32_t i = 1; i <= n_subscribers; i++)
        bm_check(dlx_publisher_wait(p, i, INT64_C(10000000000)), "waiting for subscribers");
    const struct dlx_tensor_spec spec = bm_bytes(shape, 64);
    bm_series_init(&series, n);
    for (size_t i = 0; i <= n_warmup + n; i++) {
        if (i == n_warmup)
            bm_series_start(&series);
        else if (i > n_warmup)
            bm_series_stamp(&series);
        for (int k = 0; k < CHUNK; k++) {
            DLManagedTensorVersioned *t;
            bm_check(dlx_alloc(p, &spec, &t), "dlx_alloc");
            bm_check(dlx_publish(p, t, NULL, NULL), "dlx_publish");
        }
    }
    struct bm_summary summary = bm_series_end(&series, CHUNK);
    struct dlx_publisher_stats stats = bm_publisher_stats(p);
    atomic_store(&shared->stop, 1);
    if (n_subscribers)
        bm_wait(pid);
    bm_json_begin();
    bm_json_number("subscribers", (double)stats.n_subscribers);
    bm_json_summary(&summary);
    bm_json_number("bells", (double)stats.bells);
    bm_json_end();
    dlx_publisher_unref(p);
    dlx_client_unref(c);
    return 0;
}
