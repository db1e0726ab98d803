/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/persist/restore.h"
#include "common/error.h"
#include "daemon/gpu/keeper.h"
#include "daemon/objects/group.h"
#include "daemon/objects/publisher_state.h"
#include "daemon/persist/manager_fds.h"
#include "daemon/base/log.h"
#include "daemon/persist/record.h"
#include "daemon/persist/store_queue.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/* A descriptor of a publisher, with its parsed name. */
struct found {
    struct dlxd_record_name name;
    struct dlxd_manager_fd *from;
};

struct found_list {
    struct found *items;
    size_t n;
};

static bool begins_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static int compare_found(const void *a, const void *b)
{
    const struct dlxd_record_name *x = &((const struct found *)a)->name;
    const struct dlxd_record_name *y = &((const struct found *)b)->name;
    if (x->publisher != y->publisher)
        return x->publisher < y->publisher ? -1 : 1;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    if (x->ready_seq != y->ready_seq)
        return x->ready_seq < y->ready_seq ? -1 : 1;
    return x->number == y->number ? 0 : x->number < y->number ? -1 : 1;
}

/* Finds the descriptors with our names, sorted by publisher, its pidfd first, then its control
 * block, the other regions in the order in which they became ready, and its groups by number. */
static int find_all(struct dlxd_manager_fds *manager_fds, struct found_list *ret)
{
    *ret = (struct found_list){.items = calloc(manager_fds->n + 1, sizeof *ret->items)};
    if (!ret->items)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for %zu descriptors", manager_fds->n);
    for (size_t i = 0; i < manager_fds->n; i++) {
        struct found *found = &ret->items[ret->n];
        if (manager_fds->fds[i].taken || manager_fds->fds[i].fd < 0 ||
            !dlxd_record_parse(manager_fds->fds[i].name, &found->name))
            continue;
        found->from = &manager_fds->fds[i];
        ret->n++;
    }
    qsort(ret->items, ret->n, sizeof *ret->items, compare_found);
    return 0;
}

static uint64_t number_of_ledger(const struct dlxd_manager_fd *from)
{
    return strtoull(from->name + strlen(DLXD_RECORD_LEDGER), NULL, 10);
}

/* The newest ledger with a number below `below`. There may be an older one, which a daemon could
 * neither read nor drop, for lack of memory or descriptors. */
static struct dlxd_manager_fd *find_ledger(struct dlxd_manager_fds *manager_fds, uint64_t below)
{
    struct dlxd_manager_fd *newest = NULL;
    for (size_t i = 0; i < manager_fds->n; i++) {
        struct dlxd_manager_fd *from = &manager_fds->fds[i];
        if (from->fd >= 0 && begins_with(from->name, DLXD_RECORD_LEDGER) &&
            number_of_ledger(from) < below &&
            (!newest || number_of_ledger(from) > number_of_ledger(newest)))
            newest = from;
    }
    return newest;
}

struct dlxd_manager_fd *dlxd_restore_ledger(struct dlxd_manager_fds *manager_fds,
                                            struct dlxd_ledger *ret)
{
    struct dlxd_manager_fd *from;
    for (uint64_t below = UINT64_MAX; (from = find_ledger(manager_fds, below)) != NULL;
         below = number_of_ledger(from)) {
        int fd = fcntl(from->fd, F_DUPFD_CLOEXEC, 0);
        int r = fd < 0 ? dlx__fail_errno("descriptor of the ledger") : dlxd_ledger_open(ret, fd);
        if (r == 0)
            return from;
        dlxd_log(DLXD_LOG_ERROR, "cannot read %s, which a former daemon left: %s", from->name,
                 dlx__error_message());
    }
    return NULL;
}

static int fill_regions(struct dlxd_publisher_region *regions, const struct found *found, size_t n)
{
    int n_stored = 0;
    for (size_t i = 0; i < n; i++) {
        regions[i] = (struct dlxd_publisher_region){.id = found[i].name.number,
                                                    .ready_seq = found[i].name.ready_seq,
                                                    .fd = found[i].from->fd,
                                                    .not_stored = found[i].from->not_stored};
        n_stored += !found[i].from->not_stored;
    }
    return n_stored;
}

