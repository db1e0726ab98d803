/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/progress.h"
#include "cli/output.h"
#include "cli/wait.h"
#include <stdarg.h>

static struct progress *current;

void progress_init(struct progress *p, FILE *file, bool wanted, int64_t interval_ns)
{
    *p = (struct progress){.file = wanted && output_is_screen(file) ? file : NULL,
                           .interval_ns = interval_ns,
                           .next_ns = wait_deadline(interval_ns)};
}

bool progress_due(struct progress *p, int64_t now_ns)
{
    if (!p->file || now_ns < p->next_ns)
        return false;
    p->next_ns = now_ns + p->interval_ns;
    return true;
}

void progress_show(struct progress *p, const char *format, ...)
{
    char line[512];
    va_list args;
    if (!p->file)
        return;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    unsigned width = output_width(p->file);
    if (width > 0 && width < sizeof line)
        line[width - 1] = '\0';
    (void)fprintf(p->file, "\r%s\033[K", line);
    (void)fflush(p->file);
    p->shown = true;
    current = p;
}

void progress_clear(void)
{
    if (!current || !current->shown)
        return;
    (void)fputs("\r\033[K", current->file);
    (void)fflush(current->file);
    current->shown = false;
    current = NULL;
}
