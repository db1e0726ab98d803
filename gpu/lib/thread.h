/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_THREAD_H
#define DLX_GPU_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

/* A thread of this library. Signals are for the program's own threads. Returns false if there can
 * be none. */
static inline bool dlx__gpu_thread_start(pthread_t *ret, void *(*run)(void *arg), void *arg)
{
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    bool is_started = pthread_create(ret, NULL, run, arg) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return is_started;
}

#endif
