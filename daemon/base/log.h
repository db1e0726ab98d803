/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_LOG_H
#define DLXD_LOG_H

/*
 * Lines on stderr. There are two kinds, and those of one hide none of the other:
 *
 * - Lines for the administrator. Errors are always written, of the rest 100 a second.
 * - Lines that clients cause: 10 a second of each user and 10 refusals, and 100 of all users
 *   together.
 *
 * A line above such a limit, or for which stderr would block, is dropped, and counted in a later
 * line. Not thread-safe: only the loop's thread logs.
 *
 * If stderr is connected to the journal, refusals go there in the journal's native protocol, with
 * fields that can be searched (systemd.journal-fields(7)). sd_journal_send(3) would do the same,
 * but it blocks if the journal does not read.
 */

#include "common/util.h"

enum dlxd_log_level { /* the numbers of syslog and of sd-daemon's prefixes */
                      DLXD_LOG_ERROR = 3,
                      DLXD_LOG_WARNING = 4,
                      DLXD_LOG_NOTICE = 5,
                      DLXD_LOG_INFO = 6,
};

#define DLXD_LOG_JOURNAL "/run/systemd/journal/socket"

/* A field without a value is omitted. */
struct dlxd_log_field {
    const char *name;
    const char *value;
};

/* Is stderr connected to the journal ($JOURNAL_STREAM)? */
bool dlxd_log_is_journal(void);
/* Enables lines up to `level`; before this call, no line is written. `borrow_journal` is the socket
 * path of the journal, and selects lines "<4>text" instead of "dlpackd: text". NULL: stderr is not
 * the journal's. */
void dlxd_log_init(enum dlxd_log_level level, const char *borrow_journal);
void dlxd_log(enum dlxd_log_level level, const char *fmt, ...) dlx_printf(2, 3);
/* The same for a line that a client of this user causes: dlxd_principal_number(). */
void dlxd_log_client(uint64_t whose, enum dlxd_log_level level, const char *fmt, ...)
    dlx_printf(3, 4);
/* Logs as a notice that a user was refused something. */
void dlxd_log_refusal(uint64_t whose, const struct dlxd_log_field *fields, size_t n_fields,
                      const char *fmt, ...) dlx_printf(4, 5);
/* Says how many lines were dropped and not yet counted: the program is about to end, or another one
 * takes its place. */
void dlxd_log_flush(void);

#endif
