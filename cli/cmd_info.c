/* SPDX-License-Identifier: Apache-2.0 */

/* dlxctl info: the daemon, or the publishers of a topic with their links. */

#include "cli/cli.h"
#include "cli/describe.h"
#include "cli/look.h"
#include "cli/output.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void info_check(void *into, struct argp_state *state)
{
    const struct look *look = into;
    if (look->newest && !look->topic)
        argp_error(state, "--newest needs a topic");
}

/* ---- telling --------------------------------------------------------------------------------- */

static json_t *entry_json(const struct look *look, const struct look_entry *entry)
{
    json_t *links = json_array();
    for (size_t l = 0; l < entry->n_links; l++)
        links = output_json_append(links, describe_link(&entry->links[l]));
    return output_json_put(look_json(look, entry), "links", links);
}

static json_t *topic_json(const struct look *look)
{
    json_t *publishers = json_array();
    for (size_t e = 0; e < look->n_entries; e++)
        publishers = output_json_append(publishers, entry_json(look, &look->entries[e]));
    json_t *alone = json_array();
    for (size_t i = 0; i < look->n_alone; i++)
        alone = output_json_append(alone, look_alone_json(&look->alone[i]));
    return json_pack("{s:o, s:o, s:o}", "topic", output_json_text(look->topic), "publishers",
                     publishers, "unserved", alone);
}

static void print_newest(const struct dlx_message *m)
{
    char age[HUMAN_SIZE], tensor[DESCRIBE_ITEM_SIZE], meta[DESCRIBE_META_SIZE];
    human_ns(describe_age(m), age);
    printf("  newest       message %" PRIu64 ", %s old\n", dlx_message_seq(m), age);
    uint32_t n = dlx_message_n_tensors(m);
    if (describe_is_set(m)) {
        describe_set_text(m, tensor);
        printf("               %s\n", tensor);
    }
    for (uint32_t i = 0; i < n && i < DESCRIBE_TENSORS; i++) {
        describe_item_text(m, i, tensor);
        printf("               %s\n", tensor);
    }
    if (n > DESCRIBE_TENSORS)
        printf("               ... and %u more\n", n - DESCRIBE_TENSORS);
    if (describe_meta_text(m, meta))
        printf("  metadata     %s\n", meta);
}

static int print_links(const struct look_entry *entry)
{
    static const struct table_column columns[] = {
        {"PID", TABLE_RIGHT, false, 0},   {"PROGRAM", TABLE_LEFT, true, 0},
        {"MODE", TABLE_LEFT, false, 2},   {"RELIABLE", TABLE_LEFT, false, 1},
        {"TAKEN", TABLE_RIGHT, false, 0}, {"SKIPPED", TABLE_RIGHT, false, 3},
        {"LOST", TABLE_RIGHT, false, 0},  {"BEHIND", TABLE_RIGHT, false, 0},
        {"HELD", TABLE_RIGHT, false, 0},  {"NOTE", TABLE_LEFT, false, 0},
    };
    struct table *table = NULL;
    char name[256], pid[DESCRIBE_PID_SIZE], note[LOOK_NOTE_SIZE], behind[LOOK_BEHIND_SIZE];
    if (table_new(&table, columns, sizeof columns / sizeof columns[0]) < 0)
        return DLX_E_NO_MEMORY;
    for (size_t l = 0; l < entry->n_links; l++) {
        const struct dlx_link_info *link = &entry->links[l];
        output_printable(link->client_name, name, sizeof name);
        table_cell(table, "%s", describe_pid(link->pid, pid));
        table_cell(table, "%s", name);
        table_cell(table, "%s", link->mode == DLX_MODE_LATEST ? "latest" : "all");
        table_cell(table, "%s", link->reliable ? "yes" : "no");
        table_cell(table, "%" PRIu64, link->taken);
        table_cell(table, "%" PRIu64, link->skipped);
        table_cell(table, "%" PRIu64, link->lost);
        table_cell(table, "%s", look_behind_text(link->behind, behind));
        table_cell(table, "%u of %u", link->n_held, link->max_held);
        table_cell(table, "%s", look_link_note(link, note));
    }
    int code = table_print(table, stdout, 2, output_width(stdout));
    table_free(table);
    return code;
}

static void print_groups(const struct look_entry *entry)
{
    for (size_t i = 0; i < entry->n_groups; i++) {
        const struct dlx_group_info *g = &entry->groups[i];
        printf("  %-13s%s: %" PRIu64 " waiting, %" PRIu64 " in flight, %" PRIu64
               " done, %u worker%s\n",
               i == 0 ? "queues" : "", g->name, g->waiting, g->in_flight, g->done, g->n_workers,
               g->n_workers == 1 ? "" : "s");
    }
}

