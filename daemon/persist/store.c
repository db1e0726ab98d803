/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/persist/store.h"
#include "common/error.h"
#include "daemon/gpu/keeper.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/group.h"
#include "daemon/objects/store_hooks.h"
#include "daemon/base/log.h"
#include "daemon/users/principal.h"
#include "daemon/persist/handover.h"
#include "daemon/persist/manager_fds.h"
#include "daemon/persist/notify.h"
#include "daemon/persist/record.h"
#include "daemon/persist/restore.h"
#include "daemon/persist/store_queue.h"
#include "daemon/base/watch.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/* How long a reply waits for the service manager, which has other work. */
#define PATIENCE_NS UINT64_C(2000000000)

struct dlxd_store {
    struct dlxd_broker *broker;
    /* The daemon's user, who pays for the ledger and for what belongs to nobody. */
    struct dlxd_user *own;
    struct dlxd_ledger ledger;
    char ledger_name[DLXD_RECORD_NAME_SIZE]; /* its name in the manager */
    struct dlxd_store_queue queue;
    bool has_complained;
    struct dlxd_list barriers; /* oldest first */
};

/* A reply that waits until the manager has read, and closed, our end of a pipe. */
struct dlxd_barrier {
    struct dlxd_list node;
    struct dlxd_store *store;
    struct dlxd_client *client;
    uint32_t serial;
    int fd;
    struct dlxd_charge charge; /* for the fd */
    struct dlxd_watch *watch;
    uint64_t until_ns;
};

/* ---- answers that wait ---------------------------------------------------------------------- */

static void barrier_free(struct dlxd_barrier *barrier)
{
    barrier->client->barrier = NULL;
    dlxd_client_rewatch(barrier->client);
    if (barrier->client->input != DLXD_INPUT_NONE)
        dlxd_task_start(&barrier->client->task, barrier->client->user);
    dlxd_list_remove(&barrier->node);
    dlxd_watch_free(barrier->watch);
    dlx__close(barrier->fd);
    dlxd_charge_deinit(&barrier->charge);
    free(barrier);
}

static void answer(struct dlxd_barrier *barrier)
{
    struct dlxd_client *client = barrier->client;
    uint32_t serial = barrier->serial;
    barrier_free(barrier);
    dlxd_client_send_ok(client, serial);
}

static void on_barrier(void *data, int events)
{
    struct dlxd_barrier *barrier = data;
    (void)events;
    answer(barrier);
}

void dlxd_store_leave(struct dlxd_client *client)
{
    if (client->barrier)
        barrier_free(client->barrier);
}

/* ---- life ----------------------------------------------------------------------------------- */

static const struct dlxd_store_hooks store_hooks = {.update = dlxd_store_update,
                                                    .forget = dlxd_store_forget,
                                                    .forget_arena = dlxd_store_forget_arena,
                                                    .forget_group = dlxd_store_forget_group,
                                                    .leave = dlxd_store_leave};

static void keep_what_came(struct dlxd_store *store);

static void store_free(struct dlxd_store *store)
{
    while (!dlxd_list_empty(&store->barriers))
        barrier_free(dlxd_container_of(store->barriers.next, struct dlxd_barrier, node));
    dlxd_store_queue_deinit(&store->queue);
    dlxd_user_unref(store->own);
    store->broker->users.all_stored_max = UINT64_MAX;
    dlxd_ledger_deinit(&store->ledger);
    free(store);
}

void dlxd_store_deinit(struct dlxd_broker *broker)
{
    struct dlxd_store *store = broker->store;
    if (!store)
        return;
    (void)dlxd_store_queue_flush(&store->queue, UINT64_MAX);
    broker->store = NULL;
    broker->store_hooks = NULL;
    store_free(store);
}

/* Sends what can be sent now; the rest stays in the queue. */
static void store_flush(struct dlxd_store *store)
{
    if (dlxd_store_queue_flush(&store->queue, dlx__now_ns()) == 0 || store->has_complained)
        return;
    store->has_complained = true;
    dlxd_log(DLXD_LOG_WARNING, "%s; trying again", dlx__error_message());
}

static int keep_ledger(struct dlxd_store *store)
{
    return dlxd_store_queue_keep(&store->queue, store->own, store->ledger.fd, store->ledger_name);
}

static int begin_ledger(struct dlxd_store *store)
{
    int r = dlxd_ledger_init(&store->ledger);
    if (r < 0)
        return r;
    dlxd_record_name_ledger(store->ledger_name);
    return keep_ledger(store);
}

