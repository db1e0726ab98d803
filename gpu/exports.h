/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_EXPORTS_H
#define DLX_GPU_EXPORTS_H

/*
 * The GPU memory that one publisher shares: arenas of its own, and allocations behind tensors of
 * frameworks. An allocation is exported once, whatever number of tensors and subscribers it has,
 * and has an id that the publisher never uses again.
 *
 *     USED <--> IDLE --> GONE ----> freed, when its publisher has asked
 *       |                 ^
 *       +-----------------+   an export that would keep its memory in use is never idle
 *
 *     KEPT --> USED --> GONE --> KEPT --> freed, when the keeper was told: an arena
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

/* The export of an arena that the keeper is about to make: from now on it may have it. All that it
 * has is its id, until it is filled. DLX_E_NO_MEMORY. */
int dlx__gpu_exports_plan(struct dlx_gpu_exports *exports, struct dlx_gpu_export **ret);
/* With the memory, as dlx__gpu_open_new() opened it, and its complete handle, which has that id.
 * Both are the export's from now on. */
struct dlx_gpu_memory;
void dlx__gpu_export_fill(struct dlx_gpu_export *export, const struct dlx_gpu_memory *memory,
                          struct dlx_gpu_handle *take_handle);

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

/* Add a use to an export that is in use. */
struct dlx_gpu_export *dlx__gpu_export_ref(struct dlx_gpu_export *export);

/* Drop one use. No kernel of this process may still use an arena. NULL is fine. */
void dlx__gpu_export_unref(struct dlx_gpu_export *export);

/* The next allocation that may no longer be opened; each is returned once. Subscribers have to
 * forget it. */
bool dlx__gpu_exports_next_gone(struct dlx_gpu_exports *exports, uint64_t *ret_id);

/* The id of an arena that is not used, and that the keeper may still have; 0: there is none. It is
 * forgotten when the keeper was told. */
uint64_t dlx__gpu_exports_kept(const struct dlx_gpu_exports *exports);
void dlx__gpu_exports_told(struct dlx_gpu_exports *exports, uint64_t id);

/* Is there an allocation that others open by descriptors? */
bool dlx__gpu_exports_have_descriptors(const struct dlx_gpu_exports *exports);
/* Calls `look` with the handle of an allocation, and returns what that does. It neither waits nor
 * calls anything of this header. DLX_E_NOT_FOUND: there is no such allocation any more. */
int dlx__gpu_exports_look(const struct dlx_gpu_exports *exports, uint64_t id,
                          int (*look)(const struct dlx_gpu_handle *handle, void *userdata),
                          void *userdata);

/*
 * One more use of what a publisher of this process exports. *ret is NULL if the publisher is not
 * one of this process. DLX_E_NOT_FOUND: it is, and has no such allocation any more.
 */
int dlx__gpu_exports_find(struct dlx_gpu_publisher publisher, uint64_t id,
                          struct dlx_gpu_export **ret);

#endif
