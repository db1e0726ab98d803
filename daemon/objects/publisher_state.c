/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/publisher_state.h"
#include "common/error.h"
#include "common/memory.h"
#include "common/syscalls.h"
#include "daemon/base/log.h"
#include "daemon/base/watch.h"
#include "daemon/memory/report.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/drain.h"
#include "daemon/objects/former.h"
#include "daemon/objects/group.h"
#include "daemon/objects/link.h"
#include "daemon/objects/observer.h"
#include "daemon/objects/publisher.h"
#include "daemon/objects/registry.h"
#include "daemon/objects/store_hooks.h"
#include "daemon/users/principal.h"
#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

/* The duration of a look at all that may change without a packet. */
#define LOOK_ALL_NS UINT64_C(1000000)

/* ---- what its links are told --------------------------------------------------------------- */

/* A link of a GONE publisher fails if its subscriber does not know the publisher yet. */
static void tell_link(struct dlxd_link *link)
{
    if (link->publisher->state != DLXD_PUBLISHER_GONE || link->state >= DLXD_LINK_ADDED) {
        dlxd_link_schedule(link);
        return;
    }
    dlxd_link_fail_gone(link);
    dlxd_link_condense(link);
}

bool dlxd_publisher_tell_step(struct dlxd_publisher *publisher)
{
    while (publisher->next_told != &publisher->links) {
        struct dlxd_link *link =
            dlxd_container_of(publisher->next_told, struct dlxd_link, by_publisher);
        publisher->next_told = publisher->next_told->next;
        tell_link(link);
        if (publisher->next_told != &publisher->links &&
            dlxd_slice_is_over(&publisher->broker->users))
            return true;
    }
    publisher->next_told = publisher->links.next;
    if (--publisher->passes > 0)
        return true;
    publisher->n_links--;
    dlxd_publisher_link_left(publisher);
    return false;
}

void dlxd_publisher_tell_links(struct dlxd_publisher *publisher)
{
    bool more = true;
    if (publisher->passes == 0) {
        publisher->n_links++;
        publisher->passes = 1;
        publisher->next_told = publisher->links.next;
        more = dlxd_publisher_tell_step(publisher);
    } else {
        publisher->passes = 2;
    }
    if (more || publisher->offering.active)
        dlxd_task_start(&publisher->task, publisher->user);
}

/* ---- announcement -------------------------------------------------------------------------- */

void dlxd_publisher_announce(struct dlxd_publisher *publisher, bool from_start)
{
    struct dlxd_registry *registry = &publisher->broker->registry;
    publisher->announced_late = ++registry->last_announcement;
    if (publisher->announced == 0)
        publisher->announced = publisher->announced_late;
    publisher->offering = (struct dlxd_offering){.active = true,
                                                 .from_start = from_start,
                                                 .next = publisher->topic->subscriptions.next,
                                                 .n_left = registry->n_left};
    dlxd_change_publisher(publisher);
}

/* It was HIDDEN or SHOWN: from now on all subscriptions find it. */
static void reveal(struct dlxd_publisher *publisher)
{
    dlxd_publisher_announce(publisher, false);
    dlxd_task_start(&publisher->task, publisher->user);
}

/* ---- what it retains ----------------------------------------------------------------------- */

/* The number of its messages, from a counter that its owner writes; a false value harms only the
 * owner. */
static uint64_t n_published(const struct dlxd_publisher *publisher)
{
    struct dlxd_control_report report;
    uint64_t before = publisher->config.after_seq;
    dlxd_report_control(publisher->control->fd, &report);
    return report.head > before ? report.head - before : 0;
}

/* Has it nothing for the daemon to keep? */
static bool leaves_nothing(struct dlxd_publisher *publisher)
{
    if (publisher->config.latched)
        return true;
    bool retains = publisher->config.retain > 0 && n_published(publisher) > 0;
    return !retains && !dlxd_groups_are_undone(publisher);
}

/* Has it closed its control block, whether or not a daemon was told? */
static bool has_closed(const struct dlxd_publisher *publisher)
{
    return dlxd_report_has_ended(publisher->control->fd, publisher->config.n_entries);
}

