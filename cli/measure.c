/* SPDX-License-Identifier: Apache-2.0 */

/* The common part of hz and bw: receive, show a line each second, then a summary. */

#include "cli/measure.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/rates.h"
#include "cli/tensor.h"
#include "cli/wait.h"
#include <inttypes.h>
#include <stdio.h>

#define WINDOW_DEFAULT 10000
#define WINDOW_MAX     10000000
/* The line of each second is about so many messages: sorting ten million ages takes longer than a
 * second. */
#define LINE_MESSAGES 10000
#define SECOND_NS     INT64_C(1000000000)

struct run {
    struct stream_args stream;
    const struct measure *measure;
    const char *topic;
    uint64_t count; /* 0: without an end */
    uint64_t window;
    struct rate *rate;   /* of all messages */
    struct rates *rates; /* of each topic, when `topic` is a pattern; else NULL */
    int64_t last_ns;     /* when the last message came; 0: none did */
    struct progress progress;
};

static void show_line(struct run *h, const struct stream *s, int64_t now)
{
    struct rate_summary r = rate_summarize(h->rate, LINE_MESSAGES);
    struct dlx_subscription_stats stats = stream_stats(s);
    char words[MEASURE_LINE_SIZE], silence[HUMAN_SIZE], lost[80];
    size_t room = progress_room(&h->progress);
    if (h->last_ns == 0) {
        progress_show(&h->progress, "no message yet");
        return;
    }
    if (now - h->last_ns > 2 * SECOND_NS) {
        human_ns(now - h->last_ns, silence);
        progress_show(&h->progress, "no message for %s, %" PRIu64 " before", silence, r.n_messages);
        return;
    }
    int n = snprintf(lost, sizeof lost, "lost %" PRIu64 "  ", stats.lost);
    if (stats.skipped > 0)
        n += snprintf(lost + n, sizeof lost - (size_t)n, "skipped %" PRIu64 "  ", stats.skipped);
    for (unsigned n_dropped = 0; n_dropped <= MEASURE_DROPS; n_dropped++) {
        h->measure->line(&r, n_dropped, words);
        if ((size_t)n + output_columns(words) <= room)
            break;
    }
    progress_show(&h->progress, "%s%s", lost, words);
}

static json_t *topics_json(const struct run *h)
{
    json_t *array = json_array();
    for (size_t i = 0; i < rates_count(h->rates); i++) {
        const struct rates_entry *e = rates_at(h->rates, i);
        struct rate_summary r = rate_summarize(e->rate, RATE_WINDOW);
        json_t *json =
            json_pack("{s:s, s:o, s:o, s:o, s:I}", "topic", e->topic, "messages",
                      output_json_u64(r.n_messages), "bytes", output_json_u64(r.n_bytes), "missed",
                      output_json_u64(e->missed), "window", (json_int_t)r.n_window);
        array = output_json_append(array, output_json_merge(json, h->measure->json(&r)));
    }
    return array;
}

static json_t *summary_json(const struct run *h, const struct rate_summary *r,
                            const struct dlx_subscription_stats *stats, int64_t elapsed_ns)
{
    json_t *json =
        json_pack("{s:s, s:I, s:o, s:o, s:o, s:o, s:I}", "topic", h->topic, "elapsed_ns",
                  (json_int_t)elapsed_ns, "messages", output_json_u64(r->n_messages), "bytes",
                  output_json_u64(r->n_bytes), "skipped", output_json_u64(stats->skipped), "lost",
                  output_json_u64(stats->lost), "window", (json_int_t)r->n_window);
    json = output_json_merge(json, h->measure->json(r));
    return h->rates ? output_json_put(json, "topics", topics_json(h)) : json;
}

static void print_measured(const struct run *h, const struct rate_summary *r)
{
    h->measure->print(r);
    if (r->n_window < r->n_messages)
        printf("  (%s: the last %" PRIu64 " messages)\n", h->measure->of_window, r->n_window);
    uint64_t n_early = r->n_window - r->n_timed;
    if (n_early > 0)
        printf("  (%s without %" PRIu64 " message%s published before the start)\n",
               h->measure->of_time, n_early, n_early == 1 ? "" : "s");
}

static void print_topics(const struct run *h)
{
    char bytes[HUMAN_SIZE];
    for (size_t i = 0; i < rates_count(h->rates); i++) {
        const struct rates_entry *e = rates_at(h->rates, i);
        struct rate_summary r = rate_summarize(e->rate, RATE_WINDOW);
        human_bytes(r.n_bytes, bytes);
        printf("%s: %" PRIu64 " message%s, %s, %" PRIu64 " missed\n", e->topic, r.n_messages,
               r.n_messages == 1 ? "" : "s", bytes, e->missed);
        print_measured(h, &r);
    }
}

