/* SPDX-License-Identifier: Apache-2.0 */

/*
 * 4K frames (3840 x 2160 x 3 uint8, 24.9 MB) in the steady state: the publisher writes all of each
 * frame, the subscriber reads all of it and is always awake. Counts copied bytes and page faults;
 * for counting system calls run it under strace: getppid() is called once at the start (its code is
 * then mapped), right before and right after the steady state, and nowhere else.
 *
 *   --role publisher | subscriber    started separately
 *   --topic NAME
 *   --n N --warmup N                 frames
 *   --rate N                         frames a second, paced without a system call; 0: at full speed
 */

#include "measure_dlx.h"

#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const int64_t shape[] = {2160, 3840, 3};
static const size_t frame_size = 2160u * 3840u * 3u;

static double faults(void)
{
    struct rusage usage;

    bm_check_errno(getrusage(RUSAGE_SELF, &usage), "getrusage");
    return (double)(usage.ru_minflt + usage.ru_majflt);
}

static void publish_frames(struct dlx_publisher *p, uint64_t n)
{
    uint64_t rate = (uint64_t)bm_long("rate", 0);
    uint64_t start_ns = bm_now_ns();

    const struct dlx_tensor_spec spec = {
        .size = sizeof spec,
        .dtype = {.code = kDLUInt, .bits = 8, .lanes = 1},
        .ndim = 3,
        .shape = shape,
    };

    for (uint64_t i = 0; i < n; i++) {
        DLManagedTensorVersioned *t;
        bm_check(dlx_alloc(p, &spec, &t), "dlx_alloc");
        while (rate && bm_now_ns() < start_ns + i * 1000000000u / rate)
            continue;
        memset(t->dl_tensor.data, (int)(i & 0x7f) + 1, frame_size);
        bm_check(dlx_publish(p, t, NULL, NULL), "dlx_publish");
    }
}

static void publisher(const char *topic, uint64_t n_warmup, uint64_t n)
{
    struct dlx_client *c = bm_connect();
    struct dlx_publisher *p;

    bm_check(dlx_publisher_new(c, topic, NULL, &p), topic);
    bm_check(dlx_publisher_wait(p, 1, INT64_C(10000000000)), "waiting for the subscriber");
    publish_frames(p, n_warmup);
    struct dlx_publisher_stats before = bm_publisher_stats(p);
    double faults_before = faults();
    uint64_t start_ns = bm_now_ns();
    getppid();
    publish_frames(p, n);
    getppid();
    double seconds = (double)(bm_now_ns() - start_ns) / 1e9;
    double n_faults = faults() - faults_before;
    struct dlx_publisher_stats after = bm_publisher_stats(p);
    publish_frames(p, 10); /* so that the subscriber's steady state ends before the stream does */
    bm_json_begin();
    bm_json_text("role", "publisher");
    bm_json_number("n", (double)n);
    bm_json_number("frames_per_s", (double)n / seconds);
    bm_json_number("faults", n_faults);
    bm_json_number("copied_bytes", (double)after.copied_bytes);
    bm_json_number("bells", (double)(after.bells - before.bells));
    bm_json_number("arena_bytes", (double)after.arena_bytes);
    bm_json_number("arenas_added", (double)after.n_arenas - (double)before.n_arenas);
    bm_json_end();
    dlx_publisher_unref(p);
    dlx_client_unref(c);
}

static uint64_t read_all(const DLTensor *t)
{
    const uint64_t *words = t->data;
    uint64_t sum = 0;

    for (size_t i = 0; i < frame_size / 8; i++)
        sum += words[i];
    return sum;
}

static void subscriber(const char *topic, uint64_t n_warmup, uint64_t n)
{
    const struct dlx_subscribe_args args = {.size = sizeof args, .spin_ns = DLX_SPIN_ALWAYS};
    struct dlx_client *c = bm_connect();
    struct dlx_subscription *s;
    struct dlx_message *m;
    struct dlx_subscription_stats before = {.size = 0}, after = {.size = 0};
    double faults_before = 0, n_faults = -1;
    uint64_t n_torn = 0;
    int r;

    bm_check(dlx_subscribe(c, topic, &args, &s), topic);
    while (!(r = dlx_take(s, INT64_C(30000000000), &m))) {
        uint64_t seq = dlx_message_seq(m);
        const DLTensor *t = dlx_message_tensor_peek(m, 0);
        if (read_all(t) != *(const uint64_t *)t->data * (frame_size / 8))
            n_torn++;
        dlx_message_unref(m);
        if (seq > n_warmup && !before.size) {
            before = bm_subscription_stats(s);
            faults_before = faults();
            getppid();
        } else if (seq >= n_warmup + n && !after.size) {
            getppid();
            n_faults = faults() - faults_before;
            after = bm_subscription_stats(s);
        }
    }
    if (r != DLX_E_PUBLISHER_GONE)
        bm_check(r, "dlx_take");
    if (n_torn)
        bm_fail("%llu frames changed while they were read", (unsigned long long)n_torn);
    bm_json_begin();
    bm_json_text("role", "subscriber");
    bm_json_number("n", (double)(after.taken - before.taken));
    bm_json_number("lost", (double)(after.lost - before.lost));
    bm_json_number("faults", n_faults);
    bm_json_number("sleeps", (double)(after.sleeps - before.sleeps));
    bm_json_end();
    dlx_subscription_unref(s);
    dlx_client_unref(c);
}

int main(int argc, char **argv)
{
    bm_init(argc, argv);
    getppid();
    const char *role = bm_text("role", "publisher");
    const char *topic = bm_text("topic", "bench/frames");
    uint64_t n = (uint64_t)bm_long("n", 200), n_warmup = (uint64_t)bm_long("warmup", 200);

    if (!strcmp(role, "publisher")) {
        bm_pin(0);
        publisher(topic, n_warmup, n);
    } else if (!strcmp(role, "subscriber")) {
        bm_pin(1);
        subscriber(topic, n_warmup, n);
    } else {
        bm_fail("--role takes publisher or subscriber");
    }
    return 0;
}
