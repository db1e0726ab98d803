/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/trace_names.h"
#include <dlx/error.h>
#include <stdlib.h>
#include <string.h>

struct name {
    uint64_t id;
    char *text;
};

/* By ascending id. */
struct list {
    struct name *names;
    size_t n;
    size_t room;
};

struct trace_names {
    struct list publishers;
    struct list programs;
    uint32_t n_claimed;
};

struct trace_names *trace_names_new(void)
{
    return calloc(1, sizeof(struct trace_names));
}

static void list_clear(struct list *list)
{
    for (size_t i = 0; i < list->n; i++)
        free(list->names[i].text);
    free(list->names);
}

struct trace_names *trace_names_free(struct trace_names *names)
{
    if (names) {
        list_clear(&names->publishers);
        list_clear(&names->programs);
    }
    free(names);
    return NULL;
}

/* The index of the first name whose id is at least `id`. */
static size_t names_find(const struct list *list, uint64_t id)
{
    size_t low = 0, high = list->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (list->names[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static const char *get(const struct list *list, uint64_t id)
{
    size_t i = names_find(list, id);
    return i < list->n && list->names[i].id == id ? list->names[i].text : NULL;
}

static int insert(struct list *list, size_t at, uint64_t id, char *take_text)
{
    if (list->n == list->room) {
        size_t room = list->room > 0 ? 2 * list->room : 64;
        struct name *names = reallocarray(list->names, room, sizeof *names);
        if (!names) {
            free(take_text);
            return DLX_E_NO_MEMORY;
        }
        list->names = names;
        list->room = room;
    }
    memmove(&list->names[at + 1], &list->names[at], (list->n - at) * sizeof list->names[0]);
    list->names[at] = (struct name){.id = id, .text = take_text};
    list->n++;
    return 0;
}

/* The name is the newest: the process of a pid may be another one. */
static int put(struct list *list, uint64_t id, const char *text)
{
    size_t i = names_find(list, id);
    bool is_there = i < list->n && list->names[i].id == id;
    if (is_there && strcmp(list->names[i].text, text) == 0)
        return 0;
    char *copy = strdup(text);
    if (!copy)
        return DLX_E_NO_MEMORY;
    if (!is_there)
        return insert(list, i, id, copy);
    free(list->names[i].text);
    list->names[i].text = copy;
    return 0;
}

static int claim(struct trace_names *names, struct list *list, uint64_t id, const char *text)
{
    if (get(list, id))
        return 0;
    if (names->n_claimed == TRACE_NAMES_CLAIMED_MAX)
        return DLX_E_LIMIT;
    names->n_claimed++;
    return put(list, id, text);
}

int trace_names_claim_publisher(struct trace_names *names, uint64_t publisher, const char *topic)
{
    return claim(names, &names->publishers, publisher, topic);
}

int trace_names_claim_program(struct trace_names *names, uint32_t pid, const char *name)
{
    return claim(names, &names->programs, pid, name);
}

int trace_names_add_publisher(struct trace_names *names, uint64_t publisher, const char *topic)
{
    return put(&names->publishers, publisher, topic);
}

int trace_names_add_program(struct trace_names *names, uint32_t pid, const char *name)
{
    return put(&names->programs, pid, name);
}

const char *trace_names_topic(const struct trace_names *names, uint64_t publisher)
{
    return get(&names->publishers, publisher);
}

const char *trace_names_program(const struct trace_names *names, uint32_t pid)
{
    return get(&names->programs, pid);
}
