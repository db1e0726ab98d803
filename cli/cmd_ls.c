/* SPDX-License-Identifier: Apache-2.0 */

/* dlxctl ls: a row for each publisher, once or, with --watch, again and again with rates. */

#include "cli/cli.h"
#include "cli/describe.h"
#include "cli/dtype.h"
#include "cli/look.h"
#include "cli/output.h"
#include "cli/wait.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INTERVAL_DEFAULT_NS INT64_C(1000000000)

/* The counters of a publisher at the previous look. */
struct before {
    uint64_t publisher, published, published_bytes;
};

struct ls {
    struct look look; /* `newest` is --types */
    bool watch;
    int64_t interval_ns; /* 0: the default */
    uint64_t count;      /* looks; 0: without an end */

    struct before *before;
    size_t n_before;
    int64_t before_ns; /* 0: this is the first look */
};

static void ls_check(void *into, struct argp_state *state)
{
    struct ls *ls = into;
    if (!ls->watch && (ls->interval_ns || ls->count))
        argp_error(state, "--interval and --count need --watch");
    if (!ls->interval_ns)
        ls->interval_ns = INTERVAL_DEFAULT_NS;
}

/* ---- rates ----------------------------------------------------------------------------------- */

/* Messages and bytes a second since the previous look; negative: that look did not find the
 * publisher. */
struct speed {
    double messages, bytes;
};

static struct speed speed_of(const struct ls *ls, const struct dlx_publisher_info *info,
                             int64_t now)
{
    double seconds = (double)(now - ls->before_ns) / 1e9;
    for (size_t i = 0; i < ls->n_before; i++) {
        const struct before *b = &ls->before[i];
        if (b->publisher == info->publisher && b->published <= info->published && seconds > 0)
            return (struct speed){(double)(info->published - b->published) / seconds,
                                  (double)(info->published_bytes - b->published_bytes) / seconds};
    }
    return (struct speed){-1, -1};
}

static int remember(struct ls *ls, int64_t now)
{
    size_t n = ls->look.n_entries;
    struct before *before = reallocarray(ls->before, n + 1, sizeof *before);
    if (!before)
        return DLX_E_NO_MEMORY;
    ls->before = before;
    for (size_t i = 0; i < n; i++) {
        const struct dlx_publisher_info *info = &ls->look.entries[i].info;
        before[i] = (struct before){info->publisher, info->published, info->published_bytes};
    }
    ls->n_before = n;
    ls->before_ns = now;
    return 0;
}

/* ---- telling --------------------------------------------------------------------------------- */

static json_t *list_json(const struct ls *ls, int64_t now)
{
    json_t *array = json_array();
    for (size_t i = 0; i < ls->look.n_entries; i++) {
        json_t *json = look_json(&ls->look, &ls->look.entries[i]);
        struct speed speed = speed_of(ls, &ls->look.entries[i].info, now);
        if (ls->watch && speed.messages < 0)
            json =
                output_json_merge(json, json_pack("{s:n, s:n}", "messages_per_s", "bytes_per_s"));
        else if (ls->watch)
            json = output_json_merge(json, json_pack("{s:f, s:f}", "messages_per_s", speed.messages,
                                                     "bytes_per_s", speed.bytes));
        array = output_json_append(array, json);
    }
    for (size_t i = 0; i < ls->look.n_alone; i++)
        array = output_json_append(array, look_alone_json(&ls->look.alone[i]));
    return array;
}

/* Longer shapes are cut. */
enum { TYPE_WIDTH = 40, TYPE_SIZE = 128 };

static const char *type_text(const struct look_entry *entry, char text[TYPE_SIZE])
{
    const struct dlx_message *m = entry->newest;
    char dtype[DLX_DTYPE_NAME_SIZE], shape[SHAPE_NAME_SIZE];
    *text = '\0';
    if (!m)
        return text;
    if (dlx_message_n_tensors(m) > 1) {
        (void)snprintf(text, TYPE_SIZE, "%u tensors", dlx_message_n_tensors(m));
        return text;
    }
    const DLTensor *t = dlx_message_tensor_peek(m, 0);
    (void)dlx_dtype_name(t->dtype, dtype);
    shape_name(t->shape, t->ndim, shape);
    (void)snprintf(text, TYPE_SIZE, "%s %.*s", dtype, TYPE_WIDTH, shape);
    return text;
}

