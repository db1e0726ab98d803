/* SPDX-License-Identifier: Apache-2.0 */

/* Columns of figures, and which topics are shown in which order. */

#include "cli/board_view.h"
#include <dlx/error.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define AT(member) offsetof(struct board_topic, member)

const struct board_column board_columns[] = {
    {{"TOPIC", TABLE_LEFT, false, 0}, "topic", BOARD_NAME, AT(name), 0, "name of the topic"},
    {{"RATE", TABLE_RIGHT, false, 0},
     "messages_per_s",
     BOARD_RATE,
     AT(messages_per_s),
     8,
     "messages a second"},
    {{"DATA", TABLE_RIGHT, false, 11},
     "bytes_per_s",
     BOARD_SIZE_RATE,
     AT(bytes_per_s),
     10,
     "bytes a second"},
    {{"PUBS", TABLE_RIGHT, false, 5},
     "n_publishers",
     BOARD_NUMBER,
     AT(n_publishers),
     4,
     "publishers"},
    {{"SUBS", TABLE_RIGHT, false, 0},
     "n_subscribers",
     BOARD_NUMBER,
     AT(n_subscribers),
     4,
     "subscribers"},
    {{"BEHIND", TABLE_RIGHT, false, 0},
     "behind",
     BOARD_NUMBER,
     AT(behind),
     6,
     "messages that the slowest subscriber can still take"},
    {{"HELD", TABLE_RIGHT, false, 9},
     "n_held",
     BOARD_NUMBER,
     AT(n_held),
     5,
     "messages that subscribers hold"},
    {{"OLDEST", TABLE_RIGHT, false, 8},
     "held_age_ns",
     BOARD_AGE,
     AT(held_age_ns),
     10,
     "age of the oldest message that a subscriber holds"},
    {{"DROPS", TABLE_RIGHT, false, 10},
     "dropped_per_s",
     BOARD_RATE,
     AT(dropped_per_s),
     8,
     "messages a second that subscribers lost or skipped"},
    {{"DROPPED", TABLE_RIGHT, false, 7},
     "dropped",
     BOARD_NUMBER,
     AT(dropped),
     8,
     "messages that subscribers lost or skipped, in all"},
    {{"REFUSED", TABLE_RIGHT, false, 2},
     "refused",
     BOARD_NUMBER,
     AT(counters[BOARD_REFUSED]),
     7,
     "messages that publishers could not publish, in all"},
    {{"BLOCKED", TABLE_RIGHT, false, 6},
     "blocked_ns",
     BOARD_TIME,
     AT(counters[BOARD_BLOCKED_NS]),
     10,
     "how long publishers have waited for room, in all"},
    {{"COPIED", TABLE_RIGHT, false, 3},
     "copied_bytes",
     BOARD_SIZE,
     AT(counters[BOARD_COPIED_BYTES]),
     8,
     "bytes that publishers copied into shared memory, in all"},
    {{"MESSAGES", TABLE_RIGHT, false, 1},
     "published",
     BOARD_NUMBER,
     AT(counters[BOARD_MESSAGES]),
     10,
     "messages published, in all"},
    {{"MEMORY", TABLE_RIGHT, false, 4},
     "memory_bytes",
     BOARD_SIZE,
     AT(memory_bytes),
     8,
     "shared memory of the publishers"},
    {{"NOTE", TABLE_LEFT, false, 12},
     NULL,
     BOARD_NOTE,
     0,
     20,
     "BLOCKED: a publisher waits for a reliable subscriber; FULL, JOINING: subscribers that hold "
     "all that they may, and that have yet to answer; RETAINED: publishers that have gone"},
};

const size_t board_n_columns = sizeof board_columns / sizeof board_columns[0];

const struct board_column *board_column_find(const char *title)
{
    for (size_t i = 0; i < board_n_columns; i++)
        if (strcasecmp(board_columns[i].table.title, title) == 0)
            return &board_columns[i];
    return NULL;
}

