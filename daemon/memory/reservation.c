/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/reservation.h"
#include "daemon/memory/arena.h"

void dlxd_reservation_begin(struct dlxd_arena *arena, struct dlxd_publisher *publisher,
                            struct dlxd_list *all)
{
    arena->reservation =
        (struct dlxd_reservation){.publisher = publisher, .grown_ns = dlx__now_ns()};
    dlxd_list_init(&arena->reservation.node);
    dlxd_list_push_back(all, &arena->reservation.node);
}

void dlxd_reservation_end(struct dlxd_arena *arena)
{
    if (!arena->reservation.publisher)
        return;
    dlxd_list_remove(&arena->reservation.node);
    arena->reservation.publisher = NULL;
}
