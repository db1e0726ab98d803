/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "cli/describe.h"
#include "cli/output.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPTION_NEWEST = 'n', HELD_MAX = 4096 /* messages, the library's limit */ };

/* One publisher and all that is known about it. */
struct entry {
    struct dlx_publisher_info info;
    struct dlx_link_info *links;
    size_t n_links;
    struct dlx_message *newest; /* NULL: none to be had */
};

struct info {
    struct cli *cli;
    const char *topic;
    bool newest; /* look at messages, too, which only a subscriber may */
    struct entry *entries;
    size_t n_entries;
    char why_not[512]; /* the newest messages could not be looked at */
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct info *i = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = i->cli;
        return 0;
    case OPTION_NEWEST:
        i->newest = true;
        return 0;
    case ARGP_KEY_ARG:
        if (i->topic)
            argp_error(state, "one topic at most, '%s' is the second", arg);
        i->topic = arg;
        return 0;
    case ARGP_KEY_END:
        if (i->newest && !i->topic)
            argp_error(state, "--newest needs a topic");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* -- asking ------------------------------------------------------------------------------------------ */

static int add_publisher(const struct dlx_publisher_info *publisher, void *userdata)
{
    struct info *i = userdata;
    struct entry *entries = reallocarray(i->entries, i->n_entries + 1, sizeof *entries);
    if (!entries)
        return DLX_E_NO_MEMORY;
    i->entries = entries;
    entries[i->n_entries++] = (struct entry){.info = *publisher};
    return 0;
}

static int add_link(const struct dlx_link_info *link, void *userdata)
{
    struct entry *entry = userdata;
    struct dlx_link_info *links = reallocarray(entry->links, entry->n_links + 1, sizeof *links);
    if (!links)
        return DLX_E_NO_MEMORY;
    entry->links = links;
    links[entry->n_links++] = *link;
    return 0;
}

/* The newest message of each publisher that has one. That there is none, or that this program may not
 * see it, is no failure. */
static void take_newest(struct info *i)
{
    struct dlx_subscribe_args args = {
        .size = sizeof args,
        .mode = DLX_MODE_LATEST,
        .history = 1,
        .max_held = (uint32_t)(i->n_entries < HELD_MAX ? i->n_entries + 1 : HELD_MAX)};
    struct dlx_subscription *s = NULL;
    struct dlx_message *m = NULL;
    if (dlx_subscribe(i->cli->client, i->topic, &args, &s) < 0) {
        (void)snprintf(i->why_not, sizeof i->why_not, "%s", dlx_client_errmsg(i->cli->client));
        return;
    }
    for (size_t n = 0; n < 4 * i->n_entries && dlx_take(s, 0, &m) == 0; n++) {
        for (size_t e = 0; e < i->n_entries; e++)
            if (i->entries[e].info.publisher == dlx_message_publisher(m)) {
                dlx_message_unref(i->entries[e].newest);
                i->entries[e].newest = dlx_message_ref(m);
            }
        m = dlx_message_unref(m);
    }
    dlx_subscription_unref(s);
}

static int ask(struct info *i)
{
    int code = dlx_list_publishers(i->cli->client, i->topic, add_publisher, i);
    if (code < 0)
        return code;
    for (size_t e = 0; e < i->n_entries; e++) {
        struct entry *entry = &i->entries[e];
        /* before take_newest(), so that this program is not one of them */
        code = dlx_list_links(i->cli->client, entry->info.publisher, add_link, entry);
        if (code < 0 && code != DLX_E_NOT_FOUND) /* it may have left by now */
            return code;
    }
    if (i->newest && i->n_entries > 0)
        take_newest(i);
    return 0;
}

/* -- telling ----------------------------------------------------------------------------------------- */

static json_t *entry_json(const struct info *i, const struct entry *entry)
{
    json_t *json = describe_publisher(&entry->info), *links = json_array();
    for (size_t l = 0; l < entry->n_links; l++)
        (void)json_array_append_new(links, describe_link(&entry->links[l]));
    if (!json || json_object_set_new(json, "links", links) < 0 ||
        (i->newest && json_object_set_new(json, "newest",
                                          entry->newest ? describe_message(entry->newest, 0)
                                                        : json_null()) < 0)) {
        json_decref(json);
        return NULL;
    }
    return json;
}

static json_t *topic_json(const struct info *i)
{
    json_t *publishers = json_array();
    for (size_t e = 0; e < i->n_entries; e++)
        if (json_array_append_new(publishers, entry_json(i, &i->entries[e])) < 0) {
            json_decref(publishers);
            return NULL;
        }
    return json_pack("{s:o, s:o}", "topic", output_json_text(i->topic), "publishers", publishers);
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

static int print_links(const struct entry *entry)
{
    static const struct table_column columns[] = {
        {"PID", TABLE_RIGHT, false, 0},   {"PROGRAM", TABLE_LEFT, true, 0},
        {"MODE", TABLE_LEFT, false, 2},   {"RELIABLE", TABLE_LEFT, false, 1},
        {"TAKEN", TABLE_RIGHT, false, 0}, {"SKIPPED", TABLE_RIGHT, false, 3},
        {"LOST", TABLE_RIGHT, false, 0},  {"HELD", TABLE_RIGHT, false, 0},
    };
    struct table *table = NULL;
    char name[256], pid[DESCRIBE_PID_SIZE];
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
        table_cell(table, "%u of %u", link->n_held, link->max_held);
    }
    int code = table_print(table, stdout, 2, output_width(stdout));
    table_free(table);
    return code;
}

static int print_entry(const struct info *i, const struct entry *entry)
{
    bool pattern = cli_is_pattern(i->topic);
    const struct dlx_publisher_info *p = &entry->info;
    char name[256], bytes[HUMAN_SIZE], arena[HUMAN_SIZE], control[HUMAN_SIZE];
    char pid[DESCRIBE_PID_SIZE];
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
    printf("  settings     history %u, depth %u, %s", p->history, p->depth,
           p->on_full == DLX_ON_FULL_BLOCK ? "blocks when full" : "drops the oldest when full");
    if (p->retain > 0)
        printf(", retains %u", p->retain);
    putchar('\n');
    printf("  memory       %s in %u arena%s, control block %s\n", arena, p->n_arenas,
           p->n_arenas == 1 ? "" : "s", control);
    if (entry->newest)
        print_newest(entry->newest);
    else if (*i->why_not)
        printf("  newest       not known: %s\n", i->why_not);
    else if (i->newest)
        printf("  newest       none\n");
    if (entry->n_links == 0) {
        printf("  subscribers  none\n");
        return 0;
    }
    printf("  subscribers  %zu\n", entry->n_links);
    return print_links(entry);
}

static int tell_topic(struct info *i)
{
    size_t n_retained = 0;
    if (i->n_entries == 0)
        return cli_report(i->cli, i->topic, "no publisher of this topic");
    if (i->cli->json)
        return cli_json(i->cli, topic_json(i), true);
    for (size_t e = 0; e < i->n_entries; e++)
        n_retained += i->entries[e].info.retained;
    size_t n = i->n_entries - n_retained;
    printf("%s: %zu publisher%s", i->topic, n, n == 1 ? "" : "s");
    if (n_retained > 0)
        printf(", %zu retained", n_retained);
    putchar('\n');
    for (size_t e = 0; e < i->n_entries; e++)
        if (print_entry(i, &i->entries[e]) < 0)
            return cli_report(i->cli, NULL, "out of memory");
    return cli_finish(i->cli, CLI_OK);
}

static int tell_daemon(struct cli *cli)
{
    struct dlx_daemon_info d = {.size = sizeof d};
    char uptime[HUMAN_SIZE], memory[HUMAN_SIZE], turn[HUMAN_SIZE], version[64], socket[256];
    char passed_over[1024];
    int code = dlx_client_get_daemon_info(cli->client, &d);
    if (code < 0)
        return cli_report_dlx(cli, NULL, code);
    if (cli->json)
        return cli_json(cli, describe_daemon(cli->client, &d), true);
    human_ns(d.uptime_ns <= INT64_MAX ? (int64_t)d.uptime_ns : INT64_MAX, uptime);
    human_ns(d.longest_turn_ns <= INT64_MAX ? (int64_t)d.longest_turn_ns : INT64_MAX, turn);
    human_bytes(d.shared_bytes, memory);
    output_printable(d.version, version, sizeof version);
    output_printable(d.socket, socket, sizeof socket);
    output_printable(dlx_client_passed_over(cli->client), passed_over, sizeof passed_over);
    if (*passed_over)
        printf("passed over    %s\n", passed_over);
    bool is_elsewhere = d.pid_scope == DLX_PID_ELSEWHERE;
    printf("daemon         dlpackd %s, pid %u%s, up %s\n", version, d.pid,
           is_elsewhere ? " of another pid namespace" : "", uptime);
    printf("socket         %s%s\n", socket, is_elsewhere ? " (the path that the daemon has)" : "");
    printf("chosen         %s\n", describe_place(cli->client));
    printf("protocol       %u.%u\n", d.protocol_major, d.protocol_minor);
    printf("clients        %u (this one included)\n", d.n_clients);
    printf("topics         %u\n", d.n_topics);
    printf("publishers     %u\n", d.n_publishers);
    printf("links          %u\n", d.n_links);
    if (d.longest_turn_ns > 0)
        printf("longest turn   %s of CPU time\n", turn);
    printf("shared memory  %s, %s\n", memory,
           strcmp(d.memory, "memfd") == 0 ? "memfd: sealed"
                                          : "posix: not sealed (see dlpackd --help)");
    return cli_finish(cli, CLI_OK);
}

int cmd_info(struct cli *cli, int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"newest", OPTION_NEWEST, NULL, 0,
         "Show the newest message, too: subscribe for a moment, which a publisher may notice", 0},
        {0},
    };
    static const struct argp_child children[] = {{&cli_argp_common, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .args_doc = "[TOPIC|PATTERN]",
        .doc = "Without a topic: show the daemon. With one: show its publishers, their settings "
               "and memory, and who is subscribed. It only looks: no publisher takes it for a "
               "subscriber, but with --newest.\vOf a subscriber: messages taken, "
               "skipped on purpose (mode latest), lost (overwritten before they were taken), and "
               "held now, of as many as it may hold. A topic without a publisher is a "
               "failure. " CLI_PATTERN_HELP,
        .children = children,
    };
    struct info info = {.cli = cli};
    int status = CLI_FAILURE;

    if (cli_parse(cli, &argp, argc, argv, &info) != CLI_OK)
        return CLI_FAILURE;
    if (cli_connect(cli) == 0) {
        if (!info.topic) {
            status = tell_daemon(cli);
        } else {
            int code = ask(&info);
            status = code < 0 ? cli_report_dlx(cli, info.topic, code) : tell_topic(&info);
        }
    }
    for (size_t e = 0; e < info.n_entries; e++) {
        dlx_message_unref(info.entries[e].newest);
        free(info.entries[e].links);
    }
    free(info.entries);
    return status;
}
