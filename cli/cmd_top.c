/* SPDX-License-Identifier: Apache-2.0 */

/* dlxctl top: what flows through the daemon, live on a screen, or as a table or JSON. */

#include "cli/board_ask.h"
#include "cli/cli.h"
#include "cli/output.h"
#include "cli/screen.h"
#include "cli/top_draw.h"
#include "cli/wait.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INTERVAL_DEFAULT_NS INT64_C(1000000000)

struct top_args {
    const char *topic, *sort;
    bool once, reverse;
    int64_t interval_ns;
};

static void top_check(void *into, struct argp_state *state)
{
    struct top_args *a = into;
    char titles[256] = "";
    for (size_t i = 0; i < board_n_columns; i++)
        (void)snprintf(titles + strlen(titles), sizeof titles - strlen(titles), "%s%s",
                       i > 0 ? ", " : "", board_columns[i].table.title);
    if (a->sort && !board_column_find(a->sort))
        argp_error(state, "--sort: there is no column '%s' (columns: %s)", a->sort, titles);
    if (a->interval_ns == 0)
        a->interval_ns = INTERVAL_DEFAULT_NS;
}

/* ---- without a screen ------------------------------------------------------------------------ */

static json_t *rows_to_json(const struct board_view *v)
{
    json_t *array = json_array();
    for (size_t i = 0; i < v->n_rows; i++)
        array = output_json_append(array, board_json(v->rows[i]));
    return array;
}

static int print_view(const struct board_view *v)
{
    struct table_column *columns = calloc(board_n_columns, sizeof *columns);
    struct table *table = NULL;
    char text[BOARD_TEXT_SIZE];
    int code = columns ? table_new(&table, columns, board_n_columns) : DLX_E_NO_MEMORY;
    for (size_t c = 0; code == 0 && c < board_n_columns; c++)
        columns[c] = board_columns[c].table;
    for (size_t i = 0; code == 0 && i < v->n_rows; i++)
        for (size_t c = 0; c < board_n_columns; c++)
            table_cell(table, "%s", board_text(&board_columns[c], v->rows[i], text));
    if (code == 0)
        code = table_print(table, stdout, 0, output_width(stdout));
    table_free(table);
    free(columns);
    return code;
}

static int tell_view(struct cli *cli, struct board_view *v, const struct board *b, bool once)
{
    if (board_view_update(v, b) < 0)
        return cli_report(cli, NULL, "out of memory");
    if (cli->json)
        return cli_json(cli, rows_to_json(v), once);
    if (v->n_rows > 0 && print_view(v) < 0)
        return cli_report(cli, NULL, "out of memory");
    return cli_finish(cli, CLI_OK);
}

/* Prints after each interval, since rates need two looks. */
static int top_print(struct cli *cli, const struct top_args *args, struct board_ask *ask,
                     struct board_view *v)
{
    int status = CLI_OK;
    for (bool first = true; status == CLI_OK; first = false) {
        int64_t next = wait_deadline(args->interval_ns);
        int code = board_ask(ask);
        if (code < 0 && wait_signal())
            return cli_signal_status(!args->once);
        if (code < 0)
            return cli_report_dlx(cli, args->topic, code);
        if (!first)
            status = tell_view(cli, v, &ask->board, args->once);
        if (!first && args->once)
            break;
        while (!wait_signal() && wait_now() < next)
            (void)wait_until(-1, next);
        if (wait_signal())
            return cli_signal_status(!args->once);
    }
    if (status == CLI_OK && v->n_rows == 0)
        status = cli_no_publisher(cli, args->topic);
    return status;
}

/* ---- on a screen ----------------------------------------------------------------------------- */

/* A look that takes longer ends at a key, and the screen says that the daemon does not answer. */
#define PATIENCE_NS (500 * INT64_C(1000000))

struct session {
    struct top top;
    struct board_ask ask;
    char trouble[256];
    int64_t look_began_ns;
};

/* While libdlx waits. The look is given up for a key, and made again later. */
static bool on_slow_daemon(void *userdata)
{
    struct session *s = userdata;
    if (wait_now() < s->look_began_ns + PATIENCE_NS)
        return false;
    if (!*s->trouble) {
        (void)snprintf(s->trouble, sizeof s->trouble, "it does not answer");
        (void)top_draw(&s->top);
    }
    return wait_until(STDIN_FILENO, 0) == 0;
}

/* The links of what is on the screen are asked for in each look. */
static void watch_rows(const struct top *t, struct board *b)
{
    for (size_t i = 0; i < b->n_topics; i++)
        b->topics[i].watched = t->mode == TOP_TOPIC && strcmp(b->topics[i].name, t->topic) == 0;
    for (size_t i = 0; i < t->n_shown; i++)
        b->topics[t->view.rows[t->first + i] - b->topics].watched = true;
}

/* Does no later look succeed, either? */
static bool is_final(int code)
{
    return code == DLX_E_TOPIC || code == DLX_E_KICKED || code == DLX_E_INVALID;
}

