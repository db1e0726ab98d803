/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/trace_chrome.h"
#include "cli/output.h"
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct trace_chrome {
    char path[256];
    FILE *file;
    uint64_t n;
    uint64_t n_left_out;
    int error; /* of the first write that failed; 0: none */
    /* Of the last topic, as JSON: messages of a stream follow each other. */
    char *topic;
    char *topic_json;
};

int trace_chrome_open(struct trace_chrome **ret, const char *path, struct cli_error *e)
{
    struct trace_chrome *c = calloc(1, sizeof *c);
    if (!c)
        return cli_fail(e, DLX_E_NO_MEMORY, "out of memory");
    (void)snprintf(c->path, sizeof c->path, "%s", path);
    c->file = fopen(path, "we");
    if (!c->file) {
        int error = errno;
        free(c);
        return cli_fail(e, DLX_E_SYSTEM, "%s: %s", path, strerror(error));
    }
    (void)fputs("{\"displayTimeUnit\": \"ns\", \"traceEvents\": [", c->file);
    *ret = c;
    return 0;
}

static void __attribute__((format(printf, 2, 3)))
write_text(struct trace_chrome *c, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (vfprintf(c->file, format, args) < 0 && c->error == 0)
        c->error = errno;
    va_end(args);
}

/* With quotes. Names are of other processes. */
static char *text_json(const char *text)
{
    json_t *json = output_json_text(text);
    char *quoted = json ? json_dumps(json, JSON_ENCODE_ANY | JSON_ENSURE_ASCII) : NULL;
    json_decref(json);
    return quoted;
}

static const char *chrome_topic(struct trace_chrome *c, const char *topic)
{
    if (!c->topic || strcmp(c->topic, topic) != 0) {
        free(c->topic);
        free(c->topic_json);
        c->topic = strdup(topic);
        c->topic_json = text_json(topic);
    }
    return c->topic_json ? c->topic_json : "\"?\"";
}

/* May so many events be added? */
static bool has_room(struct trace_chrome *c, uint64_t n)
{
    if (c->n + n > TRACE_CHROME_MAX) {
        c->n_left_out += n;
        return false;
    }
    return true;
}

/* The beginning of an event. Its end is "}}", after the arguments. Times are in microseconds. */
static void chrome_begin(struct trace_chrome *c, const char *phase, const char *what,
                         const char *topic, uint32_t pid, uint32_t tid, uint64_t ns)
{
    write_text(c,
               "%s\n{\"ph\": \"%s\", \"cat\": \"%s\", \"name\": %s, \"pid\": %u, \"tid\": %u, "
               "\"ts\": %" PRIu64 ".%03u, ",
               c->n++ > 0 ? "," : "", phase, what, chrome_topic(c, topic), pid, tid, ns / 1000,
               (unsigned)(ns % 1000));
}

struct span {
    const char *what;
    uint32_t pid, tid;
    uint64_t begin_ns, end_ns;
    uint64_t link, n, publisher, bytes;
    bool is_cut; /* it went on at the end */
};

static void add_span(struct trace_chrome *c, const struct span *s, const char *topic)
{
    uint64_t end = s->end_ns > s->begin_ns ? s->end_ns : s->begin_ns;
    if (!has_room(c, 2))
        return;
    chrome_begin(c, "b", s->what, topic, s->pid, s->tid, s->begin_ns);
    write_text(c,
               "\"id\": \"%s %" PRIu64 ".%" PRIu64 "\", \"args\": {\"message\": %" PRIu64
               ", \"publisher\": %" PRIu64 ", \"bytes\": %" PRIu64 "}}",
               s->what, s->link, s->n, s->n, s->publisher, s->bytes);
    chrome_begin(c, "e", s->what, topic, s->pid, s->tid, end);
    write_text(c, "\"id\": \"%s %" PRIu64 ".%" PRIu64 "\", \"args\": {%s}}", s->what, s->link, s->n,
               s->is_cut ? "\"not released\": true" : "");
}

static void add_instant(struct trace_chrome *c, const struct trace_event *event, const char *what,
                        const char *topic)
{
    if (!has_room(c, 1))
        return;
    chrome_begin(c, "i", what, topic, event->pid, event->tid, event->ns);
    write_text(c, "\"s\": \"t\", \"args\": {");
    if (event->kind == TRACE_PUBLISH)
        write_text(c, "\"message\": %" PRIu64 ", \"bytes\": %" PRIu64 "}}", event->n, event->bytes);
    else
        write_text(c, "\"wakes\": %u}}", event->peer);
}

void trace_chrome_add(struct trace_chrome *c, const struct trace_event *event, const char *topic)
{
    struct span span = {.what = event->kind == TRACE_TAKE ? "on the way" : "held",
                        .pid = event->pid,
                        .tid = event->tid,
                        .begin_ns = event->since_ns,
                        .end_ns = event->ns,
                        .link = event->link,
                        .n = event->n,
                        .publisher = event->publisher,
                        .bytes = event->bytes};
    if (event->kind == TRACE_TAKE || event->kind == TRACE_RELEASE)
        add_span(c, &span, topic);
    else if (event->kind == TRACE_PUBLISH)
        add_instant(c, event, "publish", topic);
    else if (event->kind == TRACE_BELL)
        add_instant(c, event, "bell", topic);
}

void trace_chrome_add_held(struct trace_chrome *c, const struct trace_hold_key *key,
                           const struct trace_hold *hold, uint64_t now, const char *topic)
{
    const struct span span = {.what = "held",
                              .pid = hold->pid,
                              .tid = hold->tid,
                              .begin_ns = hold->taken_ns,
                              .end_ns = now,
                              .link = key->link,
                              .n = key->n,
                              .publisher = hold->publisher,
                              .bytes = hold->bytes,
                              .is_cut = true};
    add_span(c, &span, topic);
}

void trace_chrome_add_process(struct trace_chrome *c, uint32_t pid, const char *name)
{
    char *json = text_json(name);
    write_text(c,
               "%s\n{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %u, \"tid\": %u, "
               "\"args\": {\"name\": %s}}",
               c->n++ > 0 ? "," : "", pid, pid, json ? json : "\"?\"");
    free(json);
}

int trace_chrome_close(struct trace_chrome *c, uint64_t *ret_left_out, struct cli_error *e)
{
    *ret_left_out = c->n_left_out;
    write_text(c, "\n]}\n");
    if (fclose(c->file) != 0 && c->error == 0)
        c->error = errno;
    int r = c->error == 0 ? 0 : cli_fail(e, DLX_E_SYSTEM, "%s: %s", c->path, strerror(c->error));
    free(c->topic);
    free(c->topic_json);
    free(c);
    return r;
}