static int restore_count(struct dlxd_store_queue *queue, struct dlxd_user *whose, int n)
{
    return queue ? dlxd_store_queue_count(queue, whose, n) : 0;
}

/* Takes the groups, the only ones that are declared from now on. One that cannot be restored is
 * lost, and said to be. If the record has none, a former daemon has said so of what is here. */
static void restore_groups(struct dlxd_publisher *publisher, struct dlxd_store_queue *queue,
                           struct found *found, size_t n)
{
    uint32_t n_restored = 0;
    if (publisher->config.n_groups == 0)
        return;
    for (size_t i = 0; i < n && found[i].name.kind == DLXD_RECORD_IS_GROUP; i++) {
        struct dlxd_group *group;
        struct found *bell = NULL;
        for (size_t k = i + 1; k < n && !bell; k++)
            if (found[k].name.kind == DLXD_RECORD_IS_BELL &&
                found[k].name.number == found[i].name.number)
                bell = &found[k];
        int r = dlxd_group_restore(
            publisher,
            &(struct dlxd_group_former){.number = found[i].name.number,
                                        .name = found[i].name.group,
                                        .take_page_fd = found[i].from->fd,
                                        .take_bell_fd = bell ? bell->from->fd : -1},
            &group);
        if (r < 0) {
            dlxd_log(DLXD_LOG_ERROR, "%s: what group %s has not done is lost: %s",
                     publisher->topic_name, found[i].name.group, dlx__error_message());
            continue;
        }
        n_restored++;
        found[i].from->taken = true;
        group->page_kept = !found[i].from->not_stored;
        if (bell) {
            bell->from->taken = true;
            group->bell_kept = !bell->from->not_stored;
        }
        (void)restore_count(queue, publisher->user, group->page_kept + group->bell_kept);
    }
    publisher->config.n_groups = n_restored;
}

static int restore_find_user(struct dlxd_broker *broker, const struct dlxd_publisher_former *former,
                             struct dlxd_user **ret)
{
    struct dlxd_principal who = {.uid = former->uid};
    (void)snprintf(who.socket, sizeof who.socket, "%s", former->socket);
    return dlxd_users_get(&broker->users, &who, ret);
}

/* Returns false if the publisher cannot be restored; none of its descriptors is taken then. Counts
 * HIDDEN publishers. */
static bool restore_one(struct dlxd_broker *broker, struct dlxd_store_queue *queue,
                        const struct dlxd_ledger_entry *entry, uint32_t index, struct found *found,
                        size_t n, uint32_t *n_hidden)
{
    struct dlxd_publisher_former former;
    struct dlxd_publisher *publisher;
    struct dlxd_user *user = NULL;
    const struct found *pidfd =
        n > 0 && found[0].name.kind == DLXD_RECORD_IS_PIDFD ? &found[0] : NULL;
    size_t first = pidfd ? 1 : 0, end = first;
    while (end < n && found[end].name.kind == DLXD_RECORD_IS_REGION)
        end++;
    bool pidfd_is_stored = pidfd && !pidfd->from->not_stored;
    int n_stored = pidfd_is_stored;
    dlx_cleanup(dlx__freep) struct dlxd_publisher_region *regions =
        calloc(n - first + 1, sizeof *regions);
    int r = regions ? 0 : dlx__fail(DLX_E_NO_MEMORY, "out of memory for %zu regions", n);
    dlxd_record_read(entry, &former);
    if (r == 0)
        r = restore_find_user(broker, &former, &user);
    if (r == 0) {
        n_stored += fill_regions(regions, found + first, end - first);
        r = restore_count(queue, user, n_stored);
    }
    if (r == 0) {
        r = dlxd_publisher_restore(&publisher, broker, &former, regions, end - first);
        if (r < 0)
            (void)restore_count(queue, user, -n_stored);
    }
    dlxd_user_unref(user);
    if (r < 0) {
        dlxd_log(DLXD_LOG_ERROR, "%s: what %s (pid %u) retained is lost: %s", entry->topic,
                 entry->client_name, entry->pid, dlx__error_message());
        return false;
    }
    for (size_t i = 0; i < end; i++)
        found[i].from->taken = true;
    restore_groups(publisher, queue, found + end, n - end);
    publisher->ledger_index = queue ? index : 0;
    publisher->pidfd_kept = pidfd_is_stored;
    publisher->not_kept = !publisher->control->kept;
    *n_hidden += dlxd_retained_restore(publisher, pidfd ? pidfd->from->fd : -1, entry->expires_ns);
    return true;
}

