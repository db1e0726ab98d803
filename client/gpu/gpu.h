/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_GPU_H
#define DLX_CLIENT_GPU_H

/*
 * What libdlx has the code for GPUs do: gpu/lib, behind two tables. No other header of GPUs is seen
 * by the library, and a message of the CPU never comes here.
 *
 * A publisher has its part in `gpu` once it has shared memory of a GPU, a message in `gpu` if it
 * has tensors there, and a subscription and its links in `gpu` in any case. Functions that take
 * such a part are called only if there is one.
 */

#include "client/heap/block.h"
#include <dlx/dlx.h>
#include <stdbool.h>
#include <stdint.h>

struct dlx_client;
struct dlx_export;
struct dlx_gpu_handle;
struct dlx_gpu_parcel;
struct dlx_gpu_receiver;
struct dlx_gpu_share;
struct dlx_manifest;
struct dlx_manifest_item;
struct dlx_message;
struct dlx_message_gpu;
struct dlx_subscriber_link;

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

/* The publisher's thread. */
struct dlx_gpu_publisher_table {
    /*
     * The publisher's heap for tensors on the device, made by the first call for it. DLX_E_DEVICE:
     * no such device, or memory there cannot be allocated; DLX_E_NO_MEMORY, DLX_E_FORKED.
     */
    int (*heap)(struct dlx_publisher *p, DLDevice device, struct dlx_heap **ret);
    /* A block of `size` bytes of it: as dlx__publisher_block(). */
    int (*block)(struct dlx_publisher *p, struct dlx_heap *heap, uint64_t size,
                 struct dlx_block **ret);

    /*
     * Add a tensor to `*parcel`, which is made for up to `n` tensors if it is NULL. Fills the item
     * of the manifest but for its name. The message is ready when the work that is on the stream
     * now is done. Returns 0; 1: it was copied, as `stage` of the arguments asks, and stays the
     * caller's to delete; DLX_E_DEVICE, DLX_E_WOULD_COPY (`strict`), DLX_E_SHAPE, DLX_E_INVALID
     * (the stream is being captured), DLX_E_NO_MEMORY and what drivers fail with.
     */
    int (*add)(struct dlx_publisher *p, struct dlx_gpu_parcel **parcel, uint32_t n,
               const DLManagedTensorVersioned *tensor, const struct dlx_publish_args *args,
               struct dlx_manifest_item *ret);
    /* The block that stands for a parcel, once. Returns 0; DLX_E_NO_MEMORY. */
    int (*hold)(struct dlx_publisher *p, struct dlx_gpu_parcel *parcel,
                const struct dlx_publish_args *args, struct dlx_block **ret);
    /* Complete a manifest that was written, and have it say when its tensors are ready. Nothing may
     * fail from here on. */
    void (*write)(struct dlx_publisher *p, struct dlx_gpu_parcel *parcel, void *manifest);
    /* Its message is out: whose is this tensor of it now? */
    void (*adopt)(struct dlx_publisher *p, struct dlx_gpu_parcel *parcel,
                  DLManagedTensorVersioned *tensor, const struct dlx_publish_args *args);
    /* Drop the reference of the maker. */
    void (*drop)(struct dlx_gpu_parcel *parcel);

    /* The publisher has this id, too, with the next daemon. Returns 0; DLX_E_NO_MEMORY. */
    int (*also)(struct dlx_publisher *p, uint64_t id);
    /* Releases messages that no subscriber holds, so that memory of GPUs is not kept for long. */
    void (*collect)(struct dlx_publisher *p);
    /* A subscriber died: work that it has queued may still run for a while. */
    void (*reader_died)(struct dlx_publisher *p);
    /* Bytes of all arenas. */
    uint64_t (*bytes)(const struct dlx_publisher *p);
    /* The publisher has published its last message: wait a while for those who hold tensors. */
    void (*end)(struct dlx_publisher *p);
    /* Everything was given back, or left. */
    void (*free)(struct dlx_gpu_share *share);
};

