/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_REVIEW_H
#define DLXD_REVIEW_H

/* The review after a change of the rules: a client with a publisher, subscription or link that is
 * not allowed any more is disconnected, which ends all of them. Its library then asks again for
 * what it may still have. */

struct dlxd_client;

void dlxd_review(struct dlxd_client *client);

#endif
