/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/drain.h"
#include "common/error.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/pending_join.h"
#include "daemon/objects/publisher.h"
#include "daemon/base/worker.h"
#include "daemon/memory/report.h"
#include "daemon/users/share.h"
#include <string.h>

/* The part of the time that scans may take (1/16). */
#define LOOK_PART 16U
/* The duration of a scan of the links of all users. */
#define LOOK_ALL_NS UINT64_C(1000000)

/* ---- lists --------------------------------------------------------------------------------- */

static void draining_enlist(struct dlxd_drain_node *node, struct dlxd_drains *drains,
                            struct dlxd_drain *drain)
{
    node->drain = drain;
    node->drains = drains;
    dlxd_list_push_back(&drains->list, &node->node);
    drains->n++;
}

static void delist(struct dlxd_drain_node *node)
{
    if (node->drains->newest == &node->node)
        node->drains->newest = NULL;
    dlxd_list_remove(&node->node);
    node->drains->n--;
}

static struct dlxd_drain *drain_of(struct dlxd_list *node)
{
    return dlxd_container_of(node, struct dlxd_drain_node, node)->drain;
}

struct dlxd_drain *dlxd_drain_new(uint64_t link, struct dlxd_workers *workers, uint32_t max_held)
{
    struct dlxd_drain *drain = calloc(1, sizeof *drain);
    if (drain) {
        drain->link = link;
        drain->workers = workers;
        drain->page_fd = -1;
        drain->max_held = max_held;
        dlxd_list_init(&drain->cut);
    }
    return drain;
}

struct dlxd_drain *dlxd_drain_free(struct dlxd_drain *drain)
{
    if (drain) {
        (void)dlxd_workers_close(drain->workers, drain->links_charge.user, drain->page_fd);
        (void)dlxd_share_put(drain->share);
        dlxd_charge_deinit(&drain->links_charge);
        dlxd_charge_deinit(&drain->bytes_charge);
        free(drain);
    }
    return NULL;
}

/* ---- draining links ------------------------------------------------------------------------ */

bool dlxd_drain_holds(const struct dlxd_drain *drain)
{
    return dlxd_report_n_held(drain->page_fd, drain->max_held) > 0 &&
           !dlxd_process_is_dead(drain->holder->pidfd);
}

/* After the publisher has left its client, only messages that are held need its memory. */
static bool drain_is_over(const struct dlxd_drain *drain)
{
    if (drain->publisher->client)
        return dlxd_reader_has_left(drain->page_fd, drain->max_held, drain->holder->pidfd);
    return !dlxd_drain_holds(drain);
}

/* The link ends. What its subscriber held when it died goes back to the publisher. */
static void count_reclaimed(const struct dlxd_drain *drain)
{
    if (dlxd_process_is_dead(drain->holder->pidfd))
        drain->publisher->broker->n_reclaimed +=
            dlxd_report_n_held(drain->page_fd, drain->max_held);
}

/* Gives back what it has of the publisher's client. */
static void draining_leave_client(struct dlxd_drain *drain)
{
    if (!drain->of_client.drains)
        return;
    dlxd_pending_joins_forget_cut(drain);
    delist(&drain->of_client);
    drain->of_client.drains = NULL;
    drain->publisher->client->n_links--;
    drain->share = dlxd_share_put(drain->share);
}

static void draining_end(struct dlxd_drain *drain)
{
    struct dlxd_holder *holder = drain->holder;
    struct dlxd_publisher *publisher = drain->publisher;
    struct dlxd_user *user = drain->links_charge.user;
    count_reclaimed(drain);
    draining_leave_client(drain);
    dlxd_idmap_remove(&publisher->broker->registry.drains, &drain->by_link);
    delist(&drain->of_publisher);
    delist(&drain->of_holder);
    delist(&drain->of_user);
    if (user->drains.n == 0) /* the drain may be all that the user has */
        dlxd_task_stop(&user->end_drains);
    if (holder->client)
        holder->client->n_links -= drain->n_links;
    dlxd_holder_release(holder);
    dlxd_drain_free(drain);
    dlxd_publisher_link_left(publisher);
}

void dlxd_drains_look(struct dlxd_drains *drains)
{
    uint64_t start = dlx__now_ns();
    uint32_t weight = 0;
    if (drains->n == 0 || start < drains->look_ns)
        return;
    for (size_t i = drains->n; i > 0 && weight < DLXD_DRAINS_LOOK_MOST; i--) {
        struct dlxd_list *first = drains->list.next;
        struct dlxd_drain *drain = drain_of(first);
        weight += dlxd_drain_weight(drain->max_held);
        if (drain_is_over(drain)) {
            draining_end(drain);
        } else {
            drain->is_due = false;
            dlxd_list_remove(first);
            dlxd_list_push_back(&drains->list, first);
        }
    }
    uint64_t now = dlx__now_ns();
    drains->look_at = DLX_MAX(2 * drains->n, DLXD_DRAINS_LOOK_LEAST);
    drains->look_ns = now + LOOK_PART * (now - start);
}

