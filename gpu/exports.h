/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_EXPORTS_H
#define DLX_GPU_EXPORTS_H

/*
 * The GPU memory that one publisher shares: arenas of its own, and allocations behind tensors of
 * frameworks. An allocation is exported once, whatever number of tensors and subscribers it has,
 * and has an id that the publisher never uses again.
 *
 *     USED <--> IDLE --> GONE --> freed, when its publisher has asked: dlx__gpu_exports_next_gone()
 *       |                 ^
 *       +-----------------+   an export that would keep its memory in use is never idle
 *
 * Calls are safe from any thread. Each is one publisher's. Another publisher of the process that
 * shares the same memory gives it an id of its own, and describes it alike otherwise: the driver
 * exports it once.
 */

#include "gpu/gpu.h"

struct dlx_gpu_exports;
struct dlx_gpu_export;

/*
 * A publisher. Its number is random and its own choice, so that it differs between publishers and
 * daemons; a peer can repeat the number of another one. The id is what the daemon calls it, so
 * repeating its number is not enough to pass for it. Process ids would not do: two processes in
 * different pid namespaces have the same one, and the daemon knows each by another or by none.
 */
struct dlx_gpu_publisher {
    uint64_t number;
    uint64_t id;
};

/* The most allocations that may be idle: the one that was used longest ago goes first. */
#define DLX_GPU_EXPORTS_IDLE_MAX 64U

int dlx__gpu_exports_new(struct dlx_gpu_exports **ret, struct dlx_gpu_publisher publisher);
/* Another daemon, or the same one again, calls the publisher `id` from now on: links of before keep
 * the former one, so both name it. DLX_E_NO_MEMORY. */
int dlx__gpu_exports_also(struct dlx_gpu_exports *exports, uint64_t id);
/* End the publisher. Exports in use stay until they are dropped, and are not reported then. NULL is
 * fine. */
void dlx__gpu_exports_end(struct dlx_gpu_exports *exports);

/* An arena of dlx__gpu_allocate(), which the export owns from now on. Other processes may open it
 * while this one lives, and longer if they hold its descriptors. On failure it stays the
 * caller's. */
struct dlx_gpu_memory;
int dlx__gpu_exports_add(struct dlx_gpu_exports *exports, const struct dlx_gpu_memory *memory,
                         struct dlx_gpu_export **ret);

/*
 * The allocation that `size` bytes at `ptr` are in, and where in it they begin. The memory stays
 * its owner's, who keeps it until the export is dropped and nobody else uses it. DLX_E_DEVICE: it
 * cannot be shared, and the message says why.
 */
int dlx__gpu_exports_share(struct dlx_gpu_exports *exports, int32_t device_type, int32_t device,
                           const void *ptr, uint64_t size, struct dlx_gpu_export **ret,
                           uint64_t *ret_offset);

/* The description that others need, and the address in this process. */
const struct dlx_gpu_handle *dlx__gpu_export_handle(const struct dlx_gpu_export *export);
void *dlx__gpu_export_base(const struct dlx_gpu_export *export);
int32_t dlx__gpu_export_device(const struct dlx_gpu_export *export);

/* Is the export an arena of dlx__gpu_exports_add()? */
bool dlx__gpu_export_is_ours(const struct dlx_gpu_export *export);
/* Add a use to an export that is in use. */
struct dlx_gpu_export *dlx__gpu_export_ref(struct dlx_gpu_export *export);

/* A number for its publisher's thread, 0 at first. */
uint64_t *dlx__gpu_export_mark(struct dlx_gpu_export *export);

/* Drop one use. No kernel of this process may still use an arena. NULL is fine. */
void dlx__gpu_export_unref(struct dlx_gpu_export *export);

/* The next allocation that may no longer be opened; each is returned once. Subscribers have to
 * forget it. */
bool dlx__gpu_exports_next_gone(struct dlx_gpu_exports *exports, uint64_t *ret_id);

/*
 * The next allocation in use that has descriptors, after the one with this id (0: the first); one
 * more use of it. NULL: there is none.
 */
struct dlx_gpu_export *dlx__gpu_exports_next_used(struct dlx_gpu_exports *exports,
                                                  uint64_t after_id);

/*
 * One more use of what a publisher of this process exports. *ret is NULL if the publisher is not
 * one of this process. DLX_E_NOT_FOUND: it is, and has no such allocation any more.
 */
int dlx__gpu_exports_find(struct dlx_gpu_publisher publisher, uint64_t id,
                          struct dlx_gpu_export **ret);

#endif
