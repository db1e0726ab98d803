/* SPDX-License-Identifier: Apache-2.0 */

/* dlxctl pub, stage by stage: wait for subscribers, publish the files, stay, sum up. */

#include "cli/pub.h"
#include "cli/output.h"
#include "cli/wait.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROGRESS_NS INT64_C(250000000)
#define PATIENCE_NS INT64_C(2000000000) /* waiting for so long is worth a word on a terminal */

/* The functions below return 0, DLX_E_INTERRUPTED after a signal, or another negative code, which
 * they have reported. */

static struct dlx_publisher_stats get_stats(const struct pub *p)
{
    struct dlx_publisher_stats stats = {.size = sizeof stats};
    if (dlx_publisher_get_stats(p->publisher, &stats) < 0)
        return (struct dlx_publisher_stats){0};
    return stats;
}

static void show_progress(struct pub *p)
{
    char bytes[HUMAN_SIZE], rate[HUMAN_SIZE], throughput[HUMAN_SIZE];
    int64_t now = wait_now();
    if (!progress_due(&p->progress, now))
        return;
    struct dlx_publisher_stats s = get_stats(p);
    double seconds = (double)(now - p->start_ns) / 1e9;
    human_bytes(s.published_bytes, bytes);
    human_number((double)s.published / seconds, rate);
    human_bytes((uint64_t)((double)s.published_bytes / seconds), throughput);
    progress_show(&p->progress, "%" PRIu64 " message%s, %s, %s/s, %s/s, %u subscriber%s",
                  s.published, s.published == 1 ? "" : "s", bytes, rate, throughput,
                  s.n_subscribers, s.n_subscribers == 1 ? "" : "s");
}

static int wait_subscribers(struct pub *p)
{
    int64_t deadline = p->timeout_ns ? wait_deadline(p->timeout_ns) : WAIT_FOREVER;
    while (p->n_wait > 0) {
        if (wait_signal())
            return DLX_E_INTERRUPTED;
        int code = dlx_publisher_wait(p->publisher, p->n_wait, WAIT_SLICE_NS);
        if (code == 0)
            break;
        if (code == DLX_E_INTERRUPTED)
            continue;
        if (code != DLX_E_TIMEOUT || wait_now() >= deadline) {
            (void)cli_report_dlx(p->cli, p->topic, code);
            return code;
        }
        if (progress_due(&p->progress, wait_now()))
            progress_show(&p->progress, "%u of %u subscribers", get_stats(p).n_subscribers,
                          p->n_wait);
    }
    return 0;
}

/* Waits until the next message is due. A late publisher catches up by at most one period. */
static int wait_turn(struct pub *p, double rate)
{
    if (rate <= 0)
        return 0;
    int64_t now = wait_now(), period = (int64_t)(1e9 / rate);
    if (p->next_ns == 0 || p->next_ns < now - period)
        p->next_ns = now;
    while (wait_now() < p->next_ns)
        if (wait_until(-1, p->next_ns) == DLX_E_INTERRUPTED && wait_signal())
            return DLX_E_INTERRUPTED;
    p->next_ns += period;
    return 0;
}

/* A message to be published: a tensor, or a set. */
struct outgoing {
    const struct source_item *source;
    struct dlx_item *items;             /* names and tensors; a single tensor is the first one's */
    struct dlx_tensor_spec *specs;      /* the same tensors, as they are asked for */
    DLManagedTensorVersioned **tensors; /* the same again */
    void **data;                        /* and where their bytes go */
    uint32_t n;
    bool spent; /* libdlx owns the tensors now */
};

static void outgoing_deinit(struct outgoing *o)
{
    for (uint32_t i = 0; i < o->n && o->tensors && !o->spent; i++)
        if (o->tensors[i] && o->tensors[i]->deleter)
            o->tensors[i]->deleter(o->tensors[i]);
    free(o->items);
    free(o->specs);
    free(o->tensors);
    free(o->data);
}

