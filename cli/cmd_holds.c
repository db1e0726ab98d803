/* SPDX-License-Identifier: Apache-2.0 */

/* dlxctl holds: the subscribers that hold messages, those that hold most first. */

#include "cli/cli.h"
#include "cli/describe.h"
#include "cli/look.h"
#include "cli/output.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct row {
    const struct look_entry *entry;
    const struct dlx_link_info *link;
};

struct holds {
    struct look look;
    bool all;
    struct row *rows;
    size_t n_rows;
};

/* ---- asking ---------------------------------------------------------------------------------- */

static int compare_rows(const void *a, const void *b)
{
    const struct dlx_link_info *x = ((const struct row *)a)->link;
    const struct dlx_link_info *y = ((const struct row *)b)->link;
    if (x->n_held != y->n_held)
        return x->n_held > y->n_held ? -1 : 1;
    if (x->former_bytes != y->former_bytes)
        return x->former_bytes > y->former_bytes ? -1 : 1;
    return (x->link > y->link) - (x->link < y->link);
}

static int holds_ask(struct holds *h)
{
    size_t n_links = 0;
    int code = look_ask(&h->look);
    for (size_t i = 0; i < h->look.n_entries; i++)
        n_links += h->look.entries[i].n_links;
    if (code < 0 || n_links == 0)
        return code;
    h->rows = calloc(n_links, sizeof *h->rows);
    if (!h->rows)
        return DLX_E_NO_MEMORY;
    for (size_t i = 0; i < h->look.n_entries; i++) {
        const struct look_entry *entry = &h->look.entries[i];
        for (size_t l = 0; l < entry->n_links; l++)
            if (entry->links[l].n_held > 0 || h->all || entry->gone)
                h->rows[h->n_rows++] = (struct row){.entry = entry, .link = &entry->links[l]};
    }
    qsort(h->rows, h->n_rows, sizeof *h->rows, compare_rows);
    return 0;
}

/* ---- telling --------------------------------------------------------------------------------- */

static uint64_t shared_bytes(const struct dlx_publisher_info *p)
{
    return p->arena_bytes + p->control_bytes;
}

static json_t *rows_json(const struct holds *h)
{
    json_t *array = json_array();
    for (size_t i = 0; i < h->n_rows; i++) {
        const struct dlx_publisher_info *p = &h->rows[i].entry->info;
        json_t *more =
            json_pack("{s:o, s:o, s:o, s:b, s:o}", "topic", output_json_text(p->topic), "former",
                      output_json_u64(p->former), "publisher", output_json_u64(p->publisher),
                      "publisher_gone", (int)h->rows[i].entry->gone, "publisher_bytes",
                      output_json_u64(shared_bytes(p)));
        array = output_json_append(array, output_json_merge(describe_link(h->rows[i].link), more));
    }
    return array;
}

enum { NOTE_SIZE = 96 };

/* The memory of a publisher that is gone stays until its subscribers have taken everything. */
static const char *holds_note(const struct row *row, char text[NOTE_SIZE])
{
    char bytes[HUMAN_SIZE], own[HUMAN_SIZE];
    *text = '\0';
    human_bytes(shared_bytes(&row->entry->info), bytes);
    human_bytes(row->link->former_bytes, own);
    if (row->entry->info.former != 0)
        (void)snprintf(text, NOTE_SIZE, "from before dlpackd's restart, keeps %s%s", own,
                       row->link->is_publisher ? ", the publisher" : "");
    else if (row->entry->gone)
        (void)snprintf(text, NOTE_SIZE, "publisher GONE, %" PRIu64 " to take, keeps %s",
                       row->link->behind, bytes);
    return text;
}

/* The counts of a link. The daemon has none for memory that an earlier daemon made. */
static void add_counts(struct table *table, const struct row *row)
{
    const struct dlx_link_info *link = row->link;
    for (int i = 0; row->entry->info.former != 0 && i < 5; i++)
        table_cell(table, "-");
    if (row->entry->info.former != 0)
        return;
    table_cell(table, "%u of %u", link->n_held, link->max_held);
    table_cell(table, "%" PRIu64, link->taken);
    table_cell(table, "%" PRIu64, link->lost);
    table_cell(table, "%s", link->mode == DLX_MODE_LATEST ? "latest" : "all");
    table_cell(table, "%s", link->reliable ? "yes" : "no");
}

