/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_OFFER_H
#define DLXD_OFFER_H

/*
 * Which publisher serves which subscription: links between them are made here, whichever side comes first. The side that
 * comes later pays for the work, in steps. See `last_announcement` in registry.h for how each pair meets once.
 */

#include "daemon/base/list.h"
#include "daemon/objects/registry.h"

struct dlxd_publisher;
struct dlxd_subscription;

/* May this publisher serve this subscription? 0; DLX_E_QOS naming both, DLX_E_ACCESS. */
int dlxd_offer_fits(const struct dlxd_subscription *subscription,
                    const struct dlxd_publisher *publisher);

/* ---- a new subscription and the publishers that are there ----------------------------------------------------- */

/* How far a Subscribe is. All zero: there is none. */
struct dlxd_offers {
    struct dlxd_subscription *subscription;
    struct dlxd_topic_cursor cursor;
    bool found_all;
    uint64_t *publishers; /* ids of those that serve it */
    size_t n_publishers;
    size_t n_publishers_max;
    size_t n_offered; /* of them */
    /* Ids of links that were set aside, so that they follow one another: the last that was used,
     * and the last of all. */
    uint64_t made_link;
    uint64_t last_link;
    uint32_t n_links; /* that were made */
};

/* For a subscription that is OPENING. It must not end before dlxd_offers_deinit(). */
void dlxd_offers_init(struct dlxd_offers *offers, struct dlxd_subscription *subscription);
/*
 * Find the publishers, make a link to each, then spare links. The first publisher that does not fit fails it, before there is a
 * link. Returns 0 when all is done; 1: there is more to do; DLX_E_QOS, DLX_E_ACCESS, DLX_E_NO_MEMORY.
 */
int dlxd_offers_step(struct dlxd_offers *offers);
void dlxd_offers_deinit(struct dlxd_offers *offers);

/* ---- a new publisher and the subscriptions that are there ----------------------------------------------------- */

/* How far a publisher is. All zero: nothing is to be done. */
struct dlxd_offering {
    bool active;
    bool from_start;  /* it has published nothing yet */
    bool in_patterns; /* those to its topic are done */
    uint64_t last;    /* subscription that was done last */
    struct dlxd_list *next;
    uint64_t n_left; /* `next` is right while so many subscriptions have ended */
};

/* From now on it is announced, and offered step by step. */
void dlxd_offering_begin(struct dlxd_publisher *publisher, bool from_start);
/*
 * A publisher that does not fit: the subscription gets LinkFailed. One that is new takes a spare link of each subscription that has
 * one. Returns whether there is more to do.
 */
bool dlxd_offering_step(struct dlxd_publisher *publisher);

#endif
