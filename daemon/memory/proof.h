/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_PROOF_H
#define DLXD_PROOF_H

/* Checks on a worker whether a region's writer has made it ready (step 3 of common/memory.h).
 * The proof owns the region's descriptor in the meantime, so that the owner may be freed at any
 * time. */

#include "common/util.h"

struct dlx_memory;
struct dlxd_proof;
struct dlxd_user;
struct dlxd_workers;

/* Called on the loop. `code` is 0 or that of dlx__region_prove(), with its text. The proof is
 * freed; the owner gets the descriptor back, also on failure. */
typedef void dlxd_proof_fn(void *owner, int code, const char *text, int take_fd);

/* Takes the fd on success. Returns 0; DLX_E_NO_MEMORY, DLX_E_SYSTEM: `fn` is then not called. */
int dlxd_proof_begin(struct dlxd_proof **ret, struct dlxd_workers *workers,
                     const struct dlx_memory *memory, const struct dlxd_user *whose, int take_fd,
                     uint64_t size, dlxd_proof_fn *fn, void *owner);
/* The owner is freed: `fn` is not called, and the descriptor is closed when the worker is done.
 * Returns NULL; accepts NULL. */
struct dlxd_proof *dlxd_proof_abandon(struct dlxd_proof *proof);

#endif