static int print_rows(const struct holds *h)
{
    static const struct table_column columns[] = {
        {"TOPIC", TABLE_LEFT, false, 0},    {"PID", TABLE_RIGHT, false, 0},
        {"UID", TABLE_RIGHT, false, 1},     {"PROGRAM", TABLE_LEFT, true, 0},
        {"HELD", TABLE_RIGHT, false, 0},    {"TAKEN", TABLE_RIGHT, false, 4},
        {"LOST", TABLE_RIGHT, false, 0},    {"MODE", TABLE_LEFT, false, 3},
        {"RELIABLE", TABLE_LEFT, false, 2}, {"NOTE", TABLE_LEFT, false, 0},
    };
    struct table *table = NULL;
    char name[256], pid[DESCRIBE_PID_SIZE], note[NOTE_SIZE];
    if (table_new(&table, columns, sizeof columns / sizeof columns[0]) < 0)
        return DLX_E_NO_MEMORY;
    for (size_t i = 0; i < h->n_rows; i++) {
        const struct dlx_link_info *link = h->rows[i].link;
        output_printable(link->client_name, name, sizeof name);
        table_cell(table, "%s", h->rows[i].entry->info.topic);
        table_cell(table, "%s", describe_pid(link->pid, pid));
        table_cell(table, "%u", link->uid);
        table_cell(table, "%s", name);
        add_counts(table, &h->rows[i]);
        table_cell(table, "%s", holds_note(&h->rows[i], note));
    }
    int code = table_print(table, stdout, 0, output_width(stdout));
    table_free(table);
    return code;
}

static int holds_tell(const struct holds *h)
{
    int status = CLI_OK;
    if (h->look.cli->json)
        status = cli_json(h->look.cli, rows_json(h), true);
    else if (h->n_rows > 0 && print_rows(h) < 0)
        return cli_report(h->look.cli, NULL, "out of memory");
    else if (h->n_rows == 0 && h->look.n_entries > 0)
        printf("%s%s%s\n", h->all ? "no subscribers" : "no program holds a message",
               h->look.topic ? " of " : "", h->look.topic ? h->look.topic : "");
    if (h->look.n_entries == 0)
        status = cli_no_publisher(h->look.cli, h->look.topic);
    return cli_finish(h->look.cli, status);
}

int cmd_holds(struct cli *cli, int argc, char **argv)
{
    static const struct cli_option options[] = {
        {NULL, 0, "TOPIC|PATTERN", CLI_TO(struct holds, look.topic), NULL},
        {"all", 'a', NULL, CLI_TO(struct holds, all), "Also show subscribers that hold nothing"},
        {0},
    };
    static const struct cli_line line = {
        .options = options,
        .doc =
            "Show who holds messages, and so keeps publishers from using their memory again: for "
            "each subscriber of each publisher its process, user and program, the messages that it "
            "holds of as many as it may, those it has taken and lost, its mode and whether it is "
            "reliable. The subscribers that hold most come first.\vHELD, TAKEN and LOST are as the "
            "subscriber counts them. Subscribers of a publisher that is GONE are listed even if "
            "they hold nothing: its memory stays until they have taken everything that it "
            "published. Of memory from before a restart of dlpackd, programs that keep it are "
            "listed with how much, its publisher among them. A program that subscribes to a topic "
            "of several publishers has a line for each. --json prints an array of "
            "objects. " CLI_PATTERN_HELP,
    };
    struct holds h = {.look = {.cli = cli, .include_gone = true}};
    int status = CLI_FAILURE;

    if (cli_parse(cli, &line, argc, argv, &h) != CLI_OK)
        return CLI_FAILURE;
    if (cli_connect(cli) == 0) {
        int code = holds_ask(&h);
        status = code < 0 ? cli_report_dlx(cli, h.look.topic, code) : holds_tell(&h);
    }
    look_clear(&h.look);
    free(h.rows);
    return status;
}
