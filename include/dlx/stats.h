/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_STATS_H
#define DLX_STATS_H

/* Part of dlx/dlx.h, which includes it: what publishers and subscriptions count. */

#include <dlx/dlx.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dlx_publisher_stats {
    size_t size;
    uint64_t published;       /**< messages */
    uint64_t published_bytes; /**< payload */
    uint64_t copied;          /**< messages that were copied in */
    uint64_t copied_bytes;
    uint64_t full;        /**< publishes that failed with FULL or TIMEOUT */
    uint64_t blocked;     /**< publishes that had to wait */
    uint64_t bells;       /**< sleeping subscribers woken, one system call each */
    uint64_t arena_bytes; /**< shared memory for payload, now */
    uint32_t n_arenas;
    uint32_t n_subscribers; /**< attached when this thread last looked */
    uint64_t unprotected;   /**< debug mode: messages, not all of whose memory could be protected */
    uint64_t deleted_again; /**< deleters called although the tensor had been published */
    uint64_t cut;           /**< links cut since they held more than max_held or max_held_bytes */
    uint64_t gpu_waits;     /**< waits of dlx_publish() for work on a GPU that no thread could do */
    uint64_t gpu_arena_bytes; /**< memory of GPUs for dlx_alloc(), now */
};

/** Counters since the start. Returns 0; DLX_E_INVALID, DLX_E_FORKED, DLX_E_IN_USE. */
DLX_API int dlx_publisher_get_stats(struct dlx_publisher *p, struct dlx_publisher_stats *stats);

struct dlx_subscription_stats {
    size_t size;
    uint64_t taken;
    uint64_t taken_bytes; /**< payload */
    uint64_t skipped;     /**< messages of mode LATEST that were passed over on purpose */
    uint64_t lost;     /**< messages that could not be taken: overwritten, or published by way of a
                               daemon that this subscription did not reach in time */
    uint64_t sleeps;   /**< times that dlx_take() slept, one or more system calls each */
    uint64_t rejected; /**< links that were cut because their publisher wrote invalid values */
    uint32_t n_held;   /**< messages held now */
    uint32_t n_publishers; /**< attached now */
    uint64_t gpu_waits;    /**< deleters, and dlx_message_tensor_on(), that waited for a GPU */
    uint64_t gpu_errors;   /**< releases that could not wait for the GPU: it is lost */
    uint64_t pinned_bytes; /**< shared memory of publishers that is pinned now */
    uint64_t pin_failures; /**< arenas that could not be pinned, or not be unpinned */
    uint64_t gpu_late;     /**< streams of dlx_message_tensor_on() that went on before the tensor
                                was ready: its publisher was gone, had failed or took too long */
};

/** Counters since the start. Returns 0; DLX_E_INVALID, DLX_E_FORKED, DLX_E_IN_USE. */
DLX_API int dlx_subscription_get_stats(struct dlx_subscription *s,
                                       struct dlx_subscription_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