/* Does it leave messages for the daemon to keep? */
static bool is_wanted(struct dlxd_publisher *publisher)
{
    return publisher->state == DLXD_PUBLISHER_OPEN && !leaves_nothing(publisher);
}

/* Its end, or that of its last message, may come without a packet to this daemon. */
static bool is_looked_at(const struct dlxd_publisher *publisher)
{
    return dlxd_publisher_is_former(publisher) ||
           (publisher->state == DLXD_PUBLISHER_RETAINED && publisher->config.n_groups > 0);
}

/* Puts it into the list of publishers that stay, or by time into the list of those that expire. */
static void retained_enlist(struct dlxd_publisher *publisher, uint64_t for_ns)
{
    struct dlxd_broker *broker = publisher->broker;
    dlxd_list_remove(&publisher->by_client);
    dlxd_list_remove(&publisher->by_look);
    if (is_looked_at(publisher))
        dlxd_list_push_back(&broker->looked, &publisher->by_look);
    publisher->expires_ns = 0;
    if (for_ns == 0) {
        dlxd_list_push_back(&broker->retained, &publisher->by_client);
        return;
    }
    uint64_t now = dlx__now_ns();
    publisher->expires_ns = for_ns < UINT64_MAX - now ? now + for_ns : UINT64_MAX;
    struct dlxd_list *after = broker->expiring.prev;
    while (after != &broker->expiring &&
           dlxd_container_of(after, struct dlxd_publisher, by_client)->expires_ns >
               publisher->expires_ns)
        after = after->prev;
    dlxd_list_push_front(after, &publisher->by_client);
}

/* Its object's descriptor, which was the link socket while it had a client. Accepts -1. */
static void take_pidfd_of(struct dlxd_publisher *publisher, int take_fd)
{
    publisher->dying_pidfd = take_fd;
    if (take_fd >= 0)
        dlxd_charge_add_descriptor(&publisher->object_charge);
}

static void close_pidfd(struct dlxd_publisher *publisher)
{
    publisher->death = dlxd_watch_free(publisher->death);
    publisher->dying_pidfd = dlx__close(publisher->dying_pidfd);
    dlxd_charge_close_descriptors(&publisher->object_charge);
}

/* No process can write its memory any more. */
static void settle(struct dlxd_publisher *publisher)
{
    close_pidfd(publisher);
    publisher->state = DLXD_PUBLISHER_RETAINED;
    retained_enlist(publisher, publisher->config.retain_for_ns);
    dlxd_store_hooks_update(publisher);
    dlxd_log_client(dlxd_principal_number(publisher->principal), DLXD_LOG_INFO,
                    "%s: retaining messages of %s (pid %d, uid %u)", publisher->topic_name,
                    publisher->client_name, (int)publisher->pid,
                    (unsigned)publisher->principal->uid);
    (void)dlxd_retained_succeed(publisher);
}

/* Its process is dead, or it has closed its control block. */
static void end_writing(struct dlxd_publisher *publisher)
{
    bool was_former = publisher->state != DLXD_PUBLISHER_DYING;
    if (leaves_nothing(publisher)) {
        dlxd_publisher_vanish(publisher);
    } else {
        settle(publisher);
        dlxd_publisher_tell_links(publisher);
        if (was_former)
            reveal(publisher);
    }
}

static void retained_on_death(void *data, int events)
{
    (void)events;
    end_writing(data);
}

static bool is_dead(int pidfd)
{
    return pidfd < 0 || dlxd_process_is_dead(pidfd);
}

/* Opens a separate pidfd of the same process. The pid is still valid if the old pidfd shows the
 * process alive afterwards. */
static bool reopen_pidfd(struct dlxd_publisher *publisher)
{
    dlx_cleanup(dlx__closep) int fd = (int)syscall(SYS_pidfd_open, publisher->pid, 0);
    if (fd < 0 || is_dead(publisher->dying_pidfd))
        return false;
    dlx__close(publisher->dying_pidfd);
    publisher->dying_pidfd = dlx__steal_fd(&fd);
    return true;
}

static int try_to_watch(struct dlxd_publisher *publisher)
{
    return dlxd_watch_new(&publisher->death, publisher->broker->watches, publisher->dying_pidfd,
                          DLXD_READABLE, retained_on_death, publisher);
}

