/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/watch.h"
#include "common/error.h"
#include <uv.h>

struct dlxd_watch {
    uv_poll_t poll;
    int events;
    dlxd_watch_fn *fn;
    void *data;
};

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct dlxd_watch *watch = poll->data;
    int seen = 0;
    if (status < 0 || (events & (UV_READABLE | UV_DISCONNECT)))
        seen |= DLXD_READABLE;
    if (events & UV_WRITABLE)
        seen |= DLXD_WRITABLE;
    if (seen)
        watch->fn(watch->data, seen);
}

static void on_close(uv_handle_t *handle)
{
    free(handle->data);
}

int dlxd_watch_new(struct dlxd_watch **ret, struct uv_loop_s *loop, int fd, int events,
                   dlxd_watch_fn *fn, void *data)
{
    struct dlxd_watch *watch = calloc(1, sizeof *watch);
    if (!watch)
        return dlx__fail(DLX_E_NO_MEMORY, "watching a file descriptor");
    watch->fn = fn;
    watch->data = data;
    int r = uv_poll_init(loop, &watch->poll, fd);
    if (r < 0) {
        free(watch);
        return dlx__fail(dlx__error_from_errno(-r), "watching a file descriptor: %s",
                         uv_strerror(r));
    }
    watch->poll.data = watch;
    dlxd_watch_set(watch, events);
    *ret = watch;
    return 0;
}

void dlxd_watch_set(struct dlxd_watch *watch, int events)
{
    if (events == watch->events)
        return;
    watch->events = events;
    if (events == 0) {
        (void)uv_poll_stop(&watch->poll);
        return;
    }
    int mask = UV_DISCONNECT;
    if (events & DLXD_READABLE)
        mask |= UV_READABLE;
    if (events & DLXD_WRITABLE)
        mask |= UV_WRITABLE;
    (void)uv_poll_start(&watch->poll, mask, on_poll);
}

struct dlxd_watch *dlxd_watch_free(struct dlxd_watch *watch)
{
    if (watch) {
        (void)uv_poll_stop(&watch->poll);
        uv_close((uv_handle_t *)&watch->poll, on_close);
    }
    return NULL;
}
