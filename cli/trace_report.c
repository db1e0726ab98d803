/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/trace_report.h"
#include "cli/output.h"
#include <dlx/error.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { BAR_SIZE = 40, N_OCTAVES = TRACE_SLOTS / 4 + 1 };

/* Times of a topic: to the take, or to the release. */
struct times {
    uint64_t slots[TRACE_SLOTS];
    uint64_t n;
    uint64_t max_ns;
};

struct topic {
    char name[TRACE_TOPIC_SIZE];
    uint32_t n_publishers;
    uint64_t published;
    uint64_t published_bytes;
    uint64_t taken;
    uint64_t released;
    struct times transit;
    struct times held;
};

struct wake {
    uint32_t waker;
    uint32_t woken;
    uint32_t end;
    char waker_name[64];
    char woken_name[64];
    char topic[TRACE_TOPIC_SIZE];
    uint64_t n;
};

struct trace_report {
    struct topic *topics;
    size_t n_topics;
    struct wake *wakes;
    size_t n_wakes;
    struct trace_exit *exits;
    size_t n_exits;
    uint64_t lacks[TRACE_N_LACKS];
};

struct trace_report *trace_report_new(void)
{
    return calloc(1, sizeof(struct trace_report));
}

struct trace_report *trace_report_free(struct trace_report *r)
{
    if (r) {
        free(r->topics);
        free(r->wakes);
        free(r->exits);
    }
    free(r);
    return NULL;
}

int trace_report_add_exit(struct trace_report *r, const struct trace_exit *exit)
{
    struct trace_exit *exits = reallocarray(r->exits, r->n_exits + 1, sizeof *exits);
    if (!exits)
        return DLX_E_NO_MEMORY;
    r->exits = exits;
    exits[r->n_exits++] = *exit;
    return 0;
}

void trace_report_print_exit(const struct trace_exit *exit, FILE *file)
{
    char program[64], topic[TRACE_TOPIC_SIZE], age[HUMAN_SIZE];
    output_printable(exit->program, program, sizeof program);
    output_printable(exit->topic, topic, sizeof topic);
    fprintf(file, "%s (pid %u) %s while it held %" PRIu64 " message%s of %s", program, exit->pid,
            exit->is_exec ? "executed another program" : "ended", exit->n, exit->n == 1 ? "" : "s",
            topic);
    if (exit->held_ns < 0) {
        fprintf(file, ", taken before this trace\n");
        return;
    }
    human_ns(exit->held_ns, age);
    fprintf(file, exit->n == 1 ? ", for %s\n" : ", the oldest for %s\n", age);
}

/* ---- counting -------------------------------------------------------------------------------- */

struct filling {
    struct trace_report *report;
    const struct trace_names *names;
    trace_report_wants_fn wants;
    void *userdata;
    bool lacks_memory;
};

static struct topic *topic_of(struct filling *f, const char *name)
{
    struct trace_report *r = f->report;
    for (size_t i = 0; i < r->n_topics; i++)
        if (strcmp(r->topics[i].name, name) == 0)
            return &r->topics[i];
    struct topic *topics = reallocarray(r->topics, r->n_topics + 1, sizeof *topics);
    if (!topics) {
        f->lacks_memory = true;
        return NULL;
    }
    r->topics = topics;
    topics[r->n_topics] = (struct topic){0};
    (void)snprintf(topics[r->n_topics].name, sizeof topics->name, "%s", name);
    return &topics[r->n_topics++];
}

static void add_times(struct times *times, const uint64_t slots[TRACE_SLOTS], uint64_t max_ns)
{
    for (int i = 0; i < TRACE_SLOTS; i++) {
        times->slots[i] += slots[i];
        times->n += slots[i];
    }
    times->max_ns = max_ns > times->max_ns ? max_ns : times->max_ns;
}

/* The name of a publisher's topic; NULL: not one that was asked for. */
static const char *wanted_topic(const struct filling *f, uint64_t publisher)
{
    const char *topic = trace_names_topic(f->names, publisher);
    return topic && f->wants(topic, f->userdata) ? topic : NULL;
}

