/* SPDX-License-Identifier: Apache-2.0 */

/*
 * How much more shared memory the publisher has than its messages need. Sizes are log-uniform from 4 KiB to 64 MiB. A
 * subscription of the same process holds messages of --live bytes in all and gives one of them back, picked at random,
 * as often as it takes for the next to fit. After --warmup messages the largest that arenas and live payload became
 * over --n messages are printed. The payload is not touched.
 */

#include "measure_dlx.h"

#include <math.h>
#include <unistd.h>

#define N_HELD_MAX 4000

struct live {
    DLManagedTensorVersioned *tensors[N_HELD_MAX];
    size_t sizes[N_HELD_MAX];
    size_t n;
    size_t bytes;
};

static uint64_t random_state;

static uint64_t random64(void) /* splitmix64 */
{
    uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static size_t random_size(void)
{
    double x = (double)(random64() >> 11) * 0x1p-53;

    return (size_t)exp2(12 + 14 * x);
}

static void drop(struct live *l)
{
    size_t i = random64() % l->n;

    l->tensors[i]->deleter(l->tensors[i]);
    l->bytes -= l->sizes[i];
    l->n--;
    l->tensors[i] = l->tensors[l->n];
    l->sizes[i] = l->sizes[l->n];
}

static void add(struct live *l, struct dlx_publisher *p, struct dlx_subscription *s, size_t size)
{
    int64_t shape[1];
    const struct dlx_tensor_spec spec = bm_bytes(shape, size);
    DLManagedTensorVersioned *t;

    bm_check(dlx_alloc(p, &spec, &t), "dlx_alloc");
    bm_check(dlx_publish(p, t, NULL), "dlx_publish");
    struct dlx_message *m = bm_take(s);
    bm_check(dlx_message_tensor(m, 0, &l->tensors[l->n]), "dlx_message_tensor");
    dlx_message_unref(m);
    l->sizes[l->n++] = size;
    l->bytes += size;
}

int main(int argc, char **argv)
{
    static struct live live;
    const struct dlx_publisher_args publisher_args = {
        .size = sizeof publisher_args,
        .history = 1,
        .n_slots = 4096,
    };
    const struct dlx_subscribe_args subscribe_args = {
        .size = sizeof subscribe_args,
        .max_held = 4096,
    };
    struct dlx_publisher *p;
    struct dlx_subscription *s;
    char topic[64];
    size_t arena_peak = 0, live_peak = 0;

    bm_init(argc, argv);
    size_t n = (size_t)bm_long("n", 10000), n_warmup = (size_t)bm_long("warmup", 3000);
    size_t target = (size_t)bm_long("live", 1 << 30);
    random_state = (uint64_t)bm_long("seed", 1);
    struct dlx_client *c = bm_connect();
    bm_check(dlx_publisher_new(c, bm_topic("memory", getpid(), topic), &publisher_args, &p), topic);
    bm_check(dlx_subscribe(c, topic, &subscribe_args, &s), topic);
    for (size_t i = 0; i < n_warmup + n; i++) {
        size_t size = random_size();
        while (live.n && (live.bytes + size > target || live.n == N_HELD_MAX))
            drop(&live);
        add(&live, p, s, size);
        if (i < n_warmup)
            continue;
        size_t arena_bytes = (size_t)bm_publisher_stats(p).arena_bytes;
        arena_peak = arena_bytes > arena_peak ? arena_bytes : arena_peak;
        live_peak = live.bytes > live_peak ? live.bytes : live_peak;
    }
    struct dlx_publisher_stats stats = bm_publisher_stats(p);
    bm_json_begin();
    bm_json_number("ratio", (double)arena_peak / (double)live_peak);
    bm_json_number("arena_bytes", (double)arena_peak);
    bm_json_number("live_bytes", (double)live_peak);
    bm_json_number("arenas", stats.n_arenas);
    bm_json_number("copied_bytes", (double)stats.copied_bytes);
    bm_json_end();
    while (live.n)
        drop(&live);
    dlx_subscription_unref(s);
    dlx_publisher_unref(p);
    dlx_client_unref(c);
    return 0;
}
