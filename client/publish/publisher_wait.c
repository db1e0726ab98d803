/* SPDX-License-Identifier: Apache-2.0 */
#include "client/publish/publisher_wait.h"
#include "client/control/call.h"
#include "client/gpu/gpu.h"
#include "client/publish/publisher_group.h"
#include "client/publish/publisher_link.h"
#include "client/publish/publisher_move.h"
#include "common/amount.h"
#include "common/memory.h"
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

/* ---- what tells of news ------------------------------------------------------------------- */

/* Not to the end: a peer that writes as fast as we read does not keep us here. Returns false
 * when it writes no more. */
static bool drain_bell(int fd)
{
    char bytes[4096];
    return recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) != 0;
}

/* Write into `fds`, which has room for 2 * n_links + 1, the descriptors that become readable
 * when there may be room, or a subscriber; -1 where there is none. Returns true if either may
 * also come without any of them: then look again after DLX_RECONNECT_NS. No descriptor tells of
 * a new daemon. */
static bool list_sources(const struct dlx_publisher *p, struct pollfd *fds)
{
    uint32_t n_links = dlx__writer_n_links(&p->core);
    /* A descriptor that cannot be added now is no reason to wake up. */
    bool deaf = p->joins.state != DLX_PUBLISHER_JOINS_PICKED_UP;
    fds[0] = (struct pollfd){.fd = deaf ? -1 : p->daemon.link_sock, .events = POLLIN};
    for (uint32_t i = 0; i < n_links; i++) {
        const struct dlx_publisher_link *link =
            dlx__publisher_link_of(dlx__writer_link_at(&p->core, i));
        fds[1 + 2 * i] = (struct pollfd){.fd = link->hung_up ? -1 : link->bell, .events = POLLIN};
        /* A dead process says nothing more. */
        fds[2 + 2 * i] = (struct pollfd){
            .fd = dlx__writer_link_is_dead(&link->core) ? -1 : link->peer->pidfd, .events = POLLIN};
    }
    /* A missing subscriber may leave before the daemon has told of it: no packet comes then, but
     * `joins` is lowered. */
    bool looks_again = deaf || dlx__writer_misses_link(&p->core);
    /* Nothing else tells that the daemon has ended the link of who hung up. */
    for (uint32_t i = 0; i < n_links; i++)
        looks_again |= dlx__publisher_link_of(dlx__writer_link_at(&p->core, i))->hung_up &&
                       !dlx__writer_link_is_over(dlx__writer_link_at(&p->core, i));
    return looks_again;
}

/* What a publisher waits for. */
struct goal {
    /* Returns 0; DLX_E_FULL: not yet; or why it cannot be reached. */
    int (*look)(struct dlx_publisher *p, struct goal *goal);
    enum dlx_hurry hurry; /* for another daemon; NOW_AND_THEN: one may come, and is not needed */
    uint32_t n_subscribers;
    uint64_t done;          /* groups have done all messages up to this one */
    uint64_t queued_bytes;  /* as the last look has found, if there is a bound */
    bool lacks_subscribers; /* as the last look has found */
    struct dlx_seen *workers;
    /* When an attempt failed, or the daemon was asked for workers: the client's epoch. And whether
     * a later daemon showed the publisher. */
    uint64_t epoch;
    bool was_shown;
};

/* A signal ends a wait for subscribers or for room, if the program gave no `interrupt`. It ends no
 * wait for a daemon. */
static int ask(struct dlx_publisher *p, const struct goal *goal, struct dlx_wait *wait,
               bool signalled)
{
    if (goal->hurry == DLX_HURRY_NOW_AND_THEN)
        return dlx__wait_for_peers(wait, p->client, &p->turn, signalled, p->topic, "subscribers");
    return dlx__wait_ask(wait, p->client, &p->turn, signalled) < 0
               ? dlx__call_interrupted(p->client)
               : 0;
}

