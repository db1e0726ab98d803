/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_WORKER_H
#define DLXD_WORKER_H

/*
 * Jobs beside the loop: what takes long, or may wait for a client. There are two kinds:
 *
 *   - A proof that all pages of a region are there (proof.h). It takes 40 ms a GiB, and longer
 *     when pages were swapped out. No client can make it wait for ever.
 *   - Closing a descriptor. The last one of a region gives its pages back to the kernel, which
 *     takes 75 ms a GiB. Before Linux 6.16 a socket may have descriptors in its queue that its
 *     peer sent. To close a TCP socket that lingers takes as long as its maker likes.
 *
 * Each user has a queue of jobs. One job of a user runs at a time, and users take turns. So a
 * user with a slow job, or with one that never ends, holds up only its own jobs. There are at most
 * DLXD_WORKERS_MAX threads. A thread is started when a user has a job and no thread is free. When
 * as many users have a job that does not end, the jobs of all other users wait for one of these.
 *
 * The threads are our own, not of libuv's pool: libuv ends the process when it cannot start its
 * threads, and clients of the daemon's user can bring that about (RLIMIT_NPROC, TasksMax). Where
 * no thread at all can be started, dlxd_workers_run() fails and a descriptor is closed at once.
 * The next job tries again. A thread allocates no memory.
 *
 * A job cannot be taken back: an owner that goes has to tell its `done`. When the daemon ends, it
 * waits a second for jobs to end, and leaves the others to the end of the process.
 */

#include "common/util.h"

#define DLXD_WORKERS_MAX 16U

struct dlxd_user;
struct dlxd_workers;
struct uv_loop_s;

typedef void dlxd_job_fn(void *data);

/* Starts no thread yet. Returns 0; DLX_E_NO_MEMORY, DLX_E_SYSTEM. */
int dlxd_workers_new(struct dlxd_workers **ret, struct uv_loop_s *loop);
/* Nobody waits for a job any more. The loop must run once more. Returns NULL; NULL is fine. */
struct dlxd_workers *dlxd_workers_free(struct dlxd_workers *workers);

/*
 * `run` on a thread, then `done` on the loop. `whose` tells users apart, is not looked into, and
 * may be NULL. Returns 0; DLX_E_NO_MEMORY, DLX_E_SYSTEM (there is no thread): nothing is called
 * then.
 */
int dlxd_workers_run(struct dlxd_workers *workers, const struct dlxd_user *whose, dlxd_job_fn *run,
                     dlxd_job_fn *done, void *data);

/* Close the descriptor of a region soon. -1 is ignored. Returns -1. */
int dlxd_workers_close(struct dlxd_workers *workers, const struct dlxd_user *whose, int take_fd);
/* The same for a socket whose other end a client has or had. It is closed now if its queue cannot
 * have descriptors in it. */
int dlxd_workers_close_socket(struct dlxd_workers *workers, const struct dlxd_user *whose,
                              int take_fd);

/* Jobs that were begun and are not done, closing included. */
size_t dlxd_workers_n_jobs(const struct dlxd_workers *workers);
/* How long the job runs that runs the longest; 0: none runs. */
uint64_t dlxd_workers_longest_ns(struct dlxd_workers *workers);

#endif
