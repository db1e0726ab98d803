/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_SERVER_H
#define DLXD_SERVER_H

/*
 * The loop around the broker: the listening sockets, signals, and the three things that time does: those
 * that do not say Hello are disconnected, those that the kernel would not take fds for are tried again,
 * and a private daemon that nobody uses ends. No timer runs without need.
 */

#include <stdint.h>
#include <sys/types.h>

struct dlx_memory;
struct dlxd_inherited;
struct dlxd_listen;
struct dlxd_quotas;
struct dlxd_rules;
struct dlxd_server;

/* Listens on the main socket: takes its fd, also on failure. Returns 0, or what dlxd_listener_init()
 * returns. */
int dlxd_server_new(struct dlxd_server **ret, const struct dlxd_listen *main_socket,
                    const struct dlx_memory *memory);
/* Listens on a further socket, of another name: likewise. */
int dlxd_server_listen(struct dlxd_server *server, const struct dlxd_listen *listen);
/* What others than the daemon's user and root may do: policy.h. Who is there already and has what the
 * rules do not allow is disconnected. Those of the call before are not looked at any more. Returns 0,
 * or what dlxd_listener_share() returns: they hold nevertheless. */
int dlxd_server_set_rules(struct dlxd_server *server, const struct dlxd_rules *rules_borrow);
/* What each user may have of the daemon: as dlxd_users_set_quotas(). */
void dlxd_server_set_quotas(struct dlxd_server *server, const struct dlxd_quotas *quotas_borrow,
                            uint64_t shared_bytes);
/*
 * SIGUSR2 has the program at the path of this one take its place, with these arguments, which stay
 * the caller's; otherwise it ends the process. SIGHUP does so if that file is another one than the
 * one that runs: upgrade.h.
 */
void dlxd_server_set_arguments(struct dlxd_server *server, char *const *argv);
/* SIGHUP calls this, unless another program takes over; without this call it ends the process. `fn`
 * may be NULL. A negative code of it, whose message is set, says that the new configuration was
 * refused. */
void dlxd_server_on_hangup(struct dlxd_server *server, int (*fn)(void *data), void *data);
/* End by itself after so long without a client, from now on; 0: never. */
void dlxd_server_set_idle_exit(struct dlxd_server *server, uint64_t idle_ms);
/* What publishers retain outlives the daemon, and what they retained with the former one is back: as dlxd_store_init().
 * 0: there is no store, and what was handed over is back. */
int dlxd_server_keep(struct dlxd_server *server, uint32_t max_fds,
                     struct dlxd_inherited *inherited);
/* Until SIGTERM or SIGINT, or idle for long enough; then every client has been disconnected. */
void dlxd_server_run(struct dlxd_server *server);
/* Returns NULL; NULL is fine. */
struct dlxd_server *dlxd_server_free(struct dlxd_server *server);

#endif