/*
 * Sleep until something may have changed: a bell, a join, a death; or until a part of the wait is
 * over and the program lets it go on. Bells are drained. Returns 0; DLX_E_TIMEOUT,
 * DLX_E_INTERRUPTED, DLX_E_NO_MEMORY, DLX_E_SYSTEM.
 */
static int sleep_for_news(struct dlx_publisher *p, const struct goal *goal, struct dlx_wait *wait)
{
    uint32_t n_links = dlx__writer_n_links(&p->core);
    dlx_cleanup(dlx__freep) struct pollfd *fds = calloc(2 * (size_t)n_links + 1, sizeof *fds);
    if (!fds)
        return dlx__fail(DLX_E_NO_MEMORY, "waiting for %u links", n_links);
    bool looks_again =
        list_sources(p, fds) || p->daemon.link_sock < 0 || goal->hurry != DLX_HURRY_NOW_AND_THEN;
    uint64_t now = dlx__now_ns(), until = dlx__wait_part(wait, p->client, now);
    if (looks_again)
        until = DLX_MIN(until, now + DLX_RECONNECT_NS);
    int n = poll(fds, 2 * (nfds_t)n_links + 1, dlx__deadline_ms(until, now));
    if (n < 0 && errno != EINTR)
        return dlx__fail_errno("poll of %u links", n_links);
    int r = now < wait->deadline ? ask(p, goal, wait, n < 0) : 0;
    if (r < 0)
        return r;
    for (uint32_t i = 0; n > 0 && i < n_links; i++) {
        struct dlx_publisher_link *link = dlx__publisher_link_of(dlx__writer_link_at(&p->core, i));
        short bell = fds[1 + 2 * i].revents;
        /* The subscriber will ring no more. Messages that it holds count until its page says CLOSED
         * and holds nothing, or until its process is dead. */
        if ((bell & (POLLHUP | POLLERR)) || ((bell & POLLIN) && !drain_bell(link->bell)))
            link->hung_up = true;
        if (fds[2 + 2 * i].revents) {
            dlx__writer_link_set_dead(&link->core);
            dlx__publisher_link_end(p, link);
        }
    }
    /* Joins and ends last: links come, and go. */
    dlx__publisher_link_find_ends(p);
    if (fds[0].revents)
        dlx__publisher_link_env.pick_up(p);
    /* A link that always rings is no reason to look for ever. */
    return (n <= 0 ? dlx__now_ns() : now) >= wait->deadline ? DLX_E_TIMEOUT : 0;
}

/* A call waits no more. Subscribers go on ringing for dlx_publisher_fd(). */
static void unblock(struct dlx_publisher *p)
{
    if (!(p->detours & DLX_DETOUR_ARMED))
        dlx__writer_set_blocked(&p->core, false);
}

/*
 * The one loop that waits, and that moves a publisher while it waits. Looks once more when the time
 * is over. Returns 0; DLX_E_TIMEOUT, without a message; and what the goal's look fails with, or
 * sleep_for_news().
 */
static int wait_until(struct dlx_publisher *p, struct goal *goal, struct dlx_wait *wait)
{
    bool needs_daemon = goal->hurry != DLX_HURRY_NOW_AND_THEN, over = false;
    uint64_t next_check_ns = 0; /* subscribers that ring are no reason to ask a daemon more often */
    int r;
    for (;;) {
        uint64_t now = dlx__now_ns();
        if ((needs_daemon && now >= next_check_ns) || (!needs_daemon && p->daemon.link_sock < 0)) {
            next_check_ns = now + DLX_RECONNECT_NS;
            dlx__publisher_check(p, now, goal->hurry, 0);
        }
        /* Subscribers ring if a publisher waits, also when they store their first cursor. */
        dlx__writer_set_blocked(&p->core, true); /* again each time, as it may have moved */
        r = goal->look(p, goal);
        if (r != DLX_E_FULL || over)
            break;
        r = sleep_for_news(p, goal, wait);
        over = r == DLX_E_TIMEOUT;
        if (r < 0 && !over)
            break;
    }
    unblock(p);
    return r == DLX_E_FULL ? DLX_E_TIMEOUT : r;
}

