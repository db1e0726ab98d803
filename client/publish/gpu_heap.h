/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_GPU_HEAP_H
#define DLX_CLIENT_GPU_HEAP_H

/*
 * Memory of GPUs that a publisher allocates for tensors of dlx_alloc(): a heap (client/heap/heap.h)
 * for each device, whose arenas are exports (gpu/exports.h) that the keeper has, too. So what was
 * published can be opened as long as the daemon keeps the message, whatever becomes of the
 * publisher.
 *
 * When a subscriber dies, work that it has queued may still run for a while. All arenas that are
 * there then are used for no new tensor, and freed with the last of theirs.
 *
 * The publisher's thread.
 */

#include "client/publish/publisher.h"
#include "gpu/exports.h"

struct dlx_gpu_heap;

/* Of shared memory, as zeros say, or of a GPU? */
static inline bool dlx__device_is_cpu(DLDevice device)
{
    return device.device_type == 0 || device.device_type == kDLCPU;
}

/*
 * The publisher's heap for tensors on the device, made by the first call for it. DLX_E_DEVICE: no
 * such device, or memory there cannot be allocated; DLX_E_NO_MEMORY, DLX_E_FORKED.
 */
int dlx__publisher_heap(struct dlx_publisher *p, DLDevice device, struct dlx_heap **ret);

/* A block of `size` bytes of any heap of the publisher: as dlx__publisher_block(). */
int dlx__publisher_block_of(struct dlx_publisher *p, struct dlx_heap *heap, uint64_t size,
                            struct dlx_block **ret);

/* The block of a tensor that dlx_alloc() made on a GPU, else NULL. */
struct dlx_block *dlx__gpu_block(const struct dlx_publisher *p,
                                 const DLManagedTensorVersioned *tensor);
/* What its arena is to other processes. */
struct dlx_gpu_export *dlx__gpu_block_export(const struct dlx_block *block);

/* A subscriber died. */
void dlx__gpu_heap_reader_died(struct dlx_publisher *p);

/* Bytes of all arenas. */
uint64_t dlx__gpu_heap_bytes(const struct dlx_publisher *p);

/* The publisher's messages were freed. What is local stays. Returns NULL; NULL is fine. */
struct dlx_gpu_heap *dlx__gpu_heaps_close(struct dlx_gpu_heap *first);

#endif
