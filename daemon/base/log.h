/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_LOG_H
#define DLXD_LOG_H

/*
 * Lines on stderr. A line is dropped, and counted, rather than written to a stderr that would block,
 * or when there are more than a hundred in a second: clients can cause lines. Refusals, which every
 * user of the machine can cause, count for themselves, ten in a second, so that they hide nothing
 * else. Not thread-safe: the daemon has one thread.
 *
 * Where stderr is the journal's, refusals go to it with fields that it can be searched by
 * (systemd.journal-fields(7)), in the journal's native protocol. sd_journal_send(3) would do the same,
 * but waits for a journal that does not read: nothing here does.
 */

#include "common/util.h"

enum dlxd_log_level { /* the numbers of syslog and of sd-daemon's prefixes */
                      DLXD_LOG_ERROR = 3,
                      DLXD_LOG_WARNING = 4,
                      DLXD_LOG_NOTICE = 5,
                      DLXD_LOG_INFO = 6,
};

#define DLXD_LOG_JOURNAL "/run/systemd/journal/socket"

/* A field without a value is left out. */
struct dlxd_log_field {
    const char *name;
    const char *value;
};

/* Is stderr the journal's ($JOURNAL_STREAM)? */
bool dlxd_log_is_journal(void);
/* Lines up to `level`; none before this was called. `journal_borrow` is where the journal listens, and
 * makes lines "<4>text" instead of "dlpackd: text"; NULL: stderr is somebody else's. */
void dlxd_log_init(enum dlxd_log_level level, const char *journal_borrow);
void dlxd_log(enum dlxd_log_level level, const char *fmt, ...) dlx_printf(2, 3);
/* Somebody was refused something: a notice. */
void dlxd_log_refusal(const struct dlxd_log_field *fields, size_t n_fields, const char *fmt, ...)
    dlx_printf(3, 4);

#endif
