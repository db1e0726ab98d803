/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_DRAIN_H
#define DLXD_DRAIN_H

/*
 * What a link takes from its clients and its user: the page, a place among the links of both, and
 * charges. It may outlive the link, as a draining link: see draining.h.
 *
 *   (of a link) --dlxd_drain_begin()--> draining --(its subscriber has left for good)--> (freed)
 */

#include "daemon/users/drains.h"
#include "daemon/users/user.h"

struct dlxd_holder;
struct dlxd_publisher;
struct dlxd_share;
struct dlxd_workers;

struct dlxd_drain {
    uint64_t link;                /* its id */
    struct dlxd_workers *workers; /* close the page */
    int page_fd; /* the daemon's own, read-only, for reports; -1 while a proof has it */
    uint32_t max_held;
    struct dlxd_share *share; /* of the publisher's client; NULL: none, or it is the same user's */
    struct dlxd_charge links_charge;
    struct dlxd_charge bytes_charge;

    struct dlxd_publisher *publisher; /* draining; NULL: it has left its client */
    struct dlxd_holder *holder;       /* likewise */
    struct dlxd_drain_node of_holder;
    struct dlxd_drain_node of_publishers;
    struct dlxd_drain_node of_user;
};

/* Without a page, and nothing is charged yet. NULL: out of memory. */
struct dlxd_drain *dlxd_drain_new(uint64_t link, struct dlxd_workers *workers, uint32_t max_held);
/* It is in no list. Returns NULL; NULL is fine. */
struct dlxd_drain *dlxd_drain_free(struct dlxd_drain *drain);

#endif
