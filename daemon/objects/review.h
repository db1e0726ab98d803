/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_REVIEW_H
#define DLXD_REVIEW_H

/*
 * The rules have changed: a client that has what they do not allow any more, be it a publisher, a
 * subscription or a link, is disconnected, which takes all of it away. What it may still have its
 * library asks for again.
 */

struct dlxd_client;

void dlxd_review(struct dlxd_client *client);

#endif
