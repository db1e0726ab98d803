/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_DRAIN_H
#define DLXD_DRAIN_H

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

#include "daemon/objects/objects.h"

/* The cost of one check of a link, relative to a link with a small `max_held`, whose page takes
 * 1 to 2 us to read. */
static inline uint32_t dlxd_drain_weight(uint32_t max_held)
{
    return 1 + max_held / 512;
}

/* The most weight of links that one scan checks. */
#define DLXD_DRAINS_LOOK_MOST 128U

/* Makes one without a page and charges. Returns NULL if out of memory. */
struct dlxd_drain *dlxd_drain_new(uint64_t link, struct dlxd_workers *workers, uint32_t max_held);
/* It must be in no list. Returns NULL; accepts NULL. */
struct dlxd_drain *dlxd_drain_free(struct dlxd_drain *drain);

/* Frees drains whose subscribers are gone. Checks a part of a long list, and takes 1/17 of the
 * time at most. */
void dlxd_drains_look(struct dlxd_drains *drains);
/* Does so for all users. */
void dlxd_drains_look_all(struct dlxd_broker *broker);
size_t dlxd_drains_n_all(const struct dlxd_broker *broker);

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

#endif
