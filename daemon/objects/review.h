/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_REVIEW_H
#define DLXD_REVIEW_H

/*
 * The review after a change of the rules: a client with a publisher, subscription or link that is
 * not allowed any more is disconnected, which ends all of them. Its library then asks again for
 * what it may still have.
 *
 *   NONE --dlxd_client_review()--> PUBLISHERS --all checked--> SUBSCRIPTIONS --all checked--> NONE
 *                                      ^                             |
 *                                      +----dlxd_client_review()-----+
 *
 * A client is reviewed in steps of its own task, and nothing is read from it before the end. What
 * it gets between two steps was checked by the new rules when it came. Objects are checked in the
 * order of their ids, so an object that ends between two steps makes the review miss none.
 */

#include "daemon/objects/objects.h"

/* Does a part: it checks as many objects as suits the number of rules. */
void dlxd_review_step(struct dlxd_client *client);

#endif
