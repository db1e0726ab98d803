/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Call and reply: a caller allocates a request, calls, and releases the reply; a worker in another
 * process takes the request, allocates a reply and gives it. Payloads are not touched.
 *
 *   --mode busy | block | default   spin for ever, never, or as the library does by itself
 *   --size N               bytes of payload, both ways
 *   --callers N            others that have called once, and stay
 *   --first 1              the first call of a new process instead, from the end of dlx_connect()
 *                          to its reply, of --n processes
 */

#include "measure_dlx.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void serve(const char *topic, size_t size, int64_t spin_ns, struct bm_meeting *meeting)
{
    const struct dlx_service_args args = {.size = sizeof args, .spin_ns = spin_ns};
    struct dlx_client *client = bm_connect();
    struct dlx_service *s;
    int64_t shape[1];
    struct dlx_tensor_spec spec = bm_bytes(shape, size);

    bm_check(dlx_service_new(client, topic, &args, &s), topic);
    bm_meet(meeting);
    for (;;) {
        struct dlx_request *request;
        struct dlx_item item = {.name = NULL};

        bm_check(dlx_service_take(s, DLX_FOREVER, &request), "dlx_service_take");
        bm_check(dlx_request_alloc(request, &spec, &item.tensor), "dlx_request_alloc");
        bm_check(dlx_reply(request, &item, 1, NULL), "dlx_reply");
        dlx_request_unref(request);
    }
}

static void call(struct dlx_caller *k, const struct dlx_tensor_spec *spec)
{
    struct dlx_item item = {.name = NULL};
    struct dlx_message *reply;

    bm_check(dlx_caller_alloc(k, spec, &item.tensor), "dlx_caller_alloc");
    bm_check(dlx_call(k, &item, 1, NULL, &reply, NULL), "dlx_call");
    dlx_message_unref(reply);
}

/* In a process of its own: the time from dlx_connect() to the first reply. */
static void measure_first(const char *topic, const struct dlx_tensor_spec *spec, size_t n)
{
    double *ns = bm_shared(n * sizeof *ns);

    for (size_t i = 0; i < n; i++) {
        pid_t pid = bm_fork();
        if (pid) {
            bm_wait(pid);
            continue;
        }
        struct dlx_client *client = bm_connect();
        struct dlx_caller *k;
        uint64_t begin = bm_now_ns();

        bm_check(dlx_caller_new(client, topic, NULL, &k), topic);
        call(k, spec);
        ns[i] = (double)(bm_now_ns() - begin);
        dlx_caller_unref(k);
        dlx_client_unref(client);
        _exit(0);
    }
    struct bm_summary summary = bm_summary_of(ns, n);
    bm_json_begin();
    bm_json_summary(&summary);
    bm_json_end();
}

static struct dlx_caller **make_others(struct dlx_client *client, const char *topic,
                                       const struct dlx_tensor_spec *spec, size_t n)
{
    struct dlx_caller **others = calloc(n + 1, sizeof(struct dlx_caller *));

    for (size_t i = 0; i < n; i++) {
        bm_check(dlx_caller_new(client, topic, NULL, &others[i]), topic);
        call(others[i], spec);
    }
    return others;
}

static void measure(const char *topic, const struct dlx_tensor_spec *spec, const char *mode,
                    size_t size)
{
    bool is_busy = !strcmp(mode, "busy"), is_default = !strcmp(mode, "default");
    const struct dlx_caller_args args = {.size = sizeof args,
                                         .spin_ns = is_busy      ? DLX_SPIN_ALWAYS
                                                    : is_default ? 0
                                                                 : DLX_SPIN_NEVER};
    size_t n = (size_t)bm_long("n", is_busy ? 200000 : 20000);
    size_t n_warmup = (size_t)bm_long("warmup", is_busy ? 10000 : 500);
    size_t n_others = (size_t)bm_long("callers", 0);
    struct dlx_client *client = bm_connect();
    struct dlx_caller **others = make_others(client, topic, spec, n_others), *k;
    struct bm_series series;

    bm_check(dlx_caller_new(client, topic, &args, &k), topic);
    bm_series_init(&series, n);
    for (size_t i = 1; i <= n_warmup + n; i++) {
        call(k, spec);
        if (i > n_warmup)
            bm_series_stamp(&series);
        else if (i == n_warmup)
            bm_series_start(&series);
    }
    struct bm_summary summary = bm_series_end(&series, 1);
    for (size_t i = 0; i < n_others; i++)
        dlx_caller_unref(others[i]);
    free(others);
    dlx_caller_unref(k);
    dlx_client_unref(client);

    bm_json_begin();
    bm_json_text("mode", mode);
    bm_json_number("size", (double)size);
    bm_json_summary(&summary);
    bm_json_end();
}

int main(int argc, char **argv)
{
    char topic[64];
    int64_t shape[1];

    bm_init(argc, argv);
    const char *mode = bm_text("mode", "busy");
    bool is_busy = !strcmp(mode, "busy"), is_default = !strcmp(mode, "default");
    if (!is_busy && !is_default && strcmp(mode, "block"))
        bm_fail("--mode takes busy, block or default");
    size_t size = (size_t)bm_long("size", 64);
    struct dlx_tensor_spec spec = bm_bytes(shape, size);
    bm_topic("call", getpid(), topic);

    struct bm_meeting *meeting = bm_shared(sizeof *meeting);
    pid_t pid = bm_fork();
    if (!pid) {
        bm_pin(1);
        serve(topic, size, is_busy ? DLX_SPIN_ALWAYS : is_default ? 0 : DLX_SPIN_NEVER, meeting);
    }
    bm_pin(0);
    bm_meet(meeting);
    if (bm_long("first", 0))
        measure_first(topic, &spec, (size_t)bm_long("n", 100));
    else
        measure(topic, &spec, mode, size);
    kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    return 0;
}
