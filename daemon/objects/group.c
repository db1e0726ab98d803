/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/group.h"
#include "common/error.h"
#include "common/memory.h"
#include "daemon/memory/claims.h"
#include "daemon/objects/former.h"
#include "daemon/objects/store_hooks.h"
#include "daemon/users/outbox.h"
#include "daemon/users/principal.h"
#include "ring/layout.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/timerfd.h>

/* The minor version since which publishers know groups. */
#define GROUPS_SINCE 8U
/* So many numbers that others have are asked for in one step: 0.3 us each. */
#define TRIES 512U

#define OWNER_WORDS ((DLX_SHM_OWNERS_MAX + 64) / 64)

static struct dlxd_group *group_of(struct dlxd_list *node)
{
    return dlxd_container_of(node, struct dlxd_group, node);
}

static struct dlxd_group *group_new(struct dlxd_publisher *publisher, const char *name,
                                    struct dlxd_principal *whose)
{
    struct dlxd_group *group = calloc(1, sizeof *group);
    if (!group) {
        (void)dlx__fail(DLX_E_NO_MEMORY, "out of memory for group %s of %s", name,
                        publisher->topic_name);
        return NULL;
    }
    (void)snprintf(group->name, sizeof group->name, "%s", name);
    group->publisher = publisher;
    group->number = ++publisher->last_group;
    group->whose = dlxd_principal_ref(whose);
    group->page_fd = group->bell_fd = -1;
    dlxd_list_push_back(&publisher->groups, &group->node);
    return group;
}

static void close_page(struct dlxd_group *group)
{
    group->page_fd = dlx__close(group->page_fd);
    group->bell_fd = dlx__close(group->bell_fd);
    dlxd_charge_deinit(&group->bell_charge);
    dlxd_charge_deinit(&group->page_charge);
}

static void group_free(struct dlxd_group *group)
{
    const struct dlxd_publisher *publisher = group->publisher;
    close_page(group);
    dlxd_list_remove(&group->node);
    dlxd_principal_unref(group->whose);
    free(group);
    dlxd_former_uncover(publisher->broker, publisher->topic_name, dlxd_publisher_id(publisher));
}

int dlxd_groups_declare(struct dlxd_publisher *publisher, char *const *names)
{
    struct dlxd_principal *whose = publisher->workers ? publisher->workers : publisher->principal;
    for (uint32_t i = 0; i < publisher->config.n_groups; i++) {
        struct dlxd_group *group = group_new(publisher, names[i], whose);
        if (!group)
            return DLX_E_NO_MEMORY;
        group->is_declared = true;
    }
    return 0;
}

void dlxd_groups_deinit(struct dlxd_publisher *publisher)
{
    dlx_for_each (it, &publisher->groups)
        group_free(group_of(it));
}

const struct dlxd_group *dlxd_group_numbered(struct dlxd_publisher *publisher, uint32_t number)
{
    dlx_for_each (it, &publisher->groups)
        if (group_of(it)->number == number)
            return group_of(it);
    return NULL;
}

static bool is_needed(const struct dlxd_group *group)
{
    return group->n_links > 0 ||
           (group->is_declared && group->publisher->state != DLXD_PUBLISHER_GONE);
}

void dlxd_groups_forget(struct dlxd_publisher *publisher)
{
    publisher->config.n_groups = 0;
    dlx_for_each (it, &publisher->groups) {
        struct dlxd_group *group = group_of(it);
        if (group->is_declared)
            dlxd_store_hooks_forget_group(group);
        group->is_declared = false;
        if (!is_needed(group))
            group_free(group);
    }
}

void dlxd_groups_publisher_gone(struct dlxd_publisher *publisher)
{
    dlx_for_each (it, &publisher->groups)
        if (!is_needed(group_of(it)))
            group_free(group_of(it));
}

/* ---- who may be in it ---------------------------------------------------------------------- */

/* The group that a subscription of this principal joins; NULL: it would make one. A declared name
 * is one group for all; otherwise each user has a group of its own. */
static struct dlxd_group *group_find(const struct dlxd_publisher *publisher, const char *name,
                                     const struct dlxd_principal *who)
{
    for (struct dlxd_list *it = publisher->groups.next; it != &publisher->groups; it = it->next) {
        struct dlxd_group *group = group_of(it);
        if (strcmp(group->name, name) == 0 &&
            (group->is_declared || dlxd_principal_is_same_user(group->whose, who)))
            return group;
    }
    return NULL;
}

