/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/retained.h"
#include "common/error.h"
#include "common/memory.h"
#include "common/syscalls.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/drain.h"
#include "daemon/objects/former.h"
#include "daemon/objects/publisher.h"
#include "daemon/objects/registry.h"
#include "daemon/objects/store_hooks.h"
#include "daemon/base/log.h"
#include "daemon/users/principal.h"
#include "daemon/memory/report.h"
#include "daemon/base/watch.h"
#include <fcntl.h>
#include <unistd.h>

/* The number of its messages, from a counter that its owner writes; a false value harms only the
 * owner. */
static uint64_t n_published(const struct dlxd_publisher *publisher)
{
    struct dlxd_control_report report;
    uint64_t before = publisher->config.after_seq;
    dlxd_report_control(publisher->control->fd, &report);
    return report.head > before ? report.head - before : 0;
}

bool dlxd_retained_is_possible(const struct dlxd_publisher *publisher)
{
    return publisher->config.retain > 0 && !publisher->config.latched;
}

bool dlxd_retained_is_wanted(const struct dlxd_publisher *publisher)
{
    return publisher->state == DLXD_PUBLISHER_OPEN && dlxd_retained_is_possible(publisher) &&
           n_published(publisher) > 0;
}

/* Puts it into the list of publishers that stay, or by time into the list of those that expire. */
static void retained_enlist(struct dlxd_publisher *publisher, uint64_t for_ns)
{
    struct dlxd_broker *broker = publisher->broker;
    dlxd_list_remove(&publisher->by_client);
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

/* Called when its process has ended. */
static bool leaves_nothing(const struct dlxd_publisher *publisher)
{
    return publisher->config.latched || n_published(publisher) == 0;
}

static void retained_on_death(void *data, int events)
{
    struct dlxd_publisher *publisher = data;
    (void)events;
    bool was_former = publisher->state != DLXD_PUBLISHER_DYING;
    if (was_former && leaves_nothing(publisher)) {
        dlxd_publisher_vanish(publisher);
    } else {
        settle(publisher);
        dlxd_publisher_tell_links(publisher);
        if (was_former)
            dlxd_publisher_reveal(publisher);
    }
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

void dlxd_retained_add(struct dlxd_publisher *publisher, int pidfd)
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

/* May new subscriptions join it although it may write? Its library must check for their locks, and
 * locking must work. */
static bool may_show(const struct dlxd_publisher *publisher)
{
    struct dlxd_control_report report;
    dlx_cleanup(dlx__closep) int fd = -1;
    dlxd_report_control(publisher->control->fd, &report);
    return report.heeds_locks && n_published(publisher) > 0 &&
           dlx__region_reopen_locked(publisher->control->fd, &fd) == 0;
}

bool dlxd_retained_restore(struct dlxd_publisher *publisher, int take_pidfd, uint64_t expires_ns)
{
    uint64_t now = dlx__now_ns();
    dlx_cleanup(dlx__closep) int pidfd = take_pidfd;
    if (is_dead(pidfd) && leaves_nothing(publisher)) {
        dlxd_publisher_vanish(publisher);
        return false;
    }
    if (is_dead(pidfd)) {
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
    dlxd_retained_resume(publisher);
    take_pidfd_of(publisher, dlx__steal_fd(&pidfd));
    retained_enlist(publisher, 0);
    if (watch_death(publisher) < 0)
        retained_enlist(publisher, 1); /* its death could not be seen */
    (void)dlxd_retained_succeed(publisher);
    return !is_shown;
}

void dlxd_retained_remove(struct dlxd_publisher *publisher)
{
    close_pidfd(publisher);
    dlxd_list_remove(&publisher->by_client);
}

/* ---- the end ------------------------------------------------------------------------------- */

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

void dlxd_retained_resume(struct dlxd_publisher *successor)
{
    dlx_for_each (it, &successor->topic->publishers) {
        struct dlxd_publisher *publisher = dlxd_container_of(it, struct dlxd_publisher, by_topic);
        if (publisher->state == DLXD_PUBLISHER_SHOWN && publisher != successor &&
            resumes(successor, publisher) && may_drop(successor->principal, publisher))
            publisher->announced = 0;
    }
}

/* Is it alive, so that it replaces its messages itself when it announces itself again? */
static bool may_return(const struct dlxd_publisher *publisher)
{
    bool is_former =
        publisher->state == DLXD_PUBLISHER_HIDDEN || publisher->state == DLXD_PUBLISHER_SHOWN;
    return is_former && !is_dead(publisher->dying_pidfd);
}

/* How many messages of a successor replace those of a publisher: as many as the successor retains,
 * or all existing ones if it is the same publisher, announced again. */
static uint64_t n_needed(const struct dlxd_publisher *publisher,
                         const struct dlxd_publisher *successor)
{
    uint64_t n = successor->config.retain;
    return resumes(successor, publisher) ? DLX_MIN(n, n_published(publisher)) : n;
}

/* How many publishers of a topic are looked at in one step, and the most weight of those that end
 * in it (publisher.h). */
#define LOOKS_AT_ONCE 256U
#define ENDS_AT_ONCE  16U

static bool is_succeeded(const struct dlxd_publisher *publisher,
                         const struct dlxd_publisher *successor, uint64_t n)
{
    return dlxd_publisher_leaves(publisher) &&
           (resumes(successor, publisher) || !may_return(publisher)) &&
           n >= n_needed(publisher, successor) && may_drop(successor->principal, publisher);
}

bool dlxd_retained_succeed_step(struct dlxd_publisher *successor)
{
    const struct dlxd_broker *broker = successor->broker;
    struct dlxd_topic *topic = successor->topic;
    struct dlxd_list *it =
        dlxd_publisher_next_of(&broker->registry, topic, successor->succeeds_after);
    uint32_t n_looks = dlxd_policy_checks_at_once(&broker->policy, LOOKS_AT_ONCE), n_ends = 0;
    uint64_t n = n_published(successor);
    for (struct dlxd_list *next; it != &successor->by_topic; it = next) {
        struct dlxd_publisher *publisher = dlxd_container_of(it, struct dlxd_publisher, by_topic);
        if (n_looks-- == 0 || n_ends >= ENDS_AT_ONCE)
            return true;
        next = it->next;
        successor->succeeds_after = dlxd_publisher_id(publisher);
        if (is_succeeded(publisher, successor, n)) {
            n_ends += dlxd_publisher_weight(publisher);
            dlxd_publisher_vanish(publisher);
        }
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

int dlxd_retained_drop(const struct dlxd_client *client, const char *name, uint32_t *n)
{
    struct dlxd_topic *topic = dlxd_registry_find(&client->broker->registry, name);
    bool may_drop_all =
        dlxd_policy_may(&client->broker->policy, client->principal, DLXD_MAY_DROP, name);
    const struct dlxd_publisher *other = NULL, *here = NULL;
    uint32_t n_now = 0;
    /* The topic is freed with the last of them, unless there is another publisher. */
    struct dlxd_list *end = topic ? &topic->publishers : NULL;
    for (struct dlxd_list *it = topic ? end->next : NULL, *next; it != end; it = next) {
        struct dlxd_publisher *publisher = dlxd_container_of(it, struct dlxd_publisher, by_topic);
        next = it->next;
        if (!dlxd_publisher_leaves(publisher)) {
            here = publisher;
        } else if (!may_drop_all &&
                   !dlxd_principal_is_same_user(client->principal, publisher->principal)) {
            other = publisher;
        } else {
            if (n_now >= ENDS_AT_ONCE)
                return 1;
            n_now += dlxd_publisher_weight(publisher);
            dlxd_publisher_vanish(publisher);
            ++*n;
        }
    }
    if (*n > 0)
        return 0;
    if (other)
        return dlx__fail(DLX_E_ACCESS,
                         "what is retained on %s is of uid %u, not %u: that user drops it, or whom "
                         "a rule allows to drop",
                         name, (unsigned)other->principal->uid, (unsigned)client->principal->uid);
    if (here && here->config.retain > 0)
        return dlx__fail(
            DLX_E_NOT_FOUND,
            "what is retained on %s is of publisher %s (pid %d), which is still there: "
            "end it first",
            name, here->client_name, (int)here->pid);
    if (here)
        return dlx__fail(DLX_E_NOT_FOUND,
                         "nothing is retained on %s: its publisher %s (pid %d) retains nothing",
                         name, here->client_name, (int)here->pid);
    return dlx__fail(DLX_E_NOT_FOUND, "nothing is retained on %s", name);
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
    for (uint32_t n = 0; n < ENDS_AT_ONCE && dlxd_retained_next_ns(broker) <= now;) {
        struct dlxd_publisher *publisher = first_of(&broker->expiring);
        n += dlxd_publisher_weight(publisher);
        dlxd_publisher_vanish(publisher);
    }
}

void dlxd_retained_clear(struct dlxd_broker *broker)
{
    struct dlxd_publisher *publisher;
    while ((publisher = first_of(&broker->expiring)) || (publisher = first_of(&broker->retained)))
        dlxd_publisher_vanish(publisher);
    dlxd_drains_clear(broker);
    dlxd_former_clear(broker);
}
