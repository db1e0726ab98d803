/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_WORKER_H
#define DLXD_WORKER_H

/*
 * Jobs beside the loop, for work that takes long or may wait for a client. Most are of two kinds:
 *
 * - The proof that all pages of a region are present (proof.h). It takes 40 ms per GiB, and longer
 *   if pages were swapped out. No client can make it wait forever.
 * - Closing a descriptor. Closing the last one of a region returns its pages to the kernel, which
 *   takes 75 ms per GiB. Before Linux 6.16, the queue of a socket may contain descriptors that its
 *   peer sent, and closing a TCP socket with SO_LINGER takes as long as its maker likes.
 *
 * The others read a configuration, try a new program, and start the GPU keeper.
 *
 * Each user has a queue of jobs and one of descriptors to close. One of each runs at a time, and
 * users take turns. So a user with a slow or endless job delays only its own jobs, and no proof
 * waits until gigabytes that went before it are returned. There are at most DLXD_WORKERS_MAX
 * threads; one is started when a queue has work and no thread is free. If that many queues have an
 * endless job, the jobs of all other users wait for one of the threads.
 *
 * The threads are not those of libuv's pool, because libuv aborts the process if it cannot start
 * its threads, and clients of the daemon's user can cause that (RLIMIT_NPROC, TasksMax). If no
 * thread at all can be started, dlxd_workers_run() fails and descriptors are closed at once. The
 * next job tries again. A thread allocates no memory.
 *
 * A job cannot be cancelled, so an owner that is freed first must tell its `done`. When the daemon
 * ends, it waits one second for running jobs and leaves the others to the end of the process.
 */

#include "common/util.h"

#define DLXD_WORKERS_MAX 16U

struct dlxd_user;
struct dlxd_workers;
struct uv_loop_s;

typedef void dlxd_job_fn(void *data);

/* Starts no thread yet. Returns 0; DLX_E_NO_MEMORY, DLX_E_SYSTEM. */
int dlxd_workers_new(struct dlxd_workers **ret, struct uv_loop_s *loop);
/* Reports the finished jobs and waits for no other. The loop must run once more. Returns NULL;
 * accepts NULL. */
struct dlxd_workers *dlxd_workers_free(struct dlxd_workers *workers);

/* Calls `run` on a thread and then `done`, which may be NULL, on the loop. `whose` only identifies
 * the queue of the user, and may be NULL. Returns 0; DLX_E_NO_MEMORY, DLX_E_SYSTEM (there is no
 * thread): then neither function is called. */
int dlxd_workers_run(struct dlxd_workers *workers, const struct dlxd_user *whose, dlxd_job_fn *run,
                     dlxd_job_fn *done, void *data);

/* Closes the descriptor of a region soon. Ignores -1. Returns -1. */
int dlxd_workers_close(struct dlxd_workers *workers, const struct dlxd_user *whose, int take_fd);
/* The same for a socket whose other end a client has or had. Closes it now if its queue cannot
 * contain descriptors. */
int dlxd_workers_close_socket(struct dlxd_workers *workers, const struct dlxd_user *whose,
                              int take_fd);

/* The number of unfinished jobs, including closing. */
size_t dlxd_workers_n_jobs(const struct dlxd_workers *workers);
/* How long the longest-running job has been running; 0 if none runs. */
uint64_t dlxd_workers_longest_ns(struct dlxd_workers *workers);

#endif