static int go_on_with_ledger(struct dlxd_store *store, const struct dlxd_manager_fd *from)
{
    (void)snprintf(store->ledger_name, sizeof store->ledger_name, "%s", from->name);
    return from->not_stored ? keep_ledger(store)
                            : dlxd_store_queue_count(&store->queue, store->own, 1);
}

static int find_own_user(struct dlxd_store *store)
{
    const struct dlxd_principal own = {.uid = store->broker->policy.uid,
                                       .socket = DLXD_SOCKET_MAIN};
    int r = dlxd_users_get(&store->broker->users, &own, &store->own);
    if (r == 0)
        store->own->is_own = true;
    return r;
}

int dlxd_store_init(struct dlxd_broker *broker, uint32_t max_fds,
                    struct dlxd_manager_fds *manager_fds)
{
    int r;
    if (!dlxd_notify_is_possible())
        return dlx__fail(DLX_E_NOT_FOUND, "there is no service manager (NOTIFY_SOCKET) that could "
                                          "keep descriptors");
    struct dlxd_store *store = calloc(1, sizeof *store);
    if (!store)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for the descriptor store");
    store->broker = broker;
    r = find_own_user(store);
    if (r < 0) {
        free(store);
        return r;
    }
    broker->users.all_stored_max = max_fds;
    dlxd_store_queue_init(&store->queue);
    dlxd_list_init(&store->barriers);
    struct dlxd_manager_fd *from = dlxd_restore_ledger(manager_fds, &store->ledger);
    r = from ? go_on_with_ledger(store, from) : begin_ledger(store);
    if (r < 0) {
        store_free(store);
        return r;
    }
    if (from) {
        from->fd = dlx__close(from->fd); /* the ledger has a descriptor of its own */
        from->taken = true;
    }
    broker->store = store;
    broker->store_hooks = &store_hooks;
    dlxd_restore_publishers(broker, manager_fds, &store->ledger, &store->queue);
    /* What the manager has yet to forget takes room from what it has yet to keep. */
    dlxd_restore_remove_rest(manager_fds, store->own, &store->queue);
    store_flush(store);
    if (manager_fds->is_handed_over)
        keep_what_came(store);
    dlxd_gpu_keeper_claim(broker->gpu);
    store_flush(store);
    return 0;
}

bool dlxd_store_is_waiting(const struct dlxd_broker *broker)
{
    return broker->store &&
           (broker->store->queue.n > 0 || !dlxd_list_empty(&broker->store->barriers));
}

void dlxd_store_retry(struct dlxd_broker *broker, uint64_t now)
{
    struct dlxd_store *store = broker->store;
    if (!store)
        return;
    store_flush(store);
    while (!dlxd_list_empty(&store->barriers)) {
        struct dlxd_barrier *oldest =
            dlxd_container_of(store->barriers.next, struct dlxd_barrier, node);
        if (oldest->until_ns > now)
            return;
        dlxd_log_client(
            dlxd_principal_number(oldest->client->principal), DLXD_LOG_WARNING,
            "the service manager is slow to keep descriptors: what %s (pid %d) left is not "
            "safe yet",
            oldest->client->name, (int)oldest->client->pid);
        answer(oldest);
    }
}

/* ---- what is kept ---------------------------------------------------------------------------- */

static bool retains(const struct dlxd_publisher *publisher)
{
    return (publisher->config.retain > 0 || publisher->config.n_groups > 0) &&
           (publisher->state == DLXD_PUBLISHER_OPEN || dlxd_publisher_leaves(publisher));
}

static bool wants(const struct dlxd_publisher *publisher)
{
    return retains(publisher) && dlxd_publisher_may_retain(publisher) && !publisher->not_kept;
}

static int keep(struct dlxd_store *store, struct dlxd_user *whose, int fd, const char *name)
{
    int r = dlxd_user_check(whose, DLXD_STORE_ENTRIES, 1);
    if (r == 0)
        r = dlxd_user_check(whose, DLXD_DESCRIPTORS, 1); /* until it was sent */
    return r < 0 ? r : dlxd_store_queue_keep(&store->queue, whose, fd, name);
}

static void drop(struct dlxd_store *store, struct dlxd_user *whose, const char *name)
{
    /* If memory is short, the next daemon drops the descriptor, unless its publisher is in the
     * ledger. */
    (void)dlxd_store_queue_drop(&store->queue, whose, name);
}

static int keep_region(struct dlxd_store *store, const struct dlxd_publisher *publisher,
                       struct dlxd_arena *arena)
{
    char name[DLXD_RECORD_NAME_SIZE];
    if (arena->kept)
        return 0;
    dlxd_record_name_region(publisher, arena, name);
    int r = keep(store, publisher->user, arena->fd, name);
    arena->kept = r == 0;
    return r;
}

