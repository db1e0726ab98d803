/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_SLEEP_H
#define DLX_CLIENT_SLEEP_H

/*
 * How a subscription waits for messages: it spins, then sleeps on its epoll.
 * client/subscribe/take.c takes.
 *
 * Links are ACTIVE, and every take looks at their rings, or PARKED: nothing was there, and their
 * publishers were asked to ring, so that the epoll names those that have something. So a take
 * costs what arrives, not what is linked.
 *
 *     start, turn --> ACTIVE --- asked to ring, and nothing there --> PARKED
 *                       ^                                               |
 *                       +------------------ bell, notifications -----------------+
 *
 * The links of a worker are always ACTIVE: while it is awake, its publishers ring others. Before it
 * sleeps, it asks all of them to ring.
 *
 * A link is in neither state before it is open, and while another one goes before it (`after`).
 */

#include "client/control/call.h"
#include "client/message/worker.h"
#include "client/subscribe/subscription.h"

/* How often a caller that never waits looks for notifications. */
#define DLX_NOTIFICATION_EVERY_NS UINT64_C(1000000)

/* No notifications will come about this link: its daemon has ended. */
static inline bool dlx__subscription_is_cut_off(const struct dlx_subscription *s,
                                                const struct dlx_subscriber_link *link)
{
    return s->sock < 0 || dlx__subscriber_link_is_foreign(link);
}

/* May notifications still come about this link, at least that its publisher is gone? */
static inline bool dlx__subscription_expects_news(const struct dlx_subscription *s,
                                                  const struct dlx_subscriber_link *link)
{
    return link->state != DLX_LINK_OVER && !dlx__subscription_is_cut_off(s, link);
}

/* Does it wait for its publisher, and not for notifications? */
static inline bool dlx__subscriber_link_listens(const struct dlx_subscriber_link *link)
{
    return link->wants != DLX_WANTS_NEWS;
}

/* Ask the publisher of an active link for a bell. Returns false if something is there already. */
bool dlx__subscription_park(struct dlx_subscription *s, struct dlx_subscriber_link *link);

/* Does a link wait for notifications, if only to begin? */
bool dlx__subscription_waits_for_news(const struct dlx_subscription *s);

/* Ask every publisher for a bell that was not asked. Returns false if something is there
 * already. */
bool dlx__subscription_arm(struct dlx_subscription *s);

/* A worker is awake: its publishers ring others. */
void dlx__subscription_disarm(struct dlx_subscription *s);
/* A worker that was rung has claimed a message of this link, or can claim none (NULL). Two
 * publishers may have rung it: others are to have what is not claimed on other links. */
void dlx__subscription_pass_on(struct dlx_subscription *s, const struct dlx_subscriber_link *link);

/* Have every link of the worker look at what others have, in the next take. */
void dlx__subscription_look_at_others(struct dlx_subscription *s);

/* Sleep for this time at most, and handle what happened. Returns how much that was;
 * DLX_E_INTERRUPTED, without a message: a signal came; DLX_E_SYSTEM. */
int dlx__subscription_handle_events(struct dlx_subscription *s, int timeout_ms);

/* For a caller that never sleeps. Nobody brings notifications of a link whose daemon has ended: its
 * bell tells that the publisher has gone. */
void dlx__subscription_look(struct dlx_subscription *s);

/* May the wait go on? Returns 0; DLX_E_INTERRUPTED. */
int dlx__subscription_ask(struct dlx_subscription *s, struct dlx_wait *wait, bool signalled);

/* Busy-wait. Returns 1: something is pending; 0: `until` has passed; DLX_E_INTERRUPTED. */
int dlx__subscription_spin(struct dlx_subscription *s, struct dlx_wait *wait, uint64_t until);

/* Sleep until something happens, or the deadline has passed. Counts as one sleep, however often
 * the program is asked. Returns 0; DLX_E_INTERRUPTED, DLX_E_SYSTEM. */
int dlx__subscription_sleep(struct dlx_subscription *s, struct dlx_wait *wait);

#endif
