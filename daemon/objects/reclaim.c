/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/reclaim.h"
#include "daemon/objects/publisher.h"
#include "daemon/base/log.h"
#include "daemon/users/principal.h"
#include <inttypes.h>
#include <sys/stat.h>

/* How many regions are checked in one step. Each takes about 0.5 us. */
#define LOOKS_AT_ONCE 256U
/* The most weight of publishers and arenas that end in one step: publisher.h. */
#define RETURNS_AT_ONCE 16U
/* Regions that were checked this recently are not checked in this round. */
#define ROUND_NS (DLXD_RECLAIM_MS * UINT64_C(1000000) / 2)

/* A region with a proof in progress counts as growing: the delay is the worker's. One whose pages
 * are all there has nothing to return: its writer is touching them, or copies into another one. */
static bool may_stay(struct dlxd_arena *arena, uint64_t now)
{
    struct dlxd_reservation *reservation = &arena->reservation;
    struct stat st;
    bool has_grown = arena->proof || fstat(arena->fd, &st) < 0;
    if (!has_grown && (uint64_t)st.st_blocks * 512 >= arena->size)
        return true;
    if (!has_grown && st.st_blocks > reservation->n_blocks) {
        reservation->n_blocks = st.st_blocks;
        has_grown = true;
    }
    if (has_grown)
        reservation->grown_ns = now;
    return now - reservation->grown_ns <= DLXD_RECLAIM_AFTER_NS;
}

/* Returns the weight. */
static uint32_t give_back(struct dlxd_arena *arena)
{
    struct dlxd_publisher *publisher = arena->reservation.publisher;
    dlxd_log_client(dlxd_principal_number(publisher->principal), DLXD_LOG_INFO,
                    "publisher %" PRIu64 " of %s (pid %d) has reserved %" PRIu64
                    " bytes, and not populated any for %.3g s: they are returned",
                    dlxd_publisher_id(publisher), publisher->topic_name, (int)publisher->pid,
                    arena->size, (double)DLXD_RECLAIM_AFTER_NS / 1e9);
    uint32_t weight = arena == publisher->control ? dlxd_publisher_weight(publisher) : 1;
    if (arena == publisher->control)
        (void)dlxd_publisher_end(publisher);
    else
        (void)dlxd_publisher_arena_drop(publisher, arena->id);
    return weight;
}

bool dlxd_reclaim(struct dlxd_broker *broker, uint64_t now)
{
    struct dlxd_list *list = &broker->reservations;
    uint32_t n_looks = 0, n_returned = 0;
    while (!dlxd_list_empty(list)) {
        struct dlxd_list *first = list->next;
        struct dlxd_reservation *reservation =
            dlxd_container_of(first, struct dlxd_reservation, node);
        struct dlxd_arena *arena = dlxd_container_of(reservation, struct dlxd_arena, reservation);
        if (now - reservation->looked_ns < ROUND_NS) /* as are all after it */
            return false;
        if (n_looks++ == LOOKS_AT_ONCE || n_returned >= RETURNS_AT_ONCE)
            return true;
        reservation->looked_ns = now;
        dlxd_list_remove(first);
        dlxd_list_push_back(list, first);
        if (!may_stay(arena, now))
            n_returned += give_back(arena);
    }
    return false;
}
