/* SPDX-License-Identifier: Apache-2.0 */
#include "client/message/gpu_threads.h"
#include "client/message/gpu_wait.h"

int dlx__gpu_threads_new(struct dlx_gpu_threads **ret)
{
    struct dlx_gpu_threads *threads = calloc(1, sizeof *threads);
    if (!threads)
        return dlx__fail(DLX_E_NO_MEMORY, "state of a subscription");
    atomic_init(&threads->refs, 1);
    (void)pthread_mutex_init(&threads->lock, NULL);
    *ret = threads;
    return 0;
}

struct dlx_gpu_threads *dlx__gpu_threads_ref(struct dlx_gpu_threads *threads)
{
    if (threads)
        atomic_fetch_add_explicit(&threads->refs, 1, memory_order_relaxed);
    return threads;
}

struct dlx_gpu_threads *dlx__gpu_threads_unref(struct dlx_gpu_threads *threads)
{
    if (threads && atomic_fetch_sub_explicit(&threads->refs, 1, memory_order_acq_rel) == 1) {
        (void)pthread_mutex_destroy(&threads->lock);
        free(threads);
    }
    return NULL;
}

struct dlx_gpu_late dlx__gpu_threads_late(struct dlx_gpu_threads *threads)
{
    (void)pthread_mutex_lock(&threads->lock);
    struct dlx_gpu_late late = threads->late;
    (void)pthread_mutex_unlock(&threads->lock);
    return late;
}

bool dlx__gpu_threads_tell_late(struct dlx_gpu_threads *threads, struct dlx_gpu_late *ret)
{
    (void)pthread_mutex_lock(&threads->lock);
    *ret = threads->late;
    threads->late.n_told = threads->late.n;
    (void)pthread_mutex_unlock(&threads->lock);
    return ret->n > ret->n_told;
}

void dlx__gpu_threads_stop(struct dlx_gpu_threads *threads)
{
    if (!threads)
        return;
    (void)pthread_mutex_lock(&threads->lock);
    threads->is_over = true;
    (void)pthread_mutex_unlock(&threads->lock);
    dlx__gpu_waits_end(threads);
}

struct dlx_gpu_threads *dlx__gpu_threads_end(struct dlx_gpu_threads *threads)
{
    if (!threads)
        return NULL;
    for (uint32_t i = 0; i < DLX_GPU_RELEASERS; i++) {
        dlx__gpu_order_drain(&threads->releasers[i].order);
        dlx__gpu_order_end(&threads->releasers[i].order);
    }
    return dlx__gpu_threads_unref(threads);
}