static int keep_regions(struct dlxd_store *store, const struct dlxd_publisher *publisher)
{
    int r = keep_region(store, publisher, publisher->control);
    for (size_t i = 0; r == 0 && i < publisher->ready.n; i++)
        r = keep_region(store, publisher, publisher->ready.items[i]);
    return r;
}

static int keep_group(struct dlxd_store *store, struct dlxd_group *group)
{
    char name[DLXD_RECORD_NAME_SIZE];
    struct dlxd_user *whose = group->publisher->user;
    int r = dlxd_group_make_page(group, false);
    if (r == 0 && !group->page_kept) {
        dlxd_record_name_group(group, name);
        r = keep(store, whose, group->page_fd, name);
        group->page_kept = r == 0;
    }
    if (r == 0 && !group->bell_kept) {
        dlxd_record_name_bell(group, name);
        r = keep(store, whose, group->bell_fd, name);
        group->bell_kept = r == 0;
    }
    return r;
}

static int keep_groups(struct dlxd_store *store, struct dlxd_publisher *publisher)
{
    int r = 0;
    dlx_for_each (it, &publisher->groups) {
        struct dlxd_group *group = dlxd_container_of(it, struct dlxd_group, node);
        if (r == 0 && group->is_declared)
            r = keep_group(store, group);
    }
    return r;
}

static int keep_pidfd(struct dlxd_store *store, struct dlxd_publisher *publisher)
{
    char name[DLXD_RECORD_NAME_SIZE];
    bool writes = publisher->client || publisher->death;
    if (writes == publisher->pidfd_kept)
        return 0;
    dlxd_record_name_pidfd(publisher, name);
    int r = 0;
    if (!writes)
        drop(store, publisher->user, name);
    else
        r = keep(store, publisher->user,
                 publisher->client ? publisher->client->pidfd : publisher->dying_pidfd, name);
    if (r == 0)
        publisher->pidfd_kept = writes;
    return r;
}

static int store_write_entry(struct dlxd_store *store, struct dlxd_publisher *publisher)
{
    struct dlxd_ledger_entry entry;
    dlxd_record_write(publisher, &entry);
    int r = dlxd_ledger_put(&store->ledger, publisher->ledger_index, &entry);
    if (r < 0)
        return r;
    publisher->ledger_index = (uint32_t)r;
    return 0;
}

static int keep_all(struct dlxd_store *store, struct dlxd_publisher *publisher)
{
    /* The pidfd comes before the regions, which are taken to have no writer without one. */
    int r = store_write_entry(store, publisher);
    if (r == 0)
        r = keep_groups(store, publisher);
    if (r == 0)
        r = keep_pidfd(store, publisher);
    return r < 0 ? r : keep_regions(store, publisher);
}

static void give_up(struct dlxd_publisher *publisher)
{
    publisher->not_kept = true;
    dlxd_store_forget(publisher);
}

void dlxd_store_update(struct dlxd_publisher *publisher)
{
    struct dlxd_store *store = publisher->broker->store;
    if (!wants(publisher))
        return;
    if (keep_all(store, publisher) < 0) {
        dlxd_log_client(dlxd_principal_number(publisher->principal), DLXD_LOG_WARNING,
                        "%s: what %s (pid %d) retains will not outlive this daemon: %s",
                        publisher->topic_name, publisher->client_name, (int)publisher->pid,
                        dlx__error_message());
        give_up(publisher);
    }
    store_flush(store);
}

/* Handles a restored publisher. Returns true if there was no room for it. */
static bool keep_one_that_came(struct dlxd_store *store, struct dlxd_publisher *publisher)
{
    publisher->not_kept = false;
    bool is_wanted = wants(publisher), is_kept = is_wanted && keep_all(store, publisher) == 0;
    if (!is_kept)
        give_up(publisher);
    return is_wanted && !is_kept;
}

/* What was handed over may not be stored yet, and may not fit. */
static void keep_what_came(struct dlxd_store *store)
{
    uint32_t n_given_up = 0;
    struct dlxd_list *const lists[] = {&store->broker->retained, &store->broker->expiring};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(lists); i++)
        dlx_for_each (it, lists[i])
            n_given_up +=
                keep_one_that_came(store, dlxd_container_of(it, struct dlxd_publisher, by_client));
    if (n_given_up > 0)
        dlxd_log(DLXD_LOG_WARNING, "what %u of them retain will not outlive this daemon: %s",
                 n_given_up, dlx__error_message());
}