static void report_add_publisher(const void *key, const void *value, void *userdata)
{
    struct filling *f = userdata;
    const struct trace_publisher *p = value;
    const char *name = wanted_topic(f, *(const uint64_t *)key);
    struct topic *topic = name ? topic_of(f, name) : NULL;
    if (!topic)
        return;
    topic->n_publishers++;
    topic->published += p->published;
    topic->published_bytes += p->published_bytes;
    topic->taken += p->taken;
    topic->released += p->released;
    add_times(&topic->transit, p->transit, p->transit_max_ns);
    add_times(&topic->held, p->held, p->held_max_ns);
}

static void add_bell(const void *key, const void *value, void *userdata)
{
    struct filling *f = userdata;
    struct trace_report *r = f->report;
    const struct trace_bell_key *k = key;
    const struct trace_bell *bell = value;
    const char *topic = wanted_topic(f, bell->publisher), *name;
    struct wake *wakes = topic ? reallocarray(r->wakes, r->n_wakes + 1, sizeof *wakes) : NULL;
    if (!wakes) {
        f->lacks_memory |= topic != NULL;
        return;
    }
    r->wakes = wakes;
    struct wake *wake = &wakes[r->n_wakes++];
    *wake = (struct wake){.waker = k->pid, .woken = bell->peer, .end = k->end, .n = bell->n};
    name = trace_names_program(f->names, k->pid);
    if (name)
        (void)snprintf(wake->waker_name, sizeof wake->waker_name, "%s", name);
    else
        (void)snprintf(wake->waker_name, sizeof wake->waker_name, "%.15s", bell->comm);
    name = trace_names_program(f->names, bell->peer);
    (void)snprintf(wake->woken_name, sizeof wake->woken_name, "%s", name ? name : "");
    (void)snprintf(wake->topic, sizeof wake->topic, "%s", topic);
}

static int compare_topics(const void *a, const void *b)
{
    return strcmp(((const struct topic *)a)->name, ((const struct topic *)b)->name);
}

static int compare_wakes(const void *a, const void *b)
{
    const struct wake *x = a, *y = b;
    return (x->n < y->n) - (x->n > y->n);
}

int trace_report_fill(struct trace_report *r, const struct trace *t,
                      const struct trace_names *names, trace_report_wants_fn wants, void *userdata)
{
    struct filling f = {.report = r, .names = names, .wants = wants, .userdata = userdata};
    int code = trace_each(t, TRACE_PUBLISHERS, report_add_publisher, &f);
    if (code == 0)
        code = trace_each(t, TRACE_BELLS, add_bell, &f);
    trace_lacks(t, r->lacks);
    if (r->n_topics > 0)
        qsort(r->topics, r->n_topics, sizeof r->topics[0], compare_topics);
    if (r->n_wakes > 0)
        qsort(r->wakes, r->n_wakes, sizeof r->wakes[0], compare_wakes);
    return f.lacks_memory ? DLX_E_NO_MEMORY : code;
}

bool trace_report_is_empty(const struct trace_report *r)
{
    return r->n_topics == 0 && r->n_exits == 0 && r->n_wakes == 0;
}

/* ---- times ----------------------------------------------------------------------------------- */

/* The least time of a slot: trace.bpf.c says which is in which. */
static uint64_t slot_begin(int slot)
{
    unsigned octave = (unsigned)(slot + 4) / 4, quarter = (unsigned)(slot + 4) % 4;
    return slot < 4 ? (uint64_t)slot : (uint64_t)(4 + quarter) << (octave - 2);
}

/* As many of 1,000 took no longer, to an eighth of it. */
static uint64_t quantile(const struct times *times, unsigned per_mille)
{
    uint64_t rank = times->n * per_mille / 1000, seen = 0;
    for (int i = 0; i < TRACE_SLOTS; i++) {
        seen += times->slots[i];
        uint64_t middle = slot_begin(i) + (slot_begin(i + 1) - slot_begin(i)) / 2;
        if (seen > rank || seen == times->n)
            return middle < times->max_ns ? middle : times->max_ns;
    }
    return times->max_ns;
}

static void print_ns(FILE *file, const char *before, uint64_t ns)
{
    char text[HUMAN_SIZE];
    human_ns((int64_t)ns, text);
    fprintf(file, "%s%s", before, text);
}