/* Allocates shared memory for the message. */
static int outgoing_init(struct outgoing *o, struct pub *p, const struct source_item *item)
{
    uint32_t n = item->set ? item->set->n_tensors : 1;
    *o = (struct outgoing){.source = item,
                           .items = calloc(n, sizeof *o->items),
                           .specs = calloc(n, sizeof *o->specs),
                           .tensors = calloc(n, sizeof(DLManagedTensorVersioned *)),
                           .data = calloc(n, sizeof *o->data),
                           .n = n};
    if (!o->items || !o->specs || !o->tensors || !o->data) {
        (void)cli_report(p->cli, p->topic, "out of memory");
        return DLX_E_NO_MEMORY;
    }
    o->specs[0] = (struct dlx_tensor_spec){
        .size = sizeof *o->specs, .dtype = item->dtype, .ndim = item->ndim, .shape = item->shape};
    for (uint32_t i = 0; item->set && i < n; i++) {
        const struct safetensors_tensor *t = &item->set->tensors[i];
        o->specs[i] = (struct dlx_tensor_spec){
            .size = sizeof *o->specs, .dtype = t->dtype, .ndim = t->ndim, .shape = t->shape};
        o->items[i].name = t->name;
    }
    int code = item->set ? dlx_alloc_set(p->publisher, o->specs, n, o->tensors)
                         : dlx_alloc(p->publisher, o->specs, o->tensors);
    if (code < 0) { /* nothing was allocated: the pointers mean nothing */
        memset(o->tensors, 0, n * sizeof(DLManagedTensorVersioned *));
        (void)cli_report(p->cli, p->topic, "%s: %s", item->file, dlx_errmsg());
        return code;
    }
    for (uint32_t i = 0; i < n; i++) {
        o->items[i].tensor = o->tensors[i];
        o->data[i] = o->tensors[i]->dl_tensor.data;
    }
    return 0;
}

static int publish_once(struct pub *p, struct outgoing *o, const struct dlx_publish_args *args)
{
    const struct safetensors *set = o->source->set;
    struct dlx_bytes meta = p->meta;
    if (!set && !meta.data)
        return dlx_publish(p->publisher, o->tensors[0], args, NULL);
    if (!meta.data)
        meta = (struct dlx_bytes){.data = set->meta, .size = set->meta_size};
    return dlx_publish_set(p->publisher, o->items, o->n, meta.data ? &meta : NULL, args, NULL);
}

static bool waits(const struct pub *p)
{
    return p->block || p->groups.n > 0;
}

/* Publish, however long subscribers make it wait. */
static int publish_outgoing(struct pub *p, struct outgoing *o)
{
    struct dlx_publish_args args = {.size = sizeof args,
                                    .timeout_ns = waits(p) ? WAIT_SLICE_NS : 0};
    int64_t start = 0;
    for (;;) {
        /* Before publishing, too: a subscriber that took the message may have left after it. */
        p->was_heard = p->was_heard || get_stats(p).n_subscribers > 0;
        int code = publish_once(p, o, &args);
        o->spent = code == 0;
        if (code == 0) {
            p->was_heard = p->was_heard || get_stats(p).n_subscribers > 0;
            return 0;
        }
        if (code != DLX_E_FULL && code != DLX_E_TIMEOUT && code != DLX_E_INTERRUPTED) {
            (void)cli_report_dlx(p->cli, p->topic, code);
            return code;
        }
        if (wait_signal())
            return DLX_E_INTERRUPTED;
        int64_t now = wait_now();
        start = start ? start : now;
        if (p->timeout_ns && now - start >= p->timeout_ns) {
            (void)cli_report_dlx(p->cli, p->topic, code);
            return code;
        }
        if (!p->told_waiting && now - start > PATIENCE_NS && isatty(STDERR_FILENO)) {
            (void)cli_report(p->cli, p->topic, "waiting: %s", dlx_errmsg());
            p->told_waiting = true;
        }
    }
}

static int publish_item(struct pub *p, const struct source_item *item)
{
    struct outgoing o;
    struct cli_error e = {{0}};
    int code = outgoing_init(&o, p, item);
    if (code == 0) {
        progress_transfer(&p->progress, "reading", item->size);
        code = item->set ? source_read_set(p->source, o.data, &e)
                         : source_read(p->source, o.data[0], &e);
        progress_transfer(NULL, NULL, 0);
        if (code < 0 && code != DLX_E_INTERRUPTED)
            (void)cli_report(p->cli, p->topic, "%s", e.text);
    }
    if (code == 0)
        code = wait_turn(p, p->rate);
    if (code == 0)
        code = publish_outgoing(p, &o);
    outgoing_deinit(&o);
    return code;
}

