/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_GPU_WAIT_H
#define DLX_CLIENT_GPU_WAIT_H

/*
 * Waiting until the publisher of a message has written its tensors on GPUs: for the word of
 * client/gpu/gpu_order.h, for a certain time, and for the death of the publisher.
 *
 * On the CPU of whoever wants a tensor; or a stream waits for a word of this process (a gate,
 * gpu/gpu.h), and a thread of the subscription waits for the publisher and opens the gate. It
 * always does: no stream waits for another process. What came of it is known before the stream goes
 * on.
 */

#include "client/message/gpu_threads.h"

struct dlx_message;
struct dlx_gpu_wait;

/* Not known yet: what the error codes leave free. */
#define DLX_GPU_WAITING 1

/* Wait here. Returns 0; DLX_E_TIMEOUT, DLX_E_PUBLISHER_GONE, DLX_E_DEVICE (an error of the
 * publisher's GPU ended the work). */
int dlx__gpu_wait_ready(dlx_atomic_u32 *word, uint64_t deadline, bool (*is_gone)(const void *),
                        const void *userdata);

/* A wait of a stream, as the thread sees it. */
struct dlx_gpu_wait_args {
    struct dlx_message *m; /* the caller holds it until dlx__gpu_wait_settle() */
    dlx_atomic_u32 *word;
    uint64_t deadline;
    bool (*is_gone)(const void *); /* of `m` */
    int32_t device_type;
    int32_t device;
    void *stream;
};
/*
 * Let a stream wait. Returns 0 and the wait, for dlx__gpu_wait_result(); DLX_E_INVALID: the stream
 * is being captured. Any other error: neither the stream nor a thread can wait, and nothing was
 * done.
 */
int dlx__gpu_wait_add(struct dlx_gpu_threads *threads, const struct dlx_gpu_wait_args *args,
                      struct dlx_gpu_wait **ret);
/* 0, DLX_GPU_WAITING, or a code of dlx__gpu_wait_ready(). With the message of an error. */
int dlx__gpu_wait_result(struct dlx_gpu_wait *wait);
struct dlx_gpu_wait *dlx__gpu_wait_ref(struct dlx_gpu_wait *wait);
/* NULL is fine; returns NULL. */
struct dlx_gpu_wait *dlx__gpu_wait_unref(struct dlx_gpu_wait *wait);
/* Before the message may go: the thread is done with it. So it is once the stream has gone on, and
 * only an error of the GPU lets anybody come here before. */
void dlx__gpu_wait_settle(struct dlx_gpu_wait *wait);

/* Wait until all of them are over, and end the thread. */
void dlx__gpu_waits_end(struct dlx_gpu_threads *threads);

#endif
