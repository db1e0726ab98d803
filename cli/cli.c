/* SPDX-License-Identifier: Apache-2.0 */

/* The common part of the commands: they report errors, connect, and parse command lines. */

#include "cli/cli.h"
#include "cli/args.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/wait.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- messages ------------------------------------------------------------------------------ */

int cli_report(const struct cli *cli, const char *what, const char *format, ...)
{
    char words[1024], shown[1024], shown_what[1024] = "";
    va_list args;
    va_start(args, format);
    (void)vsnprintf(words, sizeof words, format, args);
    va_end(args);
    output_printable(words, shown,
                     sizeof shown); /* paths and names of others' programs are in it */
    if (what)
        output_printable(what, shown_what, sizeof shown_what);
    progress_clear();
    (void)fflush(stdout);
    (void)fprintf(stderr, DLXCTL " %s: %s%s%s\n", cli->command, shown_what, what ? ": " : "",
                  shown);
    return CLI_FAILURE;
}

/* Do the words contain this topic as a whole word? */
static bool names_topic(const char *words, const char *topic)
{
    static const char in_topics[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                                    "_.-*/";
    const size_t n = strlen(topic);
    const char *at = n > 0 ? strstr(words, topic) : NULL;
    for (; at; at = strstr(at + 1, topic))
        if ((at == words || !strchr(in_topics, at[-1])) && (!at[n] || !strchr(in_topics, at[n])))
            return true;
    return false;
}

int cli_report_dlx(const struct cli *cli, const char *topic, int code)
{
    const char *words = dlx_errmsg();
    if (!words || !*words)
        words = dlx_strerror(code);
    return cli_report(cli, topic && !names_topic(words, topic) ? topic : NULL, "%s", words);
}

static int count_publisher(const struct dlx_publisher_info *info, void *n)
{
    (void)info;
    ++*(uint32_t *)n;
    return 0;
}

const char *cli_hidden_publishers(const struct cli *cli, char text[CLI_HIDDEN_SIZE])
{
    struct dlx_daemon_info info = {.size = sizeof info};
    uint32_t n = 0;
    text[0] = '\0';
    if (dlx_client_get_daemon_info(cli->client, &info) == 0 &&
        dlx_list_publishers(cli->client, NULL, count_publisher, &n) == 0 && info.n_publishers > n)
        (void)snprintf(text, CLI_HIDDEN_SIZE,
                       " that you may observe (dlpackd's rules hide %u: dlpackd.conf, `allow = "
                       "observe`)",
                       info.n_publishers - n);
    return text;
}

int cli_no_publisher(const struct cli *cli, const char *topic)
{
    char hidden[CLI_HIDDEN_SIZE];
    int failure = cli_report(cli, topic, "no publisher%s%s", topic ? "" : "s",
                             cli_hidden_publishers(cli, hidden));
    return topic ? failure : CLI_OK;
}

int cli_json(const struct cli *cli, json_t *json, bool lines)
{
    int code = output_json(stdout, json, lines);
    if (code == DLX_E_NO_MEMORY)
        return cli_report(cli, NULL, "out of memory");
    return cli_finish(cli, CLI_OK);
}

int cli_finish(const struct cli *cli, int status)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    int error = errno;
    return cli_report(cli, NULL, "writing to standard output: %s",
                      error ? strerror(error) : "failed");
}

int cli_signal_status(bool endless)
{
    return endless ? CLI_OK : CLI_SIGNAL + wait_signal();
}

bool cli_is_pattern(const char *topic)
{
    return strchr(topic, '*') != NULL; /* no topic contains one */
}

/* ---- the daemon ---------------------------------------------------------------------------- */

/* libdlx calls this while dlx_connect() waits for a daemon, and again while later calls wait. */
static int on_wait(void *userdata)
{
    struct cli *cli = userdata;
    char limit[HUMAN_SIZE] = "";
    const char *path = cli->socket ? cli->socket : getenv("DLX_SOCKET");
    if (cli->wait_daemon_ns != 0 && !cli->client && !cli->has_said_wait) {
        cli->has_said_wait = true;
        if (cli->wait_daemon_ns > 0)
            human_ns(cli->wait_daemon_ns, limit);
        (void)cli_report(cli, NULL, "waiting for dlpackd%s%s%s%s", path && *path ? " at " : "",
                         path && *path ? path : "", *limit ? ", at most " : "", limit);
    }
    return wait_signal() != 0 || (cli->on_wait && cli->on_wait(cli->on_wait_data));
}