static int publish_files(struct pub *p)
{
    for (uint64_t loop = 0; p->n_loops == 0 || loop < p->n_loops; loop++) {
        source_rewind(p->source);
        for (;;) {
            struct source_item item;
            struct cli_error e = {{0}};
            int code = wait_signal() ? DLX_E_INTERRUPTED : source_next(p->source, &item, &e);
            if (code == 0)
                break;
            if (code < 0 && code != DLX_E_INTERRUPTED)
                (void)cli_report(p->cli, p->topic, "%s", e.text);
            if (code > 0)
                code = publish_item(p, &item);
            if (code < 0)
                return code;
            p->end_ns = wait_now();
            show_progress(p);
        }
    }
    return 0;
}

/* A subscriber that came later may have left by now. */
static void note_who_came(struct pub *p)
{
    struct dlx_event event = {.size = sizeof event};
    while (dlx_publisher_next_event(p->publisher, &event) == 0)
        p->was_heard = p->was_heard || event.kind == DLX_EVENT_JOINED;
}

/* Stay, for late subscribers. Waiting for one more subscriber than there is lets the library serve
 * new ones. */
static int stay(struct pub *p)
{
    int64_t deadline = p->hold ? WAIT_FOREVER : wait_deadline(p->linger_ns);
    while (p->hold || p->linger_ns > 0) {
        int64_t left = deadline == WAIT_FOREVER ? WAIT_SLICE_NS : deadline - wait_now();
        if (left <= 0)
            break;
        if (wait_signal()) {
            note_who_came(p);
            return DLX_E_INTERRUPTED;
        }
        struct dlx_publisher_stats s = get_stats(p);
        if (progress_due(&p->progress, wait_now()))
            progress_show(&p->progress,
                          "%" PRIu64 " message%s published, %u subscriber%s, staying%s",
                          s.published, s.published == 1 ? "" : "s", s.n_subscribers,
                          s.n_subscribers == 1 ? "" : "s", p->hold ? " until Ctrl-C" : "");
        int code = dlx_publisher_wait(p->publisher, s.n_subscribers + 1,
                                      left < WAIT_SLICE_NS ? left : WAIT_SLICE_NS);
        if (code < 0 && code != DLX_E_TIMEOUT && code != DLX_E_INTERRUPTED) {
            (void)cli_report_dlx(p->cli, p->topic, code);
            return code;
        }
        note_who_came(p);
    }
    return 0;
}

/* Waits until the groups have done everything. */
static int drain(struct pub *p)
{
    int64_t deadline = p->timeout_ns ? wait_deadline(p->timeout_ns) : WAIT_FOREVER;
    while (p->drain) {
        if (wait_signal())
            return DLX_E_INTERRUPTED;
        int code = dlx_publisher_drain(p->publisher, WAIT_SLICE_NS);
        if (code == 0)
            break;
        if (code == DLX_E_INTERRUPTED)
            continue;
        if (code != DLX_E_TIMEOUT || wait_now() >= deadline) {
            (void)cli_report_dlx(p->cli, p->topic, code);
            return code;
        }
        if (progress_due(&p->progress, wait_now()))
            progress_show(&p->progress, "%s", dlx_errmsg());
    }
    return 0;
}

/* Finds what the daemon retains of the publisher: a retained one of the topic with its counts. */
struct legacy {
    const struct pub *pub;
    const struct dlx_publisher_stats *stats;
    uint64_t n_messages;
};

static int look_for_legacy(const struct dlx_publisher_info *info, void *userdata)
{
    struct legacy *l = userdata;
    if (info->retained && info->published == l->stats->published &&
        info->published_bytes == l->stats->published_bytes && info->retain == l->pub->retain)
        l->n_messages = info->published < info->retain ? info->published : info->retain;
    return 0;
}

/* Asks the daemon what it retains of the publisher that was closed. Returns a status. */
static int ask_retained(const struct pub *p, const struct dlx_publisher_stats *s, uint64_t *ret_n)
{
    struct legacy legacy = {.pub = p, .stats = s};
    *ret_n = 0;
    if (p->retain == 0 || p->retain_for_ns == DLX_RETAIN_LATCHED || s->published == 0)
        return CLI_OK;
    int code = dlx_list_publishers(p->cli->client, p->topic, look_for_legacy, &legacy);
    if (code < 0)
        return cli_report_dlx(p->cli, p->topic, code);
    *ret_n = legacy.n_messages;
    if (legacy.n_messages == 0)
        return cli_report(p->cli, p->topic,
                          "nothing is retained: it was replaced or dropped meanwhile");
    return CLI_OK;
}

