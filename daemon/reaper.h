/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_REAPER_H
#define DLXD_REAPER_H

/*
 * Closing the last descriptor of a region gives its pages back to the kernel, within close(2): 75 ms a
 * GiB were seen. Large ones are closed on a thread, so that nobody else waits.
 *
 * The thread is our own, not of libuv's pool: libuv ends the process when it cannot start its threads,
 * and clients of the daemon's user can bring that about (RLIMIT_NPROC, TasksMax). Here a thread that does
 * not start makes the one close slow, and the next one tries again.
 */

#include "common/util.h"

struct dlxd_reaper;

/* Starts no thread yet. Returns 0; DLX_E_NO_MEMORY. */
int dlxd_reaper_new(struct dlxd_reaper **ret);
/* Waits until everything is closed. Returns NULL; NULL is fine. */
struct dlxd_reaper *dlxd_reaper_free(struct dlxd_reaper *reaper);

/* Closes the fd, now or soon; `size` is that of its region. -1 is ignored. Returns -1. */
int dlxd_reaper_close(struct dlxd_reaper *reaper, int take_fd, uint64_t size);

#endif