void dlxd_store_forget_arena(const struct dlxd_publisher *publisher, struct dlxd_arena *arena)
{
    char name[DLXD_RECORD_NAME_SIZE];
    struct dlxd_store *store = publisher->broker->store;
    if (!arena->kept)
        return;
    dlxd_record_name_region(publisher, arena, name);
    drop(store, publisher->user, name);
    arena->kept = false;
    store_flush(store);
}

void dlxd_store_forget_group(struct dlxd_group *group)
{
    char name[DLXD_RECORD_NAME_SIZE];
    struct dlxd_store *store = group->publisher->broker->store;
    if (group->page_kept) {
        dlxd_record_name_group(group, name);
        drop(store, group->publisher->user, name);
    }
    if (group->bell_kept) {
        dlxd_record_name_bell(group, name);
        drop(store, group->publisher->user, name);
    }
    group->page_kept = group->bell_kept = false;
    store_flush(store);
}

void dlxd_store_forget(struct dlxd_publisher *publisher)
{
    char name[DLXD_RECORD_NAME_SIZE];
    struct dlxd_store *store = publisher->broker->store;
    if (publisher->ledger_index == 0)
        return;
    dlxd_ledger_remove(&store->ledger, publisher->ledger_index);
    publisher->ledger_index = 0;
    dlxd_store_forget_arena(publisher, publisher->control);
    for (size_t i = 0; i < publisher->ready.n; i++)
        dlxd_store_forget_arena(publisher, publisher->ready.items[i]);
    dlx_for_each (it, &publisher->groups)
        dlxd_store_forget_group(dlxd_container_of(it, struct dlxd_group, node));
    if (!publisher->pidfd_kept)
        return;
    dlxd_record_name_pidfd(publisher, name);
    drop(store, publisher->user, name);
    publisher->pidfd_kept = false;
    store_flush(store);
}

bool dlxd_store_answer_later(const struct dlxd_publisher *publisher, struct dlxd_client *client,
                             uint32_t serial)
{
    struct dlxd_store *store = publisher->broker->store;
    int pipe_fds[2];
    if (!store || publisher->ledger_index == 0)
        return false;
    struct dlxd_barrier *barrier = calloc(1, sizeof *barrier);
    if (!barrier || pipe2(pipe_fds, O_CLOEXEC | O_NONBLOCK) < 0) {
        free(barrier);
        return false; /* not safe yet, but no reason to fail */
    }
    *barrier = (struct dlxd_barrier){.store = store,
                                     .client = client,
                                     .serial = serial,
                                     .fd = pipe_fds[0],
                                     .until_ns = dlx__now_ns() + PATIENCE_NS};
    int r = dlxd_charge_init(&barrier->charge, client->user, DLXD_DESCRIPTORS, 1);
    if (r == 0)
        r = dlxd_store_queue_barrier(&store->queue, publisher->user, pipe_fds[1]);
    dlx__close(pipe_fds[1]);
    if (r == 0)
        r = dlxd_watch_new(&barrier->watch, store->broker->watches, barrier->fd, DLXD_READABLE,
                           on_barrier, barrier);
    if (r < 0) {
        dlx__close(barrier->fd);
        dlxd_charge_deinit(&barrier->charge);
        free(barrier);
        return false;
    }
    dlxd_list_push_back(&store->barriers, &barrier->node);
    client->barrier = barrier;
    dlxd_client_rewatch(client);
    store_flush(store);
    return true;
}

/* ---- what is handed over --------------------------------------------------------------------- */

static int store_hand_over(struct dlxd_broker *broker, struct dlxd_handover *handover,
                           const struct dlxd_publisher *publisher, int fd, const char *name,
                           bool kept)
{
    const struct dlxd_store *store = broker->store;
    bool is_stored =
        store && kept && !dlxd_store_queue_is_unsent(&store->queue, publisher->user, name);
    return dlxd_handover_add(handover, fd, name, !is_stored);
}

static int hand_over_region(struct dlxd_broker *broker, struct dlxd_handover *handover,
                            const struct dlxd_publisher *publisher, const struct dlxd_arena *arena)
{
    char name[DLXD_RECORD_NAME_SIZE];
    dlxd_record_name_region(publisher, arena, name);
    return store_hand_over(broker, handover, publisher, arena->fd, name, arena->kept);
}

