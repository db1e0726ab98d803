/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_H
#define DLX_GPU_H

/**
 * Tensors on GPUs. Included by dlx/dlx.h.
 *
 * Tensors on device kDLCUDA or kDLROCM travel like tensors on the CPU, and one set may have both.
 * libdlx-gpu, a second library of the same build, does what is to be done on GPUs: libdlx.so loads
 * it when a program uses a GPU for the first time, and a static program links it. Without it, what
 * follows fails with DLX_E_DEVICE, and dlx_take() takes messages for their tensors on the CPU.
 *
 * Three things differ from the CPU. Other processes open GPU memory by descriptors, which the GPU
 * keeper holds, a separate process (docs/GPU.md). Work on a GPU goes on after a call has returned,
 * so publishing and releasing name a stream (CUstream or hipStream_t; NULL: the default stream).
 * And no page table makes a received tensor read-only: nobody may write to it, but nothing enforces
 * that.
 *
 * Allocating. dlx_alloc() and dlx_alloc_set() with `device` {kDLCUDA, n} or {kDLROCM, n} give
 * memory of that GPU, aligned to 256 bytes and cleared when it is first allocated. Messages whose
 * tensors are all from these calls, or on the CPU, are retained and drained as usual, even if the
 * publisher was killed. Memory that a killed subscriber could read is freed, never reused. If a
 * tensor was not published, its deleter may be called while work that uses it is queued: its memory
 * is reused when all work of this process on the GPU is done. Additional errors of dlx_alloc():
 * DLX_E_DEVICE (no such GPU, driver or backend), DLX_E_NO_MEMORY (the GPU has no more),
 * DLX_E_NO_DAEMON and others (there is no keeper). If the GPU has no more and the publisher has
 * just freed memory, dlx_alloc() waits up to 0.1 s until subscribers have closed it, and counts it
 * in `gpu_waits`.
 *
 * Publishing. dlx_publish() and dlx_publish_set() pass on without a copy: tensors of dlx_alloc(),
 * memory of cudaMalloc and hipMalloc, and memory that its owner lets be shared by descriptors, such
 * as expandable segments of PyTorch. They refuse all other memory, and received tensors, with
 * DLX_E_DEVICE and the reason, unless `stage` asks for a copy. Nothing is ever copied through the
 * host. The tensors are ready when the work that is on `stream` of struct dlx_publish_args at the
 * time of the call is done. dlx_publish() does not wait for that: a thread of the publisher does,
 * and subscribers wait for its signal. The stream may be one of another GPU than the tensors'. A
 * default stream (NULL, 1 and 2 of CUDA) is that of each GPU of the message: of the calling
 * thread's context if that is a context of the GPU, else of the GPU's primary context. On HIP, in
 * debug mode, and if the driver cannot make an event for the stream, as for one of a context that
 * is not a primary one, dlx_publish() waits and counts it (`gpu_waits`). A stream that is being
 * captured is refused with DLX_E_INVALID. A message that no subscriber needs, and that the GPU
 * still writes, keeps its memory meanwhile. dlx_publish() does not wait for that; dlx_alloc() does
 * before it takes more memory, at most for the time of a request in struct dlx_connect_args, and
 * counts it in `gpu_waits`.
 *
 * With `stage`, a tensor that would be refused with DLX_E_DEVICE is copied on its own GPU, with its
 * strides, into memory as of dlx_alloc(). The copy begins after the work on `stream`; for a
 * received tensor, name the stream that it was taken for. dlx_publish() waits for the copy, counts
 * it in `gpu_waits` and in `n_copied` and `copied_bytes` of the report, and then calls the tensor's
 * deleter. For memory that is still written, as above, it waits at most `timeout_ns` before it
 * takes more. Tensors that can be passed on are not copied. With `strict`, DLX_E_WOULD_COPY gives
 * the reason for the copy. Memory that the GPU cannot read itself is refused even so.
 *
 * A tensor of another library is in use until its message is retired and nobody holds it. Its
 * deleter is called by a later dlx_publish(), dlx_publisher_wait() or dlx_publisher_unref(). With
 * `share` the caller keeps the tensor, and keeps its memory for as long. Such memory ends with its
 * process, so messages with it are not retained, and cannot be opened when their publisher is gone.
 * dlx_publisher_unref() waits at most 2 s for subscribers that hold such tensors or have yet to
 * take them. Tensors that are still held after that are never deleted. Messages that were not taken
 * are lost, with all older ones.
 *
 * Taking. dlx_take() opens nothing. The first dlx_message_tensor() for a tensor of an allocation
 * opens that allocation, which takes longer. It waits until the tensor is ready, at most the time
 * of a request in struct dlx_connect_args. The tensor's device_id is the number of the GPU in this
 * process. In the publisher's own process, it is the original memory. dlx_message_tensor_private()
 * returns DLX_E_DEVICE. Additional errors of dlx_message_tensor(), after which the message's other
 * tensors stay usable:
 *
 *   - DLX_E_TIMEOUT: the tensor is not ready yet; call again.
 *   - DLX_E_PUBLISHER_GONE: the publisher died before the tensor was ready, or its memory ended
 *     with the publisher's process.
 *   - DLX_E_DEVICE: an error ended the publisher's work, or this process does not see the GPU or
 *     has no driver.
 *   - DLX_E_ACCESS: it needs descriptors of another user, or the driver refuses.
 *   - DLX_E_NOT_FOUND: the keeper has no descriptors, or the subscription that could ask for them
 *     has ended.
 *   - DLX_E_VERSION: the publisher is newer than this library.
 *   - DLX_E_SYSTEM: the driver failed; the text has its reason.
 *
 * Releasing. A received tensor is released when the work that uses it is done, on the streams that
 * dlx_tensor_used_on() named. The deleter does not wait for that: a thread of the subscription
 * does, and the message is held until then. If too many messages are held, a dlx_take() with a
 * timeout waits for such a release. dlx_subscription_unref() waits for all of these streams: those
 * that wait for a publisher continue at the latest after the time of a request. The
 * deleter itself waits, and `gpu_waits` counts it, if no stream was named (for all work of this
 * process on the GPU), on HIP, if the driver cannot make an event for the stream, as above, and if
 * the subscription has ended. "All work of this process on the GPU" is what is in its primary
 * context and in the calling thread's context, if that is one of this GPU: work in a context that
 * the program made and that is current elsewhere is not waited for, so name its streams. Tensors on
 * the CPU from which a GPU copies are released likewise, once a stream was named.
 *
 * Graphs. While a stream of the process is captured, name the streams of each tensor that is
 * deleted: CUDA refuses to wait for all work on the GPU then, and invalidates the capture. Where it
 * refuses, as also in a host function, the tensor is held until a thread could wait.
 */

