/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_SHARE_H
#define DLX_GPU_SHARE_H

#include "client/gpu/gpu.h"
#include "gpu/exports.h"
#include "gpu/lib/order.h"

struct dlx_gpu_heap;
struct dlx_publisher;

/*
 * Does a publisher serve what the keeper has not? It begins with the first such memory, which is
 * not published before; what it serves again is served as soon as the daemon answers.
 *
 *     NOT --(memory of a framework)--> SERVES <--(the daemon was told)-- MUST
 *      |                                  |                               ^ ^
 *      |                                  +-------(another daemon)--------+ |
 *      +----(another daemon, or another keeper, which has less than the last)+
 */
enum dlx_gpu_serving { DLX_GPU_SERVES_NOT, DLX_GPU_MUST_SERVE, DLX_GPU_SERVES };

/* What a publisher has of GPUs. */
struct dlx_gpu_share {
    struct dlx_gpu_exports *exports;
    struct dlx_gpu_heap *heaps; /* a list */
    struct dlx_gpu_order order;
    struct dlx_gpu_words *words; /* NULL: no stream writes any */
    struct dlx_publisher *p;
    uint64_t number; /* see struct dlx_gpu_publisher */
    uint64_t keeper; /* the number of the one that made the last arena; 0: none has */
    enum dlx_gpu_serving serving;
    uint64_t next_ask_ns; /* when the daemon is told or asked again: it could not be */
    uint64_t deadline;    /* of waits for the GPU in this call; 0: it does not wait */
    uint64_t told_ns;     /* when subscribers were told last that memory was freed */
    struct dlx_gpu_parcel *unwritten, *last_unwritten; /* a queue: they came back too early */
    uint32_t n_parcels;
    uint32_t n_mortal; /* parcels that end with this process */
    bool is_over;      /* what comes back now is LEFT */
};

extern const struct dlx_gpu_publisher_table dlx__gpu_share_table;

#endif
