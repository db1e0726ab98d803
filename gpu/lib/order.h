/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_ORDER_H
#define DLX_GPU_ORDER_H

/*
 * When the tensors of a message on GPUs are written. dlx_publish() waits for no GPU: it shows the
 * message at once, with a word in its manifest that says whether the work on the streams of its
 * publisher is done, and a thread of the publisher waits for that work and sets the word. A
 * subscriber that wants a tensor waits for the word: gpu/lib/receive.
 *
 *     PENDING --> READY      the work is done
 *        |
 *        +------> FAILED     an error of the GPU has ended it: the tensors have no meaning
 *
 * A driver that does not wait, for any other reason, is asked again.
 *
 * If the publisher dies, the word stays PENDING for ever, and who waits notices the death.
 *
 * Memory of a message of which the word is PENDING is not used again. Its manifest may be, once no
 * subscriber holds the message: dlx__gpu_order_forget().
 */

#include "common/atomic.h"
#include "gpu/gpu.h"
#include <pthread.h>

enum dlx_gpu_ready { DLX_GPU_PENDING, DLX_GPU_READY, DLX_GPU_FAILED };

/* What waits for work: a message of a publisher, or the release of a received tensor. */
struct dlx_gpu_job {
    struct dlx_gpu_job *next;
    struct dlx_gpu_event *events; /* [n_events], which it ends; the array is its owner's */
    uint32_t n_events;
    int result;     /* of the events that ended, as of dlx__gpu_event_wait() */
    bool is_queued; /* guarded by the lock */
    /* Called with the result of dlx__gpu_job_wait(). NULL: `word` is set. May free the job, if
     * nobody settles it. */
    void (*done)(struct dlx_gpu_job *job, int result);
    dlx_atomic_u32 *word; /* NULL: forgotten; guarded by the lock */
    atomic_bool *busy;    /* cleared after that, when the work has ended; may be NULL */
};

/* A thread, made by the first job. All zero: before that. One thread at a time adds jobs. */
struct dlx_gpu_order {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* the queue, or what is done */
    struct dlx_gpu_job *first, *last;
    const struct dlx_gpu_job *current; /* the thread has it; may be gone */
    bool has_thread;
    bool is_ending;
    atomic_bool gives_up; /* what the driver does not wait for is not tried again */
};

/* Leave the job to the thread. The job stays where it is until it is done, or settled. Returns
 * false if no thread can be had: nothing was done. */
bool dlx__gpu_order_try(struct dlx_gpu_order *order, struct dlx_gpu_job *job);
/* The same, but without a thread it is waited for here. Returns whether that was so. */
bool dlx__gpu_order_add(struct dlx_gpu_order *order, struct dlx_gpu_job *job);
/* Does its thread have nothing to do? For whoever adds jobs. */
bool dlx__gpu_order_is_idle(struct dlx_gpu_order *order);
/* Wait here for the work of a job. Returns as dlx__gpu_event_wait(); unless the work may go on, the
 * events were ended. */
int dlx__gpu_job_wait(struct dlx_gpu_job *job);
/* The job's word is about to be used for something else: it is not set any more. */
void dlx__gpu_order_forget(struct dlx_gpu_order *order, struct dlx_gpu_job *job);
/* Wait until the thread has done with the job, at most until the deadline (0: only look). Returns
 * whether it has. */
bool dlx__gpu_order_settle(struct dlx_gpu_order *order, struct dlx_gpu_job *job, uint64_t deadline);
/* Wait until it has done with all of them. From then on what the driver does not wait for is given
 * up: the job's `result` says so, and its word stays PENDING. */
void dlx__gpu_order_drain(struct dlx_gpu_order *order);
/* Every job was settled. */
void dlx__gpu_order_end(struct dlx_gpu_order *order);

#endif
