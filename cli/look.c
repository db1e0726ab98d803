/* SPDX-License-Identifier: Apache-2.0 */

/* Lists the publishers of a topic or pattern, their links and, if wanted, newest messages. */

#include "cli/look.h"
#include "cli/describe.h"
#include "cli/output.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HELD_MAX = 4096 }; /* messages, the library's limit */

static int add_publisher(const struct dlx_publisher_info *publisher, void *userdata)
{
    struct look *look = userdata;
    if (look->is_gone && publisher->former == 0 && !look->include_gone)
        return 0;
    struct look_entry *entries = reallocarray(look->entries, look->n_entries + 1, sizeof *entries);
    if (!entries)
        return DLX_E_NO_MEMORY;
    look->entries = entries;
    entries[look->n_entries++] = (struct look_entry){.info = *publisher};
    return 0;
}

static int add_link(const struct dlx_link_info *link, void *userdata)
{
    struct look_entry *entry = userdata;
    struct dlx_link_info *links = reallocarray(entry->links, entry->n_links + 1, sizeof *links);
    if (!links)
        return DLX_E_NO_MEMORY;
    entry->links = links;
    links[entry->n_links++] = *link;
    return 0;
}

/* Groups come in the order of the entries, but publishers may come and go in between. */
static int look_add_group(const struct dlx_group_info *group, void *userdata)
{
    struct look *look = userdata;
    struct look_entry *entry = NULL;
    for (size_t i = 0; i < look->n_entries && !entry; i++)
        if (look->entries[i].info.publisher == group->publisher &&
            look->entries[i].info.former == 0)
            entry = &look->entries[i];
    if (!entry)
        return 0;
    struct dlx_group_info *groups =
        reallocarray(entry->groups, entry->n_groups + 1, sizeof *groups);
    if (!groups)
        return DLX_E_NO_MEMORY;
    entry->groups = groups;
    groups[entry->n_groups++] = *group;
    return 0;
}

/* Takes the newest message of each publisher that has one. No message, or none that this program
 * may see, is not a failure. */
static void take_newest(struct look *look)
{
    struct dlx_subscribe_args args = {
        .size = sizeof args,
        .mode = DLX_MODE_LATEST,
        .history = 1,
        .max_held = (uint32_t)(look->n_entries < HELD_MAX ? look->n_entries + 1 : HELD_MAX)};
    struct dlx_client *client = look->cli->client;
    struct dlx_subscription *s = NULL;
    struct dlx_message *m = NULL;
    if (dlx_subscribe(client, look->topic ? look->topic : "**", &args, &s) < 0) {
        (void)snprintf(look->why_not, sizeof look->why_not, "%s", dlx_errmsg());
        return;
    }
    for (size_t n = 0; n < 4 * look->n_entries && dlx_take(s, 0, &m) == 0; n++) {
        for (size_t i = 0; i < look->n_entries; i++)
            if (look->entries[i].info.publisher == dlx_message_publisher(m)) {
                dlx_message_unref(look->entries[i].newest);
                look->entries[i].newest = dlx_message_ref(m);
            }
        m = dlx_message_unref(m);
    }
    dlx_subscription_unref(s);
}

/* A daemon older than protocol 2.7 does not know these publishers. */
static int add_gone(struct look *look)
{
    size_t n = look->n_entries;
    look->is_gone = true;
    int code = dlx_list_gone_publishers(look->cli->client, look->topic, add_publisher, look);
    for (; n < look->n_entries; n++)
        look->entries[n].gone = true;
    look->is_gone = false;
    return code == DLX_E_VERSION ? 0 : code;
}

static int add_alone(const struct dlx_subscription_info *info, void *userdata)
{
    struct look *look = userdata;
    struct dlx_subscription_info *alone =
        reallocarray(look->alone, look->n_alone + 1, sizeof *alone);
    if (!alone)
        return DLX_E_NO_MEMORY;
    look->alone = alone;
    alone[look->n_alone++] = *info;
    return 0;
}

