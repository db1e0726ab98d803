/* SPDX-License-Identifier: Apache-2.0 */

/* A subscription, from connecting to the end that its options ask for. */

#include "cli/stream.h"
#include "cli/describe.h"
#include "cli/look.h"
#include "cli/output.h"
#include "cli/wait.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const struct cli_option stream_options[] = {
    {"history", 'H', "N", CLI_IN(struct stream_args, subscribe.history, 0, UINT32_MAX),
     "Begin with up to N messages published before"},
    {"latest", 'l', NULL, CLI_TO(struct stream_args, latest),
     "Take only the newest message, skip older ones"},
    {"reliable", 'r', NULL, CLI_TO(struct stream_args, subscribe.reliable),
     "Make the publisher wait instead of dropping; only publishers that block do (pub --block)"},
    {"group", 'G', "NAME", CLI_TO(struct stream_args, group),
     "Be a worker of this group: take messages that no other worker of it has, and say that they "
     "are done"},
    {"timeout", 't', "TIME", CLI_IN(struct stream_args, timeout_ns, 1, 0),
     "Fail when no message comes for this time"},
    {"until-gone", 'g', NULL, CLI_TO(struct stream_args, until_gone),
     "End when the last publisher has left"},
    {0},
};

void stream_check(void *args, struct argp_state *state)
{
    struct stream_args *a = args;
    if (a->subscribe.reliable && a->latest)
        argp_error(state, "--latest and --reliable exclude each other");
    if (a->group && (a->latest || a->subscribe.reliable || a->subscribe.history > 0))
        argp_error(state, "--group takes each message once, in order: not with --latest, "
                          "--reliable and --history");
    a->subscribe.group = a->group;
    a->subscribe.mode = a->latest ? DLX_MODE_LATEST : DLX_MODE_ALL;
    a->subscribe.n_publishers = a->until_gone ? 1 : 0; /* also of a pattern */
}

int stream_open(struct stream *s, const struct stream_args *args, const char *topic)
{
    *s = (struct stream){.args = *args, .topic = topic, .wake = WAIT_FOREVER};
    s->args.subscribe.size = sizeof s->args.subscribe;
    int code = cli_connect(args->cli);
    if (code < 0)
        return code;
    s->start = wait_now();
    code = dlx_subscribe(args->cli->client, topic, &s->args.subscribe, &s->subscription);
    if (code < 0) {
        (void)cli_report_dlx(args->cli, topic, code);
        return code;
    }
    s->last = wait_now();
    s->end = args->duration_ns > 0 ? wait_deadline(args->duration_ns) : WAIT_FOREVER;
    if (stream_stats(s).n_publishers == 0) /* the topic may be misspelt */
        (void)cli_report(args->cli, topic, "no publisher yet, waiting for one");
    return 0;
}

void stream_close(struct stream *s)
{
    s->subscription = dlx_subscription_unref(s->subscription);
}

struct dlx_subscription_stats stream_stats(const struct stream *s)
{
    struct dlx_subscription_stats stats = {.size = sizeof stats};
    if (dlx_subscription_get_stats(s->subscription, &stats) < 0)
        return (struct dlx_subscription_stats){0};
    return stats;
}

void stream_report_retained(const struct stream *s)
{
    struct look look = {.cli = s->args.cli, .topic = s->topic};
    size_t n_retained = 0;
    if (!s->args.until_gone && stream_stats(s).n_publishers > 0 && look_ask(&look) == 0)
        while (n_retained < look.n_entries && look.entries[n_retained].info.retained)
            n_retained++;
    if (n_retained > 0 && n_retained == look.n_entries)
        (void)cli_report(s->args.cli, s->topic,
                         "only retained messages: no publisher yet, waiting for one");
    look_clear(&look);
}

/* Adds the first subscriber that a publisher of the topic waits for, if the daemon reports one. */
static void add_blocker(const struct stream *s, char text[STREAM_PUBLISHERS_SIZE])
{
    struct look look = {.cli = s->args.cli, .topic = s->topic};
    const struct dlx_link_info *blocker = NULL;
    size_t at = strlen(text);
    if (look_ask(&look) == 0)
        for (size_t i = 0; i < look.n_entries && !blocker; i++)
            for (size_t j = 0; j < look.entries[i].n_links && !blocker; j++)
                if (look_blocks(&look.entries[i].links[j]))
                    blocker = &look.entries[i].links[j];
    if (blocker) {
        char name[sizeof blocker->client_name], pid[DESCRIBE_PID_SIZE];
        output_printable(blocker->client_name, name, sizeof name);
        (void)snprintf(text + at, STREAM_PUBLISHERS_SIZE - at, ", BLOCKED by %s (pid %s)", name,
                       describe_pid(blocker->pid, pid));
    }
    look_clear(&look);
}