static int check_user(const struct dlxd_group *group, const struct dlxd_principal *who)
{
    char mine[DLXD_PRINCIPAL_TEXT_SIZE], theirs[DLXD_PRINCIPAL_TEXT_SIZE];
    if (dlxd_principal_is_same_user(group->whose, who))
        return 0;
    return dlx__fail(DLX_E_ACCESS,
                     "%s may not be a worker of group %s of %s: publisher %s (pid %d) declared it, "
                     "and its workers are of %s",
                     dlxd_principal_text(who->uid, who->socket, mine), group->name,
                     group->publisher->topic_name, group->publisher->client_name,
                     (int)group->publisher->pid,
                     dlxd_principal_text(group->whose->uid, group->whose->socket, theirs));
}

/* A rule may say who the workers of this publisher are, of whatever group. */
static int check_named(const struct dlxd_publisher *publisher, const struct dlxd_principal *who)
{
    char mine[DLXD_PRINCIPAL_TEXT_SIZE], theirs[DLXD_PRINCIPAL_TEXT_SIZE];
    const struct dlxd_principal *workers = publisher->workers;
    if (!workers || dlxd_principal_is_same_user(workers, who))
        return 0;
    return dlx__fail(DLX_E_ACCESS,
                     "%s may not be a worker of a group of %s: a rule of dlpackd.conf says that "
                     "workers of publisher %s (pid %d) are of %s",
                     dlxd_principal_text(who->uid, who->socket, mine), publisher->topic_name,
                     publisher->client_name, (int)publisher->pid,
                     dlxd_principal_text(workers->uid, workers->socket, theirs));
}

/* "a lease of 1.5 s", or "no lease". */
#define LEASE_TEXT_SIZE 48
static const char *lease_text(uint64_t ns, char text[LEASE_TEXT_SIZE])
{
    if (ns == 0)
        return "no lease";
    (void)snprintf(text, LEASE_TEXT_SIZE, "a lease of %.15g s", (double)ns / 1e9);
    return text;
}

static int check_terms(const struct dlxd_group *group, const struct dlxd_subscription *subscription)
{
    const struct dlxd_subscription_config *config = &subscription->config;
    char theirs[LEASE_TEXT_SIZE], mine[LEASE_TEXT_SIZE];
    if (group->n_links == 0 ||
        (group->lease_ns == config->lease_ns && group->max_attempts == config->max_attempts))
        return 0;
    return dlx__fail(DLX_E_QOS,
                     "the workers of group %s of %s have %s and at most %u attempts, and worker %s "
                     "(pid %d) asks for %s and at most %u: all workers of a group have the same",
                     group->name, group->publisher->topic_name, lease_text(group->lease_ns, theirs),
                     group->max_attempts, subscription->client->name,
                     (int)subscription->client->pid, lease_text(config->lease_ns, mine),
                     config->max_attempts);
}

/* May there be one group more? */
static int check_number(const struct dlxd_publisher *publisher,
                        const struct dlxd_subscription *subscription)
{
    const struct dlxd_principal *who = subscription->client->principal;
    uint32_t n = 0, n_of_user = 0;
    for (struct dlxd_list *it = publisher->groups.next; it != &publisher->groups; it = it->next) {
        const struct dlxd_group *group = group_of(it);
        n += !group->is_declared;
        n_of_user += !group->is_declared && dlxd_principal_is_same_user(group->whose, who);
    }
    if (n < DLXD_GROUPS_MAX && n_of_user < DLXD_GROUPS_OF_USER_MAX)
        return 0;
    return dlx__fail(DLX_E_LIMIT,
                     "no room for group %s at publisher %s (pid %d) of %s: %u groups that it did "
                     "not declare have workers (limit %u), %u of them of uid %u (limit %u)",
                     subscription->config.group, publisher->client_name, (int)publisher->pid,
                     publisher->topic_name, n, DLXD_GROUPS_MAX, n_of_user, (unsigned)who->uid,
                     DLXD_GROUPS_OF_USER_MAX);
}

