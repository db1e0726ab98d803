/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_GPU_ORIGIN_H
#define DLXD_GPU_ORIGIN_H

/*
 * The publishers of which the GPU keeper may hold something, by origin and user. The origin is the
 * id that a publisher had with its first daemon, as its client claims, so claims of other users do
 * not count. Several publishers have the same origin after a restart, when one was announced again
 * and what the former daemon retained still exists. No I/O here.
 *
 *   UNTOLD --CLAIM--> TOLD --(its last publisher goes)--> LEAVING --FORGET--> (freed)
 *     ^                 |
 *     +-(another keeper)+
 */

#include "daemon/base/idmap.h"
#include "daemon/base/list.h"
#include "daemon/users/user.h"

/* Whose memory. */
struct dlxd_gpu_whose {
    uint64_t origin;
    uint64_t user; /* dlxd_principal_number() */
};

enum dlxd_gpu_origin_state {
    DLXD_GPU_UNTOLD, /* the connected keeper, if any, does not know of it */
    DLXD_GPU_TOLD,
    DLXD_GPU_LEAVING, /* no publisher has it; the keeper has yet to be told */
};

struct dlxd_gpu_origin {
    struct dlxd_idmap_node by_origin;
    struct dlxd_list node; /* in the list of its state */
    struct dlxd_list publishers;
    enum dlxd_gpu_origin_state state;
    uint64_t user; /* dlxd_principal_number() */
    /* The bytes that the keeper has made for it, as it says: of its first publisher's user. */
    struct dlxd_charge bytes;
};

struct dlxd_gpu_origins {
    struct dlxd_idmap by_origin; /* several users may claim an id: each has an entry */
    struct dlxd_list lists[DLXD_GPU_LEAVING + 1];
    size_t n_leaving;
};

/* The membership of a publisher in an origin. All zero: none. */
struct dlxd_gpu_member {
    struct dlxd_list node; /* in origin->publishers */
    struct dlxd_gpu_origin *origin;
};

void dlxd_gpu_origins_init(struct dlxd_gpu_origins *origins);
/* No publisher may be left. */
void dlxd_gpu_origins_deinit(struct dlxd_gpu_origins *origins);
/* Returns NULL if no publisher has it. It may be LEAVING. */
struct dlxd_gpu_origin *dlxd_gpu_origins_find(const struct dlxd_gpu_origins *origins,
                                              struct dlxd_gpu_whose whose);
/* Does nothing if the publisher has an origin. `payer` is the publisher's user. Returns 0,
 * DLX_E_NO_MEMORY. */
int dlxd_gpu_origins_join(struct dlxd_gpu_origins *origins, struct dlxd_gpu_member *member,
                          struct dlxd_gpu_whose whose, struct dlxd_user *payer);
/* Does nothing if it has none. */
void dlxd_gpu_origins_leave(struct dlxd_gpu_origins *origins, struct dlxd_gpu_member *member);

/* The first one in this state, or NULL. */
struct dlxd_gpu_origin *dlxd_gpu_origins_first(const struct dlxd_gpu_origins *origins,
                                               enum dlxd_gpu_origin_state state);
/* The keeper was told: makes it TOLD, or frees it if it is LEAVING. */
void dlxd_gpu_origins_told(struct dlxd_gpu_origins *origins, struct dlxd_gpu_origin *origin);
/* The keeper is gone or another one: makes all UNTOLD, or frees those that are LEAVING. */
void dlxd_gpu_origins_reset(struct dlxd_gpu_origins *origins);

#endif
