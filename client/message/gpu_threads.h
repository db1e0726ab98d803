/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_GPU_THREADS_H
#define DLX_CLIENT_GPU_THREADS_H

/*
 * What a subscription leaves to threads of its own, so that nobody's CPU waits for a GPU:
 *
 *   releases   wait for the streams that use a tensor; client/message/gpu_release
 *   waits      wait for publishers while streams of this process wait for us;
 * client/message/gpu_wait
 *
 * Each thread is made when it is first needed. Waits have one of their own, since a stream for
 * which a release waits may itself wait for a publisher. Releases have as many as streams are busy,
 * up to a limit, since a release is to wait for its own streams alone.
 */

#include "client/control/client.h"
#include "client/gpu/gpu_order.h"

/* Streams that went on before a tensor was ready. */
struct dlx_gpu_late {
    uint64_t n;
    uint64_t n_told; /* by events */
    int code;        /* of the last one, and what it waited for: */
    uint32_t pid;
    uint64_t link;
    uint64_t publisher;
    char topic[DLX_TOPIC_MAX + 1];
};

/* Threads for releases, at most. */
#define DLX_GPU_RELEASERS 8U

struct dlx_gpu_releaser {
    struct dlx_gpu_order order;
    uintptr_t stream; /* for which it was given something last, plus 1; 0: for several */
};

struct dlx_gpu_threads {
    atomic_uint refs;
    pthread_mutex_t lock; /* for what follows */
    bool is_over;         /* the subscription has ended: callers wait themselves */
    struct dlx_gpu_releaser releasers[DLX_GPU_RELEASERS];
    uint32_t next_releaser;   /* if all are busy */
    _Atomic uint32_t n_added; /* releases */
    dlx_atomic_u32 n_done;    /* of them; wraps; a futex */
    pthread_t waiter;
    bool has_waiter;
    uint32_t n_announced;       /* waits that will be added, or not */
    struct dlx_gpu_wait *waits; /* a list */
    struct dlx_gpu_late late;
    dlx_atomic_u32 changed; /* counts what was added, and the end; a futex */
};

/* Of a subscription, which ends it. Its links refer to it, also when the subscription has ended. */
int dlx__gpu_threads_new(struct dlx_gpu_threads **ret);
/* NULL is fine. Any thread. */
struct dlx_gpu_threads *dlx__gpu_threads_ref(struct dlx_gpu_threads *threads);
struct dlx_gpu_threads *dlx__gpu_threads_unref(struct dlx_gpu_threads *threads);
/* Which streams went on too early. */
struct dlx_gpu_late dlx__gpu_threads_late(struct dlx_gpu_threads *threads);
/* The same, if it was not told yet: from now on it is. */
bool dlx__gpu_threads_tell_late(struct dlx_gpu_threads *threads, struct dlx_gpu_late *ret);

/* The subscription ends: from now on callers wait themselves. Wait for publishers, as long as calls
 * may take. NULL is fine. */
void dlx__gpu_threads_stop(struct dlx_gpu_threads *threads);
/* Then wait for streams, and unref. NULL is fine; returns NULL. */
struct dlx_gpu_threads *dlx__gpu_threads_end(struct dlx_gpu_threads *threads);

#endif