#include <dlx/dlx.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Makes a managed tensor of tensor `i` for use on `stream` of this process, without waiting until
 * it is ready. Otherwise like dlx_message_tensor().
 *
 * Work that is put on the stream after this call runs when the tensor is ready. No CPU waits for
 * that: a thread of the subscription watches the publisher and lets the stream continue. It also
 * lets the stream continue if the publisher is gone, has failed, or was not ready within
 * `stream_timeout_ns` of struct dlx_subscribe_args. Then the content has no meaning:
 * dlx_tensor_status() reports it, `gpu_late` counts it, and there is an event DLX_EVENT_LATE.
 *
 * Some streams cannot wait for the CPU:
 *
 *   - those of a process in which CUDA loads kernels with their first launch, as it does unless
 *     CUDA_MODULE_LOADING=EAGER is set before its driver is initialised: such a launch may wait for
 *     all streams. `kernels_loaded` of struct dlx_subscribe_args says that there is none;
 *   - those of a process whose streams share one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1),
 *     and the legacy default stream, since all others would wait with it;
 *   - those of HIP, of a device on which a trial with real calls failed, and of a subscription that
 *     has ended; and more than 1023 at once.
 *
 * For them this call waits as dlx_message_tensor() does, and counts it in `gpu_waits`; the first
 * time an event DLX_EVENT_CPU_WAITED gives the reason. For a tensor on the CPU the stream has no
 * effect. The tensor is released as if dlx_tensor_used_on() had named the stream.
 *
 * Returns as dlx_message_tensor(); DLX_E_INVALID (also: the tensor is not ready and the stream is
 * being captured; nothing was done).
 */
DLX_API int dlx_message_tensor_on(struct dlx_message *m, uint32_t i, void *stream,
                                  DLManagedTensorVersioned **ret);

/**
 * Describes what dlx_message_tensor() would make of tensor `i`, without waiting until it is ready:
 * flags, data type, shape, and the GPU in this process. The allocation is opened for that; no
 * stream is needed. Any thread.
 *
 * `data` of a tensor on a GPU is NULL. There is nothing to release: `manager_ctx` and `deleter` are
 * NULL, and `shape` and `strides` are valid as long as the message.
 *
 * Returns 0; DLX_E_INVALID, DLX_E_FORKED, and what dlx_message_tensor() returns (but not
 * DLX_E_TIMEOUT or an error of the publisher's work).
 */
