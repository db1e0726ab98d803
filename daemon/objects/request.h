/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_REQUEST_H
#define DLXD_REQUEST_H

/* A request that may take several steps, because its work depends on what other clients have
 * registered. Until it is answered, nothing else is read from its client, so that requests stay in
 * order. */

#include "daemon/objects/offer.h"

struct dlxd_client;

struct dlxd_request {
    /* Does a part. Returns 0: answered; 1: there is more to do; or a code for an Error. NULL: there
     * is no request. */
    int (*step)(struct dlxd_client *client);
    uint32_t serial;
    uint64_t object;    /* its publisher or subscription */
    uint64_t after;     /* of a list: handler_list.c */
    uint64_t seen_link; /* likewise: how far it came */
    uint64_t seen_drain;
    uint32_t n;                         /* of a drop: publishers dropped so far */
    char topic[DLX_TOPIC_SIZE_MAX + 1]; /* of a list or a drop */
    struct dlxd_topic_cursor cursor;
    struct dlxd_offers offers; /* of Subscribe */
    int fd;                    /* likewise: the subscriber's end; -1: none */
};

void dlxd_request_init(struct dlxd_request *request);
/* Does the first part. The fields that `step` needs must be set. Returns what `step` returned. */
int dlxd_request_begin(struct dlxd_client *client, uint32_t serial,
                       int (*step)(struct dlxd_client *client));
/* Does another part. */
int dlxd_request_continue(struct dlxd_client *client);
/* The request was answered, or nobody waits for the answer. Does nothing if there is none. */
void dlxd_request_end(struct dlxd_client *client);

#endif