/* The publishers of a client share one pidfd from the previous daemon, and Linux adds the same open
 * file at most 500 times to an epoll within another one (path_limits of fs/eventpoll.c). */
static int watch_death(struct dlxd_publisher *publisher)
{
    int r = try_to_watch(publisher);
    return r < 0 && reopen_pidfd(publisher) ? try_to_watch(publisher) : r;
}

/* Makes it RETAINED. With a pidfd (-1: none), it is first DYING, and no subscription joins, until
 * that process is dead, because the process may be writing. If it is not dead soon, the publisher
 * vanishes. */
static void retain(struct dlxd_publisher *publisher, int pidfd)
{
    if (is_dead(pidfd)) {
        settle(publisher);
        return;
    }
    retained_enlist(publisher, DLXD_DYING_NS);
    take_pidfd_of(publisher, fcntl(pidfd, F_DUPFD_CLOEXEC, 0));
    if (publisher->dying_pidfd >= 0 && watch_death(publisher) == 0)
        publisher->state = DLXD_PUBLISHER_DYING;
    else
        retained_enlist(publisher, 1); /* its death could not be seen */
}

/* ---- what is not kept any more ------------------------------------------------------------- */

static void keep_rest(struct dlxd_publisher *publisher)
{
    if (leaves_nothing(publisher)) {
        dlxd_publisher_vanish(publisher);
        return;
    }
    dlxd_store_hooks_update(publisher);
    dlxd_change_publisher(publisher);
}

/* What it retains has been replaced or dropped. What its groups have not done stays. */
static void forget_retained(struct dlxd_publisher *publisher)
{
    publisher->config.retain = 0;
    keep_rest(publisher);
}

/* The converse. */
static void forget_groups(struct dlxd_publisher *publisher)
{
    dlxd_groups_forget(publisher);
    keep_rest(publisher);
}

void dlxd_publisher_look_at_groups(struct dlxd_publisher *publisher)
{
    publisher->looks_at_groups = false;
    if (publisher->state == DLXD_PUBLISHER_RETAINED && !dlxd_groups_are_undone(publisher))
        forget_groups(publisher);
}

static void look_at(struct dlxd_publisher *publisher)
{
    if (!is_looked_at(publisher))
        dlxd_list_remove(&publisher->by_look);
    else if (!dlxd_publisher_is_former(publisher))
        dlxd_publisher_look_at_groups(publisher);
    else if (has_closed(publisher))
        end_writing(publisher);
}

void dlxd_retained_look_all(struct dlxd_broker *broker)
{
    struct dlxd_list *list = &broker->looked, *last = list->prev;
    uint64_t until = dlx__now_ns() + LOOK_ALL_NS;
    for (bool more = true; more && !dlxd_list_empty(list) && dlx__now_ns() < until;) {
        struct dlxd_list *first = list->next;
        more = first != last;
        dlxd_list_remove(first); /* the others are first the next time */
        dlxd_list_push_back(list, first);
        /* This may free it, and others, `last` among them. */
        look_at(dlxd_container_of(first, struct dlxd_publisher, by_look));
    }
}

/* ---- successors ---------------------------------------------------------------------------- */

static bool may_drop(const struct dlxd_principal *who, const struct dlxd_publisher *publisher)
{
    return dlxd_principal_is_same_user(who, publisher->principal) ||
           dlxd_policy_may(&publisher->broker->policy, who, DLXD_MAY_DROP, publisher->topic_name);
}

/* Is the successor the same publisher, announced again? */
static bool resumes(const struct dlxd_publisher *successor, const struct dlxd_publisher *publisher)
{
    return successor->config.resumes == dlxd_publisher_origin(publisher);
}

/* It is announced again: no new subscription joins it, and its groups go on with what it has
 * brought along. */
static void give_way(struct dlxd_publisher *publisher)
{
    publisher->gave_way = true;
    if (publisher->state == DLXD_PUBLISHER_SHOWN) {
        publisher->announced = 0;
        dlxd_change_publisher(publisher);
    }
    if (publisher->config.n_groups > 0)
        forget_groups(publisher);
}

