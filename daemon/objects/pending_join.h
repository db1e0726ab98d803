/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_PENDING_JOIN_H
#define DLXD_PENDING_JOIN_H

/*
 * What is yet to be sent on the link socket of a publisher.
 *
 * Pending joins: links whose LinkAdded does not fit into the link socket of their publisher, which
 * makes no call. They are as open as any other link: `joins` counts them, so the publisher knows
 * that links are missing and frees nothing. Each LinkAdded waits here in the order of joining until
 * there is room, or until its subscriber is gone; then `joins` is lowered as if the link had never
 * existed (docs/decisions/0013).
 *
 * Cuts: draining links whose subscribers were disconnected by a rule or for a violation. Such a
 * subscriber may live and ignore that, so the publisher is told (LinkCut), after the pending joins.
 * `leaves` is raised when the packet is in the socket, so that a publisher that sees it finds the
 * packet.
 */

#include "common/proto.h"
#include "daemon/objects/objects.h"

/* The limit for one publisher. Each pending join costs three descriptors. */
#define DLXD_PENDING_JOINS_MAX 512U

void dlxd_pending_joins_init(struct dlxd_pending_joins *pending_joins);
/* The publisher has left its client, and will get no LinkAdded any more. */
void dlxd_pending_joins_deinit(struct dlxd_pending_joins *pending_joins);

/*
 * Sends the LinkAdded of a link with [page, bell, pidfd], or makes it pending. The caller keeps the
 * fds. Returns 0; DLX_E_PUBLISHER_NOT_RESPONDING (too many are pending), DLX_E_LIMIT (of the
 * subscriber's user), DLX_E_FULL (the kernel takes no descriptors now: try again),
 * DLX_E_DISCONNECTED, DLX_E_NO_MEMORY, DLX_E_FD_LIMIT, DLX_E_SYSTEM.
 */
int dlxd_pending_join_send(struct dlxd_link *link, const Dlx__Wire__LinkAdded *body,
                           const int *fds);

/* The link ends. Drops its pending join if the subscriber holds nothing. */
void dlxd_pending_join_link_ended(struct dlxd_link *link);

/* Tells the publisher of a draining link that its subscriber was disconnected for this reason.
 * `counts`: raises `leaves`, too; the pending join of a link that the publisher does not know does
 * so. Returns false, without a change, if the publisher's library does not know LinkCut. */
bool dlxd_pending_joins_cut(struct dlxd_drain *drain, int code, bool counts);
/* The draining link ends, or its publisher leaves: nothing is to be told any more. */
void dlxd_pending_joins_forget_cut(struct dlxd_drain *drain);

/* Lets the publishers in broker->slow try again. */
void dlxd_pending_joins_retry(struct dlxd_broker *broker);

#endif
