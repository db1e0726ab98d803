/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_REFUSAL_H
#define DLXD_REFUSAL_H

/*
 * What the daemon has refused last, for those who ask why a topic does not flow. A refusal changes
 * nothing else, and nothing depends on what is kept here: a user with many processes can push its
 * own refusals out, but not those of other users.
 */

#include "daemon/objects/objects.h"

/* How many are kept, of all users and of one. */
#define DLXD_REFUSALS_MAX         128U
#define DLXD_REFUSALS_OF_USER_MAX 32U
#define DLXD_RULE_TEXT_SIZE       256

/* One that is made again by the same process, on the same topic (a link: of the same subscription)
 * and for the same reason, is counted and becomes the last one. */
struct dlxd_refusal {
    struct dlxd_list node; /* in broker->refusals.list, by number */
    uint64_t number;
    struct dlxd_principal *principal;
    pid_t pid;
    char client_name[DLXD_NAME_SIZE];
    enum dlxd_refused what;
    uint64_t subscription; /* of a link; else 0 */
    int code;
    uint64_t at_ns;
    uint64_t n;
    char topic[DLX_TOPIC_SIZE_MAX + 1];
    char text[DLX_ERROR_TEXT_SIZE]; /* that the client was told */
    char rule[DLXD_RULE_TEXT_SIZE]; /* which rule decided; "": none did */
};

/* The client was refused this, and told `text`. Ignores codes that are no refusal, and
 * inboxes. Nothing is kept if there is no memory. */
void dlxd_refusal_note(struct dlxd_client *client, enum dlxd_refused what, const char *topic,
                       uint64_t subscription, int code, const char *text);
/* The last refusal of a link of this subscription; NULL: there is none. */
const struct dlxd_refusal *dlxd_refusal_of(const struct dlxd_broker *broker, uint64_t subscription);
/* What a client may read of it: all, if it is a superuser or the same user; else that there was
 * one, and whom to ask. Valid until the next call. */
const char *dlxd_refusal_text(const struct dlxd_client *client, const struct dlxd_refusal *refusal);
void dlxd_refusals_deinit(struct dlxd_refusals *refusals);

#endif
