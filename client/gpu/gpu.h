/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_GPU_H
#define DLX_CLIENT_GPU_H

/*
 * The work that libdlx leaves to libdlx-gpu (gpu/, gpu/lib), behind two tables. libdlx sees no
 * other header of GPUs, and a message of the CPU never comes here.
 *
 * libdlx.so loads libdlx-gpu.so.0 with dlx__gpu_load(), before the first use of a GPU; a static
 * program links libdlx-gpu.a. Without the library tensors on GPUs fail with DLX_E_DEVICE, and
 * everything else works.
 *
 * A publisher has its part in `gpu` once it has shared memory of a GPU, a message in `gpu` if it
 * has tensors there, and a subscription and its links in `gpu` from the first such message on, or
 * from the beginning if the subscription has `pin`. Functions that take such a part are called only
 * if there is one, so the library is loaded then.
 */

#include "client/heap/block.h"
#include <dlx/dlx.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct dlx_client;
struct dlx_export;
struct dlx_gpu_link;
struct dlx_gpu_parcel;
struct dlx_gpu_receiver;
struct dlx_gpu_share;
struct dlx_gpu_wait;
struct dlx_manifest;
struct dlx_manifest_item;
struct dlx_message;
struct dlx_message_gpu;
struct dlx_subscriber_link;

/* For an event: streams that went on before a tensor was ready; that the CPU waited in place of
 * streams. */
struct dlx_gpu_report {
    uint64_t n;
    uint64_t n_told;                    /* by events */
    int code;                           /* of the last one, */
    char reason[DLX_EVENT_REASON_SIZE]; /* why, if that says more than the code, */
    uint32_t pid;                       /* and the publisher */
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
    /* The message was published: note who owns this tensor of it now. */
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
    /* The publisher has published its last message: wait a while for subscribers that hold tensors.
     */
    void (*end)(struct dlx_publisher *p);
    /* Everything was given back, or left. */
    void (*free)(struct dlx_gpu_share *share);
};

struct dlx_gpu_receiver_table {
    /*
     * For a manifest with allocations, on the thread of the subscription: begins what the link and
     * its subscription have of GPUs, if nothing has yet. Returns 0; DLX_E_NO_MEMORY,
     * DLX_E_BAD_PEER.
     */
    int (*message_new)(struct dlx_subscriber_link *link, const struct dlx_manifest *manifest,
                       struct dlx_message_gpu **ret);
    /* Close what is open: nothing uses it any more. */
    void (*message_free)(struct dlx_message_gpu *gpu);
    /* Note where tensor `i` is, and check that. Returns 0; DLX_E_BAD_PEER. */
    int (*place)(struct dlx_message_gpu *gpu, uint32_t i, const struct dlx_manifest_item *item,
                 const int64_t *shape, const int64_t *strides);
    /* Open tensor `i`: sets its data and device, if it is on a GPU. Any thread. */
    int (*open)(struct dlx_message *m, uint32_t i, DLTensor *tensor);
    /* dlx_message_open_into(), of a message with tensors on GPUs. Any thread. */
    int (*open_into)(struct dlx_message *m, struct dlx_gpu_range *range, int64_t timeout_ns);
    /* Copy the memory of a tensor on a GPU, which is ready, from its element 0 on. Any thread. */
    int (*copy_to_host)(const DLTensor *tensor, void *to, uint64_t size);
    /* Wait until an open tensor is ready, or let the stream wait, which uses it from then on. */
    int (*await)(struct dlx_export *e, void *const *stream);
    /* The results of dlx_message_status() and dlx_tensor_status(). */
    int (*message_status)(struct dlx_message_gpu *gpu);
    int (*wait_status)(struct dlx_gpu_wait *wait);
    /* A tensor of dlx_message_tensor() is used on this stream. Returns 0; DLX_E_NO_MEMORY;
     * DLX_E_DEVICE, without a message: it is neither on a GPU nor pinned for one. */
    int (*use_on)(DLManagedTensorVersioned *tensor, void *stream);
    /* A deleter was called, of a tensor of a message with tensors on GPUs, or of one on the CPU
     * that is used on streams. Returns true if a thread releases the tensor; false: nothing uses it
     * any more, and the caller goes on. Any thread. */
    bool (*release)(struct dlx_export *e);

