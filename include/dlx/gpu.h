/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_H
#define DLX_GPU_H

/**
 * Tensors on GPUs. Included by dlx.h.
 *
 * Allocating: dlx_alloc() and dlx_alloc_set() with `device` {kDLCUDA, n} or {kDLROCM, n} give
 * memory of that GPU, aligned to 256 bytes, cleared when it is first allocated. Other processes
 * can open it by descriptors, which the GPU keeper holds (docs/GPU.md): so messages with nothing
 * but such tensors, and tensors on the CPU, are retained and drained like others, also after their
 * publisher was killed. Memory that a killed subscriber could read is never used again, but freed.
 * The deleter of a tensor that was not published may be called while work that uses it is still
 * queued: the memory is used again when all work of this process on the GPU is done. dlx_alloc()
 * returns DLX_E_DEVICE if there is no such GPU, driver or backend, DLX_E_NO_MEMORY if the GPU has
 * no more, DLX_E_NO_DAEMON and others if there is no keeper.
 *
 * Publishing: dlx_publish() and dlx_publish_set() pass tensors on device kDLCUDA or kDLROCM on
 * without a copy: those of dlx_alloc(), memory of cudaMalloc or hipMalloc, and memory that its
 * owner allows to be shared by descriptors, as PyTorch's expandable segments and pools that were
 * made for that. Other memory is refused (DLX_E_DEVICE, with the reason), and so are tensors that
 * were received, unless `stage` of struct dlx_publish_args asks for a copy of them: below. Nothing
 * is ever copied through the host. The tensors are ready when the work that is on `stream` of
 * struct dlx_publish_args now (CUstream, hipStream_t; NULL: the default stream of each GPU) is
 * done. dlx_publish() does not wait for that: a thread of the publisher does, and subscribers wait
 * until it has said so. On HIP, in the debug mode, and where the driver makes no event for the
 * stream, dlx_publish() waits, and counts it (gpu_waits). A stream that is being captured is
 * refused (DLX_E_INVALID). A set may have tensors on the CPU and on GPUs.
 *
 * With `stage`, a tensor that would be refused with DLX_E_DEVICE is copied into memory as of
 * dlx_alloc() on its own GPU, with its strides: after the work that is on `stream`, and
 * dlx_publish() waits for the copy (gpu_waits counts that). So it is done with the tensor when it
 * returns, and calls its deleter, as it does with tensors on the CPU that it copied; n_copied and
 * copied_bytes of the report say so. Whoever publishes a received tensor names the stream that it
 * was taken for. Tensors that can be passed on are not copied. With `strict`, too,
 * DLX_E_WOULD_COPY says why one cannot be. What the GPU cannot read itself is refused all the same.
 *
 * The deleter of a tensor of another library is called in a later call on the publisher
 * (dlx_publish(), dlx_publisher_wait(), dlx_publisher_unref()), once its message was retired and
 * nobody holds it. With `share` the caller keeps the tensor, and its memory has to stay for as
 * long. Such memory ends with its process: messages with it of a publisher that is gone cannot be
 * opened, and are not retained. dlx_publisher_unref() waits at most 2 s for subscribers that hold
 * such tensors or have yet to take them. What is held even then is never deleted; what was not
 * taken is lost, with all messages that are older than it.
 *
 * Taking: dlx_take() opens nothing. The first dlx_message_tensor() for a tensor of an allocation
 * does, and takes longer for that. dlx_message_tensor() waits until the tensor is ready, at most
 * as long as dlx_connect_args says of calls (DLX_E_TIMEOUT; again later), and returns
 * DLX_E_PUBLISHER_GONE if its publisher died before, DLX_E_DEVICE if an error ended the
 * publisher's work. The tensor's device_id is the number that this process has for the GPU.
 * Nothing enforces that it is not written to. In the publisher's own process it is the original
 * memory. dlx_message_tensor() returns DLX_E_DEVICE if this process does not see the GPU or has no
 * driver, DLX_E_PUBLISHER_GONE if the memory ended with its process, DLX_E_ACCESS if it needs
 * descriptors of another user, DLX_E_NOT_FOUND if the keeper has none (any more; once its
 * subscription has ended, nobody can ask for them), DLX_E_VERSION if the publisher is newer than
 * this library, and DLX_E_SYSTEM or DLX_E_ACCESS with what the driver said. The message's other
 * tensors stay usable. dlx_message_peek() describes a tensor on a GPU, with no data and device_id
 * 0. dlx_message_private() returns DLX_E_DEVICE.
 *
 * Releasing: a received tensor is released when the work that uses it is done, on the streams that
 * dlx_tensor_used_on() named. The deleter does not wait for that: a thread of the subscription
 * does, and until then the message is held. dlx_take() that may wait waits for such a message if
 * too many are held. dlx_subscription_unref() waits until all of these streams are done. The
 * deleter itself waits if no stream was named (for all work of this process on the GPU), on HIP,
 * where the driver makes no event for the stream, and when the subscription has ended; gpu_waits
 * counts that. Tensors on the CPU from which a GPU copies are released likewise, once a stream was
 * named.
 */