/* Says how to start the missing daemon. If DLX_SOCKET names a path, the text of libdlx says it. */
static void report_no_daemon(const struct cli *cli)
{
    static const char wait[] = "or wait for it with --wait-daemon";
    const char *path = getenv("DLX_SOCKET"), *why = dlx_errmsg();
    if (cli->socket)
        (void)cli_report(cli, NULL, "%s; start it with `dlpackd --socket=%s`, %s", why, cli->socket,
                         wait);
    else if (path && *path)
        (void)cli_report(cli, NULL, "%s, %s", why, wait);
    else
        (void)cli_report(cli, NULL, "%s; start it with `dlpackd`, %s", why, wait);
}

int cli_connect(struct cli *cli)
{
    struct dlx_connect_args args = {
        .size = sizeof args,
        .socket = cli->socket,
        .autospawn = cli->wait_daemon_ns == 0 ? cli->autospawn : DLX_AUTOSPAWN_NEVER,
        .wait_ns = cli->wait_daemon_ns,
        .interrupt = on_wait,
        .interrupt_data = cli,
    };
    (void)wait_begin_blocking(); /* on_wait() sees a signal that came before */
    int code = dlx_connect(&args, &cli->client);
    wait_end_blocking();
    if (code == DLX_E_NO_DAEMON && cli->wait_daemon_ns == 0)
        report_no_daemon(cli);
    else if (code < 0)
        (void)cli_report_dlx(cli, NULL, code);
    return code;
}

/* ---- command lines -------------------------------------------------------------------------- */

static const struct cli_option common_options[] = {
    {"json", 'j', NULL, CLI_TO(struct cli, json), "Print JSON"},
    {"socket", 'S', "PATH", CLI_TO(struct cli, socket), "Socket of the daemon"},
    {"wait-daemon", 0, "TIME", CLI_TIME_OR_EVER, offsetof(struct cli, wait_daemon_ns), 1, 0,
     "Wait until a daemon is up, at most for TIME; start none"},
    {0},
};

/* An option without a letter has the key KEY_OF_ROW + the index of its row. */
enum { ROWS_MAX = 32, KEY_OF_ROW = 0x100 };

struct parser {
    const struct cli_line *line;
    void *into;
    struct row {
        const struct cli_option *option;
        void *to; /* the member */
    } rows[ROWS_MAX];
    size_t n;
    size_t n_arguments;                       /* given so far */
    struct argp_option options[ROWS_MAX + 1]; /* what argp knows: the rows without arguments */
    size_t n_options;
    char arguments[128]; /* for --help: "TOPIC [FILE]" */
};

static bool is_argument(const struct cli_option *o)
{
    return !o->name && o->type != CLI_HEADING;
}

static int key_of(const struct parser *p, size_t i)
{
    const struct cli_option *o = p->rows[i].option;
    return o->letter || !o->name ? o->letter : KEY_OF_ROW + (int)i;
}

static void add_rows(struct parser *p, const struct cli_option *o, void *into)
{
    for (; o && o->type != CLI_END; o++) {
        const size_t n = strlen(p->arguments);
        assert(p->n < ROWS_MAX);
        p->rows[p->n++] = (struct row){o, (char *)into + o->offset};
        if (is_argument(o))
            (void)snprintf(p->arguments + n, sizeof p->arguments - n, o->help ? "%s%s" : "%s[%s]",
                           n > 0 ? " " : "", o->value);
        else
            p->options[p->n_options++] = (struct argp_option){
                o->name,  key_of(p, p->n - 1),
                o->value, o->type == CLI_TIME_OR_EVER ? OPTION_ARG_OPTIONAL : 0,
                o->help,  0};
    }
}