static void hide_predecessors(struct dlxd_publisher *successor)
{
    dlx_for_each (it, &successor->topic->publishers) {
        struct dlxd_publisher *publisher = dlxd_container_of(it, struct dlxd_publisher, by_topic);
        if (dlxd_publisher_is_former(publisher) && publisher != successor &&
            resumes(successor, publisher) && may_drop(successor->principal, publisher))
            give_way(publisher);
    }
}

/* Is it alive, so that it replaces its messages itself when it announces itself again? */
static bool may_return(const struct dlxd_publisher *publisher)
{
    return dlxd_publisher_is_former(publisher) && !is_dead(publisher->dying_pidfd);
}

/* How many messages of a successor replace those of a publisher: as many as the successor retains,
 * or all existing ones if it is the same publisher, announced again. */
static uint64_t n_needed(const struct dlxd_publisher *publisher,
                         const struct dlxd_publisher *successor)
{
    uint64_t n = successor->config.retain;
    return resumes(successor, publisher) ? DLX_MIN(n, n_published(publisher)) : n;
}

static bool is_succeeded(const struct dlxd_publisher *publisher,
                         const struct dlxd_publisher *successor, uint64_t n)
{
    return dlxd_publisher_leaves(publisher) && publisher->config.retain > 0 &&
           (resumes(successor, publisher) || !may_return(publisher)) &&
           n >= n_needed(publisher, successor) && may_drop(successor->principal, publisher);
}

bool dlxd_retained_succeed_step(struct dlxd_publisher *successor)
{
    struct dlxd_list *it = dlxd_publisher_next_of(&successor->broker->registry, successor->topic,
                                                  successor->succeeds_after);
    uint64_t n = n_published(successor);
    for (struct dlxd_list *next; it != &successor->by_topic; it = next) {
        struct dlxd_publisher *publisher = dlxd_container_of(it, struct dlxd_publisher, by_topic);
        next = it->next;
        successor->succeeds_after = dlxd_publisher_id(publisher);
        if (is_succeeded(publisher, successor, n))
            forget_retained(publisher);
        if (dlxd_slice_is_over(&successor->broker->users))
            return true;
    }
    successor->succeeds = false;
    return false;
}

bool dlxd_retained_succeed(struct dlxd_publisher *successor)
{
    if (successor->config.retain == 0 || successor->state == DLXD_PUBLISHER_NEW ||
        n_published(successor) == 0)
        return false;
    successor->succeeds_after = 0;
    successor->succeeds = true;
    if (!dlxd_retained_succeed_step(successor))
        return false;
    dlxd_task_start(&successor->task, successor->user);
    return true;
}

/* May new subscriptions join it although it may write? Its library must check for their locks, and
 * locking must work. */
static bool may_show(const struct dlxd_publisher *publisher)
{
    struct dlxd_control_report report;
    dlx_cleanup(dlx__closep) int fd = -1;
    dlxd_report_control(publisher->control->fd, &report);
    if (publisher->config.retain == 0)
        return false;
    return report.heeds_locks && n_published(publisher) > 0 &&
           dlx__region_reopen_locked(publisher->control->fd, &fd) == 0;
}

bool dlxd_retained_restore(struct dlxd_publisher *publisher, int take_pidfd, uint64_t expires_ns)
{
    uint64_t now = dlx__now_ns();
    dlx_cleanup(dlx__closep) int pidfd = take_pidfd;
    bool has_ended = is_dead(pidfd) || has_closed(publisher);
    if (has_ended && leaves_nothing(publisher)) {
        dlxd_publisher_vanish(publisher);
        return false;
    }
    if (has_ended) {
        bool was_there = pidfd >= 0 && publisher->config.retain_for_ns > 0;
        if (expires_ns > 0)
            retained_enlist(publisher, expires_ns > now ? expires_ns - now : 1);
        else
            retained_enlist(publisher, was_there ? publisher->config.retain_for_ns : 0);
        dlxd_store_hooks_update(publisher);
        (void)dlxd_retained_succeed(publisher);
        return false;
    }
    dlx__region_unlock(publisher->control->fd); /* subscribers may have left since */
    bool is_shown = may_show(publisher);
    publisher->state = is_shown ? DLXD_PUBLISHER_SHOWN : DLXD_PUBLISHER_HIDDEN;
    publisher->announced = is_shown ? publisher->announced : 0;
    publisher->announced_late = UINT64_MAX;
    hide_predecessors(publisher);
    take_pidfd_of(publisher, dlx__steal_fd(&pidfd));
    retained_enlist(publisher, 0);
    if (watch_death(publisher) < 0)
        retained_enlist(publisher, 1); /* its death could not be seen */
    (void)dlxd_retained_succeed(publisher);
    return !is_shown;
}