/* ---- dlx_publisher_fd() ------------------------------------------------------------------- */

/* If dlx_publisher_fd() was called: before a call looks for room or subscribers, forget what these
 * rang before, and ask them to ring. */
static void arm_begin(struct dlx_publisher *p)
{
    struct dlx_wait once = {.deadline = 0};
    if (p->ready.fd < 0)
        return;
    dlx__publisher_detour(p, DLX_DETOUR_ARMED, true);
    (void)sleep_for_news(p, &(struct goal){0}, &once);
    if (p->daemon.link_sock < 0)
        dlx__publisher_check(p, dlx__now_ns(), DLX_HURRY_NOW_AND_THEN, 0);
    dlx__error_clear();
    p->ready.armed_block = dlx__writer_control(&p->core);
    dlx__writer_set_blocked(&p->core, true); /* what is rung from now on, the caller polls */
}

/* Subscribers of one process have the same pidfd. */
static int add_source(int epoll, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    if (fd < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0 || errno == EEXIST)
        return 0;
    return dlx__fail_errno("epoll_ctl");
}

/*
 * When to call again although nothing that can be polled says so; 0: never. Without a daemon there
 * is room when a subscriber rings, as with one. But subscribers come by the next daemon, of which
 * nothing tells: the caller looks for one less and less often, at last once in DLX_LOOK_NS.
 */
static uint64_t look_after(struct dlx_publisher *p, int r, bool looks_again)
{
    bool needs_daemon = p->daemon.link_sock < 0 && (r == DLX_E_TIMEOUT || looks_again);
    if (!needs_daemon) {
        p->ready.pause_ns = 0;
        return looks_again ? DLX_RECONNECT_NS : 0;
    }
    p->ready.pause_ns =
        p->ready.pause_ns == 0 ? DLX_RECONNECT_NS : DLX_MIN(2 * p->ready.pause_ns, DLX_LOOK_NS - 1);
    return p->ready.pause_ns;
}

/* Replace the member of the epoll `ready.fd`, at first an eventfd, by a new epoll of all
 * descriptors that may tell of room or subscribers. The call failed with `code`. */
static int replace_sources(struct dlx_publisher *p, int code)
{
    uint32_t n = 2 * dlx__writer_n_links(&p->core) + 1;
    dlx_cleanup(dlx__freep) struct pollfd *fds = calloc(n, sizeof *fds);
    if (!fds)
        return dlx__fail(DLX_E_NO_MEMORY, "waiting for %u links", dlx__writer_n_links(&p->core));
    bool looks_again = dlx__writer_control(&p->core) !=
                       p->ready.armed_block; /* its subscribers were not asked to ring */
    looks_again |= list_sources(p, fds);
    dlx_cleanup(dlx__closep) int sources = epoll_create1(EPOLL_CLOEXEC);
    int r = sources < 0 ? dlx__fail_errno("epoll_create1") : 0;
    for (uint32_t i = 0; r == 0 && i < n; i++)
        r = add_source(sources, fds[i].fd);
    const struct itimerspec again = {
        .it_value = {.tv_nsec = (long)look_after(p, code, looks_again)}};
    if (r == 0 && timerfd_settime(p->ready.timer, 0, &again, NULL) < 0)
        r = dlx__fail_errno("timerfd_settime");
    if (r == 0)
        r = add_source(sources, p->ready.timer);
    if (r == 0)
        r = add_source(p->ready.fd, sources);
    if (r < 0)
        return r;
    /* Closing alone does not take it out: a forked child may have inherited it. */
    (void)epoll_ctl(p->ready.fd, EPOLL_CTL_DEL, p->ready.sources, NULL);
    dlx__close(p->ready.sources);
    p->ready.sources = dlx__steal_fd(&sources);
    return 0;
}

/* After the call, which returns `r`: if it has to be made again, the descriptor becomes readable
 * when that is worth it. Returns `r`, or why the descriptor could not be prepared. */
