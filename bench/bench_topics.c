/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A daemon with many quiet topics: --topics N publishers, each of which has published one small
 * message, and --links M links to the first of them. Prints what they need and how long a further
 * publisher takes to be announced (--n times), and then keeps all of it until its standard input
 * ends, for others to measure beside it.
 *
 * A process holds a socket for each publisher and each subscription, so they are spread over
 * processes of --per-process N each.
 */

#include "measure_dlx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAYLOAD_SIZE = 64 };

/* The words that the processes exchange, in shared memory. */
struct progress {
    _Atomic size_t n_published, n_linked;
};

static const char *topic_name(size_t i, char topic[static 64])
{
    (void)snprintf(topic, 64, "bench/topics/%zu/%zu", i / 100, i);
    return topic;
}

static void publish_one(struct dlx_publisher *p)
{
    DLManagedTensorVersioned *t;
    int64_t shape[1];
    const struct dlx_tensor_spec spec = bm_bytes(shape, PAYLOAD_SIZE);

    bm_check(dlx_alloc(p, &spec, &t), "dlx_alloc");
    memset(t->dl_tensor.data, 1, PAYLOAD_SIZE);
    bm_check(dlx_publish(p, t, NULL, NULL), "dlx_publish");
}

static void hold(void)
{
    for (;;)
        pause();
}

static void publishers(size_t first, size_t last, struct progress *progress)
{
    struct dlx_client *c = bm_connect();

    for (size_t i = first; i < last; i++) {
        struct dlx_publisher *p;
        char topic[64];
        bm_check(dlx_publisher_new(c, topic_name(i, topic), NULL, &p), topic);
        publish_one(p);
        atomic_fetch_add(&progress->n_published, 1);
    }
    hold();
}

/* A link to each of these topics; its first message shows that it is there. */
static void subscriptions(size_t first, size_t last, struct progress *progress)
{
    const struct dlx_subscribe_args args = {.size = sizeof args, .history = 1};
    struct dlx_client *c = bm_connect();

    for (size_t i = first; i < last; i++) {
        struct dlx_subscription *s;
        char topic[64];
        bm_check(dlx_subscribe(c, topic_name(i, topic), &args, &s), topic);
        dlx_message_unref(bm_take(s));
        atomic_fetch_add(&progress->n_linked, 1);
    }
    hold();
}

typedef void (*holder_fn)(size_t first, size_t last, struct progress *progress);

static void start(holder_fn holder, size_t n, size_t per_process, struct progress *progress)
{
    for (size_t first = 0; first < n; first += per_process) {
        if (bm_fork())
            continue;
        size_t last = first + per_process < n ? first + per_process : n;
        holder(first, last, progress);
    }
}

static void wait_for(_Atomic size_t *count, size_t n, const char *what)
{
    uint64_t deadline_ns = bm_now_ns() + UINT64_C(90000000000);

    while (atomic_load(count) < n) {
        int status;
        if (waitpid(-1, &status, WNOHANG) > 0)
            exit(1); /* it has said why */
        if (bm_now_ns() > deadline_ns)
            bm_fail("only %zu of %zu %s are there after 90 s", atomic_load(count), n, what);
        usleep(1000);
    }
}

static struct bm_summary announce(struct dlx_client *c, size_t n)
{
    double *ns = malloc(n * sizeof *ns);

    if (!ns)
        bm_fail("out of memory");
    for (size_t i = 0; i < n; i++) {
        struct dlx_publisher *p;
        uint64_t start_ns = bm_now_ns();
        bm_check(dlx_publisher_new(c, "bench/topics/new", NULL, &p), "dlx_publisher_new");
        ns[i] = (double)(bm_now_ns() - start_ns);
        dlx_publisher_unref(p);
    }
    struct bm_summary summary = bm_summary_of(ns, n);
    free(ns);
    return summary;
}

static struct dlx_daemon_info ask(struct dlx_client *c)
{
    struct dlx_daemon_info info = {.size = sizeof info};

    bm_check(dlx_client_get_daemon_info(c, &info), "dlx_client_get_daemon_info");
    return info;
}

int main(int argc, char **argv)
{
    struct rlimit limit;
    char byte;

    bm_init(argc, argv);
    size_t n_topics = (size_t)bm_long("topics", 10000), n_links = (size_t)bm_long("links", 1000);
    size_t per_process = (size_t)bm_long("per-process", 1000), n = (size_t)bm_long("n", 500);
    bm_check_errno(getrlimit(RLIMIT_NOFILE, &limit), "getrlimit");
    limit.rlim_cur = limit.rlim_max;
    bm_check_errno(setrlimit(RLIMIT_NOFILE, &limit), "setrlimit");
    struct progress *progress = bm_shared(sizeof *progress);
    struct dlx_client *c = bm_connect();
    uint64_t before = ask(c).shared_bytes, start_ns = bm_now_ns();
    start(publishers, n_topics, per_process, progress);
    wait_for(&progress->n_published, n_topics, "topics");
    double all_ns = (double)(bm_now_ns() - start_ns);
    uint64_t shared_bytes = ask(c).shared_bytes - before;
    start(subscriptions, n_links, per_process, progress);
    wait_for(&progress->n_linked, n_links, "links");
    struct bm_summary summary = announce(c, n);
    struct dlx_daemon_info info = ask(c);
    if (info.n_publishers != n_topics || info.n_links != n_links)
        bm_fail("the daemon has %u publishers and %u links instead of %zu and %zu",
                info.n_publishers, info.n_links, n_topics, n_links);
    bm_json_begin();
    bm_json_number("shared_bytes_a_topic", (double)shared_bytes / (double)n_topics);
    bm_json_number("all_ns", all_ns);
    bm_json_summary(&summary);
    bm_json_end();
    while (read(STDIN_FILENO, &byte, 1) > 0)
        ;
    return 0; /* the others die with it */
}
