/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_OPEN_H
#define DLX_GPU_OPEN_H

/*
 * The GPU memory of received messages, from its descriptions to addresses. The first tensor in an
 * allocation opens it, wherever the driver maps it; or all of a message is opened before, in a
 * range of addresses (gpu/lib/range.h).
 */

#include "gpu/lib/message.h"

/* Decode `bytes`: 0, DLX_E_VERSION (`handle` stays all zero), DLX_E_PROTOCOL. */
int dlx__message_gpu_decode(struct dlx_gpu_allocation *a);
/* The type of device that has memory of this kind. */
int32_t dlx__message_gpu_type(enum dlx_gpu_kind kind);

/* As struct dlx_gpu_receiver_table has them. */
int dlx__message_gpu_open(struct dlx_message *m, uint32_t i, DLTensor *tensor);
int dlx__message_gpu_open_into(struct dlx_message *m, struct dlx_gpu_range *range,
                               int64_t timeout_ns);
int dlx__message_gpu_copy_to_host(const DLTensor *tensor, void *to, uint64_t size);

/* Returns the code, and its text begins with the topic, the publisher and the tensor. */
int dlx__message_gpu_fail(const struct dlx_message *m, uint32_t i, int code);

#endif
