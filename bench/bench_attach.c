/* SPDX-License-Identifier: Apache-2.0 */

/*
 * How long dlx_connect() and dlx_subscribe() to a live topic take together, while --links N other
 * links exist. The publisher sends a message every 100 us.
 */

#include "measure_dlx.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define TOPICS 10

static void publish_one(struct dlx_publisher *p)
{
    DLManagedTensorVersioned *t;
    int64_t shape[1];
    const struct dlx_tensor_spec spec = bm_bytes(shape, 64);

    bm_check(dlx_alloc(p, &spec, &t), "dlx_alloc");
    bm_check(dlx_publish(p, t, NULL, NULL), "dlx_publish");
}

/* The links that are there already: a process with publishers and subscriptions of its own. */
static void other_links(size_t n, _Atomic int *is_ready)
{
    struct dlx_client *c = bm_connect();
    struct dlx_publisher *publishers[TOPICS];

    for (int i = 0; i < TOPICS; i++) {
        char name[32], topic[64];
        snprintf(name, sizeof name, "other%d", i);
        bm_topic(name, getpid(), topic);
        bm_check(dlx_publisher_new(c, topic, NULL, &publishers[i]), topic);
        for (size_t k = (size_t)i; k < n; k += TOPICS) {
            struct dlx_subscription *s;
            bm_check(dlx_subscribe(c, topic, NULL, &s), topic);
            publish_one(publishers[i]); /* picks the new link up */
        }
    }
    atomic_store(is_ready, 1);
    for (;;)
        pause();
}

static void live_publisher(const char *topic, _Atomic int *is_ready)
{
    struct dlx_client *c = bm_connect();
    struct dlx_publisher *p;

    bm_check(dlx_publisher_new(c, topic, NULL, &p), topic);
    atomic_store(is_ready, 1);
    for (;;) {
        publish_one(p);
        usleep(100);
    }
}

static void wait_until_ready(_Atomic int *is_ready, pid_t pid)
{
    for (int i = 0; i < 30000 && !atomic_load(is_ready); i++) {
        if (kill(pid, 0))
            break;
        usleep(1000);
    }
    if (!atomic_load(is_ready))
        bm_fail("the other process is not ready");
}

int main(int argc, char **argv)
{
    char topic[64];
    struct rlimit limit;

    bm_init(argc, argv);
    size_t n = (size_t)bm_long("n", 500), n_links = (size_t)bm_long("links", 0);
    bm_check_errno(getrlimit(RLIMIT_NOFILE, &limit), "getrlimit");
    limit.rlim_cur = limit.rlim_max;
    bm_check_errno(setrlimit(RLIMIT_NOFILE, &limit), "setrlimit");
    _Atomic int *is_ready = bm_shared(2 * sizeof *is_ready);
    bm_topic("attach", getpid(), topic);
    signal(SIGCHLD, SIG_IGN); /* so that kill(pid, 0) tells whether it lives */
    pid_t other = -1;
    if (n_links) {
        other = bm_fork();
        if (!other)
            other_links(n_links, &is_ready[0]);
        wait_until_ready(&is_ready[0], other);
    }
    pid_t publisher = bm_fork();
    if (!publisher) {
        bm_pin(0);
        live_publisher(topic, &is_ready[1]);
    }
    wait_until_ready(&is_ready[1], publisher);
    bm_pin(1);
    double *connect_ns = malloc(n * sizeof(double));
    double *subscribe_ns = malloc(n * sizeof(double));
    double *both_ns = malloc(n * sizeof(double));
    if (!connect_ns || !subscribe_ns || !both_ns)
        bm_fail("out of memory");
    for (size_t i = 0; i < n; i++) {
        struct dlx_client *c;
        struct dlx_subscription *s;
        uint64_t t0 = bm_now_ns();
        bm_check(dlx_connect(NULL, &c), "dlx_connect");
        uint64_t t1 = bm_now_ns();
        bm_check(dlx_subscribe(c, topic, NULL, &s), "dlx_subscribe");
        uint64_t t2 = bm_now_ns();
        connect_ns[i] = (double)(t1 - t0);
        subscribe_ns[i] = (double)(t2 - t1);
        both_ns[i] = (double)(t2 - t0);
        dlx_message_unref(bm_take(s)); /* it really is attached */
        dlx_subscription_unref(s);
        dlx_client_unref(c);
    }
    kill(publisher, SIGKILL);
    if (other > 0)
        kill(other, SIGKILL);
    struct bm_summary connects = bm_summary_of(connect_ns, n);
    struct bm_summary subscribes = bm_summary_of(subscribe_ns, n);
    struct bm_summary both = bm_summary_of(both_ns, n);
    bm_json_begin();
    bm_json_number("links", (double)n_links);
    bm_json_summary(&both);
    bm_json_number("connect_p50_ns", connects.p50_ns);
    bm_json_number("connect_p99_ns", connects.p99_ns);
    bm_json_number("subscribe_p50_ns", subscribes.p50_ns);
    bm_json_number("subscribe_p99_ns", subscribes.p99_ns);
    bm_json_end();
    free(connect_ns);
    free(subscribe_ns);
    free(both_ns);
    return 0;
}