/* ---- figures --------------------------------------------------------------------------------- */

static const void *figure(const struct board_column *column, const struct board_topic *topic)
{
    return (const char *)topic + column->offset;
}

static uint64_t number_of(const struct board_column *column, const struct board_topic *topic)
{
    return *(const uint64_t *)figure(column, topic);
}

static double rate_of(const struct board_column *column, const struct board_topic *topic)
{
    return *(const double *)figure(column, topic);
}

static void add_state(char text[BOARD_TEXT_SIZE], uint64_t n, const char *state)
{
    size_t at = strlen(text);
    if (n == 1)
        (void)snprintf(text + at, BOARD_TEXT_SIZE - at, "%s%s", at > 0 ? ", " : "", state);
    else if (n > 1)
        (void)snprintf(text + at, BOARD_TEXT_SIZE - at, "%s%" PRIu64 " %s", at > 0 ? ", " : "", n,
                       state);
}

static const char *note_of(const struct board_topic *topic, char text[BOARD_TEXT_SIZE])
{
    *text = '\0';
    add_state(text, topic->blocked, "BLOCKED");
    add_state(text, topic->n_full, "FULL");
    add_state(text, topic->n_joining, "JOINING");
    add_state(text, topic->n_retained, "RETAINED");
    return text;
}

const char *board_rate_text(double rate, char text[HUMAN_SIZE + 2])
{
    (void)snprintf(text, HUMAN_SIZE, "-");
    if (rate < 0)
        return text;
    human_number(rate, text);
    return strcat(text, "/s");
}

const char *board_size_rate_text(double rate, char text[HUMAN_SIZE + 2])
{
    (void)snprintf(text, HUMAN_SIZE, "-");
    if (rate < 0)
        return text;
    human_bytes((uint64_t)rate, text);
    return strcat(text, "/s");
}

const char *board_text(const struct board_column *column, const struct board_topic *topic,
                       char text[BOARD_TEXT_SIZE])
{
    switch (column->kind) {
    case BOARD_NAME:
        (void)snprintf(text, BOARD_TEXT_SIZE, "%s", (const char *)figure(column, topic));
        break;
    case BOARD_NUMBER:
        (void)snprintf(text, BOARD_TEXT_SIZE, "%" PRIu64, number_of(column, topic));
        break;
    case BOARD_SIZE:
        human_bytes(number_of(column, topic), text);
        break;
    case BOARD_AGE:
        if (number_of(column, topic) == 0)
            return strcpy(text, "-");
        __attribute__((fallthrough));
    case BOARD_TIME:
        if (number_of(column, topic) == 0)
            return strcpy(text, "0 s");
        human_ns((int64_t)(number_of(column, topic) & INT64_MAX), text);
        break;
    case BOARD_RATE:
        return board_rate_text(rate_of(column, topic), text);
    case BOARD_SIZE_RATE:
        return board_size_rate_text(rate_of(column, topic), text);
    case BOARD_NOTE:
        return note_of(topic, text);
    }
    return text;
}

static json_t *figure_json(const struct board_column *column, const struct board_topic *topic)
{
    switch (column->kind) {
    case BOARD_NAME:
        return output_json_text(figure(column, topic));
    case BOARD_RATE:
    case BOARD_SIZE_RATE:
        return rate_of(column, topic) < 0 ? json_null() : json_real(rate_of(column, topic));
    case BOARD_AGE:
        if (number_of(column, topic) == 0)
            return json_null();
        __attribute__((fallthrough));
    default:
        return output_json_u64(number_of(column, topic));
    }
}

