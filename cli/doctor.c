/* SPDX-License-Identifier: Apache-2.0 */

/* The report of `dlxctl doctor`: lines for people, and JSON. */

#include "cli/doctor.h"
#include "cli/output.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const words[DOCTOR_N_STATUSES] = {
    [DOCTOR_OK] = "ok",
    [DOCTOR_WARNING] = "warning",
    [DOCTOR_PROBLEM] = "problem",
    [DOCTOR_UNKNOWN] = "unknown",
};

/* Columns of the area, and of the status with the area before it. */
enum { AREA_COLUMNS = 9, TEXT_COLUMN = AREA_COLUMNS + 9 };

/* ---- the lines ------------------------------------------------------------------------------- */

/* Prints the text behind what is printed already, and breaks it between words where the terminal
 * ends. Further lines begin in `column`. */
static void print_wrapped(const struct doctor *d, const char *text, size_t column)
{
    size_t room = d->width > column + 20 ? d->width - column : SIZE_MAX;
    while (output_columns(text) > room) {
        size_t n = output_bytes_of(text, room);
        size_t end = n;
        while (end > 0 && text[end] != ' ')
            end--;
        if (end == 0)
            end = n;
        printf("%.*s\n%*s", (int)end, text, (int)column, "");
        text += end + strspn(text + end, " ");
    }
    printf("%s\n", text);
}

static void print_advice(const struct doctor *d, const char *title, const char *text)
{
    printf("%*s%-7s", TEXT_COLUMN, "", title);
    print_wrapped(d, text, TEXT_COLUMN + 7);
}

static void print_check(struct doctor *d, const char *check, enum doctor_status status,
                        struct doctor_advice advice, const char *text)
{
    const size_t n = strcspn(check, ".");
    const bool is_new = !d->area || strncmp(d->area, check, n + 1) != 0;
    d->area = check;
    printf("%-*.*s%-*s", AREA_COLUMNS, is_new ? (int)n : 0, check, TEXT_COLUMN - AREA_COLUMNS,
           words[status]);
    print_wrapped(d, text, TEXT_COLUMN);
    if (advice.means)
        print_advice(d, "means", advice.means);
    if (advice.todo)
        print_advice(d, "do", advice.todo);
}

static json_t *text_or_null(const char *text)
{
    return text ? output_json_text(text) : json_null();
}

static void add_check(struct doctor *d, const char *check, enum doctor_status status,
                      struct doctor_advice advice, const char *text)
{
    d->n[status]++;
    if (!d->cli->json) {
        print_check(d, check, status, advice, text);
        return;
    }
    json_t *item = json_pack("{s:s, s:s, s:o, s:o, s:o}", "check", check, "status", words[status],
                             "text", output_json_text(text), "means", text_or_null(advice.means),
                             "do", text_or_null(advice.todo));
    d->checks = output_json_append(d->checks, item);
}

/* Texts of libdlx have words of the daemon, and paths are the user's. */
static void say(struct doctor *d, const char *check, enum doctor_status status,
                struct doctor_advice advice, const char *format, va_list args)
{
    char text[DOCTOR_TEXT_SIZE], shown[DOCTOR_TEXT_SIZE];
    char means[DOCTOR_TEXT_SIZE], todo[DOCTOR_TEXT_SIZE];
    (void)vsnprintf(text, sizeof text, format, args);
    output_printable(text, shown, sizeof shown);
    output_printable(advice.means ? advice.means : "", means, sizeof means);
    output_printable(advice.todo ? advice.todo : "", todo, sizeof todo);
    add_check(d, check, status,
              (struct doctor_advice){advice.means ? means : NULL, advice.todo ? todo : NULL},
              shown);
}

void doctor_ok(struct doctor *d, const char *check, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(d, check, DOCTOR_OK, (struct doctor_advice){0}, format, args);
    va_end(args);
}

void doctor_found(struct doctor *d, const char *check, enum doctor_status status,
                  struct doctor_advice advice, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(d, check, status, advice, format, args);
    va_end(args);
}
