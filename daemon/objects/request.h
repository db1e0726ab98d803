/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_REQUEST_H
#define DLXD_REQUEST_H

/* A request that may take several steps, because its work depends on what other clients have
 * registered. Until it is answered, nothing else is read from its client, so that requests stay in
 * order. */

#include "daemon/objects/objects.h"

void dlxd_request_init(struct dlxd_request *request);
/* Does the first part. The fields that `step` needs must be set. Returns what `step` returned. */
int dlxd_request_begin(struct dlxd_client *client, uint32_t serial,
                       int (*step)(struct dlxd_client *client));
/* Does another part. */
int dlxd_request_continue(struct dlxd_client *client);
/* The request was answered, or nobody waits for the answer. Does nothing if there is none. */
void dlxd_request_end(struct dlxd_client *client);

#endif