static int arm_end(struct dlx_publisher *p, int r)
{
    if (p->ready.fd < 0)
        return r;
    if (r != DLX_E_FULL && r != DLX_E_TIMEOUT) {
        dlx__publisher_detour(p, DLX_DETOUR_ARMED, false);
        p->ready.pause_ns = 0;
        dlx__writer_set_blocked(&p->core, false);
        return r;
    }
    dlx__writer_set_blocked(&p->core, true);
    int armed = replace_sources(p, r);
    return armed < 0 ? armed : r;
}

int dlx_publisher_fd(struct dlx_publisher *p)
{
    int r = dlx__publisher_begin(p, "dlx_publisher_fd");
    if (r < 0)
        return r;
    if (p->ready.fd < 0) {
        dlx_cleanup(dlx__closep) int ready = epoll_create1(EPOLL_CLOEXEC),
                                     first = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK),
                                     timer = timerfd_create(CLOCK_MONOTONIC,
                                                            TFD_CLOEXEC | TFD_NONBLOCK);
        r = ready < 0 || first < 0 || timer < 0 ? dlx__fail_errno("dlx_publisher_fd")
                                                : add_source(ready, first);
        if (r == 0) {
            p->ready.fd = dlx__steal_fd(&ready);
            p->ready.sources = dlx__steal_fd(&first);
            p->ready.timer = dlx__steal_fd(&timer);
        }
    }
    r = r < 0 ? r : p->ready.fd;
    dlx__publisher_leave(p);
    return r;
}

/* ---- subscribers -------------------------------------------------------------------------- */

/* DLX_E_TIMEOUT, with whom it has seen. A caller that does not wait asks often, and the daemon is
 * not asked each time. */
static int fail_for_subscribers(struct dlx_publisher *p, uint32_t n_wanted,
                                const struct dlx_wait *wait)
{
    uint32_t n = dlx__publisher_link_n_receiving(p);
    if (wait->deadline == 0)
        return dlx__fail(DLX_E_TIMEOUT, "topic %s has %u of %u subscribers", p->topic, n, n_wanted);
    struct dlx_seen attached, joining;
    char rest[DLX_ERROR_TEXT_SIZE];
    int r = dlx__publisher_see(p, &attached, &joining);
    if (r < 0)
        return r;
    struct dlx_daemon_info info = {.size = sizeof info};
    bool lacks = joining.n > 0 && dlx_client_get_daemon_info(p->client, &info) == 0 && *info.lack;
    if (lacks)
        (void)snprintf(rest, sizeof rest,
                       "%.200s subscribed, and dlpackd lacks what their links need: %.200s",
                       joining.text, info.lack);
    else if (joining.n > 0)
        (void)snprintf(rest, sizeof rest,
                       "%.200s subscribed, and must make a call first, or subscribe for more "
                       "publishers (n_publishers, publishers=)",
                       joining.text);
    else if (*joining.why_not)
        (void)snprintf(rest, sizeof rest, "who else has subscribed is not known: %s",
                       joining.why_not);
    else
        (void)snprintf(rest, sizeof rest, "nobody%s subscribes to it at %.200s",
                       n > 0 ? " else" : "", p->client->path);
    return dlx__fail(DLX_E_TIMEOUT, "topic %s has %u of %u subscribers%s%s; %s", p->topic, n,
                     n_wanted, attached.n > 0 ? ": " : "", attached.text, rest);
}

/* As a daemon refused the publisher, with the daemon's words. */
static int fail_refused(const struct dlx_publisher *p)
{
    return dlx__fail(p->watch.refusal_code, "topic %s: %s", p->topic, p->watch.refusal);
}

static int look_for_subscribers(struct dlx_publisher *p, struct goal *goal)
{
    if (p->detours & DLX_DETOUR_REFUSED)
        return fail_refused(p);
    /* Links that the daemon has ended are over. */
    dlx__publisher_link_find_ends(p);
    goal->lacks_subscribers = dlx__publisher_link_n_receiving(p) < goal->n_subscribers;
    return goal->lacks_subscribers ? DLX_E_FULL : 0;
}

