/* SPDX-License-Identifier: Apache-2.0 */

/* Draws the screen of dlxctl top. */

#include "cli/top_draw.h"
#include "cli/screen.h"
#include "cli/top_topic.h"
#include <dlx/error.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The lines besides rows: two of the daemon, the titles, what has no room, the keys. */
enum { LINES_ABOVE = 3, LINES_BELOW = 2 };
enum {
    WIDTH_MIN = 40,
    HEIGHT_MIN = LINES_ABOVE + LINES_BELOW + 1,
    TOPIC_WIDTH_MIN = 24,
    GAP = 2,
    NOTE_WIDTH_MIN = 8 /* BLOCKED */
};

/* ---- columns that fit ------------------------------------------------------------------------ */

/* Chooses widths, 0 for a column that is left out; what is left is the topic's. */
static void fit(unsigned *widths, unsigned width)
{
    size_t n = board_n_columns;
    for (size_t c = 0; c < n; c++)
        widths[c] = board_columns[c].width;
    for (unsigned turn = 0; turn <= n; turn++) {
        unsigned used = 0;
        for (size_t c = 1; c < n; c++) {
            if (turn > 0 && board_columns[c].table.leaves == turn)
                widths[c] = 0;
            else if (turn > 0 && board_columns[c].kind == BOARD_NOTE)
                widths[c] = NOTE_WIDTH_MIN;
            used += widths[c] > 0 ? widths[c] + GAP : 0;
        }
        widths[0] = width > used ? width - used : 0;
        if (widths[0] >= TOPIC_WIDTH_MIN)
            return;
    }
}

static bool fit_left_out(const unsigned *widths, char *text, size_t size)
{
    size_t at = 0;
    for (size_t c = 1; c < board_n_columns && at < size; c++)
        if (widths[c] == 0)
            at += (size_t)snprintf(text + at, size - at, "%s%s", at > 0 ? " " : "no room for ",
                                   board_columns[c].table.title);
    return at > 0;
}

/* Of text that is too long its end is shown if it is a topic, else its beginning. */
static void put_cut(unsigned line, unsigned column, unsigned width, enum screen_style style,
                    const struct board_column *of, const char *text)
{
    char cell[BOARD_TEXT_SIZE + 4];
    size_t used = output_columns(text);
    if (used > width && of->kind == BOARD_NAME && width > 3)
        (void)snprintf(cell, sizeof cell, "...%s", text + strlen(text) - (width - 3));
    else
        (void)snprintf(cell, sizeof cell, "%.*s", (int)output_bytes_of(text, width), text);
    used = used < width ? used : width;
    screen_put(line, column + (of->table.align == TABLE_RIGHT ? width - (unsigned)used : 0), style,
               cell);
}

/* ---- above and below ------------------------------------------------------------------------- */

static const char *s_of(uint64_t n)
{
    return n == 1 ? "" : "s";
}

static void draw_daemon(const struct top *t)
{
    const struct dlx_daemon_info *d = t->daemon;
    char line[512], version[64], uptime[HUMAN_SIZE], memory[HUMAN_SIZE];
    output_printable(d->version, version, sizeof version);
    human_ns(d->uptime_ns <= INT64_MAX ? (int64_t)d->uptime_ns : INT64_MAX, uptime);
    human_bytes(d->shared_bytes, memory);
    if (t->board->look_ns > 0)
        (void)snprintf(line, sizeof line,
                       "dlpackd %s  up %s  %u client%s  %u publisher%s  %u link%s  %s shared",
                       version, uptime, d->n_clients, s_of(d->n_clients), d->n_publishers,
                       s_of(d->n_publishers), d->n_links, s_of(d->n_links), memory);
    else
        (void)snprintf(line, sizeof line, "dlpackd");
    screen_put(0, 0, SCREEN_BOLD, line);
}

