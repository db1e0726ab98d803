/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One-way latency: half of a round trip in which each of two processes allocates, publishes, takes,
 * makes a managed tensor, and releases. The payload is not touched unless --touch says how many
 * bytes of it are written and read. Round trips are stamped one by one, while the answer is on its
 * way.
 *
 *   --mode busy | block | default   spin for ever, never (then each take sleeps, which is counted),
 *                                   or as the library does by itself
 *   --size N               bytes of payload
 *   --group 1              each side is the only worker of a group, and says done of each message
 *   --asleep 1             each answer waits until the other side sleeps: no figure, but whether it
 *                          does
 */

#include "measure_dlx.h"

#include <string.h>
#include <unistd.h>

static const char *const groups[] = {"bench"};

struct side {
    struct dlx_client *client;
    struct dlx_publisher *out;
    struct dlx_subscription *in;
    struct dlx_tensor_spec spec;
    int64_t shape[1];
    size_t n_touched;
    bool in_group;
    uint64_t sum; /* of what was read, so that reading is not optimised away */
};

static void side_init(struct side *s, const char *out, const char *in, size_t size, int64_t spin_ns,
                      struct bm_meeting *meeting)
{
    const struct dlx_subscribe_args args = {
        .size = sizeof args, .spin_ns = spin_ns, .group = s->in_group ? groups[0] : NULL};
    const struct dlx_publisher_args out_args = {
        .size = sizeof out_args, .groups = s->in_group ? groups : NULL, .n_groups = s->in_group};

    s->client = bm_connect();
    s->spec = bm_bytes(s->shape, size);
    s->sum = 0;
    bm_check(dlx_publisher_new(s->client, out, &out_args, &s->out), out);
    bm_meet(meeting);
    bm_check(dlx_subscribe(s->client, in, &args, &s->in), in);
    bm_check(dlx_publisher_wait(s->out, 1, INT64_C(10000000000)), "waiting for the other side");
}

static void side_deinit(struct side *s)
{
    dlx_subscription_unref(s->in);
    dlx_publisher_unref(s->out);
    dlx_client_unref(s->client);
}

static inline void side_send(struct side *s)
{
    DLManagedTensorVersioned *t;

    bm_check(dlx_alloc(s->out, &s->spec, &t), "dlx_alloc");
    if (s->n_touched)
        memset(t->dl_tensor.data, 1, s->n_touched);
    bm_check(dlx_publish(s->out, t, NULL, NULL), "dlx_publish");
}

static inline void side_receive(struct side *s)
{
    DLManagedTensorVersioned *t;
    struct dlx_message *m = bm_take(s->in);

    bm_check(dlx_message_tensor(m, 0, &t), "dlx_message_tensor");
    if (s->in_group)
        bm_check(dlx_message_done(m), "dlx_message_done");
    dlx_message_unref(m);
    const uint8_t *bytes = t->dl_tensor.data;
    for (size_t i = 0; i < s->n_touched; i++)
        s->sum += bytes[i];
    t->deleter(t);
}

int main(int argc, char **argv)
{
    char ping[64], pong[64];
    struct bm_series series;
    struct side s = {.client = NULL};

    bm_init(argc, argv);
    const char *mode = bm_text("mode", "busy");
    bool is_busy = !strcmp(mode, "busy"), is_default = !strcmp(mode, "default");
    if (!is_busy && !is_default && strcmp(mode, "block"))
        bm_fail("--mode takes busy, block or default");
    int64_t spin_ns = is_busy ? DLX_SPIN_ALWAYS : is_default ? 0 : DLX_SPIN_NEVER;
    size_t size = (size_t)bm_long("size", 64);
    size_t n = (size_t)bm_long("n", is_busy ? 200000 : 20000);
    size_t n_warmup = (size_t)bm_long("warmup", is_busy ? 10000 : 500);
    s.n_touched = (size_t)bm_long("touch", 0);
    s.in_group = bm_long("group", 0);
    if (s.n_touched > size)
        s.n_touched = size;
    bm_topic("ping", getpid(), ping);
    bm_topic("pong", getpid(), pong);

    struct bm_meeting *meeting = bm_shared(sizeof *meeting);
    pid_t pid = bm_fork();
    if (!pid) {
        bool is_asleep = bm_long("asleep", 0);
        bm_pin(1);
        side_init(&s, pong, ping, size, spin_ns, meeting);
        for (size_t i = 0; i < n_warmup + n; i++) {
            side_receive(&s);
            if (is_asleep)
                bm_await_sleep(getppid());
            side_send(&s);
        }
        struct dlx_message *m;
        dlx_take(s.in, INT64_C(10000000000), &m); /* until the other side has gone */
        side_deinit(&s);
        _exit(0);
    }
    bm_pin(0);
    side_init(&s, ping, pong, size, spin_ns, meeting);
    bm_series_init(&series, n);
    uint64_t n_sleeps = 0;
    for (size_t i = 1; i <= n_warmup + n; i++) {
        side_send(&s);
        if (i > n_warmup) {
            bm_series_stamp(&series);
        } else if (i == n_warmup) {
            n_sleeps = bm_subscription_stats(s.in).sleeps;
            bm_series_start(&series);
        }
        side_receive(&s);
    }
    struct bm_summary summary = bm_series_end(&series, 2);
    n_sleeps = bm_subscription_stats(s.in).sleeps - n_sleeps;
    struct dlx_publisher_stats stats = bm_publisher_stats(s.out);
    side_deinit(&s);
    bm_wait(pid);

    bm_json_begin();
    bm_json_text("mode", mode);
    bm_json_number("size", (double)size);
    bm_json_summary(&summary);
    bm_json_number("sleeps_per_take", (double)n_sleeps / (double)(n + 1));
    bm_json_number("copied_bytes", (double)stats.copied_bytes);
    bm_json_number("arena_bytes", (double)stats.arena_bytes);
    bm_json_end();
    return 0;
}
