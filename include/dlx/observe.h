/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_OBSERVE_H
#define DLX_OBSERVE_H

/* Observers: which publishers and subscriptions there are, and which come and go. Included by
 * dlx/dlx.h.
 *
 *     dlx_observer_new(c, "cam/" "**", NULL, &o);
 *     struct dlx_observed x = {.size = sizeof x};
 *     while (dlx_observer_next(o, DLX_FOREVER, &x) == 0)
 *         ... x.kind, x.gone, x.topic ...
 *
 * An observer gets no message, is no subscriber of any publisher, and costs publishers nothing. The
 * daemon tells it what changes, so nothing polls. It is told what its user may observe
 * (dlpackd.conf(5)): the same as dlx_list_publishers() lists. Callers, services and their replies
 * (<dlx/call.h>) are publishers and subscriptions, but inboxes are never told.
 */

#include <dlx/dlx.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dlx_observer;

enum dlx_observed_kind {
    DLX_OBSERVED_PUBLISHER = 1,
    DLX_OBSERVED_SUBSCRIPTION = 2,
    /** All that is there was told: once in the beginning, and again after all had to be told again,
     *  because the daemon is another one, its rules have changed, or this observer has made no call
     *  while thousands of publishers and subscriptions came and went. What is not there any more
     *  was told before. */
    DLX_OBSERVED_ALL = 3,
};

struct dlx_observer_args {
    size_t size;
    /** DLX_OBSERVED_PUBLISHER, DLX_OBSERVED_SUBSCRIPTION or their sum. 0: both. */
    uint32_t kinds;
};

/** The present state of a publisher or a subscription. */
struct dlx_observed {
    size_t size;
    uint32_t kind; /**< enum dlx_observed_kind; all else is 0 with DLX_OBSERVED_ALL */
    bool gone;     /**< it is gone; all else is as it was told before */
    bool own;      /**< it was made with the client of this observer */
    /** Of the publisher, as dlx_publisher_id(); or of the subscription. It has another one once it
     *  has reconnected to a restarted daemon: the former one is told as gone. */
    uint64_t id;
    uint32_t pid; /**< as in struct dlx_publisher_info */
    uint32_t uid; /**< of the process */
    /** Its topic; of a subscription also a pattern, if one topic at least matches that and the
     *  observer's. */
    char topic[DLX_TOPIC_MAX + 1];
    char client_name[64]; /**< `name` of struct dlx_connect_args */

    /** Of a publisher: the publisher is gone, and the daemon keeps its messages, or what its groups
     *  have not done. It was told before with false, mostly. */
    bool retained;
    uint32_t on_full;          /**< of a publisher: DLX_ON_FULL_BLOCK (it offers reliable links) or
                                DLX_ON_FULL_DROP */
    uint32_t depth;            /**< of a publisher: as in struct dlx_publisher_args */
    uint32_t history;          /**< likewise */
    uint32_t retain;           /**< likewise */
    int64_t retain_for_ns;     /**< likewise: 0, or a time, or DLX_RETAIN_LATCHED */
    uint32_t n_groups;         /**< likewise */
    const char *const *groups; /**< likewise; valid until the next dlx_observer_next() */

    uint32_t mode;           /**< of a subscription: enum dlx_mode */
    bool reliable;           /**< of a subscription: as in struct dlx_subscribe_args */
    bool accepts_unreliable; /**< likewise */
    char group[64];          /**< likewise; "": none */
};

/**
 * Makes an observer of a topic, or of all topics that match a pattern. What is there by now is told
 * first.
 *
 * Returns 0; DLX_E_TOPIC, DLX_E_LIMIT (a quota: an observer counts as a subscription to a pattern),
 * DLX_E_VERSION (the daemon is older than protocol 2.9), and the errors of every request to the
 * daemon (dlx_list_publishers()).
 */
DLX_API int dlx_observer_new(struct dlx_client *c, const char *topic,
                             const struct dlx_observer_args *args, struct dlx_observer **ret);

/** Releases the observer. Returns NULL. */
DLX_API struct dlx_observer *dlx_observer_unref(struct dlx_observer *o);

/**
 * Gets what is there, or has changed, next. What has changed several times since is told once, as
 * it is now. So a publisher that came and went meanwhile may not be told at all.
 *
 * An observer reconnects to a restarted daemon in its calls. Then it is told all again, and as gone
 * what has not come back by the time of DLX_OBSERVED_ALL: idle publishers come back with their next
 * call (dlx_publisher_wait()).
 *
 * Returns 0, or:
 *
 *   DLX_E_EMPTY        nothing has changed, and timeout_ns is 0
 *   DLX_E_TIMEOUT      nothing has changed in time; the text says if there is no daemon
 *   DLX_E_INTERRUPTED  `interrupt` of dlx_connect_args ended the wait; without one, a signal
 *                      handler ran during it
 *   DLX_E_ACCESS       the restarted daemon refuses this user; the observer tries once a second
 *   DLX_E_LIMIT        likewise, because of a quota
 *   DLX_E_VERSION      likewise, since it is older
 *   DLX_E_PROTOCOL     what the daemon says makes no sense: the observer begins again
 *   DLX_E_NO_MEMORY    there is none for what the daemon says: the observer begins again
 *   DLX_E_INVALID      an argument is NULL
 *   DLX_E_IN_USE       another thread is in a call on this observer
 *   DLX_E_FORKED       the observer is the parent's
 *   DLX_E_SYSTEM       a system call failed; the text says which
 */
DLX_API int dlx_observer_next(struct dlx_observer *o, int64_t timeout_ns, struct dlx_observed *ret);

/**
 * Gets a file descriptor for poll(2), epoll, libuv or asyncio. Owned by the observer: do not read,
 * write or close it. Call dlx_observer_next() until it returns DLX_E_EMPTY, then poll: the
 * descriptor becomes readable when there may be something. While there is no daemon it becomes
 * readable periodically, first after 20 ms, later once a second.
 *
 * Returns the fd; DLX_E_INVALID, DLX_E_FORKED, DLX_E_IN_USE, DLX_E_FD_LIMIT, DLX_E_SYSTEM.
 */
DLX_API int dlx_observer_fd(struct dlx_observer *o);

#ifdef __cplusplus
}
#endif

#endif
