/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_CLI_H
#define CLI_CLI_H

/** The common part of dlxctl's commands. Each command has its file: cmd_<name>.c. */

#include "cli/error.h"
#include <argp.h>
#include <dlx/dlx.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum cli_status {
    CLI_OK = 0,
    CLI_FAILURE = 1,
    CLI_USAGE = 2,
    CLI_SIGNAL = 128, /**< plus the number of the signal that ended the command early */
};

#define DLXCTL "dlxctl"

struct cli {
    const char *socket; /**< NULL: the library's default */
    bool json;
    const char *command;
    uint32_t autospawn;     /**< enum dlx_autospawn: may it start a daemon? */
    int64_t wait_daemon_ns; /**< how long to wait for a daemon, and start none; 0: do not wait */
    bool has_said_wait;
    /** Called while libdlx waits for the daemon; true ends the call. NULL: only signals do. */
    bool (*on_wait)(void *userdata);
    void *on_wait_data;
    struct dlx_client *client;
};

/* The commands. argv[0] is "dlxctl <command>". Each returns the exit status. */
int cmd_ls(struct cli *cli, int argc, char **argv);
int cmd_info(struct cli *cli, int argc, char **argv);
int cmd_pub(struct cli *cli, int argc, char **argv);
int cmd_echo(struct cli *cli, int argc, char **argv);
int cmd_rm(struct cli *cli, int argc, char **argv);
int cmd_get(struct cli *cli, int argc, char **argv);
int cmd_save(struct cli *cli, int argc, char **argv);
int cmd_hz(struct cli *cli, int argc, char **argv);
int cmd_bw(struct cli *cli, int argc, char **argv);
int cmd_holds(struct cli *cli, int argc, char **argv);
int cmd_queue(struct cli *cli, int argc, char **argv);
int cmd_quota(struct cli *cli, int argc, char **argv);
int cmd_clients(struct cli *cli, int argc, char **argv);
int cmd_kick(struct cli *cli, int argc, char **argv);
int cmd_why(struct cli *cli, int argc, char **argv);
int cmd_top(struct cli *cli, int argc, char **argv);
int cmd_doctor(struct cli *cli, int argc, char **argv);
int cmd_view(struct cli *cli, int argc, char **argv);
int cmd_serve(struct cli *cli, int argc, char **argv);
int cmd_trace(struct cli *cli, int argc, char **argv);

/** Words for --help. */
#define CLI_PATTERN_HELP                                                                           \
    "In a PATTERN '*' stands for any characters of its segment ('cam/*'), a last segment '**' "    \
    "for one or more."

/** Is `topic` a pattern for several topics? */
bool cli_is_pattern(const char *topic);

/** The kind of value that an option sets, which CLI_TO() derives from the type of the member. */
enum cli_type {
    CLI_END,     /**< of a table */
    CLI_HEADING, /**< `help` is above the options that follow */
    CLI_FLAG,    /**< bool: true */
    CLI_TEXT,    /**< const char *: the value as it is */
    CLI_LIST,    /**< char *const *: this argument and all that follow it, then NULL */
    CLI_UINT32,  /**< a number from `min` to `max` */
    CLI_UINT64,
    CLI_TIME,         /**< int64_t: nanoseconds, at least `min` */
    CLI_TIME_OR_EVER, /**< likewise; DLX_FOREVER without a value */
    CLI_RATE,         /**< double: hertz */
    CLI_TEXTS,        /**< struct cli_texts: the option may be given again */
};

/** The values of such an option. */
#define CLI_TEXTS_MAX 16
struct cli_texts {
    const char *items[CLI_TEXTS_MAX];
    uint32_t n;
};

#define CLI_TYPE(member)                                                                           \
    _Generic(member, bool: CLI_FLAG, const char *: CLI_TEXT, char *const *: CLI_LIST,              \
             uint32_t: CLI_UINT32, uint64_t: CLI_UINT64, int64_t: CLI_TIME, double: CLI_RATE,      \
             struct cli_texts: CLI_TEXTS)
#define CLI_IN(type, member, min, max) CLI_TYPE(((type){}).member), offsetof(type, member), min, max
#define CLI_TO(type, member)           CLI_IN(type, member, 0, 0)

/** An option, or one of the arguments, which are in their order. */
struct cli_option {
    const char *name;  /**< "count" is --count; NULL: an argument */
    int letter;        /**< 'n' is -n; 0: none */
    const char *value; /**< the name of the value, or argument, in --help; NULL: no value */
    enum cli_type type;
    size_t offset;
    uint64_t min, max;
    const char *help; /**< of an argument: what is said if it is missing; NULL: it may be */
};

/** The command line of a command. */
struct cli_line {
    const char *doc;                  /**< before the options, and behind them what follows \v */
    const struct cli_option *options; /**< up to CLI_END; NULL: none */
    const struct cli_option *more;    /**< those of a struct that the command's own begins with */
    void (*check)(void *into, struct argp_state *state);          /**< wrong usage: argp_error() */
    unsigned flags;                                               /**< of argp_parse() */
    char *(*help_filter)(int key, const char *text, void *input); /**< of struct argp */
};

/** Parse a command line into the command's struct. --json, --socket, --wait-daemon and -h are
 *  options of all. Wrong usage ends the program; other failures (memory) are reported. Returns
 *  CLI_OK, CLI_FAILURE. */
int cli_parse(struct cli *cli, const struct cli_line *line, int argc, char **argv, void *into);

/** Connect, and wait for a daemon with --wait-daemon; a signal ends the program meanwhile. Failures
 *  are reported. Returns 0 or a negative code. */
int cli_connect(struct cli *cli);

/** Print "dlxctl <command>: [what: ]words" on stderr. Returns CLI_FAILURE. */
int cli_report(const struct cli *cli, const char *what, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/** Words that follow "no publishers" if the daemon has some that this user may not see; "" if not.
 *  Returns `text`. */
#define CLI_HIDDEN_SIZE 128
const char *cli_hidden_publishers(const struct cli *cli, char text[CLI_HIDDEN_SIZE]);

/** Report that the topic has no publisher, which is a failure; with NULL, that there are no
 *  publishers at all, which is none. Returns an exit status. */
int cli_no_publisher(const struct cli *cli, const char *topic);

/** Report libdlx's last failure in its words, after the topic (or NULL) unless the words name it.
 *  Returns CLI_FAILURE. */
int cli_report_dlx(const struct cli *cli, const char *topic, int code);

/** Print JSON; failures are reported. Returns an exit status. */
int cli_json(const struct cli *cli, json_t *json, bool lines);

/** Flush stdout; a write that failed (a full disk) is reported. Returns `status`, or CLI_FAILURE.
 */
int cli_finish(const struct cli *cli, int status);

/** The status after a signal: CLI_OK for a command that only a signal ends, else 128 + its number.
 */
int cli_signal_status(bool endless);

#endif
