/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_STATS_H
#define DLX_STATS_H

/* Counters of publishers and subscriptions. Included by dlx/dlx.h. */

#include <dlx/dlx.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dlx_publisher_stats {
    size_t size;
    uint64_t published;       /**< messages */
    uint64_t published_bytes; /**< payload of these messages */
    uint64_t copied;          /**< messages that were copied into shared memory */
    uint64_t copied_bytes;    /**< payload that was copied */
    uint64_t refused;         /**< publishes that failed with DLX_E_FULL or DLX_E_TIMEOUT */
    uint64_t blocked;         /**< publishes that had to wait */
    uint64_t bells;           /**< wake-ups of sleeping subscribers, one system call each */
    uint64_t arena_bytes;     /**< shared memory for payloads, now */
    uint32_t n_arenas;        /**< arenas, now */
    uint32_t n_subscribers;   /**< subscribers attached at the last call on this publisher */
    uint64_t unprotected;     /**< debug mode: messages that could not be protected completely */
    uint64_t deleted_again;   /**< deleters called on tensors that had been published */
    uint64_t cut; /**< links cut: they held more than their limit, or dlpackd disconnected them */
    uint64_t gpu_waits;       /**< waits of dlx_publish() and dlx_alloc() for a GPU */
    uint64_t gpu_arena_bytes; /**< GPU memory for dlx_alloc(), now */
    /** Messages that will not be done: they were not done when the last worker of their group left,
     *  which was not declared (`groups` of struct dlx_publisher_args), or there was no memory to
     *  carry them to a restarted daemon. */
    uint64_t undone;
};

/** Gets the counters of a publisher since it was made, also across restarts of the daemon. Returns
 *  0; DLX_E_INVALID, DLX_E_FORKED, DLX_E_IN_USE. */
DLX_API int dlx_publisher_get_stats(struct dlx_publisher *p, struct dlx_publisher_stats *ret);

struct dlx_subscription_stats {
    size_t size;
    uint64_t taken;       /**< messages */
    uint64_t taken_bytes; /**< payload of these messages */
    /** messages that DLX_MODE_LATEST passed over, or that were dropped before it could take them */
    uint64_t skipped;
    /** Messages that can never be taken: they were dropped, or published through a new daemon that
     *  this subscription had not reached in time. They count as soon as they are dropped; the next
     *  message that is taken tells them in its gap. */
    uint64_t lost;
    uint64_t sleeps;       /**< sleeps of dlx_take(), one or more system calls each */
    uint64_t rejected;     /**< links cut because their publisher wrote invalid values */
    uint32_t n_held;       /**< messages held now */
    uint32_t n_publishers; /**< publishers attached now */
    uint64_t gpu_waits;    /**< waits of deleters and dlx_message_tensor_on() for a GPU */
    uint64_t gpu_errors;   /**< releases after an error of the GPU that ended its work */
    uint64_t pinned_bytes; /**< shared memory of publishers that is pinned now */
    uint64_t pin_failures; /**< arenas that could not be pinned or unpinned */
    /** Streams of dlx_message_tensor_on() that continued before the tensor was ready: its publisher
     *  was gone, had failed or took longer than `stream_timeout_ns`. */
    uint64_t gpu_late;
    /** False if the daemon has ended, as far as this subscription noticed, and it has not joined
     *  another one. */
    bool has_daemon;
    uint32_t n_claimed;   /**< of a group: messages that are neither done nor given back, now */
    uint64_t done;        /**< of a group: messages that were said to be done here */
    uint64_t redelivered; /**< of a group: messages that were taken with an attempt above 1 */
    uint64_t dead;        /**< of a group: dead letters that were found here */
};

/** Gets the counters of a subscription since it was made, also across restarts of the daemon. Reads
 *  what the daemon has sent about publishers, as dlx_take() does, and does not wait. Returns 0;
 *  DLX_E_INVALID, DLX_E_FORKED, DLX_E_IN_USE. */
DLX_API int dlx_subscription_get_stats(struct dlx_subscription *s,
                                       struct dlx_subscription_stats *ret);

#ifdef __cplusplus
}
#endif

#endif