#include <dlx/dlx.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Like dlx_message_tensor(), for use on `stream` of this process (CUstream, hipStream_t), and
 * without waiting until a tensor on a GPU is ready: what is enqueued on the stream from now on runs
 * after that. The stream is named as by dlx_tensor_used_on(). No CPU waits: a thread of the
 * subscription watches the publisher, and lets the stream go on when the tensor is ready, and also
 * when its publisher is gone, has failed, or was not ready in the time of dlx_connect_args. The
 * tensor has no meaning then, and dlx_tensor_status() says so; gpu_late and DLX_EVENT_LATE count
 * and tell it.
 *
 * Where streams cannot wait for a word of the CPU (HIP; a trial with real calls, once for each
 * device; the legacy default stream, for which all others would wait; more than 1023 at once; after
 * the subscription has ended), this call waits, as dlx_message_tensor() does, and counts it
 * (gpu_waits). For tensors on the CPU the stream means nothing.
 *
 * Returns what dlx_message_tensor() returns; DLX_E_INVALID if the tensor is not ready and the
 * stream is being captured: nothing was done.
 */
DLX_API int dlx_message_tensor_on(struct dlx_message *m, uint32_t i, void *stream,
                                  DLManagedTensorVersioned **ret);

/**
 * What dlx_message_tensor() would say of tensor `i`, without waiting until it is ready: flags,
 * type, shape, and the device that a tensor on a GPU has here. Its allocation is opened for that,
 * and no stream is needed. `data` of a tensor on a GPU is NULL. There is nothing to release:
 * `manager_ctx` and `deleter` are NULL, and `shape` and `strides` are valid as long as the message.
 * Any thread.
 *
 * Returns 0; what dlx_message_tensor() returns, but for DLX_E_TIMEOUT and what concerns the
 * publisher's work; DLX_E_INVALID, DLX_E_FORKED.
 */
DLX_API int dlx_message_describe(struct dlx_message *m, uint32_t i, DLManagedTensorVersioned *ret);

/**
 * Was the tensor ready when its stream went on? To be asked when the stream has ended its work.
 *
 * Returns 0 (it was, or is of dlx_message_tensor()); 1 (the stream waits still);
 * DLX_E_PUBLISHER_GONE, DLX_E_DEVICE (an error of the publisher's GPU), DLX_E_TIMEOUT: what the
 * stream read has no meaning; DLX_E_INVALID (the tensor was not received), DLX_E_FORKED.
 */
DLX_API int dlx_tensor_status(const DLManagedTensorVersioned *tensor);

/**
 * The same for who holds the message and not the tensor, since all tensors of a message are ready
 * at once: of the streams of dlx_message_tensor_on() that had to wait for this message, the one
 * that began last. 0 if none had to. Any thread.
 */
DLX_API int dlx_message_status(const struct dlx_message *m);

/**
 * Say that work on `stream` (CUstream, hipStream_t; NULL: the default stream) uses a tensor of
 * dlx_message_tensor() that is on a GPU. It is released when the work that is on the streams that
 * were named when the deleter is called is done, or, if none was named, all work of this process on
 * the GPU. The stream may be named several times; it may not be captured or destroyed when the
 * deleter is called. One thread at a time for a tensor.
 *
 * Likewise for a tensor on the CPU of a subscription with `pin` (struct dlx_subscribe_args), from
 * which a copy to that GPU was queued on the stream: it is not written again before the copy is
 * done. If no stream was named, its deleter waits for nothing. The call may set another deleter in
 * `tensor`: whoever has copied the struct copies it again.
 *
 * Returns 0; DLX_E_INVALID (the tensor is not of dlx_message_tensor()), DLX_E_DEVICE (it is not on
 * a GPU, or is empty, and its subscription has no `pin`), DLX_E_NO_MEMORY, DLX_E_FORKED.
 */
DLX_API int dlx_tensor_used_on(DLManagedTensorVersioned *tensor, void *stream);

/**
 * Allocate memory of a GPU of CUDA for the allocator of another library: the arguments are those
 * with which PyTorch calls what torch.cuda.memory.CUDAPluggableAllocator was given, and `stream` is
 * a CUstream. Tensors in it can be published without a copy, as all memory that its owner allows to
 * be shared by descriptors. They are tensors of another library, as said above, and not of
 * dlx_alloc(): a message with them is not retained beyond its publisher. Whoever takes a tensor can
 * read all of the allocation that it lies in.
 *
 * Returns at least `size` bytes, an allocation of its own (a multiple of 2 MiB on most GPUs: not
 * for single tensors), zeroed, ready on every stream, and accessible to this GPU alone; or NULL,
 * and dlx_client_errmsg(NULL) says why: no such GPU, driver or backend, no more memory, 0 bytes, a
 * forked child. Retains the primary context of the GPU until the memory is freed, and that of no
 * other one.
 */
DLX_API void *dlx_cuda_malloc(size_t size, int device, void *stream);

/**
 * Free what dlx_cuda_malloc() returned: wait until all work of this process on the GPU is done, as
 * cudaFree() does, and unmap the memory here. A tensor that was published has to be the library's
 * until its deleter was called; if its memory is freed before, those who have opened it keep it
 * until they let go. NULL is fine, and anything else that dlx_cuda_malloc() did not return is left
 * alone. `size`, `device` and `stream` are not looked at. Does nothing in a forked child, whose
 * parent has the memory.
 */
DLX_API void dlx_cuda_free(void *memory, size_t size, int device, void *stream);

#ifdef __cplusplus
}
#endif

#endif
