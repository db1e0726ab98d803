/* SPDX-License-Identifier: Apache-2.0 */

/* The program: the table of commands, and the command line before the name of one. */

#include "cli/cli.h"
#include "cli/external.h"
#include "cli/npz.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct command {
    const char *name;
    int (*run)(struct cli *cli, int argc, char **argv);
    const char *help;
    enum dlx_autospawn autospawn; /**< commands that only look start no daemon */
} commands[] = {
    {"ls", cmd_ls, "list topics and their publishers", DLX_AUTOSPAWN_NEVER},
    {"top", cmd_top, "show live what flows on topics, and what is dropped", DLX_AUTOSPAWN_NEVER},
    {"info", cmd_info, "show the daemon, or a topic with its links", DLX_AUTOSPAWN_NEVER},
    {"pub", cmd_pub, "publish .npy" NPZ_COMMA " or .safetensors files, or raw bytes",
     DLX_AUTOSPAWN_DEFAULT},
    {"echo", cmd_echo, "print messages", DLX_AUTOSPAWN_DEFAULT},
    {"view", cmd_view, "draw the newest tensor in the terminal", DLX_AUTOSPAWN_NEVER},
    {"get", cmd_get, "show or save the newest message of a topic", DLX_AUTOSPAWN_NEVER},
    {"rm", cmd_rm, "drop what is retained on a topic", DLX_AUTOSPAWN_NEVER},
    {"save", cmd_save, "write messages to .npy" NPZ_COMMA " or .safetensors files",
     DLX_AUTOSPAWN_DEFAULT},
    {"hz", cmd_hz, "measure rate, loss and age of messages", DLX_AUTOSPAWN_DEFAULT},
    {"bw", cmd_bw, "measure bytes a second and sizes of messages", DLX_AUTOSPAWN_DEFAULT},
    {"holds", cmd_holds, "show who holds messages", DLX_AUTOSPAWN_NEVER},
    {"queue", cmd_queue, "show work queues, and who works on what", DLX_AUTOSPAWN_NEVER},
    {"quota", cmd_quota, "show what users use of the daemon, and may have", DLX_AUTOSPAWN_NEVER},
    {"clients", cmd_clients, "list the programs that are connected", DLX_AUTOSPAWN_NEVER},
    {"kick", cmd_kick, "cut the connections of a program", DLX_AUTOSPAWN_NEVER},
    {"why", cmd_why, "say why a topic does not flow, and what to do", DLX_AUTOSPAWN_NEVER},
    {"doctor", cmd_doctor, "look for what keeps programs from exchanging tensors",
     DLX_AUTOSPAWN_NEVER},
    {"serve", cmd_serve, "serve metrics for Prometheus", DLX_AUTOSPAWN_NEVER},
    {"trace", cmd_trace, "measure how long messages take, and tell who wakes whom",
     DLX_AUTOSPAWN_NEVER},
};

struct global {
    char *const *words; /* the command and what follows it */
    const struct command *command;
    char *program; /* of a command that is a program of its own; else NULL */
};

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

/* The edit distance of two words: letters that are added, left out, changed, or swapped with the
 * next one. Both words have at most NAME_MAX_SIZE letters. */
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

/* Returns the command that was probably meant: a prefix of the word or an extension of it
 * ("publish", "inf"), or one that differs in fewer than half of its letters. NULL: none. */
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

static void global_check(void *into, struct argp_state *state)
{
    struct global *g = into;
    const char *word = g->words[0];
    g->command = find_command(word);
    g->program = g->command ? NULL : cli_external_find(word);
    if (g->command || g->program)
        return;
    const struct cli_external *known = cli_external_known(word);
    if (known)
        argp_failure(state, CLI_FAILURE, 0,
                     "'%s' is a program of its own, and is not installed: install the package %s, "
                     "run `make install-rust` in the source, or put dlxctl-%s or dlx-%s into a "
                     "folder of $PATH",
                     word, known->package, word, word);
    else
        fail_unknown_command(state, word);
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
    fprintf(file, "\nPrograms of their own, which other packages have:\n");
    for (size_t i = 0; i < cli_n_externals; i++)
        fprintf(file, "  %-6s %s\n", cli_externals[i].name, cli_externals[i].help);
    fprintf(file, "\n" DLXCTL " COMMAND --help shows the options of a command.\n");
    (void)fclose(file);
    return help;
}

/* What this build lacks is on a line of its own. */
static const char *version(void)
{
    static const char *const lacks[] = {
#ifdef DLX_NO_ZIP
        "libzip (.npz)",
#endif
#ifdef DLX_NO_NCURSES
        "ncurses (the screen of top)",
#endif
#ifdef DLX_NO_MICROHTTPD
        "libmicrohttpd (serve)",
#endif
#ifdef DLX_NO_BPF
        "libbpf (trace)",
#endif
#ifdef DLX_NO_PNG
        "libpng (pictures of serve)",
#endif
#ifdef DLX_NO_CHAFA
        "chafa (the graphics of view)",
#endif
        NULL,
    };
    static char text[256] = DLXCTL " " DLX_VERSION_STRING;
    for (size_t i = 0; lacks[i]; i++) {
        size_t at = strlen(text);
        (void)snprintf(text + at, sizeof text - at, "%s%s", i == 0 ? "\nbuilt without " : ", ",
                       lacks[i]);
    }
    return text;
}

static int run(int argc, char **argv)
{
    struct cli cli = {.command = ""};
    struct global g = {0};
    static const struct cli_option options[] = {
        {NULL, 0, "COMMAND [ARG...]", CLI_TO(struct global, words), "a command is missing"},
        {0},
    };
    static const struct cli_line line = {
        .options = options,
        .check = global_check,
        .flags = ARGP_IN_ORDER, /* options after the command are its own */
        .doc = "Look at, feed and record the tensors that dlpackd brokers between processes.\v"
               "Without --socket and $DLX_SOCKET, the daemon is the first one that answers on "
               "$XDG_RUNTIME_DIR/dlpackd.sock, /run/dlpackd/dlpackd.sock or "
               "/tmp/dlpackd-UID/dlpackd.sock. If none does, pub, echo, save, hz and bw start a "
               "private one.\n\n"
               "Exit status: 0 done, 1 failed, 2 wrong usage, 128 + N ended early by signal N.",
        .help_filter = global_help,
    };
    argp_err_exit_status = CLI_USAGE;
    argp_program_version = version();
    if (cli_parse(&cli, &line, argc, argv, &g) != CLI_OK)
        return CLI_FAILURE;

    if (g.program) {
        cli.command = g.words[0];
        int failed = cli_external_run(&cli, g.program, g.words);
        free(g.program);
        return failed;
    }
    char name[64];
    (void)snprintf(name, sizeof name, DLXCTL " %s", g.command->name);
    int first = (int)(g.words - argv);
    argv[first] = name;
    cli.command = g.command->name;
    cli.autospawn = g.command->autospawn;
    int status = g.command->run(&cli, argc - first, argv + first);
    dlx_client_unref(cli.client);
    return status;
}

/* A closed standard descriptor would be the number of the next file or socket, which would then get
 * what is printed. Its replacement fails with EBADF when used. */
static bool fill_standard_fds(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            return false;
    return true;
}

int main(int argc, char **argv)
{
    if (!fill_standard_fds())
        return CLI_FAILURE; /* there is nowhere to report it */
    /* a file that gets too long (ulimit -f) is an error like a full disk */
    (void)signal(SIGXFSZ, SIG_IGN);
    return run(argc, argv);
}
