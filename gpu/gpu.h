/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_GPU_H
#define DLX_GPU_GPU_H

/*
 * GPUs as this process sees them. The drivers' libraries are loaded by the first call that needs
 * one and never unloaded; nothing is linked.
 *
 * A child of fork() cannot use a GPU that its parent has used: what it calls here fails with
 * DLX_E_FORKED, and what it drops is left to its parent.
 */

#include "common/error.h"
#include "gpu/handle.h"
#include "gpu/stream.h"

/* The GPU with this ordinal. DLX_E_DEVICE: no such GPU, driver or backend. */
int dlx__gpu_uuid(int32_t device_type, int32_t device, struct dlx_gpu_uuid *ret);

/* Its ordinal here. DLX_E_DEVICE: this process does not see it, and the message says which ones it
 * sees. */
int dlx__gpu_ordinal(int32_t device_type, const struct dlx_gpu_uuid *uuid, int32_t *ret);

/* Can kernels of the GPU use memory of the GPU `home`? DLX_E_DEVICE: no, they are no peers. */
int dlx__gpu_check_peer(int32_t device_type, int32_t device, int32_t home);

/*
 * Wait until the work on a stream is done. The stream may be one of another GPU. NULL, and what
 * else the driver calls a default stream, is that of the calling thread's context if that is one of
 * the GPU, else of the GPU's primary context. DLX_E_INVALID: the stream is being captured, and
 * nothing was done. Makes no context.
 */
int dlx__gpu_wait_stream(int32_t device_type, int32_t device, void *stream);

/*
 * All work of this process on the GPU, as far as it is known: in the primary context, and in the
 * calling thread's if that is one of this GPU. A context that the program made has to last until it
 * was waited for.
 */
struct dlx_gpu_work dlx__gpu_work_now(int32_t device_type, int32_t device);

/*
 * Wait for it, on any thread. Returns 0. DLX_E_DEVICE: an error of the GPU or the end of a context
 * has ended it, or there is no such GPU. All other errors say that the driver did not wait, and the
 * work may go on: in a host function, while a stream is captured (which is invalidated then), or
 * without memory.
 */
int dlx__gpu_work_wait(const struct dlx_gpu_work *work);
static inline int dlx__gpu_wait_device(int32_t device_type, int32_t device)
{
    const struct dlx_gpu_work work = dlx__gpu_work_now(device_type, device);
    return dlx__gpu_work_wait(&work);
}

/* Can the GPU copy all of it? DLX_E_DEVICE: no, and the message says why. An attempt to copy it
 * would be an error that ends all work of the process on the GPU. */
int dlx__gpu_check_range(int32_t device_type, int32_t device, const void *ptr, uint64_t size);

/*
 * Copy memory that passed that check to other memory of the GPU: after the work that is on the
 * stream, which is as of dlx__gpu_wait_stream(), and wait for that. DLX_E_INVALID: the stream is
 * being captured, and nothing was done.
 */
int dlx__gpu_copy(int32_t device_type, int32_t device, void *to, const void *from, uint64_t size,
                  void *stream);

/* Copy memory of the GPU, which no work on it writes, to memory of the host, and wait for that. */
int dlx__gpu_copy_to_host(int32_t device_type, int32_t device, void *to, const void *from,
                          uint64_t size);

/*
 * The work that is on a stream now; the stream is as of dlx__gpu_wait_stream(). Returns 1 if it is
 * not done: dlx__gpu_event_wait() waits for it, and dlx__gpu_event_end() follows. Returns 0 if it
 * is done, or was waited for (`*ret_waited`), because the backend has no events that can be trusted
 * or the stream is of a context that is not a primary one. DLX_E_INVALID: the stream is being
 * captured, and nothing was done. Makes no context.
 */
int dlx__gpu_event_record(int32_t device_type, int32_t device, void *stream,
                          struct dlx_gpu_event *ret, bool *ret_waited);
/* Any thread. Returns as dlx__gpu_work_wait(). */
int dlx__gpu_event_wait(const struct dlx_gpu_event *event);
void dlx__gpu_event_end(struct dlx_gpu_event *event);

/*
 * What is enqueued on a stream of the GPU from now on runs after dlx__gpu_gate_open(), which has to
 * follow: it makes no call of the driver, so any thread may call it, and at any time.
 * DLX_E_INVALID: the stream is being captured, and nothing was done. DLX_E_DEVICE and others: the
 * stream cannot wait, since the backend, the device (a trial with real calls decides, once for each
 * context), this stream (the legacy default stream, for which others would wait) or the process
 * does not let it: all of its streams may share one hardware queue, or the driver loads kernels
 * with their first launch, which may wait for all work. `are_kernels_loaded`: there are no first
 * launches. `shared`: a word that somebody else may write before the gate is opened; NULL: a word
 * of this process.
 */
int dlx__gpu_gate_shut(int32_t device_type, int32_t device, void *stream, bool are_kernels_loaded,
                       const struct dlx_gpu_word *shared, struct dlx_gpu_gate *ret);
void dlx__gpu_gate_open(struct dlx_gpu_gate *gate);

/* Register a page that is mapped for reading and writing, so that streams write its words and wait
 * for them, on all GPUs. The caller retains the GPU meanwhile; dlx__gpu_unpin() undoes it. */
int dlx__gpu_page_add(int32_t device_type, int32_t device, void *page, uint64_t *ret_at);

/*
 * Have the stream of an event write words after its work, and record the event again, behind that.
 * `*ret_n` of them will be written, the first ones. Returns 0; 1: the event could not be recorded
 * again, so it says nothing about the words; or an error, perhaps after some of them.
 */
int dlx__gpu_write_words(const struct dlx_gpu_event *event, void *stream,
                         const struct dlx_gpu_word *words, uint32_t n, uint32_t *ret_n);

/*
 * Pinned memory: pages of the host that the GPU copies from by itself. `pin` registers memory that
 * is mapped, read-only or not, with the driver of the GPU, and `unpin` undoes that before it is
 * unmapped, which may wait for work of this process on the GPU. In between the caller retains the
 * GPU, which makes its primary context if there is none.
 *
 * What cannot be unpinned may not be unmapped: the driver would go on to take what is mapped at
 * this address next for what it registered.
 */
int dlx__gpu_retain(int32_t device_type, int32_t device);
void dlx__gpu_release(int32_t device_type, int32_t device);
int dlx__gpu_pin(int32_t device_type, int32_t device, const void *at, uint64_t size);
int dlx__gpu_unpin(int32_t device_type, int32_t device, const void *at);

#endif