static void draw_state(const struct top *t)
{
    char line[1024], messages[HUMAN_SIZE + 2], bytes[HUMAN_SIZE + 2], drops[HUMAN_SIZE + 2];
    if (*t->trouble) {
        (void)snprintf(line, sizeof line, "waiting for dlpackd: %s", t->trouble);
        screen_put(1, 0, SCREEN_ALARM, line);
        return;
    }
    double n = 0, size = 0, dropped = 0;
    for (size_t i = 0; i < t->view.n_rows; i++) {
        const struct board_topic *row = t->view.rows[i];
        n += row->messages_per_s > 0 ? row->messages_per_s : 0;
        size += row->bytes_per_s > 0 ? row->bytes_per_s : 0;
        dropped += row->dropped_per_s > 0 ? row->dropped_per_s : 0;
    }
    (void)snprintf(line, sizeof line, "%s%zu topic%s", t->paused ? "PAUSED  " : "", t->view.n_rows,
                   s_of(t->view.n_rows));
    if (*t->filter)
        (void)snprintf(line + strlen(line), sizeof line - strlen(line), " of %zu: %s",
                       t->view.n_topics, t->filter);
    (void)snprintf(line + strlen(line), sizeof line - strlen(line), "  %s  %s  drops %s",
                   board_rate_text(n, messages), board_size_rate_text(size, bytes),
                   board_rate_text(dropped, drops));
    if (t->board->n_unserved > 0)
        (void)snprintf(line + strlen(line), sizeof line - strlen(line),
                       "  %" PRIu64 " subscription%s without a publisher", t->board->n_unserved,
                       s_of(t->board->n_unserved));
    screen_put(1, 0, t->paused ? SCREEN_NOTICE : SCREEN_PLAIN, line);
}

static void draw_keys(const struct top *t)
{
    static const char *const keys[] = {
        [TOP_LIST] = "Enter open  / filter  < > sort  r reverse  p pause  ? help  q quit",
        [TOP_TOPIC] = "Esc back  Up Down scroll  p pause  ? help  q quit",
        [TOP_HELP] = "Esc back  Up Down scroll  q quit",
    };
    char line[TOP_FILTER_SIZE + 64];
    unsigned last = screen_height() - 1;
    if (t->mode != TOP_FILTER) {
        screen_put(last, 0, SCREEN_DIM, keys[t->mode]);
        return;
    }
    (void)snprintf(line, sizeof line, "/%s_  Enter keep  Esc undo", t->filter);
    screen_put(last, 0, SCREEN_BOLD, line);
}

/* ---- the list -------------------------------------------------------------------------------- */

/* Keeps the selected row on the screen. */
static void scroll_rows(struct top *t)
{
    size_t n = t->view.n_rows, page = screen_height() - LINES_ABOVE - LINES_BELOW;
    t->selected = t->selected < n ? t->selected : n > 0 ? n - 1 : 0;
    if (t->first + page > n)
        t->first = n > page ? n - page : 0;
    if (t->selected < t->first)
        t->first = t->selected;
    if (t->selected >= t->first + page)
        t->first = t->selected - page + 1;
    t->n_shown = n - t->first < page ? n - t->first : page;
}

static enum screen_style style_of(const struct top *t, size_t i)
{
    const struct board_topic *row = t->view.rows[i];
    if (i == t->selected)
        return SCREEN_SELECTED;
    if (*t->trouble)
        return SCREEN_DIM;
    return row->blocked ? SCREEN_ALARM : row->dropped_per_s > 0 ? SCREEN_NOTICE : SCREEN_PLAIN;
}

static void draw_titles(const struct top *t, const unsigned *widths)
{
    unsigned column = 0;
    char title[32];
    screen_fill(2, 0, SCREEN_BAR);
    for (size_t c = 0; c < board_n_columns; c++) {
        bool sorted = t->view.sort == &board_columns[c];
        if (widths[c] == 0)
            continue;
        (void)snprintf(title, sizeof title, "%s", board_columns[c].table.title);
        put_cut(2, column, widths[c], sorted ? SCREEN_SELECTED : SCREEN_BAR, &board_columns[c],
                title);
        column += widths[c] + GAP;
    }
}

static void draw_row(const struct top *t, size_t i, unsigned line, const unsigned *widths)
{
    enum screen_style style = style_of(t, i);
    char text[BOARD_TEXT_SIZE];
    unsigned column = 0;
    if (i == t->selected)
        screen_fill(line, 0, style);
    for (size_t c = 0; c < board_n_columns; c++)
        if (widths[c] > 0) {
            put_cut(line, column, widths[c], style, &board_columns[c],
                    board_text(&board_columns[c], t->view.rows[i], text));
            column += widths[c] + GAP;
        }
}