int dlx_publisher_wait(struct dlx_publisher *p, uint32_t n_subscribers, int64_t timeout_ns)
{
    struct goal goal = {.look = look_for_subscribers, .n_subscribers = n_subscribers};
    int r = dlx__publisher_begin(p, "dlx_publisher_wait");
    if (r < 0)
        return r;
    dlx__publisher_look(p, dlx__now_ns()); /* with enough subscribers, no other look is needed */
    arm_begin(p);
    struct dlx_wait wait = {.deadline = timeout_ns == 0 ? 0 : dlx__deadline(timeout_ns)};
    r = look_for_subscribers(p, &goal);
    if (r == DLX_E_FULL)
        r = wait_until(p, &goal, &wait);
    if (r == DLX_E_TIMEOUT)
        r = fail_for_subscribers(p, n_subscribers, &wait);
    r = arm_end(p, r);
    if (p->gpu)
        dlx__gpu_publisher()->collect(p);
    dlx__publisher_leave(p);
    return r;
}

/* A worker serves also if it has made no call since the publisher came: requests wait for it. The
 * daemon is asked for such workers, once: it tells of those that come later. */
static int look_for_workers(struct dlx_publisher *p, struct goal *goal)
{
    const struct dlx_writer_group *group = dlx__writer_group_at(&p->core, 0);
    if (p->detours & DLX_DETOUR_REFUSED)
        return fail_refused(p);
    dlx__publisher_link_find_ends(p);
    if (dlx__publisher_n_workers(group) > 0)
        return 0;
    if (goal->epoch == p->epoch)
        return DLX_E_FULL;
    int r = dlx__publisher_see_workers(p, dlx__writer_group_number(group), true, goal->workers);
    if (r == 0 && !*goal->workers->why_not)
        goal->epoch = p->epoch;
    return r < 0 ? r : goal->workers->n > 0 ? 0 : DLX_E_FULL;
}

int dlx__publisher_wait_for_worker(struct dlx_publisher *p, int64_t timeout_ns)
{
    struct dlx_seen workers = {.n = 0};
    struct goal goal = {.look = look_for_workers, .workers = &workers, .epoch = UINT64_MAX};
    struct dlx_wait wait = {.deadline = dlx__deadline(timeout_ns)};
    int r = wait_until(p, &goal, &wait);
    if (r != DLX_E_TIMEOUT)
        return r;
    if (*workers.why_not)
        return dlx__fail(r,
                         "topic %s: no worker is attached, and whether others serve it is not "
                         "known: %s",
                         p->topic, workers.why_not);
    return dlx__fail(r, "topic %s: no worker serves it at %.200s", p->topic, p->client->path);
}

/* ---- room --------------------------------------------------------------------------------- */

static const char *why_not_attached(const struct dlx_publisher *p)
{
    if (p->joins.state != DLX_PUBLISHER_JOINS_PICKED_UP)
        return "open files or memory of this process";
    return p->daemon.link_sock < 0 ? "dlpackd ended before it told of them"
                                   : "dlpackd has yet to tell of them";
}

/* Other subscribers hold memory, but do not stop the publisher. Say nothing if all have gone on
 * meanwhile. */
static void list_blocking(const struct dlx_publisher *p, char *ret, size_t size)
{
    size_t used = 0;
    ret[0] = '\0';
    for (uint32_t i = 0; i < dlx__writer_n_links(&p->core) && used < size - 80; i++) {
        const struct dlx_writer_link *link = dlx__writer_link_at(&p->core, i);
        uint64_t behind = dlx__writer_link_lag(&p->core, link);
        if (behind == 0)
            continue;
        struct dlx_peer *peer = dlx__publisher_link_of(link)->peer;
        const char *name = dlx__peers_name(&p->client->peers, peer);
        int n =
            snprintf(ret + used, size - used, "%s%s%spid %u%s holds %u and is %" PRIu64 " behind",
                     used ? ", " : ": ", name, *name ? " (" : "", peer->pid, *name ? ")" : "",
                     dlx__writer_link_n_held(link), behind);
        used += n > 0 ? (size_t)n : 0;
    }
}