int dlxd_group_check(const struct dlxd_subscription *subscription,
                     const struct dlxd_publisher *publisher)
{
    const struct dlxd_principal *who = subscription->client->principal;
    if (publisher->client && publisher->principal->minor < GROUPS_SINCE)
        return dlx__fail(DLX_E_VERSION,
                         "publisher %s (pid %d) of %s has a libdlx that knows no groups of workers "
                         "(protocol %u.%u, %u.%u is needed): start it with a newer one, or "
                         "subscribe without `group`",
                         publisher->client_name, (int)publisher->pid, publisher->topic_name,
                         DLX_PROTO_MAJOR, publisher->principal->minor, DLX_PROTO_MAJOR,
                         GROUPS_SINCE);
    const struct dlxd_group *group = group_find(publisher, subscription->config.group, who);
    /* A former daemon's publisher knows whose workers are, and not whether a rule said so. */
    bool is_declared = group && group->is_declared;
    int r = is_declared ? check_user(group, who) : check_named(publisher, who);
    if (r < 0)
        return r;
    return group ? check_terms(group, subscription) : check_number(publisher, subscription);
}

int dlxd_group_join(struct dlxd_link *link)
{
    struct dlxd_publisher *publisher = link->publisher;
    const struct dlxd_subscription *subscription = link->subscription;
    const struct dlxd_subscription_config *config = &subscription->config;
    struct dlxd_principal *who = subscription->client->principal;
    if (!dlxd_subscription_is_worker(subscription))
        return 0;
    struct dlxd_group *group = group_find(publisher, config->group, who);
    if (!group)
        group = group_new(publisher, config->group, who);
    if (!group)
        return DLX_E_NO_MEMORY;
    if (group->n_links++ == 0) {
        group->lease_ns = config->lease_ns;
        group->max_attempts = config->max_attempts;
    }
    group->from_start = group->from_start || link->from_start;
    link->group = group;
    link->drain->group = group->number;
    return 0;
}

/* ---- the claims page ----------------------------------------------------------------------- */

static struct dlxd_claims_terms terms_of(const struct dlxd_group *group)
{
    const struct dlxd_publisher_config *config = &group->publisher->config;
    /* What a publisher has carried from a former daemon, only declared groups get. */
    bool is_known = group->is_declared || (group->from_start && config->resumes == 0);
    return (struct dlxd_claims_terms){.borrow_fd = group->page_fd,
                                      .n_entries = config->n_entries,
                                      .first = is_known ? config->after_seq + 1 : 0};
}

/* The first message of the group, if that is known. `writer` has not left the daemon yet: a writer
 * of the page can keep others from writing to the file. */
static int write_start(const struct dlxd_group *group, int writer)
{
    uint64_t start = terms_of(group).first;
    off_t at = offsetof(struct dlx_shm_claims, start);
    if (start == 0)
        return 0;
    return pwrite(writer, &start, sizeof start, at) == (ssize_t)sizeof start
               ? 0
               : dlx__fail_errno("writing a claims page");
}

static int new_bell(int *ret)
{
    *ret = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    return *ret < 0 ? dlx__fail_errno("bell of a group") : 0;
}

static int make_page(struct dlxd_group *group, uint64_t size)
{
    int fd = -1;
    int r = dlx__region_new_shared(group->publisher->broker->memory, "dlx-claims", size,
                                   &group->page_fd, &fd);
    dlx_cleanup(dlx__closep) int writer = fd;
    if (r == 0)
        r = write_start(group, writer);
    return r < 0 ? r : new_bell(&group->bell_fd);
}

uint64_t dlxd_group_claims_size(const struct dlxd_publisher *publisher)
{
    return dlx_shm_claims_size(publisher->config.n_entries);
}

static int charge_page(struct dlxd_group *group, struct dlxd_user *user, uint64_t size)
{
    int r = dlxd_flights_charge(&group->page_charge, user, DLXD_BYTES, size);
    return r == 0 ? dlxd_charge_init(&group->bell_charge, user, DLXD_DESCRIPTORS, 1) : r;
}

static void charge_page_beyond(struct dlxd_group *group, struct dlxd_user *user, uint64_t size)
{
    dlxd_charge_restore(&group->page_charge, user, DLXD_BYTES, size);
    dlxd_charge_restore(&group->bell_charge, user, DLXD_DESCRIPTORS, 1);
}

static int ensure_page(struct dlxd_group *group, struct dlxd_user *user, bool beyond)
{
    uint64_t size = dlxd_group_claims_size(group->publisher);
    int r = 0;
    if (group->page_fd >= 0)
        return 0;
    if (beyond)
        charge_page_beyond(group, user, size);
    else
        r = charge_page(group, user, size);
    if (r == 0)
        r = make_page(group, size);
    if (r == 0)
        return 0;
    close_page(group);
    return dlx__fail_prefix(r, "claims page of group %s of %s", group->name,
                            group->publisher->topic_name);
}

