/* SPDX-License-Identifier: Apache-2.0 */

#include "client/publish/publisher_fd.h"
#include "client/control/wait.h"
#include "client/publish/publisher.h"
#include "client/publish/publisher_reconnect.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

void dlx__publisher_link_unblock(struct dlx_publisher *p)
{
    if (!(p->detours & DLX_DETOUR_ARMED))
        dlx__writer_set_blocked(&p->core, false);
}

void dlx__publisher_link_arm_begin(struct dlx_publisher *p)
{
    struct dlx_wait once = {.deadline = 0};
    if (p->ready.fd < 0)
        return;
    dlx__publisher_detour(p, DLX_DETOUR_ARMED, true);
    p->ready.armed_block = dlx__writer_control(&p->core);
    dlx__writer_set_blocked(&p->core, true);
    (void)dlx__publisher_link_wait(p, &once);
    dlx__error_clear();
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
 * nothing tells: it is looked for less and less often, up to once in DLX_LOOK_NS.
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

/* Put what may make room where the eventfd, or what might have made it before, was. The call
 * failed with `code`. */
static int replace_sources(struct dlx_publisher *p, int code)
{
    uint32_t n = 2 * dlx__writer_n_links(&p->core) + 1;
    dlx_cleanup(dlx__freep) struct pollfd *fds = calloc(n, sizeof *fds);
    if (!fds)
        return dlx__fail(DLX_E_NO_MEMORY, "waiting for %u links", dlx__writer_n_links(&p->core));
    bool looks_again = dlx__writer_control(&p->core) !=
                       p->ready.armed_block; /* its subscribers were not asked to ring */
    looks_again |= dlx__publisher_link_list_sources(p, fds);
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

int dlx__publisher_link_arm_end(struct dlx_publisher *p, int r)
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
