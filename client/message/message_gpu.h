/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_MESSAGE_GPU_H
#define DLX_CLIENT_MESSAGE_GPU_H

/*
 * Tensors of a received message that are on GPUs. To take the message opens nothing: an allocation
 * is opened, and stays so until the message is released, by the first dlx_message_tensor() of a
 * tensor in it. What that fails with concerns this tensor alone.
 *
 * A tensor is released in this order: the work that uses it is done; its allocation is closed,
 * unless another message uses it; the hold word is cleared; the publisher calls the tensor's
 * deleter.
 */

#include "client/message/message.h"

/* For a manifest with allocations. Returns 0; DLX_E_NO_MEMORY, DLX_E_BAD_PEER. */
int dlx__message_gpu_new(struct dlx_subscriber_link *link, const struct dlx_manifest *manifest,
                         struct dlx_message_gpu **ret);
/* Close what is open: nothing uses it any more. NULL is fine; returns NULL. */
struct dlx_message_gpu *dlx__message_gpu_free(struct dlx_message_gpu *gpu);

/* A link ends: nothing of its publisher needs to stay open while no message is held. */
void dlx__message_gpu_leave(const struct dlx_subscriber_link *link);

/* Note where tensor `i` is, and check that. `gpu` NULL: the message has no allocations. Returns 0;
 * DLX_E_BAD_PEER. */
int dlx__message_gpu_place(struct dlx_message_gpu *gpu, uint32_t i,
                           const struct dlx_manifest_item *item, const int64_t *shape,
                           const int64_t *strides);

/* Fetch an allocation of the link's publisher from the keeper: as dlx__gpu_keep_get(). */
struct dlx_gpu_handle;
int dlx__message_gpu_fetch(struct dlx_client *c, const struct dlx_subscriber_link *link,
                           uint64_t allocation, struct dlx_gpu_handle *ret);

/* Open tensor `i` of a message with tensors on GPUs: sets its data and device, if it is on one. */
int dlx__message_gpu_open(struct dlx_message *m, uint32_t i, DLTensor *tensor);
/* Wait until an open tensor is ready, or let the stream wait, which uses it from then on. */
int dlx__message_gpu_await(struct dlx_export *e, void *const *stream);

/* What an open tensor lies in; NULL: it is not on a GPU, or is empty. */
struct dlx_gpu_import;
const struct dlx_gpu_import *dlx__message_gpu_import(const struct dlx_export *e);

#endif
