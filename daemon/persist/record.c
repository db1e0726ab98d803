/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/persist/record.h"
#include "common/topic.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void dlxd_record_write(const struct dlxd_publisher *publisher, struct dlxd_ledger_entry *ret)
{
    const struct dlxd_publisher_config *config = &publisher->config;
    *ret = (struct dlxd_ledger_entry){
        .id = dlxd_publisher_id(publisher),
        .resumes = config->resumes,
        .after_seq = config->after_seq,
        .retain_for_ns = config->retain_for_ns,
        .max_held_bytes = config->max_held_bytes,
        .expires_ns = publisher->state == DLXD_PUBLISHER_DYING ? 0 : publisher->expires_ns,
        .history = config->history,
        .depth = config->depth,
        .n_entries = config->n_entries,
        .on_full = config->on_full,
        .retain = config->retain,
        .pid = (uint32_t)publisher->pid,
        .uid = publisher->principal->uid,
        .max_held = config->max_held,
        .latched = config->latched,
        .n_groups = config->n_groups,
    };
    _Static_assert(sizeof ret->client_name == sizeof publisher->client_name, "a name fits");
    _Static_assert(sizeof ret->topic == sizeof publisher->topic_name, "a topic fits");
    memcpy(ret->client_name, publisher->client_name, sizeof ret->client_name);
    memcpy(ret->topic, publisher->topic_name, sizeof ret->topic);
    _Static_assert(sizeof ret->socket == sizeof publisher->principal->socket, "a name fits");
    if (!dlxd_socket_is_main(publisher->principal->socket))
        memcpy(ret->socket, publisher->principal->socket, sizeof ret->socket);
    const struct dlxd_principal *workers =
        publisher->workers ? publisher->workers : publisher->principal;
    ret->workers_uid = workers->uid;
    if (!dlxd_socket_is_main(workers->socket))
        memcpy(ret->workers_socket, workers->socket, sizeof ret->workers_socket);
}

static const char *record_socket_of(const char *socket)
{
    return *socket ? socket : DLXD_SOCKET_MAIN;
}

void dlxd_record_read(const struct dlxd_ledger_entry *entry, struct dlxd_publisher_former *ret)
{
    *ret = (struct dlxd_publisher_former){
        .id = entry->id,
        .uid = entry->uid,
        .socket = record_socket_of(entry->socket),
        .pid = (pid_t)entry->pid,
        .client_name = entry->client_name,
        .topic = entry->topic,
        .config = {.history = entry->history,
                   .depth = entry->depth,
                   .n_entries = entry->n_entries,
                   .on_full = entry->on_full,
                   .retain = entry->retain,
                   .latched = entry->latched != 0,
                   .retain_for_ns = entry->retain_for_ns,
                   .resumes = entry->resumes,
                   .after_seq = entry->after_seq,
                   .max_held = entry->max_held,
                   .max_held_bytes = entry->max_held_bytes,
                   .n_groups = entry->n_groups},
        .workers_uid = entry->workers_uid,
        .workers_socket = record_socket_of(entry->workers_socket),
    };
}

void dlxd_record_name_pidfd(const struct dlxd_publisher *publisher, char *name)
{
    (void)snprintf(name, DLXD_RECORD_NAME_SIZE, DLXD_RECORD_PIDFD "%" PRIu64,
                   dlxd_publisher_id(publisher));
}

void dlxd_record_name_region(const struct dlxd_publisher *publisher, const struct dlxd_arena *arena,
                             char *name)
{
    (void)snprintf(name, DLXD_RECORD_NAME_SIZE, DLXD_RECORD_REGION "%" PRIu64 "-%u-%" PRIu64,
                   dlxd_publisher_id(publisher), arena->id, arena->ready_seq);
}

void dlxd_record_name_group(const struct dlxd_group *group, char *name)
{
    (void)snprintf(name, DLXD_RECORD_NAME_SIZE, DLXD_RECORD_GROUP "%" PRIu64 "-%u-%s",
                   dlxd_publisher_id(group->publisher), group->number, group->name);
}

void dlxd_record_name_bell(const struct dlxd_group *group, char *name)
{
    (void)snprintf(name, DLXD_RECORD_NAME_SIZE, DLXD_RECORD_BELL "%" PRIu64 "-%u",
                   dlxd_publisher_id(group->publisher), group->number);
}

void dlxd_record_name_ledger(char *name)
{
    (void)snprintf(name, DLXD_RECORD_NAME_SIZE, DLXD_RECORD_LEDGER "%" PRIu64, dlx__now_ns());
}

/* Parses the next number of a name, and the text before it. */
static bool record_parse_number(const char **at, const char *before, uint64_t max, uint64_t *ret)
{
    char *end;
    if (strncmp(*at, before, strlen(before)) != 0)
        return false;
    const char *digits = *at + strlen(before);
    if (*digits < '0' || *digits > '9')
        return false;
    errno = 0;
    *ret = strtoull(digits, &end, 10);
    *at = end;
    return errno == 0 && *ret <= max;
}

static bool record_parse_group(const char *at, struct dlxd_record_name *ret)
{
    uint64_t number;
    ret->kind = DLXD_RECORD_IS_GROUP;
    bool is = record_parse_number(&at, DLXD_RECORD_GROUP, UINT64_MAX, &ret->publisher) &&
              record_parse_number(&at, "-", DLX_SHM_GROUPS_MAX, &number) && *at == '-';
    ret->number = is ? (uint32_t)number : 0;
    ret->group = at + is;
    return is && number > 0 && dlx__group_check(ret->group) == 0;
}

static bool record_parse_bell(const char *at, struct dlxd_record_name *ret)
{
    uint64_t number;
    ret->kind = DLXD_RECORD_IS_BELL;
    bool is = record_parse_number(&at, DLXD_RECORD_BELL, UINT64_MAX, &ret->publisher) &&
              record_parse_number(&at, "-", DLX_SHM_GROUPS_MAX, &number) && *at == '\0';
    ret->number = is ? (uint32_t)number : 0;
    return is && number > 0;
}

static bool record_parse_region(const char *at, struct dlxd_record_name *ret)
{
    uint64_t number;
    ret->kind = DLXD_RECORD_IS_REGION;
    bool is = record_parse_number(&at, DLXD_RECORD_REGION, UINT64_MAX, &ret->publisher) &&
              record_parse_number(&at, "-", UINT32_MAX, &number) &&
              record_parse_number(&at, "-", UINT64_MAX, &ret->ready_seq) && *at == '\0';
    ret->number = is ? (uint32_t)number : 0;
    return is && (number > 0) == (ret->ready_seq > 0);
}

static bool record_parse_pidfd(const char *at, struct dlxd_record_name *ret)
{
    ret->kind = DLXD_RECORD_IS_PIDFD;
    return record_parse_number(&at, DLXD_RECORD_PIDFD, UINT64_MAX, &ret->publisher) && *at == '\0';
}

bool dlxd_record_parse(const char *name, struct dlxd_record_name *ret)
{
    bool (*const parse[])(const char *, struct dlxd_record_name *) = {
        record_parse_pidfd, record_parse_region, record_parse_group, record_parse_bell};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(parse); i++) {
        *ret = (struct dlxd_record_name){.publisher = 0};
        if (parse[i](name, ret))
            return true;
    }
    return false;
}
