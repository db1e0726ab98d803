/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Which links a take looks at, and the bells of the others.
 *
 * Links are ACTIVE, and every take looks at their rings, or PARKED: nothing was there, and their
 * publishers were asked to ring, so that the epoll names those that have something. So a take
 * costs what arrives, not what is linked.
 *
 *     start, turn --> ACTIVE --- asked to ring, and nothing there --> PARKED
 *                       ^                                               |
 *                       +------------------ bell, notifications -----------------+
 *
 * A link is in neither state before it is open, and while another one goes before it (`after`).
 */

#include "client/message/message.h"
#include "client/subscribe/subscription.h"
#include <sys/epoll.h>
#include <sys/socket.h>

/* A bell has room for more than 200 bytes, and gets one for each time that it was asked for. */
#define RINGS_MAX 64U

void dlx__subscription_activate(struct dlx_subscription *s, struct dlx_subscriber_link *link)
{
    if (link->is_active || link->state != DLX_SUBSCRIBER_LINK_OPEN || link->after)
        return;
    link->is_active = true;
    link->n_idle = 0;
    s->n_alone = 0;
    s->active[s->n_active++] = link; /* there is room for all links */
}

void dlx__subscription_deactivate(struct dlx_subscription *s, struct dlx_subscriber_link *link)
{
    if (!link->is_active)
        return;
    uint32_t i = 0;
    while (s->active[i] != link)
        i++;
    s->active[i] = s->active[--s->n_active];
    link->is_active = false;
}

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
    while ((n = hear(link)) > 0) /* nobody can write more */
        ;
    if (n < 0 && errno != ECONNRESET) { /* no memory: the epoll names it again */
        struct epoll_event event = {.events = DLX_BELL_EVENTS, .data = {.ptr = link}};
        (void)epoll_ctl(s->epoll, EPOLL_CTL_MOD, link->bell, &event);
        return false;
    }
    (void)epoll_ctl(s->epoll, EPOLL_CTL_DEL, link->bell, NULL);
    link->is_deaf = true;
    if (link->holder == DLX_BELL_CUT_BY_DAEMON || link->holder == DLX_BELL_CUT_BY_PUBLISHER)
        return true;
    if (link->holder != DLX_BELL_DAEMON)
        dlx__subscriber_link_no_more_messages(link);
    if (link->end > 0)
        link->ended_at = DLX_MAX(link->ended_at, link->end - 1);
    return false;
}

void dlx__subscription_on_bell(struct dlx_subscription *s, struct dlx_subscriber_link *link,
                               uint32_t events)
{
    if ((events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR)) && hang_up(s, link))
        dlx__subscription_cut(s, link);
    else
        dlx__subscription_activate(s, link);
}

bool dlx__subscription_park(struct dlx_subscription *s, struct dlx_subscriber_link *link)
{
    if (++link->n_rings > RINGS_MAX)
        (void)hear(link);
    if (link->is_deaf) /* nobody will name it: it stays active */
        return link->to_come == DLX_TO_COME_MESSAGES && !dlx__reader_pending(&link->core);
    if (!dlx__reader_arm(&link->core))
        return false;
    dlx__subscription_deactivate(s, link);
    return true;
}