static bool has_retained(const struct dlxd_publisher *publisher)
{
    return publisher->config.retain > 0;
}

static bool has_groups(const struct dlxd_publisher *publisher)
{
    return publisher->config.n_groups > 0;
}

/* What a request drops of publishers that have left, in words for errors. */
struct droppable {
    bool (*is_there)(const struct dlxd_publisher *publisher);
    void (*forget)(struct dlxd_publisher *publisher);
    const char *what;    /* "what is retained on" a topic "is of" somebody */
    const char *nothing; /* "is retained on" it */
    const char *never;   /* what a publisher does that leaves nothing */
};

static const struct droppable retained = {has_retained, forget_retained, "what is retained",
                                          "nothing is retained", "retains nothing"};
static const struct droppable queues = {has_groups, forget_groups, "what groups have not done",
                                        "nothing that groups have not done is kept",
                                        "declares no groups"};

static int drop_left(const struct droppable *what, const struct dlxd_client *client,
                     const char *name, uint32_t *n)
{
    struct dlxd_topic *topic = dlxd_registry_find(&client->broker->registry, name);
    bool may_drop_all =
        dlxd_policy_may(&client->broker->policy, client->principal, DLXD_MAY_DROP, name);
    const struct dlxd_publisher *other = NULL, *here = NULL;
    /* The topic is freed with the last of them, unless there is another publisher. */
    struct dlxd_list *end = topic ? &topic->publishers : NULL;
    for (struct dlxd_list *it = topic ? end->next : NULL, *next; it != end; it = next) {
        struct dlxd_publisher *publisher = dlxd_container_of(it, struct dlxd_publisher, by_topic);
        next = it->next;
        if (!dlxd_publisher_leaves(publisher)) {
            here = publisher;
        } else if (!what->is_there(publisher)) {
            continue;
        } else if (!may_drop_all &&
                   !dlxd_principal_is_same_user(client->principal, publisher->principal)) {
            other = publisher;
        } else {
            what->forget(publisher);
            ++*n;
            if (dlxd_slice_is_over(&client->broker->users))
                return 1;
        }
    }
    if (*n > 0)
        return 0;
    if (other)
        return dlx__fail(DLX_E_ACCESS,
                         "%s on %s is of uid %u, not %u: that user drops it, or whom a rule allows "
                         "to drop",
                         what->what, name, (unsigned)other->principal->uid,
                         (unsigned)client->principal->uid);
    if (here && what->is_there(here))
        return dlx__fail(DLX_E_NOT_FOUND,
                         "%s on %s is of publisher %s (pid %d), which is still there: end it first",
                         what->what, name, here->client_name, (int)here->pid);
    if (here)
        return dlx__fail(DLX_E_NOT_FOUND, "%s on %s: its publisher %s (pid %d) %s", what->nothing,
                         name, here->client_name, (int)here->pid, what->never);
    return dlx__fail(DLX_E_NOT_FOUND, "%s on %s", what->nothing, name);
}

int dlxd_retained_drop(const struct dlxd_client *client, const char *topic, uint32_t *n)
{
    return drop_left(&retained, client, topic, n);
}

int dlxd_queues_drop(const struct dlxd_client *client, const char *topic, uint32_t *n)
{
    return drop_left(&queues, client, topic, n);
}

static struct dlxd_publisher *first_of(const struct dlxd_list *list)
{
    return dlxd_list_empty(list) ? NULL
                                 : dlxd_container_of(list->next, struct dlxd_publisher, by_client);
}

uint64_t dlxd_retained_next_ns(const struct dlxd_broker *broker)
{
    const struct dlxd_publisher *first = first_of(&broker->expiring);
    return first ? first->expires_ns : UINT64_MAX;
}

