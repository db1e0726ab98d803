/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Messages a second from one publisher to one subscription, every one delivered: the publisher
 * never drops and the subscription is reliable. 64 bytes are written and read each time. From the
 * first publish to the last take; the sequence numbers are checked. `p50_ns` is the subscriber's
 * time a message, the median of pieces of 1,024 messages, in which it does not show when a process
 * was not scheduled for a while.
 *
 *   --full spin | block    what the publisher does when it is ahead: try again, or wait in
 *                          dlx_publish()
 *   --depth N              depth of the publisher (0: the library's default)
 *   --batch K              messages that dlx_publish_n() and dlx_take_n() pass at once, at most
 *                          256; 1 (the default): dlx_publish() and dlx_take()
 *   --group 1              the subscription is the only worker of a group, and says done of each
 *   --held N               messages that the subscription may hold (the library's default, or twice
 *                          --batch)
 */

#include "measure_dlx.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BATCH_MAX = 256, PIECE = 1024 };

static const char *const groups[] = {"bench"};

struct result {
    _Atomic uint64_t n_taken;
    _Atomic uint64_t end_ns;
    uint64_t n_sleeps;
    double p50_ns;
};

static uint32_t take_some(struct dlx_subscription *s, struct dlx_message **m, uint32_t batch)
{
    uint32_t n = 1;

    if (batch == 1)
        m[0] = bm_take(s);
    else
        bm_check(dlx_take_n(s, batch, INT64_C(30000000000), m, &n), "dlx_take_n");
    return n;
}

static void subscriber(const char *topic, uint64_t n, uint32_t batch, bool in_group,
                       struct result *result)
{
    const struct dlx_subscribe_args args = {
        .size = sizeof args,
        .reliable = !in_group,
        .group = in_group ? groups[0] : NULL,
        .max_held = (uint32_t)bm_long("held", batch > 1 ? (in_group ? 1 : 2) * (long)batch : 0),
        .spin_ns = DLX_SPIN_ALWAYS,
    };
    struct dlx_client *c = bm_connect();
    struct dlx_subscription *s;
    struct dlx_message *m[BATCH_MAX];
    struct bm_series series;
    uint64_t sum = 0;

    bm_series_init(&series, n / PIECE);
    bm_check(dlx_subscribe(c, topic, &args, &s), topic);
    for (uint64_t i = 0; i < n;) {
        if (i / PIECE == series.n) {
            if (i == 0)
                bm_series_start(&series);
            else
                bm_series_stamp(&series);
        }
        uint32_t n_taken = take_some(s, m, batch);
        for (uint32_t j = 0; j < n_taken; j++) {
            if (dlx_message_seq(m[j]) != ++i)
                bm_fail("message %llu came instead of %llu",
                        (unsigned long long)dlx_message_seq(m[j]), (unsigned long long)i);
            const uint64_t *words = dlx_message_tensor_peek(m[j], 0)->data;
            for (int k = 0; k < 8; k++)
                sum += words[k];
            if (in_group)
                bm_check(dlx_message_done(m[j]), "dlx_message_done");
            dlx_message_unref(m[j]);
        }
    }
    atomic_store(&result->end_ns, bm_now_ns());
    struct dlx_subscription_stats stats = bm_subscription_stats(s);
    result->n_sleeps = stats.sleeps;
    if (series.n > 1)
        result->p50_ns = bm_series_end(&series, PIECE).p50_ns;
    else
        free(series.ticks);
    atomic_store(&result->n_taken, n);
    if (sum != 8 * (n * (n + 1) / 2))
        bm_fail("wrong payload");
    dlx_subscription_unref(s);
    dlx_client_unref(c);
}

/* What is ahead tries again, unless `args` let the library wait. */
static void publish(struct dlx_publisher *p, DLManagedTensorVersioned *const *t, uint32_t n,
                    const struct dlx_publish_args *args)
{
    int r;

    if (n == 1) {
        do
            r = dlx_publish(p, *t, args, NULL);
        while (r == DLX_E_FULL);
        bm_check(r, "dlx_publish");
        return;
    }
    for (uint32_t n_done = 0, n_now; n_done < n; n_done += n_now) {
        r = dlx_publish_n(p, t + n_done, n - n_done, args, NULL, &n_now);
        if (r != DLX_E_FULL)
            bm_check(r, "dlx_publish_n");
    }
}

int main(int argc, char **argv)
{
    char topic[64];
    int64_t shape[1];

    bm_init(argc, argv);
    uint64_t n = (uint64_t)bm_long("n", 2000000);
    const char *full = bm_text("full", "spin");
    bool is_blocking = !strcmp(full, "block");
    uint32_t depth = (uint32_t)bm_long("depth", 0), batch = (uint32_t)bm_long("batch", 1);
    if (!batch || batch > BATCH_MAX)
        bm_fail("--batch takes 1 to %d", BATCH_MAX);
    bool in_group = bm_long("group", 0);
    struct result *result = bm_shared(sizeof *result);
    bm_topic("rate", getpid(), topic);
    pid_t pid = bm_fork();
    if (!pid) {
        bm_pin(1);
        subscriber(topic, n, batch, in_group, result);
        _exit(0);
    }
    bm_pin(0);
    struct dlx_client *c = bm_connect();
    struct dlx_publisher *p;
    const struct dlx_publisher_args args = {
        .size = sizeof args,
        .on_full = DLX_ON_FULL_BLOCK,
        .depth = depth,
        .groups = in_group ? groups : NULL,
        .n_groups = in_group,
    };
    const struct dlx_publish_args publish_args = {
        .size = sizeof publish_args,
        .timeout_ns = is_blocking ? INT64_C(30000000000) : 0,
    };
    const struct dlx_tensor_spec spec = bm_bytes(shape, 64);
    bm_check(dlx_publisher_new(c, topic, &args, &p), topic);
    bm_check(dlx_publisher_wait(p, 1, INT64_C(10000000000)), "waiting for the subscriber");
    uint64_t start_ns = bm_now_ns();
    for (uint64_t i = 0; i < n;) {
        DLManagedTensorVersioned *t[BATCH_MAX];
        uint32_t n_now = n - i < batch ? (uint32_t)(n - i) : batch;
        for (uint32_t j = 0; j < n_now; j++) {
            bm_check(dlx_alloc(p, &spec, &t[j]), "dlx_alloc");
            uint64_t *words = t[j]->dl_tensor.data;
            i++;
            for (int k = 0; k < 8; k++)
                words[k] = i;
        }
        publish(p, t, n_now, &publish_args);
    }
    bm_wait(pid);
    struct dlx_publisher_stats stats = bm_publisher_stats(p);
    bm_json_begin();
    bm_json_text("full", full);
    bm_json_number("group", in_group);
    bm_json_number("depth", depth);
    bm_json_number("batch", batch);
    bm_json_number("n", (double)n);
    bm_json_number("per_s", (double)n * 1e9 / (double)(atomic_load(&result->end_ns) - start_ns));
    bm_json_number("p50_ns", result->p50_ns);
    bm_json_number("delivered", (double)atomic_load(&result->n_taken));
    bm_json_number("publisher_waits", (double)stats.blocked);
    bm_json_number("publisher_refused", (double)stats.refused);
    bm_json_number("bells", (double)stats.bells);
    bm_json_number("subscriber_sleeps", (double)result->n_sleeps);
    bm_json_end();
    dlx_publisher_unref(p);
    dlx_client_unref(c);
    return 0;
}
