/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_GPU_H
#define DLXPY_GPU_H

/*
 * A received tensor on a GPU. Its owner describes it, without an address; nothing is opened before
 * the device or the memory is asked for. Each export is a tensor of libdlx of its own, with the
 * streams that use it, and outlives the owner. These streams wait until the tensor is ready, and
 * its deleter, on any thread, has the release wait for them:
 *
 *   take(stream=)   the consumer's stream         waits until it is ready   the release waits for
 *   -1, 2 of CUDA   any                           the CPU                   the device
 *   any             2 of CUDA                     the CPU                   the device
 *   none            -1                            the CPU                   the device
 *   none            x                             x                         x
 *   s               x                             s and x                   s and x
 *   s               -1                            s                         s
 *   none            not told                      the CPU                   the device
 *   s               not told                      the CPU                   s
 *   s               __cuda_array_interface__      s, which that names       s
 *
 * x may be None, the default stream, as the rules of DLPack say. (Stream 2 is another one in the
 * thread that releases. Which streams cannot wait, so that the CPU does: dlx_message_tensor_on().)
 */

#include "owner.h"
#include "stream.h"

/* Tensor `i` of the message, which gets a reference more. `stream`: of take(). NULL with an
 * exception. */
struct dlxpy_owner *dlxpy_gpu_owner(struct dlx_message *m, uint32_t i,
                                    const struct dlxpy_stream *stream);

/* Is tensor `i` of the message on a GPU? */
bool dlxpy_gpu_has(const struct dlx_message *m, uint32_t i);

/* For an owner that is on a GPU, received or not: the device; opens a closed tensor, ready or not,
 * without the GIL. -1 with the exception for what dlx_message_tensor_describe() said. */
int dlxpy_gpu_open(const struct dlxpy_owner *owner, DLDevice *ret);

/* The device of such an owner: "cuda:0", or "cuda" if the tensor was not opened. NULL with an
 * exception. */
PyObject *dlxpy_gpu_name(const struct dlxpy_owner *owner);

/* Raises dlx.DeviceError for such an owner, whose bytes the CPU cannot read. Returns -1. */
int dlxpy_gpu_refuse_cpu(const struct dlxpy_owner *owner);

/* The functions below are for an owner whose `gpu` is not NULL. */

/* A tensor for the consumer; `stream` was checked; NULL: the consumer does not tell. NULL with an
 * exception. */
DLManagedTensorVersioned *dlxpy_gpu_export(const struct dlxpy_owner *owner,
                                           const struct dlxpy_stream *stream);

/* As dlxpy_gpu_export() without a stream, for a consumer that uses the tensor as long as the owner
 * exists. -1 with an exception. */
int dlxpy_gpu_expose(const struct dlxpy_owner *owner, DLTensor *ret);

/* As dlxpy_gpu_expose(), for a consumer that learns after which stream it may use the tensor: that
 * of take(), as a number, or None. */
int dlxpy_gpu_expose_on(const struct dlxpy_owner *owner, DLTensor *ret, PyObject **ret_stream);

/* "ready", "waiting" or the name of an error: dlx_message_status(). NULL with an exception. */
PyObject *dlxpy_gpu_status(const struct dlxpy_owner *owner);

#endif
