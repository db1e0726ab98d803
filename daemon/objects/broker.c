/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/broker.h"
#include "daemon/gpu/keeper.h"
#include "daemon/objects/pending_join.h"
#include "daemon/objects/registry.h"
#include "daemon/objects/retained.h"
#include "daemon/objects/subscription.h"
#include "daemon/users/outbox.h"
#include "daemon/base/watch.h"
#include "daemon/base/worker.h"
#include <sys/resource.h>

int dlxd_broker_init(struct dlxd_broker *broker, struct uv_loop_s *loop,
                     const struct dlx_memory *memory, const struct dlxd_readers *readers,
                     uint64_t ram_bytes)
{
    *broker =
        (struct dlxd_broker){.policy = {.uid = geteuid()}, .memory = memory, .readers = readers};
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
    dlxd_list_init(&broker->clients);
    dlxd_list_init(&broker->greeting);
    dlxd_list_init(&broker->retained);
    dlxd_list_init(&broker->expiring);
    dlxd_list_init(&broker->reservations);
    dlxd_list_init(&broker->stuck);
    dlxd_list_init(&broker->slow);
    int r = dlxd_watches_new(&broker->watches, loop);
    return r < 0 ? r : dlxd_workers_new(&broker->workers, loop);
}

void dlxd_broker_deinit(struct dlxd_broker *broker)
{
    dlxd_retained_clear(broker);
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
