/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_LOCK_H
#define DLX_CLIENT_LOCK_H

/*
 * A lock that a thread waits for until a time of CLOCK_MONOTONIC: the clock of the day jumps.
 * pthread_mutex_clocklock() does the same, but needs glibc 2.30, which a manylinux_2_28 wheel may
 * not, and is unknown to the thread sanitizers of gcc 12 and clang 14.
 */

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct dlx_lock {
    pthread_mutex_t mutex; /* for the rest; held for a few instructions */
    pthread_cond_t freed;
    bool held;
    pthread_t holder; /* while held */
};

/*
 * Returns 0 or an errno value. The memory may be given back without further ado: glibc keeps
 * nothing else, and pthread_cond_destroy() in a forked child would wait for threads that only its
 * parent has.
 */
int dlx__lock_init(struct dlx_lock *lock);

/*
 * Wait for the lock until `until_ns` of CLOCK_MONOTONIC; UINT64_MAX: without a limit. Returns 0;
 * ETIMEDOUT, but never for a free lock; EDEADLK: this thread holds the lock.
 */
int dlx__lock_until(struct dlx_lock *lock, uint64_t until_ns);
/* For the thread that holds the lock. */
void dlx__lock_release(struct dlx_lock *lock);

#endif
