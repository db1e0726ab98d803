/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_GPU_ORIGIN_H
#define DLXD_GPU_ORIGIN_H

/*
 * The publishers of which the GPU keeper may hold something, by origin and user: the id that a
 * publisher had with the first daemon is what its client says, so another user's counts for nothing.
 * Several publishers have one origin when one was announced again after a restart, and what the
 * former daemon retained is still there. No I/O here.
 *
 *   UNTOLD --CLAIM--> TOLD --(its last publisher goes)--> LEAVING --FORGET--> (freed)
 *     ^                 |
 *     +-(another keeper)+
 */

#include "daemon/base/idmap.h"
#include "daemon/base/list.h"
#include <sys/types.h>

enum dlxd_gpu_origin_state {
    DLXD_GPU_UNTOLD, /* the keeper that is connected, if any, does not know that it is here */
    DLXD_GPU_TOLD,
    DLXD_GPU_LEAVING, /* no publisher has it; the keeper has yet to be told */
};

struct dlxd_gpu_origin {
    struct dlxd_idmap_node by_origin;
    struct dlxd_list node; /* in the list of its state */
    struct dlxd_list publishers;
    enum dlxd_gpu_origin_state state;
    uint64_t user; /* dlxd_principal_number() */
};

struct dlxd_gpu_origins {
    struct dlxd_idmap by_origin; /* users may say the same: each has an entry */
    struct dlxd_list lists[DLXD_GPU_LEAVING + 1];
    size_t n_leaving;
};

/* That a publisher has an origin: a member of it. All zero: it has none. */
struct dlxd_gpu_member {
    struct dlxd_list node; /* in origin->publishers */
    struct dlxd_gpu_origin *origin;
};

void dlxd_gpu_origins_init(struct dlxd_gpu_origins *origins);
/* No publisher is left. */
void dlxd_gpu_origins_deinit(struct dlxd_gpu_origins *origins);
/* NULL: nobody has it. It may be LEAVING. */
struct dlxd_gpu_origin *dlxd_gpu_origins_find(const struct dlxd_gpu_origins *origins,
                                              uint64_t origin, uint64_t user);
/* Harmless if it has one. Returns 0, DLX_E_NO_MEMORY. */
int dlxd_gpu_origins_join(struct dlxd_gpu_origins *origins, struct dlxd_gpu_member *member,
                          uint64_t origin, uint64_t user);
/* Harmless if it has none. */
void dlxd_gpu_origins_leave(struct dlxd_gpu_origins *origins, struct dlxd_gpu_member *member);

/* The first in this state, or NULL. */
struct dlxd_gpu_origin *dlxd_gpu_origins_first(const struct dlxd_gpu_origins *origins,
                                               enum dlxd_gpu_origin_state state);
/* The keeper was told: TOLD, or freed if it is LEAVING. */
void dlxd_gpu_origins_told(struct dlxd_gpu_origins *origins, struct dlxd_gpu_origin *origin);
/* There is no keeper, or another one: all are UNTOLD, or freed if they are LEAVING. */
void dlxd_gpu_origins_reset(struct dlxd_gpu_origins *origins);

#endif