static void print_bars(const struct times *times, FILE *file)
{
    uint64_t counts[N_OCTAVES] = {0}, most = 1;
    int first = N_OCTAVES, last = -1;
    for (int i = 0; i < TRACE_SLOTS; i++)
        counts[(i + 4) / 4 - 1] += times->slots[i];
    for (int i = 0; i < N_OCTAVES; i++) {
        if (counts[i] == 0)
            continue;
        first = i < first ? i : first;
        last = i;
        most = counts[i] > most ? counts[i] : most;
    }
    for (int i = first; i <= last; i++) {
        char from[HUMAN_SIZE], to[HUMAN_SIZE], bar[BAR_SIZE + 1];
        size_t n = (size_t)((double)counts[i] / (double)most * BAR_SIZE + 0.5);
        human_ns((int64_t)slot_begin(4 * i), from);
        human_ns((int64_t)slot_begin(4 * i + 4), to);
        memset(bar, '#', n);
        bar[n] = '\0';
        fprintf(file, "    %9s to %-9s |%-*s| %" PRIu64 "\n", from, to, BAR_SIZE, bar, counts[i]);
    }
}

static void print_times(const char *what, const struct times *times, FILE *file)
{
    if (times->n == 0)
        return;
    fprintf(file, "  %s", what);
    print_ns(file, "  p50 ", quantile(times, 500));
    print_ns(file, "  p90 ", quantile(times, 900));
    print_ns(file, "  p99 ", quantile(times, 990));
    print_ns(file, "  max ", times->max_ns);
    fprintf(file, "\n");
    print_bars(times, file);
}

/* ---- text ------------------------------------------------------------------------------------ */

static void print_topic(const struct topic *topic, FILE *file)
{
    char bytes[HUMAN_SIZE], name[TRACE_TOPIC_SIZE];
    human_bytes(topic->published_bytes, bytes);
    output_printable(topic->name, name, sizeof name);
    fprintf(file,
            "%s: %" PRIu64 " published (%s), %" PRIu64 " taken, %" PRIu64 " of them released\n",
            name, topic->published, bytes, topic->taken, topic->released);
    print_times("publish to take", &topic->transit, file);
    print_times("take to release", &topic->held, file);
}

static int print_wakes(const struct trace_report *r, FILE *file)
{
    static const struct table_column columns[] = {
        {"WAKER", TABLE_LEFT, true, 0},   {"PID", TABLE_RIGHT, false, 0},
        {"WAKES", TABLE_LEFT, true, 0},   {"PID", TABLE_RIGHT, false, 0},
        {"SINCE", TABLE_LEFT, false, 1},  {"TOPIC", TABLE_LEFT, true, 0},
        {"TIMES", TABLE_RIGHT, false, 0},
    };
    struct table *table = NULL;
    char waker[64], woken[64], topic[TRACE_TOPIC_SIZE];
    if (r->n_wakes == 0)
        return 0;
    if (table_new(&table, columns, sizeof columns / sizeof columns[0]) < 0)
        return DLX_E_NO_MEMORY;
    for (size_t i = 0; i < r->n_wakes; i++) {
        const struct wake *wake = &r->wakes[i];
        output_printable(wake->waker_name, waker, sizeof waker);
        output_printable(wake->woken_name, woken, sizeof woken);
        output_printable(wake->topic, topic, sizeof topic);
        table_cell(table, "%s", waker);
        table_cell(table, "%u", wake->waker);
        table_cell(table, "%s", woken);
        table_cell(table, "%u", wake->woken);
        table_cell(table, "%s", wake->end == TRACE_END_PUBLISHER ? "a message" : "room");
        table_cell(table, "%s", topic);
        table_cell(table, "%" PRIu64, wake->n);
    }
    int code = table_print(table, file, 0, output_width(file));
    table_free(table);
    return code;
}

#define NUMBER(n)  NUMBER_(n)
#define NUMBER_(n) #n

