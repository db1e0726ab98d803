/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A reliable stream of small messages, one in --period-ms, until standard input ends; meanwhile
 * somebody kills and restarts the daemon. The child takes, sleeping, and counts what is missing and
 * the longest time between two messages.
 */

#include "measure_dlx.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>

struct result {
    struct bm_meeting meeting;
    uint64_t taken, missing, pause_ns;
};

static void take_all(const char *topic, struct result *result)
{
    const struct dlx_subscribe_args args = {.size = sizeof args, .reliable = true};
    struct dlx_subscription *s;
    struct dlx_client *c = bm_connect();
    bool last = false;
    bm_check(dlx_subscribe(c, topic, &args, &s), topic);
    bm_meet(&result->meeting);
    for (uint64_t before = 0, next = 1; !last;) {
        struct dlx_message *m = bm_take(s);
        uint64_t now = bm_now_ns(), seq = dlx_message_seq(m);
        if (before && now - before > result->pause_ns)
            result->pause_ns = now - before;
        before = now;
        result->missing += seq - next;
        next = seq + 1;
        result->taken++;
        last = *(const unsigned char *)dlx_message_tensor_peek(m, 0)->data == 1;
        dlx_message_unref(m);
    }
    dlx_subscription_unref(s);
    dlx_client_unref(c);
}

static void publish(struct dlx_publisher *p, unsigned char mark)
{
    const struct dlx_publish_args wait = {.size = sizeof wait, .timeout_ns = INT64_C(10000000000)};
    int64_t shape[1];
    struct dlx_tensor_spec spec = bm_bytes(shape, 64);
    DLManagedTensorVersioned *t;
    bm_check(dlx_alloc(p, &spec, &t), "dlx_alloc");
    memset(t->dl_tensor.data, mark, 64);
    bm_check(dlx_publish(p, t, &wait, NULL), "dlx_publish");
}

int main(int argc, char **argv)
{
    const struct dlx_publisher_args args = {.size = sizeof args, .on_full = DLX_ON_FULL_BLOCK};
    char topic[64];
    bm_init(argc, argv);
    long period_ms = bm_long("period-ms", 1);
    struct result *result = bm_shared(sizeof *result);
    (void)bm_topic("restart", getpid(), topic);
    pid_t child = bm_fork();
    if (child == 0) {
        take_all(topic, result);
        _exit(0);
    }
    struct dlx_publisher *p;
    struct dlx_client *c = bm_connect();
    bm_check(dlx_publisher_new(c, topic, &args, &p), topic);
    bm_meet(&result->meeting);
    bm_check(dlx_publisher_wait(p, 1, INT64_C(10000000000)), "dlx_publisher_wait");
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    while (poll(&input, 1, (int)period_ms) == 0)
        publish(p, 0);
    publish(p, 1);
    bm_wait(child);
    bm_json_begin();
    bm_json_number("taken", (double)result->taken);
    bm_json_number("missing", (double)result->missing);
    bm_json_number("pause_ns", (double)result->pause_ns);
    bm_json_end();
    dlx_publisher_unref(p);
    dlx_client_unref(c);
    return 0;
}
