/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_GPU_KEEPER_H
#define DLXD_GPU_KEEPER_H

/*
 * The daemon's connection with the GPU keeper (docs/GPU.md, "The keeper"), made, and the keeper
 * started, when it is first needed. The daemon makes the sockets between the keeper and clients,
 * and neither receives nor has any descriptor of GPU memory. It waits for nothing here: calls wait
 * for the keeper, a few seconds at most, and clients go on. A keeper that dies, or says what it
 * should not, is lost, and started again by the next call.
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

/* Descriptors that the keeper may have on their way: they count for the daemon's user. */
#define DLXD_GPU_IN_FLIGHT_MAX 2048U

/* `n_in_flight`: so many descriptors may it have on their way. Returns 0, DLX_E_NO_MEMORY. */
int dlxd_gpu_keeper_new(struct dlxd_gpu_keeper **ret, struct dlxd_watches *watches,
                        struct dlxd_workers *workers, const char *daemon_socket,
                        uint32_t n_in_flight);
/* The daemon ends: what the keeper holds is for the next one, which claims it. Calls fail. NULL is
 * fine. */
void dlxd_gpu_keeper_close(struct dlxd_gpu_keeper *keeper);
/* No publisher is left. Returns NULL; NULL is fine. */
struct dlxd_gpu_keeper *dlxd_gpu_keeper_free(struct dlxd_gpu_keeper *keeper);

/* Users are dlxd_principal_number()s here. */

/* A publisher of which the keeper may hold something, from a former daemon. NULL is fine. */
void dlxd_gpu_keeper_join(struct dlxd_gpu_keeper *keeper, struct dlxd_gpu_member *member,
                          uint64_t origin, uint64_t whose);
/* Claim those that have joined, if a keeper listens. The first claim says that it is complete: what
 * a former daemon's publishers left and nobody has claimed then, the keeper lets go of. NULL is
 * fine. */
void dlxd_gpu_keeper_claim(struct dlxd_gpu_keeper *keeper);
/* The publisher is gone for good: with the last of its origin, the keeper forgets. NULL is fine. */
void dlxd_gpu_keeper_leave(struct dlxd_gpu_keeper *keeper, struct dlxd_gpu_member *member);
/* A publisher of this user that has this origin; or NULL. */
struct dlxd_gpu_member *dlxd_gpu_keeper_find(const struct dlxd_gpu_keeper *keeper, uint64_t origin,
                                             uint64_t whose);

/* Called once: with the client's end of a new socket, which is the callee's, or with a code. */
typedef void dlxd_gpu_call_fn(void *owner, int code, const char *text, int take_sock);

/*
 * A holder for a publisher, which `member` joins to its origin; or a description for a reader. The
 * sockets are charged to `user`. Returns 0; DLX_E_LIMIT, DLX_E_NO_DAEMON, DLX_E_NO_MEMORY,
 * DLX_E_FD_LIMIT, DLX_E_SYSTEM: nothing will be called.
 */
int dlxd_gpu_call_own(struct dlxd_gpu_call **ret, struct dlxd_gpu_keeper *keeper,
                      struct dlxd_user *user, struct dlxd_gpu_member *member, uint64_t origin,
                      uint64_t whose, dlxd_gpu_call_fn *fn, void *owner);
int dlxd_gpu_call_get(struct dlxd_gpu_call **ret, struct dlxd_gpu_keeper *keeper,
                      struct dlxd_user *user, uint64_t origin, uint64_t whose, uint64_t allocation,
                      dlxd_gpu_call_fn *fn, void *owner);
/* Nobody waits for it any more. Returns NULL; NULL is fine. */
struct dlxd_gpu_call *dlxd_gpu_call_free(struct dlxd_gpu_call *call);

/* Is it being started, by a job that makes a process? NULL is fine. */
bool dlxd_gpu_keeper_is_starting(const struct dlxd_gpu_keeper *keeper);

/* When dlxd_gpu_keeper_look() has something to do; UINT64_MAX: never. NULL is fine. */
uint64_t dlxd_gpu_keeper_next_ns(const struct dlxd_gpu_keeper *keeper);
void dlxd_gpu_keeper_look(struct dlxd_gpu_keeper *keeper, uint64_t now_ns);

#endif
