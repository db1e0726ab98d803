/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_EVENT_H
#define DLX_EVENT_H

/* Events: peers that come and go, and a daemon that was replaced. Included by dlx/dlx.h. */

#include <dlx/dlx.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What happened. The peer of a publisher is a subscriber, and the other way round. */
enum dlx_event_kind {
    DLX_EVENT_JOINED = 1, /**< a peer is attached */
    DLX_EVENT_LEFT = 2,   /**< a peer closed; if a publisher, everything it published was taken */
    /** The same, but the peer did not close: its process died or executed another program, or its
     *  link was cut, for `reason`. What a subscription can no longer get counts as lost. A
     *  publisher hears of this within a second if dlpackd cannot tell it. */
    DLX_EVENT_LOST = 3,
    /** For a subscription with `pin`, once for each publisher: some of that publisher's memory
     *  could not be pinned. Its messages arrive nevertheless. */
    DLX_EVENT_UNPINNED = 4,
    /** For a subscription: streams continued before tensors of this publisher were ready, and
     *  `reason` says why: it was gone, its GPU failed, or which limit was over. See
     *  dlx_message_tensor_on(). */
    DLX_EVENT_LATE = 5,
    /** The connection to the daemon was lost, and this publisher or subscription has reconnected:
     *  dlpackd was restarted, or had disconnected this client. There is one such event for each
     *  reconnection, before the events of its new links. Counters go on. `publisher` is the
     *  publisher's new id (0 for a subscription), `pid` and `link` are 0, and `topic` may be the
     *  pattern of the subscription. */
    DLX_EVENT_RECONNECTED = 6,
    /** For a subscription: it has no messages of this publisher, and `reason` says why: the
     *  publisher left before this subscription made a call, and more had come than the subscription
     *  was ready for (`n_publishers` of struct dlx_subscribe_args); or no link could be made. What
     *  is known to be missed counts as lost, or as skipped. One event may stand for several
     *  publishers: `publisher` is 0 then. A daemon of protocol 2.7 does not tell `publisher`, `pid`
     *  and `topic`: they are 0, 0 and that of the subscription. */
    DLX_EVENT_UNSEEN = 7,
    /** For a subscription, once: dlx_message_tensor_on() waited itself, since its stream could not
     *  wait for a publisher. `reason` says why, and what to do; `gpu_waits` counts all waits. */
    DLX_EVENT_CPU_WAITED = 8,
    /** For a worker of a group, which found a message that was given back too often: `reason` has
     *  its number, its attempts, and what became of it. */
    DLX_EVENT_DEAD_LETTER = 9,
};

#define DLX_EVENT_REASON_SIZE 96

struct dlx_event {
    size_t size;
    uint32_t kind;                 /**< enum dlx_event_kind */
    uint32_t pid;                  /**< of the peer, as in struct dlx_link_info */
    uint64_t link;                 /**< id of the link, as in struct dlx_link_info */
    uint64_t publisher;            /**< id of the publisher */
    uint64_t missed;               /**< events dropped before this one: 64 are kept */
    char topic[DLX_TOPIC_MAX + 1]; /**< of the publisher */
    /** Why the link was cut, the memory is not pinned, the last tensor was not ready, a publisher
     *  was not seen, or the CPU waited; "" for other events. */
    char reason[DLX_EVENT_REASON_SIZE];
};

/**
 * Gets the next event of a publisher, in the order in which it noticed them. Never waits. The end
 * of each link is told once.
 *
 * Returns 0; DLX_E_EMPTY, DLX_E_INVALID, DLX_E_FORKED, DLX_E_IN_USE.
 */
DLX_API int dlx_publisher_next_event(struct dlx_publisher *p, struct dlx_event *ret);

/**
 * Gets the next event of a subscription. Never waits. The descriptor of dlx_subscription_fd()
 * becomes readable for events, too.
 *
 * Returns 0; DLX_E_EMPTY, DLX_E_INVALID, DLX_E_FORKED, DLX_E_IN_USE.
 */
DLX_API int dlx_subscription_next_event(struct dlx_subscription *s, struct dlx_event *ret);

#ifdef __cplusplus
}
#endif

#endif
