/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_GPU_SHARE_H
#define DLX_CLIENT_GPU_SHARE_H

/*
 * Tensors on GPUs that a publisher shares. Their memory is not copied: a message says in its
 * manifest how to open it. What a message needs until nobody holds it, exports and tensors, is a
 * parcel. A block without memory among the blocks of the message stands for it, so it goes when
 * these do:
 *
 *     NEW --> PUBLISHED --> its tensors' deleters are called, and it is freed
 *      |          |
 *      |          +--> LEFT    its publisher ended, and somebody still holds the message: to free
 * the |                       memory would be undefined, so it stays until the process ends
 *      +--> freed; the tensors stay the caller's
 *
 * Memory of dlx_alloc() is no tensor to be deleted: its blocks come back to their heap. A parcel
 * of nothing else outlives the publisher, in the keeper, and is never LEFT. Others are mortal.
 *
 * All of it is the publisher's thread's.
 */

#include "client/gpu/gpu_order.h"
#include "client/publish/publisher.h"
#include "gpu/exports.h"
#include "ring/manifest.h"

struct dlx_gpu_heap;
struct dlx_gpu_keep;
struct dlx_gpu_parcel;

/* What a publisher has of GPUs. */
struct dlx_gpu_share {
    struct dlx_gpu_exports *exports;
    struct dlx_gpu_heap *heaps; /* a list */
    struct dlx_gpu_order order;
    struct dlx_gpu_keep *keep; /* NULL: the keeper has nothing of it yet */
    uint64_t keep_number;      /* of the connection with the keeper; from 1 */
    uint64_t number;           /* see struct dlx_gpu_publisher */
    uint32_t n_parcels;
    uint32_t n_mortal; /* parcels that end with this process */
    bool is_over;      /* what comes back now is LEFT */
};

/* Make p->gpu unless it is there. Returns 0; DLX_E_NO_MEMORY, DLX_E_SYSTEM. */
int dlx__gpu_share_begin(struct dlx_publisher *p);
/* The publisher has this id, too, with the next daemon. Returns 0; DLX_E_NO_MEMORY. */
int dlx__gpu_share_also(struct dlx_publisher *p, uint64_t id);
/* Give the keeper the descriptors of an export, unless it has them. Returns 0; what
 * dlx__gpu_keep_put() fails with. */
int dlx__gpu_share_keep(struct dlx_publisher *p, struct dlx_gpu_export *export);
/* The keeper may close what is exported no more. */
void dlx__gpu_share_tell_gone(struct dlx_publisher *p);

/*
 * Add a tensor to `*parcel`, which is made for up to `n` tensors if it is NULL. Fills the item of
 * the manifest but for its name. The message is ready when the work that is on the stream now is
 * done. Returns 0; 1: it was copied, as `stage` of the arguments asks, and stays the caller's to
 * delete; DLX_E_DEVICE, DLX_E_WOULD_COPY (`strict`), DLX_E_SHAPE, DLX_E_INVALID (the stream is
 * being captured), DLX_E_NO_MEMORY and what drivers fail with.
 */
int dlx__gpu_parcel_add(struct dlx_publisher *p, struct dlx_gpu_parcel **parcel, uint32_t n,
                        const DLManagedTensorVersioned *tensor, const struct dlx_publish_args *args,
                        struct dlx_manifest_item *ret);
/* Complete a manifest that was written, and have it say when its tensors are ready. Nothing may
 * fail from here on. */
void dlx__gpu_parcel_write(struct dlx_publisher *p, struct dlx_gpu_parcel *parcel, void *manifest);
/* The block that stands for it, once. Returns 0; DLX_E_NO_MEMORY. */
int dlx__gpu_parcel_hold(struct dlx_publisher *p, struct dlx_gpu_parcel *parcel,
                         const struct dlx_publish_args *args, struct dlx_block **ret);
/* Its message is out: whose is this tensor of it now? */
void dlx__gpu_parcel_adopt(struct dlx_publisher *p, struct dlx_gpu_parcel *parcel,
                           DLManagedTensorVersioned *tensor, const struct dlx_publish_args *args);
/* Drop a reference, of the maker or of a block. NULL is fine. */
void dlx__gpu_parcel_unref(struct dlx_gpu_parcel *parcel);

/* The block stands for the parcel, too. */
void dlx__block_hold_gpu(struct dlx_block *block, struct dlx_gpu_parcel *parcel);
/* What a block with `is_gpu` stands for. */
static inline struct dlx_gpu_parcel *dlx__block_gpu_parcel(const struct dlx_block *block)
{
    return (struct dlx_gpu_parcel *)(void *)block->guest;
}
/* Wait until nothing of its message will be written any more. */
void dlx__block_settle_gpu(const struct dlx_block *block);

/* Let messages go that nobody needs any more, so that memory of GPUs is not kept for long. */
void dlx__gpu_share_collect(struct dlx_publisher *p);
/* The publisher has published its last message: wait a while for those who hold tensors. */
void dlx__gpu_share_end(struct dlx_publisher *p);
/* Everything was given back, or left. NULL is fine. */
void dlx__gpu_share_free(struct dlx_gpu_share *share);

#endif
