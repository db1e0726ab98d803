/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_MESSAGE_H
#define DLX_MESSAGE_H

/* Part of dlx/dlx.h, which includes it: what a subscriber receives. */

#include <dlx/dlx.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Number of tensors, at least 1. */
DLX_API uint32_t dlx_message_n_tensors(const struct dlx_message *m);

/**
 * Make a managed tensor of tensor `i`, without a copy. It may be called more than once for a
 * tensor. The deleter gives the memory back, on any thread; the message may be released before.
 *
 * The tensor is read-only: DLPACK_FLAG_BITMASK_READ_ONLY is set, and the page tables enforce it, so
 * a write faults. `data` is aligned to DLX_ALIGNMENT, and byte_offset is 0. `strides` is never NULL
 * for ndim > 0. It is row-major if it was published as dlx_alloc() made it, or copied; if the
 * publisher passed on a view of its tensor (transposed, say), strides are those of the view.
 *
 * Returns 0; DLX_E_INVALID (no such tensor), DLX_E_NO_MEMORY, DLX_E_FORKED; of a tensor on a GPU
 * also what <dlx/gpu.h> says.
 */
DLX_API int dlx_message_tensor(struct dlx_message *m, uint32_t i, DLManagedTensorVersioned **ret);

/**
 * As dlx_message_tensor(), but private to the caller, who may write to it: for code that writes to
 * what it is given. Nobody else ever sees what is written, not even another tensor of the message.
 *
 * From 256 KiB on it is a copy-on-write view: a page is copied when it is first written to. It
 * holds the message, as every tensor of it does, until its deleter is called, on any thread. A
 * smaller tensor is copied at once, and holds nothing; so is a larger one where the kernel has no
 * such views (before Linux 5.13, or out of mappings or address space).
 * DLPACK_FLAG_BITMASK_IS_COPIED says which.
 *
 * The deleter of a copy may be called in a forked child, too. A view is not there: touching it
 * faults.
 *
 * Returns 0; DLX_E_INVALID (no such tensor), DLX_E_NO_MEMORY (it had to be copied: names the
 * bytes), DLX_E_DEVICE (it is on a GPU), DLX_E_FORKED.
 */
DLX_API int dlx_message_private(struct dlx_message *m, uint32_t i, DLManagedTensorVersioned **ret);

/**
 * Borrow tensor `i`: read-only, valid as long as the message. NULL when there is no such tensor.
 * The data of a tensor on a GPU is NULL here, and its device_id 0: dlx_message_tensor() opens it.
 */
DLX_API const DLTensor *dlx_message_peek(const struct dlx_message *m, uint32_t i);

/**
 * Find the tensor of that name: its index for the other calls. Any thread; the first call on a
 * message makes a table of its names. Returns 0; DLX_E_NOT_FOUND, DLX_E_INVALID, DLX_E_NO_MEMORY,
 * DLX_E_FORKED.
 */
DLX_API int dlx_message_find(struct dlx_message *m, const char *name, uint32_t *ret_i);

/** Name of tensor `i`; "": it has none; NULL: there is no such tensor. Valid as long as the
 *  message. */
DLX_API const char *dlx_message_name(const struct dlx_message *m, uint32_t i);

/** Metadata, aligned to 8, and its size in bytes; NULL and 0: none. Valid as long as the
 *  message. */
DLX_API const void *dlx_message_meta(const struct dlx_message *m, size_t *ret_size);

/** Its topic. Valid as long as the message. */
DLX_API const char *dlx_message_topic(const struct dlx_message *m);

/** Number of the message in its publisher's stream, from 1; a gap means loss or a skip. */
DLX_API uint64_t dlx_message_seq(const struct dlx_message *m);

/** Messages of this publisher between the one taken before and this one that were lost or
 *  skipped. */
DLX_API uint64_t dlx_message_gap(const struct dlx_message *m);

/** When it was published: nanoseconds of CLOCK_MONOTONIC, exact to 2 us (docs/decisions/0019). */
DLX_API uint64_t dlx_message_monotonic_ns(const struct dlx_message *m);

/** Id of its publisher, never reused while the daemon lives; greater means newer. */
DLX_API uint64_t dlx_message_publisher(const struct dlx_message *m);

/** Give the message back: its memory, too, unless a tensor made from it is there. Returns NULL; any
 *  thread. */
DLX_API struct dlx_message *dlx_message_unref(struct dlx_message *m);

/** Hold the message once more, for one more dlx_message_unref(). Returns it; any thread. */
DLX_API struct dlx_message *dlx_message_ref(struct dlx_message *m);

/**
 * As dlx_message_tensor(), with the struct that DLPack used before version 1, which cannot say that
 * the tensor is read-only. DLX_E_READ_ONLY unless `allow_read_only`: the caller knows that nobody
 * writes.
 */
DLX_API int dlx_message_tensor_legacy(struct dlx_message *m, uint32_t i, bool allow_read_only,
                                      DLManagedTensor **ret);

#ifdef __cplusplus
}
#endif

#endif