static void add_text(const struct cli_option *o, struct cli_texts *to, const char *text,
                     struct argp_state *state)
{
    if (to->n == CLI_TEXTS_MAX)
        argp_error(state, "--%s: more than %d of them", o->name, CLI_TEXTS_MAX);
    to->items[to->n++] = text;
}

static void set_option(const struct row *row, char *text, struct argp_state *state)
{
    const struct cli_option *o = row->option;
    uint64_t n = 0;
    int64_t ns = DLX_FOREVER;
    switch (o->type) {
    case CLI_FLAG:
        *(bool *)row->to = true;
        return;
    case CLI_TEXT:
        *(const char **)row->to = text;
        return;
    case CLI_TEXTS:
        add_text(o, row->to, text, state);
        return;
    case CLI_UINT32:
    case CLI_UINT64:
        if (!args_parse_number(text, o->min, o->max, &n))
            argp_error(state, "%s%s: '%s' is not a number from %" PRIu64 " to %" PRIu64,
                       o->name ? "--" : "", o->name ? o->name : o->value, text, o->min, o->max);
        if (o->type == CLI_UINT32)
            *(uint32_t *)row->to = (uint32_t)n;
        else
            *(uint64_t *)row->to = n;
        return;
    case CLI_TIME:
    case CLI_TIME_OR_EVER:
        if (text && !args_parse_time(text, &ns))
            argp_error(state,
                       "--%s: '%s' is not a time from 0 to 1000000000 seconds, like 2, 0.5, 100ms "
                       "or 5min",
                       o->name, text);
        if (ns == 0 && o->min > 0)
            argp_error(state, "--%s: must be more than 0", o->name);
        *(int64_t *)row->to = ns;
        return;
    case CLI_RATE:
        if (!args_parse_rate(text, row->to))
            argp_error(state,
                       "--%s: '%s' is not a rate over 0 and up to 10^9 Hz, like 30, 29.97 or 2kHz",
                       o->name, text);
        return;
    default:
        return;
    }
}

/* Returns the row of the next argument, or NULL if the command takes no more. */
static const struct row *next_argument(const struct parser *p)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++)
        if (is_argument(p->rows[i].option) && n++ == p->n_arguments)
            return &p->rows[i];
    return NULL;
}

static void take_argument(struct parser *p, char *text, struct argp_state *state)
{
    const struct row *row = next_argument(p);
    p->n_arguments++;
    if (!row) {
        argp_error(state, "extra argument '%s'", text);
    } else if (row->option->type == CLI_LIST) {
        *(char *const **)row->to = &state->argv[state->next - 1];
        state->next = state->argc;
    } else {
        set_option(row, text, state);
    }
}

static error_t parse_line(int key, char *text, struct argp_state *state)
{
    struct parser *p = state->input;
    const struct row *row;
    switch (key) {
    case 'h':
        argp_state_help(state, state->out_stream, ARGP_HELP_STD_HELP);
        return 0;
    case ARGP_KEY_ARG:
        take_argument(p, text, state);
        return 0;
    case ARGP_KEY_END:
        row = next_argument(p);
        if (row && row->option->help)
            argp_error(state, "%s", row->option->help);
        if (p->line->check)
            p->line->check(p->into, state);
        return 0;
    default:
        for (size_t i = 0; i < p->n; i++)
            if (p->rows[i].option->name && key_of(p, i) == key) {
                set_option(&p->rows[i], text, state);
                return 0;
            }
        return ARGP_ERR_UNKNOWN;
    }
}

int cli_parse(struct cli *cli, const struct cli_line *line, int argc, char **argv, void *into)
{
    struct parser p = {.line = line, .into = into};
    add_rows(&p, line->options, into);
    add_rows(&p, line->more, into);
    add_rows(&p, common_options, cli);
    p.options[p.n_options] = (struct argp_option){NULL, 'h', NULL, OPTION_HIDDEN, NULL, -1};
    const struct argp argp = {
        .options = p.options,
        .parser = parse_line,
        .args_doc = *p.arguments ? p.arguments : NULL,
        .doc = line->doc,
        .help_filter = line->help_filter,
    };
    int error = argp_parse(&argp, argc, argv, line->flags, NULL, &p);
    return error == 0 ? CLI_OK : cli_report(cli, NULL, "%s", strerror(error));
}