static int draw_list(struct top *t)
{
    unsigned *widths = calloc(board_n_columns, sizeof *widths);
    char left_out[256];
    if (!widths)
        return DLX_E_NO_MEMORY;
    fit(widths, screen_width());
    scroll_rows(t);
    draw_titles(t, widths);
    for (size_t i = 0; i < t->n_shown; i++)
        draw_row(t, t->first + i, LINES_ABOVE + (unsigned)i, widths);
    if (t->view.n_rows == 0 && t->board->look_ns > 0)
        screen_put(LINES_ABOVE, 0, SCREEN_PLAIN,
                   *t->filter ? "no topic matches the filter (Esc clears it)" : "no publishers");
    if (fit_left_out(widths, left_out, sizeof left_out))
        screen_put(screen_height() - 2, 0, SCREEN_DIM, left_out);
    free(widths);
    return 0;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void write_help(FILE *file)
{
    static const char *const keys[][2] = {
        {"Up Down PgUp PgDn", "move; also Home End j k Space g G"},
        {"Enter", "open the topic: its publishers and subscribers"},
        {"Esc", "go back; in the list: clear the filter"},
        {"/", "filter: a part of topics, or a pattern such as cam/*"},
        {"< >", "sort by the column to the left or right; also Left Right"},
        {"r", "reverse the order"},
        {"p", "pause: the figures stay as they are"},
        {"Ctrl-L", "draw the screen anew"},
        {"q", "quit"},
    };
    fputs("KEYS\n", file);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        fprintf(file, "  %-18s %s\n", keys[i][0], keys[i][1]);
    fputs("\nCOLUMNS\n", file);
    for (size_t c = 0; c < board_n_columns; c++)
        fprintf(file, "  %-9s %s\n", board_columns[c].table.title, board_columns[c].help);
}

/* Puts the lines of a text that fit below the first two, from t->scrolled on. */
static void draw_lines(struct top *t, char *text)
{
    unsigned page = screen_height() - 4;
    size_t n = 0, i = 0;
    for (const char *p = text; (p = strchr(p, '\n')); p++)
        n++;
    if (t->scrolled + page > n)
        t->scrolled = n > page ? n - page : 0;
    for (char *p = text, *end; (end = strchr(p, '\n')); p = end + 1, i++) {
        *end = '\0';
        if (i >= t->scrolled && i < t->scrolled + page)
            screen_put(2 + (unsigned)(i - t->scrolled), 0, SCREEN_PLAIN, p);
    }
    char more[64];
    (void)snprintf(more, sizeof more, "lines %zu to %zu of %zu", t->scrolled + 1,
                   t->scrolled + page < n ? t->scrolled + page : n, n);
    if (n > page)
        screen_put(screen_height() - 2, 0, SCREEN_DIM, more);
}

static int draw_text(struct top *t)
{
    char *text = NULL;
    size_t size = 0;
    int code = 0;
    FILE *file = open_memstream(&text, &size);
    if (!file)
        return DLX_E_NO_MEMORY;
    if (t->mode == TOP_HELP)
        write_help(file);
    else
        code = top_topic_write(file, t->board, t->topic, screen_width());
    if (fclose(file) != 0)
        code = DLX_E_NO_MEMORY;
    if (code == 0)
        draw_lines(t, text);
    free(text);
    return code;
}

int top_draw(struct top *t)
{
    t->view.filter = t->filter;
    int code = board_view_update(&t->view, t->board);
    t->n_shown = 0;
    screen_clear();
    if (screen_width() < WIDTH_MIN || screen_height() < HEIGHT_MIN) {
        char line[80];
        (void)snprintf(line, sizeof line, "%ux%u is too small: %dx%d", screen_width(),
                       screen_height(), WIDTH_MIN, HEIGHT_MIN);
        screen_put(0, 0, SCREEN_PLAIN, line);
    } else {
        draw_daemon(t);
        draw_state(t);
        if (code == 0)
            code = t->mode <= TOP_FILTER ? draw_list(t) : draw_text(t);
        draw_keys(t);
    }
    screen_show();
    return code;
}
