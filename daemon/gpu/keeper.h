/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_GPU_KEEPER_H
#define DLXD_GPU_KEEPER_H

/*
 * The daemon's connection to the GPU keeper (docs/GPU.md, "The keeper"), which makes GPU memory. It
 * is made when first needed, and the keeper started by the first allocation. Descriptors of the
 * memory come from the keeper, which has them from the driver, so the daemon may receive them: it
 * passes them on and keeps none. The daemon does not wait: calls wait for the keeper, a few seconds
 * at most, and other clients are served. A keeper that dies or violates the protocol is lost with
 * all that it had, and the next allocation starts it again.
 *
 *   NONE --(a call)--> CONNECTED, or STARTING --(it listens)--> CONNECTED
 *     ^                                  |                          |
 *     +---------(it fails)---------------+-------(it is lost)-------+
 */

#include "daemon/gpu/origin.h"
#include "daemon/users/user.h"
#include "keeper/wire.h"

struct dlxd_gpu_call;
struct dlxd_gpu_keeper;
struct dlxd_watches;
struct dlxd_workers;

/* Descriptors in flight between the daemon and the keeper, in both directions: they count for the
 * daemon's user. */
#define DLXD_GPU_IN_FLIGHT_MAX 32U

/* `n_in_flight`: as many may be. Returns 0, DLX_E_NO_MEMORY. */
int dlxd_gpu_keeper_new(struct dlxd_gpu_keeper **ret, struct dlxd_watches *watches,
                        struct dlxd_workers *workers, const char *daemon_socket,
                        uint32_t n_in_flight);
/* The daemon ends: the next one claims what the keeper holds. Calls fail. Accepts NULL. */
void dlxd_gpu_keeper_close(struct dlxd_gpu_keeper *keeper);
/* No publisher may be left. Returns NULL; accepts NULL. */
struct dlxd_gpu_keeper *dlxd_gpu_keeper_free(struct dlxd_gpu_keeper *keeper);

/* Adds a publisher of a former daemon, of which the keeper may have something: `payer` pays.
 * Accepts NULL. */
void dlxd_gpu_keeper_join(struct dlxd_gpu_keeper *keeper, struct dlxd_gpu_member *member,
                          struct dlxd_gpu_whose whose, struct dlxd_user *payer);
/* Claims the added publishers if a keeper listens. The first claim says that it is complete: the
 * keeper then frees what former daemons' publishers left and nobody has claimed. Accepts NULL. */
void dlxd_gpu_keeper_claim(struct dlxd_gpu_keeper *keeper);
/* The publisher is gone for good: with the last publisher of an origin, the keeper forgets the
 * origin. Accepts NULL. */
void dlxd_gpu_keeper_leave(struct dlxd_gpu_keeper *keeper, struct dlxd_gpu_member *member);
/* Returns a publisher of this user with this origin, or NULL. */
struct dlxd_gpu_member *dlxd_gpu_keeper_find(const struct dlxd_gpu_keeper *keeper,
                                             struct dlxd_gpu_whose whose);

/* What the keeper answers. */
struct dlxd_gpu_answer {
    const uint8_t *description; /* gpu/handle.h */
    size_t size;
    uint64_t keeper; /* its number */
    int borrow_fd;   /* the memory */
};
/* Called once, with a code, and with an answer (0) or a text. */
typedef void dlxd_gpu_call_fn(void *owner, int code, const char *text,
                              const struct dlxd_gpu_answer *answer);

/*
 * Calls the keeper. They return 0; or, without a later callback, DLX_E_LIMIT, DLX_E_NO_DAEMON,
 * DLX_E_NO_MEMORY. The callback may come before they return.
 */

/* Memory of `size` bytes for a publisher of `user`, whose `member` joins its origin. The pidfd of
 * the publisher's process stays open until the call is over. */
struct dlxd_gpu_request {
    struct dlxd_gpu_whose whose;
    uint64_t allocation;
    uint64_t size;
    struct dlx_keeper_device device;
    int borrow_pidfd;
};
int dlxd_gpu_call_allocate(struct dlxd_gpu_call **ret, struct dlxd_gpu_keeper *keeper,
                           struct dlxd_user *user, struct dlxd_gpu_member *member,
                           const struct dlxd_gpu_request *request, dlxd_gpu_call_fn *fn,
                           void *owner);
/* DLX_E_NOT_FOUND: the keeper does not have it, or there is no keeper; none is started. */
int dlxd_gpu_call_get(struct dlxd_gpu_call **ret, struct dlxd_gpu_keeper *keeper,
                      struct dlxd_user *user, struct dlxd_gpu_whose whose, uint64_t allocation,
                      dlxd_gpu_call_fn *fn, void *owner);
/* The publisher does not need it any more. The callback comes when the keeper was told; `fn` may be
 * NULL. */
int dlxd_gpu_call_drop(struct dlxd_gpu_call **ret, struct dlxd_gpu_keeper *keeper,
                       struct dlxd_user *user, struct dlxd_gpu_whose whose, uint64_t allocation,
                       dlxd_gpu_call_fn *fn, void *owner);
/* Cancels the call: what the keeper makes nevertheless is freed. Returns NULL; accepts NULL. */
struct dlxd_gpu_call *dlxd_gpu_call_free(struct dlxd_gpu_call *call);

/* Is a job starting the keeper's process? Accepts NULL. */
bool dlxd_gpu_keeper_is_starting(const struct dlxd_gpu_keeper *keeper);

/* When dlxd_gpu_keeper_look() has something to do; UINT64_MAX: never. Accepts NULL. */
uint64_t dlxd_gpu_keeper_next_ns(const struct dlxd_gpu_keeper *keeper);
void dlxd_gpu_keeper_look(struct dlxd_gpu_keeper *keeper, uint64_t now_ns);

#endif
