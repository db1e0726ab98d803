/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/broker.h"
#include "daemon/base/log.h"
#include "daemon/gpu/keeper.h"
#include "daemon/objects/observer.h"
#include "daemon/objects/pending_join.h"
#include "daemon/objects/publisher.h"
#include "daemon/objects/publisher_state.h"
#include "daemon/objects/refusal.h"
#include "daemon/objects/registry.h"
#include "daemon/users/outbox.h"
#include "daemon/users/principal.h"
#include "daemon/base/watch.h"
#include "daemon/base/worker.h"
#include <inttypes.h>
#include <sys/resource.h>
#include <sys/stat.h>

int dlxd_broker_init(struct dlxd_broker *broker, struct uv_loop_s *loop,
                     const struct dlx_memory *memory, const struct dlxd_steps *steps,
                     uint64_t ram_bytes)
{
    *broker = (struct dlxd_broker){.policy = {.uid = geteuid()}, .memory = memory, .steps = steps};
    broker->socket_path = "";
    broker->start_ns = dlx__now_ns();
    broker->last_client = broker->start_ns / 1000; /* as in registry.c */
    dlxd_users_init(&broker->users, ram_bytes);
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        dlxd_users_set_descriptors(&broker->users, files.rlim_cur);
        broker->users.all_in_flight_max = files.rlim_cur;
    }
    dlxd_registry_init(&broker->registry);
    dlxd_changes_init(&broker->changes);
    dlxd_list_init(&broker->refusals.list);
    dlxd_list_init(&broker->clients);
    dlxd_list_init(&broker->greeting);
    dlxd_list_init(&broker->retained);
    dlxd_list_init(&broker->expiring);
    dlxd_list_init(&broker->looked);
    dlxd_list_init(&broker->reservations);
    dlxd_list_init(&broker->stuck);
    dlxd_list_init(&broker->slow);
    int r = dlxd_watches_new(&broker->watches, loop);
    return r < 0 ? r : dlxd_workers_new(&broker->workers, loop);
}

void dlxd_broker_deinit(struct dlxd_broker *broker)
{
    dlxd_retained_clear(broker);
    dlxd_refusals_deinit(&broker->refusals);
    broker->gpu = dlxd_gpu_keeper_free(broker->gpu);
    dlxd_registry_deinit(&broker->registry);
    dlxd_flights_forget(&broker->users);
    dlxd_users_deinit(&broker->users);
    broker->watches = dlxd_watches_free(broker->watches);
    broker->workers = dlxd_workers_free(broker->workers);
}

void dlxd_broker_settle(struct dlxd_broker *broker)
{
    dlxd_work_run(&broker->users, UINT64_MAX);
}

bool dlxd_broker_is_idle(const struct dlxd_broker *broker)
{
    return dlxd_list_empty(&broker->clients) && dlxd_list_empty(&broker->retained) &&
           dlxd_list_empty(&broker->expiring);
}

/* How many subscriptions are looked at in one step. Each takes 1 to 2 us. */
#define UNSTUCK_AT_ONCE 256U

void dlxd_broker_unstick(struct dlxd_broker *broker)
{
    uint64_t now = dlx__now_ns();
    struct dlxd_list *stuck = &broker->stuck, *last = stuck->prev, *it = NULL;
    for (uint32_t n = UNSTUCK_AT_ONCE; n > 0 && !dlxd_list_empty(stuck) && it != last; n--) {
        it = stuck->next;
        struct dlxd_subscription *subscription =
            dlxd_container_of(it, struct dlxd_subscription, stuck);
        dlxd_list_remove(it);
        if (now < subscription->lack_until_ns ||
            !dlxd_flights_have_room(subscription->client->user, DLXD_FLIGHT_FDS_MOST)) {
            dlxd_list_push_back(stuck, it); /* the others are first the next time */
            continue;
        }
        subscription->state = DLXD_SUBSCRIPTION_OPEN;
        dlxd_subscription_mark(subscription);
    }
    dlxd_pending_joins_retry(broker);
}

/* ---- reservations -------------------------------------------------------------------------- */

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