DLX_API int dlx_message_tensor_describe(struct dlx_message *m, uint32_t i,
                                        DLManagedTensorVersioned *ret);

/**
 * Tells whether the tensor was ready when its stream continued. Ask when the stream has done its
 * work.
 *
 * Returns 0 (it was ready, or came from dlx_message_tensor()); 1 (the stream still waits);
 * DLX_E_PUBLISHER_GONE, DLX_E_DEVICE (an error of the publisher's GPU), DLX_E_TIMEOUT (after each
 * of these three, what the stream read has no meaning), DLX_E_INVALID (the tensor was not
 * received), DLX_E_FORKED.
 */
DLX_API int dlx_tensor_status(const DLManagedTensorVersioned *tensor);

/**
 * Does as dlx_tensor_status(), for a message, whose tensors are all ready at once. If several
 * streams waited for it, the result is that of the stream that began to wait last; 0 if none had to
 * wait. Any thread.
 *
 * Returns as dlx_tensor_status().
 */
DLX_API int dlx_message_status(const struct dlx_message *m);

/**
 * For dlx_tensor_used_on(), where the streams that use a tensor are not known: its release waits
 * for all work of this process on the GPU, in a thread of the subscription. That wait invalidates
 * the capture of any stream of the process.
 */
#define DLX_STREAM_ALL ((void *)(UINTPTR_MAX - 1))
/** For dlx_tensor_used_on(): no stream uses the tensor, and its release waits for nothing. */
#define DLX_STREAM_NONE ((void *)UINTPTR_MAX)

/**
 * Declares that work on `stream` (CUstream or hipStream_t; NULL: the default stream) uses a tensor
 * of dlx_message_tensor() that is on a GPU. It may be called several times, for several streams.
 * One thread at a time for a tensor. DLX_STREAM_ALL and DLX_STREAM_NONE replace what was named
 * before, and the next stream that is named replaces them.
 *
 * The tensor is released when the work is done that is on these streams at the time of its deleter;
 * if no stream was named, when all work of this process on the GPU is done. The streams must exist
 * then, and must not be in capture.
 *
 * A tensor on the CPU may be named, too, if its subscription has `pin` (struct dlx_subscribe_args)
 * and a copy from it to that GPU was put on the stream: its memory is not written again before the
 * copy is done. If no stream was named, its deleter waits for nothing: name DLX_STREAM_ALL if code
 * that is not known may copy from it without waiting. The call may replace `deleter` in `tensor`:
 * make a copy of the struct anew after it.
 *
 * Returns 0; DLX_E_INVALID (the tensor is not of dlx_message_tensor()), DLX_E_DEVICE (it is not on
 * a GPU, or is empty, and its subscription has no `pin`), DLX_E_NO_MEMORY, DLX_E_FORKED.
 */
DLX_API int dlx_tensor_used_on(DLManagedTensorVersioned *tensor, void *stream);

/**
 * Allocates memory of a CUDA GPU for the allocator of another library. The arguments are those of
 * torch.cuda.memory.CUDAPluggableAllocator in PyTorch: `size` in bytes, the number of the GPU, and
 * a CUstream.
 *
 * Tensors in this memory are published without a copy, as tensors of another library: a message
 * with them is not retained beyond its publisher. Whoever takes one can read the whole allocation.
 *
 * The memory is an allocation of its own of at least `size` bytes (a multiple of 2 MiB on most
 * GPUs, so too much for single tensors). It is zeroed, ready on every stream, and accessible to
 * this GPU and its peers. It retains the primary context of this GPU, and of no other, until it is
 * freed.
 *
 * Returns NULL on failure, and dlx_errmsg() has the reason: no such GPU, driver or backend, no more
 * memory, 0 bytes, a forked child.
 */
DLX_API void *dlx_cuda_malloc(size_t size, int device, void *stream);

/**
 * Frees memory of dlx_cuda_malloc(). It waits until all work of this process on the GPU is done, as
 * cudaFree() does, and unmaps the memory here. If the driver refuses to wait, as in a host
 * function, a thread does both.
 *
 * A published tensor must stay allocated until its deleter was called. If its memory is freed
 * before, processes that have opened it keep it until they close it. NULL, and memory that is not
 * of dlx_cuda_malloc(), is ignored. So are `size`, `device` and `stream`. In a forked child the
 * call does nothing, since the memory is the parent's.
 */
DLX_API void dlx_cuda_free(void *memory, size_t size, int device, void *stream);

