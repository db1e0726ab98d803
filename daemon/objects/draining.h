/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_DRAINING_H
#define DLXD_DRAINING_H

/*
 * Draining links. When a link ends, its subscriber may still hold messages. So the resources of the
 * link stay: it counts as a link of both clients, stays charged, and is listed with the links of
 * its publisher while something is held.
 *
 * While the publisher has a client, and was told of the link or will be, it keeps the bell and the
 * page until the subscriber has left: until nothing is held and nothing will be taken. After that,
 * the link drains until nothing is held, and keeps the GONE publisher with the charges of its
 * memory, which the first holder pays. In both cases the link ends when the process is dead. No
 * event reports the release of the last message. The daemon checks when a new link meets a limit,
 * when the number of draining links has doubled, when somebody asks for it, and periodically
 * (docs/decisions/0015).
 */

#include "daemon/objects/drain.h"

/* The most weight of links that one scan checks: drain.h. */
#define DLXD_DRAINS_LOOK_MOST 128U

/* Frees drains whose subscribers are gone. Checks a part of a long list, and is rate-limited to
 * 1/17 of CPU time. */
void dlxd_drains_look(struct dlxd_drains *drains);
/* Does so for all users. */
void dlxd_drains_look_all(struct dlxd_broker *broker);
size_t dlxd_drains_n_all(const struct dlxd_broker *broker);

/* Is the subscriber of this page gone: does it hold nothing and take nothing any more, or is its
 * process dead? */
bool dlxd_drain_has_left(int borrow_page_fd, uint32_t max_held, int borrow_pidfd);

/* The link has ended. Returns true if it drains; false, without a change, if its subscriber is
 * gone. */
bool dlxd_drain_begin(struct dlxd_drain *drain, struct dlxd_publisher *publisher,
                      struct dlxd_holder *holder);
/* The publisher has left its client. */
void dlxd_drains_publisher_left(struct dlxd_publisher *publisher);
/* Does the subscriber hold a message, in a process that lives? */
bool dlxd_drain_holds(const struct dlxd_drain *drain);
/* The daemon ends: frees all drains. */
void dlxd_drains_clear(struct dlxd_broker *broker);

/* Returns NULL if the link with this id does not drain. */
struct dlxd_drain *dlxd_drain_find(const struct dlxd_broker *broker, uint64_t link);
/* The drain of a list of a publisher's, by link. */
const struct dlxd_drain *dlxd_drain_of_publisher(const struct dlxd_list *node);

#endif