/* Name the subscribers that keep the publisher from publishing. Returns `code`, or DLX_E_TIMEOUT
 * where required subscribers are missing; DLX_E_INTERRUPTED. */
static int blame(struct dlx_publisher *p, const struct goal *goal, int code,
                 const struct dlx_wait *wait)
{
    char who[DLX_ERROR_TEXT_SIZE];
    uint32_t n = goal->n_subscribers, most = DLX_MAX(p->args.depth, p->args.history);
    const char *limit = p->args.history > p->args.depth ? "history" : "depth"; /* the larger one */
    if (p->detours & DLX_DETOUR_REJOIN)
        return dlx__fail(code, "topic %s: reliable subscribers have yet to join the new dlpackd",
                         p->topic);
    if (goal->lacks_subscribers) {
        int r = fail_for_subscribers(p, n, wait);
        if (r != DLX_E_TIMEOUT)
            return r;
        return dlx__fail_prefix(r, "nothing was published, since min_subscribers is %u%s", n,
                                wait->deadline == 0 ? " (it did not wait: timeout_ns is 0)" : "");
    }
    if (dlx__writer_misses_link(&p->core))
        return dlx__fail(
            code,
            "topic %s: %" PRIu64 " subscribers could not be attached (%s), so nothing can "
            "be dropped (%s %u)",
            p->topic, dlx__writer_n_missing(&p->core), why_not_attached(p), limit, most);
    if (goal->queued_bytes >= p->args.max_queued_bytes && (p->detours & DLX_DETOUR_BYTES)) {
        struct dlx_writer_group *late =
            dlx__publisher_late_group(p, dlx__writer_head(&p->core), false);
        int r = 0;
        if (late)
            r = dlx__publisher_describe_late(p, late, wait->deadline != 0, who);
        else
            (void)snprintf(who, sizeof who, "a reliable subscriber has yet to take them");
        if (r < 0)
            return r;
        return dlx__fail(code,
                         "topic %s: %s wait already (max_queued_bytes %s): %.300s; wait longer "
                         "(timeout), or raise max_queued_bytes",
                         p->topic, DLX_AMOUNT(goal->queued_bytes),
                         DLX_AMOUNT(p->args.max_queued_bytes), who);
    }
    uint64_t window = dlx__writer_head(&p->core) - DLX_MIN(most, dlx__writer_head(&p->core));
    struct dlx_writer_group *group = dlx__publisher_late_group(p, window + 1, false);
    if (group) {
        int r = dlx__publisher_describe_late(p, group, wait->deadline != 0, who);
        if (r < 0)
            return r;
        return dlx__fail(code,
                         "topic %s: %s; a group may be %s %u behind: wait longer (timeout), raise "
                         "%s, or add workers",
                         p->topic, who, limit, most, limit);
    }
    list_blocking(p, who, sizeof who);
    return dlx__fail(code,
                     "topic %s: a reliable subscriber is as far behind as it may be (%s %u)%.250s; "
                     "wait longer (timeout), raise %s, or stop that subscriber",
                     p->topic, limit, most, who, limit);
}

/* All that a message needs before it can be published. */
static int look_for_room(struct dlx_publisher *p, struct goal *goal)
{
    int r = 0;
    if (p->detours & DLX_DETOUR_REFUSED)
        return fail_refused(p);
    if (p->detours & DLX_DETOUR_REJOIN) {
        bool rejoined = dlx__publisher_link_have_rejoined(p, false);
        dlx__publisher_detour(p, DLX_DETOUR_REJOIN, !rejoined);
        r = rejoined ? 0 : DLX_E_FULL;
    }
    if (r == 0 && (p->detours & DLX_DETOUR_REQUIRE))
        r = look_for_subscribers(p, goal);
    if (r == 0 && (p->detours & DLX_DETOUR_BYTES)) {
        goal->queued_bytes = dlx__writer_queued_bytes(&p->core);
        r = goal->queued_bytes >= p->args.max_queued_bytes ? DLX_E_FULL : 0;
    }
    return r < 0 ? r : dlx__writer_make_room(&p->core);
}