/**
 * Closes memory of GPUs that other processes own and no tensor of this process is in, on all GPUs,
 * now. Opening takes long, so such memory stays open for the next message: up to an eighth of each
 * GPU's memory, until its publisher frees it or the last subscription to the publisher ends. An
 * allocation of this library that finds no memory does the same before it fails; a program calls
 * it before it allocates by itself, or before it does not take messages for long.
 *
 * The memory is free when its publisher, and every other process that has it open, gives it up,
 * too. Any thread. `*ret` is the number of bytes that were closed (`ret` may be NULL).
 *
 * Returns 0; DLX_E_FORKED (the memory is the parent's).
 */
DLX_API int dlx_gpu_trim(uint64_t *ret);

/*
 * Addresses of GPUs that stay while the memory behind them changes: a new version of a model's
 * weights is mapped where the former one was, so that CUDA graphs that were captured over the
 * former one run over the new one.
 *
 *     dlx_gpu_range_new(&range)
 *     dlx_take(s, timeout_ns, &m)
 *     dlx_message_open_into(m, range, 0)            first version: addresses are reserved
 *     ... dlx_message_tensor(m, i, &t), capture graphs over t->dl_tensor.data, run them ...
 *     dlx_take(s, timeout_ns, &next)
 *     ... release m and its tensors ...
 *     dlx_message_open_into(next, range, timeout_ns)
 *     ... dlx_message_tensor(next, i, &t): the same addresses; run the same graphs ...
 */
struct dlx_gpu_range;

/**
 * Makes a range, which is empty: the first message that is opened in it decides which addresses
 * are reserved, on which GPUs, and what has to lie at each of them. A range holds one message at a
 * time. Weights that travel in several messages need a range for each of them.
 *
 * Returns 0; DLX_E_INVALID, DLX_E_DEVICE (libdlx-gpu is not installed), DLX_E_NO_MEMORY,
 * DLX_E_KERNEL.
 */
DLX_API int dlx_gpu_range_new(struct dlx_gpu_range **ret);

/** Releases the range. A message that is open in it stays so, and the addresses are free when that
 *  has ended. Returns NULL. Any thread. */
DLX_API struct dlx_gpu_range *dlx_gpu_range_unref(struct dlx_gpu_range *range);

/**
 * Opens the GPU memory of a message in the range: dlx_message_tensor() of `m` then gives, for each
 * tensor, the address that the tensor of the same number had in the former message. Call it before
 * any tensor of `m` is opened. All of the message is opened, or nothing.
 *
 * The former message has to be out of use, so that no kernel finds its memory unmapped: it ends
 * when it and all tensors made from it are released, and the work on their streams is done. The
 * call waits for that. In between, and after a failure, the range is empty: work that uses its
 * addresses is an error of the GPU. Everything else is checked before the wait. So a call with
 * `timeout_ns` 0 while the former message is in use fails with DLX_E_TIMEOUT if that message is all
 * that is in the way, and with another code if `m` cannot follow it.
 *
 * Both messages need the same layout: as many tensors, in the same order, with the same names, data
 * types, shapes and strides, and at the same offsets of as many allocations of the same sizes and
 * kind, for the same GPU; tensors on the CPU, and those without elements, may differ. A publisher
 * makes such messages if it does nothing else, and makes each version by one dlx_alloc_set() of the
 * same tensors in the same order: a set on a GPU lies in one piece, in its order, and one of at
 * least 1 MiB, and of a 512th of the publisher's memory on that GPU, begins an arena of its own.
 *
 * Memory of cudaMalloc, of pools and of hipMalloc cannot be placed. A publisher of this process can
 * be the origin: its memory is mapped a second time.
 *
 * Any thread; a second call for the same range waits until the message of the first has ended. It
 * makes no context, and disturbs no capture. `interrupt` does not end the wait. After a failure `m`
 * is not open, and the call may be repeated.
 *
 * Returns 0, what dlx_message_tensor() returns apart from readiness, or:
 *
 *   DLX_E_TIMEOUT         another message is in the range; the text says which
 *   DLX_E_SHAPE           the layout is another one; the text says which tensor lies elsewhere, and
 *                         what its publisher has to do
 *   DLX_E_INVALID         a tensor of `m` was opened before, or none is on a GPU
 *   DLX_E_DEVICE          the kind of memory cannot be placed, or as dlx_message_tensor()
 *   DLX_E_FORKED          the message or the range is the parent's
 *   DLX_E_NO_MEMORY       there is none for the layout, or the driver has none
 */
DLX_API int dlx_message_open_into(struct dlx_message *m, struct dlx_gpu_range *range,
                                  int64_t timeout_ns);

#ifdef __cplusplus
}
#endif

#endif
