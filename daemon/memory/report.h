/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_REPORT_H
#define DLXD_REPORT_H

/*
 * Reads counters from clients' pages for lists. It reads them like files: where sizes are not
 * sealed (memory = posix), a client can remove pages from a mapping, and reading those would raise
 * SIGBUS. A client may have written anything there, so the numbers are only passed on, and
 * decisions based on them concern that client alone.
 */

#include "ring/layout.h"

struct dlxd_control_report {
    uint64_t head;   /* the newest message */
    uint64_t oldest; /* the oldest message that subscribers can still take */
    bool heeds_locks;
    bool waits; /* for room or for subscribers */
    uint64_t published;
    uint64_t published_bytes;
    uint64_t refused;
    uint64_t copied;
    uint64_t copied_bytes;
    uint64_t waited_ns;        /* for room */
    uint64_t waited_before_ns; /* without the wait that goes on */
    uint64_t waits_since;      /* when the wait began that goes on; 0: none does */
    uint64_t moved_at;         /* the newest message that an earlier control block had; 0: none */
};

/* The daemon's own knowledge of a link. */
struct dlxd_link_terms {
    uint32_t max_held;
    bool is_latest;
    /* It is in a group: what other workers had, or the publisher retired, it has not lost. */
    bool is_worker;
    uint64_t after_seq; /* its first message is a later one */
    /* That is certain before the subscriber has stored its first cursor: no message up to there
     * comes by another link. */
    bool is_first;
};

struct dlxd_link_report {
    bool started; /* it has stored its first cursor */
    uint64_t behind;
    uint64_t
        undone; /* of a worker: from the first message that its group has not done to the newest */
    uint64_t taken;
    uint64_t skipped; /* with what the publisher has dropped and the subscriber cannot get */
    uint64_t lost;    /* likewise */
    uint32_t n_held;
    uint64_t next;        /* the next message for it; 0: there is none */
    uint64_t oldest_held; /* 0: it holds none */
};

/* The words of a client in a former page. */
struct dlxd_former_report {
    uint64_t bytes[DLX_SHM_FORMER_REGIONS_MAX];
    struct dlx_shm_former_region regions[DLX_SHM_FORMER_REGIONS_MAX];
    struct dlx_shm_former_source sources[DLX_SHM_FORMER_SOURCES_MAX];
};

/* A missing or incomplete page is read as zeros. The caller keeps the fds. */
void dlxd_report_control(int borrow_fd, struct dlxd_control_report *ret);
/* Has its publisher closed it? Then it writes no message any more. */
bool dlxd_report_has_ended(int borrow_fd, uint32_t n_entries);
/* The first message that a declared group had not done when its publisher moved to this control
 * block; 0: none says so. */
uint64_t dlxd_report_carried(int borrow_control_fd, uint32_t n_entries, uint32_t group);
/* When a message was published, CLOCK_MONOTONIC; 0: it is not in the control block. */
uint64_t dlxd_report_published_ns(int borrow_control_fd, uint32_t n_entries, uint64_t n);
/* Likewise of the first message that is certainly there while `head` is the newest. */
uint64_t dlxd_report_first_ns(int borrow_control_fd, uint32_t n_entries, uint64_t head);
/* `control` was read before, else messages that were taken meanwhile may count as lost. */
void dlxd_report_link(int borrow_fd, const struct dlxd_link_terms *terms,
                      const struct dlxd_control_report *control, struct dlxd_link_report *ret);
/* How many messages the subscriber holds. A page that cannot be read holds none. */
uint32_t dlxd_report_n_held(int borrow_fd, uint32_t max_held);
/* Does the subscriber hold nothing, and will it take nothing more? Once true, always true. */
bool dlxd_report_has_left(int borrow_fd, uint32_t max_held);

/* Reads a former page with room for `max_regions`: the first `n_regions`, and so many sources.
 * Returns false if it is incomplete. */
bool dlxd_report_former(int borrow_fd, uint32_t max_regions, uint32_t n_regions, uint32_t n_sources,
                        struct dlxd_former_report *ret);
/* The bytes alone. Returns an array that is valid until the next call; NULL if incomplete. */
const uint64_t *dlxd_report_former_bytes(int borrow_fd, uint32_t n_regions);

#endif
