/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_RECEIVE_H
#define DLX_GPU_RECEIVE_H

/*
 * Received messages with tensors on GPUs: client/gpu/gpu.h says what a subscription does with this.
 *
 * To take a message opens nothing: an allocation is opened, and stays so until the message is
 * released, by the first dlx_message_tensor() of a tensor in it. What that fails with concerns this
 * tensor alone. A tensor is released in this order: the work that uses it is done; its allocation
 * is closed, unless another message uses it; the hold word is cleared; the publisher calls the
 * tensor's deleter.
 *
 * Threads of the subscription wait for GPUs; each is made when it is first needed.
 *
 * Releases: the work that uses a tensor has to end before its memory is given back. The deleter
 * records an event on each stream of dlx_tensor_used_on() and returns; a thread waits for the
 * events and then releases the tensor. Until then its message is held, and counted as such.
 * Releases on one stream are waited for by one thread, in their order; those on other streams by
 * others, as many as streams are busy, up to a limit. The deleter waits itself if no stream was
 * named, if there are no events or no thread, and once the subscription has ended. Tensors on the
 * CPU are released in the same way if a stream was named and the memory is pinned (gpu/lib/pin.h):
 * a copy from there may be queued. The first dlx_tensor_used_on() gives them another deleter for
 * that, so that those of other tensors need not look.
 *
 * Waits: until the publisher has written a tensor, for the word of gpu/lib/order.h, and for the
 * death of the publisher. The CPU of the thread that wants the tensor waits, as long as calls may
 * take; or a stream waits for a word of this process (a gate, gpu/gpu.h), and a thread waits for
 * the publisher and opens the gate: at the latest when its limit is over (struct dlx_gpu_limit),
 * or, once the subscription or the tensor has ended, after the time of calls. The thread always
 * opens it: no stream waits for another process. The result is known before the stream goes on.
 * Waits have a thread of their own, since a stream for which a release waits may itself wait for a
 * publisher.
 */

#include "client/control/client.h"
#include "client/gpu/gpu.h"
#include "client/message/message.h"
#include "gpu/lib/order.h"
#include "gpu/lib/pin.h"

/* Threads for releases, at most. */
#define DLX_GPU_RELEASERS 8U

struct dlx_gpu_releaser {
    struct dlx_gpu_order order;
    uintptr_t stream; /* for which it was given something last, plus 1; 0: for several */
};

struct dlx_gpu_receiver {
    atomic_uint refs;
    int64_t stream_timeout_ns; /* as of dlx_subscribe_args, */
    bool are_kernels_loaded;   /* likewise */
    struct dlx_pin *pin;       /* NULL: nothing is pinned */
    DLDevice device;           /* that tensors are for; zeros: the one that each lies on */
    _Atomic uint64_t n_waits;  /* of the CPU: in deleters, and in place of streams */
    _Atomic uint64_t n_errors; /* releases that could not wait for the work */
    pthread_mutex_t lock;      /* for what follows */
    bool is_over;              /* the subscription has ended: callers wait themselves */
    struct dlx_gpu_releaser releasers[DLX_GPU_RELEASERS];
    uint32_t next_releaser;   /* if all are busy */
    _Atomic uint32_t n_added; /* releases */
    dlx_atomic_u32 n_done;    /* of them; wraps; a futex */
    pthread_t waiter;
    bool has_waiter;
    uint32_t n_announced;       /* waits that will be added, or not */
    struct dlx_gpu_wait *waits; /* a list */
    struct dlx_gpu_report late;
    struct dlx_gpu_report waited;
    dlx_atomic_u32 changed; /* counts what was added, and the end; a futex */
};

/* Are the arenas of a link pinned? */
enum dlx_gpu_pins {
    DLX_GPU_PINS_ALL,
    DLX_GPU_PINS_FAILED, /* one is not, as `unpinned` says */
    DLX_GPU_PINS_TOLD,   /* by an event */
};

/* What a link has, from the first message with tensors on GPUs on, or if arenas are pinned. */
struct dlx_gpu_link {
    struct dlx_gpu_receiver *receiver; /* its subscription's: a reference */
    uint64_t publisher; /* the publisher's number as one of GPU memory; 0: none yet */
    uint64_t n_freed;   /* of its allocations, as this link has seen */
    struct dlx_gpu_words_reader *words; /* NULL: without memory */
    enum dlx_gpu_pins pins;
    char unpinned[DLX_EVENT_REASON_SIZE]; /* why the first arena that is not pinned is not */
};

/* A tensor is used on this stream. Returns 0; DLX_E_NO_MEMORY. */
int dlx__gpu_use_on(struct dlx_export *e, void *stream);

/* Not known yet: what the error codes leave free. */
#define DLX_GPU_WAITING 1

/* How long a stream waits, and who says so. */
struct dlx_gpu_limit {
    int64_t ns; /* negative: without a limit */
    enum dlx_gpu_limit_of {
        DLX_GPU_LIMIT_ASKED,      /* stream_timeout_ns of dlx_subscribe_args */
        DLX_GPU_LIMIT_OTHER_USER, /* the default, if the publisher may be another user's */
        DLX_GPU_LIMIT_ENDING,     /* the time of calls, since the subscription or tensor ended */
    } of;
};

/* That of a stream which waits for the publisher of this link. */
struct dlx_gpu_limit dlx__gpu_stream_limit(const struct dlx_gpu_receiver *receiver,
                                           const struct dlx_subscriber_link *link);

/* A wait of a stream, as the thread sees it. */
struct dlx_gpu_wait_args {
    struct dlx_message *m; /* the caller holds it until the result is known */
    dlx_atomic_u32 *word;
    struct dlx_gpu_limit limit;
    int64_t ending_ns; /* the time of calls: the limit once the subscription or tensor has ended */
    int32_t device_type;
    int32_t device;
    void *stream;
    const struct dlx_gpu_word *shared; /* what the publisher's stream writes; NULL: nothing */
};
/*
 * Let a stream wait. Returns 0 and the wait, for dlx__gpu_wait_result(); DLX_E_INVALID: the stream
 * is being captured. Any other error: neither the stream nor a thread can wait, and nothing was
 * done.
 */
int dlx__gpu_wait_add(struct dlx_gpu_receiver *receiver, const struct dlx_gpu_wait_args *args,
                      struct dlx_gpu_wait **ret);
/* 0, DLX_GPU_WAITING; DLX_E_DEVICE, DLX_E_PUBLISHER_GONE, DLX_E_TIMEOUT, with a message. */
int dlx__gpu_wait_result(struct dlx_gpu_wait *wait);
/* NULL is fine; returns NULL. */
struct dlx_gpu_wait *dlx__gpu_wait_unref(struct dlx_gpu_wait *wait);

extern const struct dlx_gpu_receiver_table dlx__gpu_receive_table;

#endif
