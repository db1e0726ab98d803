/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_REPORT_H
#define DLXD_REPORT_H

/*
 * Counters out of clients' pages, for lists. They are read as a file is: where sizes are not sealed
 * (memory = posix), a client can take pages away from under a map, and reading those would be SIGBUS.
 * A client may have written anything there, so the numbers are passed on, and what is decided by them
 * concerns that client alone.
 */

#include "common/util.h"

struct dlxd_control_report {
    uint64_t head; /* newest message */
    bool heeds_locks;
    bool waits; /* for room, or for subscribers */
    uint64_t published;
    uint64_t published_bytes;
    uint64_t refused;
};

struct dlxd_link_report {
    uint64_t cursor; /* newest message that it has passed; UINT64_MAX: it has left */
    bool started;    /* it has stored its first cursor */
    uint64_t taken;
    uint64_t skipped;
    uint64_t lost;
    uint32_t n_held;
};

/* A page that is not there, or not whole, reports zeros. The fds stay the caller's. */
void dlxd_report_control(int borrow_fd, struct dlxd_control_report *ret);
void dlxd_report_link(int borrow_fd, uint32_t max_held, struct dlxd_link_report *ret);
/* Messages after `passed`, as far as the publisher says. Whatever both wrote, it is less than 2^61. */
uint64_t dlxd_report_behind(const struct dlxd_control_report *control, uint64_t passed);
/* Does the subscriber say that it takes nothing more, and holds nothing? Once true, always. */
bool dlxd_report_has_left(int borrow_fd, uint32_t max_held);

#endif