/* By link: lists are in this order. Links mostly end in it, too: after the last one, or after the
 * one that ended before this. */
static void enlist_by_link(struct dlxd_drain *drain, struct dlxd_drains *drains)
{
    struct dlxd_list *after = drains->list.prev;
    if (drains->newest && after != &drains->list && drain_of(after)->link > drain->link)
        after = drains->newest;
    while (after->next != &drains->list && drain_of(after->next)->link < drain->link)
        after = after->next;
    while (after != &drains->list && drain_of(after)->link > drain->link)
        after = after->prev;
    drains->newest = &drain->of_publisher.node;
    draining_enlist(&drain->of_publisher, drains, drain);
    dlxd_list_remove(&drain->of_publisher.node);
    dlxd_list_push_front(after, &drain->of_publisher.node);
}

bool dlxd_drain_begin(struct dlxd_drain *drain, struct dlxd_publisher *publisher,
                      struct dlxd_holder *holder)
{
    struct dlxd_drains *of_user = &drain->links_charge.user->drains;
    drain->publisher = publisher;
    drain->holder = holder;
    if (drain_is_over(drain)) {
        count_reclaimed(drain);
        return false;
    }
    dlxd_idmap_add(&publisher->broker->registry.drains, &drain->by_link, drain->link);
    enlist_by_link(drain, &publisher->drains); /* first, so that the publisher stays */
    if (of_user->n >= of_user->look_at)
        dlxd_drains_look(of_user);
    draining_enlist(&drain->of_holder, &holder->drains, drain);
    if (publisher->client)
        draining_enlist(&drain->of_client, &publisher->client->drains, drain);
    draining_enlist(&drain->of_user, of_user, drain);
    return true;
}

/* Those that are due are first in the list. */
static bool has_due(const struct dlxd_list *list)
{
    return !dlxd_list_empty(list) && drain_of(list->next)->is_due;
}

/* Checks those that are due. The last one takes its user along, unless something else has it: then
 * nothing may be left to do. */
static bool end_some(struct dlxd_task *task)
{
    struct dlxd_user *user = dlxd_container_of(task, struct dlxd_user, end_drains);
    struct dlxd_list *list = &user->drains.list;
    while (has_due(list)) {
        struct dlxd_list *first = list->next;
        struct dlxd_drain *drain = drain_of(first);
        drain->is_due = false;
        if (drain_is_over(drain)) {
            draining_end(drain);
        } else {
            dlxd_list_remove(first);
            dlxd_list_push_back(list, first);
        }
        if (dlxd_slice_is_over(user->users))
            break;
    }
    return has_due(list);
}

/* Checking and ending one takes about 14 us, so it is done in the time of the user who is charged
 * for it. */
void dlxd_drains_publisher_left(struct dlxd_publisher *publisher)
{
    dlx_for_each (it, &publisher->drains.list) {
        struct dlxd_drain *drain = drain_of(it);
        struct dlxd_user *user = drain->links_charge.user;
        draining_leave_client(drain);
        drain->is_due = true;
        dlxd_list_remove(&drain->of_user.node);
        dlxd_list_push_front(&user->drains.list, &drain->of_user.node);
        if (!dlxd_list_linked(&user->end_drains.node))
            dlxd_task_init(&user->end_drains, end_some);
        dlxd_task_start(&user->end_drains, user);
    }
}

void dlxd_drains_clear(struct dlxd_broker *broker)
{
    dlx_for_each (it, &broker->users.users) {
        struct dlxd_user *user = dlxd_user_ref(dlxd_container_of(it, struct dlxd_user, node));
        while (user->drains.n > 0)
            draining_end(drain_of(user->drains.list.next));
        dlxd_user_unref(user);
    }
}

struct dlxd_drain *dlxd_drain_find(const struct dlxd_broker *broker, uint64_t link)
{
    struct dlxd_idmap_node *node = dlxd_idmap_find(&broker->registry.drains, link);
    return node ? dlxd_container_of(node, struct dlxd_drain, by_link) : NULL;
}

/* ---- all ----------------------------------------------------------------------------------- */

static struct dlxd_user *user_of(struct dlxd_list *node)
{
    return dlxd_container_of(node, struct dlxd_user, node);
}

void dlxd_drains_look_all(struct dlxd_broker *broker)
{
    struct dlxd_list *users = &broker->users.users, *last = users->prev, *first;
    uint64_t until = dlx__now_ns() + LOOK_ALL_NS;
    for (bool more = !dlxd_list_empty(users); more && dlx__now_ns() < until;) {
        first = users->next;
        more = first != last;
        dlxd_list_remove(first); /* the others are first the next time */
        dlxd_list_push_back(users, first);
        /* The drains may be all that the user has. */
        struct dlxd_user *user = dlxd_user_ref(user_of(first));
        dlxd_drains_look(&user->drains);
        dlxd_user_unref(user);
    }
}

size_t dlxd_drains_n_all(const struct dlxd_broker *broker)
{
    size_t n = 0;
    dlx_for_each (it, &broker->users.users)
        n += user_of(it)->drains.n;
    return n;
}