void dlxd_retained_expire(struct dlxd_broker *broker, uint64_t now)
{
    if (dlxd_retained_next_ns(broker) > now)
        return;
    struct dlxd_publisher *publisher = first_of(&broker->expiring);
    uint64_t n_undone = dlxd_groups_n_undone(publisher);
    dlxd_log_client(dlxd_principal_number(publisher->principal), DLXD_LOG_INFO,
                    "%s: dropping messages of %s (pid %d, uid %u), whose time (retain_for) is "
                    "over; groups have not done %" PRIu64 " of them",
                    publisher->topic_name, publisher->client_name, (int)publisher->pid,
                    (unsigned)publisher->principal->uid, n_undone);
    dlxd_publisher_vanish(publisher);
}

void dlxd_retained_clear(struct dlxd_broker *broker)
{
    struct dlxd_publisher *publisher;
    while ((publisher = first_of(&broker->expiring)) || (publisher = first_of(&broker->retained)))
        dlxd_publisher_vanish(publisher);
    dlxd_drains_clear(broker);
    dlxd_former_clear(broker);
}

/* ---- the end ------------------------------------------------------------------------------- */

static void leave_client(struct dlxd_publisher *publisher)
{
    dlxd_drains_publisher_left(publisher);
    dlxd_publisher_leave_client(publisher);
}

/* Frees what was kept for it. */
static void leave_retained(struct dlxd_publisher *publisher)
{
    close_pidfd(publisher);
    dlxd_list_remove(&publisher->by_client);
    dlxd_list_remove(&publisher->by_look);
}

/* Its control block may be closed from now on. */
static void note_last_messages(struct dlxd_publisher *publisher)
{
    struct dlxd_control_report report;
    dlxd_report_control(publisher->control->fd, &report);
    publisher->gone_head = report.head;
    publisher->gone_oldest = report.oldest;
}

void dlxd_publisher_vanish(struct dlxd_publisher *publisher)
{
    struct dlxd_registry *registry = &publisher->broker->registry;
    assert(publisher->state != DLXD_PUBLISHER_GONE);
    dlxd_store_hooks_forget(publisher);
    publisher->state = DLXD_PUBLISHER_GONE;
    if (publisher->client)
        leave_client(publisher);
    else
        leave_retained(publisher);
    dlxd_list_remove(&publisher->by_topic);
    dlxd_registry_put(registry, publisher->topic);
    publisher->topic = NULL;
    dlxd_idmap_remove(&registry->publishers, &publisher->by_id);
    dlxd_change_publisher(publisher);
    dlxd_idmap_add(&registry->gone_publishers, &publisher->by_id, dlxd_publisher_id(publisher));
    dlxd_list_push_back(&registry->gone, &publisher->by_topic);
    publisher->gone = ++registry->last_gone;
    dlxd_arena_forget(publisher->control);
    for (size_t i = 0; i < publisher->ready.n; i++)
        dlxd_arena_forget(publisher->ready.items[i]);
    publisher->n_undelivered = 1;
    dlx_for_each (it, &publisher->links)
        publisher->n_undelivered +=
            !dlxd_container_of(it, struct dlxd_link, by_publisher)->gone_sent;
    note_last_messages(publisher);
    dlxd_groups_publisher_gone(publisher);
    publisher->n_links++; /* keeps the publisher alive here */
    dlxd_publisher_tell_links(publisher);
    publisher->n_links--;
    dlxd_publisher_delivered(publisher);
    dlxd_publisher_link_left(publisher);
}

static bool publisher_end(struct dlxd_publisher *publisher, int pidfd)
{
    if (!is_wanted(publisher)) {
        dlxd_publisher_vanish(publisher);
        return false;
    }
    leave_client(publisher);
    publisher->state = DLXD_PUBLISHER_RETAINED;
    dlxd_change_publisher(publisher);
    retain(publisher, pidfd);
    dlxd_publisher_tell_links(publisher);
    return true;
}

bool dlxd_publisher_end(struct dlxd_publisher *publisher)
{
    return publisher && publisher_end(publisher, -1);
}

void dlxd_publisher_die(struct dlxd_publisher *publisher, int pidfd)
{
    (void)publisher_end(publisher, pidfd);
}