json_t *board_json(const struct board_topic *topic)
{
    json_t *json = json_object();
    for (size_t i = 0; i < board_n_columns; i++)
        if (board_columns[i].key)
            json =
                output_json_put(json, board_columns[i].key, figure_json(&board_columns[i], topic));
    json_t *more = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:o, s:o, s:o}", "published_bytes",
        output_json_u64(topic->counters[BOARD_BYTES]), "copied",
        output_json_u64(topic->counters[BOARD_COPIED]), "held_bytes",
        output_json_u64(topic->held_bytes), "next_age_ns",
        topic->next_age_ns > 0 ? output_json_u64(topic->next_age_ns) : json_null(), "lost",
        output_json_u64(topic->counters[BOARD_LOST]), "skipped",
        output_json_u64(topic->counters[BOARD_SKIPPED]), "blocked", (int)topic->blocked, "full",
        output_json_u64(topic->n_full), "joining", output_json_u64(topic->n_joining), "n_retained",
        output_json_u64(topic->n_retained));
    return output_json_merge(json, more);
}

/* ---- rows ------------------------------------------------------------------------------------ */

bool board_matches(const char *filter, const char *topic)
{
    const size_t n = strlen(filter);
    if (!strchr(filter, '*'))
        return strstr(topic, filter) != NULL;
    if (strcmp(filter, "**") == 0)
        return true;
    if (n < 3 || strcmp(filter + n - 3, "/**") != 0)
        return fnmatch(filter, topic, FNM_PATHNAME) == 0;
    /* the rest matches the beginning of the topic, and something follows */
    char start[DLX_TOPIC_MAX + 1], pattern[DLX_TOPIC_MAX + 1];
    (void)snprintf(pattern, sizeof pattern, "%.*s", (int)(n - 3), filter);
    for (const char *end = strchr(topic, '/'); end; end = strchr(end + 1, '/')) {
        (void)snprintf(start, sizeof start, "%.*s", (int)(end - topic), topic);
        if (fnmatch(pattern, start, FNM_PATHNAME) == 0)
            return true;
    }
    return false;
}

static int compare_figures(const struct board_column *column, const struct board_topic *a,
                           const struct board_topic *b)
{
    char x[BOARD_TEXT_SIZE], y[BOARD_TEXT_SIZE];
    switch (column->kind) {
    case BOARD_NAME:
        return 0; /* the order of equal rows */
    case BOARD_RATE:
    case BOARD_SIZE_RATE:
        return (rate_of(column, a) < rate_of(column, b)) -
               (rate_of(column, a) > rate_of(column, b));
    case BOARD_NOTE:
        return -strcmp(note_of(a, x), note_of(b, y));
    default:
        return (number_of(column, a) < number_of(column, b)) -
               (number_of(column, a) > number_of(column, b));
    }
}

static int compare_in_view(const void *a, const void *b, void *view)
{
    const struct board_topic *x = *(const struct board_topic *const *)a,
                             *y = *(const struct board_topic *const *)b;
    const struct board_view *v = view;
    int order = v->sort ? compare_figures(v->sort, x, y) : 0;
    if (order == 0) /* the topics are in one array, by name */
        order = (x > y) - (x < y);
    return v->reverse ? -order : order;
}

int board_view_update(struct board_view *v, const struct board *b)
{
    if (v->n_allocated < b->n_topics) {
        const struct board_topic **rows = reallocarray(v->rows, b->n_topics, sizeof *rows);
        if (!rows)
            return DLX_E_NO_MEMORY;
        v->rows = rows;
        v->n_allocated = b->n_topics;
    }
    v->n_rows = v->n_topics = 0;
    for (size_t i = 0; i < b->n_topics; i++) {
        const struct board_topic *topic = &b->topics[i];
        v->n_topics += topic->n_listed > 0;
        if (topic->n_listed > 0 && (!v->filter || board_matches(v->filter, topic->name)))
            v->rows[v->n_rows++] = topic;
    }
    if (v->n_rows > 0)
        qsort_r(v->rows, v->n_rows, sizeof *v->rows, compare_in_view, v);
    return 0;
}

void board_view_deinit(struct board_view *v)
{
    free(v->rows);
    v->rows = NULL;
    v->n_rows = v->n_allocated = 0;
}
