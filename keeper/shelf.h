/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXK_SHELF_H
#define DLXK_SHELF_H

/* The descriptions that a holder has, by the id of the allocation. */

#include "gpu/handle.h"

struct dlxk_shelf {
    struct dlx_gpu_handle *items; /* ascending id */
    uint32_t n;
    uint32_t room;
    uint32_t n_fds; /* of all, and of the one that comes in */
    uint32_t n_fds_most;
    struct dlx_gpu_handle incoming; /* whose parts have not all come */
    uint32_t serial;                /* of its parts */
    bool is_refused; /* the part with this serial: what follows of it is thrown away */
};

void dlxk_shelf_deinit(struct dlxk_shelf *shelf);

/*
 * A part with its descriptors, which become the shelf's, and -1 in `take_fds`. Returns 1: more
 * parts are to come, or this one follows one that was refused; 0: it was the last, and the
 * description replaces one with the same id; DLX_E_LIMIT, DLX_E_PROTOCOL, DLX_E_VERSION,
 * DLX_E_NO_MEMORY: it is refused, and nothing of it is kept.
 */
int dlxk_shelf_put(struct dlxk_shelf *shelf, uint32_t serial, const uint8_t *data, size_t size,
                   int *take_fds, size_t n_fds);
/* What comes with this serial has failed already. */
void dlxk_shelf_refuse(struct dlxk_shelf *shelf, uint32_t serial);
/* Harmless if it is not there. */
void dlxk_shelf_drop(struct dlxk_shelf *shelf, uint64_t id);
/* NULL: not there. Valid until the next put or drop. */
const struct dlx_gpu_handle *dlxk_shelf_find(const struct dlxk_shelf *shelf, uint64_t id);

/* dlx__gpu_handle_encode(), with at most so many chunks in the part. */
size_t dlxk_shelf_part(const struct dlx_gpu_handle *handle, uint32_t first, uint32_t n_most,
                       uint8_t ret[DLX_GPU_BYTES_MAX], int ret_borrow_fds[DLX_PACKET_FDS_MAX],
                       size_t *ret_n_fds);

#endif
