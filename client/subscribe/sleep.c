/* SPDX-License-Identifier: Apache-2.0 */
#include "client/subscribe/sleep.h"
#include "client/message/message.h"
#include "client/subscribe/subscription.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

/* A bell has room for more than 200 bytes, and gets one for each time that it was asked for. */
#define RINGS_MAX 64U

/* Read what a bell has: what its publisher, or the daemon, says, or nothing but that it rang.
 * Returns as recv(2). */
static ssize_t hear(struct dlx_subscriber_link *link)
{
    uint8_t bytes[1024];
    ssize_t n = recv(link->bell, bytes, sizeof bytes, MSG_DONTWAIT); /* once: it may never stop */
    if (n > 0) {
        link->end = dlx__bell_hear(link->end, bytes, (size_t)n);
        link->holder = dlx__bell_holder(link->holder, bytes, (size_t)n);
        link->n_rings = 0;
    }
    return n;
}

/* The publisher is gone: it will not ring again. Drain what it published. Or it never knew of
 * us: then it is the daemon that has ended, or will tell why. Returns true if the link was cut. */
static bool hang_up(struct dlx_subscription *s, struct dlx_subscriber_link *link)
{
    ssize_t n;
    while ((n = hear(link)) > 0) /* the publisher can write no more */
        ;
    if (n < 0 && errno != ECONNRESET) { /* no memory: the epoll names it again */
        struct epoll_event event = {.events = DLX_BELL_EVENTS, .data = {.ptr = link}};
        (void)epoll_ctl(s->epoll, EPOLL_CTL_MOD, link->bell, &event);
        return false;
    }
    (void)epoll_ctl(s->epoll, EPOLL_CTL_DEL, link->bell, NULL);
    if (link->holder == DLX_BELL_CUT_BY_DAEMON || link->holder == DLX_BELL_CUT_BY_PUBLISHER)
        return true;
    link->holder = link->holder == DLX_BELL_DAEMON ? DLX_BELL_LOST : DLX_BELL_HUNG_UP;
    if (link->holder == DLX_BELL_HUNG_UP)
        dlx__subscriber_link_drain(link);
    if (link->end > 0)
        link->ended_at = DLX_MAX(link->ended_at, link->end - 1);
    return false;
}

/* The epoll names a bell for each new byte, whether the ones before were read or not. */
static void on_bell(struct dlx_subscription *s, struct dlx_subscriber_link *link, uint32_t events)
{
    if ((events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR)) && hang_up(s, link))
        dlx__subscription_cut(s, link);
    else
        dlx__subscription_activate(s, link);
}

bool dlx__subscription_park(struct dlx_subscription *s, struct dlx_subscriber_link *link)
{
    if (link->holder >= DLX_BELL_HUNG_UP) /* no bell will name this link: it stays active */
        return link->state == DLX_LINK_LIVE && !dlx__reader_pending(&link->core);
    if (++link->n_rings > RINGS_MAX)
        (void)hear(link);
    if (!dlx__reader_arm(&link->core))
        return false;
    dlx__subscriber_link_look(link);
    dlx__subscription_deactivate(s, link);
    return true;
}

/* ---- workers -------------------------------------------------------------------------------- */

/* A worker whose process ends gives up its lock a little later than its sockets hang up: whoever
 * is told of that looks once more after so long. */
#define LOOK_AGAIN_NS 1000000

void dlx__subscription_look_at_others(struct dlx_subscription *s)
{
    for (uint32_t i = 0; s->worker && i < s->n_active; i++)
        s->active[i]->claims->looks = true;
    s->heads.n = 0;
}

static void on_worker_timer(struct dlx_subscription *s)
{
    uint64_t n;
    (void)!read(s->worker->timer, &n, sizeof n);
    dlx__subscription_look_at_others(s);
}

static void on_group_bell(struct dlx_subscription *s, struct dlx_subscriber_link *link)
{
    link->claims->looks = true;
    s->heads.n = 0;
    dlx__worker_set_timer(s->worker, LOOK_AGAIN_NS);
}