static void print_retained(const struct pub *p, uint64_t n)
{
    char time[HUMAN_SIZE];
    printf("%s: %" PRIu64 " message%s retained", p->topic, n, n == 1 ? " is" : "s are");
    if (p->retain_for_ns > 0) {
        human_ns(p->retain_for_ns, time);
        printf(" for %s", time);
    }
    putchar('\n');
}

static int sum_up(struct pub *p, const struct dlx_publisher_stats *s, uint64_t n_retained)
{
    int64_t elapsed = p->end_ns > p->start_ns ? p->end_ns - p->start_ns : 0;
    double seconds = (double)elapsed / 1e9;
    char bytes[HUMAN_SIZE], time[HUMAN_SIZE], rate[HUMAN_SIZE];

    progress_clear();
    if (p->cli->json)
        return cli_json(
            p->cli,
            json_pack("{s:s, s:o, s:o, s:I, s:o, s:I, s:o}", "topic", p->topic, "published",
                      output_json_u64(s->published), "published_bytes",
                      output_json_u64(s->published_bytes), "elapsed_ns", (json_int_t)elapsed,
                      "copied_bytes", output_json_u64(s->copied_bytes), "n_subscribers",
                      (json_int_t)s->n_subscribers, "retained", output_json_u64(n_retained)),
            true);
    if (n_retained > 0)
        print_retained(p, n_retained);
    else if (s->published > 0 && !p->was_heard && p->groups.n == 0)
        (void)cli_report(p->cli, p->topic, "no program was subscribed, and no message is retained");
    if (!isatty(STDERR_FILENO))
        return cli_finish(p->cli, CLI_OK);
    human_bytes(s->published_bytes, bytes);
    human_ns(elapsed, time);
    human_number(seconds > 0 ? (double)s->published / seconds : 0, rate);
    fprintf(stderr, "%s: %" PRIu64 " message%s, %s in %s", p->topic, s->published,
            s->published == 1 ? "" : "s", bytes, time);
    if (s->published > 1)
        fprintf(stderr, " (%s/s)", rate);
    fprintf(stderr, ", %" PRIu64 " bytes copied, %u subscriber%s\n", s->copied_bytes,
            s->n_subscribers, s->n_subscribers == 1 ? "" : "s");
    return cli_finish(p->cli, CLI_OK);
}

static int run_stages(struct pub *p, bool *ret_endless)
{
    *ret_endless = false;
    int code = wait_subscribers(p);
    if (code < 0)
        return code;
    *ret_endless = p->n_loops == 0;
    p->start_ns = p->end_ns = wait_now();
    code = publish_files(p);
    if (code < 0)
        return code;
    code = drain(p);
    if (code < 0)
        return code;
    *ret_endless = p->hold;
    return stay(p);
}

int pub_run(struct pub *p)
{
    struct dlx_publisher_args args = {.size = sizeof args,
                                      .history = p->history,
                                      .on_full = waits(p) ? DLX_ON_FULL_BLOCK : DLX_ON_FULL_DROP,
                                      .groups = p->groups.n > 0 ? p->groups.items : NULL,
                                      .n_groups = p->groups.n,
                                      .retain = p->retain,
                                      .retain_for_ns = p->retain_for_ns};
    bool endless = false;
    uint64_t n_retained = 0;

    if (cli_connect(p->cli) < 0)
        return CLI_FAILURE;
    int code = dlx_publisher_new(p->cli->client, p->topic, &args, &p->publisher);
    if (code < 0)
        return cli_report_dlx(p->cli, p->topic, code);
    progress_init(&p->progress, p->topic, stderr, !p->cli->json, PROGRESS_NS);
    code = run_stages(p, &endless);
    struct dlx_publisher_stats stats = get_stats(p);
    p->publisher = dlx_publisher_unref(p->publisher);
    int status = CLI_OK;
    if (code == 0 || code == DLX_E_INTERRUPTED || stats.published > 0) {
        status = ask_retained(p, &stats, &n_retained);
        if (sum_up(p, &stats, n_retained) != CLI_OK)
            status = CLI_FAILURE;
    } /* else the failure is all there is to say */
    if (code == DLX_E_INTERRUPTED)
        status = status == CLI_OK ? cli_signal_status(endless) : status;
    else if (code < 0)
        status = CLI_FAILURE;
    return status;
}
