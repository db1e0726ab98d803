/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_WAITING_H
#define DLXD_WAITING_H

/*
 * Links whose LinkAdded does not fit into the link socket of their publisher, which makes no call. They are as open as any
 * other: `joins` counts them, so the publisher knows that it does not know everybody, and frees nothing. What it is to be
 * sent waits here, in the order of joining, until there is room; or until who it is about has left for good, and then
 * `joins` is lowered, as if it had never come. docs/decisions/0013.
 */

#include "common/proto.h"
#include "daemon/base/list.h"

/* So many of one publisher. Each costs three descriptors. */
#define DLXD_WAITING_MAX 512U

struct dlxd_broker;
struct dlxd_link;
struct dlxd_publisher;
struct dlxd_waiter;
struct dlxd_watch;

/* In a publisher. */
struct dlxd_waiting {
    struct dlxd_list waiters;
    struct dlxd_list slow; /* in broker->slow when its socket takes nothing, but is not full */
    size_t n;
    size_t n_ended;           /* their links have ended, and they may still hold messages */
    size_t look_at;           /* so many of these, and all are looked at */
    uint64_t looked_ns;       /* when they were */
    struct dlxd_watch *watch; /* of the link socket; NULL until somebody had to wait */
};

void dlxd_waiting_init(struct dlxd_waiting *waiting);
/* The publisher has left its client. What it was not sent, it will not be. */
void dlxd_waiting_deinit(struct dlxd_waiting *waiting);

/*
 * Send the LinkAdded of a link with [page, bell, pidfd], or let it wait. The fds stay the caller's. Returns 0;
 * DLX_E_PUBLISHER_NOT_RESPONDING (too many wait), DLX_E_LIMIT (of the subscriber's user), DLX_E_FULL (the kernel takes no
 * descriptors now: try again), DLX_E_DISCONNECTED, DLX_E_NO_MEMORY, DLX_E_FD_LIMIT, DLX_E_SYSTEM.
 */
int dlxd_waiting_send(struct dlxd_link *link, const Dlx__Wire__LinkAdded *body, const int *fds);

/* The link ends. If its LinkAdded waits, it need not when the subscriber holds nothing. */
void dlxd_waiting_link_ended(struct dlxd_link *link);

/* Those in broker->slow may try again. */
void dlxd_waiting_retry(struct dlxd_broker *broker);

#endif
