/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_MESSAGE_H
#define DLX_MESSAGE_H

/* Received messages and their tensors. Included by dlx/dlx.h. */

#include <dlx/dlx.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Returns the number of tensors, at least 1. */
DLX_API uint32_t dlx_message_n_tensors(const struct dlx_message *m);

/**
 * Makes a managed tensor of tensor `i`, without a copy, any number of times. The caller owns it and
 * calls its deleter when done, on any thread. The message may be released before.
 *
 * The tensor is read-only: DLPACK_FLAG_BITMASK_READ_ONLY is set, and the kernel enforces it, so a
 * write faults. `data` is aligned to DLX_ALIGNMENT, and byte_offset is 0. `strides` is never NULL
 * if ndim > 0. The tensor is row-major, with the strides that PyTorch gives a fresh tensor,
 * also in dimensions of size 1. If the publisher passed on a view of its tensor without a copy
 * (such as a transposed one), it has the strides of that view.
 *
 * This is the way to get a tensor. Each variant of it is for one need:
 *
 *   - dlx_message_tensor_peek() lends the tensor for as long as the message, so that there is
 *     nothing to release; not for the content of tensors on GPUs.
 *   - dlx_message_tensor_private() gives memory that the caller may write to.
 *   - dlx_message_tensor_on() gives a tensor on a GPU to a stream, before it is ready.
 *   - dlx_message_tensor_describe() tells what a tensor on a GPU is, without waiting until it is
 *     ready.
 *   - dlx_message_copy_to_host() copies the elements, wherever they are.
 *   - dlx_message_tensor_legacy() is for libraries that do not know DLPack 1.
 *
 * Returns 0; DLX_E_INVALID (no such tensor), DLX_E_NO_MEMORY, DLX_E_FORKED, and what <dlx/gpu.h>
 * lists for a tensor on a GPU.
 */
DLX_API int dlx_message_tensor(struct dlx_message *m, uint32_t i, DLManagedTensorVersioned **ret);

/**
 * Makes a private, writable tensor of tensor `i`. Otherwise like dlx_message_tensor(). Nobody else
 * sees what is written to it, not even another tensor of the same message.
 *
 * A tensor of 256 KiB or more is a copy-on-write view: each page is copied when it is first written
 * to. The view holds the message until its deleter is called. A smaller tensor is copied at once,
 * and holds nothing. A larger one is copied, too, if the kernel cannot make such views (before
 * Linux 5.13, or out of mappings or address space). DLPACK_FLAG_BITMASK_IS_COPIED tells copies from
 * views.
 *
 * A forked child may use a copy and call its deleter. A view is not mapped there: touching it
 * faults.
 *
 * Returns 0; DLX_E_INVALID (no such tensor), DLX_E_NO_MEMORY (it had to be copied: the text has the
 * bytes), DLX_E_DEVICE (it is on a GPU), DLX_E_FORKED.
 */
DLX_API int dlx_message_tensor_private(struct dlx_message *m, uint32_t i,
                                       DLManagedTensorVersioned **ret);

/**
 * Makes a managed tensor in the struct of DLPack before version 1. Otherwise like
 * dlx_message_tensor(). That struct cannot say that the tensor is read-only: with `allow_read_only`
 * the caller promises that nobody writes to it.
 *
 * Returns as dlx_message_tensor(); DLX_E_READ_ONLY (without `allow_read_only`).
 */
DLX_API int dlx_message_tensor_legacy(struct dlx_message *m, uint32_t i, bool allow_read_only,
                                      DLManagedTensor **ret);

/**
 * Copies the elements of tensor `i` to memory of the caller, in row-major order and without gaps,
 * wherever the tensor is. For a tensor on a GPU this opens it and waits until it is ready, as
 * dlx_message_tensor() does, and then for the copy. It makes the primary context of the GPU in this
 * process, if there is none. A tensor on a GPU that has strides needs memory of the host for all
 * that its elements span, meanwhile. Any thread.
 *
 * Returns 0; DLX_E_INVALID (no such tensor, or it has more than `size` bytes: the text has the
 * bytes), DLX_E_NO_MEMORY, DLX_E_FORKED, and what dlx_message_tensor() returns for a tensor on a
 * GPU. After an error the content of `to` has no meaning.
 */