const char *stream_publishers(const struct stream *s, char text[STREAM_PUBLISHERS_SIZE])
{
    uint32_t n = stream_stats(s).n_publishers;
    if (n == 0)
        (void)snprintf(text, STREAM_PUBLISHERS_SIZE, "no publisher");
    else
        (void)snprintf(text, STREAM_PUBLISHERS_SIZE, "%u publisher%s attached", n,
                       n == 1 ? "" : "s");
    if (n > 0)
        add_blocker(s, text);
    return text;
}

static void report(struct stream *s, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void report(struct stream *s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(s->words.text, sizeof s->words.text, format, args);
    va_end(args);
    if (!s->is_silent)
        (void)cli_report(s->args.cli, s->topic, "%s", s->words.text);
}

static void report_dlx(struct stream *s, int code)
{
    const char *words = dlx_errmsg();
    if (s->is_silent)
        report(s, "%s", words && *words ? words : dlx_strerror(code));
    else
        (void)cli_report_dlx(s->args.cli, s->topic, code);
}

static int report_silence(struct stream *s)
{
    char time[HUMAN_SIZE], publishers[STREAM_PUBLISHERS_SIZE];
    human_ns(s->args.timeout_ns, time);
    report(s, "no message within %s: %s", time, stream_publishers(s, publishers));
    return DLX_E_TIMEOUT;
}

/* Handles a failure of dlx_take(). Returns 1 to go on, 0 for the end, or a negative code. */
static int on_take_failed(struct stream *s, int code)
{
    switch (code) {
    case DLX_E_PUBLISHER_GONE:
        if (s->args.until_gone)
            return 0;
        if (s->is_silent || isatty(STDERR_FILENO))
            report(s, "the publisher has left, waiting for another");
        return 1;
    case DLX_E_BAD_PEER: /* that link is cut, others go on */
        report_dlx(s, code);
        return 1;
    case DLX_E_INTERRUPTED:
        return 1;
    case DLX_E_DISCONNECTED: /* the subscription reconnects to the next daemon */
        report_dlx(s, code);
        return s->is_silent && !s->args.until_gone ? 1 : code;
    default:
        report_dlx(s, code);
        return code;
    }
}

void stream_finish(const struct stream *s, struct dlx_message *m)
{
    int code = s->args.group ? dlx_message_done(m) : 0;
    if (code < 0) /* another worker may have done it, too */
        (void)cli_report_dlx(s->args.cli, s->topic, code);
    dlx_message_unref(m);
}

int stream_next(struct stream *s, struct dlx_message **ret_message)
{
    int64_t silence = WAIT_FOREVER;
    if (s->args.timeout_ns > 0 && __builtin_add_overflow(s->last, s->args.timeout_ns, &silence))
        silence = WAIT_FOREVER;
    int64_t deadline = silence < s->end ? silence : s->end;
    deadline = deadline < s->wake ? deadline : s->wake;

    while (!wait_signal() && (s->end == WAIT_FOREVER || wait_now() < s->end)) {
        int code = dlx_take(s->subscription, 0, ret_message);
        if (code == 0) {
            s->last = wait_now();
            s->words.text[0] = '\0';
            return 1;
        }
        if (code != DLX_E_EMPTY && code != DLX_E_TIMEOUT) {
            code = on_take_failed(s, code);
            if (code <= 0)
                return code;
            continue;
        }
        int fd = dlx_subscription_fd(s->subscription);
        if (fd < 0) {
            report_dlx(s, fd);
            return fd;
        }
        code = wait_until(fd, deadline);
        if (code == DLX_E_SYSTEM) {
            report(s, "waiting for messages failed");
            return code;
        }
        if (code == DLX_E_TIMEOUT && wait_now() >= silence)
            return report_silence(s);
        if (code == DLX_E_TIMEOUT && wait_now() >= s->wake)
            return STREAM_WAKE;
    }
    return 0;
}
