/* SPDX-License-Identifier: Apache-2.0 */

/* What commands share: how they report errors and connect, and their common options. */

#include "cli/cli.h"
#include "cli/args.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/wait.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPTION_SOCKET = 'S', OPTION_JSON = 'j', OPTION_WAIT_DAEMON = 0x100 };

/* ---- messages ------------------------------------------------------------------------------ */

int cli_report(const struct cli *cli, const char *what, const char *format, ...)
{
    char words[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(words, sizeof words, format, args);
    va_end(args);
    progress_clear();
    (void)fflush(stdout);
    (void)fprintf(stderr, DLXCTL " %s: %s%s%s\n", cli->command, what ? what : "", what ? ": " : "",
                  words);
    return CLI_FAILURE;
}

int cli_parse(const struct cli *cli, const struct argp *argp, int argc, char **argv, void *input)
{
    int error = argp_parse(argp, argc, argv, 0, NULL, input);
    return error == 0 ? CLI_OK : cli_report(cli, NULL, "%s", strerror(error));
}

/* Do the words have this topic, as a word of its own? */
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
    const char *words = dlx_client_errmsg(cli->client);
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
    return strchr(topic, '*') != NULL; /* no topic has one */
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
    return wait_signal() != 0;
}

/* How to have the daemon that is missing. libdlx says it itself of a path that DLX_SOCKET names. */
static void report_no_daemon(const struct cli *cli)
{
    static const char wait[] = "or wait for it with --wait-daemon";
    const char *path = getenv("DLX_SOCKET"), *why = dlx_client_errmsg(NULL);
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
    (void)wait_begin_blocking(); /* a signal that came before is seen by on_wait() */
    int code = dlx_connect(&cli->client, &args);
    wait_end_blocking();
    if (code == DLX_E_NO_DAEMON && cli->wait_daemon_ns == 0)
        report_no_daemon(cli);
    else if (code < 0)
        (void)cli_report_dlx(cli, NULL, code);
    return code;
}

/* ---- common options ---------------------------------------------------------------------- */

static const struct argp_option common_options[] = {
    {"json", OPTION_JSON, NULL, 0, "Print JSON", 0},
    {"socket", OPTION_SOCKET, "PATH", 0, "Socket of the daemon", 0},
    {"wait-daemon", OPTION_WAIT_DAEMON, "TIME", OPTION_ARG_OPTIONAL,
     "Wait until a daemon is up, at most for TIME; start none", 0},
    {NULL, 'h', NULL, OPTION_HIDDEN, NULL, -1},
    {0},
};

static error_t parse_common(int key, char *arg, struct argp_state *state)
{
    struct cli *cli = state->input;
    switch (key) {
    case OPTION_SOCKET:
        cli->socket = arg;
        return 0;
    case OPTION_JSON:
        cli->json = true;
        return 0;
    case OPTION_WAIT_DAEMON:
        cli->wait_daemon_ns = arg ? args_time(state, "--wait-daemon", arg) : DLX_FOREVER;
        if (cli->wait_daemon_ns == 0)
            argp_error(state, "--wait-daemon: must be more than 0");
        return 0;
    case 'h':
        argp_state_help(state, state->out_stream, ARGP_HELP_STD_HELP);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp cli_argp_common = {.options = common_options, .parser = parse_common};
