/* SPDX-License-Identifier: Apache-2.0 */

/* Tables: columns that shrink, and columns that a narrow terminal has no room for. */

#include "cli/output.h"
#include <assert.h>
#include <dlx/error.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { GAP = 2, SHRINK_MIN = 8 };

struct table {
    const struct table_column *columns;
    size_t n_columns;
    char **cells; /* row after row */
    size_t n_cells, n_allocated;
    bool failed;
};

int table_new(struct table **ret, const struct table_column *columns, size_t n_columns)
{
    struct table *t = calloc(1, sizeof *t);
    if (!t)
        return DLX_E_NO_MEMORY;
    t->columns = columns;
    t->n_columns = n_columns;
    *ret = t;
    return 0;
}

struct table *table_free(struct table *t)
{
    if (!t)
        return NULL;
    for (size_t i = 0; i < t->n_cells; i++)
        free(t->cells[i]);
    free(t->cells);
    free(t);
    return NULL;
}

void table_cell(struct table *t, const char *format, ...)
{
    if (t->n_cells == t->n_allocated) {
        size_t n = t->n_allocated ? t->n_allocated * 2 : 64;
        char **cells = reallocarray(t->cells, n, sizeof *cells);
        if (!cells) {
            t->failed = true;
            return;
        }
        t->cells = cells;
        t->n_allocated = n;
    }
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int r = vasprintf(&text, format, args);
    va_end(args);
    if (r < 0) {
        t->failed = true;
        return;
    }
    t->cells[t->n_cells++] = text;
}

static void put_spaces(FILE *file, size_t n)
{
    while (n-- > 0)
        putc(' ', file);
}

static void put_cell(FILE *file, const struct table_column *column, const char *text, size_t width,
                     bool last)
{
    size_t used = output_columns(text), cut = used > width ? width : used;
    if (column->align == TABLE_RIGHT)
        put_spaces(file, width - cut);
    if (used > width)
        fprintf(file, "%.*s...", (int)output_bytes_of(text, width - 3), text);
    else
        fputs(text, file);
    if (column->align == TABLE_LEFT && !last)
        put_spaces(file, width - cut);
    if (!last)
        put_spaces(file, GAP);
}

static size_t *measure_columns(const struct table *t)
{
    assert(t->n_columns > 0);
    size_t *widths = calloc(t->n_columns, sizeof *widths);
    if (!widths)
        return NULL;
    for (size_t i = 0; i < t->n_cells; i++) {
        size_t c = i % t->n_columns, n = output_columns(t->cells[i]),
               title = output_columns(t->columns[c].title);
        n = n > 0 && n < title ? title : n;
        if (n > widths[c])
            widths[c] = n;
    }
    return widths;
}

/* A column that is left out has the width 0. */
static bool is_shown(const size_t *widths, size_t c)
{
    return widths[c] > 0;
}

static size_t total_width(const struct table *t, const size_t *widths, bool shrunk)
{
    size_t sum = 0, n = 0;
    for (size_t c = 0; c < t->n_columns; c++) {
        bool least = shrunk && t->columns[c].shrinks && widths[c] > SHRINK_MIN;
        sum += least ? SHRINK_MIN : widths[c];
        n += is_shown(widths, c);
    }
    return sum + (n - 1) * GAP;
}

/* Leaves columns out until the rest fits with its cells cut. */
static void leave_out(const struct table *t, size_t *widths, size_t limit)
{
    for (unsigned turn = 1; turn <= t->n_columns && total_width(t, widths, true) > limit; turn++)
        for (size_t c = 0; c < t->n_columns; c++)
            if (t->columns[c].leaves == turn)
                widths[c] = 0;
}

/* Narrows the widest shrinking column again and again, until the rows fit or none can shrink. */
static void shrink(const struct table *t, size_t *widths, size_t limit)
{
    while (total_width(t, widths, false) > limit) {
        size_t widest = t->n_columns;
        for (size_t c = 0; c < t->n_columns; c++)
            if (t->columns[c].shrinks && widths[c] > SHRINK_MIN &&
                (widest == t->n_columns || widths[c] > widths[widest]))
                widest = c;
        if (widest == t->n_columns)
            return;
        widths[widest]--;
    }
}

static bool is_empty(const struct table *t, size_t c)
{
    for (size_t i = c; i < t->n_cells; i += t->n_columns)
        if (*t->cells[i])
            return false;
    return true;
}

static void put_left_out(const struct table *t, FILE *file, const size_t *widths, unsigned indent)
{
    bool any = false;
    for (size_t c = 0; c < t->n_columns; c++) {
        if (is_shown(widths, c) || is_empty(t, c))
            continue;
        put_spaces(file, any ? 0 : indent);
        fprintf(file, "%s%s", any ? ", " : "(no room for ", t->columns[c].title);
        any = true;
    }
    if (any)
        fputs("; --json has all)\n", file);
}

/* No line ends in spaces. */
static size_t last_in_row(const struct table *t, const size_t *widths, size_t first_cell)
{
    size_t last = 0;
    for (size_t c = 0; c < t->n_columns && first_cell + c < t->n_cells; c++)
        last = is_shown(widths, c) && *t->cells[first_cell + c] ? c : last;
    return last;
}

int table_print(const struct table *t, FILE *file, unsigned indent, unsigned width)
{
    assert(t->n_columns > 0);
    size_t *widths = t->failed ? NULL : measure_columns(t), last = 0;
    if (!widths)
        return DLX_E_NO_MEMORY;
    if (width > indent) {
        leave_out(t, widths, width - indent);
        shrink(t, widths, width - indent);
    }
    for (size_t c = 0; c < t->n_columns; c++)
        last = is_shown(widths, c) ? c : last;
    put_spaces(file, indent);
    for (size_t c = 0; c < t->n_columns; c++)
        if (is_shown(widths, c))
            put_cell(file, &t->columns[c], t->columns[c].title, widths[c], c == last);
    for (size_t i = 0; i < t->n_cells; i++) {
        size_t c = i % t->n_columns;
        if (c == 0) {
            putc('\n', file);
            put_spaces(file, indent);
            last = last_in_row(t, widths, i);
        }
        if (is_shown(widths, c) && c <= last)
            put_cell(file, &t->columns[c], t->cells[i], widths[c], c == last);
    }
    putc('\n', file);
    put_left_out(t, file, widths, indent);
    free(widths);
    return 0;
}
