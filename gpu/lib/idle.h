/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_IDLE_H
#define DLX_GPU_IDLE_H

/*
 * Memory of a GPU that may be unmapped, or used for something else, once the work of this process
 * on that GPU has ended, and whose caller cannot wait for that: the driver refuses to wait in a
 * host function and while a stream is captured, and dlx_publish() does not wait.
 *
 * A thread for each GPU waits instead, and tries again until the driver lets it wait. The first
 * attempts follow each other soon, the later ones once a second, since each may invalidate a
 * capture. The threads are the process's: they stay, and no end of a publisher or a subscription
 * waits for them. Any thread may call what follows, but not in a forked child.
 */

#include "gpu/lib/order.h"
#include <dlpack/dlpack.h>

struct dlx_gpu_idle {
    struct dlx_gpu_job job; /* the first member */
    struct dlx_gpu_work work;
    struct dlx_gpu_idle_thread *thread;
    /* The work has ended, and `result` says how: 0, or DLX_E_DEVICE after an error of the GPU. May
     * free this. On the thread. */
    void (*done)(struct dlx_gpu_idle *idle, int result);
};

/* Call `done` when the work has ended. Returns false if no thread can be had: nothing was done. */
bool dlx__gpu_when_idle(struct dlx_gpu_idle *idle, const struct dlx_gpu_work *work,
                        void (*done)(struct dlx_gpu_idle *idle, int result));

/* How often the GPU's thread has called such a function: a number that wraps. */
uint32_t dlx__gpu_idle_n_done(DLDevice device);
/* Wait until the GPU's thread has done all that it was given, at most until the deadline. */
void dlx__gpu_idle_settle(DLDevice device, uint64_t deadline);

#endif
