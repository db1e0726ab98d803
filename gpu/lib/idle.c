/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/lib/idle.h"
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>

#define PAUSE_MOST_MS 1000

/* One GPU's. They are never freed. */
struct dlx_gpu_idle_thread {
    struct dlx_gpu_idle_thread *next;
    int32_t device_type;
    int32_t device;
    struct dlx_gpu_order order;
    uint32_t n_added;
    dlx_atomic_u32 n_done; /* wraps; a futex */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct dlx_gpu_idle_thread *threads;

static void job_done(struct dlx_gpu_job *job, int r)
{
    struct dlx_gpu_idle *idle = (struct dlx_gpu_idle *)(void *)job;
    struct dlx_gpu_idle_thread *thread = idle->thread;
    r = dlx__gpu_work_wait(&idle->work);
    for (int pause_ms = 1; !dlx__gpu_has_ended(r);
         pause_ms = DLX_MIN(2 * pause_ms, PAUSE_MOST_MS)) {
        (void)poll(NULL, 0, pause_ms);
        r = dlx__gpu_work_wait(&idle->work);
    }
    idle->done(idle, r);
    (void)atomic_fetch_add_explicit(&thread->n_done, 1, memory_order_release);
    (void)syscall(SYS_futex, &thread->n_done, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Locked. */
static struct dlx_gpu_idle_thread *find_thread(int32_t device_type, int32_t device)
{
    struct dlx_gpu_idle_thread *thread = threads;
    while (thread && (thread->device_type != device_type || thread->device != device))
        thread = thread->next;
    return thread;
}

/* Locked. */
static struct dlx_gpu_idle_thread *need_thread(int32_t device_type, int32_t device)
{
    struct dlx_gpu_idle_thread *thread = find_thread(device_type, device);
    if (thread)
        return thread;
    thread = calloc(1, sizeof *thread);
    if (!thread)
        return NULL;
    thread->device_type = device_type;
    thread->device = device;
    thread->next = threads;
    threads = thread;
    return thread;
}

bool dlx__gpu_when_idle(struct dlx_gpu_idle *idle, const struct dlx_gpu_work *work,
                        void (*done)(struct dlx_gpu_idle *idle, int result))
{
    (void)pthread_mutex_lock(&lock);
    struct dlx_gpu_idle_thread *thread = need_thread(work->device_type, work->device);
    *idle = (struct dlx_gpu_idle){
        .job = {.done = job_done}, .work = *work, .thread = thread, .done = done};
    bool is_left = thread && dlx__gpu_order_try(&thread->order, &idle->job);
    if (is_left)
        thread->n_added++;
    (void)pthread_mutex_unlock(&lock);
    return is_left;
}

uint32_t dlx__gpu_idle_n_done(DLDevice device)
{
    (void)pthread_mutex_lock(&lock);
    struct dlx_gpu_idle_thread *thread = find_thread((int32_t)device.device_type, device.device_id);
    (void)pthread_mutex_unlock(&lock);
    return thread ? dlx_load32_acquire(&thread->n_done) : 0;
}

void dlx__gpu_idle_settle(DLDevice device, uint64_t deadline)
{
    (void)pthread_mutex_lock(&lock);
    struct dlx_gpu_idle_thread *thread = find_thread((int32_t)device.device_type, device.device_id);
    uint32_t target = thread ? thread->n_added : 0;
    (void)pthread_mutex_unlock(&lock);
    while (thread) {
        uint32_t n_done = dlx_load32_acquire(&thread->n_done);
        uint64_t now = dlx__now_ns();
        if ((int32_t)(target - n_done) <= 0 || now >= deadline)
            return;
        uint64_t left = deadline - now;
        const struct timespec timeout = {.tv_sec = (time_t)(left / UINT64_C(1000000000)),
                                         .tv_nsec = (long)(left % UINT64_C(1000000000))};
        (void)syscall(SYS_futex, &thread->n_done, FUTEX_WAIT_PRIVATE, n_done,
                      deadline == UINT64_MAX ? NULL : &timeout, NULL, 0);
    }
}
