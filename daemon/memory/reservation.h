/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_RESERVATION_H
#define DLXD_RESERVATION_H

/* Regions that are charged but not yet filled with pages and made ready. A writer that never does
 * so would block memory that nobody uses, so a region that lacks pages, and has got none for a
 * while, is returned (broker.h). */

#include "daemon/base/list.h"
#include <stdint.h>

struct dlxd_arena;
struct dlxd_publisher;

/* Part of a region. All zero: not reserved. */
struct dlxd_reservation {
    struct dlxd_list node; /* in broker->reservations: the least recently checked is first */
    struct dlxd_publisher *publisher; /* the owner */
    int64_t n_blocks;                 /* of memory, when it last grew */
    uint64_t grown_ns;                /* the time of that */
    uint64_t looked_ns;               /* when it was last checked; 0: never */
};

/* It has an fd and no pages. */
void dlxd_reservation_begin(struct dlxd_arena *arena, struct dlxd_publisher *publisher,
                            struct dlxd_list *all);
/* It is ready or gone. Does nothing if it is not reserved. */
void dlxd_reservation_end(struct dlxd_arena *arena);

#endif
