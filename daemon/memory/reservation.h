/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_RESERVATION_H
#define DLXD_RESERVATION_H

/*
 * Regions that are charged, and whose writers have yet to fill them with pages and make them
 * ready. Somebody who never does would lock others out of memory that nobody uses; so a region
 * whose pages have not grown for a while is returned (reclaim.h).
 */

#include "daemon/base/list.h"
#include <stdint.h>

struct dlxd_arena;
struct dlxd_publisher;

/* In a region. All zero: it is none. */
struct dlxd_reservation {
    struct dlxd_list node; /* in broker->reservations: the one looked at the longest ago is first */
    struct dlxd_publisher *publisher; /* whose it is */
    int64_t n_blocks;                 /* of memory, when it had grown last */
    uint64_t grown_ns;                /* then */
};

/* It has an fd, and no pages. */
void dlxd_reservation_begin(struct dlxd_arena *arena, struct dlxd_publisher *publisher,
                            struct dlxd_list *all);
/* It is ready, or gone. Harmless if it is none. */
void dlxd_reservation_end(struct dlxd_arena *arena);

#endif
