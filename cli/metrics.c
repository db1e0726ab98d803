/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/metrics.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- which topics have series ---------------------------------------------------------------- */

void metrics_name_topics(struct metrics *m)
{
    for (size_t i = 0; i < m->board->n_topics && m->n_named < m->n_topics_max; i++) {
        m->n_named += !m->board->topics[i].kept;
        m->board->topics[i].kept = true;
    }
}

void metrics_deinit(struct metrics *m)
{
    free(m->quotas.items);
    *m = (struct metrics){0};
}

/* ---- the text -------------------------------------------------------------------------------- */

static void put_head(FILE *f, const char *name, const char *type, const char *help)
{
    fprintf(f, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put_gauge(FILE *f, const char *name, const char *help, double value)
{
    put_head(f, name, "gauge", help);
    fprintf(f, "%s %.15g\n", name, value);
}

/* The value of a label: what another program chose is escaped. */
static void put_label(FILE *f, const char *name, const char *value)
{
    fprintf(f, "%s=\"", name);
    for (; *value; value++)
        if (*value == '\n')
            (void)fputs("\\n", f);
        else if (*value == '"' || *value == '\\')
            fprintf(f, "\\%c", *value);
        else
            (void)fputc(*value, f);
    (void)fputc('"', f);
}

/* What is shown of each topic. */
struct series {
    const char *name, *type, *help;
    const char *reason; /* the value of a label; a further row of the same name has no help */
    double (*get)(const struct board_topic *t);
    bool is_largest; /* of several topics: the largest, not the sum */
};

#define GETTER(name, member)                                                                       \
    static double name(const struct board_topic *t)                                                \
    {                                                                                              \
        return (double)t->member;                                                                  \
    }
GETTER(get_messages, counters[BOARD_MESSAGES])
GETTER(get_bytes, counters[BOARD_BYTES])
GETTER(get_refused, counters[BOARD_REFUSED])
GETTER(get_lost, counters[BOARD_LOST])
GETTER(get_skipped, counters[BOARD_SKIPPED])
GETTER(get_copied, counters[BOARD_COPIED])
GETTER(get_copied_bytes, counters[BOARD_COPIED_BYTES])
GETTER(get_blocked_seconds, counters[BOARD_BLOCKED_NS] / 1e9)
GETTER(get_publishers, n_publishers)
GETTER(get_retained, n_retained)
GETTER(get_subscribers, n_subscribers)
GETTER(get_behind, behind)
GETTER(get_held, n_held)
GETTER(get_held_bytes, held_bytes)
GETTER(get_memory, memory_bytes)
GETTER(get_full, n_full)
GETTER(get_blocked, blocked)
GETTER(get_hold_seconds, held_age_ns / 1e9)
GETTER(get_waiting_seconds, next_age_ns / 1e9)

static const struct series series[] = {
    {"dlx_published_messages_total", "counter", "Messages that were published.", NULL, get_messages,
     false},
    {"dlx_published_bytes_total", "counter", "Payload of messages that were published.", NULL,
     get_bytes, false},
    {"dlx_refused_messages_total", "counter",
     "Messages that could not be published, since there was no room in time.", NULL, get_refused,
     false},
    {"dlx_dropped_messages_total", "counter",
     "Messages that a subscriber did not get: lost, or skipped on purpose (mode latest).", "lost",
     get_lost, false},
    {"dlx_dropped_messages_total", NULL, NULL, "skipped", get_skipped, false},
    {"dlx_copied_messages_total", "counter", "Messages that were copied into shared memory.", NULL,
     get_copied, false},
    {"dlx_copied_bytes_total", "counter", "Payload that was copied.", NULL, get_copied_bytes,
     false},
    {"dlx_blocked_seconds_total", "counter", "How long publishes have waited for room.", NULL,
     get_blocked_seconds, false},
    {"dlx_topic_publishers", "gauge", "Publishers that are there.", NULL, get_publishers, false},
    {"dlx_topic_retained_publishers", "gauge",
     "Publishers that are gone and whose messages are retained.", NULL, get_retained, false},
    {"dlx_topic_subscribers", "gauge", "Subscribers that are attached.", NULL, get_subscribers,
     false},
    {"dlx_topic_full_subscribers", "gauge", "Subscribers that hold as many messages as they may.",
     NULL, get_full, false},
    {"dlx_topic_behind_messages", "gauge", "How far the slowest subscriber is behind.", NULL,
     get_behind, true},
    {"dlx_topic_held_messages", "gauge", "Messages that subscribers hold.", NULL, get_held, false},
    {"dlx_held_bytes", "gauge",
     "Estimate of the payload of messages that subscribers hold: their number times the mean size "
     "of all messages of the publisher; what two subscribers hold counts twice.",
     NULL, get_held_bytes, false},
    {"dlx_topic_oldest_hold_seconds", "gauge",
     "Time since the oldest message that a subscriber holds was published.", NULL, get_hold_seconds,
     true},
    {"dlx_topic_oldest_waiting_seconds", "gauge",
     "Time since the oldest message that a subscriber has yet to take was published.", NULL,
     get_waiting_seconds, true},
    {"dlx_topic_memory_bytes", "gauge", "Shared memory of publishers.", NULL, get_memory, false},
    {"dlx_topic_blocked", "gauge", "Whether a publisher waits for a subscriber now (1).", NULL,
     get_blocked, true},
};

static void put_value(FILE *f, const struct series *s, const char *topic, double value)
{
    fprintf(f, "%s{", s->name);
    put_label(f, "topic", topic);
    if (s->reason) {
        (void)fputc(',', f);
        put_label(f, "reason", s->reason);
    }
    fprintf(f, "} %.16g\n", value);
}

/* What forgotten topics have counted. */
static double forgotten(const struct metrics *m, const struct series *s)
{
    struct board_topic all = {.name = ""};
    memcpy(all.counters, m->board->forgotten, sizeof all.counters);
    return s->get(&all);
}

/* Without `all`: topics that every user may observe, if there are any, and no sum of others. */
static void put_open_series(FILE *f, const struct metrics *m, const struct series *s)
{
    if (s->help)
        put_head(f, s->name, s->type, s->help);
    for (size_t i = 0; i < m->board->n_topics; i++) {
        const struct board_topic *t = &m->board->topics[i];
        if (t->kept && t->for_everybody)
            put_value(f, s, t->name, s->get(t));
    }
}

static bool has_open_topics(const struct metrics *m)
{
    bool has = false;
    for (size_t i = 0; i < m->board->n_topics && !has; i++)
        has = m->board->topics[i].kept && m->board->topics[i].for_everybody;
    return has;
}

static void put_series(FILE *f, const struct metrics *m, const struct series *s)
{
    double others = forgotten(m, s);
    bool has_others = m->n_named < m->board->n_topics;
    if (s->help)
        put_head(f, s->name, s->type, s->help);
    for (size_t i = 0; i < m->board->n_topics; i++) {
        const struct board_topic *t = &m->board->topics[i];
        const double value = s->get(t);
        if (t->kept)
            put_value(f, s, t->name, value);
        else
            others = !s->is_largest ? others + value : value > others ? value : others;
    }
    if (has_others || others > 0)
        put_value(f, s, METRICS_OTHER, others);
}

static void put_quotas(FILE *f, const struct metrics *m, const char *name, const char *help,
                       bool is_max)
{
    put_head(f, name, "gauge", help);
    for (size_t i = 0; i < m->quotas.n; i++) {
        const struct dlx_quota_info *q = &m->quotas.items[i];
        if (is_max && q->max == DLX_QUOTA_UNLIMITED)
            continue;
        fprintf(f, "%s{uid=\"%" PRIu32 "\",", name, q->uid);
        put_label(f, "socket", q->socket);
        (void)fputc(',', f);
        put_label(f, "quota", q->name);
        fprintf(f, "} %" PRIu64 "\n", is_max ? q->max : q->used);
    }
}

static void put_daemon(FILE *f, const struct dlx_daemon_info *d)
{
    put_head(f, "dlx_daemon_info", "gauge", "The version of dlpackd and of its protocol.");
    (void)fputs("dlx_daemon_info{", f);
    put_label(f, "version", d->version);
    fprintf(f, ",protocol=\"%" PRIu32 ".%" PRIu32 "\"} 1\n", d->protocol_major, d->protocol_minor);
    put_gauge(f, "dlx_daemon_uptime_seconds", "Time since the start of dlpackd.",
              (double)d->uptime_ns / 1e9);
    put_gauge(f, "dlx_daemon_longest_turn_seconds", "CPU time of the longest turn of its loop.",
              (double)d->longest_turn_ns / 1e9);
    put_gauge(f, "dlx_daemon_lacks",
              "Whether dlpackd lacks descriptors, memory or a thread now (1): links wait.",
              d->lack[0] != '\0');
    put_gauge(f, "dlx_clients", "Connections.", d->n_clients);
    put_gauge(f, "dlx_topics", "Topics with a publisher or a subscription.", d->n_topics);
    put_gauge(f, "dlx_publishers", "Publishers.", d->n_publishers);
    put_gauge(f, "dlx_links", "Links, and closed ones that still hold messages.", d->n_links);
    put_gauge(f, "dlx_shared_memory_bytes", "Shared memory that dlpackd handed out.",
              (double)d->shared_bytes);
    put_gauge(f, "dlx_former_memory_bytes",
              "Of it, what programs keep of the memory of earlier daemons.",
              (double)d->former_bytes);
    put_head(f, "dlx_reclaimed_messages_total", "counter",
             "Messages that subscribers held when they died, since the start of dlpackd.");
    fprintf(f, "dlx_reclaimed_messages_total %" PRIu64 "\n", d->reclaimed);
    put_head(f, "dlx_refusals_total", "counter", "What dlpackd has refused since its start.");
    const struct {
        const char *reason;
        uint64_t n;
    } refusals[] = {{"access", d->refused_access},
                    {"limit", d->refused_limit},
                    {"qos", d->refused_qos},
                    {"other", d->refused_other}};
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++)
        fprintf(f, "dlx_refusals_total{reason=\"%s\"} %" PRIu64 "\n", refusals[i].reason,
                refusals[i].n);
}

char *metrics_text(const struct metrics *m, bool all, size_t *ret_size)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, ret_size);
    if (!f)
        return NULL;
    const int64_t look_ns = m->board->look_ns;
    put_gauge(f, "dlx_up", "Whether dlpackd answered at the last look (1).", m->up);
    if (look_ns > 0) {
        put_gauge(f, "dlx_look_age_seconds", "Time since the last look that dlpackd answered.",
                  (double)(m->now_ns - look_ns) / 1e9);
        put_daemon(f, m->daemon);
    }
    if (look_ns > 0 && m->up && !all && has_open_topics(m)) /* else the rules may be others now */
        for (size_t i = 0; i < sizeof series / sizeof series[0]; i++)
            put_open_series(f, m, &series[i]);
    if (look_ns > 0 && all) {
        for (size_t i = 0; i < sizeof series / sizeof series[0]; i++)
            put_series(f, m, &series[i]);
        put_gauge(f, "dlx_unserved_subscriptions", "Subscriptions that no publisher serves.",
                  (double)m->board->n_unserved);
        put_gauge(f, "dlx_hidden_publishers",
                  "Publishers that rules of dlpackd keep from the user of dlxctl serve.",
                  (double)m->board->n_hidden);
        put_gauge(f, "dlx_named_topics", "Topics that have series of their own.",
                  (double)m->n_named);
        put_quotas(f, m, "dlx_quota_used", "What a user of dlpackd uses, by quota.", false);
        put_quotas(f, m, "dlx_quota_limit", "What it may use; quotas without a limit have none.",
                   true);
    }
    bool failed = ferror(f);
    if (fclose(f) == 0 && !failed)
        return text;
    free(text);
    return NULL;
}
