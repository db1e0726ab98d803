/* SPDX-License-Identifier: Apache-2.0 */
#include "client/subscribe/subscription.h"
#include <sys/epoll.h>
#include <sys/eventfd.h>

/* No publisher was asked to ring yet, and there may be something already: the first poll says
 * "look", and the EMPTY that follows is the one that arms. */
static int add_nudge(struct dlx_subscription *s)
{
    struct epoll_event event = {.events = EPOLLIN, .data = {.ptr = &s->nudge}};
    dlx_cleanup(dlx__closep) int nudge = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
    if (nudge < 0)
        return dlx__fail_errno("eventfd");
    if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, nudge, &event) < 0)
        return dlx__fail_errno("epoll_ctl");
    s->nudge = dlx__steal_fd(&nudge);
    s->fd_given = true;
    return 0;
}

int dlx_subscription_fd(struct dlx_subscription *s)
{
    int r = dlx__subscription_begin(s, "dlx_subscription_fd");
    if (r < 0)
        return r;
    if (!s->fd_given)
        r = add_nudge(s);
    if (r == 0)
        r = s->epoll;
    dlx__subscription_leave(s);
    return r;
}
