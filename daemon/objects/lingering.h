/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_LINGERING_H
#define DLXD_LINGERING_H

/*
 * Links that have ended, but whose subscribers may still hold messages. Their publisher keeps the bell and the page of each until nothing
 * is held, or the process is dead; so they go on counting as links of both clients, and stay charged. Nobody tells when the last
 * message is given back: it is looked at when a newcomer meets a limit, when they have doubled, when somebody asks, and once in a
 * while. docs/decisions/0015.
 */

#include "daemon/users/lingering_list.h"

/* While some linger, they are looked at so often. */
#define DLXD_LINGERING_MS 250U

struct dlxd_broker;
struct dlxd_client;
struct dlxd_link;
struct dlxd_publisher;

/* A process that subscribes. It outlives its connection as long as links of it linger. */
struct dlxd_holder {
    struct dlxd_client *client; /* NULL: the connection has ended */
    int pidfd;
    struct dlxd_lingering lingering;
};

/* Those that have left for good are freed: of many, a part at a time, and not so often that the daemon does little else. */
void dlxd_lingering_look(struct dlxd_lingering *lingering);
/* Of all users. */
void dlxd_lingering_look_all(struct dlxd_broker *broker);
size_t dlxd_lingering_n_all(const struct dlxd_broker *broker);

/* NULL: out of memory, and the thread's message says so. Takes the fd on success. */
struct dlxd_holder *dlxd_holder_new(struct dlxd_client *client, int take_pidfd);
/* Its connection has ended, and all its subscriptions. */
void dlxd_holder_disconnected(struct dlxd_holder *holder);

/* Has whoever has this page left for good: does it hold nothing, and never will, or is its process dead? */
bool dlxd_lingering_has_left(int borrow_page_fd, uint32_t max_held, int borrow_pidfd);

/* The publisher was told of this link, or will be, and it ends. True: it lingers, with its charges, and is freed when it has
 * left; false: it has. */
bool dlxd_lingering_begin(struct dlxd_link *link);
/* The publisher has left its client. */
void dlxd_lingering_publisher_left(struct dlxd_publisher *publisher);

#endif