/* Keeps the words of a failure, which tell why the figures are old. Returns 0, or the code of one
 * that is final. */
static int look_again(struct session *s)
{
    if (s->ask.board.look_ns > 0)
        watch_rows(&s->top, &s->ask.board);
    s->look_began_ns = wait_now();
    int code = board_ask(&s->ask);
    const char *words = dlx_errmsg();
    if (code == 0)
        s->trouble[0] = '\0';
    else if (code != DLX_E_INTERRUPTED)
        output_printable(words && *words ? words : dlx_strerror(code), s->trouble,
                         sizeof s->trouble);
    return is_final(code) ? code : 0;
}

/* Handles what was typed. Returns false once the terminal is gone: it is readable, and empty. */
static bool read_keys(struct top *t, bool readable)
{
    static unsigned n_empty;
    int key, n = 0;
    for (; (key = screen_key()) != SCREEN_NONE; n++)
        top_press(t, key);
    n_empty = readable && n == 0 ? n_empty + 1 : 0;
    return n_empty < 8;
}

static int top_run(struct cli *cli, const struct top_args *args, struct session *s)
{
    int64_t next = 0;
    int code = 0;
    bool there = true; /* the terminal */
    s->top.trouble = s->trouble;
    cli->on_wait = on_slow_daemon;
    cli->on_wait_data = s;
    while (code == 0 && there && !s->top.quits && !wait_signal()) {
        if (!s->top.paused && wait_now() >= next) {
            code = look_again(s);
            next = wait_deadline(args->interval_ns);
        }
        if (code == 0)
            code = top_draw(&s->top);
        if (code < 0)
            break;
        bool readable = wait_until(STDIN_FILENO, s->top.paused ? WAIT_FOREVER : next) == 0;
        there = read_keys(&s->top, readable);
    }
    screen_close();
    cli->on_wait = NULL;
    if (code == DLX_E_NO_MEMORY)
        return cli_report(cli, NULL, "out of memory");
    return code < 0 ? cli_report(cli, NULL, "%s", s->trouble) : CLI_OK;
}

int cmd_top(struct cli *cli, int argc, char **argv)
{
    static const struct cli_option options[] = {
        {NULL, 0, "TOPIC|PATTERN", CLI_TO(struct top_args, topic), NULL},
        {"interval", 'i', "TIME", CLI_IN(struct top_args, interval_ns, 1, 0),
         "Time between two looks at the daemon (default: 1s)"},
        {"sort", 's', "COLUMN", CLI_TO(struct top_args, sort),
         "Sort by this column (default: rate): figures from the largest, topics by name"},
        {"reverse", 'r', NULL, CLI_TO(struct top_args, reverse), "Sort the other way"},
        {"once", 0, NULL, CLI_TO(struct top_args, once),
         "Print one table after one interval, and end"},
        {0},
    };
    static const struct cli_line line = {
        .options = options,
        .check = top_check,
        .doc =
            "Show topics live, a line each, on a terminal: rate, bytes a second, publishers, "
            "subscribers, and what is behind, held, dropped and refused. Keys sort, filter, open a "
            "topic (its publishers and subscribers with program, process and user) and pause; '?' "
            "shows all of them, and what the columns are. No publisher takes this command for a "
            "subscriber.\vDROPS is messages a second that subscribers lost or skipped, DROPPED "
            "all of them; a subscriber of several publishers counts once in SUBS. Counters of a "
            "topic keep what publishers and subscribers counted that have ended since the command "
            "began. Columns that a terminal has no room for are left out and named. With more than "
            "some hundred topics, the command looks less often at those that the screen does not "
            "show. "
            "--json prints an array of objects, after each interval on a line; with "
            "--once once. Without a terminal one of --once and --json is needed. $NO_COLOR: no "
            "colours. " CLI_PATTERN_HELP,
    };
    struct top_args args = {.sort = "rate"};
    struct session s = {.look_began_ns = 0};
    struct cli_error e;
    int status = CLI_FAILURE;

    if (cli_parse(cli, &line, argc, argv, &args) != CLI_OK || cli_connect(cli) < 0)
        return CLI_FAILURE;
    s.ask.client = cli->client;
    s.ask.topic = args.topic;
    s.top.board = &s.ask.board;
    s.top.daemon = &s.ask.daemon;
    s.top.view.sort = board_column_find(args.sort);
    s.top.view.reverse = args.reverse;
    wait_catch_signals();
    if (args.once || cli->json) {
        status = top_print(cli, &args, &s.ask, &s.top.view);
    } else {
        s.ask.share = BOARD_ASK_SHARE;
        status =
            screen_open(&e) < 0 ? cli_report(cli, NULL, "%s", e.text) : top_run(cli, &args, &s);
    }
    board_view_deinit(&s.top.view);
    board_ask_deinit(&s.ask);
    return status;
}
