/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

/** One line on a terminal that is rewritten again and again. Without a terminal, none is shown. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct progress {
    FILE *file; /**< NULL: not shown */
    const char *topic;
    int64_t interval_ns;
    int64_t next_ns;
    bool shown;
};

/** Show the line when `file` is a terminal that can rewrite a line, and `wanted`. At most one line
 *  at a time. `topic` stays the caller's. */
void progress_init(struct progress *p, const char *topic, FILE *file, bool wanted,
                   int64_t interval_ns);

/** Whether it is time to write the line. The first time is one interval after progress_init(). */
bool progress_due(struct progress *p, int64_t now_ns);

/** Columns that words may have, if the topic is shortened for them. SIZE_MAX: any number. */
size_t progress_room(const struct progress *p);

/** Write "TOPIC: words" in place of the line before. If the terminal is too narrow, the beginning
 *  of the topic is left out, then the end of the words. */
void progress_show(struct progress *p, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/**
 * A transfer begins that may be long, of a tensor to or from a file: `what` it is ("reading"), and
 * how many bytes it has; 0: unknown. If it takes longer than four intervals, progress_moved() shows
 * a bar. NULL for `p` ends it. One transfer at a time.
 */
void progress_transfer(struct progress *p, const char *what, uint64_t size);

/** So many bytes more were moved, of the transfer that is under way, if one is. */
void progress_moved(uint64_t n);

/** Remove the line, of the progress that is shown; for anything that is to be printed. */
void progress_clear(void);

#endif
