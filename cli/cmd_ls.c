/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "cli/describe.h"
#include "cli/output.h"
#include <inttypes.h>
#include <stdio.h>

struct ls {
    struct cli *cli;
    const char *topic;
    json_t *json;
    struct table *table;
    size_t n;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct ls *ls = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = ls->cli;
        return 0;
    case ARGP_KEY_ARG:
        if (ls->topic)
            argp_error(state, "one topic at most, '%s' is the second", arg);
        ls->topic = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int add(const struct dlx_publisher_info *info, void *userdata)
{
    struct ls *ls = userdata;
    char name[256], bytes[HUMAN_SIZE], memory[HUMAN_SIZE], pid[DESCRIBE_PID_SIZE];

    ls->n++;
    if (ls->cli->json)
        return json_array_append_new(ls->json, describe_publisher(info)) < 0 ? DLX_E_NO_MEMORY : 0;
    output_printable(info->client_name, name, sizeof name);
    human_bytes(info->published_bytes, bytes);
    human_bytes(info->arena_bytes + info->control_bytes, memory);
    table_cell(ls->table, "%s", info->topic);
    table_cell(ls->table, "%" PRIu64, info->publisher);
    if (info->retained) /* its process has gone */
        table_cell(ls->table, "retained");
    else
        table_cell(ls->table, "%s", describe_pid(info->pid, pid));
    table_cell(ls->table, "%s", name);
    table_cell(ls->table, "%u", info->n_subscribers);
    table_cell(ls->table, "%" PRIu64, info->published);
    table_cell(ls->table, "%s", bytes);
    table_cell(ls->table, "%s", memory);
    return 0;
}

static int print(struct ls *ls)
{
    int status = CLI_OK;
    if (ls->cli->json) {
        json_t *json = ls->json;
        ls->json = NULL;
        status = cli_json(ls->cli, json, true);
    } else if (ls->n > 0 && table_print(ls->table, stdout, 0, output_width(stdout)) < 0) {
        return cli_report(ls->cli, NULL, "out of memory");
    }
    return cli_finish(ls->cli, ls->n == 0 ? cli_no_publisher(ls->cli, ls->topic) : status);
}

int cmd_ls(struct cli *cli, int argc, char **argv)
{
    static const struct argp_child children[] = {{&cli_argp_common, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        .parser = parse,
        .args_doc = "[TOPIC|PATTERN]",
        .doc =
            "List publishers: topic, id, process, program, attached subscribers, messages and "
            "bytes "
            "published, and the shared memory they use.\vID is the publisher's, SUBS its "
            "attached subscribers; MEMORY is payload arenas and control "
            "block together. \"retained\" in place of a process: it has gone, and the daemon keeps "
            "its last messages. Columns that a terminal has no room for are left out and named; "
            "topics are whole. --json prints an array of objects. " CLI_PATTERN_HELP,
        .children = children,
    };
    static const struct table_column columns[] = {
        {"TOPIC", TABLE_LEFT, false, 0},  {"ID", TABLE_RIGHT, false, 1},
        {"PID", TABLE_RIGHT, false, 0},   {"PROGRAM", TABLE_LEFT, true, 0},
        {"SUBS", TABLE_RIGHT, false, 0},  {"MESSAGES", TABLE_RIGHT, false, 4},
        {"BYTES", TABLE_RIGHT, false, 2}, {"MEMORY", TABLE_RIGHT, false, 3},
    };
    struct ls ls = {.cli = cli};
    int status = CLI_FAILURE;

    if (cli_parse(cli, &argp, argc, argv, &ls) != CLI_OK)
        return CLI_FAILURE;
    ls.json = json_array();
    if (!ls.json || table_new(&ls.table, columns, sizeof columns / sizeof columns[0]) < 0) {
        (void)cli_report(cli, NULL, "out of memory");
    } else if (cli_connect(cli) == 0) {
        int code = dlx_list_publishers(cli->client, ls.topic, add, &ls);
        status = code < 0 ? cli_report_dlx(cli, ls.topic, code) : print(&ls);
    }
    json_decref(ls.json);
    table_free(ls.table);
    return status;
}