static void add_row(const struct ls *ls, struct table *table, const struct look_entry *entry,
                    int64_t now)
{
    const struct dlx_publisher_info *info = &entry->info;
    const struct speed speed = speed_of(ls, info, now);
    char name[256], a[HUMAN_SIZE], b[HUMAN_SIZE], pid[DESCRIBE_PID_SIZE];
    char queues[LOOK_QUEUES_SIZE], note[LOOK_NOTE_SIZE], type[TYPE_SIZE], behind[LOOK_BEHIND_SIZE];
    output_printable(info->client_name, name, sizeof name);
    human_bytes(info->published_bytes, a);
    human_bytes(info->arena_bytes + info->control_bytes, b);
    table_cell(table, "%s", info->topic);
    table_cell(table, "%" PRIu64, info->publisher);
    if (info->retained) /* its process has gone */
        table_cell(table, "retained");
    else
        table_cell(table, "%s", describe_pid(info->pid, pid));
    table_cell(table, "%s", name);
    table_cell(table, "%u", info->n_subscribers);
    table_cell(table, "%" PRIu64, info->published);
    table_cell(table, "%s", a);
    table_cell(table, "%s", b);
    human_number(fabs(speed.messages), a);
    human_bytes((uint64_t)fabs(speed.bytes), b);
    bool known = ls->watch && speed.messages >= 0;
    const char *unknown = ls->watch ? "-" : "";
    table_cell(table, "%s%s", known ? a : unknown, known ? "/s" : "");
    table_cell(table, "%s%s", known ? b : unknown, known ? "/s" : "");
    table_cell(table, "%s", type_text(entry, type));
    table_cell(table, "%s", entry->n_links > 0 ? look_behind_text(look_behind(entry), behind) : "");
    table_cell(table, "%s", look_queues(entry, queues));
    table_cell(table, "%s", look_note(entry, note));
}

static int print_table(const struct ls *ls, FILE *file, int64_t now)
{
    static const struct table_column columns[] = {
        {"TOPIC", TABLE_LEFT, false, 0},  {"ID", TABLE_RIGHT, false, 1},
        {"PID", TABLE_RIGHT, false, 6},   {"PROGRAM", TABLE_LEFT, true, 8},
        {"SUBS", TABLE_RIGHT, false, 0},  {"MESSAGES", TABLE_RIGHT, false, 4},
        {"BYTES", TABLE_RIGHT, false, 2}, {"MEMORY", TABLE_RIGHT, false, 3},
        {"RATE", TABLE_RIGHT, false, 0},  {"DATA", TABLE_RIGHT, false, 5},
        {"TYPE", TABLE_LEFT, false, 0},   {"BEHIND", TABLE_RIGHT, false, 7},
        {"QUEUES", TABLE_LEFT, true, 0},  {"NOTE", TABLE_LEFT, false, 0},
    };
    struct table *table = NULL;
    if (table_new(&table, columns, sizeof columns / sizeof columns[0]) < 0)
        return DLX_E_NO_MEMORY;
    for (size_t i = 0; i < ls->look.n_entries; i++)
        add_row(ls, table, &ls->look.entries[i], now);
    int code = table_print(table, file, 0, output_width(stdout));
    table_free(table);
    return code;
}

/* Writes the screen in one call, so that it does not flicker. Lines that do not fit are counted. */
static void show_screen(char *text)
{
    unsigned height = output_height(stdout), n = 0, more = 0;
    char *end = text;
    for (char *p = text; *p; p++) {
        n += *p == '\n';
        if (n + 1 < height && *p == '\n')
            end = p + 1;
        else if (n + 1 >= height && *p == '\n')
            more++;
    }
    if (height == 0) /* unknown */
        more = 0;
    if (more > 1)
        *end = '\0';
    (void)printf("\033[H\033[2J%s", text);
    if (more > 1)
        printf("... and %u more lines\n", more);
}

