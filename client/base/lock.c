/* SPDX-License-Identifier: Apache-2.0 */
#include "client/base/lock.h"
#include <errno.h>
#include <time.h>

int dlx__lock_init(struct dlx_lock *lock)
{
    pthread_condattr_t monotonic;
    int e = pthread_condattr_init(&monotonic);
    if (e)
        return e;
    e = pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    if (e == 0)
        e = pthread_cond_init(&lock->freed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (e)
        return e;
    lock->held = false;
    return pthread_mutex_init(&lock->mutex, NULL);
}

int dlx__lock_until(struct dlx_lock *lock, uint64_t until_ns)
{
    const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000),
                                   .tv_nsec = (long)(until_ns % 1000000000)};
    int e = 0;
    pthread_mutex_lock(&lock->mutex);
    if (lock->held && pthread_equal(lock->holder, pthread_self()))
        e = EDEADLK;
    while (lock->held && e == 0)
        if (until_ns == UINT64_MAX)
            e = pthread_cond_wait(&lock->freed, &lock->mutex);
        else /* lint-allow: clock: the clock is monotonic: dlx__lock_init() */
            e = pthread_cond_timedwait(&lock->freed, &lock->mutex, &until);
    if (!lock->held) {
        lock->held = true;
        lock->holder = pthread_self();
        e = 0;
    }
    pthread_mutex_unlock(&lock->mutex);
    return e;
}

void dlx__lock_release(struct dlx_lock *lock)
{
    pthread_mutex_lock(&lock->mutex);
    lock->held = false;
    pthread_cond_signal(&lock->freed);
    pthread_mutex_unlock(&lock->mutex);
}
