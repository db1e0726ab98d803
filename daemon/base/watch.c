/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/watch.h"
#include "common/error.h"
#include <sys/epoll.h>
#include <uv.h>

#define BATCH 64

struct dlxd_watch {
    struct dlxd_watches *watches;
    int fd;
    int events;
    dlxd_watch_fn *fn; /* NULL once freed */
    void *data;
    struct dlxd_watch *next_freed;
};

struct dlxd_watches {
    uv_poll_t poll; /* of `epoll` */
    int epoll;
    bool dispatching;         /* events on the stack refer to watches */
    struct dlxd_watch *freed; /* freed while dispatching */
};

static uint32_t mask_of(int events)
{
    uint32_t mask = 0;
    /* Paused: the kernel still reports errors and hang-ups, but only once each. */
    if (events == 0)
        return EPOLLET;
    if (events & DLXD_READABLE)
        mask |= EPOLLIN | EPOLLRDHUP;
    if (events & DLXD_WRITABLE)
        mask |= EPOLLOUT;
    return mask;
}

static void dispatch(struct dlxd_watch *watch, uint32_t events)
{
    int seen = 0;
    if (!watch->fn || watch->events == 0)
        return;
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        seen |= DLXD_READABLE;
    if (events & EPOLLOUT)
        seen |= DLXD_WRITABLE;
    if (seen)
        watch->fn(watch->data, seen);
}

static void on_poll(uv_poll_t *poll, int status, int uv_events)
{
    struct dlxd_watches *watches = poll->data;
    struct epoll_event events[BATCH];
    (void)status;
    (void)uv_events;
    int n = epoll_wait(watches->epoll, events, BATCH, 0);
    watches->dispatching = true;
    for (int i = 0; i < n; i++)
        dispatch(events[i].data.ptr, events[i].events);
    watches->dispatching = false;
    while (watches->freed) {
        struct dlxd_watch *watch = watches->freed;
        watches->freed = watch->next_freed;
        free(watch);
    }
}

static void watch_on_close(uv_handle_t *handle)
{
    struct dlxd_watches *watches = handle->data;
    dlx__close(watches->epoll);
    free(watches);
}

int dlxd_watches_new(struct dlxd_watches **ret, struct uv_loop_s *loop)
{
    struct dlxd_watches *watches = calloc(1, sizeof *watches);
    if (!watches)
        return dlx__fail(DLX_E_NO_MEMORY, "watching file descriptors");
    watches->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (watches->epoll < 0) {
        free(watches);
        return dlx__fail_errno("epoll_create1");
    }
    int r = uv_poll_init(loop, &watches->poll, watches->epoll);
    if (r < 0) {
        dlx__close(watches->epoll);
        free(watches);
        return dlx__fail(dlx__error_from_errno(-r), "watching file descriptors: %s",
                         uv_strerror(r));
    }
    watches->poll.data = watches;
    (void)uv_poll_start(&watches->poll, UV_READABLE, on_poll);
    *ret = watches;
    return 0;
}

struct dlxd_watches *dlxd_watches_free(struct dlxd_watches *watches)
{
    if (watches) {
        (void)uv_poll_stop(&watches->poll);
        uv_close((uv_handle_t *)&watches->poll, watch_on_close);
    }
    return NULL;
}

int dlxd_watch_new(struct dlxd_watch **ret, struct dlxd_watches *watches, int fd, int events,
                   dlxd_watch_fn *fn, void *data)
{
    struct dlxd_watch *watch = calloc(1, sizeof *watch);
    if (!watch)
        return dlx__fail(DLX_E_NO_MEMORY, "watching a file descriptor");
    *watch =
        (struct dlxd_watch){.watches = watches, .fd = fd, .events = events, .fn = fn, .data = data};
    struct epoll_event event = {.events = mask_of(events), .data = {.ptr = watch}};
    if (epoll_ctl(watches->epoll, EPOLL_CTL_ADD, fd, &event) < 0) {
        int r = dlx__fail_errno("watching a file descriptor (fs.epoll.max_user_watches)");
        free(watch);
        return r;
    }
    *ret = watch;
    return 0;
}

void dlxd_watch_set(struct dlxd_watch *watch, int events)
{
    if (events == watch->events)
        return;
    watch->events = events;
    struct epoll_event event = {.events = mask_of(events), .data = {.ptr = watch}};
    /* Cannot fail: the fd is already registered, and the change needs no memory. */
    (void)epoll_ctl(watch->watches->epoll, EPOLL_CTL_MOD, watch->fd, &event);
}

struct dlxd_watch *dlxd_watch_free(struct dlxd_watch *watch)
{
    if (!watch)
        return NULL;
    struct dlxd_watches *watches = watch->watches;
    (void)epoll_ctl(watches->epoll, EPOLL_CTL_DEL, watch->fd, NULL);
    if (watches->dispatching) {
        watch->fn = NULL;
        watch->next_freed = watches->freed;
        watches->freed = watch;
    } else {
        free(watch);
    }
    return NULL;
}
