/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_GPU_RELEASE_H
#define DLX_CLIENT_GPU_RELEASE_H

/*
 * Releases of received tensors that are on GPUs. The work that uses a tensor has to end before its
 * memory is given back. The deleter records an event on each stream of dlx_tensor_used_on() and
 * returns; a thread of the subscription waits for the events and then releases the tensor. Until
 * then its message is held, and counted as such. Releases on one stream are waited for by one
 * thread, in their order; those on other streams by others.
 *
 * The deleter waits itself if no stream was named, if there are no events or no thread, and once
 * the subscription has ended.
 *
 * Tensors on the CPU are released in the same way if a stream was named and the memory is pinned
 * (client/message/pin): a copy from there may be queued. The first dlx_tensor_used_on() gives them
 * another deleter for that, so that those of other tensors need not look.
 */

#include "client/message/gpu_threads.h"

struct dlx_export;

/* How many releases the thread has completed: a number that wraps. */
uint32_t dlx__gpu_releases_n_done(struct dlx_gpu_threads *threads);
/* Wait until that is another number than `n_done`, if a release is under way. Returns 0;
 * DLX_E_EMPTY (none is) and DLX_E_TIMEOUT, both without a message; DLX_E_INTERRUPTED. */
int dlx__gpu_releases_wait(struct dlx_gpu_threads *threads, uint32_t n_done, uint64_t deadline);

/* A deleter was called, of a tensor of a message with tensors on GPUs, or of one on the CPU that is
 * used on streams. Returns true if the thread
 * releases the tensor; false: nothing uses it any more, and the caller goes on. */
bool dlx__gpu_release_tensor(struct dlx_export *e);

/* A tensor is used on this stream. Returns 0; DLX_E_NO_MEMORY. */
int dlx__gpu_use_on(struct dlx_export *e, void *stream);

#endif
