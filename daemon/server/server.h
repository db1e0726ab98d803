/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_SERVER_H
#define DLXD_SERVER_H

/* The loop around the broker: the listening sockets, signals and timers. Timers disconnect clients
 * that do not say Hello, try again to send fds that the kernel refused, end a private daemon that
 * nobody uses, and look for the socket files that the daemon made. No timer runs without need. */

#include <stdint.h>
#include <sys/types.h>

struct dlx_memory;
struct dlxd_manager_fds;
struct dlxd_listen;
struct dlxd_quotas;
struct dlxd_rules;
struct dlxd_server;
struct dlxd_workers;

/* Listens on the main socket. Takes its fd, also on failure. Returns 0, or what
 * dlxd_listener_init() returns. */
int dlxd_server_new(struct dlxd_server **ret, const struct dlxd_listen *main_socket,
                    const struct dlx_memory *memory);
/* Likewise listens on a further socket, with another name. */
int dlxd_server_listen(struct dlxd_server *server, const struct dlxd_listen *listen);
/* Sets what users other than the daemon's user and root may do: policy.h. Disconnects clients with
 * objects that the rules do not allow. The rules of the previous call are not used any more.
 * Returns 0, or what dlxd_listener_share() returns; the rules apply even then. */
int dlxd_server_set_rules(struct dlxd_server *server, const struct dlxd_rules *borrow_rules);
/* Sets what each user may have: as dlxd_users_set_quotas(). */
void dlxd_server_set_quotas(struct dlxd_server *server, const struct dlxd_quotas *borrow_quotas,
                            uint64_t shared_bytes);
/* Makes SIGUSR2 replace this program with the one at its path, with these arguments, which the
 * caller keeps; without this call, SIGUSR2 ends the process. SIGHUP does the same if the file at
 * that path is not the one that runs: upgrade.h. */
void dlxd_server_set_arguments(struct dlxd_server *server, char *const *argv);
/* Makes SIGHUP call `fn` unless another program takes over. `fn` may be NULL; else it reloads the
 * configuration, and dlxd_server_reloaded() says that this is done: with a negative code, and the
 * thread's message set, if the new configuration was refused. */
void dlxd_server_on_hangup(struct dlxd_server *server, void (*fn)(void *data), void *data);
void dlxd_server_reloaded(struct dlxd_server *server, int code);
/* The daemon's workers, for jobs beside its loop. */
struct dlxd_workers *dlxd_server_workers(struct dlxd_server *server);
/* Ends the daemon after this time without a client, from now on; 0: never. */
void dlxd_server_set_idle_exit(struct dlxd_server *server, uint64_t idle_ms);
/* Makes retained messages outlive the daemon, and restores those of the former one: as
 * dlxd_store_init(). `max_fds` 0: without a store, only restores what was handed over. */
int dlxd_server_keep(struct dlxd_server *server, uint32_t max_fds,
                     struct dlxd_manager_fds *manager_fds);
/* Runs until SIGTERM or SIGINT, or until the idle time is over; then disconnects every client.
 * Returns 0; DLX_E_IN_USE if it ended because another daemon listens at the path of its main
 * socket; DLX_E_NO_DAEMON, because its sockets were removed and nobody was connected. */
int dlxd_server_run(struct dlxd_server *server);
/* Returns NULL; accepts NULL. */
struct dlxd_server *dlxd_server_free(struct dlxd_server *server);

#endif