static int ls_show(const struct ls *ls, int64_t now)
{
    struct cli *cli = ls->look.cli;
    bool screen = ls->watch && output_is_screen(stdout);
    if (cli->json)
        return cli_json(cli, list_json(ls, now), !ls->watch);
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    if (!file)
        return cli_report(cli, NULL, "out of memory");
    int code = ls->look.n_entries > 0 ? print_table(ls, file, now) : 0;
    if (code == 0)
        code = look_print_alone(&ls->look, file);
    char hidden[CLI_HIDDEN_SIZE];
    if (ls->look.n_entries == 0 && ls->watch)
        fprintf(file, "no publishers%s\n", cli_hidden_publishers(cli, hidden));
    if (*ls->look.why_not)
        fprintf(file, "types are not known: %s\n", ls->look.why_not);
    if (fclose(file) != 0 || code < 0) {
        free(text);
        return cli_report(cli, NULL, "out of memory");
    }
    if (screen)
        show_screen(text);
    else
        printf("%s%s", ls->watch && ls->before_ns ? "\n" : "", text);
    free(text);
    return cli_finish(cli, CLI_OK);
}

/* ---- looking --------------------------------------------------------------------------------- */

static int ls_look_once(struct ls *ls)
{
    struct cli *cli = ls->look.cli;
    int code = look_ask(&ls->look);
    if (code < 0)
        return cli_report_dlx(cli, ls->look.topic, code);
    int64_t now = wait_now();
    int status = ls_show(ls, now);
    if (status == CLI_OK && remember(ls, now) < 0)
        status = cli_report(cli, NULL, "out of memory");
    return status;
}

static int ls_watch(struct ls *ls)
{
    int status = CLI_OK;
    wait_catch_signals();
    for (uint64_t n = 1; status == CLI_OK; n++) {
        status = ls_look_once(ls);
        if (ls->count && n == ls->count)
            return status;
        int64_t next = wait_deadline(ls->interval_ns); /* never sooner, also after a slow list */
        while (status == CLI_OK && !wait_signal() && wait_now() < next)
            (void)wait_until(-1, next);
        if (wait_signal())
            return cli_signal_status(ls->count == 0);
    }
    return status;
}

int cmd_ls(struct cli *cli, int argc, char **argv)
{
    static const struct cli_option options[] = {
        {NULL, 0, "TOPIC|PATTERN", CLI_TO(struct ls, look.topic), NULL},
        {"watch", 'w', NULL, CLI_TO(struct ls, watch),
         "List again and again, with rates, until Ctrl-C"},
        {"interval", 'i', "TIME", CLI_IN(struct ls, interval_ns, 1, 0),
         "Time between two lists (default: 1s)"},
        {"count", 'n', "N", CLI_IN(struct ls, count, 1, UINT64_MAX), "End after N lists"},
        {"types", 't', NULL, CLI_TO(struct ls, look.newest),
         "Show the type of the newest message: subscribe for a moment, which a publisher may "
         "notice"},
        {0},
    };
    static const struct cli_line line = {
        .options = options,
        .check = ls_check,
        .doc =
            "List publishers: topic, id, process, program, attached subscribers, messages and "
            "bytes published, and the shared memory they use. No publisher takes this command for "
            "a subscriber, except with --types.\vID is the publisher's, SUBS its attached "
            "subscribers; MEMORY is payload arenas and control block together; RATE is messages a "
            "second, DATA bytes. \"retained\" in place of a process: the process has gone, and the "
            "daemon keeps its last messages. BEHIND is how many messages the slowest subscriber "
            "can still take. QUEUES has the groups of workers, each with the messages that it has "
            "not done "
            "(dlxctl queue). NOTE says BLOCKED if the publisher waits for a reliable subscriber "
            "that is as far behind as its depth or history allows, counts messages that the "
            "publisher had REFUSED, since there was no room for them, and counts subscribers that "
            "are FULL (they hold all messages that they may, and take no more until they release "
            "one), that have LOST messages, and that are JOINING (they have yet to be told of the "
            "link, or to answer). Columns that a terminal has no room for are left out and named; "
            "topics are whole. Subscriptions that no publisher serves come last, with why their "
            "last link was refused. --json prints an array of objects, with --watch one a line; "
            "the "
            "publisher of a subscription that none serves is null. " CLI_PATTERN_HELP,
    };
    struct ls ls = {.look = {.cli = cli, .include_alone = true}};
    int status = CLI_FAILURE;

    if (cli_parse(cli, &line, argc, argv, &ls) != CLI_OK)
        return CLI_FAILURE;
    if (cli_connect(cli) == 0) {
        status = ls.watch ? ls_watch(&ls) : ls_look_once(&ls);
        if (status == CLI_OK && !ls.watch && ls.look.n_entries == 0)
            status = cli_no_publisher(cli, ls.look.topic);
    }
    look_clear(&ls.look);
    free(ls.before);
    return status;
}
