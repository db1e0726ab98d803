/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_GPU_KEEPER_H
#define DLXD_GPU_KEEPER_H

/*
 * The daemon's connection to the GPU keeper (docs/GPU.md, "The keeper"). It is made, and the keeper
 * started, when first needed. The daemon makes the sockets between the keeper and clients, and
 * neither receives nor owns descriptors of GPU memory. The daemon does not wait: calls wait for the
 * keeper, a few seconds at most, and other clients are served. A keeper that dies or violates the
 * protocol is lost, and the next call starts it again.
 *
 *   NONE --(a call)--> CONNECTED, or STARTING --(it listens)--> CONNECTED
 *     ^                                  |                          |
 *     +---------(it fails)---------------+-------(it is lost)-------+
 */

#include "daemon/gpu/origin.h"
#include "daemon/users/user.h"

struct dlxd_gpu_call;
struct dlxd_gpu_keeper;
struct dlxd_watches;
struct dlxd_workers;

/* Descriptors that the keeper may have in flight: they count for the daemon's user. */
#define DLXD_GPU_IN_FLIGHT_MAX 2048U

/* `n_in_flight` is the keeper's limit of descriptors in flight. Returns 0, DLX_E_NO_MEMORY. */
int dlxd_gpu_keeper_new(struct dlxd_gpu_keeper **ret, struct dlxd_watches *watches,
                        struct dlxd_workers *workers, const char *daemon_socket,
                        uint32_t n_in_flight);
/* The daemon ends: the next one claims what the keeper holds. Calls fail. Accepts NULL. */
void dlxd_gpu_keeper_close(struct dlxd_gpu_keeper *keeper);
/* No publisher may be left. Returns NULL; accepts NULL. */
struct dlxd_gpu_keeper *dlxd_gpu_keeper_free(struct dlxd_gpu_keeper *keeper);

/* `whose` is a dlxd_principal_number() in the following functions. */

/* Adds a publisher of a former daemon, of which the keeper may hold something. Accepts NULL. */
void dlxd_gpu_keeper_join(struct dlxd_gpu_keeper *keeper, struct dlxd_gpu_member *member,
                          uint64_t origin, uint64_t whose);
/* Claims the added publishers if a keeper listens. The first claim says that it is complete: the
 * keeper then frees what former daemons' publishers left and nobody has claimed. Accepts NULL. */
void dlxd_gpu_keeper_claim(struct dlxd_gpu_keeper *keeper);
/* The publisher is gone for good: with the last publisher of an origin, the keeper forgets the
 * origin. Accepts NULL. */
void dlxd_gpu_keeper_leave(struct dlxd_gpu_keeper *keeper, struct dlxd_gpu_member *member);
/* Returns a publisher of this user with this origin, or NULL. */
struct dlxd_gpu_member *dlxd_gpu_keeper_find(const struct dlxd_gpu_keeper *keeper, uint64_t origin,
                                             uint64_t whose);

/* Called once: with the client's end of a new socket, which the callee owns, or with a code. */
typedef void dlxd_gpu_call_fn(void *owner, int code, const char *text, int take_sock);

/* Calls the keeper: `own` for the holder of a publisher, whose `member` joins its origin; `get` for
 * a description for a reader. The sockets are charged to `user`. Returns 0; or, without a later
 * callback, DLX_E_LIMIT, DLX_E_NO_DAEMON, DLX_E_NO_MEMORY, DLX_E_FD_LIMIT, DLX_E_SYSTEM. */
int dlxd_gpu_call_own(struct dlxd_gpu_call **ret, struct dlxd_gpu_keeper *keeper,
                      struct dlxd_user *user, struct dlxd_gpu_member *member, uint64_t origin,
                      uint64_t whose, dlxd_gpu_call_fn *fn, void *owner);
int dlxd_gpu_call_get(struct dlxd_gpu_call **ret, struct dlxd_gpu_keeper *keeper,
                      struct dlxd_user *user, uint64_t origin, uint64_t whose, uint64_t allocation,
                      dlxd_gpu_call_fn *fn, void *owner);
/* Cancels the call. Returns NULL; accepts NULL. */
struct dlxd_gpu_call *dlxd_gpu_call_free(struct dlxd_gpu_call *call);

/* Is a job starting the keeper's process? Accepts NULL. */
bool dlxd_gpu_keeper_is_starting(const struct dlxd_gpu_keeper *keeper);

/* When dlxd_gpu_keeper_look() has something to do; UINT64_MAX: never. Accepts NULL. */
uint64_t dlxd_gpu_keeper_next_ns(const struct dlxd_gpu_keeper *keeper);
void dlxd_gpu_keeper_look(struct dlxd_gpu_keeper *keeper, uint64_t now_ns);

#endif
