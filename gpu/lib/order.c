/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/lib/order.h"
#include "gpu/lib/thread.h"
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>

/* The longest pause between two attempts to wait. */
#define PAUSE_MOST_MS 100

static void set(dlx_atomic_u32 *word, enum dlx_gpu_ready ready)
{
    dlx_store32_release(word, (uint32_t)ready);
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

int dlx__gpu_job_wait(struct dlx_gpu_job *job)
{
    for (uint32_t i = 0; i < job->n_events; i++) {
        int r = dlx__gpu_event_wait(&job->events[i]);
        if (!dlx__gpu_has_ended(r))
            return r;
        job->result = job->result < 0 ? job->result : r;
        dlx__gpu_event_end(&job->events[i]);
    }
    return job->result;
}

/* Tries again: soon at first, then once in a while. */
static void set_when_ready(struct dlx_gpu_order *order, struct dlx_gpu_job *job)
{
    int r = dlx__gpu_job_wait(job);
    for (int pause_ms = 1;
         !dlx__gpu_has_ended(r) && !atomic_load_explicit(&order->gives_up, memory_order_relaxed);
         pause_ms = DLX_MIN(2 * pause_ms, PAUSE_MOST_MS)) {
        (void)poll(NULL, 0, pause_ms);
        r = dlx__gpu_job_wait(job);
    }
    if (order->has_thread) /* else nobody else knows of the job */
        (void)pthread_mutex_lock(&order->lock);
    job->result = r;
    if (job->word && dlx__gpu_has_ended(r))
        set(job->word, r < 0 ? DLX_GPU_FAILED : DLX_GPU_READY);
    if (job->busy && dlx__gpu_has_ended(r))
        atomic_store_explicit(job->busy, false, memory_order_release);
    if (order->has_thread)
        (void)pthread_mutex_unlock(&order->lock);
}

static void do_job(struct dlx_gpu_order *order, struct dlx_gpu_job *job)
{
    if (job->done)
        job->done(job, dlx__gpu_job_wait(job));
    else
        set_when_ready(order, job);
}

static void *order_main(void *arg)
{
    struct dlx_gpu_order *order = arg;
    (void)pthread_mutex_lock(&order->lock);
    while (!order->is_ending) {
        struct dlx_gpu_job *job = order->first;
        if (!job) {
            (void)pthread_cond_wait(&order->changed, &order->lock);
            continue;
        }
        order->first = job->next;
        if (!order->first)
            order->last = NULL;
        job->is_queued = false;
        order->current = job;
        (void)pthread_mutex_unlock(&order->lock);
        do_job(order, job);
        (void)pthread_mutex_lock(&order->lock);
        order->current = NULL;
        (void)pthread_cond_broadcast(&order->changed);
    }
    (void)pthread_mutex_unlock(&order->lock);
    return NULL;
}

static bool start_thread(struct dlx_gpu_order *order)
{
    pthread_condattr_t attributes;
    if (order->has_thread)
        return true;
    (void)pthread_mutex_init(&order->lock, NULL);
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&order->changed, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    order->has_thread = dlx__gpu_thread_start(&order->thread, order_main, order);
    if (!order->has_thread) {
        (void)pthread_cond_destroy(&order->changed);
        (void)pthread_mutex_destroy(&order->lock);
    }
    return order->has_thread;
}

bool dlx__gpu_order_try(struct dlx_gpu_order *order, struct dlx_gpu_job *job)
{
    if (!start_thread(order))
        return false;
    (void)pthread_mutex_lock(&order->lock);
    job->next = NULL;
    job->is_queued = true;
    if (order->last)
        order->last->next = job;
    else
        order->first = job;
    order->last = job;
    (void)pthread_mutex_unlock(&order->lock);
    (void)pthread_cond_broadcast(&order->changed); /* a thread that wakes finds the lock free */
    return true;
}

bool dlx__gpu_order_add(struct dlx_gpu_order *order, struct dlx_gpu_job *job)
{
    bool has_thread = dlx__gpu_order_try(order, job);
    if (!has_thread)
        do_job(order, job);
    return !has_thread;
}

bool dlx__gpu_order_is_idle(struct dlx_gpu_order *order)
{
    if (!order->has_thread)
        return true;
    (void)pthread_mutex_lock(&order->lock);
    bool is_idle = !order->first && !order->current;
    (void)pthread_mutex_unlock(&order->lock);
    return is_idle;
}

void dlx__gpu_order_forget(struct dlx_gpu_order *order, struct dlx_gpu_job *job)
{
    if (!order->has_thread)
        return;
    (void)pthread_mutex_lock(&order->lock);
    job->word = NULL;
    (void)pthread_mutex_unlock(&order->lock);
}

bool dlx__gpu_order_settle(struct dlx_gpu_order *order, struct dlx_gpu_job *job, uint64_t deadline)
{
    const struct timespec end = {.tv_sec = (time_t)(deadline / UINT64_C(1000000000)),
                                 .tv_nsec = (long)(deadline % UINT64_C(1000000000))};
    bool is_late = false;
    if (!order->has_thread)
        return true;
    (void)pthread_mutex_lock(&order->lock);
    while (job->is_queued || order->current == job) {
        if (is_late)
            break;
        if (deadline == UINT64_MAX)
            (void)pthread_cond_wait(&order->changed, &order->lock);
        else /* lint-allow: clock: the condition's is CLOCK_MONOTONIC */
            is_late = pthread_cond_timedwait(&order->changed, &order->lock, &end) == ETIMEDOUT;
    }
    bool is_done = !job->is_queued && order->current != job;
    (void)pthread_mutex_unlock(&order->lock);
    return is_done;
}

void dlx__gpu_order_drain(struct dlx_gpu_order *order)
{
    atomic_store_explicit(&order->gives_up, true, memory_order_relaxed);
    if (!order->has_thread)
        return;
    (void)pthread_mutex_lock(&order->lock);
    while (order->first || order->current)
        (void)pthread_cond_wait(&order->changed, &order->lock);
    (void)pthread_mutex_unlock(&order->lock);
}

void dlx__gpu_order_end(struct dlx_gpu_order *order)
{
    if (!order->has_thread)
        return;
    (void)pthread_mutex_lock(&order->lock);
    order->is_ending = true;
    (void)pthread_cond_broadcast(&order->changed);
    (void)pthread_mutex_unlock(&order->lock);
    (void)pthread_join(order->thread, NULL);
    (void)pthread_cond_destroy(&order->changed);
    (void)pthread_mutex_destroy(&order->lock);
    order->has_thread = false;
}
