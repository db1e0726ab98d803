/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_LOG_H
#define DLXD_LOG_H

/*
 * Lines on stderr. A line is dropped, and counted, rather than written to a stderr that would block,
 * or when there are more than a hundred in a second: clients can cause lines. Not thread-safe: the daemon has
 * one thread.
 */

#include "common/util.h"

enum dlxd_log_level { /* the numbers of syslog and of sd-daemon's prefixes */
                      DLXD_LOG_ERROR = 3,
                      DLXD_LOG_WARNING = 4,
                      DLXD_LOG_NOTICE = 5,
                      DLXD_LOG_INFO = 6,
};

/* Lines up to `level`; none before this was called. `journal`: "<4>text" instead of "dlpackd: text". */
void dlxd_log_init(enum dlxd_log_level level, bool journal);
void dlxd_log(enum dlxd_log_level level, const char *fmt, ...) dlx_printf(2, 3);

#endif
