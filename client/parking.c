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
 *                       +------------------ bell, news -----------------+
 *
 * A link is in neither state before it is open, and while another one goes before it (`after`).
 */

#include "client/message.h"
#include "client/subscription.h"
#include <sys/epoll.h>
#include <sys/socket.h>

/* A bell has room for more than 200 bytes, and gets one for each time that it was asked for. */
#define RINGS_MAX 64U

void dlx__subscription_activate(struct dlx_subscription *s, struct dlx_inlet *inlet)
{
    if (inlet->is_active || inlet->state != DLX_INLET_OPEN || inlet->after)
        return;
    inlet->is_active = true;
    inlet->n_idle = 0;
    s->n_alone = 0;
    s->active[s->n_active++] = inlet; /* there is room for all links */
}

void dlx__subscription_deactivate(struct dlx_subscription *s, struct dlx_inlet *inlet)
{
    if (!inlet->is_active)
        return;
    uint32_t i = 0;
    while (s->active[i] != inlet)
        i++;
    s->active[i] = s->active[--s->n_active];
    inlet->is_active = false;
}

/* Read what a bell has: what its publisher, or the daemon, says, or nothing but that it rang.
 * Returns as recv(2). */
static ssize_t hear(struct dlx_inlet *inlet)
{
    uint8_t bytes[1024];
    ssize_t n = recv(inlet->bell, bytes, sizeof bytes, MSG_DONTWAIT); /* once: it may never stop */
    if (n > 0) {
        inlet->end = dlx__bell_hear(inlet->end, bytes, (size_t)n);
        inlet->holder = dlx__bell_holder(inlet->holder, bytes, (size_t)n);
        inlet->n_rings = 0;
    }
    return n;
}

/* The publisher is gone: it will not ring again. Drain what it published. Or it never knew of
 * us: then it is the daemon that has ended, or will tell why. */
static void hang_up(struct dlx_subscription *s, struct dlx_inlet *inlet)
{
    ssize_t n;
    while ((n = hear(inlet)) > 0) /* nobody can write more */
        ;
    if (n < 0 && errno != ECONNRESET) { /* no memory: the epoll names it again */
        struct epoll_event event = {.events = DLX_BELL_EVENTS, .data = {.ptr = inlet}};
        (void)epoll_ctl(s->epoll, EPOLL_CTL_MOD, inlet->bell, &event);
        return;
    }
    (void)epoll_ctl(s->epoll, EPOLL_CTL_DEL, inlet->bell, NULL);
    inlet->is_deaf = true;
    inlet->gone = inlet->gone || inlet->holder != DLX_BELL_DAEMON;
    if (inlet->end > 0)
        inlet->ended_at = DLX_MAX(inlet->ended_at, inlet->end - 1);
}

void dlx__subscription_on_bell(struct dlx_subscription *s, struct dlx_inlet *inlet, uint32_t events)
{
    if (events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR))
        hang_up(s, inlet);
    dlx__subscription_activate(s, inlet);
}

bool dlx__subscription_park(struct dlx_subscription *s, struct dlx_inlet *inlet)
{
    if (++inlet->n_rings > RINGS_MAX)
        (void)hear(inlet);
    if (inlet->is_deaf) /* nobody will name it: it stays active */
        return !inlet->gone && !dlx__reader_pending(&inlet->core);
    if (!dlx__reader_arm(&inlet->core))
        return false;
    dlx__subscription_deactivate(s, inlet);
    return true;
}
