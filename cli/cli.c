/* SPDX-License-Identifier: Apache-2.0 */

/* The command line: options that all commands have, the table of commands, and how they connect
 * and report errors. */

#include "cli/cli.h"
#include "cli/args.h"
#include "cli/npz.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/wait.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DLXCTL "dlxctl"

static const struct command {
    const char *name;
    int (*run)(struct cli *cli, int argc, char **argv);
    const char *help;
    enum dlx_autospawn autospawn; /**< who only looks starts no daemon */
} commands[] = {
    {"ls", cmd_ls, "list topics and their publishers", DLX_AUTOSPAWN_NEVER},
    {"info", cmd_info, "show the daemon, or a topic with its links", DLX_AUTOSPAWN_NEVER},
    {"pub", cmd_pub, "publish .npy" NPZ_COMMA " or .safetensors files, or raw bytes",
     DLX_AUTOSPAWN_DEFAULT},
    {"echo", cmd_echo, "print messages", DLX_AUTOSPAWN_DEFAULT},
    {"get", cmd_get, "show or save the newest message of a topic", DLX_AUTOSPAWN_NEVER},
    {"rm", cmd_rm, "drop what is retained on a topic", DLX_AUTOSPAWN_NEVER},
    {"save", cmd_save, "write messages to .npy" NPZ_COMMA " or .safetensors files",
     DLX_AUTOSPAWN_DEFAULT},
    {"hz", cmd_hz, "measure rate, loss and age of messages", DLX_AUTOSPAWN_DEFAULT},
    {"bw", cmd_bw, "measure bytes a second and sizes of messages", DLX_AUTOSPAWN_DEFAULT},
    {"holds", cmd_holds, "show who holds messages", DLX_AUTOSPAWN_NEVER},
    {"quota", cmd_quota, "show what users use of the daemon, and may have", DLX_AUTOSPAWN_NEVER},
};

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

/* ---- the command line ---------------------------------------------------------------------- */

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

struct global {
    struct cli *cli;
    const struct command *command;
    int first; /* index of the command in argv */
};

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

/* How many letters have to be added, left out or changed, or swapped with the next one, to make one
 * word the other. Both have at most NAME_MAX_SIZE letters. */
enum { NAME_MAX_SIZE = 12 };

static size_t distance(const char *a, const char *b)
{
    size_t d[NAME_MAX_SIZE + 1][NAME_MAX_SIZE + 1], n_a = strlen(a), n_b = strlen(b);
    for (size_t i = 0; i <= n_a; i++)
        for (size_t j = 0; j <= n_b; j++) {
            d[i][j] = i == 0 ? j : d[i - 1][j] + 1;
            if (i == 0 || j == 0)
                continue;
            size_t changed = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            d[i][j] = d[i][j] < d[i][j - 1] + 1 ? d[i][j] : d[i][j - 1] + 1;
            d[i][j] = d[i][j] < changed ? d[i][j] : changed;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                d[i - 2][j - 2] + 1 < d[i][j])
                d[i][j] = d[i - 2][j - 2] + 1;
        }
    return d[n_a][n_b];
}

/* The command that was meant: one that begins the word or is begun by it ("publish", "inf"), or one
 * that fewer than half of its letters tell from it. NULL: none. */
static const struct command *find_nearest(const char *word)
{
    const struct command *nearest = NULL;
    size_t least = NAME_MAX_SIZE + 1, n = strlen(word);
    for (size_t i = 0; n > 0 && i < sizeof commands / sizeof commands[0]; i++) {
        const char *name = commands[i].name;
        size_t n_name = strlen(name), n_less = n < n_name ? n : n_name;
        size_t far = strncmp(word, name, n_less) == 0 ? 0 : NAME_MAX_SIZE + 1;
        if (far > 0 && n <= NAME_MAX_SIZE && 2 * distance(word, name) < n_name + 1)
            far = distance(word, name);
        if (far < least) {
            least = far;
            nearest = &commands[i];
        }
    }
    return nearest;
}

static void fail_unknown_command(const struct argp_state *state, const char *word)
{
    char names[256] = "";
    const struct command *nearest = find_nearest(word);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        (void)snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ", " : "",
                       commands[i].name);
    argp_error(state, "unknown command '%s'%s%s%s\nCommands: %s", word,
               nearest ? "; did you mean '" : "", nearest ? nearest->name : "", nearest ? "'?" : "",
               names);
}

static error_t parse_global(int key, char *arg, struct argp_state *state)
{
    struct global *g = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = g->cli;
        return 0;
    case ARGP_KEY_ARG:
        g->command = find_command(arg);
        if (!g->command)
            fail_unknown_command(state, arg);
        g->first = state->next - 1;
        state->next = state->argc; /* the rest is the command's */
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "a command is missing");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* The list of commands stands where argp puts the text before the options. */
static char *global_help(int key, const char *text, void *input)
{
    (void)input;
    if (key != ARGP_KEY_HELP_PRE_DOC)
        return (char *)(uintptr_t)text; /* argp's own convention: unchanged */
    char *help = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&help, &size);
    if (!file)
        return (char *)(uintptr_t)text;
    fprintf(file, "%s\n\nCommands:\n", text);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        fprintf(file, "  %-6s %s\n", commands[i].name, commands[i].help);
    fprintf(file, "\n" DLXCTL " COMMAND --help shows the options of a command.\n");
    (void)fclose(file);
    return help;
}

int cli_run(int argc, char **argv)
{
    struct cli cli = {.command = ""};
    struct global g = {.cli = &cli};
    static const struct argp_child children[] = {{&cli_argp_common, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        .parser = parse_global,
        .args_doc = "COMMAND [ARG...]",
        .doc = "Look at, feed and record the tensors that dlpackd brokers between processes.\v"
               "Without --socket and $DLX_SOCKET, the daemon is the first one that answers on "
               "$XDG_RUNTIME_DIR/dlpackd.sock, /run/dlpackd/dlpackd.sock or "
               "/tmp/dlpackd-UID/dlpackd.sock. If none does, pub, echo, save, hz and bw start a "
               "private one.\n\n"
               "Exit status: 0 done, 1 failed, 2 wrong usage, 128 + N ended early by signal N.",
        .children = children,
        .help_filter = global_help,
    };
    argp_err_exit_status = CLI_USAGE;
    argp_program_version = DLXCTL " " DLX_VERSION_STRING;
    int error = argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &g);
    if (error != 0) {
        (void)fprintf(stderr, DLXCTL ": %s\n", strerror(error));
        return CLI_FAILURE;
    }
    if (!g.command)
        return CLI_USAGE;

    char name[64];
    (void)snprintf(name, sizeof name, DLXCTL " %s", g.command->name);
    argv[g.first] = name;
    cli.command = g.command->name;
    cli.autospawn = g.command->autospawn;
    int status = g.command->run(&cli, argc - g.first, argv + g.first);
    dlx_client_unref(cli.client);
    return status;
}
