/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXK_SHELF_H
#define DLXK_SHELF_H

/* The descriptions that a holder has, by the id of the allocation. */

#include "gpu/handle.h"

struct dlxk_shelf {
    struct dlx_gpu_handle *items; /* by ascending id */
    uint32_t n;
    uint32_t room;
    uint32_t n_fds; /* of all descriptions and the incoming one */
    uint32_t n_fds_most;
    struct dlx_gpu_handle incoming; /* a description some of whose parts have not arrived */
    uint32_t serial;                /* of its parts */
    /* The description with this serial was refused: its further parts are dropped. */
    bool is_refused;
};

void dlxk_shelf_deinit(struct dlxk_shelf *shelf);

/*
 * Adds a part with its descriptors, which the shelf owns from now on; sets them to -1 in
 * `take_fds`. Returns 1 if more parts follow, or if the description was refused before; 0 after
 * the last part, when the description replaces the one with the same id; or DLX_E_LIMIT,
 * DLX_E_PROTOCOL, DLX_E_VERSION, DLX_E_NO_MEMORY if it is refused, and then nothing of it is
 * kept.
 */
int dlxk_shelf_put(struct dlxk_shelf *shelf, uint32_t serial, const uint8_t *data, size_t size,
                   int *take_fds, size_t n_fds);
/* Refuses the description with this serial, which has failed already. */
void dlxk_shelf_refuse(struct dlxk_shelf *shelf, uint32_t serial);
/* Does nothing if it is not there. */
void dlxk_shelf_drop(struct dlxk_shelf *shelf, uint64_t id);
/* Returns NULL if it is not there. Valid until the next put or drop. */
const struct dlx_gpu_handle *dlxk_shelf_find(const struct dlxk_shelf *shelf, uint64_t id);

/* Like dlx__gpu_handle_encode(), with at most `n_most` chunks in the part. */
size_t dlxk_shelf_part(const struct dlx_gpu_handle *handle, uint32_t first, uint32_t n_most,
                       uint8_t ret[DLX_GPU_BYTES_MAX], int ret_borrow_fds[DLX_PACKET_FDS_MAX],
                       size_t *ret_n_fds);

#endif
