/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_EVENT_H
#define DLX_EVENT_H

/* Part of dlx/dlx.h, which includes it: who comes and who goes, and a daemon that was replaced. */

#include <dlx/dlx.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dlx_event_kind {
    DLX_EVENT_JOINED = 1,   /**< a subscriber, or a publisher, is attached */
    DLX_EVENT_LEFT = 2,     /**< it closed; of a publisher: and everything was taken */
    DLX_EVENT_LOST = 3,     /**< likewise, its process died, or it misbehaved and was cut off */
    DLX_EVENT_UNPINNED = 4, /**< to a subscription with `pin`, once for each publisher: memory of it
                                 could not be pinned; its messages come all the same */
    DLX_EVENT_LATE = 5,     /**< to a subscription: streams went on before tensors of this publisher
                                 were ready (dlx_message_tensor_on()) */
    /** The connection to the daemon was lost, and this publisher or subscription has joined the
     *  daemon that took its place: dlpackd was restarted, or it had disconnected this client. Once
     *  for each time, before the events of its links there. Counters go on. `publisher` is the
     *  publisher's new id, 0 to a subscription; `pid` and `link` are 0; `topic` may be the
     *  subscription's pattern. */
    DLX_EVENT_RECONNECTED = 6,
};

#define DLX_EVENT_REASON_SIZE 96

struct dlx_event {
    size_t size;
    uint32_t kind;                 /**< enum dlx_event_kind */
    uint32_t pid;                  /**< of the other side, as in struct dlx_link_info */
    uint64_t link;                 /**< id, as in struct dlx_link_info */
    uint64_t publisher;            /**< id */
    uint64_t missed;               /**< events before this one that were dropped: 64 are kept */
    char topic[DLX_TOPIC_MAX + 1]; /**< of the publisher */
    char reason[DLX_EVENT_REASON_SIZE]; /**< why the publisher cut the link, or the
                                             memory is not pinned, or the last tensor
                                             was not ready; else "" */
};

/**
 * Which subscriber came or left next, in the order in which this publisher noticed. Never waits.
 * Returns 0; DLX_E_EMPTY, DLX_E_INVALID, DLX_E_FORKED, DLX_E_IN_USE.
 */
DLX_API int dlx_publisher_next_event(struct dlx_publisher *p, struct dlx_event *ret);

/**
 * Which publisher came or left next. Never waits; the fd of the subscription gets readable for
 * these, too.
 * Returns 0; DLX_E_EMPTY, DLX_E_INVALID, DLX_E_FORKED, DLX_E_IN_USE.
 */
DLX_API int dlx_subscription_next_event(struct dlx_subscription *s, struct dlx_event *ret);

#ifdef __cplusplus
}
#endif

#endif
