/* SPDX-License-Identifier: Apache-2.0 */

/* One topic in dlxctl top: its publishers, and their links with program, process and user. */

#include "cli/top_topic.h"
#include "cli/board_view.h"
#include "cli/describe.h"
#include "cli/look.h"
#include "cli/user.h"
#include <dlx/error.h>
#include <inttypes.h>

/* How long ago something was at the time of the look; "" if it was not. */
static const char *age_text(int64_t now_ns, uint64_t at_ns, char text[HUMAN_SIZE])
{
    *text = '\0';
    if (at_ns > 0)
        human_ns(output_age(now_ns, at_ns), text);
    return text;
}

static int write_links(FILE *file, const struct board_publisher *p, unsigned width)
{
    static const struct table_column columns[] = {
        {"PROGRAM", TABLE_LEFT, true, 0},   {"PID", TABLE_RIGHT, false, 0},
        {"USER", TABLE_LEFT, false, 7},     {"MODE", TABLE_LEFT, false, 2},
        {"RELIABLE", TABLE_LEFT, false, 1}, {"RATE", TABLE_RIGHT, false, 0},
        {"TAKEN", TABLE_RIGHT, false, 3},   {"SKIPPED", TABLE_RIGHT, false, 4},
        {"LOST", TABLE_RIGHT, false, 0},    {"BEHIND", TABLE_RIGHT, false, 0},
        {"NEXT", TABLE_RIGHT, false, 5},    {"HELD", TABLE_RIGHT, false, 0},
        {"OLDEST", TABLE_RIGHT, false, 6},  {"NOTE", TABLE_LEFT, false, 0},
    };
    struct table *table = NULL;
    char name[256], pid[DESCRIBE_PID_SIZE], user[USER_NAME_SIZE], rate[HUMAN_SIZE + 2];
    char note[LOOK_NOTE_SIZE], behind[LOOK_BEHIND_SIZE], age[HUMAN_SIZE];
    if (table_new(&table, columns, sizeof columns / sizeof columns[0]) < 0)
        return DLX_E_NO_MEMORY;
    for (size_t l = 0; l < p->n_links; l++) {
        const struct dlx_link_info *link = &p->links[l].info;
        output_printable(link->client_name, name, sizeof name);
        table_cell(table, "%s", *name ? name : "-");
        table_cell(table, "%s", describe_pid(link->pid, pid));
        table_cell(table, "%s", user_name(link->uid, user));
        table_cell(table, "%s", link->mode == DLX_MODE_LATEST ? "latest" : "all");
        table_cell(table, "%s", link->reliable ? "yes" : "no");
        table_cell(table, "%s", board_rate_text(p->links[l].taken_per_s, rate));
        table_cell(table, "%" PRIu64, link->taken);
        table_cell(table, "%" PRIu64, link->skipped);
        table_cell(table, "%" PRIu64, link->lost);
        table_cell(table, "%s", look_behind_text(link->behind, behind));
        table_cell(table, "%s", age_text(p->links_ns, link->next_ns, age));
        table_cell(table, "%u of %u", link->n_held, link->max_held);
        table_cell(table, "%s", age_text(p->links_ns, link->held_ns, age));
        table_cell(table, "%s", look_link_note(link, note));
    }
    int code = table_print(table, file, 2, width);
    table_free(table);
    return code;
}

static int write_publisher(FILE *file, const struct board_publisher *p, unsigned width)
{
    const struct dlx_publisher_info *i = &p->info;
    char name[256], pid[DESCRIBE_PID_SIZE], user[USER_NAME_SIZE], rate[HUMAN_SIZE + 2];
    char data[HUMAN_SIZE + 2], bytes[HUMAN_SIZE], arena[HUMAN_SIZE], control[HUMAN_SIZE];
    char copied[HUMAN_SIZE], blocked[HUMAN_SIZE], now[HUMAN_SIZE];
    output_printable(i->client_name, name, sizeof name);
    human_bytes(i->published_bytes, bytes);
    human_bytes(i->arena_bytes, arena);
    human_bytes(i->control_bytes, control);
    fprintf(file, "\npublisher %" PRIu64 ": %s (", i->publisher, name);
    if (i->retained)
        fprintf(file, "retained, its process has gone; user %s)\n", user_name(i->uid, user));
    else
        fprintf(file, "pid %s, user %s)\n", describe_pid(i->pid, pid), user_name(i->uid, user));
    fprintf(file, "  publishes    %s, %s\n", board_rate_text(p->messages_per_s, rate),
            board_size_rate_text(p->bytes_per_s, data));
    fprintf(file, "  published    %" PRIu64 " message%s, %s\n", i->published,
            i->published == 1 ? "" : "s", bytes);
    if (look_refused(i) > 0)
        fprintf(file, "  refused      %" PRIu64 " message%s, for which there was no room in time\n",
                look_refused(i), look_refused(i) == 1 ? "" : "s");
    if (i->copied > 0 && i->copied != DLX_FIGURE_UNKNOWN) {
        human_bytes(i->copied_bytes, copied);
        fprintf(file, "  copied       %" PRIu64 " message%s, %s\n", i->copied,
                i->copied == 1 ? "" : "s", copied);
    }
    if (i->blocked_ns > 0 && i->blocked_ns != DLX_FIGURE_UNKNOWN) {
        human_ns((int64_t)(i->blocked_ns & INT64_MAX), blocked);
        (void)age_text(p->look_ns, i->blocked_at_ns, now);
        fprintf(file, "  blocked      %s in all%s%s\n", blocked, *now ? ", now for " : "", now);
    }
    fprintf(file, "  settings     history %u, depth %u, %s", i->history, i->depth,
            i->on_full == DLX_ON_FULL_BLOCK ? "blocks when full" : "drops the oldest when full");
    if (i->retain > 0)
        fprintf(file, ", retains %u", i->retain);
    fprintf(file, "\n  memory       %s in %u arena%s, control block %s\n", arena, i->n_arenas,
            i->n_arenas == 1 ? "" : "s", control);
    if (p->n_links == 0) {
        fprintf(file, "  subscribers  %s\n", i->n_subscribers > 0 ? "not asked for yet" : "none");
        return 0;
    }
    fprintf(file, "  subscribers  %zu\n", p->n_links);
    return write_links(file, p, width);
}

int top_topic_write(FILE *file, const struct board *b, const char *topic, unsigned width)
{
    const struct board_topic *t = board_find(b, topic);
    int code = 0;
    if (!t || t->n_listed == 0) {
        fprintf(file, "%s: no publisher any more\n", topic);
        return 0;
    }
    fprintf(file, "%s: %" PRIu64 " publisher%s", topic, t->n_publishers,
            t->n_publishers == 1 ? "" : "s");
    if (t->n_retained > 0)
        fprintf(file, ", %" PRIu64 " retained", t->n_retained);
    fputc('\n', file);
    for (size_t i = t->first; code == 0 && i < t->first + t->n_listed; i++)
        code = write_publisher(file, &b->publishers[i], width);
    return code;
}