int look_ask(struct look *look)
{
    look_clear(look);
    int code = dlx_list_publishers(look->cli->client, look->topic, add_publisher, look);
    if (code == 0 && (look->include_gone || look->include_former))
        code = add_gone(look);
    for (size_t i = 0; code == 0 && i < look->n_entries; i++) {
        struct look_entry *entry = &look->entries[i];
        /* before take_newest(), which would add a link of this program */
        code = dlx_list_links(look->cli->client, entry->info.publisher, add_link, entry);
        if (code == DLX_E_NOT_FOUND) /* the publisher has left meanwhile */
            code = 0;
    }
    if (code == 0 && look->n_entries > 0)
        code = dlx_list_groups(look->cli->client, look->topic, look_add_group, look);
    if (code == DLX_E_VERSION) /* a daemon older than protocol 2.8 has none */
        code = 0;
    if (code == 0 && look->include_alone)
        code = dlx_list_subscriptions(look->cli->client, look->topic, true, add_alone, look);
    if (code == DLX_E_VERSION) /* a daemon older than protocol 2.10 does not list them */
        code = 0;
    if (code == 0 && look->newest && look->n_entries > 0)
        take_newest(look);
    return code;
}

void look_clear(struct look *look)
{
    for (size_t i = 0; i < look->n_entries; i++) {
        dlx_message_unref(look->entries[i].newest);
        free(look->entries[i].links);
        free(look->entries[i].groups);
    }
    free(look->alone);
    look->alone = NULL;
    look->n_alone = 0;
    free(look->entries);
    look->entries = NULL;
    look->n_entries = 0;
    look->why_not[0] = '\0';
}

bool look_is_full(const struct dlx_link_info *link)
{
    return link->max_held > 0 && link->n_held >= link->max_held;
}

bool look_has_lost(const struct dlx_link_info *link)
{
    return link->lost > 0;
}

bool look_blocks(const struct dlx_link_info *link)
{
    return link->blocks;
}

bool look_is_joining(const struct dlx_link_info *link)
{
    return link->joining;
}

size_t look_count(const struct look_entry *entry, bool (*is)(const struct dlx_link_info *link))
{
    size_t n = 0;
    for (size_t i = 0; i < entry->n_links; i++)
        n += is(&entry->links[i]);
    return n;
}

uint64_t look_behind(const struct look_entry *entry)
{
    uint64_t most = 0;
    for (size_t i = 0; i < entry->n_links; i++)
        most = entry->links[i].behind > most ? entry->links[i].behind : most;
    return most;
}

static void add_note(char text[LOOK_NOTE_SIZE], const char *note)
{
    size_t at = strlen(text);
    (void)snprintf(text + at, LOOK_NOTE_SIZE - at, "%s%s", at > 0 ? ", " : "", note);
}

static void add_count(char text[LOOK_NOTE_SIZE], uint64_t n, const char *one, const char *many)
{
    char note[LOOK_NOTE_SIZE / 2];
    if (n == 0)
        return;
    (void)snprintf(note, sizeof note, "%" PRIu64 " %s", n, n == 1 ? one : many);
    add_note(text, note);
}

uint64_t look_refused(const struct dlx_publisher_info *info)
{
    return info->refused == DLX_REFUSED_UNKNOWN ? 0 : info->refused;
}

const char *look_note(const struct look_entry *entry, char text[LOOK_NOTE_SIZE])
{
    *text = '\0';
    if (look_count(entry, look_blocks) > 0)
        add_note(text, "BLOCKED");
    add_count(text, look_refused(&entry->info), "REFUSED", "REFUSED");
    add_count(text, look_count(entry, look_is_full), "is FULL", "are FULL");
    add_count(text, look_count(entry, look_has_lost), "has LOST", "have LOST");
    add_count(text, look_count(entry, look_is_joining), "is JOINING", "are JOINING");
    return text;
}

const char *look_link_note(const struct dlx_link_info *link, char text[LOOK_NOTE_SIZE])
{
    *text = '\0';
    if (look_blocks(link))
        add_note(text, "BLOCKS");
    if (look_is_full(link))
        add_note(text, "FULL");
    if (look_has_lost(link))
        add_note(text, "LOST");
    if (look_is_joining(link))
        add_note(text, "JOINING");
    return text;
}