static int find_room(struct dlx_publisher *p, struct dlx_wait *wait)
{
    struct goal goal = {.look = look_for_room, .n_subscribers = p->args.min_subscribers};
    bool waits = wait->deadline != 0;
    int r = look_for_room(p, &goal);
    if (r != DLX_E_FULL && r != DLX_E_ACCESS)
        return r;
    /* A daemon that has ended may be why: with another one there is room. And the one that refused
     * the publisher may take it again. */
    bool is_late =
        p->daemon.link_sock < 0 || (p->detours & ~(uint32_t)(DLX_DETOUR_ARMED | DLX_DETOUR_BYTES));
    if (is_late) {
        dlx__publisher_look(p, dlx__now_ns());
        r = look_for_room(p, &goal);
    }
    if (r == DLX_E_FULL && waits) {
        p->stats.blocked++;
        p->waits_since = dlx__now_ns();
        dlx__publisher_tell_waited(p, dlx__writer_control(&p->core));
        r = wait_until(p, &goal, wait);
        p->waited_ns += dlx__now_ns() - p->waits_since;
        p->waits_since = 0;
        dlx__publisher_tell_waited(p, dlx__writer_control(&p->core));
    } else if (r == DLX_E_FULL && (is_late || dlx__publisher_link_misses_end(p))) {
        dlx__publisher_link_env.pick_up(p);
        dlx__writer_look_for_dead(&p->core);
        r = look_for_room(p, &goal);
    }
    if (r != DLX_E_FULL && r != DLX_E_TIMEOUT)
        return r;
    r = blame(p, &goal, r, wait);
    p->stats.refused += r != DLX_E_INTERRUPTED;
    return r;
}

/* How long a message waits for room depends on the publisher, too. */
static void set_deadline(const struct dlx_publisher *p, struct dlx_wait *wait)
{
    if (p->args.on_full == DLX_ON_FULL_FAIL)
        wait->deadline = 0;
    else if (p->args.on_full == DLX_ON_FULL_DEFAULT && p->args.n_groups > 0 && wait->deadline == 0)
        wait->deadline = UINT64_MAX;
}

int dlx__publish_room_slowly(struct dlx_publisher *p, struct dlx_wait *wait)
{
    uint64_t epoch = p->epoch;
    set_deadline(p, wait);
    arm_begin(p);
    int r = arm_end(p, find_room(p, wait));
    dlx_store64_relaxed(&dlx__writer_control(&p->core)->refused, p->stats.refused);
    return r == 0 && p->epoch != epoch ? DLX__AGAIN : r;
}

/* ---- dlx_publisher_drain() ---------------------------------------------------------------- */

static int look_for_done(struct dlx_publisher *p, struct goal *goal)
{
    dlx__publisher_link_find_ends(p);
    (void)dlx__writer_passed(
        &p->core); /* workers that died may have kept what was carried closed */
    return dlx__publisher_late_group(p, goal->done, true) ? DLX_E_FULL : 0;
}

static int fail_undone(struct dlx_publisher *p, uint64_t to, const struct dlx_wait *wait)
{
    char late[DLX_LATE_GROUP_SIZE];
    struct dlx_writer_group *group = dlx__publisher_late_group(p, to, true);
    if (!group)
        return 0;
    int r = dlx__publisher_describe_late(p, group, wait->deadline != 0, late);
    return r < 0 ? r : dlx__fail(DLX_E_TIMEOUT, "topic %s: %s", p->topic, late);
}