    /*
     * Of a subscription with these arguments, whose arenas are pinned for `pin`, and whose tensors
     * on GPUs are for `device`. Its links refer to it, also when the subscription has ended.
     * Returns 0; DLX_E_NO_MEMORY; DLX_E_DEVICE (no such device, driver or backend), DLX_E_FORKED,
     * and what else the driver says.
     */
    int (*begin)(const struct dlx_subscribe_args *asked, struct dlx_gpu_receiver **ret);
    /* The subscription ends: from now on callers wait themselves. Streams wait for publishers no
     * longer than calls may take, and this waits for that. */
    void (*stop)(struct dlx_gpu_receiver *receiver);
    /* Then wait for streams, and drop the reference of the subscription. */
    void (*end)(struct dlx_gpu_receiver *receiver);
    void (*stats)(struct dlx_gpu_receiver *receiver, struct dlx_subscription_stats *stats);
    /* Tells which streams went on too early, unless that was told already. */
    bool (*tell_late)(struct dlx_gpu_receiver *receiver, struct dlx_gpu_report *ret);
    /* Likewise, why the CPU waited in place of a stream for the first time. */
    bool (*tell_waited)(struct dlx_gpu_receiver *receiver, struct dlx_gpu_report *ret);
    /* How many releases threads have completed: a number that wraps. */
    uint32_t (*n_released)(struct dlx_gpu_receiver *receiver);
    /* Wait until that is another number than `n`, if a release is under way. Returns 0; DLX_E_EMPTY
     * (none is) and DLX_E_TIMEOUT, both without a message; DLX_E_INTERRUPTED. */
    int (*wait_released)(struct dlx_gpu_receiver *receiver, uint32_t n, uint64_t deadline);

    /* Sets `gpu` of a link from its subscription's, once. Returns 0; DLX_E_NO_MEMORY. */
    int (*link_begin)(struct dlx_subscriber_link *link, struct dlx_gpu_receiver *receiver);
    /* The subscription looks at a link that has no message: memory that its publisher has freed is
     * closed. */
    void (*link_look)(struct dlx_subscriber_link *link);
    /* The subscription leaves a link: nothing of its publisher needs to stay open while no message
     * is held. */
    void (*link_leave)(struct dlx_subscriber_link *link);
    /* A link ends, after its messages and arenas. Any thread. */
    void (*link_end)(struct dlx_subscriber_link *link);
    /* A mapping of an arena was made. Returns true if it is pinned. A driver's refusal is
     * counted. */
    bool (*pin)(struct dlx_gpu_link *link, const void *map, uint64_t size);
    /* Why the first arena of the link that the driver refused is not pinned, if it was not told
     * yet: from now on it is. */
    bool (*tell_unpinned)(struct dlx_gpu_link *link, char ret_reason[DLX_EVENT_REASON_SIZE]);
    /* A pinned mapping is about to be unmapped; any thread. False: it must stay mapped, since the
     * driver would take the next mapping there for this one. The mapping stays until the process
     * ends, and counts as a failure. */
    bool (*unpin)(struct dlx_gpu_link *link, const void *map, uint64_t size);
};

/* ---- the library ----------------------------------------------------------------------------- */

#define DLX_GPU_BUILD_SIZE 64

/* The library's own description (gpu/lib/library.c). The first two members have their place in
 * every version. */
struct dlx_gpu_library {
    /* DLX_GPU_BUILD of gpu_build.h, which the build makes: the release, and a hash of the private
     * headers. */
    char build[DLX_GPU_BUILD_SIZE];
    /* dlx__gpu_check() of the libdlx whose functions it calls. */
    int (*core)(const struct dlx_gpu_library *library, const char *name);

    const struct dlx_gpu_publisher_table *publisher;
    const struct dlx_gpu_receiver_table *receiver;
    /* gpu/lib/malloc.h */
    int (*malloc)(int32_t device_type, int32_t device, uint64_t size, void **ret);
    void (*free)(void *memory);
    /* gpu/imports.h */
    int (*trim)(uint64_t *ret);
    /* gpu/lib/range.h */
    int (*range_new)(uint64_t generation, struct dlx_gpu_range **ret);
    void (*range_unref)(struct dlx_gpu_range *range);
};

/*
 * Load the library, unless it is loaded. Any thread. A call that fails leaves nothing behind: the
 * next call tries again, so a program that goes on without the library has it once it is there.
 * Returns 0; DLX_E_DEVICE, and the message says what to install.
 */
int dlx__gpu_load(void);
/* The same for a tensor on this device; DLX_E_DEVICE also if it is no GPU that can be shared. */
int dlx__gpu_load_for(DLDevice device);

/* Is this the library of this build? `name` is that of its file. Returns 0; DLX_E_DEVICE. */
dlx_for_gpu int dlx__gpu_check(const struct dlx_gpu_library *library, const char *name);

/*
 * Find the library, and check it. In libdlx.so this is client/gpu/load.c; in a static program that
 * links libdlx-gpu.a, gpu/lib/library.c. A static program does not load one: it would have a second
 * libdlx with it.
 */
int dlx__gpu_find(const struct dlx_gpu_library **ret);
/* The function that finds the library; NULL: a static program without libdlx-gpu.a. Tests have
 * other ones. */
extern int (*dlx__gpu_finder)(const struct dlx_gpu_library **ret);

extern const struct dlx_gpu_library *_Atomic dlx__gpu_loaded; /* NULL: not loaded */

/* For a caller that has a part of the library's, or has called dlx__gpu_load(). */
static inline const struct dlx_gpu_publisher_table *dlx__gpu_publisher(void)
{
    return atomic_load_explicit(&dlx__gpu_loaded, memory_order_acquire)->publisher;
}

static inline const struct dlx_gpu_receiver_table *dlx__gpu_receiver(void)
{
    return atomic_load_explicit(&dlx__gpu_loaded, memory_order_acquire)->receiver;
}

#endif
