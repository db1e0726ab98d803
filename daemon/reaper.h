/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_REAPER_H
#define DLXD_REAPER_H

/*
 * Closing the last descriptor of a region gives its pages back to the kernel, within close(2): 75 ms a
 * GiB were seen. Large ones are closed on a thread of libuv's pool, so that nobody else waits.
 */

#include "common/util.h"

struct uv_loop_s;

/* Closes the fd, now or soon. -1 is ignored. Returns -1. */
int dlxd_reaper_close(struct uv_loop_s *loop, int take_fd, uint64_t size);

#endif
