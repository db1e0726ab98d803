/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_DRAIN_H
#define DLXD_DRAIN_H

/*
 * The resources of a link: its page, its place among the links of both clients, and its charges.
 * They may outlive the link, as a draining link (draining.h).
 *
 *   (part of a link) --dlxd_drain_begin()--> draining --(its subscriber is gone)--> freed
 */

#include "daemon/base/idmap.h"
#include "daemon/users/drains.h"
#include "daemon/users/user.h"

struct dlxd_holder;
struct dlxd_publisher;
struct dlxd_share;
struct dlxd_workers;

struct dlxd_drain {
    uint64_t link;                  /* the link's id */
    struct dlxd_idmap_node by_link; /* draining */
    struct dlxd_workers *workers;   /* close the page */
    int page_fd; /* the daemon's read-only fd, for reports; -1 while the proof has it */
    uint32_t max_held;
    struct dlxd_share *share; /* in the publisher's client; NULL: none, or the same user */
    struct dlxd_charge links_charge;
    struct dlxd_charge bytes_charge;

    uint32_t mode; /* of the subscription, for lists */
    bool reliable;

    struct dlxd_publisher *publisher; /* draining */
    struct dlxd_holder *holder;       /* draining: the subscriber's process */
    struct dlxd_drain_node of_holder;
    struct dlxd_drain_node of_publisher; /* by link */
    struct dlxd_drain_node of_client;    /* the publisher's; in no list after that has left it */
    bool is_due; /* its publisher has left its client, and it was not checked since */
    struct dlxd_drain_node of_user;
    struct dlxd_list cut; /* draining: in `cuts` of the publisher if LinkCut is yet to be sent */
    int cut_code;
    bool cut_counts; /* raise `leaves` with LinkCut */
};

/* About how many times as long it takes to read the link's page as one that holds a few messages: 1
 * to 2 us. */
static inline uint32_t dlxd_drain_weight(uint32_t max_held)
{
    return 1 + max_held / 512;
}

/* Makes one without a page and charges. Returns NULL if out of memory. */
struct dlxd_drain *dlxd_drain_new(uint64_t link, struct dlxd_workers *workers, uint32_t max_held);
/* It must be in no list. Returns NULL; accepts NULL. */
struct dlxd_drain *dlxd_drain_free(struct dlxd_drain *drain);

#endif