static int print_entry(const struct look *look, const struct look_entry *entry)
{
    bool pattern = cli_is_pattern(look->topic);
    const struct dlx_publisher_info *p = &entry->info;
    char name[256], bytes[HUMAN_SIZE], arena[HUMAN_SIZE], control[HUMAN_SIZE];
    char pid[DESCRIBE_PID_SIZE], note[LOOK_NOTE_SIZE];
    output_printable(p->client_name, name, sizeof name);
    human_bytes(p->published_bytes, bytes);
    human_bytes(p->arena_bytes, arena);
    human_bytes(p->control_bytes, control);
    printf("\npublisher %" PRIu64 "%s%s: %s (", p->publisher, pattern ? " of " : "",
           pattern ? p->topic : "", name);
    if (p->retained)
        printf("retained, its process has gone; uid %u)\n", p->uid);
    else
        printf("pid %s, uid %u)\n", describe_pid(p->pid, pid), p->uid);
    printf("  published    %" PRIu64 " message%s, %s\n", p->published, p->published == 1 ? "" : "s",
           bytes);
    if (look_refused(p) > 0)
        printf("  refused      %" PRIu64 " message%s, for which there was no room in time\n",
               look_refused(p), look_refused(p) == 1 ? "" : "s");
    printf("  settings     history %u, depth %u, %s", p->history, p->depth,
           p->on_full == DLX_ON_FULL_BLOCK ? "blocks when full" : "drops the oldest when full");
    if (p->retain > 0)
        printf(", retains %u", p->retain);
    putchar('\n');
    printf("  memory       %s in %u arena%s, control block %s\n", arena, p->n_arenas,
           p->n_arenas == 1 ? "" : "s", control);
    print_groups(entry);
    if (entry->newest)
        print_newest(entry->newest);
    else if (*look->why_not)
        printf("  newest       not known: %s\n", look->why_not);
    else if (look->newest)
        printf("  newest       none\n");
    if (entry->n_links == 0) {
        printf("  subscribers  none\n");
        return 0;
    }
    (void)look_note(entry, note);
    printf("  subscribers  %zu%s%s\n", entry->n_links, *note ? ": " : "", note);
    return print_links(entry);
}

/* Prints the programs that keep memory of a publisher of an earlier daemon. */
static void print_former(const struct look_entry *entry)
{
    const struct dlx_publisher_info *p = &entry->info;
    char bytes[HUMAN_SIZE], name[256], pid[DESCRIBE_PID_SIZE];
    human_bytes(p->arena_bytes + p->control_bytes, bytes);
    printf("\npublisher %" PRIu64 " of %s, from before dlpackd's restart\n", p->former, p->topic);
    printf("  memory       %s, which these programs keep:\n", bytes);
    for (size_t l = 0; l < entry->n_links; l++) {
        const struct dlx_link_info *link = &entry->links[l];
        human_bytes(link->former_bytes, bytes);
        output_printable(link->client_name, name, sizeof name);
        printf("               %s, pid %s, uid %u: %s%s\n", name, describe_pid(link->pid, pid),
               link->uid, bytes, link->is_publisher ? ", the publisher" : "");
    }
}

static int tell_topic(struct look *look)
{
    size_t n_retained = 0, n_former = 0;
    if (look->cli->json) {
        int status = cli_json(look->cli, topic_json(look), true);
        return status == CLI_OK && look->n_entries == 0 ? cli_no_publisher(look->cli, look->topic)
                                                        : status;
    }
    if (look->n_entries == 0 && look_print_alone(look, stdout) < 0)
        return cli_report(look->cli, NULL, "out of memory");
    if (look->n_entries == 0)
        return cli_finish(look->cli, cli_no_publisher(look->cli, look->topic));
    for (size_t e = 0; e < look->n_entries; e++)
        n_retained += look->entries[e].info.retained;
    for (size_t e = 0; e < look->n_entries; e++)
        n_former += look->entries[e].info.former != 0;
    size_t n = look->n_entries - n_retained - n_former;
    printf("%s: %zu publisher%s", look->topic, n, n == 1 ? "" : "s");
    if (n_retained > 0)
        printf(", %zu retained", n_retained);
    putchar('\n');
    for (size_t e = 0; e < look->n_entries; e++)
        if (look->entries[e].info.former != 0)
            print_former(&look->entries[e]);
        else if (print_entry(look, &look->entries[e]) < 0)
            return cli_report(look->cli, NULL, "out of memory");
    if (look_print_alone(look, stdout) < 0)
        return cli_report(look->cli, NULL, "out of memory");
    return cli_finish(look->cli, CLI_OK);
}