DLX_API int dlx_message_copy_to_host(struct dlx_message *m, uint32_t i, void *to, size_t size);

/**
 * Lends tensor `i`, read-only and valid as long as the message. NULL if there is no such tensor. A
 * tensor on a GPU has data NULL and device_id 0 here; dlx_message_tensor() opens it.
 */
DLX_API const DLTensor *dlx_message_tensor_peek(const struct dlx_message *m, uint32_t i);

/**
 * Finds the index of the tensor with a name. The first call on a message makes a table of its
 * names. Any thread.
 *
 * Returns 0; DLX_E_NOT_FOUND, DLX_E_INVALID, DLX_E_NO_MEMORY, DLX_E_FORKED.
 */
DLX_API int dlx_message_tensor_find(struct dlx_message *m, const char *name, uint32_t *ret);

/** Returns the name of tensor `i`; "" if it has none, NULL if there is no such tensor. Valid as
 *  long as the message. */
DLX_API const char *dlx_message_tensor_name(const struct dlx_message *m, uint32_t i);

/** Returns the metadata, aligned to 8 bytes, and its size in bytes; NULL and 0 if there is none.
 *  Valid as long as the message. */
DLX_API const void *dlx_message_meta(const struct dlx_message *m, size_t *ret_size);

/** Returns the topic that the message was published on. Valid as long as the message. */
DLX_API const char *dlx_message_topic(const struct dlx_message *m);

/** Returns the number of the message, 1 for its publisher's first. */
DLX_API uint64_t dlx_message_seq(const struct dlx_message *m);

/** Returns how many messages of this publisher were lost or skipped between the one taken before
 *  and this one. */
DLX_API uint64_t dlx_message_gap(const struct dlx_message *m);

/** Returns the time of publication: nanoseconds of CLOCK_MONOTONIC, exact to 2 us. */
DLX_API uint64_t dlx_message_monotonic_ns(const struct dlx_message *m);

/** Returns the id of the publisher. A daemon never reuses an id, and a newer publisher has a
 *  greater one. */
DLX_API uint64_t dlx_message_publisher(const struct dlx_message *m);

/** What a publisher offers, and what this subscription gets of it. */
struct dlx_message_qos {
    size_t size;
    /** The publisher waits for this subscription, or for its group of workers, instead of dropping
     *  messages. */
    bool reliable;
    uint32_t on_full; /**< DLX_ON_FULL_BLOCK or DLX_ON_FULL_DROP */
    uint32_t
        depth; /**< as in struct dlx_publisher_args; 0: the daemon is older than protocol 2.9 */
    uint32_t history; /**< as in struct dlx_publisher_args; once it is gone, `retain` */
    uint32_t retain;  /**< as in struct dlx_publisher_args */
    /** As in struct dlx_publisher_args: 0 (without a limit), a time, or DLX_RETAIN_LATCHED. 0 also
     *  if the daemon is older than protocol 2.9. */
    int64_t retain_for_ns;
};

/**
 * Gets the quality of service of the link by which the message came: so a program can make a
 * publisher that offers the same. Any thread.
 *
 * Returns 0; DLX_E_INVALID, DLX_E_FORKED.
 */
DLX_API int dlx_message_get_qos(const struct dlx_message *m, struct dlx_message_qos *ret);

/** Releases the message. Its memory is free when every tensor made from it is released, too.
 *  Returns NULL. Any thread. */
DLX_API struct dlx_message *dlx_message_unref(struct dlx_message *m);

/** Adds a reference, which needs one more dlx_message_unref(). Returns the message. Any thread. */
DLX_API struct dlx_message *dlx_message_ref(struct dlx_message *m);

#ifdef __cplusplus
}
#endif

#endif
