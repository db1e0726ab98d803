/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_WATCH_H
#define DLXD_WATCH_H

/*
 * Readiness of an fd, by libuv's loop. A watch borrows its fd: free the watch, then close the fd.
 * libuv keeps a handle until its close callback, so the handle is an allocation of its own here and
 * the object that owns the watch can be freed at once.
 */

#include "common/util.h"

struct uv_loop_s;
struct dlxd_watch;

enum dlxd_watch_events { DLXD_READABLE = 1, DLXD_WRITABLE = 2 };

/* Called with the events that hold; an error of the fd shows as DLXD_READABLE. */
typedef void dlxd_watch_fn(void *data, int events);

int dlxd_watch_new(struct dlxd_watch **ret, struct uv_loop_s *loop, int borrow_fd, int events,
                   dlxd_watch_fn *fn, void *data);
/* Watch for these instead; 0 pauses. No system call when nothing changes. */
void dlxd_watch_set(struct dlxd_watch *watch, int events);
/* No more calls of `fn` from here on. Returns NULL; NULL is fine. */
struct dlxd_watch *dlxd_watch_free(struct dlxd_watch *watch);

#endif
