/* SPDX-License-Identifier: Apache-2.0 */

/* A line on a terminal that is written again and again. */

#include "cli/progress.h"
#include "cli/output.h"
#include "cli/wait.h"
#include <stdarg.h>
#include <string.h>

static struct progress *current;

static struct {
    struct progress *progress; /* NULL: none is under way */
    const char *what;
    uint64_t size, moved;
    int64_t start_ns;
} transfer;

/* A topic that is shortened keeps so many columns. */
enum { TOPIC_MIN = 16 };

void progress_init(struct progress *p, const char *topic, FILE *file, bool wanted,
                   int64_t interval_ns)
{
    *p = (struct progress){.topic = topic,
                           .file = wanted && output_is_screen(file) ? file : NULL,
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

size_t progress_room(const struct progress *p)
{
    size_t width = p->file ? output_width(p->file) : 0, n_topic = strlen(p->topic);
    size_t used = 3 + (n_topic < TOPIC_MIN ? n_topic : TOPIC_MIN); /* ": ", and the last column */
    if (width == 0)
        return SIZE_MAX;
    return width > used ? width - used : 0;
}

void progress_show(struct progress *p, const char *format, ...)
{
    char words[1024];
    va_list args;
    if (!p->file)
        return;
    va_start(args, format);
    (void)vsnprintf(words, sizeof words, format, args);
    va_end(args);
    const char *topic = p->topic, *dots = "";
    /* The last column stays free: some terminals go on to the next line after it. */
    size_t room = output_width(p->file), n_topic = strlen(topic);
    room = room > 0 ? room - 1 : sizeof words;
    size_t used = 2 + output_columns(words);
    if (used + n_topic > room && n_topic > TOPIC_MIN) {
        size_t n = room > used + TOPIC_MIN ? room - used : TOPIC_MIN;
        dots = "...";
        topic += n_topic - (n - 3);
    }
    used = strlen(dots) + strlen(topic) + 2;
    words[output_bytes_of(words, room > used ? room - used : 0)] = '\0';
    (void)fprintf(p->file, "\r%s%s: %s\033[K", dots, topic, words);
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

/* ---- transfers ------------------------------------------------------------------------------- */

enum { BAR_SIZE = 20, INTERVALS_BEFORE = 4 };

void progress_transfer(struct progress *p, const char *what, uint64_t size)
{
    transfer.progress = p && p->file ? p : NULL;
    transfer.what = what;
    transfer.size = size;
    transfer.moved = 0;
    transfer.start_ns = wait_now();
}

void progress_moved(uint64_t n)
{
    static const char full[BAR_SIZE + 1] = "####################";
    char moved[HUMAN_SIZE], size[HUMAN_SIZE], rate[HUMAN_SIZE];
    struct progress *p = transfer.progress;
    int64_t now = p ? wait_now() : 0;
    transfer.moved += n;
    if (!p || now - transfer.start_ns < INTERVALS_BEFORE * p->interval_ns || !progress_due(p, now))
        return;
    human_bytes(transfer.moved, moved);
    human_bytes(transfer.size, size);
    human_bytes((uint64_t)((double)transfer.moved * 1e9 / (double)(now - transfer.start_ns)), rate);
    if (transfer.size == 0) {
        progress_show(p, "%s %s, %s/s", transfer.what, moved, rate);
        return;
    }
    double part = (double)transfer.moved / (double)transfer.size;
    int percent = part < 1 ? (int)(part * 100) : 100;
    progress_show(p, "%s [%-*.*s] %d %%, %s of %s, %s/s", transfer.what, BAR_SIZE,
                  percent * BAR_SIZE / 100, full, percent, moved, size, rate);
}