struct place {
    uint64_t id;
    uint32_t index;
};

static int compare_places(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    return x->id == y->id ? 0 : x->id < y->id ? -1 : 1;
}

/* Returns the entries sorted by id. */
static int find_entries(const struct dlxd_ledger *ledger, struct place **ret, uint32_t *ret_n)
{
    struct dlxd_ledger_entry entry;
    uint32_t n = 0;
    struct place *places = calloc((size_t)ledger->n + 1, sizeof *places);
    if (!places)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a ledger of %u publishers", ledger->n);
    for (uint32_t i = 1; i <= ledger->n; i++)
        if (ledger->used[i] && dlxd_ledger_get(ledger, i, &entry))
            places[n++] = (struct place){entry.id, i};
    qsort(places, n, sizeof *places, compare_places);
    *ret = places;
    *ret_n = n;
    return 0;
}

void dlxd_restore_publishers(struct dlxd_broker *broker, struct dlxd_manager_fds *manager_fds,
                             struct dlxd_ledger *ledger, struct dlxd_store_queue *queue)
{
    struct found_list found = {.n = 0};
    dlx_cleanup(dlx__freep) struct place *places = NULL;
    uint32_t n_places = 0, n_publishers = 0, n_hidden = 0;
    size_t first = 0;
    int r = find_entries(ledger, &places, &n_places);
    for (uint32_t i = 1; r < 0 && i <= ledger->n; i++)
        dlxd_ledger_remove(ledger, i);
    if (r < 0 || find_all(manager_fds, &found) < 0)
        dlxd_log(DLXD_LOG_ERROR, "%s", dlx__error_message());
    for (uint32_t i = 0; i < n_places; i++) {
        struct dlxd_ledger_entry entry;
        uint64_t id = places[i].id;
        while (first < found.n && found.items[first].name.publisher < id)
            first++;
        size_t n = 0;
        while (first + n < found.n && found.items[first + n].name.publisher == id)
            n++;
        bool is_back =
            dlxd_ledger_get(ledger, places[i].index, &entry) &&
            restore_one(broker, queue, &entry, places[i].index, found.items + first, n, &n_hidden);
        n_publishers += is_back;
        if (!is_back)
            dlxd_ledger_remove(ledger, places[i].index);
        first += n;
    }
    free(found.items);
    if (n_publishers > 0)
        dlxd_log(
            DLXD_LOG_NOTICE,
            "back from the former daemon: what %u publishers retain; nobody sees what %u of them "
            "retain until they make a call or end",
            n_publishers, n_hidden);
}

void dlxd_restore_handed_over(struct dlxd_broker *broker, struct dlxd_manager_fds *manager_fds)
{
    struct dlxd_ledger ledger;
    if (!dlxd_restore_ledger(manager_fds, &ledger))
        return;
    dlxd_restore_publishers(broker, manager_fds, &ledger, NULL);
    dlxd_ledger_deinit(&ledger);
    dlxd_gpu_keeper_claim(broker->gpu);
}

void dlxd_restore_remove_rest(const struct dlxd_manager_fds *manager_fds, struct dlxd_user *own,
                              struct dlxd_store_queue *queue)
{
    uint32_t n_regions = 0;
    for (size_t i = 0; i < manager_fds->n; i++) {
        const struct dlxd_manager_fd *from = &manager_fds->fds[i];
        if (from->taken || from->not_stored || !begins_with(from->name, DLXD_RECORD_OURS))
            continue;
        n_regions += from->fd >= 0 && begins_with(from->name, DLXD_RECORD_REGION);
        if (dlxd_store_queue_count(queue, own, 1) == 0)
            (void)dlxd_store_queue_drop(queue, own, from->name);
    }
    if (n_regions > 0)
        dlxd_log(DLXD_LOG_NOTICE,
                 "%u regions that former daemons retained are given up: no publisher that could be "
                 "restored has them",
                 n_regions);
}
