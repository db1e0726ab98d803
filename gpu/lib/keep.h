/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_KEEP_H
#define DLX_GPU_KEEP_H

/*
 * The GPU keeper, from the library's side (docs/GPU.md): what publishers share by descriptors is
 * handed to it, and subscribers get it there, also when the publisher makes no call or has ended.
 *
 * A publisher's connection is not bound to the daemon that made it: it goes on while daemons come
 * and go. If it breaks, what the keeper had of this publisher is lost, and the next put says so.
 *
 * In a forked child these fail with DLX_E_FORKED; dlx__gpu_keep_free() closes the child's copy
 * only.
 */

#include "client/control/client.h"
#include "gpu/handle.h"

/* A publisher's connection with its holder. One thread at a time. */
struct dlx_gpu_keep;

/*
 * Hand over a handle that is complete; its descriptors stay the caller's. `*keep` is NULL before
 * the first one, and after a failure of the connection. Waits for the answer, as long as calls to
 * the daemon may take. Returns
 *
 *   0   it is kept;
 *   1   likewise, by a connection that is new: everything else that is still shared has to be put
 *       again, if there is anything;
 *   DLX_E_LIMIT, DLX_E_FD_LIMIT: the keeper has no room, and what it has stays;
 *   DLX_E_NO_DAEMON (there is no keeper, and none can be started), DLX_E_VERSION (an older daemon),
 *   DLX_E_DISCONNECTED, DLX_E_TIMEOUT, DLX_E_INTERRUPTED, DLX_E_FORKED, and others of a call.
 */
int dlx__gpu_keep_put(struct dlx_client *c, uint64_t publisher, struct dlx_gpu_keep **keep,
                      const struct dlx_gpu_handle *handle);
/* The allocation is not shared any more. NULL is fine. */
void dlx__gpu_keep_drop(struct dlx_gpu_keep *keep, uint64_t allocation);
/* The publisher ends. What it has put stays as long as the daemon retains its messages or has links
 * that drain. Returns NULL; NULL is fine. */
struct dlx_gpu_keep *dlx__gpu_keep_free(struct dlx_gpu_keep *keep);

/*
 * Fetch an allocation of the publisher at the other end of a link, by the connection `c` of its
 * subscription. `origin` is the publisher's id with its first daemon. `ret` is all zero before, and
 * after a failure. Any thread that holds a message of the link. Returns 0; DLX_E_NOT_FOUND (not
 * with the keeper), DLX_E_ACCESS (of another user), DLX_E_FD_LIMIT, DLX_E_LIMIT, DLX_E_PROTOCOL,
 * and as above.
 */
int dlx__gpu_keep_get(struct dlx_client *c, uint64_t link, uint64_t origin, uint64_t allocation,
                      struct dlx_gpu_handle *ret);

#endif
