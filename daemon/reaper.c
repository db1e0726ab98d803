/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/reaper.h"
#include "common/error.h"
#include "daemon/log.h"
#include <pthread.h>
#include <signal.h>
#include <string.h>

#define SMALL (UINT64_C(4) << 20)

struct job {
    struct job *next;
    int fd;
};

struct dlxd_reaper {
    pthread_mutex_t lock; /* of `jobs` and `stop`; everything else is the daemon's thread's */
    pthread_cond_t change;
    struct job *jobs; /* in no order */
    bool stop;
    bool started;
    bool complained;
    pthread_t thread;
};

int dlxd_reaper_new(struct dlxd_reaper **ret)
{
    struct dlxd_reaper *reaper = calloc(1, sizeof *reaper);
    if (!reaper)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a list of regions to close");
    (void)pthread_mutex_init(&reaper->lock, NULL);
    (void)pthread_cond_init(&reaper->change, NULL);
    *ret = reaper;
    return 0;
}

static void *run(void *userdata)
{
    struct dlxd_reaper *reaper = userdata;
    (void)pthread_mutex_lock(&reaper->lock);
    for (;;) {
        while (!reaper->jobs && !reaper->stop)
            (void)pthread_cond_wait(&reaper->change, &reaper->lock);
        struct job *job = reaper->jobs;
        if (!job)
            break;
        reaper->jobs = job->next;
        (void)pthread_mutex_unlock(&reaper->lock);
        dlx__close(job->fd);
        free(job);
        (void)pthread_mutex_lock(&reaper->lock);
    }
    (void)pthread_mutex_unlock(&reaper->lock);
    return NULL;
}

/* Signals are for the daemon's own thread. */
static bool start(struct dlxd_reaper *reaper)
{
    sigset_t all;
    sigset_t before;
    if (reaper->started)
        return true;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&reaper->thread, NULL, run, reaper);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    reaper->started = error == 0;
    if (!reaper->started && !reaper->complained)
        dlxd_log(DLXD_LOG_WARNING, "no thread to close large memory on: %s: others wait meanwhile",
                 strerror(error));
    reaper->complained = !reaper->started;
    return reaper->started;
}

struct dlxd_reaper *dlxd_reaper_free(struct dlxd_reaper *reaper)
{
    if (!reaper)
        return NULL;
    if (reaper->started) {
        (void)pthread_mutex_lock(&reaper->lock);
        reaper->stop = true;
        (void)pthread_cond_signal(&reaper->change);
        (void)pthread_mutex_unlock(&reaper->lock);
        (void)pthread_join(reaper->thread, NULL);
    }
    (void)pthread_cond_destroy(&reaper->change);
    (void)pthread_mutex_destroy(&reaper->lock);
    free(reaper);
    return NULL;
}

int dlxd_reaper_close(struct dlxd_reaper *reaper, int fd, uint64_t size)
{
    struct job *job = NULL;
    if (fd >= 0 && size > SMALL && start(reaper))
        job = malloc(sizeof *job);
    if (!job)
        return dlx__close(fd);
    job->fd = fd;
    (void)pthread_mutex_lock(&reaper->lock);
    job->next = reaper->jobs;
    reaper->jobs = job;
    (void)pthread_cond_signal(&reaper->change);
    (void)pthread_mutex_unlock(&reaper->lock);
    return -1;
}
