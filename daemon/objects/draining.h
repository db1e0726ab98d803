/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_DRAINING_H
#define DLXD_DRAINING_H

/*
 * Draining links. When a link ends that its publisher was told of, or will be, its subscriber may
 * still hold messages. The publisher keeps the bell and the page until nothing is held, or the
 * process is dead. So what the link took stays: it counts as a link of both clients, and is
 * charged. Nobody tells when the last message is given back: it is looked at when a newcomer meets
 * a limit, when they have doubled, when somebody asks, and once in a while. docs/decisions/0015.
 */

#include "daemon/objects/drain.h"

struct dlxd_broker;
struct dlxd_client;
struct dlxd_publisher;

/* A process that subscribes. It outlives its connection as long as links of it drain. */
struct dlxd_holder {
    struct dlxd_client *client; /* NULL: the connection has ended */
    int pidfd;
    struct dlxd_drains drains;
};

/* Those that have left for good are freed: of many, a part at a time, and not so often that the
 * daemon does little else. */
void dlxd_drains_look(struct dlxd_drains *drains);
/* Of all users. */
void dlxd_drains_look_all(struct dlxd_broker *broker);
size_t dlxd_drains_n_all(const struct dlxd_broker *broker);

/* NULL: out of memory, and the thread's message says so. Takes the fd on success. */
struct dlxd_holder *dlxd_holder_new(struct dlxd_client *client, int take_pidfd);
/* Its connection has ended, and all its subscriptions. */
void dlxd_holder_disconnected(struct dlxd_holder *holder);

/* Has whoever has this page left for good: does it hold nothing, and never will, or is its process
 * dead? */
bool dlxd_drain_has_left(int borrow_page_fd, uint32_t max_held, int borrow_pidfd);

/* Its link has ended. True: it drains; false: its subscriber has left for good, and nothing has
 * changed. */
bool dlxd_drain_begin(struct dlxd_drain *drain, struct dlxd_publisher *publisher,
                      struct dlxd_holder *holder);
/* The publisher has left its client. */
void dlxd_drains_publisher_left(struct dlxd_publisher *publisher);

#endif
