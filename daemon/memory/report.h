/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_REPORT_H
#define DLXD_REPORT_H

/*
 * Reads counters from clients' pages for lists. It reads them like files: where sizes are not
 * sealed (memory = posix), a client can remove pages from a mapping, and reading those would raise
 * SIGBUS. A client may have written anything there, so the numbers are only passed on, and
 * decisions based on them concern that client alone.
 */

#include "common/util.h"

struct dlxd_control_report {
    uint64_t head; /* the newest message */
    bool heeds_locks;
    bool waits; /* for room or for subscribers */
    uint64_t published;
    uint64_t published_bytes;
    uint64_t refused;
};

struct dlxd_link_report {
    uint64_t cursor; /* the newest message that it has passed; UINT64_MAX: it has left */
    bool started;    /* it has stored its first cursor */
    uint64_t taken;
    uint64_t skipped;
    uint64_t lost;
    uint32_t n_held;
};

/* A missing or incomplete page reports zeros. The caller keeps the fds. */
void dlxd_report_control(int borrow_fd, struct dlxd_control_report *ret);
void dlxd_report_link(int borrow_fd, uint32_t max_held, struct dlxd_link_report *ret);
/* The messages after `passed` according to the publisher: below 2^61, whatever both sides wrote. */
uint64_t dlxd_report_behind(const struct dlxd_control_report *control, uint64_t passed);
/* Does the subscriber hold a message? A page that cannot be read holds none. */
bool dlxd_report_holds(int borrow_fd, uint32_t max_held);
/* Does the subscriber hold nothing, and will it take nothing more? Once true, always true. */
bool dlxd_report_has_left(int borrow_fd, uint32_t max_held);

#endif
