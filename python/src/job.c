/* SPDX-License-Identifier: Apache-2.0 */
#include "job.h"
#include "args.h"
#include "asking.h"
#include "errors.h"
#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Whose thread this is. */
static _Thread_local const struct dlxpy_job *mine;

bool dlxpy_job_is_left(void)
{
    return mine && atomic_load(&mine->alone);
}

void dlxpy_job_init(struct dlxpy_job *job, void (*run)(struct dlxpy_job *job),
                    void (*free)(struct dlxpy_job *job))
{
    job->run = run;
    job->free = free;
}

/* sem_clockwait() is of glibc 2.30, which a manylinux_2_28 wheel may not need; a condition variable is not
 * interrupted by signals. */
static void finish(struct dlxpy_job *job)
{
    atomic_store(&job->done, 1);
    (void)syscall(SYS_futex, &job->done, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void end(struct dlxpy_job *job)
{
    job->free(job);
}

/* Nothing of it is left when this returns; unless the call has not: then, when it does. */
void dlxpy_job_leave(struct dlxpy_job *job)
{
    pthread_t thread = job->thread;
    bool started = job->started;
    if (started && !atomic_exchange(&job->alone, true)) {
        (void)pthread_detach(thread);
        return;
    }
    if (started)
        (void)pthread_join(thread, NULL);
    end(job);
}

static void work(struct dlxpy_job *job)
{
    job->run(job);
    if (job->r < 0)
        strncat(job->words, dlx_client_errmsg(NULL), sizeof job->words - 1);
}

static void *run(void *data)
{
    struct dlxpy_job *job = data;
    mine = job;
    work(job);
    if (atomic_exchange(&job->alone, true))
        end(job);
    else
        finish(job);
    return NULL;
}

/* Signals are for the threads that were there before. Without a thread it is done here, as good but for Ctrl-C. */
static void start(struct dlxpy_job *job)
{
    sigset_t all, old;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    job->started = pthread_create(&job->thread, NULL, run, job) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (job->started)
        return;
    work(job);
    finish(job);
}

/* Returns true when it is done, early also for a signal. */
static bool wait_a_little(struct dlxpy_job *job)
{
    const struct timespec slice = {.tv_nsec = DLXPY_SLICE_NS};
    if (!atomic_load(&job->done))
        (void)syscall(SYS_futex, &job->done, FUTEX_WAIT_PRIVATE, 0, &slice, NULL, 0);
    return atomic_load(&job->done);
}

int dlxpy_job_do(struct dlxpy_job *job, const struct dlxpy_handle *h)
{
    bool done;
    Py_BEGIN_ALLOW_THREADS
    start(job);
    done = wait_a_little(job);
    Py_END_ALLOW_THREADS
    while (!done) {
        if (dlxpy_handle_go_on(h) < 0 || dlxpy_asking_may_wait(h) < 0)
            return -1;
        Py_BEGIN_ALLOW_THREADS
        done = wait_a_little(job);
        Py_END_ALLOW_THREADS
    }
    if (job->r < 0)
        (void)dlxpy_raise_text(job->r, "%s", job->words[0] ? job->words : dlx_strerror(job->r));
    return job->r < 0 ? -1 : 0;
}