bool dlxd_group_report(const struct dlxd_group *group, struct dlxd_claims_report *ret)
{
    const struct dlxd_publisher *publisher = group->publisher;
    struct dlxd_claims_terms terms = terms_of(group);
    struct dlxd_control_report control;
    dlxd_report_control(publisher->control->fd, &control);
    /* Former workers of a group that is not declared do what was carried. */
    terms.done_before = control.moved_at == 0 ? 0
                        : !group->is_declared
                            ? control.moved_at + 1
                            : dlxd_report_carried(publisher->control->fd,
                                                  publisher->config.n_entries, group->number);
    return dlxd_claims_report(&terms, &control, ret);
}

/* What cannot be read may be undone. */
static bool is_undone(const struct dlxd_group *group)
{
    struct dlxd_claims_report report;
    return group->is_declared &&
           (!dlxd_group_report(group, &report) || report.waiting + report.in_flight > 0);
}

bool dlxd_groups_are_undone(struct dlxd_publisher *publisher)
{
    if (publisher->config.n_groups > 0)
        dlx_for_each (it, &publisher->groups)
            if (is_undone(group_of(it)))
                return true;
    return false;
}

uint64_t dlxd_groups_n_undone(struct dlxd_publisher *publisher)
{
    uint64_t most = 0;
    dlx_for_each (it, &publisher->groups) {
        struct dlxd_claims_report report;
        if (group_of(it)->is_declared && dlxd_group_report(group_of(it), &report))
            most = DLX_MAX(most, report.waiting + report.in_flight);
    }
    return most;
}

bool dlxd_group_is_kept(struct dlxd_publisher *publisher, const char *name)
{
    dlx_for_each (it, &publisher->groups)
        if (strcmp(group_of(it)->name, name) == 0 && is_undone(group_of(it)))
            return true;
    return false;
}

uint32_t dlxd_group_list_claims(const struct dlxd_group *group, uint64_t after_seq,
                                struct dlxd_claim *ret, uint32_t n_max, bool *ret_more)
{
    const struct dlxd_claims_terms terms = terms_of(group);
    return dlxd_claims_list(&terms, after_seq, ret, n_max, ret_more);
}

/* The user who pays for the page. The caller owns the reference. */
static int group_user(const struct dlxd_group *group, struct dlxd_user **ret)
{
    return dlxd_users_get(&group->publisher->broker->users, group->whose, ret);
}

int dlxd_group_make_page(struct dlxd_group *group, bool beyond)
{
    struct dlxd_user *user;
    int r = group_user(group, &user);
    if (r < 0)
        return r;
    r = ensure_page(group, user, beyond);
    dlxd_user_unref(user);
    return r;
}

static int check_former_page(const struct dlxd_publisher *publisher, int page_fd)
{
    uint64_t size = 0, expected = dlxd_group_claims_size(publisher);
    int r = dlx__region_inspect_shared(publisher->broker->memory, page_fd, &size);
    return r < 0 || size == expected
               ? r
               : dlx__fail(DLX_E_PROTOCOL, "claims page of %" PRIu64 " bytes instead of %" PRIu64,
                           size, expected);
}

int dlxd_group_restore(struct dlxd_publisher *publisher, const struct dlxd_group_former *former,
                       struct dlxd_group **ret)
{
    struct dlxd_user *user = NULL;
    struct dlxd_group *group = NULL;
    int bell_fd = former->take_bell_fd;
    int r = check_former_page(publisher, former->take_page_fd);
    if (r == 0 && bell_fd < 0)
        r = new_bell(&bell_fd);
    if (r == 0 && !(group = group_new(publisher, former->name, publisher->workers)))
        r = DLX_E_NO_MEMORY;
    if (r == 0)
        r = group_user(group, &user);
    if (r < 0) {
        if (group)
            group_free(group);
        if (former->take_bell_fd < 0)
            dlx__close(bell_fd);
        return r;
    }
    group->number = former->number;
    group->is_declared = true;
    publisher->last_group = DLX_MAX(publisher->last_group, former->number);
    dlxd_charge_restore(&group->page_charge, user, DLXD_BYTES, dlxd_group_claims_size(publisher));
    dlxd_charge_restore(&group->bell_charge, user, DLXD_DESCRIPTORS, 1);
    dlxd_user_unref(user);
    group->page_fd = former->take_page_fd;
    group->bell_fd = bell_fd;
    *ret = group;
    return 0;
}