void dlx__subscription_disarm(struct dlx_subscription *s)
{
    atomic_store_explicit(&s->worker->sleeps_full, false, memory_order_relaxed);
    if (!s->worker->is_armed)
        return;
    for (uint32_t i = 0; i < s->n_active; i++)
        dlx__claims_disarm(&s->active[i]->claims->core);
    dlx_fence(); /* tickets, then gen: who is not rung for a message sees it */
    s->worker->is_armed = false;
    s->worker->was_rung = true;
}

void dlx__subscription_pass_on(struct dlx_subscription *s, const struct dlx_subscriber_link *link)
{
    for (uint32_t i = 0; s->worker->was_rung && i < s->n_active; i++)
        if (s->active[i] != link && dlx__claims_has_unclaimed(&s->active[i]->claims->core))
            dlx__worker_link_ring(s->active[i]->claims);
    s->worker->was_rung = false;
}

/* All tickets are odd before the first look: tests/model/wake.pml, ARMFIRST. A worker that may
 * claim nothing is not rung. */
static bool arm_worker(struct dlx_subscription *s)
{
    bool nothing = true;
    if (dlx__worker_sleeps_full(s->worker))
        return true;
    for (uint32_t i = 0; i < s->n_active; i++) {
        struct dlx_subscriber_link *link = s->active[i];
        if (++link->n_rings > RINGS_MAX && link->holder < DLX_BELL_HUNG_UP)
            (void)hear(link);
        dlx__claims_arm(&link->claims->core);
    }
    dlx_fence();
    s->worker->is_armed = true;
    for (uint32_t i = 0; i < s->n_active; i++) {
        struct dlx_subscriber_link *link = s->active[i];
        nothing &= !link->claims->looks && (!dlx__subscriber_link_listens(link) ||
                                            dlx__claims_nothing_there(&link->claims->core));
        dlx__subscriber_link_look(link);
    }
    return nothing;
}

/* ---- waiting --------------------------------------------------------------------------------- */

static bool is_pending(const struct dlx_subscriber_link *link)
{
    if (dlx_unlikely(link->claims))
        return link->claims->looks || dlx__claims_has_unclaimed(&link->claims->core);
    return dlx__reader_pending(&link->core);
}

static bool pending(const struct dlx_subscription *s)
{
    for (uint32_t i = 0; i < s->n_active; i++)
        if (dlx__subscriber_link_listens(s->active[i]) && is_pending(s->active[i]))
            return true;
    return false;
}

static void on_timer(struct dlx_subscription *s)
{
    uint64_t n;
    (void)!read(s->timer, &n, sizeof n);
    if (s->sock < 0) /* nobody rings for a worker that has died */
        dlx__subscription_look_at_others(s);
    dlx__subscription_read_notifications(s);
}

static void forget_nudge(struct dlx_subscription *s)
{
    uint64_t n;
    (void)!read(s->nudge, &n, sizeof n);
}

int dlx__subscription_handle_events(struct dlx_subscription *s, int timeout_ms)
{
    struct epoll_event events[16];
    bool notification = false, timer = false;
    /* poll() sleeps, because SIGSTOP and SIGCONT end epoll_wait() although no handler ran:
     * signal(7). */
    struct pollfd pfd = {.fd = s->epoll, .events = POLLIN};
    int n = timeout_ms == 0 ? 1 : poll(&pfd, 1, timeout_ms);
    n = n > 0 ? epoll_wait(s->epoll, events, (int)DLX_ARRAY_SIZE(events), 0) : n;
    if (n < 0)
        return errno == EINTR ? DLX_E_INTERRUPTED : dlx__fail_errno("epoll_wait");
    for (int i = 0; i < n; i++) /* first: a bell may be of a link that is cut */
        if (dlx__subscription_of_group_tag(events[i].data.ptr))
            on_group_bell(s, dlx__subscription_of_group_tag(events[i].data.ptr));
    for (int i = 0; i < n; i++) {
        if (dlx__subscription_of_group_tag(events[i].data.ptr))
            continue;
        if (!events[i].data.ptr)
            notification = true;
        else if (s->worker && events[i].data.ptr == &s->worker->timer)
            on_worker_timer(s);
        else if (events[i].data.ptr == &s->timer)
            timer = true;
        else if (events[i].data.ptr == &s->nudge)
            forget_nudge(s);
        else
            on_bell(s, events[i].data.ptr, events[i].events);
    }
    /* Last: it may free links that the events name. */
    if (timer)
        on_timer(s);
    if (notification)
        dlx__subscription_read_notifications(s);
    return n;
}

