/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_IMPORTS_H
#define DLX_GPU_IMPORTS_H

/*
 * GPU memory of other processes, as this process has it open. Opening is slow, so an allocation is
 * opened once for each local GPU and access, whatever number of messages is in it, and by one
 * thread. It stays open when it is idle, since the next message is probably in the same
 * allocation.
 *
 *     OPENING --> USED <--> IDLE
 *                  |          |
 *                  +----------+--> CLOSING --> gone
 *
 * An idle import costs no memory while its publisher has the memory, too. What that has freed, it
 * keeps. So these are closed:
 *
 *     which                                               | when
 *     one that its publisher has freed                    | a subscription of this process looks
 *                                                         | (dlx__gpu_imports_freed())
 *     those of a publisher to which no link is left       | the last one leaves
 *                                                         | (dlx__gpu_imports_leave())
 *     those used longest ago, of more than an eighth of a | another one becomes idle
 *     GPU's memory or DLX_GPU_IMPORTS_IDLE_MAX of them    |
 *     all idle ones                                       | this process lacks memory of a GPU, or
 *                                                         | asks for it (dlx__gpu_imports_trim())
 *
 * The bound is for a process that does not look for long: whatever is freed meanwhile, it keeps no
 * more than that. Another one that lacks memory cannot wait for it.
 *
 * Memory whose kind may not stay open (gpu/backend.h) goes from USED to CLOSING, and so does what
 * is used when the last link leaves. Of the kinds that drivers let a process open once, an
 * allocation is known by its token, from whatever publisher, and not opened again before the driver
 * has closed it. Memory that a publisher of this process exports is not opened: it is where it is.
 *
 * Memory may also be opened at addresses that the caller has reserved (gpu/lib/range.h): such an
 * import has one use, is shared with nobody, and is closed with that use. The same memory may be
 * open elsewhere, too.
 */

#include "gpu/backend.h"
#include "gpu/exports.h"

struct dlx_gpu_import;

/* Idle imports of memory of one GPU: at most so many, and this part of its memory. */
#define DLX_GPU_IMPORTS_IDLE_MAX  64U
#define DLX_GPU_IMPORTS_IDLE_PART 8U

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
 * GPU whose kernels will use it, or DLX_GPU_HOME; in the publisher's own process it has no effect.
 * DLX_E_DEVICE: this process does not see the GPU that has it, has no such backend, or the two GPUs
 * have no peer access; DLX_E_INVALID.
 */
int dlx__gpu_import(struct dlx_gpu_publisher publisher, const struct dlx_gpu_handle *handle,
                    int32_t device, enum dlx_gpu_access access, const struct dlx_gpu_fetch *fetch,
                    struct dlx_gpu_import **ret);
/*
 * All that another process is needed for, so that dlx__gpu_import_at() depends on the driver alone:
 * an outline becomes complete, and `*device` the ordinal in place of DLX_GPU_HOME. As
 * dlx__gpu_import(); DLX_E_DEVICE also if memory of this kind cannot be placed. Memory of this
 * process is treated as that of another one.
 */
int dlx__gpu_import_prepare(struct dlx_gpu_handle *handle, const struct dlx_gpu_fetch *fetch,
                            int32_t *device);
/* One use of that memory, at `at`, where its kind has reserved enough addresses (`reserve` of
 * gpu/backend.h) and nothing is mapped. */
int dlx__gpu_import_at(const struct dlx_gpu_handle *handle, int32_t device,
                       enum dlx_gpu_access access, void *at, struct dlx_gpu_import **ret);

void *dlx__gpu_import_base(const struct dlx_gpu_import *import);
/* The ordinal of the GPU that uses it. */
int32_t dlx__gpu_import_device(const struct dlx_gpu_import *import);

/* Drop one use. No kernel of this process that uses the memory may be queued or running: unmapping
 * does not wait. NULL is fine. */
void dlx__gpu_import_unref(struct dlx_gpu_import *import);

/* A link of this process to the publisher begins, and ends: as long as there is one, imports may be
 * idle. 0 or DLX_E_NO_MEMORY. */
int dlx__gpu_imports_join(struct dlx_gpu_publisher publisher);
void dlx__gpu_imports_leave(struct dlx_gpu_publisher publisher);

/* The publisher has freed its allocation `id`; 0: it may have freed any. Closes idle imports: no
 * message is in what an honest publisher frees, so none of it is used. */
void dlx__gpu_imports_freed(struct dlx_gpu_publisher publisher, uint64_t id);

/* Close all idle imports: *ret is their bytes. 0 or DLX_E_FORKED. */
int dlx__gpu_imports_trim(uint64_t *ret);

#endif