const char *look_behind_text(uint64_t behind, char text[LOOK_BEHIND_SIZE])
{
    if (behind == DLX_BEHIND_UNKNOWN)
        (void)snprintf(text, LOOK_BEHIND_SIZE, "?");
    else
        (void)snprintf(text, LOOK_BEHIND_SIZE, "%" PRIu64, behind);
    return text;
}

const char *look_queues(const struct look_entry *entry, char text[LOOK_QUEUES_SIZE])
{
    size_t at = 0;
    *text = '\0';
    for (size_t i = 0; i < entry->n_groups && at < LOOK_QUEUES_SIZE; i++) {
        const struct dlx_group_info *group = &entry->groups[i];
        at += (size_t)snprintf(text + at, LOOK_QUEUES_SIZE - at, "%s%" PRIu64 " %s",
                               i > 0 ? ", " : "", group->waiting + group->in_flight, group->name);
    }
    return text;
}

int look_print_alone(const struct look *look, FILE *file)
{
    static const struct table_column columns[] = {
        {"TOPIC", TABLE_LEFT, false, 0},    {"PID", TABLE_RIGHT, false, 0},
        {"PROGRAM", TABLE_LEFT, true, 0},   {"MODE", TABLE_LEFT, false, 2},
        {"RELIABLE", TABLE_LEFT, false, 1}, {"GROUP", TABLE_LEFT, false, 3},
        {"REFUSED", TABLE_LEFT, true, 0},
    };
    struct table *table = NULL;
    char name[256], pid[DESCRIBE_PID_SIZE];
    if (look->n_alone == 0)
        return 0;
    if (table_new(&table, columns, sizeof columns / sizeof columns[0]) < 0)
        return DLX_E_NO_MEMORY;
    for (size_t i = 0; i < look->n_alone; i++) {
        const struct dlx_subscription_info *s = &look->alone[i];
        output_printable(s->client_name, name, sizeof name);
        table_cell(table, "%s", s->topic);
        table_cell(table, "%s", describe_pid(s->pid, pid));
        table_cell(table, "%s", name);
        table_cell(table, "%s", s->mode == DLX_MODE_LATEST ? "latest" : "all");
        table_cell(table, "%s", s->reliable ? "yes" : "no");
        table_cell(table, "%s", s->group);
        table_cell(table, "%s", s->refusal);
    }
    fprintf(file, "%ssubscriptions that no publisher serves:\n", look->n_entries > 0 ? "\n" : "");
    int code = table_print(table, file, 2, output_width(stdout));
    table_free(table);
    return code;
}

json_t *look_alone_json(const struct dlx_subscription_info *s)
{
    return json_pack("{s:o, s:n, s:o, s:I, s:I, s:o, s:b, s:b, s:o, s:o}", "topic",
                     output_json_text(s->topic), "publisher", "subscription",
                     output_json_u64(s->subscription), "pid", (json_int_t)s->pid, "uid",
                     (json_int_t)s->uid, "client_name", output_json_text(s->client_name), "latest",
                     s->mode == DLX_MODE_LATEST, "reliable", (int)s->reliable, "group",
                     output_json_text(s->group), "refusal", output_json_text(s->refusal));
}

json_t *look_json(const struct look *look, const struct look_entry *entry)
{
    json_t *json = describe_publisher(&entry->info);
    json_t *note = json_pack(
        "{s:b, s:o, s:I, s:I, s:I}", "blocked", look_count(entry, look_blocks) > 0, "behind",
        describe_figure(look_behind(entry)), "full", (json_int_t)look_count(entry, look_is_full),
        "have_lost", (json_int_t)look_count(entry, look_has_lost), "joining",
        (json_int_t)look_count(entry, look_is_joining));
    json_t *groups = json_array();
    for (size_t i = 0; i < entry->n_groups; i++)
        groups = output_json_append(groups, describe_group(&entry->groups[i]));
    json = output_json_put(output_json_merge(json, note), "groups", groups);
    if (look->newest)
        json = output_json_put(json, "newest",
                               entry->newest ? describe_message(entry->newest, 0) : json_null());
    return json;
}