struct dlx_gpu_receiver_table {
    /* For a manifest with allocations. Returns 0; DLX_E_NO_MEMORY, DLX_E_BAD_PEER. */
    int (*message_new)(struct dlx_subscriber_link *link, const struct dlx_manifest *manifest,
                       struct dlx_message_gpu **ret);
    /* Close what is open: nothing uses it any more. */
    void (*message_free)(struct dlx_message_gpu *gpu);
    /* Note where tensor `i` is, and check that. `gpu` NULL: the message has no allocations. Returns
     * 0; DLX_E_BAD_PEER. */
    int (*place)(struct dlx_message_gpu *gpu, uint32_t i, const struct dlx_manifest_item *item,
                 const int64_t *shape, const int64_t *strides);
    /* Open tensor `i`: sets its data and device, if it is on a GPU. Any thread. */
    int (*open)(struct dlx_message *m, uint32_t i, DLTensor *tensor);
    /* Wait until an open tensor is ready, or let the stream wait, which uses it from then on. */
    int (*await)(struct dlx_export *e, void *const *stream);
    /* A deleter was called, of a tensor of a message with tensors on GPUs, or of one on the CPU
     * that is used on streams. Returns true if a thread releases the tensor; false: nothing uses it
     * any more, and the caller goes on. Any thread. */
    bool (*release)(struct dlx_export *e);
    /* A link ends that had messages with tensors on GPUs: nothing of its publisher needs to stay
     * open while no message is held. */
    void (*link_ended)(const struct dlx_subscriber_link *link);

    /*
     * Of a subscription, whose arenas are pinned for `pin`, if that is a GPU. Its links refer to
     * it, also when the subscription has ended. Returns 0; DLX_E_NO_MEMORY; DLX_E_DEVICE (no such
     * device, driver or backend), DLX_E_FORKED, and what else the driver says.
     */
    int (*begin)(DLDevice pin, struct dlx_gpu_receiver **ret);
    /* Any thread. */
    struct dlx_gpu_receiver *(*ref)(struct dlx_gpu_receiver *receiver);
    void (*unref)(struct dlx_gpu_receiver *receiver);
    /* The subscription ends: from now on callers wait themselves. Wait for publishers, as long as
     * calls may take. */
    void (*stop)(struct dlx_gpu_receiver *receiver);
    /* Then wait for streams, and unref. */
    void (*end)(struct dlx_gpu_receiver *receiver);
    void (*stats)(struct dlx_gpu_receiver *receiver, struct dlx_subscription_stats *stats);
    /* Which streams went on too early, if it was not told yet: from now on it is. */
    bool (*tell_late)(struct dlx_gpu_receiver *receiver, struct dlx_gpu_late *ret);
    /* How many releases threads have completed: a number that wraps. */
    uint32_t (*n_released)(struct dlx_gpu_receiver *receiver);
    /* Wait until that is another number than `n`, if a release is under way. Returns 0; DLX_E_EMPTY
     * (none is) and DLX_E_TIMEOUT, both without a message; DLX_E_INTERRUPTED. */
    int (*wait_released)(struct dlx_gpu_receiver *receiver, uint32_t n, uint64_t deadline);

    /* A mapping of an arena was made. Returns 1: it is pinned; 0: nothing is; or the driver's
     * refusal, which is counted. */
    int (*pin)(struct dlx_gpu_receiver *receiver, const void *map, uint64_t size);
    /* One that is pinned is about to be unmapped; any thread. False: it may not be, since the
     * driver would take what is mapped there next for this one. It stays until the process ends,
     * and counts as a failure. */
    bool (*unpin)(struct dlx_gpu_receiver *receiver, const void *map, uint64_t size);
};

extern const struct dlx_gpu_publisher_table dlx__gpu_publisher; /* gpu/lib/share.c */
extern const struct dlx_gpu_receiver_table dlx__gpu_receiver;   /* gpu/lib/receive.c */

#endif