static int hand_over_pidfd(struct dlxd_broker *broker, struct dlxd_handover *handover,
                           const struct dlxd_publisher *publisher)
{
    char name[DLXD_RECORD_NAME_SIZE];
    if (!publisher->client && !publisher->death)
        return 0; /* nobody writes */
    dlxd_record_name_pidfd(publisher, name);
    return store_hand_over(broker, handover, publisher,
                           publisher->client ? publisher->client->pidfd : publisher->dying_pidfd,
                           name, publisher->pidfd_kept);
}

/* A user that is at its limits must not keep the daemon from being replaced. */
static int hand_over_group(struct dlxd_broker *broker, struct dlxd_handover *handover,
                           struct dlxd_group *group)
{
    char name[DLXD_RECORD_NAME_SIZE];
    int r = dlxd_group_make_page(group, true);
    if (r < 0)
        return r;
    dlxd_record_name_group(group, name);
    r = store_hand_over(broker, handover, group->publisher, group->page_fd, name, group->page_kept);
    if (r < 0)
        return r;
    dlxd_record_name_bell(group, name);
    return store_hand_over(broker, handover, group->publisher, group->bell_fd, name,
                           group->bell_kept);
}

static int hand_over_publisher(struct dlxd_broker *broker, struct dlxd_ledger *ledger,
                               struct dlxd_handover *handover, struct dlxd_publisher *publisher)
{
    struct dlxd_ledger_entry entry;
    dlxd_record_write(publisher, &entry);
    int r = dlxd_ledger_put(ledger, publisher->ledger_index, &entry);
    if (r >= 0)
        r = hand_over_pidfd(broker, handover, publisher);
    if (r == 0)
        r = hand_over_region(broker, handover, publisher, publisher->control);
    for (size_t i = 0; r == 0 && i < publisher->ready.n; i++)
        r = hand_over_region(broker, handover, publisher, publisher->ready.items[i]);
    dlx_for_each (it, &publisher->groups) {
        struct dlxd_group *group = dlxd_container_of(it, struct dlxd_group, node);
        if (r == 0 && group->is_declared)
            r = hand_over_group(broker, handover, group);
    }
    return r;
}

/* The drop still has to be sent; the name says everything. */
static int hand_over_drop(void *handover, const char *name)
{
    return dlxd_handover_add(handover, -1, name, false);
}

static int hand_over_ledger(struct dlxd_broker *broker, struct dlxd_handover *handover,
                            struct dlxd_ledger **ret)
{
    struct dlxd_store *store = broker->store;
    char name[DLXD_RECORD_NAME_SIZE];
    if (store) {
        *ret = &store->ledger;
        return dlxd_handover_add(
            handover, store->ledger.fd, store->ledger_name,
            dlxd_store_queue_is_unsent(&store->queue, store->own, store->ledger_name));
    }
    *ret = &handover->ledger;
    dlxd_record_name_ledger(name);
    int r = dlxd_ledger_init(*ret);
    return r < 0 ? r : dlxd_handover_add(handover, (*ret)->fd, name, true);
}

int dlxd_store_hand_over(struct dlxd_broker *broker, struct dlxd_handover *handover)
{
    struct dlxd_ledger *ledger;
    if (broker->store) /* what can be sent now need not be handed over as unsent */
        (void)dlxd_store_queue_flush(&broker->store->queue, UINT64_MAX);
    int r = hand_over_ledger(broker, handover, &ledger);
    for (size_t i = 0; r == 0 && i < broker->registry.n_topics; i++) {
        dlx_for_each (it, &broker->registry.topics[i]->publishers) {
            struct dlxd_publisher *publisher =
                dlxd_container_of(it, struct dlxd_publisher, by_topic);
            if (r == 0 && retains(publisher))
                r = hand_over_publisher(broker, ledger, handover, publisher);
        }
    }
    if (r == 0 && broker->store)
        r = dlxd_store_queue_each_drop(&broker->store->queue, hand_over_drop, handover);
    return r;
}

/* Removes the entries made for the handover, whose publishers do not refer to them. */
void dlxd_store_take_back(struct dlxd_broker *broker)
{
    struct dlxd_ledger_entry entry;
    struct dlxd_store *store = broker->store;
    for (uint32_t i = 1; store && i <= store->ledger.n; i++) {
        if (!store->ledger.used[i] || !dlxd_ledger_get(&store->ledger, i, &entry))
            continue;
        struct dlxd_idmap_node *node = dlxd_idmap_find(&broker->registry.publishers, entry.id);
        if (!node || dlxd_container_of(node, struct dlxd_publisher, by_id)->ledger_index != i)
            dlxd_ledger_remove(&store->ledger, i);
    }
}
