/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_REQUEST_H
#define DLXD_REQUEST_H

/*
 * A request that may take several steps, since how much there is to do depends on what others registered. Until it is
 * answered, nothing else is read from its client: its requests stay in order.
 */

#include "daemon/objects/offer.h"

struct dlxd_client;

struct dlxd_request {
    /* Do a part. Returns 0: it was answered; 1: there is more to do; or a code for an Error. NULL: there is no request. */
    int (*step)(struct dlxd_client *client);
    uint32_t serial;
    uint64_t object;                    /* the publisher or subscription that it is about */
    uint64_t after;                     /* of a list: see handler_list.c */
    uint32_t n;                         /* of a drop: publishers that were dropped */
    char topic[DLX_TOPIC_SIZE_MAX + 1]; /* of a list or a drop */
    struct dlxd_topic_cursor cursor;
    struct dlxd_offers offers; /* of Subscribe */
    int fd;                    /* likewise: the subscriber's end; -1: none */
};

void dlxd_request_init(struct dlxd_request *request);
/* Do the first part, when the members that `step` needs are filled. Returns what `step` returned. */
int dlxd_request_begin(struct dlxd_client *client, uint32_t serial,
                       int (*step)(struct dlxd_client *client));
/* Do another part. */
int dlxd_request_continue(struct dlxd_client *client);
/* It was answered, or nobody is there to hear the answer. Harmless if there is none. */
void dlxd_request_end(struct dlxd_client *client);

#endif