int dlx__subscription_ask(struct dlx_subscription *s, struct dlx_wait *wait, bool signalled)
{
    return dlx__wait_for_peers(wait, s->client, &s->turn, signalled, s->topic, "a message");
}

int dlx__subscription_sleep(struct dlx_subscription *s, struct dlx_wait *wait)
{
    uint64_t now = dlx__now_ns();
    s->stats.sleeps++;
    for (;;) {
        int n = dlx__subscription_handle_events(
            s, dlx__deadline_ms(dlx__wait_part(wait, s->client, now), now));
        if (n < 0 && n != DLX_E_INTERRUPTED)
            return n;
        now = dlx__now_ns();
        if (n == 0 && now >= wait->deadline)
            return 0;
        int r = dlx__subscription_ask(s, wait, n < 0);
        if (r < 0 || n > 0)
            return r;
    }
}

void dlx__subscription_look(struct dlx_subscription *s)
{
    bool cut_off = false;
    s->looks.last_ns =
        dlx__now_ns(); /* notifications are read by takes, too: that is no look at the bells */
    dlx__subscription_read_notifications(s);
    for (uint32_t i = 0; i < s->n_links; i++)
        cut_off |=
            s->links[i]->state == DLX_LINK_LIVE && dlx__subscription_is_cut_off(s, s->links[i]);
    if (cut_off || s->worker || s->n_active < s->n_open)
        (void)dlx__subscription_handle_events(s, 0);
}

/* Busy-wait until something is pending. Returns false when `until` has passed. */
static bool spin(struct dlx_subscription *s, uint64_t until)
{
    for (;;) {
        for (int i = 0; i < 64; i++) {
            if (pending(s))
                return true;
            dlx__cpu_relax();
        }
        uint64_t now = dlx__now_ns();
        if (now >= until)
            return false;
        if (s->n_active < s->n_open)
            (void)dlx__subscription_handle_events(s, 0); /* the bells of parked links */
        if (now - s->looks.last_ns > DLX_NOTIFICATION_EVERY_NS) {
            uint32_t n_links = s->n_links;
            dlx__subscription_look(s);
            for (uint32_t i = 0; i < s->n_links; i++)
                if (s->links[i]->state >= DLX_LINK_DRAINING || s->links[i]->wants == DLX_WANTS_NEWS)
                    return true;
            if (s->n_links != n_links || s->untold.failure < 0 ||
                (s->sock < 0 && !s->untold.told_lost))
                return true;
        }
    }
}

bool dlx__subscription_arm(struct dlx_subscription *s)
{
    bool nothing = true;
    if (dlx_unlikely(s->worker))
        return arm_worker(s);
    for (uint32_t i = s->n_active; i-- > 0;)
        if (dlx__subscriber_link_listens(s->active[i]))
            nothing &= dlx__subscription_park(s, s->active[i]);
    return nothing;
}

bool dlx__subscription_waits_for_news(const struct dlx_subscription *s)
{
    bool waits = dlx__subscription_joins(s);
    for (uint32_t i = 0; i < s->n_active; i++)
        waits |= !dlx__subscriber_link_listens(s->active[i]);
    return waits;
}

int dlx__subscription_spin(struct dlx_subscription *s, struct dlx_wait *wait, uint64_t until)
{
    for (;;) {
        uint64_t part = until;
        if (s->client->interrupt)
            part = DLX_MIN(until, dlx__wait_part(wait, s->client, dlx__now_ns()));
        if (spin(s, part))
            return 1;
        if (dlx__now_ns() >= until)
            return 0;
        int r = dlx__subscription_ask(s, wait, false);
        if (r < 0)
            return r;
    }
}
