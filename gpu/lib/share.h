/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_SHARE_H
#define DLX_GPU_SHARE_H

#include "client/gpu/gpu.h"
#include "gpu/exports.h"
#include "gpu/lib/order.h"

struct dlx_gpu_heap;
struct dlx_gpu_keep;
struct dlx_writer;

/* What a publisher has of GPUs. */
struct dlx_gpu_share {
    struct dlx_gpu_exports *exports;
    struct dlx_gpu_heap *heaps; /* a list */
    struct dlx_gpu_order order;
    struct dlx_gpu_keep *keep; /* NULL: the keeper has nothing of it yet */
    uint64_t keep_number;      /* of the connection with the keeper; from 1 */
    uint64_t number;           /* see struct dlx_gpu_publisher */
    struct dlx_writer *core;   /* the publisher's */
    uint64_t *n_waits;         /* of its counters, `gpu_waits` */
    uint64_t deadline;         /* of waits for the GPU in this call; 0: it does not wait */
    uint64_t told_ns;          /* when subscribers were told last that memory was freed */
    struct dlx_gpu_parcel *unwritten, *last_unwritten; /* a queue: they came back too early */
    uint32_t n_parcels;
    uint32_t n_mortal; /* parcels that end with this process */
    bool is_over;      /* what comes back now is LEFT */
};

extern const struct dlx_gpu_publisher_table dlx__gpu_share_table;

#endif
