/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_SERVER_H
#define DLXD_SERVER_H

/*
 * The loop around the broker: the listening socket, signals, and the two things that time does: those
 * that do not say Hello are disconnected, those that the kernel would not take fds for are tried again.
 * Neither timer runs when there are none.
 */

struct dlxd_server;

/* Listens on `path`. Returns 0, or what dlxd_listener_init() returns. */
int dlxd_server_new(struct dlxd_server **ret, const char *path);
/* Until SIGTERM or SIGINT; then every client has been disconnected. */
void dlxd_server_run(struct dlxd_server *server);
/* Returns NULL; NULL is fine. */
struct dlxd_server *dlxd_server_free(struct dlxd_server *server);

#endif
