/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_WATCH_H
#define DLXD_WATCH_H

/*
 * Readiness of fds: an epoll of our own, which libuv's loop watches as one fd. libuv ends the process when
 * epoll_ctl() fails, and clients can make it fail (fs.epoll.max_user_watches is a limit a user); here
 * that is an error of the one watch. A watch borrows its fd: free the watch, then close the fd.
 */

#include "common/util.h"

struct uv_loop_s;
struct dlxd_watch;
struct dlxd_watches;

enum dlxd_watch_events { DLXD_READABLE = 1, DLXD_WRITABLE = 2 };

/* Called with the events that hold; an error of the fd shows as DLXD_READABLE. */
typedef void dlxd_watch_fn(void *data, int events);

int dlxd_watches_new(struct dlxd_watches **ret, struct uv_loop_s *loop);
/* After the last watch; the loop must run once more. Returns NULL; NULL is fine. */
struct dlxd_watches *dlxd_watches_free(struct dlxd_watches *watches);

/* Returns 0; DLX_E_NO_MEMORY. */
int dlxd_watch_new(struct dlxd_watch **ret, struct dlxd_watches *watches, int borrow_fd, int events,
                   dlxd_watch_fn *fn, void *data);
/* Watch for these instead; 0 pauses. No system call when nothing changes. */
void dlxd_watch_set(struct dlxd_watch *watch, int events);
/* No more calls of `fn` from here on. Returns NULL; NULL is fine. */
struct dlxd_watch *dlxd_watch_free(struct dlxd_watch *watch);

#endif
