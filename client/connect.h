/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_CONNECT_H
#define DLX_CLIENT_CONNECT_H

#include "client/client.h"

/*
 * Find a daemon, or start one, and greet as c->name. `socket` is the caller's, or NULL. Waits
 * c->wait_ns at most for a daemon that is not there, and c->timeout_ns for the rest. Sets c->path, place, passed_over, sock, call and id. Returns what
 * dlx_connect() says.
 */
int dlx__connect(struct dlx_client *c, const char *socket, uint32_t autospawn);

#endif