/* ---- regions that become ready, and their end ---------------------------------------------- */

/* The client waits for the reply, so there is only one proof at a time. */
static int begin_proof(struct dlxd_publisher *publisher, struct dlxd_arena *arena,
                       dlxd_proof_fn *fn)
{
    int r = dlxd_proof_begin(&arena->proof, arena->workers, publisher->broker->memory,
                             arena->charge.user, arena->fd, arena->size, fn, publisher);
    if (r < 0)
        return r;
    arena->fd = -1;
    publisher->proving = arena;
    return 0;
}

static struct dlxd_arena *end_proof(struct dlxd_publisher *publisher, int take_fd)
{
    struct dlxd_arena *arena = publisher->proving;
    publisher->proving = NULL;
    arena->proof = NULL;
    arena->fd = take_fd;
    return arena;
}

int dlxd_publisher_prove(struct dlxd_publisher *publisher, dlxd_proof_fn *fn)
{
    if (publisher->state != DLXD_PUBLISHER_NEW)
        return dlx__fail(DLX_E_IN_USE, "publisher %" PRIu64 " of %s was made ready before",
                         dlxd_publisher_id(publisher), publisher->topic_name);
    int r = begin_proof(publisher, publisher->control, fn);
    return r < 0 ? dlx__fail_prefix(r, "control block") : 0;
}

int dlxd_publisher_ready(struct dlxd_publisher *publisher, int code, const char *text, int take_fd)
{
    (void)end_proof(publisher, take_fd);
    if (code < 0) {
        (void)dlxd_publisher_end(publisher);
        return dlx__fail(code, "control block: %s", text);
    }
    dlxd_reservation_end(publisher->control);
    publisher->state = DLXD_PUBLISHER_OPEN;
    hide_predecessors(publisher);
    dlxd_publisher_announce(publisher, true);
    dlxd_store_hooks_update(publisher);
    return 0;
}

static int no_such_arena(const struct dlxd_publisher *publisher, uint32_t id)
{
    return dlx__fail(DLX_E_NOT_FOUND,
                     "publisher %" PRIu64 " of %s has no such arena %u: it was "
                     "dropped, or returned since its pages did not grow",
                     dlxd_publisher_id(publisher), publisher->topic_name, id);
}

int dlxd_publisher_arena_prove(struct dlxd_publisher *publisher, uint32_t id, dlxd_proof_fn *fn)
{
    struct dlxd_arena *arena = dlxd_arenas_find(&publisher->unready, id);
    if (!arena)
        return no_such_arena(publisher, id);
    int r = begin_proof(publisher, arena, fn);
    return r < 0 ? dlx__fail_prefix(r, "arena %u", id) : 0;
}

int dlxd_publisher_arena_ready(struct dlxd_publisher *publisher, int code, const char *text,
                               int take_fd)
{
    struct dlxd_arena *arena = end_proof(publisher, take_fd);
    if (code < 0) {
        int r = dlx__fail(code, "arena %u: %s", arena->id, text);
        dlxd_arenas_remove(&publisher->unready, arena);
        dlxd_arena_free(arena);
        return r;
    }
    int r = dlxd_arenas_reserve(&publisher->ready);
    if (r < 0)
        return dlx__fail_prefix(r, "arena %u", arena->id);
    dlxd_reservation_end(arena);
    dlxd_arenas_remove(&publisher->unready, arena);
    arena->ready_seq = ++publisher->last_ready_seq;
    dlxd_arenas_push(&publisher->ready, arena);
    dlxd_store_hooks_update(publisher);
    return 0;
}

int dlxd_publisher_arena_drop(struct dlxd_publisher *publisher, uint32_t id)
{
    struct dlxd_arena *arena = dlxd_arenas_take(&publisher->unready, id);
    if (arena) {
        dlxd_arena_free(arena);
        return 0;
    }
    arena = dlxd_arenas_find(&publisher->ready, id);
    if (!arena)
        return no_such_arena(publisher, id);
    int r = dlxd_arenas_reserve(&publisher->dropped);
    if (r < 0)
        return r;
    dlxd_publisher_let_go_of(publisher, arena);
    dlxd_publisher_tell_links(publisher); /* also those that waited to be told of the arena */
    return 0;
}