static const char *const lack_names[TRACE_N_LACKS] = {
    [TRACE_LACK_EVENTS] = "events came faster than they could be read",
    [TRACE_LACK_HOLDS] = "messages were held beside " NUMBER(TRACE_HOLDS_MAX) " others",
    [TRACE_LACK_PUBLISHERS] = "messages were of publishers beyond " NUMBER(TRACE_PUBLISHERS_MAX),
    [TRACE_LACK_BELLS] = "bells were of links beyond " NUMBER(TRACE_BELLS_MAX),
    [TRACE_LACK_PROGRAMS] = "messages were taken by programs beyond " NUMBER(TRACE_PROGRAMS_MAX),
};

int trace_report_print(const struct trace_report *r, FILE *file)
{
    for (size_t i = 0; i < r->n_topics; i++)
        print_topic(&r->topics[i], file);
    int code = print_wakes(r, file);
    for (int i = 0; i < TRACE_N_LACKS; i++)
        if (r->lacks[i] > 0)
            fprintf(file, "not counted: %" PRIu64 " %s\n", r->lacks[i], lack_names[i]);
    return code;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *times_json(const struct times *times)
{
    json_t *bars = json_array();
    if (times->n == 0) {
        json_decref(bars);
        return json_null();
    }
    for (int i = 0; i < TRACE_SLOTS; i++)
        if (times->slots[i] > 0)
            bars = output_json_append(bars, json_pack("{s:o, s:o, s:o}", "from_ns",
                                                      output_json_u64(slot_begin(i)), "to_ns",
                                                      output_json_u64(slot_begin(i + 1)), "count",
                                                      output_json_u64(times->slots[i])));
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "count", output_json_u64(times->n), "p50_ns",
                     output_json_u64(quantile(times, 500)), "p90_ns",
                     output_json_u64(quantile(times, 900)), "p99_ns",
                     output_json_u64(quantile(times, 990)), "max_ns",
                     output_json_u64(times->max_ns), "histogram", bars);
}

static json_t *report_topic_json(const struct topic *topic)
{
    return json_pack("{s:o, s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "topic",
                     output_json_text(topic->name), "n_publishers", (json_int_t)topic->n_publishers,
                     "published", output_json_u64(topic->published), "published_bytes",
                     output_json_u64(topic->published_bytes), "taken",
                     output_json_u64(topic->taken), "released", output_json_u64(topic->released),
                     "publish_to_take", times_json(&topic->transit), "take_to_release",
                     times_json(&topic->held));
}

static json_t *wake_json(const struct wake *wake)
{
    return json_pack("{s:o, s:I, s:o, s:I, s:s, s:o, s:o}", "waker",
                     output_json_text(wake->waker_name), "waker_pid", (json_int_t)wake->waker,
                     "woken", output_json_text(wake->woken_name), "woken_pid",
                     (json_int_t)wake->woken, "end",
                     wake->end == TRACE_END_PUBLISHER ? "publisher" : "subscriber", "topic",
                     output_json_text(wake->topic), "count", output_json_u64(wake->n));
}

static json_t *exit_json(const struct trace_exit *exit)
{
    return json_pack("{s:o, s:I, s:o, s:o, s:o, s:b}", "program", output_json_text(exit->program),
                     "pid", (json_int_t)exit->pid, "topic", output_json_text(exit->topic), "held",
                     output_json_u64(exit->n), "held_ns",
                     exit->held_ns < 0 ? json_null() : output_json_u64((uint64_t)exit->held_ns),
                     "executed", (int)exit->is_exec);
}

json_t *trace_report_json(const struct trace_report *r, int64_t duration_ns)
{
    json_t *topics = json_array(), *wakes = json_array(), *exits = json_array();
    uint64_t lack = 0;
    for (size_t i = 0; i < r->n_topics; i++)
        topics = output_json_append(topics, report_topic_json(&r->topics[i]));
    for (size_t i = 0; i < r->n_wakes; i++)
        wakes = output_json_append(wakes, wake_json(&r->wakes[i]));
    for (size_t i = 0; i < r->n_exits; i++)
        exits = output_json_append(exits, exit_json(&r->exits[i]));
    for (int i = 0; i < TRACE_N_LACKS; i++)
        lack += r->lacks[i];
    return json_pack("{s:I, s:o, s:o, s:o, s:o}", "duration_ns", (json_int_t)duration_ns, "topics",
                     topics, "wakes", wakes, "exits", exits, "not_counted", output_json_u64(lack));
}
