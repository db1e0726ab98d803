/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_ARENA_H
#define DLX_GPU_ARENA_H

/*
 * Arenas of dlx_alloc() on GPUs: the keeper makes their memory, so it outlives its publisher; the
 * publisher opens and clears it. The descriptors stay in the export, so that the publisher can
 * serve what a lost keeper had.
 *
 * All of it is the publisher's thread's.
 */

#include "client/publish/publisher.h"
#include "gpu/exports.h"

/*
 * An arena of at least `size` bytes, zeroed, with one use. If the GPU has no memory, idle imports
 * are closed first. `ret_keeper` is the number of the keeper. DLX_E_LIMIT (a quota, or descriptors
 * of the keeper), DLX_E_NO_MEMORY, DLX_E_DEVICE, DLX_E_NO_DAEMON (there is no keeper),
 * DLX_E_FORKED, and others of a call and of drivers. Also on failure dlx__gpu_exports_kept() may
 * have something.
 */
int dlx__gpu_arena_new(struct dlx_publisher *p, struct dlx_gpu_exports *exports, DLDevice device,
                       uint64_t size, struct dlx_gpu_export **ret, uint64_t *ret_keeper);

#endif
