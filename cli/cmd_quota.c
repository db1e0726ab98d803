/* SPDX-License-Identifier: Apache-2.0 */

/* dlxctl quota: what users use of the daemon, and may use. */

#include "cli/cli.h"
#include "cli/output.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct quotas {
    struct cli *cli;
    struct dlx_quota_info *items;
    size_t n;
};

static int quota_add(const struct dlx_quota_info *info, void *userdata)
{
    struct quotas *q = userdata;
    struct dlx_quota_info *items = reallocarray(q->items, q->n + 1, sizeof *items);
    if (!items)
        return DLX_E_NO_MEMORY;
    q->items = items;
    items[q->n++] = *info;
    return 0;
}

static bool is_same_user(const struct dlx_quota_info *a, const struct dlx_quota_info *b)
{
    return a->uid == b->uid && strcmp(a->socket, b->socket) == 0;
}

static json_t *max_json(uint64_t max)
{
    return max == DLX_QUOTA_UNLIMITED ? json_null() : output_json_u64(max);
}

/* An object for each user. */
static json_t *users_json(const struct quotas *q)
{
    json_t *array = json_array(), *quotas = NULL;
    for (size_t i = 0; i < q->n; i++) {
        const struct dlx_quota_info *item = &q->items[i];
        if (i == 0 || !is_same_user(item, &q->items[i - 1])) {
            quotas = json_object();
            json_t *user = json_pack("{s:I, s:o, s:o, s:o}", "uid", (json_int_t)item->uid, "socket",
                                     output_json_text(item->socket), "class",
                                     output_json_text(item->quota_class), "quotas", quotas);
            if (json_array_append_new(array, user) < 0)
                goto failed;
        }
        json_t *quota = json_pack("{s:o, s:o}", "used", output_json_u64(item->used), "max",
                                  max_json(item->max));
        if (json_object_set_new(quotas, item->name, quota) < 0)
            goto failed;
    }
    return array;
failed:
    json_decref(array);
    return NULL;
}

static const char *amount_text(const struct dlx_quota_info *item, uint64_t amount,
                               char text[HUMAN_SIZE])
{
    if (amount == DLX_QUOTA_UNLIMITED)
        (void)snprintf(text, HUMAN_SIZE, "-");
    else if (strcmp(item->name, "bytes") == 0 || strstr(item->name, "-bytes"))
        human_bytes(amount, text);
    else
        (void)snprintf(text, HUMAN_SIZE, "%" PRIu64, amount);
    return text;
}

static int quota_print(const struct quotas *q)
{
    static const struct table_column columns[] = {
        {"UID", TABLE_RIGHT, false, 0},  {"SOCKET", TABLE_LEFT, false, 2},
        {"CLASS", TABLE_LEFT, false, 1}, {"QUOTA", TABLE_LEFT, false, 0},
        {"USED", TABLE_RIGHT, false, 0}, {"MAX", TABLE_RIGHT, false, 0},
    };
    struct table *table = NULL;
    char text[HUMAN_SIZE], socket[64], quota_class[64];
    if (table_new(&table, columns, sizeof columns / sizeof columns[0]) < 0)
        return DLX_E_NO_MEMORY;
    for (size_t i = 0; i < q->n; i++) {
        const struct dlx_quota_info *item = &q->items[i];
        output_printable(item->socket, socket, sizeof socket);
        output_printable(item->quota_class, quota_class, sizeof quota_class);
        table_cell(table, "%u", item->uid);
        table_cell(table, "%s", socket);
        table_cell(table, "%s", quota_class);
        table_cell(table, "%s", item->name);
        table_cell(table, "%s", amount_text(item, item->used, text));
        table_cell(table, "%s", amount_text(item, item->max, text));
    }
    int code = table_print(table, stdout, 0, output_width(stdout));
    table_free(table);
    return code;
}

static int quota_tell(const struct quotas *q)
{
    if (q->cli->json)
        return cli_json(q->cli, users_json(q), true);
    if (quota_print(q) < 0)
        return cli_report(q->cli, NULL, "out of memory");
    return cli_finish(q->cli, CLI_OK);
}

int cmd_quota(struct cli *cli, int argc, char **argv)
{
    static const struct cli_line line = {
        .doc = "Show what the user of this program uses of the daemon, and what it may have: root "
               "and the daemon's own user see all users.\vA user is a uid by one of the daemon's "
               "listening sockets; its class, which dlpackd.conf(5) describes, says how much it "
               "may have. MAX is that, or what other users leave it now, if that is less; '-' is "
               "no limit. --json prints an array with an object for each user, in which max is "
               "null then.",
    };
    struct quotas q = {.cli = cli};
    int status = CLI_FAILURE;

    if (cli_parse(cli, &line, argc, argv, &q) != CLI_OK)
        return CLI_FAILURE;
    if (cli_connect(cli) == 0) {
        int code = dlx_list_quotas(cli->client, quota_add, &q);
        status = code < 0 ? cli_report_dlx(cli, NULL, code) : quota_tell(&q);
    }
    free(q.items);
    return status;
}
