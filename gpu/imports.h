/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_IMPORTS_H
#define DLX_GPU_IMPORTS_H

/*
 * GPU memory of other processes, as this process has it open. Opening is slow, so an allocation is
 * opened once for each local GPU and access, whatever number of messages is in it, and by one
 * thread. It stays open for a while when it is idle.
 *
 *     OPENING --> USED <--> IDLE --> CLOSING     too many are idle, or it has been so for long,
 *                  |                             or dlx__gpu_imports_gone()
 *                  +--> LEAVING --> CLOSING      dlx__gpu_imports_gone(); closed with its last use
 *
 * Memory whose kind may not stay open (gpu/backend.h) goes from USED to CLOSING. Of the kinds that
 * drivers let a process open once, an allocation is known by its token, whoever publishes it, and
 * not opened again before the driver has closed it. Memory that a
 * publisher of this process exports is not opened: it is where it is.
 */

#include "gpu/backend.h"
#include "gpu/exports.h"

struct dlx_gpu_import;

#define DLX_GPU_IMPORTS_IDLE_MAX 64U
/* An idle import is closed after so many uses of other imports have ended. */
#define DLX_GPU_IMPORTS_IDLE_USES 256U

/* The GPU that has the memory. */
#define DLX_GPU_HOME (-1)

/* How to get the parts of what has to be opened, if its outline is not complete. `ret` is all
 * zero. */
struct dlx_gpu_fetch {
    int (*call)(void *userdata, uint64_t id, struct dlx_gpu_handle *ret);
    void *userdata;
};

/*
 * One use of the memory that the publisher described by a complete handle, whose descriptors stay
 * the caller's, or by an outline, with `fetch` for what is missing. `device` is the ordinal of the
 * GPU whose kernels will use it. DLX_E_DEVICE: this process does not see the GPU that has it, or
 * has no such backend; DLX_E_INVALID.
 */
int dlx__gpu_import(struct dlx_gpu_publisher publisher, const struct dlx_gpu_handle *handle,
                    int32_t device, enum dlx_gpu_access access, const struct dlx_gpu_fetch *fetch,
                    struct dlx_gpu_import **ret);
void *dlx__gpu_import_base(const struct dlx_gpu_import *import);
/* The ordinal of the GPU that uses it. */
int32_t dlx__gpu_import_device(const struct dlx_gpu_import *import);

/* Drop one use. No kernel of this process that uses the memory may be queued or running: unmapping
 * does not wait. NULL is fine. */
void dlx__gpu_import_unref(struct dlx_gpu_import *import);

/* The publisher's allocation `id` will not be needed again, or none of them (0). */
void dlx__gpu_imports_gone(struct dlx_gpu_publisher publisher, uint64_t id);

/* Close idle imports, except this many that were used last. */
void dlx__gpu_imports_trim(uint32_t n_stay);

#endif