static int tell_daemon(struct cli *cli)
{
    struct dlx_daemon_info d = {.size = sizeof d};
    char uptime[HUMAN_SIZE], memory[HUMAN_SIZE], turn[HUMAN_SIZE], version[64], socket[256];
    char former[HUMAN_SIZE];
    char refused_by[1024], lack[sizeof d.lack * 4];
    int code = dlx_client_get_daemon_info(cli->client, &d);
    if (code < 0)
        return cli_report_dlx(cli, NULL, code);
    if (cli->json)
        return cli_json(cli, describe_daemon(cli->client, &d), true);
    human_ns(d.uptime_ns <= INT64_MAX ? (int64_t)d.uptime_ns : INT64_MAX, uptime);
    human_ns(d.longest_turn_ns <= INT64_MAX ? (int64_t)d.longest_turn_ns : INT64_MAX, turn);
    human_bytes(d.shared_bytes, memory);
    human_bytes(d.former_bytes, former);
    output_printable(d.version, version, sizeof version);
    output_printable(d.socket, socket, sizeof socket);
    output_printable(dlx_client_refused_by(cli->client), refused_by, sizeof refused_by);
    if (*refused_by)
        printf("refused by     %s\n", refused_by);
    bool is_elsewhere = d.pid_scope == DLX_PID_ELSEWHERE;
    printf("daemon         dlpackd %s, pid %u%s, up %s\n", version, d.pid,
           is_elsewhere ? " of another pid namespace" : "", uptime);
    printf("socket         %s%s\n", socket, is_elsewhere ? " (the path that the daemon has)" : "");
    printf("found          %s\n", describe_place(cli->client));
    printf("protocol       %u.%u\n", d.protocol_major, d.protocol_minor);
    printf("clients        %u (this one included)\n", d.n_clients);
    printf("topics         %u\n", d.n_topics);
    printf("publishers     %u\n", d.n_publishers);
    printf("links          %u\n", d.n_links);
    output_printable(d.lack, lack, sizeof lack);
    if (*lack)
        printf("links wait     %s\n", lack);
    if (d.longest_turn_ns > 0)
        printf("longest turn   %s of CPU time in one turn of the loop\n", turn);
    printf("shared memory  %s, %s\n", memory,
           strcmp(d.memory, "memfd") == 0 ? "memfd: sealed"
                                          : "posix: not sealed (see dlpackd --help)");
    if (d.former_bytes > 0)
        printf("               of it %s from before dlpackd's restart (see dlxctl holds --all)\n",
               former);
    return cli_finish(cli, CLI_OK);
}

int cmd_info(struct cli *cli, int argc, char **argv)
{
    static const struct cli_option options[] = {
        {NULL, 0, "TOPIC|PATTERN", CLI_TO(struct look, topic), NULL},
        {"newest", 'n', NULL, CLI_TO(struct look, newest),
         "Show the newest message, too: subscribe for a moment, which a publisher may notice"},
        {0},
    };
    static const struct cli_line line = {
        .options = options,
        .check = info_check,
        .doc =
            "Without a topic: show the daemon. With one: show its publishers, their settings and "
            "memory, their groups of workers, and their subscribers. No publisher takes this "
            "command for a subscriber, "
            "except with --newest.\vOf a subscriber: messages taken, skipped on purpose (mode "
            "latest), and lost (overwritten before they were taken); how many it is BEHIND, which "
            "it can still take; and held now, of as many as it may hold. BLOCKS: the publisher "
            "waits for room, since this reliable subscriber is as far behind as its depth or "
            "history allows; FULL: it holds all that it may and takes no more until it releases "
            "one; LOST: it has lost messages; JOINING: it has yet to be told of the link, or to "
            "answer in its next call. A topic without a publisher is a failure. " CLI_PATTERN_HELP,
    };
    struct look info = {.cli = cli, .include_former = true, .include_alone = true};
    int status = CLI_FAILURE;

    if (cli_parse(cli, &line, argc, argv, &info) != CLI_OK)
        return CLI_FAILURE;
    if (cli_connect(cli) == 0) {
        if (!info.topic) {
            status = tell_daemon(cli);
        } else {
            int code = look_ask(&info);
            status = code < 0 ? cli_report_dlx(cli, info.topic, code) : tell_topic(&info);
        }
    }
    look_clear(&info);
    return status;
}
