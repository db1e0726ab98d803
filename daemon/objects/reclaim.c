/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/reclaim.h"
#include "daemon/objects/broker.h"
#include "daemon/base/log.h"
#include "daemon/users/principal.h"
#include "daemon/objects/publisher.h"
#include <inttypes.h>
#include <sys/stat.h>

/* How many regions are checked in one scan. Each takes about 0.5 us. */
#define LOOKS_AT_ONCE 2048U
/* How many of them are returned in one scan. Each takes about 10 us. */
#define RETURNS_AT_ONCE 64U

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

static void give_back(struct dlxd_arena *arena)
{
    struct dlxd_publisher *publisher = arena->reservation.publisher;
    dlxd_log_client(dlxd_principal_number(publisher->principal), DLXD_LOG_INFO,
                    "publisher %" PRIu64 " of %s (pid %d) has reserved %" PRIu64
                    " bytes, and not populated any for %.3g s: they are returned",
                    dlxd_publisher_id(publisher), publisher->topic_name, (int)publisher->pid,
                    arena->size, (double)DLXD_RECLAIM_AFTER_NS / 1e9);
    if (arena == publisher->control)
        (void)dlxd_publisher_end(publisher);
    else
        (void)dlxd_publisher_arena_drop(publisher, arena->id);
}

bool dlxd_reclaim(struct dlxd_broker *broker, uint64_t now)
{
    uint32_t n_returned = 0;
    struct dlxd_list *list = &broker->reservations, *last = list->prev;
    for (uint32_t n = LOOKS_AT_ONCE; n > 0 && !dlxd_list_empty(list); n--) {
        struct dlxd_list *first = list->next;
        struct dlxd_reservation *reservation =
            dlxd_container_of(first, struct dlxd_reservation, node);
        struct dlxd_arena *arena = dlxd_container_of(reservation, struct dlxd_arena, reservation);
        bool all = first == last;
        dlxd_list_remove(first);
        dlxd_list_push_back(list, first);
        if (!may_stay(arena, now)) {
            give_back(arena);
            n_returned++;
        }
        if (all || n_returned == RETURNS_AT_ONCE)
            break;
    }
    return n_returned == RETURNS_AT_ONCE;
}