/* ---- numbers of workers -------------------------------------------------------------------- */

static bool has_bit(const uint64_t *bits, uint32_t i)
{
    return bits[i / 64] >> (i % 64) & 1;
}

static int fail_owners(const struct dlxd_group *group)
{
    return dlx__fail(DLX_E_LIMIT,
                     "group %s of %s has no number for another worker: it has %u of them, and "
                     "former ones that live, or whose messages no worker has looked at, keep the "
                     "others (limit %u)",
                     group->name, group->publisher->topic_name, group->n_links, DLX_SHM_OWNERS_MAX);
}

/* A number is used again when no cell and no lock has it: its former worker may live,
 * or others may not know of its death yet. Numbers go round, so that is rare. */
static int take_owner(struct dlxd_link *link)
{
    struct dlxd_group *group = link->group;
    uint64_t taken[OWNER_WORDS] = {0};
    const struct dlxd_claims_terms terms = terms_of(group);
    int r = dlxd_claims_owners(&terms, taken);
    for (uint32_t n_tries = 0; r == 0 && group->n_passed < DLX_SHM_OWNERS_MAX;) {
        uint32_t owner = group->last_owner = group->last_owner % DLX_SHM_OWNERS_MAX + 1;
        group->n_passed++;
        if (has_bit(taken, owner))
            continue;
        if (dlx__region_is_owned(group->page_fd, owner)) { /* asked first, since it is quicker */
            r = ++n_tries < TRIES ? 0 : DLX_E_FULL;
            continue;
        }
        r = dlx__region_reopen_owned(group->page_fd, owner, &link->claims_fd);
        if (r == 0) {
            link->owner = link->drain->owner = owner;
            group->n_passed = 0;
            return 0;
        }
        if (r == DLX_E_IN_USE)
            r = DLX_E_FULL;
    }
    if (r < 0)
        return r;
    group->n_passed = 0;
    return fail_owners(group);
}

int dlxd_group_admit(struct dlxd_link *link)
{
    struct dlxd_user *user = link->subscription->client->user;
    if (!link->group || link->owner > 0)
        return 0;
    int r = ensure_page(link->group, user, false);
    if (r == 0)
        r = dlxd_charge_init(&link->claims_charge, user, DLXD_DESCRIPTORS, 1);
    if (r == 0)
        r = take_owner(link);
    if (r < 0)
        dlxd_charge_deinit(&link->claims_charge);
    return r;
}

/* Now, and not by a thread some time later: the lock would outlive the worker. */
void dlxd_group_close_claims(struct dlxd_link *link)
{
    link->claims_fd = dlx__close(link->claims_fd);
    dlxd_charge_deinit(&link->claims_charge);
}

/* ---- the bell ------------------------------------------------------------------------------ */

/* All workers wait for the timer by edge-triggered epoll, and none reads it: each expiry wakes
 * all of them, and none can keep it from the others. */
static void ring_all(const struct dlxd_group *group)
{
    const struct itimerspec at_once = {.it_value = {.tv_nsec = 1}};
    if (group->bell_fd >= 0)
        (void)timerfd_settime(group->bell_fd, 0, &at_once, NULL);
}

void dlxd_group_left(struct dlxd_publisher *publisher, uint32_t number)
{
    const struct dlxd_group *group = dlxd_group_numbered(publisher, number);
    dlxd_membership_left(&publisher->line);
    if (group)
        ring_all(group);
}

/* All may be done: the publisher's task looks. */
static void look_later(const struct dlxd_group *group)
{
    struct dlxd_publisher *publisher = group->publisher;
    if (!group->is_declared || publisher->state != DLXD_PUBLISHER_RETAINED)
        return;
    publisher->looks_at_groups = true;
    dlxd_task_start(&publisher->task, publisher->user);
}

void dlxd_group_leave(struct dlxd_link *link)
{
    struct dlxd_group *group = link->group;
    if (!group)
        return;
    if (link->owner > 0)
        ring_all(group);
    group->n_open -= link->state == DLXD_LINK_OPEN;
    group->n_links--;
    link->group = NULL;
    link->owner = 0;
    look_later(group);
    if (!is_needed(group))
        group_free(group);
}
