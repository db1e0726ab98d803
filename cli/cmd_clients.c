/* SPDX-License-Identifier: Apache-2.0 */

/* dlxctl clients: the programs that are connected. */

#include "cli/cli.h"
#include "cli/describe.h"
#include "cli/output.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct clients {
    struct cli *cli;
    struct dlx_client_info *items;
    size_t n;
};

static int clients_add(const struct dlx_client_info *info, void *userdata)
{
    struct clients *all = userdata;
    struct dlx_client_info *items = reallocarray(all->items, all->n + 1, sizeof *items);
    if (!items)
        return DLX_E_NO_MEMORY;
    all->items = items;
    items[all->n++] = *info;
    return 0;
}

static json_t *clients_json(const struct clients *all)
{
    json_t *array = json_array();
    for (size_t i = 0; i < all->n; i++) {
        const struct dlx_client_info *info = &all->items[i];
        array = output_json_append(
            array,
            json_pack("{s:o, s:I, s:I, s:o, s:o, s:I, s:I, s:I, s:o, s:I, s:b}", "client",
                      output_json_u64(info->client), "pid", (json_int_t)info->pid, "uid",
                      (json_int_t)info->uid, "client_name", output_json_text(info->client_name),
                      "socket", output_json_text(info->socket), "n_publishers",
                      (json_int_t)info->n_publishers, "n_subscriptions",
                      (json_int_t)info->n_subscriptions, "n_links", (json_int_t)info->n_links,
                      "shared_bytes", output_json_u64(info->shared_bytes), "protocol_minor",
                      (json_int_t)info->protocol_minor, "own", (int)info->own));
    }
    return array;
}

static int clients_print(const struct clients *all)
{
    static const struct table_column columns[] = {
        {"ID", TABLE_RIGHT, false, 4},     {"PID", TABLE_RIGHT, false, 0},
        {"PROGRAM", TABLE_LEFT, true, 0},  {"UID", TABLE_RIGHT, false, 0},
        {"SOCKET", TABLE_LEFT, false, 1},  {"PUBLISHERS", TABLE_RIGHT, false, 0},
        {"SUBS", TABLE_RIGHT, false, 0},   {"LINKS", TABLE_RIGHT, false, 3},
        {"MEMORY", TABLE_RIGHT, false, 2}, {"NOTE", TABLE_LEFT, false, 0},
    };
    struct table *table = NULL;
    char name[256], socket[128], pid[DESCRIBE_PID_SIZE], bytes[HUMAN_SIZE];
    if (table_new(&table, columns, sizeof columns / sizeof columns[0]) < 0)
        return DLX_E_NO_MEMORY;
    for (size_t i = 0; i < all->n; i++) {
        const struct dlx_client_info *info = &all->items[i];
        output_printable(info->client_name, name, sizeof name);
        output_printable(info->socket, socket, sizeof socket);
        human_bytes(info->shared_bytes, bytes);
        table_cell(table, "%" PRIu64, info->client);
        table_cell(table, "%s", describe_pid(info->pid, pid));
        table_cell(table, "%s", name);
        table_cell(table, "%u", info->uid);
        table_cell(table, "%s", socket);
        table_cell(table, "%u", info->n_publishers);
        table_cell(table, "%u", info->n_subscriptions);
        table_cell(table, "%u", info->n_links);
        table_cell(table, "%s", bytes);
        table_cell(table, "%s", info->own ? "this command" : "");
    }
    int code = table_print(table, stdout, 0, output_width(stdout));
    table_free(table);
    return code;
}

static int clients_tell(const struct clients *all)
{
    if (all->cli->json)
        return cli_json(all->cli, clients_json(all), true);
    if (clients_print(all) < 0)
        return cli_report(all->cli, NULL, "out of memory");
    return cli_finish(all->cli, CLI_OK);
}

int cmd_clients(struct cli *cli, int argc, char **argv)
{
    static const struct cli_line line = {
        .doc = "List the programs of this user that are connected to the daemon: root and the "
               "daemon's own user see those of all users.\vA program has a row for each "
               "connection, with its number of publishers and subscriptions, the links of both, "
               "and the shared memory of its publishers. SOCKET is the name of the daemon's socket "
               "by which it came. `dlxctl kick` ends a connection. --json prints an array of "
               "objects.",
    };
    struct clients all = {.cli = cli};
    int status = CLI_FAILURE;

    if (cli_parse(cli, &line, argc, argv, &all) != CLI_OK)
        return CLI_FAILURE;
    if (cli_connect(cli) == 0) {
        int code = dlx_list_clients(cli->client, clients_add, &all);
        status = code < 0 ? cli_report_dlx(cli, NULL, code) : clients_tell(&all);
    }
    free(all.items);
    return status;
}
