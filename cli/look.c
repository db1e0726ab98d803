/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/look.h"
#include "cli/describe.h"
#include <stdio.h>
#include <stdlib.h>

enum { HELD_MAX = 4096 }; /* messages, the library's limit */

static int add_publisher(const struct dlx_publisher_info *publisher, void *userdata)
{
    struct look *look = userdata;
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

/* The newest message of each publisher that has one. That there is none, or that this program may not
 * see it, is no failure. */
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
        (void)snprintf(look->why_not, sizeof look->why_not, "%s", dlx_client_errmsg(client));
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

int look_ask(struct look *look)
{
    look_clear(look);
    int code = dlx_list_publishers(look->cli->client, look->topic, add_publisher, look);
    for (size_t i = 0; code == 0 && i < look->n_entries; i++) {
        struct look_entry *entry = &look->entries[i];
        /* before take_newest(), so that this program is not one of them */
        code = dlx_list_links(look->cli->client, entry->info.publisher, add_link, entry);
        if (code == DLX_E_NOT_FOUND) /* it may have left by now */
            code = 0;
    }
    if (code == 0 && look->newest && look->n_entries > 0)
        take_newest(look);
    return code;
}

void look_clear(struct look *look)
{
    for (size_t i = 0; i < look->n_entries; i++) {
        dlx_message_unref(look->entries[i].newest);
        free(look->entries[i].links);
    }
    free(look->entries);
    look->entries = NULL;
    look->n_entries = 0;
    look->why_not[0] = '\0';
}

bool look_is_full(const struct dlx_link_info *link)
{
    return link->max_held > 0 && link->n_held >= link->max_held;
}

bool look_is_behind(const struct dlx_link_info *link)
{
    return link->lost > 0;
}

/* Only publishers that wait have reliable subscribers. */
static bool blocks(const struct dlx_link_info *link)
{
    return link->reliable && look_is_full(link);
}

bool look_is_blocked(const struct look_entry *entry)
{
    for (size_t i = 0; i < entry->n_links; i++)
        if (blocks(&entry->links[i]))
            return true;
    return false;
}

size_t look_count(const struct look_entry *entry, bool (*is)(const struct dlx_link_info *link))
{
    size_t n = 0;
    for (size_t i = 0; i < entry->n_links; i++)
        n += is(&entry->links[i]);
    return n;
}

const char *look_note(const struct look_entry *entry, char text[LOOK_NOTE_SIZE])
{
    size_t n_full = look_count(entry, look_is_full), n_behind = look_count(entry, look_is_behind);
    int at = snprintf(text, LOOK_NOTE_SIZE, "%s", look_is_blocked(entry) ? "BLOCKED" : "");
    if (n_full > 0)
        at +=
            snprintf(text + at, LOOK_NOTE_SIZE - (size_t)at, "%s%zu FULL", at ? ", " : "", n_full);
    if (n_behind > 0)
        (void)snprintf(text + at, LOOK_NOTE_SIZE - (size_t)at, "%s%zu BEHIND", at ? ", " : "",
                       n_behind);
    return text;
}

const char *look_link_note(const struct dlx_link_info *link, char text[LOOK_NOTE_SIZE])
{
    bool full = look_is_full(link);
    (void)snprintf(text, LOOK_NOTE_SIZE, "%s%s%s%s", full ? "FULL" : "",
                   blocks(link) ? ", blocks the publisher" : "",
                   full && look_is_behind(link) ? ", " : "", look_is_behind(link) ? "BEHIND" : "");
    return text;
}

json_t *look_json(const struct look *look, const struct look_entry *entry)
{
    json_t *json = describe_publisher(&entry->info);
    json_t *note = json_pack("{s:b, s:I, s:I}", "blocked", (int)look_is_blocked(entry), "full",
                             (json_int_t)look_count(entry, look_is_full), "behind",
                             (json_int_t)look_count(entry, look_is_behind));
    json_t *newest = entry->newest ? describe_message(entry->newest, 0) : json_null();
    if (!json || !note || json_object_update(json, note) < 0 ||
        (look->newest && json_object_set(json, "newest", newest) < 0)) {
        json_decref(json);
        json = NULL;
    }
    json_decref(newest);
    json_decref(note);
    return json;
}