int dlx_publisher_drain(struct dlx_publisher *p, int64_t timeout_ns)
{
    int r = dlx__publisher_begin(p, "dlx_publisher_drain");
    if (r < 0)
        return r;
    struct goal goal = {.look = look_for_done, .done = dlx__writer_head(&p->core)};
    struct dlx_wait wait = {.deadline = timeout_ns == 0 ? 0 : dlx__deadline(timeout_ns)};
    arm_begin(p);
    if (p->args.n_groups == 0)
        r = dlx__fail(DLX_E_INVALID,
                      "topic %s: dlx_publisher_drain() waits for groups that the publisher has "
                      "declared (groups), and it has declared none",
                      p->topic);
    else
        r = wait_until(p, &goal, &wait);
    if (r == DLX_E_TIMEOUT)
        r = fail_undone(p, goal.done, &wait);
    r = arm_end(p, r);
    dlx__publisher_leave(p);
    return r;
}

/* ---- another daemon ----------------------------------------------------------------------- */

/* A later daemon has shown this block to subscribers, so the publisher frees nothing. */
static bool is_shown(const struct dlx_publisher *p)
{
    return dlx__writer_heeds_locks(&p->core) && !dlx__writer_has_daemon(&p->core) &&
           dlx__region_is_locked(p->daemon.control_fd);
}

/* Can the attempt that failed be made again? */
static int look_for_change(struct dlx_publisher *p, struct goal *goal)
{
    if (p->epoch != goal->epoch || (goal->was_shown && !is_shown(p)))
        return 0;
    return p->detours & DLX_DETOUR_REFUSED ? fail_refused(p) : DLX_E_FULL;
}

int dlx__publisher_go_on(struct dlx_publisher *p, int r, struct dlx_wait *wait)
{
    char why[DLX_ERROR_TEXT_SIZE];
    if (r != DLX_E_DISCONNECTED && r != DLX_E_NOT_FOUND)
        return r;
    memcpy(why, dlx__error_message(), sizeof why);
    struct goal goal = {.look = look_for_change, .epoch = p->epoch, .was_shown = is_shown(p)};
    /* A daemon that has shown the publisher answers soon. */
    goal.hurry =
        wait->deadline == 0 && !goal.was_shown ? DLX_HURRY_NOW_AND_THEN : DLX_HURRY_WAITING;
    int waited = wait_until(p, &goal, wait);
    if (waited == DLX_E_TIMEOUT)
        return dlx__fail(r, "%s", why);
    return waited == 0 ? DLX__AGAIN : waited;
}

static int look_for_daemon(struct dlx_publisher *p, struct goal *goal)
{
    (void)goal;
    return dlx__publisher_has_daemon(p) ? 0 : DLX_E_FULL;
}

static int look_for_all(struct dlx_publisher *p, struct goal *goal)
{
    (void)goal;
    return p->daemon.link_sock < 0 || dlx__publisher_link_have_rejoined(p, true) ? 0 : DLX_E_FULL;
}

void dlx__publisher_drain(struct dlx_publisher *p, int64_t timeout_ns)
{
    struct goal daemon = {.look = look_for_daemon, .hurry = DLX_HURRY_WAITING};
    struct goal all = {.look = look_for_all};
    struct dlx_wait wait = {.deadline = dlx__deadline(timeout_ns)}, once = {.deadline = 0};
    /* Reliable subscribers may not have been sent all that they have yet to take. */
    if (dlx__writer_head(&p->core) > dlx__writer_passed(&p->core))
        (void)wait_until(p, &daemon, &wait);
    else if (dlx__writer_heeds_locks(&p->core) || p->args.n_groups > 0)
        /* A daemon that shows the publisher, or keeps its queues, has yet to hear that it ends. */
        (void)wait_until(p, &daemon, &once);
    if (dlx__writer_head(&p->core) > p->daemon.base && p->daemon.link_sock >= 0) {
        dlx__writer_look_for_dead(&p->core);
        (void)wait_until(p, &all, &wait);
    }
    dlx__writer_set_blocked(&p->core, false);
}
