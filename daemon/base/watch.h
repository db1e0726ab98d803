/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_WATCH_H
#define DLXD_WATCH_H

/*
 * Readiness of fds: an epoll instance of our own, which libuv's loop watches as one fd. libuv
 * aborts the process if epoll_ctl() fails, and clients can make it fail (fs.epoll.max_user_watches
 * limits each user); here it is an error of the one watch. A watch borrows its fd: free the watch,
 * then close the fd.
 */

#include "common/util.h"

struct uv_loop_s;
struct dlxd_watch;
struct dlxd_watches;

enum dlxd_watch_events { DLXD_READABLE = 1, DLXD_WRITABLE = 2 };

/* Called with the ready events; an error of the fd shows as DLXD_READABLE. */
typedef void dlxd_watch_fn(void *data, int events);

int dlxd_watches_new(struct dlxd_watches **ret, struct uv_loop_s *loop);
/* Call it after the last watch was freed; the loop must run once more. Returns NULL; accepts
 * NULL. */
struct dlxd_watches *dlxd_watches_free(struct dlxd_watches *watches);

/* Returns 0 or DLX_E_NO_MEMORY, DLX_E_LIMIT or DLX_E_SYSTEM. */
int dlxd_watch_new(struct dlxd_watch **ret, struct dlxd_watches *watches, int borrow_fd, int events,
                   dlxd_watch_fn *fn, void *data);
/* Changes the events; 0 pauses. Makes no system call if nothing changes. */
void dlxd_watch_set(struct dlxd_watch *watch, int events);
/* Ends the watch: `fn` is not called any more. Returns NULL; accepts NULL. */
struct dlxd_watch *dlxd_watch_free(struct dlxd_watch *watch);

#endif