static int measure_print_summary(struct run *h, const struct stream *s, int64_t elapsed_ns)
{
    struct cli *cli = h->stream.cli;
    struct rate_summary r = rate_summarize(h->rate, RATE_WINDOW);
    struct dlx_subscription_stats stats = stream_stats(s);
    char time[HUMAN_SIZE], bytes[HUMAN_SIZE];

    if (cli->json)
        return cli_json(cli, summary_json(h, &r, &stats, elapsed_ns), true);
    human_ns(elapsed_ns, time);
    human_bytes(r.n_bytes, bytes);
    printf("%s: %" PRIu64 " message%s, %s in %s, %" PRIu64 " lost, %" PRIu64 " skipped\n", h->topic,
           r.n_messages, r.n_messages == 1 ? "" : "s", bytes, time, stats.lost, stats.skipped);
    print_measured(h, &r);
    if (h->rates)
        print_topics(h);
    return cli_finish(cli, CLI_OK);
}

static uint64_t message_bytes(const struct dlx_message *m)
{
    uint64_t sum = 0, n_items = 0, size = 0;
    for (uint32_t i = 0; i < dlx_message_n_tensors(m); i++) {
        const DLTensor *t = dlx_message_tensor_peek(m, i);
        if (t && tensor_size(t, &n_items, &size))
            sum += size;
    }
    return sum;
}

/* Messages from before the start come in a burst and are old: they say nothing about the topic. */
static int add_to(struct rate *rate, bool is_early, int64_t now, int64_t age, uint64_t bytes)
{
    return is_early ? rate_add_untimed(rate, bytes) : rate_add(rate, now, age, bytes);
}

static int add_message(struct run *h, const struct dlx_message *m, bool is_early, int64_t now)
{
    int64_t age = (int64_t)((uint64_t)now - dlx_message_monotonic_ns(m));
    uint64_t bytes = message_bytes(m);
    struct rates_entry *e = h->rates ? rates_of(h->rates, dlx_message_topic(m)) : NULL;
    if (add_to(h->rate, is_early, now, age, bytes) < 0 ||
        (h->rates && (!e || add_to(e->rate, is_early, now, age, bytes) < 0))) {
        (void)cli_report(h->stream.cli, NULL, "out of memory");
        return DLX_E_NO_MEMORY;
    }
    if (e)
        e->missed += dlx_message_gap(m);
    return 1;
}

static int receive(struct run *h, struct stream *s)
{
    int64_t start = wait_now();
    int code = 1;
    uint64_t n = 0;
    char publishers[STREAM_PUBLISHERS_SIZE];
    while (code > 0 && (h->count == 0 || n < h->count)) {
        struct dlx_message *m = NULL;
        s->wake = h->progress.file ? h->progress.next_ns : WAIT_FOREVER;
        code = stream_next(s, &m);
        int64_t now = wait_now();
        if (code == 1) {
            n++;
            h->last_ns = now;
            code = add_message(h, m, dlx_message_monotonic_ns(m) < (uint64_t)s->start, now);
            stream_finish(s, m);
        }
        if (code > 0 && progress_due(&h->progress, now))
            show_line(h, s, now);
    }
    progress_clear();
    if (code < 0 && n == 0)
        return CLI_FAILURE;
    int status = measure_print_summary(h, s, wait_now() - start);
    if (code < 0)
        return CLI_FAILURE;
    if (n == 0)
        return cli_report(h->stream.cli, h->topic, "no message came: %s",
                          stream_publishers(s, publishers));
    if (status == CLI_OK && code == 0 && wait_signal())
        status = cli_signal_status(h->count == 0 && h->stream.duration_ns == 0);
    return status;
}

int measure_run(struct cli *cli, const struct measure *measure, int argc, char **argv)
{
    static const struct cli_option options[] = {
        {NULL, 0, "TOPIC|PATTERN", CLI_TO(struct run, topic), "a topic is missing"},
        {"window", 'w', "N", CLI_IN(struct run, window, 2, WINDOW_MAX),
         "Let the summary look at the last N messages (default: 10000)"},
        {"count", 'n', "N", CLI_IN(struct run, count, 1, UINT64_MAX), "End after N messages"},
        {"duration", 'd', "TIME", CLI_IN(struct run, stream.duration_ns, 1, 0),
         "End after this time"},
        {0},
    };
    const struct cli_line line = {
        .options = options,
        .more = stream_options,
        .check = stream_check,
        .doc = measure->doc,
    };
    struct run h = {.measure = measure, .stream = {.cli = cli}, .window = WINDOW_DEFAULT};
    struct stream s = {0};
    int status = CLI_FAILURE;

    if (cli_parse(cli, &line, argc, argv, &h) != CLI_OK)
        return CLI_FAILURE;
    wait_catch_signals();
    if (rate_new(&h.rate, h.window) < 0 ||
        (cli_is_pattern(h.topic) && rates_new(&h.rates, h.window) < 0)) {
        (void)cli_report(cli, NULL, "out of memory");
    } else if (stream_open(&s, &h.stream, h.topic) == 0) {
        stream_report_retained(&s);
        progress_init(&h.progress, h.topic, stdout, !cli->json, SECOND_NS);
        status = receive(&h, &s);
    }
    stream_close(&s);
    rate_free(h.rate);
    rates_free(h.rates);
    return status;
}
