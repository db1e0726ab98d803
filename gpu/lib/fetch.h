/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_FETCH_H
#define DLX_GPU_FETCH_H

/*
 * Descriptions of GPU memory, with their descriptors, as they come from the daemon: the keeper's,
 * in the answer itself, or a publisher's (gpu/lib/serve.h), on a socket.
 *
 * In a forked child these fail with DLX_E_FORKED.
 */

#include "client/control/client.h"
#include "gpu/handle.h"

struct dlx_new_gpu_memory;

/* Memory that the keeper made: takes its descriptor. `ret` is all zero before, and after a failure.
 * Returns 0; DLX_E_PROTOCOL (it is not this allocation, or not all of it), DLX_E_VERSION,
 * DLX_E_NO_MEMORY. */
int dlx__gpu_take_memory(struct dlx_new_gpu_memory *take, uint64_t allocation,
                         struct dlx_gpu_handle *ret);

/*
 * Fetch an allocation of the publisher at the other end of a link, by the connection `c` of its
 * subscription. `origin` is the publisher's id with its first daemon. `ret` is all zero before, and
 * after a failure. Waits as long as calls to the daemon may take, once for the daemon and once for
 * the publisher. Any thread that holds a message of the link.
 *
 * Returns 0; DLX_E_NOT_FOUND (neither the keeper nor the publisher has it), DLX_E_ACCESS (it is of
 * another user), DLX_E_TIMEOUT, DLX_E_INTERRUPTED, DLX_E_DISCONNECTED, DLX_E_FD_LIMIT,
 * DLX_E_PROTOCOL, DLX_E_FORKED, DLX_E_VERSION (an older daemon), and others of a call.
 */
int dlx__gpu_fetch(struct dlx_client *c, uint64_t link, uint64_t origin, uint64_t allocation,
                   struct dlx_gpu_handle *ret);

#endif
